"""Denoising: add Gaussian noise to every step, regress the clean input.

Source: Vincent et al. 2010, "Stacked denoising autoencoders", JMLR 11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec, valid_positions
from ssm_priors.objectives.objective import Problem, squared_error
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("denoise")
class Denoise:
    """Add noise to every step and regress the clean input.

    Source: Vincent et al. 2010, JMLR 11, 3371-3408.
    """

    requires_causal = False
    kinds = ("continuous",)
    stand_ins = 0
    pooled = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of denoising."""

        deviation: Annotated[float, Gt(0)] = 0.5
        """Standard deviation of the noise, in units of the inputs."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.deviation = options.deviation
        self.outputs = spec.features

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Draw the noise."""
        noise = torch.randn(batch.inputs.shape, generator=generator).to(batch.inputs)
        noisy = batch.inputs + self.deviation * noise
        scored = valid_positions(batch.lengths, batch.inputs.shape[1])
        return Problem(hidden=None, targets=batch.inputs, scored=scored, inputs=noisy)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Squared error over all valid steps."""
        return squared_error(answers, problem)
