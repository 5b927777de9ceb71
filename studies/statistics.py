"""How sure a study can be: accuracies and paired effects with 95% bootstrap intervals, and what may be said of them.

Every run of a task is tested on the same examples, and every cell has the same seeds, so a study is a crossed design:

    correct[cell, seed, example],   accuracy*[cell] = sum_s w_s sum_e v_e correct[cell, s, e]

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from textwrap import shorten
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import norm, t

from ssm_priors.studies.grid import NONE, Cell, baseline_init
from ssm_priors.studies.results import Status, at, cells, is_cell

RESAMPLES = 4000
LEVEL = 0.95
CLAIM_SEEDS = 3
"""Fewest seeds that allow a claim about a method."""
BLOCK = 2**22
"""Most weights held at a time while resampling examples."""

Kind = Literal["model", "init", "pretrain", "interaction"]


class Interval(NamedTuple):
    """An estimate and its 95% interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CellScore:
    """The accuracy of one cell over its seeds."""

    cell: Cell
    interval: Interval | None
    """Of the mean accuracy over the seeds that are done; None if none is."""
    accuracies: tuple[float | None, ...]
    """A seed each, in order; None where the run is missing or failed."""
    examples: int
    at_chance: tuple[int, ...]
    """Seeds that are done and not better than always answering the most frequent class."""
    reason: str
    """Which seeds are missing or failed, and why; empty if all are done."""

    @property
    def done(self) -> list[float]:
        """Accuracies of the seeds that are done."""
        return [accuracy for accuracy in self.accuracies if accuracy is not None]

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
        """Cell, accuracy, interval, and what is wrong with any of its seeds."""
        if self.interval is None:
            return f"{self.cell.label}: not available: {self.reason}"
        low, high = percent(self.interval.low), percent(self.interval.high)
        words = f"{self.cell.label}: {percent(self.interval.estimate)}% [{low}, {high}], {_count(self.seeds, 'seed')}"
        return "; ".join([words, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What a reader must know besides the number."""
        stuck = [f"seed {seed} is at chance ({percent(self.accuracies[seed])}%)" for seed in self.at_chance]
        return stuck + ([self.reason] if self.reason else [])


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What one change does to the accuracy, seed by seed and example by example."""

    model: str
    task: str
    fraction: float
    kind: Kind
    text: str
    """What is compared, in words."""
    estimate: float | None
    """Difference of accuracies (as a share), or difference of two differences; None if not available."""
    low: float | None
    high: float | None
    seeds: int
    """How many seeds all its cells have."""
    examples: int
    available: bool
    reason: str
    """Which runs it lacks, and why; empty if none."""

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
        change = f"{'raises' if self.estimate > 0 else 'lowers'} accuracy"
        return f"{'the two gaps differ' if self.kind == 'interaction' else change}: the interval excludes zero"

    @property
    def is_claim(self) -> bool:
        """Whether the difference may be called real."""
        if self.low is None or self.high is None or self.reason or self.seeds < CLAIM_SEEDS:
            return False
        return not self.low <= 0 <= self.high

    @property
    def points(self) -> str:
        """'-11.3', or an empty string."""
        return "" if self.estimate is None else points(self.estimate)

    @property
    def bounds(self) -> str:
        """'[-13.4, -9.1]', or an empty string."""
        return "" if self.low is None or self.high is None else f"[{points(self.low)}, {points(self.high)}]"

    @property
    def numbers(self) -> str:
        """'-11.3 points [-13.4, -9.1]', or an empty string."""
        return f"{self.points} points {self.bounds}" if self.available else ""

    @property
    def sentence(self) -> str:
        """Words, numbers and verdict."""
        return f"{self.text}: {'; '.join(part for part in (self.numbers, self.verdict) if part)}"


@dataclass(frozen=True, slots=True)
class Contrast:
    """Cells whose accuracies are added, and cells whose accuracies are subtracted."""

    kind: Kind
    text: str
    plus: tuple[Cell, ...]
    minus: tuple[Cell, ...]


def bootstrap(correct: np.ndarray, contrast: Sequence[float] = (1.0,), resamples: int = RESAMPLES) -> Interval:
    """Estimate and 95% interval of `contrast @ accuracy`, crossed over seeds and examples.

    Args:
        correct: (cell, seed, example) of 0 and 1, complete.
        contrast: (cell,): (1,) is one cell's accuracy, (1, -1) a paired difference.
        resamples: how many.
    """
    return _over_seeds(correct, resample_examples(correct, resamples), np.asarray(contrast, dtype=float))


def resample_examples(correct: np.ndarray, resamples: int = RESAMPLES) -> np.ndarray:
    """Accuracies on resampled test examples, the same ones for all cells and seeds: (resample, cell, seed).

    Args:
        correct: (cell, seed, example) of 0 and 1; a run that does not exist gives a number without meaning.
        resamples: how many; the generator's seed is fixed.
    """
    *runs, examples = correct.shape
    columns = correct.reshape(-1, examples).T.astype(np.float32)  # sums of counts stay exact: below 2^24
    rng = np.random.default_rng(0)
    height = max(1, BLOCK // examples)
    blocks = [min(height, resamples - first) for first in range(0, resamples, height)]
    sums = [_counts(rng, block, examples).astype(np.float32) @ columns for block in blocks]
    return (np.concatenate(sums) / np.float64(examples)).reshape(resamples, *runs)


def wilson(right: float, total: int) -> Interval:
    """Wilson's 95% score interval of a share."""
    z, share = norm.ppf((1 + LEVEL) / 2), right / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    # At the border the formula's own bound differs from it by rounding alone
    return Interval(share, 0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def scores(results: xr.Dataset) -> list[CellScore]:
    """Every cell of a study: accuracy with its interval, seed by seed, failed ones included."""
    return [score for task in results.task.values.tolist() for score in _Task(results, task).scores()]


def effects(results: xr.Dataset) -> list[Effect]:
    """Every effect the study was made to show; one that lacks runs says so.

    For each task, fraction and budget: each other model against the first, each init against the model's own, each
    objective against none, and what the objective changes about those gaps (the interaction).
    """
    return [effect for task in results.task.values.tolist() for effect in _Task(results, task).effects()]


def contrasts(every: Sequence[Cell]) -> Iterator[Contrast]:
    """What the cells of one task, fraction and budget can be asked.

    The base of a comparison is the model's own init, or where a study left that out, the first init it names.
    """
    for contrast in _conceivable(every):
        if set(contrast.plus + contrast.minus) <= set(every):
            yield contrast


def _conceivable(every: Sequence[Cell]) -> Iterator[Contrast]:
    models = list(dict.fromkeys(cell.model for cell in every))
    bases = [replace(every[0], model=model, init=_base_init(model, every), pretrain=NONE) for model in models]
    pretrains = list(dict.fromkeys(cell.pretrain for cell in every))
    for base in bases[1:]:
        yield from _gaps("model", base, bases[0], f"{base.model} instead of {bases[0].model}", pretrains)
    for base in bases:
        inits = list(dict.fromkeys(cell.init for cell in every if cell.model == base.model))
        for init in inits:
            if init != base.init:
                words = f"{base.model}, {init} instead of {base.init}"
                yield from _gaps("init", replace(base, init=init), base, words, pretrains)
        for pretrain, init in product(pretrains, inits):
            if pretrain != NONE:
                cell = replace(base, init=init)
                words = f"{base.model}, {'' if init == NONE else f'{init}, '}{pretrain} pretraining instead of none"
                yield Contrast("pretrain", words, (replace(cell, pretrain=pretrain),), (cell,))


def _base_init(model: str, every: Sequence[Cell]) -> str:
    inits = [cell.init for cell in every if cell.model == model]
    return baseline_init(model) if baseline_init(model) in inits else inits[0]


def percent(share: float | None) -> str:
    """'93.1', or an empty string."""
    return "" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def points(share: float) -> str:
    """'+2.0': a difference of shares in percentage points."""
    value = 100 * share
    digits = next((digits for digits in (1, 2, 3) if round(value, digits)), 1)  # a bound beside zero shows its sign
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0 makes a rounded -0.0 positive


class _Task:
    """All cells of one task, resampled together."""

    def __init__(self, results: xr.Dataset, task: str):
        self.results, self.cells = results, [cell for cell in cells(results) if cell.task == task]
        self.chance = float(results.chance.sel(task=task))
        every = np.stack([at(results, cell).correct.values for cell in self.cells])
        self.correct = every[..., (every >= 0).any(axis=(0, 1))]
        self.done = np.stack([at(results, cell).status.values == Status.DONE for cell in self.cells])
        if self.correct.size:
            self.accuracies = resample_examples(self.correct)

    @property
    def examples(self) -> int:
        return self.correct.shape[-1]

    def scores(self) -> list[CellScore]:
        return [self._score(index, cell) for index, cell in enumerate(self.cells)]

    def effects(self) -> list[Effect]:
        places = dict.fromkeys((cell.fraction, cell.budget) for cell in self.cells)
        grids = [[cell for cell in self.cells if (cell.fraction, cell.budget) == place] for place in places]
        return [self._effect(contrast) for grid in grids for contrast in contrasts(grid)]

    def _score(self, index: int, cell: Cell) -> CellScore:
        seeds = np.flatnonzero(self.done[index])
        accuracy = {int(seed): float(self.correct[index, seed].mean()) for seed in seeds}
        stuck = [seed for seed, share in accuracy.items() if self._is_chance(share)]
        return CellScore(
            cell=cell,
            interval=self._interval([index], seeds, np.ones(1)) if len(seeds) else None,
            accuracies=tuple(accuracy.get(seed) for seed in range(self.done.shape[1])),
            examples=self.examples,
            at_chance=tuple(stuck),
            reason=_lacking(self.results, cell),
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
        )

    def _interval(self, rows: list[int], seeds: np.ndarray, contrast: np.ndarray) -> Interval:
        return _over_seeds(self.correct[rows][:, seeds], self.accuracies[:, rows][:, :, seeds], contrast)

    def _is_chance(self, share: float) -> bool:
        return wilson(share * self.examples, self.examples).low <= self.chance

    def _place(self, cell: Cell) -> str:
        """Task and fraction, where the study has several."""
        task = f", {cell.task}" if self.results.sizes["task"] > 1 else ""
        is_whole = cell.fraction == 1 or self.results.sizes["fraction"] == 1
        return task + ("" if is_whole else f", {cell.fraction:.3g} of the data")


def _gaps(kind: Kind, cell: Cell, base: Cell, words: str, pretrains: Iterable[str]) -> Iterator[Contrast]:
    """The gap between two cells under every pretraining, and what each pretraining changes about it."""
    for pretrain in pretrains:
        ours, theirs = replace(cell, pretrain=pretrain), replace(base, pretrain=pretrain)
        start = "from scratch" if pretrain == NONE else f"after {pretrain} pretraining"
        yield Contrast(kind, f"{words}, {start}", (ours,), (theirs,))
        if pretrain != NONE:
            change = f"{words}, after {pretrain} pretraining minus from scratch (interaction)"
            yield Contrast("interaction", change, (ours, base), (theirs, cell))


def _over_seeds(correct: np.ndarray, accuracies: np.ndarray, contrast: np.ndarray) -> Interval:
    """correct: (cell, seed, example), accuracies: (resample, cell, seed), contrast: (cell,) -> its interval."""
    cells_, seeds, examples = correct.shape
    estimate = float(contrast @ correct.mean(axis=(1, 2)))
    if cells_ == 1 and estimate in (0, 1):
        return wilson(estimate * examples, examples)
    replicates = (np.einsum("rcs,c->rs", accuracies, contrast) * _seed_weights(len(accuracies), seeds)).sum(axis=1)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    if seeds > 1:
        reach = max(estimate - low, high - estimate)
        low, high = estimate - reach, estimate + reach
    least, most = contrast[contrast < 0].sum(), contrast[contrast > 0].sum()
    return Interval(estimate, float(max(low, least)), float(min(high, most)))


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
