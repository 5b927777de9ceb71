"""Learned kernels over lag, with those of the init in grey: how far they reach, and what some of them look like."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.theme import (
    INIT_WIDTH,
    LAYER_HEADER,
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
from ssm_priors.analyses.charts.thin import bin_extremes, lag_bins

MOST_BINS = 200
FAINTEST = 1e-4
"""Share of the largest magnitude below which nothing can be told apart from the axis."""
PICKS = {"short memory": 0.05, "medium memory": 0.5, "long memory": 0.95}
"""Quantiles of the learned energy lag, whose channels are shown as examples."""
SIGNED_LAG = "lag (steps; negative: from the future)"


def reach(dataset: xr.Dataset) -> Figure:
    """The magnitude of all kernels of a layer over lag: median, 5-95% range and largest over channels.

    Args:
        dataset: of `summaries.inspection`: kernel(stage, layer, channel, direction, lag).
    """
    starts = _bins(dataset, 1)
    rows = pd.concat(_magnitudes(values, starts, labels) for labels, values in _panels(dataset))
    top = float(rows["largest"].max())
    top = top if top > 0 else 1.0
    scale = alt.Scale(type="log", domain=[top * FAINTEST, top * 1.2], clamp=True, nice=False)
    axis = log_axis(top * FAINTEST, top * 1.2)

    def y(quantile: str) -> alt.Y:
        return alt.Y(f"{quantile}:Q", scale=scale, axis=axis, title="magnitude of the kernel")

    base = alt.Chart().encode(x=_lag_axis(dataset), color=stage_colour(dataset.stage.values))
    before, after = before_and_after(base)
    chart = alt.layer(
        before.mark_area(opacity=0.3).encode(y=y("low"), y2="high:Q"),
        before.mark_line(strokeWidth=INIT_WIDTH).encode(y=y("median")),
        *(after.mark_line(strokeWidth=0.8).encode(y=y(edge)) for edge in ("low", "high")),
        after.mark_line(strokeWidth=LEARNED_WIDTH).encode(y=y("median")),
        *(part.mark_line(strokeWidth=0.8, strokeDash=[3, 2]).encode(y=y("largest")) for part in (before, after)),
        data=rows,
    ).properties(width=PANEL_WIDTH, height=180)
    broken = left_out(~np.isfinite(dataset.kernel).all("lag"), "kernels")
    caption = (
        "Over all channels of a layer. Init: median (thick grey line), 5-95% range (grey band). Learned: median (blue "
        "line), 5-95% range (between the thin lines). Dashed: the largest of all channels. Magnitudes below "
        f"{FAINTEST:g} of the largest are drawn on the lower edge. {broken}{_thinned(dataset, starts)}"
    )
    return Figure("How far the kernels reach", by_layer(chart), caption)


def examples(dataset: xr.Dataset) -> Figure:
    """Three kernels of each layer: the channels whose learned memory is short, medium and long.

    Args:
        dataset: of `summaries.inspection`: kernel and energy_lag.
    """
    starts = _bins(dataset, len(PICKS))
    rows = pd.concat(
        _example(values[channel], starts, {**labels, "pick": pick})
        for labels, values in _panels(dataset)
        for pick, channel in _picked(dataset, labels["layer"]).items()
    )
    axis = alt.Axis(format="~g", tickCount=3)
    base = alt.Chart().encode(x=_lag_axis(dataset), color=stage_colour(dataset.stage.values))
    marks = [
        mark
        for part, width in zip(before_and_after(base), (INIT_WIDTH, LEARNED_WIDTH), strict=True)
        for mark in (
            part.mark_area(opacity=0.3).encode(y=alt.Y("low:Q", title=None, axis=axis), y2="high:Q"),
            *(part.mark_line(strokeWidth=width).encode(y=f"{edge}:Q") for edge in ("low", "high")),
        )
    ]
    chart = alt.layer(*marks, data=rows).properties(width=PANEL_WIDTH, height=100)
    chart = chart.facet(
        row=alt.Row("layer:O", title=None, header=LAYER_HEADER),
        column=alt.Column("pick:N", title=None, sort=list(PICKS)),
    ).resolve_scale(y="independent")
    caption = (
        "Each layer's channels at 5, 50 and 95% of the learned 90% energy lag, and the same channels before "
        f"training; every panel has its own vertical scale for the kernel. {_thinned(dataset, starts)}"
    )
    return Figure("What single kernels look like", chart, caption)


def _panels(dataset: xr.Dataset) -> Iterator[tuple[dict, np.ndarray]]:
    """Kernels (channel, lag) of every stage, layer and direction."""
    for stage in dataset.stage.values:
        for layer in dataset.layer.values:
            for direction in dataset.direction.values:
                labels = {"stage": str(stage), "layer": int(layer), "direction": str(direction)}
                yield labels, dataset.kernel.sel(labels).transpose("channel", "lag").values


def _bins(dataset: xr.Dataset, curves: int) -> np.ndarray:
    lines = curves * int(np.prod([dataset.sizes[dim] for dim in ("stage", "layer", "direction")]))
    return lag_bins(dataset.sizes["lag"], max(1, min(MOST_BINS, MOST_ROWS // lines)))


def _magnitudes(values: np.ndarray, starts: np.ndarray, labels: dict) -> pd.DataFrame:
    finite = values[np.isfinite(values).all(axis=-1)]
    if not len(finite):
        return pd.DataFrame(columns=["lag", "low", "median", "high", "largest", *labels], dtype=float)
    low, high = bin_extremes(finite, starts)
    envelope = np.maximum(-low, high)  # largest |K| in the bin, channel by channel
    low, median, high, largest = np.quantile(envelope, [0.05, 0.5, 0.95, 1], axis=0)
    return _frame({"low": low, "median": median, "high": high, "largest": largest}, starts, labels)


def _example(values: np.ndarray, starts: np.ndarray, labels: dict) -> pd.DataFrame:
    low, high = bin_extremes(values, starts)
    return _frame({"low": low, "high": high}, starts, labels)


def _frame(columns: dict[str, np.ndarray], starts: np.ndarray, labels: dict) -> pd.DataFrame:
    backward = labels["direction"] == "backward"
    rows = pd.DataFrame({"lag": -starts if backward else starts, **columns}).assign(**labels)
    return rows[1:] if backward else rows  # the backward kernel has no lag 0


def _picked(dataset: xr.Dataset, layer: int) -> dict[str, int]:
    """The channel at each quantile of the last stage's energy lag, forward."""
    lags = dataset.energy_lag.sel(layer=layer).isel(stage=-1, direction=0).values
    order = np.argsort(lags, kind="stable")
    return {pick: int(order[round(share * (len(order) - 1))]) for pick, share in PICKS.items()}


