"""Where attention looks: maps of chosen inputs, how far it reaches, and where in an image."""

from __future__ import annotations

import math
from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.kernel_maps import OVERLAP
from ssm_priors.analyses.charts.kernel_maps import cells as cells_of
from ssm_priors.analyses.charts.theme import (
    BLACK,
    LAYER_HEADER,
    MOST_LAYERS,
    MOST_ROWS,
    PANEL_WIDTH,
    SEQUENTIAL,
    Figure,
    axis_title,
    by_layer,
    by_stage,
    few_layers,
    nothing,
    stage_colour,
    staged,
    stages_shown,
    tips,
)
from ssm_priors.analyses.charts.thin import block_means, blocks

MOST_CELLS = 64
"""Cells of a map along queries and along keys."""
MAP = 190
"""Pixels of the side of a map."""
HEIGHT_A_STAGE = 15
QUANTITIES = ("mean_distance", "mean_row_distance", "mean_column_distance")
EVEN = {"mean_distance": "uniform_distance", "entropy": "uniform_entropy"}
"""What attention that is even over the visible keys would have, by quantity."""
UNATTENDED = "No query has attention that is defined, so none is drawn."


def maps(dataset: xr.Dataset, example: int = 0, head: int = 0) -> Figure:
    """The weights of one input and head, a panel a layer and stage: queries downwards, keys to the right.

    Args:
        dataset: of `attention.attention_maps`, or a trajectory of it.
        example: position of the input among those of the dataset.
        head: which.
    """
    dataset, thinned = few_layers(staged(dataset))
    here = dataset.attention.sel(example=example, head=head).transpose("stage", "layer", "query", "key")
    shape = here.shape[2:]
    side = blocks(shape, min(MOST_CELLS**2, MOST_ROWS // (here.shape[0] * here.shape[1])))
    side = max(side, *(math.ceil(size / MOST_CELLS) for size in shape))
    title = f"Attention of input {example}, head {head}"
    rows = _panels(here.rename(query="row", key="column"), side)
    if rows.empty:
        return nothing(title, UNATTENDED)
    x = alt.X("column:Q", title=axis_title("key"), scale=alt.Scale(domain=[0, shape[1]], nice=False))
    y = alt.Y("row:Q", title=axis_title("query"), scale=alt.Scale(domain=[shape[0], 0], nice=False))
    told = tips("row:Q", "column:Q", "value:Q", row="query from", column="key from", value="attention weight")
    chart = _heat(rows, x, y, "attention weight", told).properties(width=MAP, height=MAP)
    reduced = f"Reduced: a cell is the mean of {side} x {side} queries and keys. " if side > 1 else ""
    padded = "Queries on padding are left blank. " if bool(here.isnull().any()) else ""
    caption = (
        "The weight of every query (downwards) on every key (to the right): what lies on the diagonal is near, "
        f"below it the past. Darker is more, on a square-root scale. {reduced}{padded}{thinned}"
    )
    return Figure(title, _by_layer_and_stage(chart, dataset), caption)


def mass(dataset: xr.Dataset) -> Figure:
    """The share of attention by distance, a line a head.

    Args:
        dataset: of `attention.attention_summary`, or a trajectory of it: mass and uniform_distance.
    """
    title = "How attention is spread over distances"
    dataset = staged(dataset)
    room = MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["head"] * dataset.sizes["reach"])
    dataset, thinned = few_layers(dataset, max(1, min(MOST_LAYERS, room)))
    reach = dataset.reach.values
    names = _bin_names(reach)
    rows = dataset.mass.to_dataframe().reset_index().dropna()
    if rows.empty:
        return nothing(title, UNATTENDED)
    rows = rows.assign(distance=rows["reach"].map(dict(zip(reach, names, strict=True))))
    stages = stages_shown(dataset)
    x = alt.X(
        "distance:O",
        title="distance between query and key (steps)",
        sort=names,
        scale=alt.Scale(domain=names),
        axis=alt.Axis(labelAngle=-40, labelOverlap=False),
    )
    y = alt.Y("mass:Q", title="share of attention", axis=alt.Axis(format="%", tickCount=4))
    base = alt.Chart().encode(
        x=x,
        color=stage_colour(stages),
        detail="head:O",
        tooltip=tips("stage:N", "head:O", "distance:N", "mass:Q", distance="distance (steps)", mass="share"),
    )
    marks = [
        part.mark_line(strokeWidth=min(look.width, 1.8), strokeDash=list(look.dash), opacity=0.75).encode(y=y)
        for look, part in by_stage(base, stages)
    ]
    even = _even_bins(dataset, names)
    if len(even):
        rule = alt.Chart().mark_rule(strokeDash=[4, 3], color=BLACK).transform_filter(alt.datum.even)
        marks.append(rule.encode(x=x, tooltip=tips("uniform_distance:Q")))
        rows = pd.concat([rows.assign(even=False), even])
    chart = by_layer(alt.layer(*marks, data=rows).properties(width=PANEL_WIDTH, height=160))
    ruled = "Dashed: the bin with the mean distance that even attention over the visible keys would have. "
    caption = (
        "A line is a head: the mean share of a query's attention in bins of distance that double; wider bins hold more "
        f"keys. {ruled if len(even) else ''}{thinned}"
    )
    return Figure(title, chart, caption)


def proximity(dataset: xr.Dataset, quantities: tuple[str, ...] = QUANTITIES) -> Figure:
    """How near attention looks, before and after: a row a layer and stage, a dot a head.

    Args:
        dataset: of `attention.attention_summary`, or a trajectory of it.
        quantities: any of its numbers per layer and head; what the dataset lacks is left out.
    """
    title = "How near attention looks"
    dataset = staged(dataset)
    names = [name for name in quantities if name in dataset and np.isfinite(dataset[name]).any()]
    if not names:
        return nothing(title, UNATTENDED)
    room = MOST_ROWS // (len(names) * dataset.sizes["stage"] * (dataset.sizes["head"] + 1))
    dataset, thinned = few_layers(dataset, max(1, min(2 * MOST_LAYERS, room)))
    chart = alt.hconcat(*(_proximity(dataset, name) for name in names), spacing=30).resolve_scale(color="shared")
    even = any(EVEN.get(name) in dataset for name in names)
    ruled = "Black line: attention that is even over the visible keys. " if even else ""
    caption = f"A dot is a head, a row a layer and stage. To the left: nearer. {ruled}{thinned}"
    return Figure(title, chart, caption)


def offsets(dataset: xr.Dataset, head: int = 0) -> Figure:
    """Where in an image one head looks: its mass by rows and columns away, a panel a layer and stage.

    Args:
        dataset: of `attention.attention_summary` with a width, or a trajectory of it: offset_mass.
        head: which.
    """
    dataset, thinned = few_layers(staged(dataset))
    here = dataset.offset_mass.sel(head=head).transpose("stage", "layer", "row", "column")
    shape = here.shape[2:]
    side = blocks(shape, MOST_ROWS // (here.shape[0] * here.shape[1]))
    rows = _panels(here, side)
    title = f"Where in the image head {head} looks"
    if rows.empty:
        return nothing(title, UNATTENDED)
    x = alt.X("column:Q", title="columns away", scale=alt.Scale(domain=[0, shape[1]], nice=False))
    y = alt.Y("row:Q", title="rows away", scale=alt.Scale(domain=[shape[0], 0], nice=False))
    told = tips("row:Q", "column:Q", "value:Q", row="rows away", column="columns away", value="share of attention")
    chart = _heat(rows, x, y, "share of attention", told)
    chart = chart.properties(width=MAP, height=max(24, min(2 * MAP, MAP * shape[0] // shape[1])))
    reduced = f"Reduced: a cell is the mean of {side} x {side} offsets. " if side > 1 else ""
    caption = (
        "The mean share of a query's attention on keys so many rows and columns away, either way; the query itself is "
        f"in the corner at 0, 0. Darker is more, on a square-root scale. {reduced}{thinned}"
    )
    return Figure(title, _by_layer_and_stage(chart, dataset), caption)


def _panels(here: xr.DataArray, side: int) -> pd.DataFrame:
    """The cells of (stage, layer, row, column)."""
    parts = [
        cells_of(block_means(image, side), side, image.shape).assign(stage=str(stage), layer=int(layer))
        for stage, images in zip(here.stage.values, here.values, strict=True)
        for layer, image in zip(here.layer.values, images, strict=True)
    ]
    return pd.concat(parts)


def _heat(rows: pd.DataFrame, x: alt.X, y: alt.Y, what: str, told: list[alt.Tooltip]) -> alt.Chart:
    top = float(rows["value"].max()) or 1.0
    scale = alt.Scale(type="sqrt", domain=[0, top], **SEQUENTIAL)
    legend = alt.Legend(gradientLength=200, format=".2~g", values=[0, top / 4, top])
    colour = alt.Color("value:Q", scale=scale, title=what, legend=legend)
    cells = alt.Chart(rows).mark_rect(**OVERLAP)
    return cells.encode(x=x, x2="column_stop:Q", y=y, y2="row_stop:Q", color=colour, tooltip=told)


def _by_layer_and_stage(chart: alt.Chart, dataset: xr.Dataset) -> alt.FacetChart:
    if dataset.sizes["stage"] == 1:
        return by_layer(chart)
    return chart.facet(
        row=alt.Row("layer:O", title=None, header=LAYER_HEADER),
        column=alt.Column("stage:N", title=None, sort=stages_shown(dataset)),
    )


def _bin_names(reach: np.ndarray) -> list[str]:
    """0, 1, 2-3, 4-7, ..; the last is open."""
    ends = [f"{low}" if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(reach)]
    return [*ends, f"{reach[-1]}+" if reach[-1] > 1 else f"{reach[-1]}"]


def _even_bins(dataset: xr.Dataset, names: list[str]) -> pd.DataFrame:
    """A row a layer: the bin in which even attention's mean distance lies."""
    if "uniform_distance" not in dataset:
        return pd.DataFrame()
    first = dataset.uniform_distance.isel(stage=0)  # it depends on the inputs alone
    known = first[np.isfinite(first)]
    place = np.searchsorted(dataset.reach.values, known.values, side="right") - 1
    return pd.DataFrame(
        {
            "layer": known.layer.values,
            "distance": np.array(names)[place],
            "uniform_distance": known.values,
            "even": True,
        }
    )


def _proximity(dataset: xr.Dataset, name: str) -> alt.LayerChart:
    rows = dataset[name].to_dataframe().reset_index()[["stage", "layer", "head", name]].dropna()
    stages = stages_shown(dataset)
    x = _proximity_axis(dataset, name)
    y = alt.Y("layer:O", title="layer", axis=alt.Axis(grid=True, labelAngle=0))
    offset = alt.YOffset("stage:N", sort=stages, scale=alt.Scale(domain=stages))
    told = tips("stage:N", "layer:O", "head:O", f"{name}:Q")
    dots = (
        alt.Chart(rows)
        .mark_point(filled=True, size=42, opacity=0.75)
        .encode(x=x, y=y, yOffset=offset, color=stage_colour(stages), tooltip=told)
    )
    chart = dots
    if EVEN.get(name) in dataset:
        even = dataset[EVEN[name]].to_dataframe().reset_index()[["stage", "layer", EVEN[name]]].dropna()
        ticks = alt.Chart(even).mark_tick(color=BLACK, thickness=1.5, orient="vertical", bandSize=HEIGHT_A_STAGE)
        told = tips("layer:O", f"{EVEN[name]}:Q")
        chart = alt.layer(ticks.encode(x=f"{EVEN[name]}:Q", y=y, yOffset=offset, tooltip=told), dots)
    height = alt.Step(HEIGHT_A_STAGE * len(stages) + 8, **{"for": "position"})
    return chart.properties(width=PANEL_WIDTH, height=height)


def _proximity_axis(dataset: xr.Dataset, name: str) -> alt.X:
    top = float(np.nanmax([dataset[kind].max() for kind in (name, EVEN.get(name)) if kind in dataset]))
    if "distance" not in name:
        return alt.X(f"{name}:Q", title=axis_title(name), axis=alt.Axis(format="~g", tickCount=5))
    ticks = [tick for power in range(7) for tick in (10**power, 3 * 10**power) if tick <= top]
    scale = alt.Scale(type="symlog", constant=1, domain=[0, top * 1.15 or 1], nice=False)
    return alt.X(f"{name}:Q", title=axis_title(name), scale=scale, axis=alt.Axis(values=[0, *ticks], format="~g"))
