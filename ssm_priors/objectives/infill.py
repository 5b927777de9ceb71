"""Infilling: a sequence is broken in three ways, and the whole of it is asked for, in its own order.

    permute   runs of tokens in another order
    delete    tokens vanish, leaving no trace
    infill    runs of Poisson length, also of length 0, become one mask each

The broken sequence is filled up with blanks to the length it had, and position t is asked for token t of the original.
BART writes that with a decoder; here any mixer answers in place. Source: Lewis et al. 2020, arXiv 1910.13461.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.objectives.objective import Problem, Rewritten, reconstruction_score, rewrite
from ssm_priors.registry import OBJECTIVES

MASK, BLANK = 1, 2


@OBJECTIVES.register("infill")
class Infill:
    """Permute, delete and mask runs of tokens; ask for the whole sequence as it was.

    Source: Lewis et al. 2020, arXiv 1910.13461.
    """

    requires_causal = False
    kinds = ("token",)
    stand_ins = 2
    pooled = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of infilling."""

        ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.3
        """Share of the tokens that is masked in runs."""
        mean_length: Annotated[float, Ge(1)] = 3.0
        """Mean of the Poisson length of a run."""
        deleted: Annotated[float, Interval(ge=0, lt=1)] = 0.0
        """Probability that a token is deleted."""
        piece: Annotated[int, Ge(0)] = 0
        """Length of the runs that are permuted, in tokens; 0 permutes nothing."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.options = options
        self.outputs = spec.vocabulary

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Break every example."""
        return rewrite(batch, [self._broken(length, generator) for length in batch.lengths.tolist()])

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Cross-entropy over all positions of the original."""
        return reconstruction_score(answers, problem)

    def _broken(self, length: int, generator: torch.Generator) -> Rewritten:
        order = _permuted(length, self.options.piece, generator)
        order = order[torch.rand(length, generator=generator) >= self.options.deleted]
        broken = Rewritten()
        for start, end, is_masked in self._runs(len(order), generator):
            if is_masked:
                broken.stand_in(MASK)
            else:
                broken.show(order[start:end].tolist())
        broken.cut(length)
        for _ in range(length - len(broken.sources)):
            broken.stand_in(BLANK)
        broken.asked = list(range(length))
        return broken

    def _runs(self, length: int, generator: torch.Generator) -> list[tuple[int, int, bool]]:
        """Start, end and whether it is masked, of runs that follow each other; about `ratio` of all is masked."""
        budget, runs, start = round(self.options.ratio * length), [], 0
        rate = torch.tensor(self.options.mean_length)
        gap = self.options.mean_length * (1 - self.options.ratio) / max(self.options.ratio, 1e-9)
        while start < length and budget > 0:
            step = int(torch.empty(1).exponential_(1 / max(gap, 1e-9), generator=generator).round())
            end = min(length, start + step)
            masked = min(int(torch.poisson(rate, generator=generator)), budget, length - end)
            runs += [(start, end, False), (end, end + masked, True)]
            start, budget = end + masked, budget - max(masked, 1)
        return [*runs, (start, length, False)]


def _permuted(length: int, piece: int, generator: torch.Generator) -> Tensor:
    if piece == 0:
        return torch.arange(length)
    pieces = torch.arange(length).split(piece)
    return torch.cat([pieces[index] for index in torch.randperm(len(pieces), generator=generator).tolist()])
