"""Task, Split, the subset that a data fraction means, and what a class must have to be registered as a task.

`TASKS.register` takes a class that fits `TaskKind`. What it can do besides is a protocol of its own, asked for with
`isinstance`: `Prepares` writes its data into the store (`ssm_priors.tasks.store`), `NeedsArchive` does so from files
that only a user can bring, `MayNeedArchive` only where its options say so, `MayLack` reads them from a package that may
not be installed, `HasKey` has options that do not change what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.seeds import numpy_stream

SPLITS = ("train", "validation", "test")

Progress = Callable[[str, int, int], None]
"""Told while data are prepared: what is being made, how many are done, how many there are."""


def silent(what: str, done: int, total: int) -> None:
    """A Progress that says nothing."""


class TaskKind(Protocol):
    """What is registered: a class with these, none of which touches a network."""

    Config: type
    """A frozen dataclass of options; every field has a default and says its unit below it."""
    origin: str
    """Where the data come from, in words: "ships with ssm-priors", "generated from a seed"."""

    @staticmethod
    def spec(options: Any) -> TaskSpec:
        """What the task is like, without reading its data. Raises NotReady where only the data can tell."""
        ...

    @staticmethod
    def load(options: Any) -> Task:
        """The three splits; raises NotReady where the data are not here."""
        ...


class Archive(NamedTuple):
    """Files that a user must bring."""

    name: str
    """What it is officially called: "cifar-10-python.tar.gz"."""
    origin: str
    """Who offers it and under which name, in words."""


@runtime_checkable
class Prepares(Protocol):
    """A task whose data lie in the store."""

    def prepare(self, source: Path | None, options: Any, progress: Progress) -> Path:
        """Write the data with `store.write` and give their folder; `source` is None for what is generated."""
        ...


@runtime_checkable
class NeedsArchive(Protocol):
    """A task whose `prepare` needs a source."""

    archive: Archive


@runtime_checkable
class MayNeedArchive(Protocol):
    """A task whose option `data` says where its data come from: "official" ones a user must bring, others not."""

    official: Archive


@runtime_checkable
class MayLack(Protocol):
    """A task that needs something besides an archive."""

    def missing(self, options: Any) -> str:
        """What is not here, and what to do; empty if nothing is missing."""
        ...


@runtime_checkable
class HasKey(Protocol):
    """A task of whose options only some decide what is stored."""

    def key(self, options: Any) -> Mapping[str, Any]:
        """Those that do, as plain values."""
        ...


def archive_of(kind: Any, options: Any) -> Archive | None:
    """What a user must bring for a task with these options, if anything."""
    if isinstance(kind, MayNeedArchive):
        return kind.official if options.data == "official" else None
    return kind.archive if isinstance(kind, NeedsArchive) else None


def is_stored(kind: Any, options: Any) -> bool:
    """Whether a task's data lie in the store once they are prepared; not where they ship with a package."""
    return isinstance(kind, Prepares) and not (isinstance(kind, MayNeedArchive) and options.data == "shipped")


def origin_of(kind: Any, options: Any) -> str:
    """Where the data come from with these options, in words."""
    brought = archive_of(kind, options) if isinstance(kind, MayNeedArchive) else None
    return f"{brought.name}, {brought.origin}" if brought else kind.origin


