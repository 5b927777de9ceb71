"""Causal denoising: predict the next position from those before it.

The answer at position t is held against the input at t + 1; a one-sided model cannot have seen it.
Source: Amos, Berant, Gupta 2023, arXiv 2310.02980, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec, valid_positions
from ssm_priors.objectives.objective import Problem, reconstruction_outputs, reconstruction_score
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("causal")
class Causal:
    """Predict the next position from those before it; needs a one-sided model.

    Source: Amos et al. 2023, arXiv 2310.02980, section 2.
    """

    requires_causal = True
    kinds = ("continuous", "token")
    pooled = False
    stand_ins = 0

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The causal objective has no options."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.outputs = reconstruction_outputs(spec)

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Shift the inputs left by one; each example's last valid position has nothing to predict."""
        scored = valid_positions(batch.lengths - 1, batch.inputs.shape[1])
        return Problem(hidden=None, targets=batch.inputs.roll(-1, dims=1), scored=scored)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Over positions that have a next one."""
        return reconstruction_score(answers, problem)
