"""The charts of a report, each with its words: the gap, the curves, what depends on data and on compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts import page, theme
from ssm_priors.analyses.charts.curves import curves as curves_chart
from ssm_priors.analyses.charts.gap import gap as gap_chart
from ssm_priors.analyses.charts.studies import against_budget, against_fraction
from ssm_priors.metrics import Metric
from ssm_priors.registry import TASKS, summary
from ssm_priors.studies import results as runs
from ssm_priors.studies.grid import NONE, Cell
from ssm_priors.studies.report import labels
from ssm_priors.studies.report.document import Column, Figure, Names, Paragraph, Section, Table, row
from ssm_priors.studies.report.measures import spoken
from ssm_priors.studies.statistics import CellScore

MOST_TOLD = 12
"""Cells whose numbers the text for a chart tells; the table has all."""


def places(scores: Sequence[CellScore], results: xr.Dataset, steps: pd.DataFrame, names: Names) -> Iterator[Section]:
    """A section for every task, fraction and budget."""
    for place in dict.fromkeys(_place(score.cell) for score in scores):
        here = [score for score in scores if _place(score.cell) == place]
        task, fraction, budget = place
        share = "" if fraction == 1 else f", {fraction:.3g} of the training data"
        share += "" if results.sizes["budget"] == 1 else f", {budget}"
        chance, metric = float(results.chance.sel(task=task)), runs.metric(results, task)
        name = " ".join([task, *([] if fraction == 1 else [f"{fraction:.3g}"])])
        name += "" if results.sizes["budget"] == 1 else f" {budget}"
        chart = gap_chart(*_gap_frames(here), chance, metric)
        figures = [_named(chart, f"gap {name}", _gap_words(here, chance, metric), names)]
        if len(steps):
            own = steps[(steps.task == task) & (steps.fraction == fraction) & (steps.budget == budget)]
            if own.loss.notna().any():
                own = _worded(own)
                figures.append(_named(curves_chart(own, metric), f"curves {name}", _curve_words(own, metric), names))
        yield Section(f"{task}{share}", [Paragraph(summary(TASKS[task])), *figures])


def against_data(scores: Sequence[CellScore], results: xr.Dataset, names: Names) -> Iterator[Section]:
    """How much of a gap is left as data grow: a chart a task, for a study of several shares."""
    if results.sizes["fraction"] > 1:
        spent = [score.cell.fraction for score in scores]
        told = [f"{score.cell.fraction:.3g} of the data" for score in scores]
        yield Section("Against the amount of data", _against(against_fraction, scores, spent, told, results, names))


def against_compute(scores: Sequence[CellScore], results: xr.Dataset, names: Names) -> Iterator[Section]:
    """What a result cost, both phases together: a chart a task, for a study of several budgets."""
    if results.sizes["budget"] > 1:
        spent = [_flops(results, score.cell) for score in scores]
        told = [f"{flops:.2g} FLOP" for flops in spent]
        draw = partial(against_budget, budget="training of both phases (FLOP)")
        yield Section("Against compute", _against(draw, scores, spent, told, results, names))


def _flops(results: xr.Dataset, cell: Cell) -> float:
    """Of both phases, mean over the seeds that are done."""
    return sum(runs.mean(results, cell, f"{phase}_flops") for phase in runs.phases(cell))


def _against(
    draw: Callable[..., theme.Figure],
    scores: Sequence[CellScore],
    spent: Sequence[float],
    told: Sequence[str],
    results: xr.Dataset,
    names: Names,
) -> list[Figure]:
    figures = []
    for task in dict.fromkeys(score.cell.task for score in scores):
        metric = runs.metric(results, task)
        here = [each for each in zip(scores, spent, told, strict=True) if each[0].cell.task == task]
        frame = pd.DataFrame([_spent_row(score, x) for score, x, _ in here])
        chart = draw(frame, metric=f"test {metric.label}", percent=metric.is_share)
        words = _told([f"{labels.label(score.cell)}, {text}: {labels.shown(score)}" for score, _, text in here])
        figures.append(_named(chart, f"{chart.title} {task}", f"A line a cell. {words}", names))
    return figures


def _spent_row(score: CellScore, x: float) -> dict[str, Any]:
    estimate, low, high = score.interval or (np.nan, np.nan, np.nan)
    cell = score.cell
    axes = {"cell": labels.label(cell), "model": cell.model, "init": cell.init, "pretrain": cell.pretrain}
    return axes | {"x": x, "value": estimate, "low": low, "high": high}


def _place(cell: Cell) -> tuple[str, float, str]:
    return cell.task, cell.fraction, cell.budget


def _gap_frames(scores: Sequence[CellScore]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the gap chart takes: cells, and seeds."""
    cells, seeds = [], []
    for score in scores:
        names = {"cell": labels.label(score.cell), "model": score.cell.model}
        estimate, low, high = score.interval or (np.nan, np.nan, np.nan)
        numbers = {"value": estimate, "low": low, "high": high}
        cells.append(names | numbers | {"from_scratch": score.cell.pretrain == NONE, "note": score.reason})
        seeds += [names | {"value": value} for value in score.done]
    return pd.DataFrame(cells), pd.DataFrame(seeds, columns=["cell", "model", "value"])


