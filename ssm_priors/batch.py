"""What models, objectives and tasks share: what a task is like, a batch of examples, which positions are valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """What a model, an objective and a metric must know of a task; nothing else in the code asks which task it is."""

    kind: Literal["continuous", "token"]
    length: Annotated[int, Interval(ge=1, le=2**24)]
    """Longest sequence, in steps."""
    classes: Annotated[int, Interval(ge=1, le=2**20)]
    """Classes that an example, or a position, can have; for `values`, how many numbers an example has."""
    features: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """Numbers a step, for continuous inputs."""
    vocabulary: Annotated[int, Interval(ge=0, le=2**24)] = 0
    """Number of token ids, for token inputs."""
    answer: Literal["class", "values", "tokens"] = "class"
    """What is asked: a class an example, real numbers an example, or an id at every asked position."""
    documents: Literal[1, 2] = 1
    """Sequences an example: 2 for a question about a pair."""
    width: Annotated[int, Interval(ge=0, le=2**24)] = 0
    """Steps of one row, where the sequence is an image read row by row; 0 means no image."""
    unit: str = ""
    """Of the numbers asked for, such as "bpm"."""
    mean: float = 0.0
    """What a model's answer of 0 means, in `unit`: the mean over the training examples that a run sees."""
    deviation: Annotated[float, Gt(0)] = 1.0
    """What a model's answer of 1 means above `mean`, in `unit`: the deviation over the same examples."""


def valid_positions(lengths: Tensor, length: int) -> Tensor:
    """Which positions of right-padded examples are no padding: (B,) -> (B, L), True at the first `lengths`."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded examples."""

    inputs: Tensor
    """(B, L) ids, or (B, L, features). With two documents an example, rows 2i and 2i + 1 are example i: (2B, ...)."""
    lengths: Tensor
    """(B,) or (2B,), valid positions, at least 1."""
    targets: Tensor | None
    """(B,) classes, (B, classes) numbers, or (B, L) ids with -1 where nothing is asked; None where labels must not be
    seen."""
    documents: int = 1

    def __len__(self) -> int:
        """Examples."""
        return len(self.lengths) // self.documents

    def to(self, device: torch.device) -> Batch:
        """The same examples on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return Batch(self.inputs.to(device), self.lengths.to(device), targets, self.documents)
