"""Masked denoising: hide positions at random, reconstruct them from the rest.

Every valid position is hidden with probability `ratio`, independently; the loss counts hidden positions only.
Source: Amos, Berant, Gupta 2023, arXiv 2310.02980, section 2; Devlin et al. 2018, arXiv 1810.04805.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec, valid_positions
from ssm_priors.objectives.objective import Problem, reconstruction_outputs, reconstruction_score
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("masked")
class Masked:
    """Hide positions at random and reconstruct them from both sides.

    Source: Amos et al. 2023, arXiv 2310.02980, section 2.
    """

    requires_causal = False
    kinds = ("continuous", "token")
    pooled = False
    stand_ins = 1

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of masked denoising."""

        ratio: Annotated[float, Gt(0), Lt(1)] = 0.5
        """Probability that a position is hidden. The paper: 0.5 for vision, 0.15 for language, 0.1 for ListOps."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.ratio = options.ratio
        self.outputs = reconstruction_outputs(spec)

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Draw the mask. An example whose draw hides nothing gets one position hidden, uniformly among its valid ones.

        That keeps every example in the loss, and raises the expected ratio of an example of L positions by
        (1 - ratio)^L / L: nothing at the lengths this is made for.
        """
        rows, columns = batch.inputs.shape[:2]
        lengths = batch.lengths.cpu()
        drawn = torch.rand(rows, columns, generator=generator) < self.ratio
        hidden = drawn & valid_positions(lengths, columns)
        fallback = (torch.rand(rows, generator=generator) * lengths).long().clamp(max=columns - 1)
        empty = ~hidden.any(dim=1)
        hidden[empty, fallback[empty]] = True
        hidden = hidden.to(batch.inputs.device)
        return Problem(hidden=hidden, targets=batch.inputs, scored=hidden)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Over hidden positions."""
        return reconstruction_score(answers, problem)
