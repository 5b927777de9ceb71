"""Task, Split, and the subset that a data fraction means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.seeds import numpy_stream


@dataclass(frozen=True, slots=True)
class Split:
    """Examples in a fixed order."""

    inputs: torch.Tensor
    """(examples, L) integer ids, or (examples, L, features) float32."""
    lengths: torch.Tensor
    """(examples,), valid positions from the left, at least 1."""
    targets: torch.Tensor | None
    """(examples,) classes; None where labels must not be seen."""

    def __len__(self) -> int:
        return len(self.lengths)

    def without_labels(self) -> Split:
        """The inputs alone: what pretraining is given."""
        return replace(self, targets=None)

    def take(self, rows: torch.Tensor) -> Batch:
        """The examples at `rows` as a batch."""
        targets = None if self.targets is None else self.targets[rows]
        return Batch(self.inputs[rows], self.lengths[rows], targets)


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
        for name in ("train", "validation", "test"):
            _check(self.spec, getattr(self, name), name)


def _check(spec: TaskSpec, split: Split, name: str) -> None:
    if len(split) == 0:
        raise BadData(f"the {name} split is empty")
    short = torch.nonzero((split.lengths < 1) | (split.lengths > split.inputs.shape[1]))
    if len(short):
        raise BadData(f"{name} example {int(short[0])} has {int(split.lengths[short[0]])} valid positions")
    if spec.kind == "token" and not 0 <= int(split.inputs.min()) <= int(split.inputs.max()) < spec.vocabulary:
        raise BadData(f"a {name} example has a token id outside 0 .. {spec.vocabulary - 1}")
    if spec.kind == "continuous" and not bool(torch.isfinite(split.inputs).all()):
        raise BadData(f"a {name} example has a value that is not finite")
    if split.targets is None or not 0 <= int(split.targets.min()) <= int(split.targets.max()) < spec.classes:
        raise BadData(f"a {name} example has a class outside 0 .. {spec.classes - 1}")


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
        split: the full training split, with labels.
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
    targets = split.targets.numpy()
    kept = []
    for label in range(classes):
        rows = np.flatnonzero(targets == label)
        count = round(fraction * len(rows))
        if count == 0:
            raise BadConfig(
                f"fraction {fraction} of {len(rows)} training examples leaves class {label} without one; "
                f"{1 / max(len(rows), 1):.2g} keeps at least one"
            )
        kept.append(numpy_stream(seed, "subset", label).permutation(rows)[:count])
    chosen = torch.from_numpy(np.sort(np.concatenate(kept)))
    return Split(split.inputs[chosen], split.lengths[chosen], split.targets[chosen])
