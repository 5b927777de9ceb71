"""Learned spectra over those of the init in grey: where eigenvalues lie, how their memory is spread, what they pass."""

from __future__ import annotations

from typing import cast

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.theme import (
    BLACK,
    MOST_LAYERS,
    MOST_ROWS,
    PANEL_WIDTH,
    Figure,
    axis_title,
    by_layer,
    by_stage,
    few_layers,
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
from ssm_priors.analyses.charts.thin import bin_extremes, cloud, lag_bins

MOST_STEPS = 200
"""Points of one curve."""
RIM = 97
"""Points of the unit circle."""
FAINTEST = 1e-5
"""Share of the largest gain below which responses are drawn on the lower edge."""
NO_MODES = "The eigenvalues have no finite values, so none is drawn."
NO_WEIGHTS = "The weights |C B| are not known (they depend on the input, or are not finite), so this chart is left out."


def eigenvalues(dataset: xr.Dataset) -> Figure:
    """Decay rate against frequency, a point a mode.

    Args:
        dataset: decay_rate and frequency (layer, channel, mode), of `spectra` or `summaries.inspection`; any stages or
            none.
    """
    title = "Where the eigenvalues lie"
    dataset, grows = _decaying(staged(dataset), "decay_rate")
    rows = _cloud(dataset, "decay_rate", "frequency")
    if rows.empty:
        return nothing(title, NO_MODES)
    x = alt.Scale(type="log", nice=False, padding=6)
    base = alt.Chart().encode(
        x=alt.X("decay_rate:Q", title=axis_title("decay_rate"), scale=x, axis=_log_axis(rows["decay_rate"])),
        y=alt.Y("frequency:Q", title=axis_title("frequency"), scale=alt.Scale(type="sqrt"), axis=alt.Axis(format="~g")),
        color=stage_colour(dataset.stage.values),
        tooltip=tips("stage:N", "decay_rate:Q", "frequency:Q"),
    )
    chart = by_layer(alt.layer(*_points(base, dataset), data=rows).properties(width=PANEL_WIDTH, height=200))
    caption = (
        f"A point is a mode of a channel{_sizes(dataset)}. To the left: longer memory; upwards: faster oscillation. "
        f"Axes: logarithm and square root. {_drawn(dataset, rows, 'decay_rate', 'frequency')} {grows}"
    )
    return Figure(title, chart, caption)


def disc(dataset: xr.Dataset) -> Figure:
    """The eigenvalues per step on the unit disc, a point a mode.

    Args:
        dataset: z_real and z_imag (layer, channel, mode), of `spectra` or `summaries.inspection`; any stages or none.
    """
    title = "Eigenvalues on the unit disc"
    dataset, thinned_layers = few_layers(staged(dataset))
    rows = _cloud(dataset, "z_real", "z_imag", MOST_ROWS - RIM)
    if rows.empty:
        return nothing(title, NO_MODES)
    end = max(1.05, 1.02 * float(rows[["z_real", "z_imag"]].abs().max().max()))
    low = -end if (rows["z_imag"] < 0).any() else -0.05
    axis = alt.Axis(tickCount=5, format="~g")
    x = alt.X("z_real:Q", title="real part of z", scale=alt.Scale(domain=[-end, end], nice=False), axis=axis)
    y = alt.Y("z_imag:Q", title="imaginary part of z", scale=alt.Scale(domain=[low, end], nice=False), axis=axis)
    base = alt.Chart().encode(
        x=x, y=y, color=stage_colour(dataset.stage.values), tooltip=tips("stage:N", "z_real:Q", "z_imag:Q")
    )
    angle = np.linspace(0, 2 * np.pi, RIM)
    circle = alt.Chart(pd.DataFrame({"z_real": np.cos(angle), "z_imag": np.sin(angle), "angle": angle}))
    rim = circle.mark_line(color=BLACK, strokeWidth=1, clip=True).encode(
        x=x, y=y, order="angle:Q", tooltip=alt.value("|z| = 1")
    )
    chart = by_layer(
        alt.layer(rim, *_points(base, dataset), data=rows).properties(
            width=PANEL_WIDTH, height=PANEL_WIDTH * (end - low) / (2 * end)
        )
    )
    caption = (
        f"A point is a mode of a channel per step, z = exp(dt A) or its bilinear twin, one of each conjugate pair"
        f"{_sizes(dataset)}. On the circle (|z| = 1) a mode never forgets, in the middle it is gone in a step; the "
        f"angle is its frequency, 0 to the right, half a cycle a step to the left. {thinned_layers}"
        f"{_drawn(dataset, rows, 'z_real', 'z_imag')}"
    )
    return Figure(title, chart, caption)


def memory(dataset: xr.Dataset) -> Figure:
    """The share of the weight |C B| that lies at modes up to a timescale.

    Args:
        dataset: timescale, weight and, for the mark at the length, lag, of `spectra` or `summaries.inspection`; any
            stages or none.
    """
    title = "How the memory is spread"
    dataset, grows = _decaying(staged(dataset), "timescale")
    steps = max(2, min(MOST_STEPS, MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["layer"])))
    rows = pd.concat(_cumulative(dataset, stage, layer, steps) for stage, layer in _panels(dataset))
    if rows.empty:
        return nothing(title, NO_WEIGHTS)
    length = dataset.sizes.get("lag")
    scale = alt.Scale(type="log", nice=False)
    curves = alt.Chart().encode(
        x=alt.X("timescale:Q", title=axis_title("timescale"), scale=scale, axis=_log_axis(rows["timescale"], length)),
        color=stage_colour(dataset.stage.values),
        tooltip=tips("stage:N", "timescale:Q", "share:Q", share="share of the weight up to there"),
    )
    y = alt.Y("share:Q", title="share of the weight", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    layers = lines(curves, stages_shown(dataset), y, interpolate="step-after")
    if length:
        mark = alt.Chart(pd.DataFrame({"length": [length]})).mark_rule(strokeDash=[4, 3], color=BLACK)
        layers.append(mark.encode(x="length:Q", tooltip=tips("length:Q", length="lags looked at (steps)")))
    chart = by_layer(alt.layer(*layers, data=rows).properties(width=PANEL_WIDTH, height=180))
    broken = ~np.isfinite(dataset.timescale) | ~np.isfinite(dataset.weight).all("direction")
    ruled = f"; the dashed line marks the {length:,} lags looked at" if length else ""
    caption = (
        "Cumulative: how much of the weight |C B| of all modes, summed over directions, lies at timescales up to the "
        f"one below{ruled}. {left_out(broken, 'modes')}{grows}Thinned to at most {steps} steps a curve, both ends kept."
    )
    return Figure(title, chart, caption)


def density(dataset: xr.Dataset) -> Figure:
    """How the weight |C B| is spread over decay rates.

    Args:
        dataset: of `spectra.decay_density`; any stages or none.
    """
    title = "The decay spectrum"
    dataset = staged(dataset)
    room = MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["rate"])
    dataset, thinned_layers = few_layers(dataset, max(1, min(MOST_LAYERS, room)))
    rows = pd.concat(_density(dataset, stage, layer) for stage, layer in _panels(dataset)).dropna()
    if rows.empty:
        return nothing(title, NO_WEIGHTS)
    filled = rows.loc[rows["decay_density"] > 0, "rate"]
    rows = rows[rows["rate"].between(filled.min() / 1.5, filled.max() * 1.5)] if len(filled) else rows
    base = alt.Chart().encode(
        x=alt.X(
            "rate:Q",
            title=axis_title("decay_rate"),
            scale=alt.Scale(type="log", nice=False),
            axis=_log_axis(rows["rate"]),
        ),
        color=stage_colour(dataset.stage.values),
        tooltip=tips("stage:N", "rate:Q", "decay_density:Q", rate=axis_title("decay_rate")),
    )
    y = alt.Y("decay_density:Q", title=axis_title("decay_density"), axis=alt.Axis(tickCount=4))
    stages = stages_shown(dataset)
    first = next(by_stage(base, stages))[1].mark_area(opacity=0.25, interpolate="step").encode(y=y)
    chart = alt.layer(first, *lines(base, stages, y, interpolate="step"), data=rows)
    chart = by_layer(chart.properties(width=PANEL_WIDTH, height=160))
    beyond = float(dataset.outside.max())
    outside = f"Up to {beyond:.1%} of a layer's weight lies beyond the axis that was counted. " if beyond > 5e-4 else ""
    broken = left_out(dataset.decay_density.isnull().any("rate"), "spectra of layers and stages")
    caption = (
        "A weighted histogram of all modes of a layer, weights |C B|, not smoothed; the area under a curve is 1. To "
        f"the left: longer memory. {outside}{broken}{thinned_layers}"
    )
    return Figure(title, chart, caption)


