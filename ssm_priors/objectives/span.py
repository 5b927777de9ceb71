"""Span corruption: runs of tokens are cut out, each leaves one sentinel, and each is asked for at the end.

    a b c d e f g h   ->   a b <1> e f <2> | <1> <1> <2> <2>      asked at the slots behind the bar: c d g h

T5 writes the answer with a decoder. Here the slots are further positions of the same sequence, each seen as the
sentinel of its span, so that any mixer can fill them in. The sequence grows by one position a span.
Source: Raffel et al. 2020, arXiv 1910.10683, section 3.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval, Lt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.objectives.objective import Problem, Rewritten, reconstruction_score, rewrite
from ssm_priors.registry import OBJECTIVES


@OBJECTIVES.register("span")
class Span:
    """Cut out spans of tokens, leave one sentinel for each, ask for their contents at the end.

    Source: Raffel et al. 2020, arXiv 1910.10683.
    """

    requires_causal = False
    kinds = ("token",)
    pooled = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of span corruption."""

        ratio: Annotated[float, Gt(0), Lt(1)] = 0.15
        """Share of the tokens that is cut out."""
        mean_length: Annotated[float, Ge(1)] = 3.0
        """Mean length of a span, in tokens."""
        sentinels: Annotated[int, Interval(ge=1, le=10_000)] = 100
        """Most spans of one sequence; longer spans take the place of more."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.options = options
        self.stand_ins = options.sentinels
        self.outputs = spec.vocabulary

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Draw the spans of every example."""
        return rewrite(batch, [self._corrupt(length, generator) for length in batch.lengths.tolist()])

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Cross-entropy at the slots."""
        return reconstruction_score(answers, problem)

    def _corrupt(self, length: int, generator: torch.Generator) -> Rewritten:
        """Visible and hidden runs in turn, a visible one first, as in T5; one token alone is asked for."""
        hidden = min(max(1, round(self.options.ratio * length)), max(1, length - 1))
        spans = max(1, min(round(hidden / self.options.mean_length), hidden, length - hidden, self.stand_ins))
        seen, asked, start = Rewritten(), Rewritten(), 0
        visible = partition(length - hidden, spans, generator) if length > hidden else [0]
        for sentinel, (before, inside) in enumerate(zip(visible, partition(hidden, spans, generator), strict=True), 1):
            seen.show(range(start, start + before))
            seen.stand_in(sentinel)
            asked.ask(range(start + before, start + before + inside), sentinel)
            start += before + inside
        seen.extend(asked)
        return seen


def partition(total: int, parts: int, generator: torch.Generator) -> list[int]:
    """A whole number as a sum of positive ones, all such sums equally likely."""
    cuts = torch.randperm(total - 1, generator=generator)[: parts - 1].sort().values + 1
    ends = [0, *cuts.tolist(), total]
    return [end - start for start, end in pairwise(ends)]
