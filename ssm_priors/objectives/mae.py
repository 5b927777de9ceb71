"""Masked patches at a high ratio, regressed: what masked autoencoders learn, in place.

A masked autoencoder leaves hidden patches out of its encoder. A sequence model cannot: its positions would close up.
So hidden steps are seen as one learned vector, and everything else is the paper's: whole patches, a fixed share of
them, squared error on hidden ones only. Source: He et al. 2022, arXiv 2111.06377.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.objectives.objective import Problem, squared_error
from ssm_priors.objectives.patches import hide_patches, patch_of
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("mae")
class MaskedPatches:
    """Hide most patches (squares of images, runs of steps) and regress what is in them.

    Source: He et al. 2022, arXiv 2111.06377.
    """

    requires_causal = False
    kinds = ("continuous",)
    stand_ins = 1
    pooled = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of masked patches."""

        ratio: Annotated[float, Gt(0), Lt(1)] = 0.75
        """Share of the patches that is hidden."""
        patch: Annotated[int, Ge(1)] = 4
        """Side of a patch of an image, in pixels; of anything else its length, in steps."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.options, self.spec = options, spec
        self.outputs = spec.features

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Choose the patches."""
        patch = patch_of(self.spec, self.options.patch, batch.inputs.shape[1])
        hidden = hide_patches(batch, patch, self.options.ratio, generator)
        return Problem(hidden=hidden, targets=batch.inputs, scored=hidden)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Squared error over hidden steps."""
        return squared_error(answers, problem)
