"""Examples on their way into the store: what they look like, what is counted of them, and which stand there twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.tasks.task import faults

MOST_CLASSES = 1000
"""Classes that are counted one by one."""


class Chunk(NamedTuple):
    """Some examples of one split, in order."""

    inputs: np.ndarray
    """(rows, L) ids or (rows, L, features) as they are to be stored; L may be less than the task's length. A row an
    example, or two with two documents."""
    lengths: np.ndarray
    """(rows,)."""
    targets: np.ndarray
    """A row an example: (n,) classes, (n, numbers) in the task's unit, or (n, L) ids with -1 where nothing is asked."""


class Incoming(NamedTuple):
    """A split on its way into the store."""

    examples: int
    """How many the chunks hold together."""
    chunks: Iterable[Chunk]
    """Asked for one after the other, and only once: a generator keeps memory small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a task's inputs are stored, and what its data may look like."""

    dtype: str
    """Of the stored inputs: uint8, int16, int32, float16 or float32."""
    scale: tuple[float, ...] = ()
    """Stored numbers times `scale` plus `offset` are the inputs: one of each, or one a feature. Empty: as stored."""
    offset: tuple[float, ...] = (0.0,)
    duplicates: Literal["refuse", "report"] = "refuse"
    """What becomes of an example that stands in two splits: an error with its row, or a count in the manifest."""


class Duplicate(NamedTuple):
    """An example that stands in an earlier split too."""

    split: str
    row: int
    first_split: str
    first_row: int

    def __str__(self) -> str:
        return f"{self.split} example {self.row} is also {self.first_split} example {self.first_row}"


class Seen:
    """Remembers every example by a hash of its valid inputs, and notes those that come again in another split."""

    def __init__(self) -> None:
        self.duplicates: list[Duplicate] = []
        self._first: dict[bytes, tuple[str, int]] = {}

    def add(self, split: str, first: int, chunk: Chunk) -> None:
        """Take the examples `first`.. of a split, with inputs of the type in which they are stored."""
        documents = len(chunk.inputs) // len(chunk.targets)
        for example in range(len(chunk.targets)):
            digest = hashlib.blake2b(digest_size=16)
            for row in range(example * documents, (example + 1) * documents):
                digest.update(int(chunk.lengths[row]).to_bytes(8, "little"))
                digest.update(chunk.inputs[row, : chunk.lengths[row]].tobytes())
            before = self._first.setdefault(digest.digest(), (split, first + example))
            if before[0] != split:
                self.duplicates.append(Duplicate(split, first + example, *before))


@dataclass(slots=True)
class Tally:
    """Counts of one split, for people."""

    spec: TaskSpec
    examples: int = 0
    shortest: int = 2**31
    longest: int = 0
    steps: int = 0
    counts: np.ndarray = field(init=False)
    """(classes,): how often each is the answer."""
    sums: np.ndarray = field(default_factory=lambda: np.array([0.0, 0.0, np.inf, -np.inf]))
    """Of the numbers asked for: sum, sum of squares, least, most."""

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.spec.classes, dtype=np.int64)

    def add(self, chunk: Chunk) -> None:
        """Count some examples."""
        self.examples += len(chunk.targets)
        self.shortest = min(self.shortest, int(chunk.lengths.min()))
        self.longest = max(self.longest, int(chunk.lengths.max()))
        self.steps += int(chunk.lengths.sum())
        if self.spec.answer == "values":
            values = chunk.targets.astype(np.float64)
            self.sums[:2] += values.sum(), np.square(values).sum()
            self.sums[2:] = min(self.sums[2], values.min()), max(self.sums[3], values.max())
        else:
            asked = chunk.targets[chunk.targets >= 0]
            self.counts += np.bincount(asked, minlength=self.spec.classes)

    def summary(self) -> dict[str, Any]:
        """Plain values: examples, lengths, and how labels are spread."""
        lengths = {"shortest": self.shortest, "longest": self.longest}
        rows = self.examples * self.spec.documents
        return {"examples": self.examples, **lengths, "mean_length": self.steps / rows, "labels": self._labels()}

    def _labels(self) -> dict[str, Any]:
        if self.spec.answer == "values":
            numbers = self.examples * self.spec.classes
            mean = self.sums[0] / numbers
            deviation = max(self.sums[1] / numbers - mean**2, 0.0) ** 0.5
            return {"mean": mean, "deviation": deviation, "least": self.sums[2], "most": self.sums[3]}
        if self.spec.classes > MOST_CLASSES:
            return {"least": int(self.counts.min()), "most": int(self.counts.max())}
        return {"counts": self.counts.tolist()}


def as_stored(chunk: Chunk, dtype: np.dtype) -> Chunk:
    """A chunk with inputs of another type. Integers come through unchanged; real numbers are rounded.

    Raises:
        BadData: an integer that the type cannot hold, or a number beyond its largest.
    """
    inputs = np.asarray(chunk.inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = inputs.astype(dtype, copy=False)
    is_lost = (stored != inputs).any() if dtype.kind in "iu" else not np.isfinite(stored).all()
    if is_lost:
        raise BadData(f"inputs from {inputs.min()} to {inputs.max()} cannot be stored as {dtype}")
    return chunk._replace(inputs=stored)


def refuse(spec: TaskSpec, split: str, first: int, chunk: Chunk) -> None:
    """Hold a chunk against what the task should be like; raises BadData naming the split and the example."""
    rows, examples = len(chunk.inputs), len(chunk.targets)
    if not rows == len(chunk.lengths) == examples * spec.documents:
        raise BadData(f"{split} example {first}: {rows} rows, {len(chunk.lengths)} lengths, {examples} targets")
    trailing = () if spec.kind == "token" else (spec.features,)
    if chunk.inputs.shape[1] > spec.length or chunk.inputs.shape[2:] != trailing:
        most = (spec.length, *trailing)
        raise BadData(f"{split} example {first}: inputs of shape {chunk.inputs.shape[1:]}, at most {most} expected")
    for row, words in faults(spec, *chunk):
        raise BadData(f"{split} example {first + row} has {words}")
