"""The gap: every cell's accuracy with its interval and its seeds, from scratch hollow, pretrained solid."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ssm_priors.analyses.charts.theme import GREY, VERMILION, Figure, model_colour

ROW_HEIGHT = 26
"""Pixels a cell."""
WIDTH = 600
"""Pixels of the accuracy axis."""
SCALE = alt.Scale(domain=[0, 1])
CAPTION = (
    "Mean test accuracy over seeds with its 95% interval; ticks are single seeds. Hollow: trained from scratch. Solid: "
    "pretrained on the task's own training inputs first. Dashed: chance, always answering the most frequent class."
)


def gap(cells: pd.DataFrame, seeds: pd.DataFrame, chance: float) -> Figure:
    """One row a cell.

    Args:
        cells: columns cell (its label), model, from_scratch (bool), accuracy, low, high (shares of 1, NaN where there
            is no result) and note (what stands there instead of a result).
        seeds: columns cell, model, accuracy: a row a run that is done.
        chance: share of the most frequent class; NaN if it is not known.
    """
    order = cells["cell"].tolist()
    y = alt.Y("cell:N", sort=order, title=None, axis=alt.Axis(labelLimit=360, grid=True))
    models = list(dict.fromkeys(cells["model"]))
    colours = alt.Scale(domain=models, range=[model_colour(model) for model in models])
    colour = alt.Color("model:N", scale=colours, legend=None)
    done = cells[cells["accuracy"].notna()]
    x = alt.X("accuracy:Q", title="test accuracy", axis=alt.Axis(format="%", tickCount=5), scale=SCALE)
    base = alt.Chart(done.assign(number=[f"{100 * share:.1f}%" for share in done["accuracy"]])).encode(y=y)
    ticks = alt.Chart(seeds).mark_tick(thickness=2, height=15, opacity=0.7)
    layers = [
        _chance(chance),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        ticks.encode(x=x, y=y, color=colour),
        _points(base, from_scratch=True).encode(x=x, color=colour),
        _points(base, from_scratch=False).encode(x=x, color=colour),
        base.mark_text(align="left", fontSize=12).encode(x=alt.value(WIDTH + 10), text="number:N"),
        _without_result(cells[cells["accuracy"].isna()], chance).encode(y=y),
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=alt.Step(ROW_HEIGHT))
    return Figure("The gap, from scratch and pretrained", chart, CAPTION)


def _points(base: alt.Chart, *, from_scratch: bool) -> alt.Chart:
    fill = {"fill": "white"} if from_scratch else {"filled": True}
    marks = base.mark_point(size=90, strokeWidth=2, opacity=1, **fill)
    return marks.transform_filter(alt.datum.from_scratch == from_scratch)


def _chance(chance: float) -> alt.Chart:
    rows = pd.DataFrame({"accuracy": [chance]}).dropna()
    return alt.Chart(rows).mark_rule(strokeDash=[5, 4], color=GREY, strokeWidth=1.5).encode(x="accuracy:Q")


def _without_result(cells: pd.DataFrame, chance: float) -> alt.Chart:
    """What is said where there is no point, beside the chance level if there is room."""
    start = 10 + (WIDTH * chance if chance < 0.5 else 0)
    marks = alt.Chart(cells).mark_text(align="left", color=VERMILION, fontSize=12, limit=WIDTH - start)
    return marks.encode(x=alt.value(start), text="note:N")