def _lag_axis(dataset: xr.Dataset) -> alt.X:
    """Logarithmic on both sides of 0, which a logarithm alone cannot show."""
    length, two_sided = dataset.sizes["lag"], dataset.sizes["direction"] == 2
    steps = (10, 100, 1000, 10_000, 100_000) if length > 300 else (3, 10, 30, 100)
    crowded = two_sided and length > 3000
    ticks = [tick for tick in (steps[::2] if crowded else steps) if tick < length]
    ticks = [*(-tick for tick in reversed(ticks) if two_sided), 0, *ticks]
    scale = alt.Scale(type="symlog", constant=1, domain=[-length if two_sided else 0, length], nice=False)
    words = "abs(datum.value) < 1000 ? format(datum.value, 'd') : format(datum.value / 1000, 'd') + 'k'"
    axis = alt.Axis(values=ticks, labelExpr=words, labelOverlap="greedy")
    return alt.X("lag:Q", scale=scale, title=SIGNED_LAG if two_sided else axis_title("lag"), axis=axis)


def _thinned(dataset: xr.Dataset, starts: np.ndarray) -> str:
    length = dataset.sizes["lag"]
    if len(starts) == length:
        return f"All {length:,} lags are drawn."
    return f"Thinned: {length:,} lags in {len(starts)} bins that widen with the lag; each bin's extremes are kept."
