"""Learning curves of both phases: the loss while pretraining and finetuning, and the validation metric."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from ssm_priors.analyses.charts.theme import MOST_ROWS, PALETTE, Figure, tips
from ssm_priors.metrics import ACCURACY, Metric

LayeredChart = alt.LayerChart | alt.FacetChart
MOST_BINS = 100
"""Points of one curve."""
PANELS = (("pretrain", "loss"), ("finetune", "loss"), ("finetune", "validation_metric"))
TITLES = {("pretrain", "loss"): "pretraining loss", ("finetune", "loss"): "finetuning loss"}
"""The third is called after the metric."""
DASHES = ((5, 3), (1, 0), (2, 2), (8, 3, 2, 3))
"""The first, from scratch, is broken and the second whole, as hollow and solid points are in the gap's chart."""


def curves(steps: pd.DataFrame, metric: Metric = ACCURACY) -> Figure:
    """A panel for each phase and metric, a curve for each cell: the mean over seeds, and the lowest and highest seed.

    Args:
        steps: a row a step: columns start (model and init), pretrain, seed, phase, step, loss, validation_metric; NaN
            where a step has no value. At least one step has one.
        metric: of the validation.
    """
    starts, pretrains = (list(dict.fromkeys(steps[name])) for name in ("start", "pretrain"))
    # Three panels at most: their rows together stay below what one page should embed
    bins = max(1, min(MOST_BINS, MOST_ROWS // (len(PANELS) * len(starts) * len(pretrains))))
    data = {panel: _panel(steps, *panel, bins) for panel in PANELS}
    colours = alt.Scale(domain=starts, range=[PALETTE[i % len(PALETTE)] for i in range(len(starts))])
    colour = alt.Color("start:N", scale=colours, title=None, legend=alt.Legend(symbolType="stroke"))
    dashes = alt.Scale(domain=pretrains, range=[list(DASHES[i % len(DASHES)]) for i in range(len(pretrains))])
    dash = alt.StrokeDash("pretrain:N", scale=dashes, title=None, legend=alt.Legend(orient="bottom"))
    drawn = [_draw(rows, panel, colour, dash, metric) for panel, rows in data.items() if len(rows)]
    chart = alt.hconcat(*drawn, spacing=46, bounds="flush").resolve_scale(color="shared", strokeDash="shared")
    caption = (
        "Lines: mean over seeds; bands: lowest and highest seed. "
        f"Thinned to at most {bins} points a curve, each the mean of the steps up to it."
    )
    return Figure("Learning curves", chart, caption)


def _panel(steps: pd.DataFrame, phase: str, metric: str, bins: int) -> pd.DataFrame:
    """Columns start, pretrain, step, mean, low, high: at most `bins` rows a cell."""
    rows = steps.loc[(steps["phase"] == phase) & steps[metric].notna(), ["start", "pretrain", "seed", "step", metric]]
    if rows.empty:
        return rows
    width = int(np.ceil(rows["step"].max() / bins))
    rows = rows.assign(step=-(-rows["step"] // width) * width)
    cell = ["start", "pretrain", "step"]
    by_seed = rows.groupby([*cell, "seed"], as_index=False, sort=False)[metric].mean()
    spread = by_seed.groupby(cell, as_index=False, sort=False)[metric].agg(["mean", "min", "max"])
    return spread.rename(columns={"min": "low", "max": "high"})


def _draw(
    rows: pd.DataFrame, panel: tuple[str, str], colour: alt.Color, dash: alt.StrokeDash, metric: Metric
) -> LayeredChart:
    is_share = panel not in TITLES and metric.is_share
    title = TITLES.get(panel, f"validation {metric.title if is_share else metric.label}")
    axis = alt.Axis(format="%") if is_share else alt.Axis(tickCount=5)
    scale = alt.Scale(zero=False, nice=False, padding=8)
    told = tips("start:N", "pretrain:N", "step:Q", "mean:Q", "low:Q", "high:Q", low="lowest seed", high="highest seed")
    x = alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4))
    base = alt.Chart(rows).encode(x=x, color=colour, tooltip=told)
    band = base.mark_area(opacity=0.15).encode(
        y=alt.Y("low:Q", title=None, axis=axis, scale=scale), y2="high:Q", detail="pretrain:N"
    )
    line = base.mark_line(strokeWidth=1.8).encode(y=alt.Y("mean:Q", title=None, scale=scale), strokeDash=dash)
    return alt.layer(band, line).properties(width=250, height=200, title=title)