def gain(dataset: xr.Dataset) -> Figure:
    """The magnitude of the kernels' frequency response: median and 5-95% range over a layer's kernels.

    Args:
        dataset: of `spectra.response`; any stages or none.
    """
    title = "What frequencies the kernels pass"
    dataset, thinned_layers = few_layers(staged(dataset))
    cycles = dataset.cycle.values[1:]  # a logarithmic axis has no place for frequency 0
    starts = lag_bins(len(cycles), max(1, min(MOST_STEPS, MOST_ROWS // len(_panels(dataset)))))
    rows = pd.concat(_gains(dataset, stage, layer, starts) for stage, layer in _panels(dataset))
    if rows.empty:
        return nothing(title, "The frequency responses have no finite values, so none is drawn.")
    top = float(rows["high"].max()) or 1.0
    scale = alt.Scale(
        type="log", domain=[max(top * FAINTEST, float(rows["low"].min()) / 2), top * 1.3], clamp=True, nice=False
    )

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=axis_title("gain"), scale=scale, axis=log_axis(*scale.to_dict()["domain"]))

    stages = stages_shown(dataset)
    x = alt.X(
        "cycle:Q", title=axis_title("frequency"), scale=alt.Scale(type="log", nice=False), axis=_log_axis(rows["cycle"])
    )
    told = tips(
        "stage:N", "cycle:Q", "low:Q", "median:Q", "high:Q", cycle=axis_title("frequency"), low="5%", high="95%"
    )
    base = alt.Chart().encode(x=x, color=stage_colour(stages), tooltip=told)
    chart = alt.layer(*spread(base, stages, y), *lines(base, stages, y("median")), data=rows)
    chart = by_layer(chart.properties(width=PANEL_WIDTH, height=180))
    broken = left_out(~np.isfinite(dataset.gain).all("cycle"), "kernels")
    thinned = (
        ""
        if len(starts) == len(cycles)
        else (f"Thinned: {len(cycles)} frequencies in {len(starts)} bins, of each kernel the largest gain in a bin. ")
    )
    caption = (
        f"Line: median over a layer's channels and directions; 5-95% of them: {spread_in_words(stages)}. A gain of 1 "
        "passes a sinusoid unchanged. Frequency 0 has no place on a logarithmic axis. "
        f"{broken}{thinned_layers}{thinned}"
    )
    return Figure(title, chart, caption)


def _decaying(dataset: xr.Dataset, name: str) -> tuple[xr.Dataset, str]:
    """Without modes that grow or stand still, which a logarithmic axis cannot show; and what the caption says of it."""
    kept = dataset[name].where(~(dataset[name] <= 0))
    count = int((dataset[name] <= 0).sum())
    return dataset.assign({name: kept}), f"Of those, {count:,} do not decay. " if count else ""


def _log_axis(values: pd.Series, mark: int | None = None) -> alt.Axis:
    ends = [*values.agg(["min", "max"]), *([mark] if mark else [])]
    return log_axis(float(min(ends)), float(max(ends)))


def _panels(dataset: xr.Dataset) -> list[tuple[str, int]]:
    return [(str(stage), int(layer)) for stage in dataset.stage.values for layer in dataset.layer.values]


def _cloud(dataset: xr.Dataset, x: str, y: str, rows: int = MOST_ROWS) -> pd.DataFrame:
    """The points of every stage and layer, thinned to so many rows."""
    most = max(4, rows // len(_panels(dataset)))
    parts = []
    for stage, layer in _panels(dataset):
        across, up = (dataset[name].sel(stage=stage, layer=layer).values.ravel() for name in (x, y))
        chosen = cloud(across, up, most)
        parts.append(pd.DataFrame({x: across[chosen], y: up[chosen]}).assign(stage=stage, layer=layer))
    return pd.concat(parts)


def _points(base: alt.Chart, dataset: xr.Dataset) -> list[alt.Chart]:
    """Large points below, small ones above."""
    return [
        part.mark_circle(size=max(9, 4 * look.width**2), opacity=0.55 if look.width > 2 else 0.8)
        for look, part in by_stage(base, stages_shown(dataset))
    ]


def _sizes(dataset: xr.Dataset) -> str:
    return ", large before training and small after it" if dataset.sizes["stage"] > 1 else ""


def _drawn(dataset: xr.Dataset, rows: pd.DataFrame, *names: str) -> str:
    """What the caption says of points that are not there."""
    finite = np.isfinite(dataset[names[0]]) & np.isfinite(dataset[names[1]])
    there = int(finite.sum())
    thinned = f"All {there:,} modes are drawn." if len(rows) == there else _thinned(len(rows), there)
    return left_out(cast(xr.DataArray, ~finite), "modes") + thinned


def _density(dataset: xr.Dataset, stage: str, layer: int) -> pd.DataFrame:
    values = dataset.decay_density.sel(stage=stage, layer=layer).values
    return pd.DataFrame({"rate": dataset.rate.values, "decay_density": values}).assign(stage=stage, layer=layer)


def _gains(dataset: xr.Dataset, stage: str, layer: int, starts: np.ndarray) -> pd.DataFrame:
    here = dataset.gain.sel(stage=stage, layer=layer).transpose("channel", "direction", "cycle").values
    each = here.reshape(-1, here.shape[-1])[:, 1:]
    each = each[np.isfinite(each).all(axis=-1)]
    if not len(each):
        return pd.DataFrame()
    _, peaks = bin_extremes(each, starts)
    low, median, high = np.quantile(peaks, [0.05, 0.5, 0.95], axis=0)
    columns = {"cycle": dataset.cycle.values[1:][starts], "low": low, "median": median, "high": high}
    return pd.DataFrame(columns).assign(stage=stage, layer=layer)


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
    return f"Thinned: {drawn:,} of {there:,} modes are drawn, evenly chosen from left to right; the extremes are kept."
