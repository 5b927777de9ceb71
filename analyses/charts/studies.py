"""What a study's results depend on: any metric against the share of the data, or against the budget."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ssm_priors.analyses.charts.curves import DASHES
from ssm_priors.analyses.charts.theme import MOST_ROWS, Figure, log_axis, model_colour, nothing, tips
from ssm_priors.analyses.charts.thin import evenly

WIDTH, HEIGHT = 520, 300
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
LEAST_SPREAD = 8
"""Largest / smallest x from which on the axis is logarithmic."""
MOST_TICKS = 8
NONE = "none"
"""Of pretrain: from scratch; of init: the model has none."""


def against_fraction(cells: pd.DataFrame, metric: str = "test accuracy", *, percent: bool = True) -> Figure:
    """A metric against the share of the training data, a line a cell.

    Args:
        cells: a row a cell and share: cell (label of a line), model, init, pretrain ("none": from scratch), x (share of
            the labelled training inputs, above 0), value, low and high (ends of its interval, NaN without one). Rows
            without a value are not drawn.
        metric: what `value` is, with its unit.
        percent: the metric is a share of 1.
    """
    return _against(
        cells, f"{_capital(metric)} against data", "share of the labelled training inputs", metric, percent, "%"
    )


def against_budget(cells: pd.DataFrame, budget: str, metric: str = "test accuracy", *, percent: bool = True) -> Figure:
    """A metric against what was spent, a line a cell.

    Args:
        cells: as for `against_fraction`; x is what was spent, 0 or more.
        budget: what `x` is, with its unit: "training steps", "compute (FLOP)".
        metric: what `value` is, with its unit.
        percent: the metric is a share of 1.
    """
    return _against(cells, f"{_capital(metric)} against budget", budget, metric, percent, "~s")


def _against(cells: pd.DataFrame, title: str, x_title: str, metric: str, percent: bool, x_format: str) -> Figure:
    known = cells[cells["value"].notna() & cells["x"].notna()]
    if known.empty:
        return nothing(title, "No cell has a result yet, so none is drawn.")
    rows = _rows(known.iloc[evenly(len(known), MOST_ROWS)])
    x = alt.X("x:Q", title=x_title, **_across(rows["x"], x_format))
    format = "%" if percent else "~g"
    scale = alt.Scale(zero=False, padding=8)
    told = tips("cell:N", "x:Q", "value:Q", "low:Q", "high:Q", x=x_title, value=metric, low="interval from", high="to")
    base = alt.Chart(rows).encode(x=x, color=_colour(rows), detail=["cell:N", "pretraining:N"], tooltip=told)
    y = alt.Y("value:Q", title=metric, scale=scale, axis=alt.Axis(format=format))
    edge = alt.Y("low:Q", scale=scale, title=metric)
    points: dict[str, Any] = {"size": 55, "strokeWidth": 1.8, "opacity": 1}
    shape = _shape(rows)
    layers = [
        *(part.mark_area(opacity=0.13).encode(y=edge, y2="high:Q") for part in _where(base, rows, "alone", False)),
        *(part.mark_rule(strokeWidth=1.5).encode(y=edge, y2="high:Q") for part in _where(base, rows, "alone", True)),
        base.mark_line(strokeWidth=2).encode(y=y, strokeDash=_dash(rows)),
        *(
            part.mark_point(fill="white", **points).encode(y=y, shape=shape)
            for part in _where(base, rows, "scratch", True)
        ),
        *(
            part.mark_point(filled=True, **points).encode(y=y, shape=shape)
            for part in _where(base, rows, "scratch", False)
        ),
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    unknown = len(cells) - len(known)
    left = f"Left out: {unknown:,} cells without a result. " if unknown else ""
    thinned = f"Thinned: {len(rows):,} of {len(known):,} results are drawn. " if len(rows) < len(known) else ""
    caption = (
        "A line is a cell of the study, a point one of its results; bands, or bars where there is one result, are "
        f"intervals. Dashed and hollow: trained from scratch. Whole and solid: pretrained first. {left}{thinned}"
    )
    return Figure(title, chart, caption)


def _where(base: alt.Chart, rows: pd.DataFrame, name: str, wanted: bool) -> list[alt.Chart]:
    """The chart of the rows that are so; none where there are none, since a browser complains of empty marks."""
    return [base.transform_filter(alt.datum[name] == wanted)] if (rows[name] == wanted).any() else []


def _rows(known: pd.DataFrame) -> pd.DataFrame:
    """With start (model and init), pretraining (in words), scratch, and alone: the only result of its cell."""
    line = ["cell", "model", "init", "pretrain"]
    return known.assign(
        start=[_start(*names) for names in zip(known["model"], known["init"], strict=True)],
        pretraining=[_pretraining(name) for name in known["pretrain"]],
        scratch=known["pretrain"] == NONE,
        alone=known.groupby(line)["x"].transform("count") == 1,
    )


def _start(model: str, init: str) -> str:
    return model if init == NONE else f"{model}, {init}"


def _pretraining(name: str) -> str:
    return "from scratch" if name == NONE else f"{name} pretraining"


def _starts(rows: pd.DataFrame) -> dict[str, str]:
    """The model of every start, in the order of the rows."""
    return dict(zip(rows["start"], rows["model"], strict=True))


def _colour(rows: pd.DataFrame) -> alt.Color:
    starts = _starts(rows)
    scale = alt.Scale(domain=list(starts), range=[model_colour(model) for model in starts.values()])
    return alt.Color("start:N", scale=scale, title=None)


def _shape(rows: pd.DataFrame) -> alt.Shape:
    """Starts of one colour differ in shape."""
    starts = _starts(rows)
    colours = [model_colour(model) for model in starts.values()]
    shapes = [SHAPES[colours[:place].count(colour) % len(SHAPES)] for place, colour in enumerate(colours)]
    return alt.Shape("start:N", scale=alt.Scale(domain=list(starts), range=shapes), title=None)


def _dash(rows: pd.DataFrame) -> alt.StrokeDash:
    names = sorted(rows["pretraining"].unique(), key=lambda name: name != _pretraining(NONE))
    dashes = DASHES if names[0] == _pretraining(NONE) else DASHES[1:]
    scale = alt.Scale(domain=names, range=[list(dashes[place % len(dashes)]) for place in range(len(names))])
    legend = alt.Legend(orient="bottom", symbolType="stroke", symbolSize=300)
    return alt.StrokeDash("pretraining:N", scale=scale, title=None, legend=legend)


def _across(values: pd.Series, format: str) -> dict[str, Any]:
    """Logarithmic where the values span much and 0 is not among them."""
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high < LEAST_SPREAD * low:
        return {"scale": alt.Scale(zero=low <= 0, padding=12), "axis": alt.Axis(format=format, tickCount=5)}
    # each value that was tried is a tick, where they are few
    tried = sorted(values.unique()) if values.nunique() <= MOST_TICKS else None
    axis = log_axis(low, high) if tried is None else alt.Axis(values=tried)
    axis.format = format
    return {"scale": alt.Scale(type="log", nice=False, padding=12), "axis": axis}


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
