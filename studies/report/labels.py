"""How a report names cells and writes numbers: the same words in every table, chart and sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.studies.grid import NONE, Cell
from ssm_priors.studies.report.document import Cell as Text
from ssm_priors.studies.report.document import Column, row


def axes(results: xr.Dataset) -> list[Column]:
    """The columns that say which cell a row is about."""
    columns = [Column("model"), Column("init"), Column("pretraining")]
    return [*columns, Column("task"), Column("data", "number")] if _has_places(results) else columns


def coordinates(cell: Cell, results: xr.Dataset) -> list[Text]:
    """Of a cell, or of a run's row."""
    names = row(cell.model, cell.init, cell.pretrain)
    return [*names, *row(cell.task, f"{cell.fraction:.3g}")] if _has_places(results) else names


def _has_places(results: xr.Dataset) -> bool:
    """Whether there are several tasks or fractions to tell apart."""
    return results.sizes["task"] * results.sizes["fraction"] > 1


def label(cell: Cell) -> str:
    """A cell among those of the same task and fraction."""
    return ", ".join([model(cell), start(cell.pretrain)])


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
