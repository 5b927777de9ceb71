"""How sure a study can be: metrics and paired effects with 95% bootstrap intervals, and what may be said of them.

Every run of a task is tested on the same examples, and every cell has the same seeds, so a study is a crossed design:

    score[cell, seed, example],   value*[cell] = sum_s w_s finish(sum_e v_e score[cell, s, e])

where finish is the identity for accuracies, and the square root for an RMSE: a run's value is its RMSE, a cell's is the
mean over its runs.

The pigeonhole bootstrap draws the examples' weights v once for all seeds and cells, and the seeds' weights w once for
all cells: what cells share cancels from their differences. With one seed w = 1, and the interval speaks of test
examples only. The interval runs from the 2.5th to the 97.5th percentile of the resamples.

What is done about the bootstrap's known weaknesses:

- few seeds make it too narrow. The seeds' weights are stretched about 1/S by sqrt(S / (S - 1)) t(S - 1) / z, the factor
  that turns a normal interval with a biased variance into Student's; only the uncertainty that comes from seeds grows.
- few seeds do not show to which side they lean (one of three may be stuck). With several seeds the interval
  reaches as far on its shorter side as on its longer one, and is clipped to what is possible.
- an accuracy of exactly 0 or 1 has a bootstrap interval of no width: Wilson's interval over the test examples is used.
- where fewer than about five examples tell two cells apart, a difference's interval is too narrow; nothing is done.

Intervals are for each effect alone: of many, one in twenty that is nothing excludes zero.

Source: Owen 2007, The pigeonhole bootstrap, Annals of Applied Statistics 1(2); Rao and Wu 1988, Resampling inference
with complex survey data, JASA 83; Hesterberg 2015, What teachers should know about the bootstrap, arXiv 1411.5279;
Wilson 1927, JASA 22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import norm, t

from ssm_priors.metrics import ACCURACY, Metric
from ssm_priors.studies.contrasts import Contrast, Kind, contrasts
from ssm_priors.studies.grid import Cell
from ssm_priors.studies.results import Status, at, cells, is_cell
from ssm_priors.studies.results import metric as metric_of_task

RESAMPLES = 4000
LEVEL = 0.95
CLAIM_SEEDS = 3
"""Fewest seeds that allow a claim about a method."""
BLOCK = 2**22
"""Most weights held at a time while resampling examples."""


class Interval(NamedTuple):
    """An estimate and its 95% interval."""

    estimate: float
    low: float
    high: float


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


def bootstrap(
    score: np.ndarray, contrast: Sequence[float] = (1.0,), resamples: int = RESAMPLES, metric: Metric = ACCURACY
) -> Interval:
    """Estimate and 95% interval of `contrast @ value`, crossed over seeds and examples.

    Args:
        score: (cell, seed, example), complete.
        contrast: (cell,): (1,) is one cell's value, (1, -1) a paired difference.
        resamples: how many.
        metric: turns mean scores into values.
    """
    values = metric.finish(resample_examples(score, resamples))
    return _over_seeds(score, np.asarray(values), np.asarray(contrast, dtype=float), metric)


def resample_examples(score: np.ndarray, resamples: int = RESAMPLES) -> np.ndarray:
    """Mean scores on resampled test examples, the same ones for all cells and seeds: (resample, cell, seed).

    Args:
        score: (cell, seed, example); a run that does not exist gives a number without meaning.
        resamples: how many; the generator's seed is fixed.
    """
    *runs, examples = score.shape
    columns = score.reshape(-1, examples).T.astype(np.float64)  # sums of 0 and 1 are exact
    rng = np.random.default_rng(0)
    height = max(1, BLOCK // examples)
    blocks = [min(height, resamples - first) for first in range(0, resamples, height)]
    sums = [_counts(rng, block, examples).astype(np.float64) @ columns for block in blocks]
    return (np.concatenate(sums) / examples).reshape(resamples, *runs)


def wilson(right: float, total: int) -> Interval:
    """Wilson's 95% score interval of a share."""
    z, share = norm.ppf((1 + LEVEL) / 2), right / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    # At the border the formula's own bound differs from it by rounding alone
    return Interval(share, 0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def scores(results: xr.Dataset) -> list[CellScore]:
    """Every cell of a study: its metric with its interval, seed by seed, failed ones included."""
    return [score for task in results.task.values.tolist() for score in _Task(results, task).scores()]


def effects(results: xr.Dataset) -> list[Effect]:
    """Every effect the study was made to show; one that lacks runs says so.

    For each task, fraction and budget: each other model against the first, each init against the model's own, each
    objective against none, and what the objective changes about those gaps (the interaction).
    """
    return [effect for task in results.task.values.tolist() for effect in _Task(results, task).effects()]


class _Task:
    """All cells of one task, resampled together."""

    def __init__(self, results: xr.Dataset, task: str):
        self.results, self.cells = results, [cell for cell in cells(results) if cell.task == task]
        self.chance, self.metric = float(results.chance.sel(task=task)), metric_of_task(results, task)
        every = np.stack([at(results, cell).score.values for cell in self.cells])
        self.score = every[..., ~np.isnan(every).all(axis=(0, 1))]
        self.done = np.stack([at(results, cell).status.values == Status.DONE for cell in self.cells])
        if self.score.size:
            self.values = np.asarray(self.metric.finish(resample_examples(np.nan_to_num(self.score))))

    @property
    def examples(self) -> int:
        return self.score.shape[-1]

    def scores(self) -> list[CellScore]:
        return [self._score(index, cell) for index, cell in enumerate(self.cells)]

    def effects(self) -> list[Effect]:
        places = dict.fromkeys((cell.fraction, cell.budget) for cell in self.cells)
        grids = [[cell for cell in self.cells if (cell.fraction, cell.budget) == place] for place in places]
        return [self._effect(contrast) for grid in grids for contrast in contrasts(grid)]

    def _score(self, index: int, cell: Cell) -> CellScore:
        seeds = np.flatnonzero(self.done[index])
        value = {int(seed): self.metric.value(self.score[index, seed]) for seed in seeds}
        stuck = [seed for seed in value if self._is_chance(index, seed, value[seed])]
        return CellScore(
            cell=cell,
            interval=self._interval([index], seeds, np.ones(1)) if len(seeds) else None,
            values=tuple(value.get(seed) for seed in range(self.done.shape[1])),
            examples=self.examples,
            at_chance=tuple(stuck),
            reason=_lacking(self.results, cell),
            metric=self.metric,
        )

    def _effect(self, contrast: Contrast) -> Effect:
        needed, first = [*contrast.plus, *contrast.minus], contrast.plus[0]
        known = [self.cells.index(cell) for cell in needed if cell in self.cells]
        seeds = np.flatnonzero(self.done[known].all(axis=0)) if len(known) == len(needed) else np.empty(0, dtype=int)
        signs = np.repeat([1.0, -1.0], [len(contrast.plus), len(contrast.minus)])
        interval = self._interval(known, seeds, signs) if len(seeds) else None
        return Effect(
            model=first.model,
            task=first.task,
            fraction=first.fraction,
            kind=contrast.kind,
            text=contrast.text + self._place(first),
            estimate=interval and interval.estimate,
            low=interval and interval.low,
            high=interval and interval.high,
            seeds=len(seeds),
            examples=self.examples,
            available=interval is not None,
            reason="; ".join(f"{cell.label}: {gap}" for cell in needed if (gap := _lacking(self.results, cell))),
            metric=self.metric,
        )

    def _interval(self, rows: list[int], seeds: np.ndarray, contrast: np.ndarray) -> Interval:
        return _over_seeds(self.score[rows][:, seeds], self.values[:, rows][:, :, seeds], contrast, self.metric)

    def _is_chance(self, index: int, seed: int, value: float) -> bool:
        """Whether the worse end of a run's own interval over examples is no better than chance."""
        if self.metric.is_share:
            return wilson(value * self.examples, self.examples).low <= self.chance
        return bool(np.percentile(self.values[:, index, seed], 100 * (1 + LEVEL) / 2) >= self.chance)

    def _place(self, cell: Cell) -> str:
        """Task and fraction, where the study has several."""
        task = f", {cell.task}" if self.results.sizes["task"] > 1 else ""
        is_whole = cell.fraction == 1 or self.results.sizes["fraction"] == 1
        return task + ("" if is_whole else f", {cell.fraction:.3g} of the data")


def _over_seeds(score: np.ndarray, values: np.ndarray, contrast: np.ndarray, metric: Metric) -> Interval:
    """score: (cell, seed, example), values: (resample, cell, seed), contrast: (cell,) -> its interval."""
    cells_, seeds, examples = score.shape
    means = np.sqrt(score.mean(axis=2)).mean(axis=1) if metric.rooted else score.mean(axis=(1, 2))
    estimate = float(contrast @ means)
    if metric.is_share and cells_ == 1 and estimate in (0, 1):
        return wilson(estimate * examples, examples)
    replicates = (np.einsum("rcs,c->rs", values, contrast) * _seed_weights(len(values), seeds)).sum(axis=1)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    if seeds > 1:
        reach = max(estimate - low, high - estimate)
        low, high = estimate - reach, estimate + reach
    least, most = _possible(contrast, metric)
    return Interval(estimate, float(max(low, least)), float(min(high, most)))


def _possible(contrast: np.ndarray, metric: Metric) -> tuple[float, float]:
    """The least and the most that a contrast of values can be."""
    if metric.is_share:
        return contrast[contrast < 0].sum(), contrast[contrast > 0].sum()
    return 0.0 if (contrast >= 0).all() else -math.inf, math.inf


def _seed_weights(resamples: int, seeds: int) -> np.ndarray:
    """(resample, seed), summing to 1: resampled seeds, stretched for how few they are."""
    if seeds == 1:
        return np.ones((resamples, 1))
    share = _counts(np.random.default_rng(1), resamples, seeds) / seeds
    normal, student = norm.ppf((1 + LEVEL) / 2), t.ppf((1 + LEVEL) / 2, seeds - 1)
    return 1 / seeds + math.sqrt(seeds / (seeds - 1)) * student / normal * (share - 1 / seeds)


def _counts(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """(rows, size): how often each of `size` things comes up in `size` draws."""
    drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)


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
