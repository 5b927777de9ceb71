"""Learned eigenvalues over those of the init in grey: where they lie, and how the memory they give is spread."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.theme import (
    BLACK,
    INIT_WIDTH,
    LEARNED_WIDTH,
    MOST_ROWS,
    PANEL_WIDTH,
    Figure,
    axis_title,
    before_and_after,
    by_layer,
    left_out,
    log_axis,
    stage_colour,
)
from ssm_priors.analyses.charts.thin import cloud

MOST_STEPS = 200
"""Points of one cumulative curve."""


def eigenvalues(dataset: xr.Dataset) -> Figure:
    """Decay rate against frequency, a point a mode.

    Args:
        dataset: of `summaries.inspection`: decay_rate and frequency (stage, layer, channel, mode).
    """
    most = max(4, MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["layer"]))
    rows = pd.concat(_points(dataset, str(stage), int(layer), most) for stage, layer in _panels(dataset))
    finite = np.isfinite(dataset.decay_rate) & np.isfinite(dataset.frequency)
    there = int(finite.sum())
    x = alt.Scale(type="log", nice=False, padding=6)
    base = alt.Chart().encode(
        x=alt.X("decay_rate:Q", title=axis_title("decay_rate"), scale=x, axis=_log_axis(rows["decay_rate"])),
        y=alt.Y("frequency:Q", title=axis_title("frequency"), scale=alt.Scale(type="sqrt"), axis=alt.Axis(format="~g")),
        color=stage_colour(dataset.stage.values),
    )
    before, after = before_and_after(base)
    points = [before.mark_circle(size=45, opacity=0.5), after.mark_circle(size=9, opacity=0.8)]
    chart = by_layer(alt.layer(*points, data=rows).properties(width=PANEL_WIDTH, height=200))
    thinned = f"All {there:,} modes are drawn." if len(rows) == there else _thinned(len(rows), there)
    caption = (
        "A point is a mode of a channel, large and grey before training, small and blue after it. To the left: longer "
        f"memory; upwards: faster oscillation. Axes: logarithm and square root. {left_out(~finite, 'modes')}{thinned}"
    )
    return Figure("Where the eigenvalues lie", chart, caption)


def memory(dataset: xr.Dataset) -> Figure:
    """The share of the weight |C B| that lies at modes up to a timescale.

    Args:
        dataset: of `summaries.inspection`: timescale, weight and, for the mark at the length, lag.
    """
    steps = max(2, min(MOST_STEPS, MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["layer"])))
    rows = pd.concat(_cumulative(dataset, str(stage), int(layer), steps) for stage, layer in _panels(dataset))
    length = dataset.sizes.get("lag")
    scale = alt.Scale(type="log", nice=False)
    curves = alt.Chart().encode(
        x=alt.X("timescale:Q", title=axis_title("timescale"), scale=scale, axis=_log_axis(rows["timescale"], length)),
        y=alt.Y("share:Q", title="share of the weight", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=stage_colour(dataset.stage.values),
    )
    before, after = before_and_after(curves)
    layers = [
        before.mark_line(interpolate="step-after", strokeWidth=INIT_WIDTH),
        after.mark_line(interpolate="step-after", strokeWidth=LEARNED_WIDTH),
    ]
    if length:
        layers.append(alt.Chart().mark_rule(strokeDash=[4, 3], color=BLACK).encode(x=alt.datum(length)))
    chart = by_layer(alt.layer(*layers, data=rows).properties(width=PANEL_WIDTH, height=180))
    broken = ~np.isfinite(dataset.timescale) | ~np.isfinite(dataset.weight).all("direction")
    ruled = f"; the dashed line marks the {length:,} lags looked at" if length else ""
    caption = (
        "Cumulative: how much of the weight |C B| of all modes, summed over directions, lies at timescales up to the "
        f"one below{ruled}. {left_out(broken, 'modes')}Thinned to at most {steps} steps a curve, both ends kept."
    )
    return Figure("How the memory is spread", chart, caption)


def _log_axis(values: pd.Series, mark: int | None = None) -> alt.Axis:
    ends = [*values.agg(["min", "max"]), *([mark] if mark else [])]
    return log_axis(float(min(ends)), float(max(ends)))


def _panels(dataset: xr.Dataset) -> list[tuple[str, int]]:
    return [(stage, layer) for stage in dataset.stage.values for layer in dataset.layer.values]


def _points(dataset: xr.Dataset, stage: str, layer: int, most: int) -> pd.DataFrame:
    here = dataset[["decay_rate", "frequency"]].sel(stage=stage, layer=layer)
    x, y = here.decay_rate.values.ravel(), here.frequency.values.ravel()
    chosen = cloud(np.log(x), y, most)
    return pd.DataFrame({"decay_rate": x[chosen], "frequency": y[chosen]}).assign(stage=stage, layer=layer)


def _cumulative(dataset: xr.Dataset, stage: str, layer: int, steps: int) -> pd.DataFrame:
    here = dataset[["timescale", "weight"]].sel(stage=stage, layer=layer)
    timescale = here.timescale.values.ravel()
    weight = here.weight.sum("direction", skipna=False).transpose("channel", "mode").values.ravel()
    known = np.isfinite(timescale) & np.isfinite(weight)
    order = np.argsort(timescale[known], kind="stable")
    timescale, share = timescale[known][order], np.cumsum(weight[known][order])
    chosen = np.unique(np.linspace(0, len(share) - 1, steps).round().astype(int)) if len(share) else np.array([], int)
    total = share[-1] if len(share) and share[-1] > 0 else 1.0
    return pd.DataFrame({"timescale": timescale[chosen], "share": share[chosen] / total}).assign(
        stage=stage, layer=layer
    )


def _thinned(drawn: int, there: int) -> str:
    return f"Thinned: {drawn:,} of {there:,} modes are drawn, evenly chosen by decay rate; the extremes are kept."
