"""The gap: every cell's metric with its interval and its seeds, from scratch hollow, pretrained solid."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ssm_priors.analyses.charts.theme import GREY, VERMILION, Figure, model_colour, tips
from ssm_priors.metrics import ACCURACY, Metric

ROW_HEIGHT = 26
"""Pixels a cell."""
WIDTH = 600
"""Pixels of the metric's axis."""
CAPTION = (
    "Mean test {title} over seeds with its 95% interval{better}; ticks are single seeds. Hollow: trained from scratch. "
    "Solid: pretrained first. Dashed: chance, {chance}."
)
CHANCES = {
    "accuracy": "always answering the most frequent class",
    "token accuracy": "always answering the most frequent token",
    "RMSE": "always answering the mean",
}
"""What the dashed line is, by the metric's title."""


def gap(cells: pd.DataFrame, seeds: pd.DataFrame, chance: float, metric: Metric = ACCURACY) -> Figure:
    """One row a cell.

    Args:
        cells: columns cell (its label), model, from_scratch (bool), value, low, high (NaN where there is no result) and
            note (what stands there instead of a result).
        seeds: columns cell, model, value: a row a run that is done.
        chance: value of the best answer that is the same for all; NaN if it is not known.
        metric: what the values are of.
    """
    order = cells["cell"].tolist()
    y = alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(labelLimit=360, grid=True))
    models = list(dict.fromkeys(cells["model"]))
    colours = alt.Scale(domain=models, range=[model_colour(model) for model in models])
    colour = alt.Color("model:N", scale=colours, legend=None)
    done, most = cells[cells["value"].notna()], _most(cells, chance, metric)
    axis = alt.Axis(format="%", tickCount=5) if metric.is_share else alt.Axis(tickCount=5)
    title = f"test {metric.title}" if metric.is_share else f"test {metric.label}"
    x = alt.X("value:Q", title=title, axis=axis, scale=alt.Scale(domain=[0, most]))
    base = alt.Chart(done.assign(number=[metric.full(value) for value in done["value"]])).encode(y=y)
    ticks = alt.Chart(seeds).mark_tick(thickness=2, height=15, opacity=0.7)
    layers = [
        _chance(chance),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        ticks.encode(x=x, y=y, color=colour, tooltip=tips("cell:N", "value:Q", value=f"{metric.title} of one seed")),
        _points(base, from_scratch=True).encode(x=x, color=colour),
        _points(base, from_scratch=False).encode(x=x, color=colour),
        base.mark_text(align="left", fontSize=12).encode(x=alt.value(WIDTH + 10), text="number:N"),
        _without_result(cells[cells["value"].isna()], chance / most).encode(y=y),
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=alt.Step(ROW_HEIGHT))
    better = " (lower is better)" if metric.lower_is_better else ""
    caption = CAPTION.format(title=metric.title, better=better, chance=CHANCES[metric.title])
    return Figure("The gap, from scratch and pretrained", chart, caption)


def _most(cells: pd.DataFrame, chance: float, metric: Metric) -> float:
    """Where the axis ends: at 1 for a share, else beyond all that is drawn."""
    if metric.is_share:
        return 1.0
    drawn = pd.Series([chance, *cells["value"], *cells["high"]]).dropna()
    return 1.05 * float(drawn.max()) if len(drawn) and drawn.max() > 0 else 1.0


def _points(base: alt.Chart, *, from_scratch: bool) -> alt.Chart:
    fill = {"fill": "white"} if from_scratch else {"filled": True}
    marks = base.mark_point(size=90, strokeWidth=2, opacity=1, **fill)
    return marks.transform_filter(alt.datum.from_scratch == from_scratch)


def _chance(chance: float) -> alt.Chart:
    rows = pd.DataFrame({"value": [chance]}).dropna()
    return alt.Chart(rows).mark_rule(strokeDash=[5, 4], color=GREY, strokeWidth=1.5).encode(x="value:Q")


def _without_result(cells: pd.DataFrame, place: float) -> alt.Chart:
    """What is said where there is no point, beside the chance level (its place on the axis) if there is room."""
    start = 10 + (WIDTH * place if place < 0.5 else 0)
    marks = alt.Chart(cells).mark_text(align="left", color=VERMILION, fontSize=12, limit=WIDTH - start)
    return marks.encode(x=alt.value(start), text="note:N", tooltip="note:N")
