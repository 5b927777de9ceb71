"""What a study's results say, worked out once for everybody who tells it: the terminal, the report, JSON."""

from __future__ import annotations

from dataclasses import dataclass

import xarray as xr

from ssm_priors.studies.claims import Answer, answers
from ssm_priors.studies.grid import Study
from ssm_priors.studies.statistics import CellScore, Effect, TaskResults


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one study."""

    scores: tuple[CellScore, ...]
    """Every cell's metric with its interval, failed ones included."""
    effects: tuple[Effect, ...]
    """Every effect the study was made to show; one that lacks runs says so."""
    answers: tuple[Answer, ...]
    """To every claim, for each of its tasks."""


def find(study: Study, results: xr.Dataset) -> Findings:
    """Work out what a study found.

    Args:
        study: with its claims.
        results: of `results.collect`.
    """
    tasks = {task: TaskResults(results, task) for task in results.task.values.tolist()}
    return Findings(
        tuple(score for task in tasks.values() for score in task.scores()),
        tuple(effect for task in tasks.values() for effect in task.effects()),
        tuple(answers(study, tasks)),
    )
