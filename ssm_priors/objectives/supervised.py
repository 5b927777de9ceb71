"""The task itself: one class an example. Not registered: it is what finetuning always learns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.objectives.objective import Problem


class Supervised:
    """Cross-entropy of the class, from one pooled answer an example."""

    requires_causal = False
    pooled = True

    def __init__(self, spec: TaskSpec):
        self.outputs = spec.classes

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Ask for every example's class."""
        if batch.targets is None:
            raise BadData("a batch without labels was given to the supervised objective")
        return Problem(hidden=None, targets=batch.targets, scored=torch.ones_like(batch.targets, dtype=torch.bool))

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Over all examples."""
        return F.cross_entropy(answers, problem.targets, reduction="sum"), len(problem.targets)