@runtime_checkable
class HasContent(Protocol):
    """A task made from files that may change: what is stored is current only while their content stays the same."""

    def content(self, options: Any) -> str:
        """SHA-256 of all that the data are made from; empty where it is not here."""
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """Examples in a fixed order, stored as compactly as they can be and widened when taken."""

    inputs: Tensor
    """(rows, L) ids of any integer type, or (rows, L, features) numbers of any type; may be mapped from a file. A row
    an example, or two with two documents: rows 2i and 2i + 1."""
    lengths: Tensor
    """(rows,), valid positions from the left, at least 1."""
    targets: Tensor | None
    """A row an example: (N,) classes, (N, numbers) float32 in the task's unit, or (N, L) ids with -1 where nothing is
    asked. None where labels must not be seen."""
    scale: tuple[float, ...] = ()
    """Stored numbers times `scale` plus `offset` are the inputs: one of each, or one a feature. Empty: as stored."""
    offset: tuple[float, ...] = (0.0,)
    documents: int = 1
    chosen: Tensor | None = None
    """(N,), the examples that this split is made of, in order; None means all. A part of a split shares its storage."""
    is_checked: bool = False
    """Whether the values were checked when they were stored, so that loading need not read them all."""

    def __len__(self) -> int:
        """Examples."""
        return len(self.lengths) // self.documents if self.chosen is None else len(self.chosen)

    @property
    def labels(self) -> Tensor:
        """`targets` of this split's own examples, in order; raises BadData where labels must not be seen."""
        if self.targets is None:
            raise BadData("a split without labels cannot be scored")
        return self.targets if self.chosen is None else self.targets[self.chosen]

    def without_labels(self) -> Split:
        """The inputs alone: what pretraining is given."""
        return replace(self, targets=None)

    def part(self, rows: Tensor) -> Split:
        """The examples at `rows` as a split of their own; nothing is read or copied."""
        return replace(self, chosen=rows if self.chosen is None else self.chosen[rows])

    def take(self, rows: Tensor) -> Batch:
        """The examples at `rows` as a batch, cut to its longest: ids int64, numbers float32."""
        examples, stored = self._stored(rows)
        lengths = self.lengths[stored]
        columns = int(lengths.max())
        inputs = self._widened(self.inputs[:, :columns].index_select(0, stored))  # half the time of indexing
        targets = None if self.targets is None else self.targets[examples]
        if targets is not None and not targets.is_floating_point():
            targets = (targets[:, :columns] if targets.ndim == 2 else targets).long()
        return Batch(inputs, lengths.long(), targets, self.documents)

    def longest(self, rows: Tensor) -> int:
        """Positions that `take` pads the examples at `rows` to."""
        return int(self.lengths[self._stored(rows)[1]].max())

    def _stored(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Examples, and the rows of storage that hold their documents."""
        examples = rows if self.chosen is None else self.chosen[rows]
        return examples, (examples[:, None] * self.documents + torch.arange(self.documents)).flatten()

    def _widened(self, stored: Tensor) -> Tensor:
        if self.scale:
            return stored.float().mul_(torch.tensor(self.scale)).add_(torch.tensor(self.offset))
        return stored.float() if stored.is_floating_point() else stored.long()


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with its metric, checked on creation."""

    spec: TaskSpec
    train: Split
    validation: Split
    test: Split
    sha256: str
    """Of the data as shipped or prepared, for a run's provenance."""

    def __post_init__(self) -> None:
        if self.spec.answer == "tokens" and self.spec.documents != 1:
            raise BadData("an answer at every position of two documents is not defined; give the task one document")
        for name in SPLITS:
            _check(self.spec, getattr(self, name), name)


def _check(spec: TaskSpec, split: Split, name: str) -> None:
    if len(split) == 0:
        raise BadData(f"the {name} split is empty")
    if split.targets is None:
        raise BadData(f"the {name} split has no labels")
    if split.documents != spec.documents:
        raise BadData(f"the {name} split has {split.documents} documents an example, {spec.documents} expected")
    if not len(split.inputs) == len(split.lengths) == spec.documents * len(split.targets):
        raise BadData(
            f"the {name} split has {len(split.inputs)} rows of inputs, {len(split.lengths)} lengths and "
            f"{len(split.targets)} targets, with {spec.documents} rows an example"
        )
    if split.is_checked:
        return
    for row, fault in faults(spec, split.inputs.numpy(), split.lengths.numpy(), split.targets.numpy()):
        raise BadData(f"{name} example {row} has {fault}")


def faults(spec: TaskSpec, inputs: np.ndarray, lengths: np.ndarray, targets: np.ndarray) -> Iterator[tuple[int, str]]:
    """What no model may be given: every example at fault, with the words for it ('a class outside 0 .. 9').

    Args:
        spec: what the examples should be like.
        inputs: (rows, L) ids, or (rows, L, features).
        lengths: (rows,).
        targets: a row an example, as in `Split`.
    """
    for row in np.flatnonzero((lengths < 1) | (lengths > inputs.shape[1])):
        yield int(row) // spec.documents, f"{lengths[row]} valid positions"
    if spec.kind == "token":
        rows, fault = _outside(inputs, 0, spec.vocabulary), f"a token id outside 0 .. {spec.vocabulary - 1}"
    else:
        rows, fault = _not_finite(inputs), "a value that is not finite"
    yield from ((int(row) // spec.documents, fault) for row in rows)
    if spec.answer == "values":
        yield from ((int(row), "a target that is not finite") for row in _not_finite(targets))
        return
    least = -1 if spec.answer == "tokens" else 0
    words = f"a class outside 0 .. {spec.classes - 1}" + (", or -1" if spec.answer == "tokens" else "")
    yield from ((int(row), words) for row in _outside(targets, least, spec.classes))
    if spec.answer == "tokens":
        asked = (targets >= 0) & (np.arange(targets.shape[1]) < lengths[:, None])
        yield from ((int(row), "no position where anything is asked") for row in np.flatnonzero(~asked.any(axis=1)))
        beyond = (targets >= 0) & ~asked
        yield from ((int(row), "a target in its padding") for row in np.flatnonzero(beyond.any(axis=1)))


def _outside(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Rows with a value below `low`, or not below `high`."""
    if values.size == 0 or low <= values.min() <= values.max() < high:  # so that a large array is not doubled
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(((values < low) | (values >= high)).reshape(len(values), -1).any(axis=1))


def _not_finite(values: np.ndarray) -> np.ndarray:
    """Rows with a value that is not finite; integers always are."""
    if values.dtype.kind in "iub":
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))


def fixed_length(inputs: np.ndarray, targets: np.ndarray) -> Split:
    """A split of unpadded examples: inputs (examples, L, features) and targets (examples,)."""
    return Split(
        torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32)),
        torch.full((len(inputs),), inputs.shape[1]),
        torch.from_numpy(targets.astype(np.int64)),
    )


def stratified_parts(classes: np.ndarray, shares: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    """Disjoint row sets with the given sizes, every class in proportion, each set in ascending order.

    Args:
        classes: (examples,) class of each example.
        shares: sizes of the sets; they may leave examples over.
        rng: decides which example goes where.

    Returns:
        One array of rows a share.
    """
    total = len(classes)
    rows = [rng.permutation(np.flatnonzero(classes == label)) for label in np.unique(classes)]
    # Interleave the classes evenly: position (i + 1/2) / size of each class's own order, sorted over all classes
    place = np.concatenate([(np.arange(len(part)) + 0.5) / len(part) for part in rows])
    mixed = np.concatenate(rows)[np.argsort(place, kind="stable")]
    if sum(shares) > total:
        raise BadData(f"{sum(shares)} examples were asked for, {total} are there")
    ends = np.cumsum(shares)
    return [np.sort(mixed[end - share : end]) for share, end in zip(shares, ends, strict=True)]


def fraction_of(split: Split, fraction: float, classes: int, seed: int) -> Split:
    """The share of a training split that a run may see: stratified, and nested (0.1 lies inside 0.2).

    Args:
        split: the full training split, with labels; where an example has no class of its own (numbers, ids), the share
            is drawn from all examples alike.
        fraction: in (0, 1].
        classes: number of classes.
        seed: the run's seed; another seed draws another subset (stream "subset").

    Raises:
        BadConfig: a class would be left without an example.
    """
    if fraction >= 1:
        return split
    if split.targets is None:
        raise BadData("a split without labels cannot be cut by class")
    targets, kept = split.labels.numpy(), []
    has_class = targets.ndim == 1
    for label in range(classes if has_class else 1):
        rows = np.flatnonzero(targets == label) if has_class else np.arange(len(targets))
        count = round(fraction * len(rows))
        if count == 0:
            left = f"class {label} without one" if has_class else "none"
            raise BadConfig(
                f"fraction {fraction} of {len(rows)} training examples leaves {left}; "
                f"{1 / max(len(rows), 1):.2g} keeps at least one"
            )
        kept.append(numpy_stream(seed, "subset", label).permutation(rows)[:count])
    return split.part(torch.from_numpy(np.sort(np.concatenate(kept))))
