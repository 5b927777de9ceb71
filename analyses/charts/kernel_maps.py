"""Kernels as pictures: all channels of a layer over lag, and single kernels unrolled to the images they were read from.

Blue is negative, orange positive and white 0; every kernel is divided by its own largest magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.kernels import NO_KERNELS, PICKS, lag_axis, picked
from ssm_priors.analyses.charts.theme import (
    DIVERGING,
    LAYER_HEADER,
    MOST_ROWS,
    PANEL_WIDTH,
    Figure,
    by_layer,
    few_layers,
    last_stage,
    left_out,
    nothing,
    staged,
    tips,
)
from ssm_priors.analyses.charts.thin import bin_peaks, block_peaks, blocks, evenly, lag_bins
from ssm_priors.analyses.kernels import unroll

MAP_HEIGHT = 160
"""Pixels of a map, or a little less: lines are whole pixels."""
OVERLAP: dict[str, Any] = {"x2Offset": 0.6, "y2Offset": 0.6}
"""Pixels by which cells cover each other, so that no page shows between them."""
IMAGE_WIDTH = 150
LAGS_A_CHANNEL = 3
"""Cells along the lags for one along the channels, where there is not room for all."""
COLOUR = alt.Color(
    "value:Q", scale=DIVERGING, title="kernel / its largest magnitude", legend=alt.Legend(gradientLength=200)
)


def heat(dataset: xr.Dataset, stage: str | None = None) -> Figure:
    """The kernels of each layer, a line a channel, sorted by energy centroid.

    Args:
        dataset: kernel(layer, channel, direction, lag) and energy_centroid, of `kernels` or `summaries.inspection`; any
            stages or none.
        stage: which is drawn; None takes the last.
    """
    title = "The kernels of all layers"
    dataset = staged(dataset)
    stage = stage or last_stage(dataset)
    dataset, thinned_layers = few_layers(dataset.sel(stage=stage))
    cells = MOST_ROWS // (dataset.sizes["layer"] * dataset.sizes["direction"])
    most = min(dataset.sizes["channel"], max(1, int(np.sqrt(cells / LAGS_A_CHANNEL))))
    starts = lag_bins(dataset.sizes["lag"], max(1, cells // most))
    rows = pd.concat(_ranked(dataset.sel(layer=layer), most, starts) for layer in dataset.layer.values)
    if rows.empty:
        return nothing(title, NO_KERNELS)
    rank = alt.Y("rank:O", title="channels by memory", axis=alt.Axis(labels=False, ticks=False))
    told = tips(
        "channel:Q", "lag:Q", "energy_centroid:Q", "value:Q", lag="lag from (steps)", value="kernel / its largest"
    )
    chart = (
        alt.Chart(rows.dropna())
        .mark_rect(clip=True, x2Offset=OVERLAP["x2Offset"])
        .encode(x=lag_axis(dataset, field="start:Q"), x2="stop:Q", y=rank, color=COLOUR, tooltip=told)
    )
    chart = by_layer(chart.properties(width=PANEL_WIDTH, height=alt.Step(max(2, MAP_HEIGHT // most)))).resolve_scale(
        y="independent"
    )
    undefined = left_out(_undrawn(dataset), "channels")
    caption = (
        f"Stage {stage}. A line is a channel, sorted by the centroid of its energy, the shortest memory on top; orange "
        "is positive, blue negative, each kernel divided by its largest magnitude. "
        f"{undefined}{thinned_layers}{_thinned(dataset, most, starts)}"
    )
    return Figure(title, chart, caption)


def unrolled(dataset: xr.Dataset, width: int, stage: str | None = None) -> Figure:
    """Three kernels of each layer as images: what lies so many rows and columns back.

    Args:
        dataset: kernel(layer, channel, direction, lag) and energy_lag, of `kernels` or `summaries.inspection`; any
            stages or none.
        width: of the image that was read row by row, in columns.
        stage: which is drawn; None takes the last.

    Raises:
        BadConfig: a width below 1, or wider than the kernels are long.
    """
    title = "Kernels as images"
    dataset = staged(dataset)
    stage = stage or last_stage(dataset)
    dataset, thinned_layers = few_layers(dataset)
    images = dict(_images(dataset, width, stage))
    if not images:
        return nothing(title, NO_KERNELS)
    shape = next(iter(images.values())).shape
    side = blocks(shape, MOST_ROWS // len(images))
    rows = pd.concat(
        cells(block_peaks(image / _largest(image), side), side, shape).assign(layer=layer, pick=pick, channel=channel)
        for (layer, pick, channel), image in images.items()
    )
    told = tips("row:Q", "column:Q", "channel:Q", "value:Q", value="kernel / its largest")
    x = alt.X("column:Q", title="columns back", scale=alt.Scale(domain=[0, shape[1]], nice=False))
    y = alt.Y("row:Q", title="rows back", scale=alt.Scale(domain=[shape[0], 0], nice=False), axis=alt.Axis(tickCount=3))
    chart = (
        alt.Chart(rows)
        .mark_rect(**OVERLAP)
        .encode(x=x, x2="column_stop:Q", y=y, y2="row_stop:Q", color=COLOUR, tooltip=told)
    )
    chart = chart.properties(width=IMAGE_WIDTH, height=max(24, min(240, IMAGE_WIDTH * shape[0] // shape[1])))
    chart = chart.facet(
        row=alt.Row("layer:O", title=None, header=LAYER_HEADER),
        column=alt.Column("pick:N", title=None, sort=list(PICKS)),
    )
    reduced = (
        f"Thinned: a cell is the largest magnitude of {side} x {side} lags. " if side > 1 else "Every lag is drawn. "
    )
    caption = (
        f"Stage {stage}, forward kernels of the channels at 5, 50 and 95% of its 90% energy lag. The lag is row x "
        f"{width} + column: what looks at the pixels above stands in column 0. Orange is positive, blue negative, "
        f"each kernel divided by its largest magnitude. {thinned_layers}{reduced}"
    )
    return Figure(title, chart, caption)


def cells(image: np.ndarray, side: int, shape: tuple[int, int]) -> pd.DataFrame:
    """A row a cell that is finite: row, column, row_stop, column_stop (where it ends) and value.

    Args:
        image: (R / side, C / side).
        side: of a block.
        shape: (R, C), before it was reduced.
    """
    row, column = np.nonzero(np.isfinite(image))
    ends = {
        f"{name}{end}": np.minimum((place + more) * side, size)
        for name, place, size in (("row", row, shape[0]), ("column", column, shape[1]))
        for end, more in (("", 0), ("_stop", 1))
    }
    return pd.DataFrame({**ends, "value": image[row, column]})


def _ranked(here: xr.Dataset, most: int, starts: np.ndarray) -> pd.DataFrame:
    """The cells of one layer's channels, evenly chosen in the order of their forward centroids."""
    centroid = here.energy_centroid.transpose("direction", "channel").values[0]
    order = np.argsort(centroid, kind="stable")[: np.isfinite(centroid).sum()]
    order = order[evenly(len(order), most)] if len(order) else order
    kernel = here.kernel.isel(channel=order).transpose("direction", "channel", "lag").values
    parts = [
        _line(kernel[direction, rank], starts, backward=direction == 1).assign(
            rank=rank, channel=channel, energy_centroid=centroid[channel], layer=int(here.layer)
        )
        for rank, channel in enumerate(order)
        for direction in range(len(kernel))
    ]
    return pd.concat(parts) if parts else pd.DataFrame()


