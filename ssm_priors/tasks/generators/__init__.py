"""Generators of the synthetic tasks: each row is a pure function of (options, split, row number), NumPy only.

A generator is a frozen dataclass of options and `rows(options, split, start, stop) -> Block`. Because a row draws from
a stream of its own, any process can make any range of rows, and the result does not depend on how the work was cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssm_priors.errors import BadConfig

SPLITS = ("train", "validation", "test")


class Block(NamedTuple):
    """Consecutive rows of one split."""

    inputs: np.ndarray
    """(rows, columns) uint8 token ids, right-padded with 0, or (rows, side, side) uint8 pixels."""
    lengths: np.ndarray
    """(rows,) int32, valid positions from the left."""
    targets: np.ndarray
    """(rows,) uint8 classes; or (rows, columns) int8, one answer a position, -1 where nothing is asked."""


def sizes(examples: int, held_out: int, usual: int) -> dict[str, int]:
    """Rows of each split: `examples`, and twice `held_out`; 0 means `usual`, but at most half of `examples`."""
    other = held_out or max(1, min(usual, examples // 2))
    return {"train": examples, "validation": other, "test": other}


def require_range(split: str, start: int, stop: int) -> None:
    """Refuse a range of rows that cannot be.

    Raises:
        BadConfig: the split is unknown, or the range runs backwards.
    """
    if split not in SPLITS:
        raise BadConfig(f"unknown split '{split}'; the splits are {', '.join(SPLITS)}")
    if not 0 <= start <= stop:
        raise BadConfig(f"rows {start} to {stop} are no range; give 0 <= start <= stop")
