"""The two small things that models, objectives and tasks share: what inputs look like, and a batch of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """What a model and an objective must know of a task; nothing else in the code asks which task it is."""

    kind: Literal["continuous", "token"]
    length: Annotated[int, Interval(ge=1, le=2**24)]
    """Longest sequence, in steps."""
    classes: Annotated[int, Interval(ge=1, le=2**20)]
    features: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """Numbers a step, for continuous inputs."""
    vocabulary: Annotated[int, Interval(ge=0, le=2**24)] = 0
    """Number of token ids, for token inputs."""
    metric: str = "accuracy"


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded examples."""

    inputs: Tensor
    """(B, L) ids, or (B, L, features)."""
    lengths: Tensor
    """(B,), valid positions, at least 1."""
    targets: Tensor | None
    """(B,) classes; None where labels must not be seen."""

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Batch:
        """The same examples on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return Batch(self.inputs.to(device), self.lengths.to(device), targets)
