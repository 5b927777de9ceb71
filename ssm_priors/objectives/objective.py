"""What the training loop asks of an objective, and the scoring that pretraining objectives share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """A batch, posed."""

    hidden: Tensor | None
    """(B, L), True where the model must not see the input; None hides nothing."""
    targets: Tensor
    """(B, L) ids, (B, L, features) values, or (B,) classes."""
    scored: Tensor
    """(B, L) or (B,), True where an answer counts."""


class Objective(Protocol):
    """One way to learn from a batch."""

    requires_causal: bool
    """Whether the answer stands in the input of a model that sees both sides."""
    outputs: int
    """Size of the model's answer."""
    pooled: bool
    """One answer an example, or one a position."""

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Choose what is hidden and what is asked; `generator` lives on the CPU."""
        ...

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Loss summed over what is scored, and how many that is."""
        ...


def reconstruction_outputs(spec: TaskSpec) -> int:
    """Size of an answer that names an input: the vocabulary, or the features of a step."""
    return spec.vocabulary if spec.kind == "token" else spec.features


def reconstruction_score(answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
    """Cross-entropy for ids, L1 (mean over the features of a step) for values, summed over scored positions.

    Args:
        answers: (B, L, outputs).
        problem: targets (B, L) integer ids, or (B, L, features) values.

    Returns:
        The sum, and the number of scored positions.
    """
    answers, targets = answers[problem.scored], problem.targets[problem.scored]
    if targets.is_floating_point():
        total = (answers - targets).abs().mean(-1).sum()
    else:
        total = F.cross_entropy(answers, targets.long(), reduction="sum")
    return total, len(targets)
