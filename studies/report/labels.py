"""How a report names cells and writes numbers: the same words in every table, chart and sentence."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.studies.grid import NONE, Cell
from ssm_priors.studies.report.document import Cell as Text
from ssm_priors.studies.report.document import Column, row
from ssm_priors.studies.statistics import CellScore

PLACES: dict[str, tuple[str, Literal["text", "number"]]] = {
    "task": ("task", "text"),
    "fraction": ("data", "number"),
    "budget": ("budget", "text"),
    "variant": ("variant", "text"),
}
"""Axis -> its column's title and kind."""


def axes(results: xr.Dataset) -> list[Column]:
    """The columns that say which cell a row is about."""
    columns = [Column("model"), Column("init"), Column("pretraining")]
    return columns + [Column(*PLACES[axis]) for axis in _told(results)]


def coordinates(cell: Cell, results: xr.Dataset) -> list[Text]:
    """Of a cell, or of a run's row."""
    places = [getattr(cell, axis) for axis in _told(results)]
    return row(cell.model, cell.init, cell.pretrain, *(f"{at:.3g}" if isinstance(at, float) else at for at in places))


def _told(results: xr.Dataset) -> list[str]:
    """The axes besides model, init and pretraining of which there are several values to tell apart."""
    return [axis for axis in PLACES if results.sizes[axis] > 1]


def label(cell: Cell) -> str:
    """A cell among those of the same task, fraction and budget."""
    return ", ".join([model(cell), start(cell.pretrain), *([] if cell.variant == NONE else [cell.variant])])


def model(cell: Cell) -> str:
    """'s4d, random'."""
    return ", ".join(names_of(cell.model, cell.init))


def names_of(model: str, init: str) -> list[str]:
    """A model's name, and its init's if it has one."""
    return [model] if init == NONE else [model, init]


def start(pretrain: str) -> str:
    """Where training began, in words."""
    return "from scratch" if pretrain == NONE else f"{pretrain} pretraining"


def whole(number: float) -> str:
    """'1,234', or an empty string where there is none."""
    return "" if pd.isna(number) else f"{number:,.0f}"


def significant(number: float) -> str:
    """Three digits, more where the number is large: '0.0123', '1.23', '12.3', '1,234'; empty where there is none."""
    if pd.isna(number):
        return ""
    decimals = max(0, 2 - int(np.floor(np.log10(abs(number))))) if number else 0
    return f"{number:,.{decimals}f}"


def interval(score: CellScore) -> str:
    """'[88.3, 92.0]', or an empty string."""
    return "[{}, {}]".format(*map(score.metric.text, score.interval[1:])) if score.interval else ""


def shown(score: CellScore) -> str:
    """'90.2 [88.3, 92.0]'."""
    return f"{score.metric.text(score.interval.estimate)} {interval(score)}" if score.interval else "no result"
