"""What a study was made to test, answered: every claim is supported, contradicted or undecided.

    value = sum of the cells it adds - sum of those it subtracts, over the seeds that all of them have

A claim says that the value is better than a border, or nearer to 0 than one. It is supported where the value lies on
the claimed side of the border and Holm's correction over all claims of the study leaves its p-value below 0.05,
contradicted where the value lies on the other side as surely, and else undecided; also with fewer than 3 seeds, or
where a run is not done. Without an interval nothing is called supported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ssm_priors.metrics import Metric
from ssm_priors.studies.bootstrap import LEVEL, Interval, holm
from ssm_priors.studies.grid import Claim, Study
from ssm_priors.studies.statistics import CLAIM_SEEDS, TaskResults

Verdict = Literal["supported", "contradicted", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a study says to one of its claims."""

    claim: Claim
    task: str
    metric: Metric
    interval: Interval | None
    """Value and 95% interval, for this claim alone; None where a cell has no result."""
    seeds: int
    examples: int
    lacking: str
    """Which runs are missing or failed; empty if none."""
    p_value: float
    """Of the border of the claim; 1 where nothing can be said."""
    adjusted: float
    """The same by Holm's correction over the study's claims."""

    @property
    def verdict(self) -> Verdict:
        """What may be said."""
        if self.interval is None or self.adjusted >= 1 - LEVEL:
            return "undecided"
        return "supported" if _holds(self.claim, self.interval.estimate, self.metric) else "contradicted"

    @property
    def why(self) -> str:
        """The reason of the verdict, in words."""
        if self.interval is None:
            return f"not available: {self.lacking}" if self.lacking else "not available"
        if self.lacking:
            return f"the runs that are left may not speak for all: {self.lacking}"
        if self.seeds < CLAIM_SEEDS:
            return f"{self.seeds} seed{'s' * (self.seeds > 1)}; a claim needs at least {CLAIM_SEEDS}"
        return f"p {_p(self.p_value)}, by Holm's correction {_p(self.adjusted)}"

    @property
    def numbers(self) -> str:
        """'+4.2 points [+1.3, +7.1]', or an empty string."""
        if self.interval is None:
            return ""
        value, low, high = map(self.metric.gap, self.interval)
        return " ".join(part for part in (value, self.metric.gap_unit, f"[{low}, {high}]") if part)

    @property
    def wanted(self) -> str:
        """What the claim says of the value: 'above +0.0 points'."""
        unit = self.metric.gap_unit
        if self.claim.within is not None:
            words = f"within {self.claim.within:g}"
        elif self.metric.lower_is_better:
            words = f"below {-self.claim.above + 0.0:g}"
        else:
            words = f"above {self.claim.above:g}"
        return f"{words} {unit}".rstrip()

    @property
    def sentence(self) -> str:
        """Claim, verdict, numbers and reason."""
        told = f"{self.numbers} ({self.wanted} was claimed); {self.why}" if self.numbers else self.why
        return f"{self.claim.text}: {self.verdict}. {told}"


def answers(study: Study, tasks: Mapping[str, TaskResults]) -> list[Answer]:
    """Of every claim of a study, for each of its tasks.

    Args:
        study: with its claims.
        tasks: name -> its results.
    """
    found = list(_judged(study, tasks))
    adjusted = holm([answer.p_value for answer in found])
    return [replace(answer, adjusted=value) for answer, value in zip(found, adjusted, strict=True)]


def _judged(study: Study, tasks: Mapping[str, TaskResults]) -> Iterator[Answer]:
    """Each by itself."""
    for claim in study.claims:
        for plus, minus in study.sides(claim):
            here = tasks[plus[0].task]
            compared = here.compare(plus, minus)
            interval = compared.interval()
            p_value = 1.0
            if interval and not compared.lacking and len(compared.seeds) >= CLAIM_SEEDS:
                p_value = compared.p_value(_border(claim, interval.estimate, here.metric))
            yield Answer(
                claim=claim,
                task=plus[0].task,
                metric=here.metric,
                interval=interval,
                seeds=len(compared.seeds),
                examples=here.examples,
                lacking=compared.lacking,
                p_value=p_value,
                adjusted=p_value,
            )


def _border(claim: Claim, value: float, metric: Metric) -> float:
    """Where the claim ends, in the metric's own numbers; of two ends the one on the value's side."""
    unit = 0.01 if metric.is_share else 1.0
    if claim.within is not None:
        return math.copysign(claim.within * unit, value)
    return -claim.above * unit if metric.lower_is_better else claim.above * unit


def _holds(claim: Claim, value: float, metric: Metric) -> bool:
    border = _border(claim, value, metric)
    return abs(value) < abs(border) if claim.within is not None else metric.is_better(value, border)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
