"""What a test says, as data: one metric for each kind of answer, from a score an example to the words for a number.

    value = finish(mean over examples of score),   finish = identity, or the square root for an RMSE

Everything that ranks, resamples, prints or draws a result asks its metric; nothing else knows which one it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ssm_priors.batch import TaskSpec

DIGITS = 3
"""Significant digits of a number that is no share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """How answers are scored, and how the result is said."""

    name: str
    """In files and programs: `test_NAME`."""
    title: str
    """What people read."""
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Predictions and targets -> (examples,) float64, whose mean makes the value."""
    guess: Callable[[np.ndarray], np.ndarray]
    """Targets -> (examples,) float64: the scores of the best answer that is the same for all: chance."""
    rooted: bool = False
    """Whether the value is the square root of the mean score."""
    lower_is_better: bool = False
    unit: str = ""
    """Of the value; shares have none and are shown in percent."""

    @property
    def is_share(self) -> bool:
        """Whether values lie between 0 and 1, and people read percent."""
        return not self.rooted

    def finish(self, mean: np.ndarray | float) -> np.ndarray | float:
        """Mean scores -> values."""
        return np.sqrt(mean) if self.rooted else mean

    def value(self, scores: np.ndarray) -> float:
        """(examples,) scores -> the metric over them."""
        return float(self.finish(scores.mean()))

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value beats another; equals do not."""
        return value < than if self.lower_is_better else value > than

    @property
    def label(self) -> str:
        """'accuracy, %' or 'RMSE, bpm': over a column of `text`."""
        unit = "%" if self.is_share else self.unit
        return f"{self.title}, {unit}" if unit else self.title

    def text(self, value: float | None) -> str:
        """'93.1' or '4.21', without a unit; an empty string where there is none."""
        if value is None or math.isnan(value):
            return ""
        return f"{100 * value:.1f}" if self.is_share else f"{value:.{_decimals(value)}f}"

    def full(self, value: float | None) -> str:
        """'93.1%' or '4.21 bpm'."""
        number = self.text(value)
        if not number:
            return ""
        return f"{number}%" if self.is_share else f"{number} {self.unit}".rstrip()

    def gap(self, difference: float) -> str:
        """'+2.0' percentage points, or '-0.31' in the metric's unit."""
        value = 100 * difference if self.is_share else difference
        least = 1 if self.is_share else max(_decimals(value) - 1, 0)
        # A bound beside zero shows its sign, if two more digits can
        digits = next((digits for digits in range(least, least + 3) if round(value, digits)), least)
        return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0 makes a rounded -0.0 positive

    @property
    def gap_unit(self) -> str:
        """What `gap` counts."""
        return "points" if self.is_share else self.unit

    def change(self, difference: float) -> str:
        """'raises accuracy', or in full where lower is better: 'lowers RMSE, which is better'."""
        words = f"{'raises' if difference > 0 else 'lowers'} {self.title}"
        if not self.lower_is_better:
            return words
        return f"{words}, which is {'worse' if difference > 0 else 'better'}"


def metric_for(answer: str, unit: str = "") -> Metric:
    """The metric of a kind of answer (`TaskSpec.answer`)."""
    return replace(METRICS[answer], unit=unit)


def metric_of(spec: TaskSpec) -> Metric:
    """The metric of a task."""
    return metric_for(spec.answer, spec.unit)


def _right(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(examples,) classes -> 1 where they agree, else 0."""
    return (prediction == target).astype(np.float64)


def _share_right(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(examples, L) ids -> share of the asked positions (target not -1) that agree."""
    asked = target >= 0
    return ((prediction == target) & asked).sum(axis=1) / asked.sum(axis=1)


def _squared_error(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(examples, numbers) -> squared difference, mean over an example's numbers."""
    return np.square(prediction.astype(np.float64) - target.astype(np.float64)).mean(axis=1)


def _most_frequent(target: np.ndarray) -> np.ndarray:
    values, counts = np.unique(target, return_counts=True)
    return _right(np.full_like(target, values[counts.argmax()]), target)


def _best_token(target: np.ndarray) -> np.ndarray:
    asked = np.unique(target[target >= 0])
    return max((_share_right(np.full_like(target, token), target) for token in asked), key=np.mean)


def _mean_answer(target: np.ndarray) -> np.ndarray:
    return _squared_error(np.broadcast_to(target.astype(np.float64).mean(axis=0), target.shape), target)


METRICS = {
    "class": Metric(name="accuracy", title="accuracy", score=_right, guess=_most_frequent),
    "tokens": Metric(name="accuracy", title="token accuracy", score=_share_right, guess=_best_token),
    "values": Metric(
        name="rmse", title="RMSE", score=_squared_error, guess=_mean_answer, rooted=True, lower_is_better=True
    ),
}
ACCURACY = METRICS["class"]


def _decimals(value: float) -> int:
    """Places after the point that show `DIGITS` significant digits."""
    if value == 0 or not math.isfinite(value):
        return DIGITS - 1
    return min(max(DIGITS - 1 - math.floor(math.log10(abs(value))), 0), 12)
