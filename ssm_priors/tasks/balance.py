"""How often each answer occurs in a split, and how long its examples are: what chance is, and what padding costs.

A histogram has `BINS` bins of equal width from the shortest to the longest, the last one closed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.tasks.task import Split

BINS = 10
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Balance:
    """Of one split; everything is counted, nothing sampled."""

    examples: int
    classes: tuple[int, ...]
    """How often each class is the answer, of an example or of an asked position; empty where numbers are asked."""
    numbers: tuple[float, ...]
    """Least, mean, most and deviation of the numbers asked for, in the task's unit; empty where classes are."""
    lengths: tuple[int, ...]
    """Steps of a document at `QUANTILES`: lengths that occur."""
    histogram: tuple[int, ...]
    """Documents in each of `BINS` bins; a single bin where all are of one length."""


def balance(spec: TaskSpec, split: Split) -> Balance:
    """Count a split with labels; inputs are not read.

    Args:
        spec: of the task.
        split: of it.
    """
    labels, lengths = split.labels.numpy(), _lengths(split)
    asked = labels[labels >= 0] if spec.answer == "tokens" else labels
    is_number = spec.answer == "values"
    return Balance(
        len(split),
        () if is_number else tuple(np.bincount(asked.astype(np.int64), minlength=spec.classes).tolist()),
        tuple(map(float, (asked.min(), asked.mean(), asked.max(), asked.std()))) if is_number else (),
        tuple(np.quantile(lengths, QUANTILES, method="lower").tolist()),
        tuple(np.histogram(lengths, BINS)[0].tolist()) if lengths.min() < lengths.max() else (len(lengths),),
    )


def _lengths(split: Split) -> np.ndarray:
    """Of every document of a split, not of others that share its storage."""
    lengths = split.lengths.numpy()
    return lengths if split.chosen is None else lengths.reshape(-1, split.documents)[split.chosen.numpy()].ravel()
