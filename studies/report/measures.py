"""What a study's tables call its numbers: after its one metric, or where its tasks have several, each row its own."""

from __future__ import annotations

from dataclasses import dataclass

import xarray as xr

from ssm_priors.metrics import Metric
from ssm_priors.studies.report.document import Column
from ssm_priors.studies.results import metric


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics of a study."""

    by_task: dict[str, Metric]

    @property
    def different(self) -> list[Metric]:
        """Those that read differently, in order."""
        return list({each.label: each for each in self.by_task.values()}.values())

    @property
    def only(self) -> Metric | None:
        """The one that all tasks have; None if they have several."""
        return self.different[0] if len(self.different) == 1 else None

    @property
    def title(self) -> str:
        """'Accuracy', 'RMSE' or 'Results': over the main table."""
        return self.only.title[0].upper() + self.only.title[1:] if self.only else "Results"

    @property
    def subject(self) -> str:
        """'test accuracy', or 'the metric of each task'."""
        return f"test {self.only.title}" if self.only else "the metric of each task"

    @property
    def unit(self) -> str:
        """', %' or ', bpm': behind a column's title; empty where rows say it, or there is none."""
        return self.only.label.removeprefix(self.only.title) if self.only else ""

    @property
    def value(self) -> str:
        """'accuracy, %', or 'value' beside a metric's name."""
        return self.only.label if self.only else "value"

    @property
    def several_gaps(self) -> bool:
        """Whether differences have several units."""
        return len({each.gap_unit for each in self.different}) > 1

    @property
    def gap(self) -> str:
        """'points' or 'bpm': over a column of differences."""
        return "difference" if self.several_gaps else self.different[0].gap_unit or "difference"

    @property
    def about_gaps(self) -> str:
        """What differences are of, and which way is better, a sentence a metric."""
        return " ".join(_about_gaps(each) for each in self.different)

    def columns(self) -> list[Column]:
        """One for the metric's name, where rows have several."""
        return [] if self.only else [Column("metric")]

    def names(self, task: str) -> list[str]:
        """What stands in `columns`."""
        return [] if self.only else [self.by_task[task].label]

    def text(self, task: str, value: float) -> str:
        """A value, with its unit where columns do not say it."""
        return (self.by_task[task].text if self.only else self.by_task[task].full)(value)


def measures(results: xr.Dataset) -> Measures:
    """Of all tasks of a study."""
    return Measures({task: metric(results, task) for task in results.task.values.tolist()})


def spoken(metric: Metric) -> str:
    """'accuracy in percent', or 'RMSE in bpm, lower is better'."""
    unit = "percent" if metric.is_share else metric.unit
    words = f"{metric.title} in {unit}" if unit else metric.title
    return f"{words}, lower is better" if metric.lower_is_better else words


def _about_gaps(metric: Metric) -> str:
    if metric.is_share:
        return f"Points are percentage points of test {metric.title}."
    return f"Differences of test {metric.label}: lower is better."