def _line(kernel: np.ndarray, starts: np.ndarray, *, backward: bool) -> pd.DataFrame:
    """The bins of one kernel; a lag is as wide as it lies, half a step to either side."""
    edges = np.append(starts, len(kernel)) - 0.5
    sign = -1 if backward else 1
    peaks = bin_peaks(kernel / _largest(kernel), starts)
    left, right = (edges[1:], edges[:-1]) if backward else (edges[:-1], edges[1:])
    rows = pd.DataFrame({"start": sign * left, "stop": sign * right, "lag": sign * starts, "value": peaks})
    return rows[1:] if backward else rows  # the backward kernel has no lag 0


def _images(dataset: xr.Dataset, width: int, stage: str) -> Iterator[tuple[tuple[int, str, int], np.ndarray]]:
    for layer in map(int, dataset.layer.values):
        for pick, channel in picked(dataset, layer).items():
            here = dataset[["kernel"]].sel(stage=stage, layer=layer).isel(channel=channel, direction=0)
            yield (layer, pick, channel), unroll(here, width).kernel.values


def _largest(kernel: np.ndarray) -> float:
    finite = kernel[np.isfinite(kernel)]
    return float(np.abs(finite).max(initial=0)) or 1.0


def _undrawn(dataset: xr.Dataset) -> xr.DataArray:
    return ~np.isfinite(dataset.energy_centroid.isel(direction=0))


def _thinned(dataset: xr.Dataset, most: int, starts: np.ndarray) -> str:
    channels, length = dataset.sizes["channel"], dataset.sizes["lag"]
    if most == channels and len(starts) == length:
        return "All channels and lags are drawn."
    return (
        f"Thinned: at most {most} of {channels:,} channels of a layer, evenly chosen in this order, and {length:,} "
        f"lags in {len(starts)} bins, of each the value of largest magnitude."
    )
