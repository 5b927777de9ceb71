"""A user's files read row by row: each reader gives `Rows`, and `assemble` makes a task's data of them.

    tables    CSV, Parquet: a row an example
    arrays    NPZ, Zarr: the first axis of an array counts examples
    folders   a sub-folder a class, or a file an example beside labels.csv

Whatever cannot be used is refused with its file, row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Example(NamedTuple):
    """One row, as it was read."""

    place: int
    """What `Rows.where` takes."""
    series: np.ndarray
    """(L, features) float64, or (L,) bytes of a text as uint8."""
    label: str
    split: str = ""
    """Of `task.SPLITS`, where the data say it; else empty."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All examples of a source, in its order."""

    examples: Iterator[Example]
    where: Callable[[int], str]
    """A place in words: 'data.csv, row 17'."""
    total: int
    """How much there is to read: bytes or examples."""
    done: Callable[[], int]
    """How much of it has been read."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a person should know of how it was read; complete once all examples were taken."""
