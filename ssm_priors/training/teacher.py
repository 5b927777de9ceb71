"""A copy of a model that follows it slowly, and says what should be predicted: the target network of jepa.

    teacher <- m teacher + (1 - m) model   after every step;   running statistics of norms are copied as they are

Source: Grill et al. 2020, arXiv 2006.07733, section 3.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import load_exactly
from ssm_priors.models.build import Model
from ssm_priors.objectives.objective import HasTeacher, Objective, Problem


class Teacher:
    """Starts as the model is.

    Args:
        model: to be followed.
        momentum: m, how much of the teacher stays at each step.
    """

    def __init__(self, model: Model, momentum: float):
        self.momentum = momentum
        self._copy = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def represent(self, batch: Batch) -> Tensor:
        """(B, L, H): its last layer, of the inputs as they are, nothing hidden and nothing dropped."""
        return self._copy.represent(batch.inputs, batch.lengths)

    @torch.no_grad()
    def follow(self, model: Model) -> None:
        """One step towards the model."""
        for own, theirs in zip(self._copy.parameters(), model.parameters(), strict=True):
            own.lerp_(theirs, 1 - self.momentum)
        for kept, current in zip(self._copy.buffers(), model.buffers(), strict=True):
            kept.copy_(current)

    def state_dict(self) -> dict[str, Tensor]:
        """Its weights, for a saved state."""
        state: dict[str, Tensor] = self._copy.state_dict()
        return state

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put saved weights back; raises BadCheckpoint if they are not its own."""
        load_exactly(self._copy, tensors)


def teacher_of(objective: Objective, model: Model) -> Teacher | None:
    """The teacher that an objective asks for; None if it asks for none."""
    return Teacher(model, objective.momentum) if isinstance(objective, HasTeacher) else None


def taught(objective: Objective, problem: Problem, batch: Batch, teacher: Teacher | None) -> Problem:
    """The problem with the teacher's targets, where there is a teacher."""
    if teacher is None or not isinstance(objective, HasTeacher):
        return problem
    return objective.taught(problem, teacher.represent(batch))