def _gap_words(scores: Sequence[CellScore], chance: float, metric: Metric) -> str:
    told = [f"{labels.label(score.cell)}: {labels.shown(score)}" for score in scores]
    level = "" if np.isnan(chance) else f" Chance is {metric.full(chance)}."
    shown = f"A row for each of {len(scores)} cells with its 95% interval: test {spoken(metric)}."
    return f"{shown} {_told(told)}{level}"


def _curve_words(steps: pd.DataFrame, metric: Metric) -> str:
    cells = steps.groupby(["start", "pretrain"], sort=False)
    told = [", ".join([*key, *_course(rows, metric)]) for key, rows in cells]
    return f"Loss and validation {metric.title} over steps. {_told(told)}"


def _course(rows: pd.DataFrame, metric: Metric) -> list[str]:
    """What one cell's curves do, in words."""
    told = [text for phase, words in runs.PHASES.items() if (text := _ends(rows[rows.phase == phase], words))]
    best = rows.validation_metric.min() if metric.lower_is_better else rows.validation_metric.max()
    return told if np.isnan(best) else [*told, f"best validation {metric.title} {metric.full(best)}"]


def _ends(rows: pd.DataFrame, words: str) -> str:
    """'finetuning loss from 2.3 to 0.41', means of the first and the last tenth of the steps."""
    loss = rows.groupby("step").loss.mean().dropna()
    few = max(1, len(loss) // 10)
    return f"{words} loss from {loss.iloc[:few].mean():.2g} to {loss.iloc[-few:].mean():.2g}" if len(loss) else ""


def _told(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_TOLD
    return "; ".join(parts[:MOST_TOLD]) + (f"; and {more} more, in the tables." if more > 0 else ".")


def _named(figure: theme.Figure, name: str, words: str, names: Names) -> Figure:
    return Figure(names.new(name), figure.title, figure.chart, figure.caption, f"{figure.title}. {words}")


def adopted(heading: str, figures: Sequence[theme.Figure], tables: Sequence[page.Table], names: Names) -> Section:
    """A section of somebody else's: its tables, then its figures."""
    drawn = [_named(figure, f"{heading} {figure.title}", figure.caption, names) for figure in figures]
    return Section(heading, [*(_table(heading, table, names) for table in tables), *drawn])


def _table(heading: str, table: page.Table, names: Names) -> Table:
    rows = [row(*cells) for cells in table.rows]
    return Table(names.new(f"{heading} {table.title}"), table.title, _typed(table), rows, table.caption)


def _typed(table: page.Table) -> list[Column]:
    numeric = [all(cells[i][:1] in tuple("-+0123456789") for cells in table.rows) for i in range(len(table.columns))]
    return [Column(name, "number" if number else "text") for name, number in zip(table.columns, numeric, strict=True)]


def _worded(steps: pd.DataFrame) -> pd.DataFrame:
    """Learning curves with the words that people read for model and init, and for pretraining."""
    each = zip(steps.model, steps.init, steps.variant, strict=True)
    starts = [
        ", ".join([*labels.names_of(model, init), *([] if variant == NONE else [variant])])
        for model, init, variant in each
    ]
    return steps.assign(start=starts, pretrain=[labels.start(name) for name in steps.pretrain])
