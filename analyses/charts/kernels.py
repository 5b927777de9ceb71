"""Learned kernels over lag, with those of the init in grey: how far they reach, and what some of them look like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.theme import (
    LAYER_HEADER,
    MOST_ROWS,
    PANEL_WIDTH,
    VERMILION,
    Figure,
    axis_title,
    by_layer,
    by_stage,
    last_stage,
    left_out,
    lines,
    log_axis,
    nothing,
    spread,
    spread_in_words,
    stage_colour,
    staged,
    stages_shown,
    tips,
)
from ssm_priors.analyses.charts.thin import bin_extremes, lag_bins

MOST_BINS = 200
FAINTEST = 1e-4
"""Share of the largest magnitude below which nothing can be told apart from the axis."""
PICKS = {"short memory": 0.05, "medium memory": 0.5, "long memory": 0.95}
"""Quantiles of the learned energy lag, whose channels are shown as examples."""
SIGNED_LAG = "lag (steps; negative: from the future)"
NO_KERNELS = "The kernels have no finite values, so none is drawn."


def reach(dataset: xr.Dataset) -> Figure:
    """The magnitude of all kernels of a layer over lag: median, 5-95% range and largest over channels.

    Args:
        dataset: kernel(layer, channel, direction, lag), of `kernels` or `summaries.inspection`; any stages or none.
    """
    title = "How far the kernels reach"
    dataset = staged(dataset)
    starts = _bins(dataset, 1)
    rows = pd.concat(_magnitudes(values, starts, labels) for labels, values in _panels(dataset))
    if rows.empty:
        return nothing(title, NO_KERNELS)
    top = float(rows["largest"].max())
    top = top if top > 0 else 1.0
    scale = alt.Scale(type="log", domain=[top * FAINTEST, top * 1.2], clamp=True, nice=False)
    axis = log_axis(top * FAINTEST, top * 1.2)

    def y(quantile: str) -> alt.Y:
        return alt.Y(f"{quantile}:Q", scale=scale, axis=axis, title="magnitude of the kernel")

    told = tips("lag:Q", "stage:N", "direction:N", "low:Q", "median:Q", "high:Q", "largest:Q", low="5%", high="95%")
    stages = stages_shown(dataset)
    base = alt.Chart().encode(x=lag_axis(dataset), color=stage_colour(stages), tooltip=told)
    extreme = base.transform_filter(alt.datum.stage == stages[-1])
    chart = alt.layer(
        *spread(base, stages, y),
        *lines(base, stages, y("median")),
        extreme.mark_line(strokeWidth=0.8, strokeDash=[3, 2]).encode(y=y("largest")),
        data=rows,
    ).properties(width=PANEL_WIDTH, height=180)
    broken = left_out(~np.isfinite(dataset.kernel).all("lag"), "kernels")
    caption = (
        f"Over all channels of a layer: median (line), 5-95% range ({spread_in_words(stages)}) and the largest "
        f"(dashed, {stages[-1]}). Magnitudes below {FAINTEST:g} of the largest are drawn on the lower edge. "
        f"{broken}{_thinned(dataset, starts)}"
    )
    return Figure(title, by_layer(chart), caption)


def examples(dataset: xr.Dataset, fit: xr.Dataset | None = None, *, log_lag: bool = True) -> Figure:
    """Three kernels of each layer: the channels whose learned memory is short, medium and long.

    Args:
        dataset: kernel and energy_lag, of `kernels` or `summaries.inspection`; any stages or none.
        fit: kernel(layer, channel, direction, lag), what a prior can make of the learned kernels of the `drawn`
            channels, of `distances.best_fits`. None draws no fit.
        log_lag: a logarithmic lag axis; False draws a linear one.
    """
    title = "What single kernels look like" + ("" if fit is None else f", and what {fit.attrs['prior']} makes of them")
    dataset = staged(dataset)
    starts = _bins(dataset, len(PICKS), even=not log_lag, more=fit is not None)
    stages = stages_shown(dataset)
    rows = pd.concat([_examples(dataset, starts), *([] if fit is None else [_fitted(dataset, fit, starts)])])
    if rows.empty:
        return nothing(title, NO_KERNELS)
    axis = alt.Axis(format="~g", tickCount=3)
    told = tips("lag:Q", "stage:N", "channel:Q", "low:Q", "high:Q", low="lowest in the bin", high="highest in the bin")
    colour = stage_colour(stages) if fit is None else _with_fit(stages, _fit_name(fit))
    base = alt.Chart().encode(x=lag_axis(dataset, log_lag), color=colour, tooltip=told)
    marks = [
        *(
            part.mark_area(opacity=0.3).encode(y=alt.Y("low:Q", title=None, axis=axis), y2="high:Q")
            for _, part in by_stage(base, stages)
        ),
        *(line for edge in ("low", "high") for line in lines(base, stages, f"{edge}:Q")),
    ]
    if fit is not None:
        above = base.transform_filter(alt.datum.stage == _fit_name(fit))
        marks += [above.mark_line(strokeWidth=1.4, strokeDash=[5, 3]).encode(y=f"{edge}:Q") for edge in ("low", "high")]
    chart = alt.layer(*marks, data=rows).properties(width=PANEL_WIDTH, height=100)
    chart = chart.facet(
        row=alt.Row("layer:O", title=None, header=LAYER_HEADER),
        column=alt.Column("pick:N", title=None, sort=list(PICKS)),
    ).resolve_scale(y="independent")
    others = ", and the same channels at the other stages" if len(stages) > 1 else ""
    bins = "bins that widen with the lag" if log_lag else "bins of equal width"
    fitted = "" if fit is None else f"Dashed: the {_fit_name(fit)}, the nearest that this prior can come. "
    caption = (
        f"Each layer's channels at 5, 50 and 95% of the 90% energy lag of the stage {last_stage(dataset)}{others}; "
        f"every panel has its own vertical scale for the kernel. {fitted}{_thinned(dataset, starts, bins)}"
    )
    return Figure(title, chart, caption)


def picked(dataset: xr.Dataset, layer: int) -> dict[str, int]:
    """Positions of the channels at each quantile of the last stage's forward energy lag; one where there are few.

    Args:
        dataset: with stages, and energy_lag. A channel without a defined one is never picked.
        layer: whose.
    """
    lags = dataset.energy_lag.sel(layer=layer, stage=last_stage(dataset)).isel(direction=0).values
    order = np.argsort(lags, kind="stable")[: np.isfinite(lags).sum()]
    names = PICKS if len(order) >= len(PICKS) else {"medium memory": 0.5} if len(order) else {}
    return {pick: int(order[round(share * (len(order) - 1))]) for pick, share in names.items()}


def drawn(dataset: xr.Dataset) -> list[int]:
    """Positions of all channels that `examples` draws, in any layer."""
    dataset = staged(dataset)
    return sorted({channel for layer in dataset.layer.values for channel in picked(dataset, layer).values()})


def lag_axis(dataset: xr.Dataset, log: bool = True, field: str = "lag:Q") -> alt.X:
    """Logarithmic on both sides of 0, which a logarithm alone cannot show; or linear.

    Args:
        dataset: whose lags and directions set the ends.
        log: which.
        field: what is drawn along it.
    """
    length, two_sided = dataset.sizes["lag"], dataset.sizes["direction"] == 2
    words = "abs(datum.value) < 1000 ? format(datum.value, 'd') : format(datum.value / 1000, '~r') + 'k'"
    domain = [-length if two_sided else 0, length]
    title = SIGNED_LAG if two_sided else axis_title("lag")
    if not log:
        scale, axis = alt.Scale(domain=domain, nice=False), alt.Axis(tickCount=4, labelExpr=words)
        return alt.X(field, scale=scale, title=title, axis=axis)
    steps = (10, 100, 1000, 10_000, 100_000) if length > 300 else (3, 10, 30, 100)
    crowded = two_sided and length > 3000
    ticks = [tick for tick in (steps[::2] if crowded else steps) if tick < length]
    ticks = [*(-tick for tick in reversed(ticks) if two_sided), 0, *ticks]
    scale = alt.Scale(type="symlog", constant=1, domain=domain, nice=False)
    axis = alt.Axis(values=ticks, labelExpr=words, labelOverlap="greedy")
    return alt.X(field, scale=scale, title=title, axis=axis)


def _panels(dataset: xr.Dataset) -> Iterator[tuple[dict, np.ndarray]]:
    """Kernels (channel, lag) of every stage, layer and direction."""
    for stage in dataset.stage.values:
        for layer in dataset.layer.values:
            for direction in dataset.direction.values:
                labels = {"stage": str(stage), "layer": int(layer), "direction": str(direction)}
                yield labels, dataset.kernel.sel(labels).transpose("channel", "lag").values


def _bins(dataset: xr.Dataset, curves: int, *, even: bool = False, more: bool = False) -> np.ndarray:
    """The first lag of each bin; `more`: one stage more will be drawn than there is."""
    count = curves * (dataset.sizes["stage"] + more) * dataset.sizes["layer"] * dataset.sizes["direction"]
    length, most = dataset.sizes["lag"], max(1, min(MOST_BINS, MOST_ROWS // count))
    return np.arange(0, length, -(-length // most)) if even else lag_bins(length, most)


def _magnitudes(values: np.ndarray, starts: np.ndarray, labels: dict) -> pd.DataFrame:
    finite = values[np.isfinite(values).all(axis=-1)]
    if not len(finite):
        return pd.DataFrame(columns=["lag", "low", "median", "high", "largest", *labels], dtype=float)
    low, high = bin_extremes(finite, starts)
    envelope = np.maximum(-low, high)  # largest |K| in the bin, channel by channel
    low, median, high, largest = np.quantile(envelope, [0.05, 0.5, 0.95, 1], axis=0)
    return _frame({"low": low, "median": median, "high": high, "largest": largest}, starts, labels)


def _examples(dataset: xr.Dataset, starts: np.ndarray) -> pd.DataFrame:
    return _concat(
        _example(values[channel], starts, {**labels, "channel": channel, "pick": pick})
        for labels, values in _panels(dataset)
        for pick, channel in picked(dataset, labels["layer"]).items()
    )


def _fitted(dataset: xr.Dataset, fit: xr.Dataset, starts: np.ndarray) -> pd.DataFrame:
    """The fit to the same channels, as a stage of its own."""
    places = {channel: place for place, channel in enumerate(fit.channel.values.tolist())}
    return _concat(
        _example(values[places[channel]], starts, {**labels, "stage": _fit_name(fit), "channel": channel, "pick": pick})
        for labels, values in _panels(staged(fit))
        for pick, channel in picked(dataset, labels["layer"]).items()
    )


def _concat(parts: Iterator[pd.DataFrame]) -> pd.DataFrame:
    frames = list(parts)
    return pd.concat(frames) if frames else pd.DataFrame()


def _fit_name(fit: xr.Dataset) -> str:
    return f"best fit of {fit.attrs['prior']}"


def _with_fit(stages: list[str], name: str) -> alt.Color:
    known = cast(dict[str, Any], stage_colour(stages).to_dict())["scale"]
    return stage_colour(stages, scale=alt.Scale(domain=[*known["domain"], name], range=[*known["range"], VERMILION]))


def _example(values: np.ndarray, starts: np.ndarray, labels: dict) -> pd.DataFrame:
    low, high = bin_extremes(values, starts)
    return _frame({"low": low, "high": high}, starts, labels)


def _frame(columns: dict[str, np.ndarray], starts: np.ndarray, labels: dict) -> pd.DataFrame:
    backward = labels["direction"] == "backward"
    rows = pd.DataFrame({"lag": -starts if backward else starts, **columns}).assign(**labels)
    return rows[1:] if backward else rows  # the backward kernel has no lag 0


def _thinned(dataset: xr.Dataset, starts: np.ndarray, bins: str = "bins that widen with the lag") -> str:
    length = dataset.sizes["lag"]
    if len(starts) == length:
        return f"All {length:,} lags are drawn."
    return f"Thinned: {length:,} lags in {len(starts)} {bins}; each bin's extremes are kept."
