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

Intervals are for each effect alone: of many, one in twenty that is nothing excludes zero. The claims that a study was
made to test are judged together, by Holm's correction of p-values that are these intervals turned round: p is the least
alpha at which the interval of level 1 - alpha, with Student's factor of that level, leaves the claim's border out.

Source: Owen 2007, The pigeonhole bootstrap, Annals of Applied Statistics 1(2); Rao and Wu 1988, Resampling inference
with complex survey data, JASA 83; Hesterberg 2015, What teachers should know about the bootstrap, arXiv 1411.5279;
Wilson 1927, JASA 22; Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statistics 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit  # the quantiles of scipy.stats, whose import takes a second more

from ssm_priors.metrics import ACCURACY, Metric

RESAMPLES = 4000
LEVEL = 0.95
BLOCK = 2**22
"""Most weights held at a time while resampling examples."""


class Interval(NamedTuple):
    """An estimate and its 95% interval."""

    estimate: float
    low: float
    high: float


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
    return over_seeds(score, np.asarray(values), np.asarray(contrast, dtype=float), metric)


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
    z, share = float(ndtri((1 + LEVEL) / 2)), right / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    # At the border the formula's own bound differs from it by rounding alone
    return Interval(share, 0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several claims made together, adjusted so that one at most 0.05 is wrong in 5% of studies.

    The k-th smallest of m becomes the largest of (m - j + 1) p_j over j <= k, at most 1.
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1)
    return adjusted.tolist()


def over_seeds(
    score: np.ndarray, values: np.ndarray, contrast: np.ndarray, metric: Metric, level: float = LEVEL
) -> Interval:
    """score: (cell, seed, example), values: (resample, cell, seed), contrast: (cell,) -> its interval."""
    cells_, seeds, examples = score.shape
    means = np.sqrt(score.mean(axis=2)).mean(axis=1) if metric.rooted else score.mean(axis=(1, 2))
    estimate = float(contrast @ means)
    if metric.is_share and cells_ == 1 and estimate in (0, 1):
        return wilson(estimate * examples, examples)
    weights = _seed_weights(len(values), seeds, level)
    replicates = (np.einsum("rcs,c->rs", values, contrast) * weights).sum(axis=1)
    tail = 100 * (1 - level) / 2
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


def _seed_weights(resamples: int, seeds: int, level: float) -> np.ndarray:
    """(resample, seed), summing to 1: resampled seeds, stretched for how few they are."""
    if seeds == 1:
        return np.ones((resamples, 1))
    share = _counts(np.random.default_rng(1), resamples, seeds) / seeds
    normal, student = ndtri((1 + level) / 2), stdtrit(seeds - 1, (1 + level) / 2)
    return 1 / seeds + math.sqrt(seeds / (seeds - 1)) * student / normal * (share - 1 / seeds)


def _counts(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """(rows, size): how often each of `size` things comes up in `size` draws."""
    drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)
