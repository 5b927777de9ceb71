"""What a study found: the metric of every cell, and what every change does to it, with what may be said of each.

How sure each number is: `studies.bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import xarray as xr

from ssm_priors.metrics import ACCURACY, Metric
from ssm_priors.studies.bootstrap import LEVEL, RESAMPLES, Interval, over_seeds, resample_examples, wilson
from ssm_priors.studies.contrasts import Contrast, Kind, contrasts
from ssm_priors.studies.grid import Cell
from ssm_priors.studies.results import Status, at, cells, is_cell
from ssm_priors.studies.results import metric as metric_of_task

CLAIM_SEEDS = 3
"""Fewest seeds that allow a claim about a method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellScore:
    """The metric of one cell over its seeds."""

    cell: Cell
    interval: Interval | None
    """Of the mean over the seeds that are done; None if none is."""
    values: tuple[float | None, ...]
    """A seed each, in order; None where the run is missing or failed."""
    examples: int
    at_chance: tuple[int, ...]
    """Seeds that are done and not better than the best answer that is the same for all examples."""
    reason: str
    """Which seeds are missing or failed, and why; empty if all are done."""
    metric: Metric = ACCURACY

    @property
    def done(self) -> list[float]:
        """Values of the seeds that are done."""
        return [value for value in self.values if value is not None]

    @property
    def seeds(self) -> int:
        """How many seeds are done."""
        return len(self.done)

    @property
    def median(self) -> float | None:
        """Over the seeds that are done: one stuck seed moves the mean, not this."""
        return float(np.median(self.done)) if self.done else None

    @property
    def sentence(self) -> str:
        """Cell, value, interval, and what is wrong with any of its seeds."""
        if self.interval is None:
            return f"{self.cell.label}: not available: {self.reason}"
        low, high = map(self.metric.text, self.interval[1:])
        value = self.metric.full(self.interval.estimate)
        words = f"{self.cell.label}: {value} [{low}, {high}], {_count(self.seeds, 'seed')}"
        return "; ".join([words, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What a reader must know besides the number."""
        stuck = [f"seed {seed} is at chance ({self.metric.full(self.values[seed])})" for seed in self.at_chance]
        return stuck + ([self.reason] if self.reason else [])


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What one change does to the metric, seed by seed and example by example."""

    model: str
    task: str
    fraction: float
    kind: Kind
    text: str
    """What is compared, in words."""
    estimate: float | None
    """Difference of the metric (shares as shares), or difference of two differences; None if not available."""
    low: float | None
    high: float | None
    seeds: int
    """How many seeds all its cells have."""
    examples: int
    available: bool
    reason: str
    """Which runs it lacks, and why; empty if none."""
    metric: Metric = ACCURACY

    @property
    def verdict(self) -> str:
        """What may be said. Never calls a difference real whose interval covers zero, or that rests on few seeds."""
        if self.estimate is None or self.low is None or self.high is None:
            return f"not available: {self.reason}"
        if self.seeds < CLAIM_SEEDS:
            covers = "one seed, so the interval covers test examples only" if self.seeds == 1 else f"{self.seeds} seeds"
            left_out = f". {self.reason}" if self.reason else ""
            return f"no claim: {covers}; a claim needs at least {CLAIM_SEEDS} seeds{left_out}"
        if self.reason:
            return f"no claim: the runs that are left may not speak for all. {self.reason}"
        if not self.is_claim:
            return "no difference shown: the interval covers zero"
        change = "the two gaps differ" if self.kind == "interaction" else self.metric.change(self.estimate)
        return f"{change}: the interval excludes zero"

    @property
    def is_claim(self) -> bool:
        """Whether the difference may be called real."""
        if self.low is None or self.high is None or self.reason or self.seeds < CLAIM_SEEDS:
            return False
        return not self.low <= 0 <= self.high

    @property
    def points(self) -> str:
        """'-11.3' (percentage points, or the metric's unit), or an empty string."""
        return "" if self.estimate is None else self.metric.gap(self.estimate)

    @property
    def bounds(self) -> str:
        """'[-13.4, -9.1]', or an empty string."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self.metric.gap(self.low)}, {self.metric.gap(self.high)}]"

    @property
    def numbers(self) -> str:
        """'-11.3 points [-13.4, -9.1]', or an empty string."""
        parts = (self.points, self.metric.gap_unit, self.bounds)
        return " ".join(part for part in parts if part) if self.available else ""

    @property
    def sentence(self) -> str:
        """Words, numbers and verdict."""
        return f"{self.text}: {'; '.join(part for part in (self.numbers, self.verdict) if part)}"


class TaskResults:
    """All cells of one task, resampled together."""

    def __init__(self, results: xr.Dataset, task: str):
        self.results, self.cells = results, [cell for cell in cells(results) if cell.task == task]
        self.chance, self.metric = float(results.chance.sel(task=task)), metric_of_task(results, task)
        every = np.stack([at(results.score, cell).values for cell in self.cells])
        self.score = every[..., ~np.isnan(every).all(axis=(0, 1))]
        self.done = np.stack([at(results.status, cell).values == Status.DONE for cell in self.cells])
        if self.score.size:
            self.values = np.asarray(self.metric.finish(resample_examples(np.nan_to_num(self.score))))

    @property
    def examples(self) -> int:
        """Test examples."""
        return self.score.shape[-1]

    def scores(self) -> list[CellScore]:
        """Of every cell: its metric with its interval, seed by seed, failed ones included."""
        return [self._score(index, cell) for index, cell in enumerate(self.cells)]

    def effects(self) -> list[Effect]:
        """What its cells show, one by one; what lacks runs says so.

        For each fraction, budget and variant: each other model against the first, each init against the model's own,
        each objective against none, and what the objective changes about those gaps (the interaction). A comparison of
        the same runs in several places, such as one from scratch where variants differ in pretraining, is one effect.
        """
        places = dict.fromkeys(cell.place for cell in self.cells)
        alike: dict[tuple, list[Contrast]] = {}
        for place in places:
            for contrast in contrasts([cell for cell in self.cells if cell.place == place]):
                alike.setdefault((self._runs(contrast.plus), self._runs(contrast.minus)), []).append(contrast)
        return [self._effect(same) for same in alike.values()]

    def _score(self, index: int, cell: Cell) -> CellScore:
        seeds = np.flatnonzero(self.done[index])
        value = {int(seed): self.metric.value(self.score[index, seed]) for seed in seeds}
        stuck = [seed for seed in value if self._is_chance(index, seed, value[seed])]
        return CellScore(
            cell=cell,
            interval=self.interval([index], seeds, np.ones(1)) if len(seeds) else None,
            values=tuple(value.get(seed) for seed in range(self.done.shape[1])),
            examples=self.examples,
            at_chance=tuple(stuck),
            reason=_lacking(self.results, cell),
            metric=self.metric,
        )

    def compare(self, plus: Sequence[Cell], minus: Sequence[Cell]) -> Comparison:
        """Sums of cells, subtracted, over the seeds that all of them have."""
        needed = [*plus, *minus]
        known = [self.cells.index(cell) for cell in needed if cell in self.cells]
        seeds = np.flatnonzero(self.done[known].all(axis=0)) if len(known) == len(needed) else np.empty(0, dtype=int)
        signs = np.repeat([1.0, -1.0], [len(plus), len(minus)])
        lacking = "; ".join(f"{cell.label}: {gap}" for cell in needed if (gap := _lacking(self.results, cell)))
        return Comparison(self, known, seeds, signs, lacking)

    def _runs(self, those: Sequence[Cell]) -> tuple[str, ...]:
        """Names of all runs of some cells."""
        return tuple(name for cell in those for name in at(self.results.fingerprint, cell).values.tolist())

    def _effect(self, same: Sequence[Contrast]) -> Effect:
        """Of a contrast, or of several between the same runs."""
        contrast, places = same[0], [one.plus[0] for one in same]
        first, compared = contrast.plus[0], self.compare(contrast.plus, contrast.minus)
        interval = compared.interval()
        return Effect(
            model=first.model,
            task=first.task,
            fraction=first.fraction,
            kind=contrast.kind,
            text=contrast.text + self._place(places),
            estimate=interval and interval.estimate,
            low=interval and interval.low,
            high=interval and interval.high,
            seeds=len(compared.seeds),
            examples=self.examples,
            available=interval is not None,
            reason=compared.lacking,
            metric=self.metric,
        )

    def interval(self, rows: list[int], seeds: np.ndarray, contrast: np.ndarray, level: float = LEVEL) -> Interval:
        """Of a contrast of cells over the same seeds."""
        score, values = self.score[rows][:, seeds], self.values[:, rows][:, :, seeds]
        return over_seeds(score, values, contrast, self.metric, level)

    def _is_chance(self, index: int, seed: int, value: float) -> bool:
        """Whether the worse end of a run's own interval over examples is no better than chance."""
        if self.metric.is_share:
            return wilson(value * self.examples, self.examples).low <= self.chance
        return bool(np.percentile(self.values[:, index, seed], 100 * (1 + LEVEL) / 2) >= self.chance)

    def _place(self, those: Sequence[Cell]) -> str:
        """Task, fraction, budget and variant, where the study has several and these cells have one."""
        cell = those[0]
        words = {"task": cell.task, "fraction": f"{cell.fraction:.3g} of the data", "budget": cell.budget}
        words["variant"] = cell.variant
        kept = [
            text
            for axis, text in words.items()
            if self.results.sizes[axis] > 1
            and len({getattr(one, axis) for one in those}) == 1
            and not (axis == "fraction" and cell.fraction == 1)
        ]
        return "".join(f", {text}" for text in kept)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contrast of cells, and how sure it is at any level."""

    task: TaskResults
    rows: list[int]
    """Positions of its cells."""
    seeds: np.ndarray
    """Positions of the seeds that are done in all of them."""
    signs: np.ndarray
    """(cell,), 1 for what is added, -1 for what is subtracted."""
    lacking: str
    """Which runs it lacks, and why; empty if none."""

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Estimate and interval; None without a seed that all its cells have."""
        return self.task.interval(self.rows, self.seeds, self.signs, level) if len(self.seeds) else None

    def p_value(self, null: float) -> float:
        """The least alpha at which the interval of level 1 - alpha excludes `null`; not below what resamples can tell.

        Of a comparison with an interval, and a null hypothesis that its value is this.
        """
        low, high = 2 / (RESAMPLES + 1), 1.0
        while high / low > 1.001:
            middle = math.sqrt(low * high)
            interval = self.interval(1 - middle)
            assert interval is not None
            low, high = (middle, high) if interval.low <= null <= interval.high else (low, middle)
        return high


def _lacking(results: xr.Dataset, cell: Cell) -> str:
    """Which of a cell's seeds are not done, and why; empty if all are."""
    if not is_cell(results, cell):
        return "not part of this study"
    runs = at(results, cell)
    alike: dict[str, list[str]] = {}
    for seed, code, reason in zip(runs.seed.values, runs.status.values, runs.reason.values, strict=True):
        if code != Status.DONE:
            why = f" ({shorten(str(reason), 90, placeholder=' ...')})" if reason else ""
            alike.setdefault(f"{Status(code).word}{why}", []).append(str(seed))
    return "; ".join(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)} {what}" for what, seeds in alike.items())


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
