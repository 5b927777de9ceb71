"""Predict the representation of hidden blocks: what a slowly following copy of the model makes of the whole input.

    loss = smooth L1(answer, norm(teacher(x))) at hidden steps;   teacher <- m teacher + (1 - m) model after each step

The context network and the predictor are one: hidden steps are seen as one learned vector, the backbone fills them in,
the head predicts. The targets are normalised over channels, so that their scale cannot shrink away.
Source: Assran et al. 2023, arXiv 2301.08243; in one network: Baevski et al. 2022, arXiv 2202.03555.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.objectives.objective import Problem
from ssm_priors.objectives.patches import hide_patches, patch_of
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("jepa")
class Jepa:
    """Predict what a slowly following copy of the model makes of hidden blocks.

    Source: Assran et al. 2023, arXiv 2301.08243; Baevski et al. 2022, arXiv 2202.03555.
    """

    requires_causal = False
    kinds = ("continuous", "token")
    stand_ins = 1
    pooled = False
    outputs = None

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the joint embedding."""

        ratio: Annotated[float, Gt(0), Lt(1)] = 0.5
        """Share of the blocks that is hidden."""
        block: Annotated[int, Ge(1)] = 4
        """Side of a block of an image, in pixels; of anything else its length, in steps."""
        momentum: Annotated[float, Gt(0), Lt(1)] = 0.99
        """m: how much of the teacher stays at each step."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.options, self.spec = options, spec
        self.momentum = options.momentum

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Choose the blocks; the targets come from the teacher."""
        patch = patch_of(self.spec, self.options.block, batch.inputs.shape[1])
        hidden = hide_patches(batch, patch, self.options.ratio, generator)
        return Problem(hidden=hidden, targets=batch.inputs, scored=hidden)

    def taught(self, problem: Problem, representation: Tensor) -> Problem:
        """The problem with its targets: (B, L, H), the teacher's last layer, normalised over channels."""
        return replace(problem, targets=F.layer_norm(representation, representation.shape[-1:]))

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Smooth L1, mean over channels, summed over hidden steps."""
        answers, targets = answers[problem.scored], problem.targets[problem.scored]
        return F.smooth_l1_loss(answers, targets, reduction="none").mean(-1).sum(), len(targets)
