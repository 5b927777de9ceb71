"""How far a model is from each prior: its layers' numbers as dots, before and after training, beside the null."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.theme import (
    LAYER_HEADER,
    MOST_LAYERS,
    MOST_ROWS,
    Figure,
    axis_title,
    by_stage,
    few_layers,
    left_out,
    lines,
    log_axis,
    nothing,
    stage_colour,
    staged,
    stages_shown,
    tips,
)
from ssm_priors.analyses.schema import NULL

ROW_HEIGHT = 19
"""Pixels a prior."""
WIDTH = 184
"""Pixels of one quantity's axis."""
ANGLES_WIDTH, ANGLES_HEIGHT = 104, 84
MEANINGS = {
    "decay_distance": "decay and frequency distance: how far the weight |C B| would have to move, 0 is the prior",
    "captured": "captured: share of the kernels' energy in the prior's span, 100% is all",
    "best_timescale": "best timescale: the multiplier of the layer's dt that comes nearest; dt where it has none",
}
"""What is said of each quantity that is there; the first speaks for the frequencies too."""
QUANTITIES = ("decay_distance", "frequency_distance", "captured", "best_timescale")
NO_DISTANCES = "None of the distances is defined for this model, so none is drawn."


def dots(dataset: xr.Dataset) -> Figure:
    """A row a prior, a panel a layer and quantity, a dot a stage.

    Args:
        dataset: of `distances.distances` or `distances.distances_of_stages`, or a trajectory of the first; what it
            lacks is left out.
    """
    title = "How far the layers are from each prior"
    dataset = staged(dataset)
    names = [name for name in QUANTITIES if name in dataset and np.isfinite(dataset[name]).any()]
    if not names:
        return nothing(title, NO_DISTANCES)
    room = MOST_ROWS // (len(names) * dataset.sizes["stage"] * dataset.sizes["prior"])
    dataset, thinned = few_layers(dataset, max(1, min(MOST_LAYERS, room)))
    panels = [_dots(dataset, name, first=position == 0) for position, name in enumerate(names)]
    chart = alt.hconcat(*panels, spacing=22).resolve_scale(color="shared")
    undefined = sum(int((~np.isfinite(dataset[name])).sum()) for name in names)
    broken = f"Left out: {undefined:,} values that are not defined. " if undefined else ""
    meanings = "; ".join(meaning for name, meaning in MEANINGS.items() if name in names)
    null = " Hollow: the null, modes drawn at random." if NULL in dataset.stage.values else ""
    caption = f"{meanings[:1].upper()}{meanings[1:]}.{null} {broken}{thinned}"
    return Figure(title, chart, caption)


def angles(dataset: xr.Dataset) -> Figure:
    """Principal angles between a layer's kernels and what each prior makes of them, a panel a layer and prior.

    Args:
        dataset: of `distances.distances` or `distances.distances_of_stages`, or a trajectory of the first, with
            principal_angle.
    """
    title = "Principal angles to each prior"
    dataset = staged(dataset)
    room = MOST_ROWS // (dataset.sizes["stage"] * dataset.sizes["prior"] * dataset.sizes["angle"])
    dataset, thinned = few_layers(dataset, max(1, min(MOST_LAYERS, room)))
    rows = dataset.principal_angle.to_dataframe().reset_index()
    rows = rows[np.isfinite(rows["principal_angle"])]
    if rows.empty:
        return nothing(title, "No principal angle is defined for this model, so none is drawn.")
    words = "datum.value == 0 ? '0' : datum.value < 1 ? 'π/4' : 'π/2'"
    ticks = [0, np.pi / 4, np.pi / 2]
    y = alt.Y(
        "principal_angle:Q",
        title="angle (radians)",
        scale=alt.Scale(domain=[0, np.pi / 2], nice=False, padding=3),
        axis=alt.Axis(values=ticks, labelExpr=words),
    )
    stages = stages_shown(dataset)
    base = alt.Chart().encode(
        x=alt.X("rank:Q", title="direction", axis=alt.Axis(tickMinStep=1, tickCount=4, format="d")),
        color=stage_colour(stages),
        tooltip=tips("prior:N", "stage:N", "rank:Q", "principal_angle:Q", rank="direction"),
    )
    drawn = lines(base, stages, y, point=alt.OverlayMarkDef(size=14, filled=True))
    chart = alt.layer(*drawn, data=rows.assign(rank=rows["angle"] + 1)).properties(
        width=ANGLES_WIDTH, height=ANGLES_HEIGHT
    )
    chart = chart.facet(
        row=alt.Row("layer:O", title=None, header=LAYER_HEADER),
        column=alt.Column("prior:N", title=None, sort=list(map(str, dataset.prior.values))),
        spacing=10,
    )
    caption = (
        "Of the leading directions of a layer's kernels, the smallest angle first: at 0 the prior's span holds a "
        f"direction, at pi/2 it holds nothing of it. {left_out(dataset.principal_angle.isnull(), 'angles')}{thinned}"
    )
    return Figure(title, chart, caption)


def _dots(dataset: xr.Dataset, name: str, *, first: bool) -> alt.FacetChart:
    """One quantity of all layers; names of priors and layers stand at the first."""
    rows = dataset[name].to_dataframe().reset_index()[["stage", "layer", "prior", name]]
    rows = rows[np.isfinite(rows[name])]
    y = alt.Y(
        "prior:N",
        title=None,
        sort=list(map(str, dataset.prior.values)),
        scale=alt.Scale(domain=list(map(str, dataset.prior.values))),
        axis=alt.Axis(grid=True, labels=first, ticks=first, labelLimit=150),
    )
    stages = stages_shown(dataset)
    base = alt.Chart().encode(
        x=_axis(rows, name),
        y=y,
        color=stage_colour(stages),
        tooltip=tips("prior:N", "layer:O", "stage:N", f"{name}:Q"),
    )
    marks = [
        part.mark_point(filled=stage != NULL, size=30 + 8 * look.width**2, strokeWidth=1.6, opacity=1, shape="circle")
        for stage, (look, part) in zip(stages, by_stage(base, stages), strict=True)
    ]
    panel = alt.layer(*marks, data=rows).properties(width=WIDTH, height=alt.Step(ROW_HEIGHT))
    header = LAYER_HEADER if first else alt.Header(labels=False)
    return panel.facet(row=alt.Row("layer:O", title=None, header=header), spacing=8)


def _axis(rows: pd.DataFrame, name: str) -> alt.X:
    title = axis_title(name)
    if name == "captured":
        scale = alt.Scale(domain=[-0.03, 1.03], nice=False)
        return alt.X(f"{name}:Q", title=title, scale=scale, axis=alt.Axis(format="%", values=[0, 0.5, 1]))
    if name == "best_timescale":
        low, high = float(rows[name].min()), float(rows[name].max())
        scale = alt.Scale(type="log", nice=False, padding=8)
        return alt.X(f"{name}:Q", title=f"{title} (times dt)", scale=scale, axis=log_axis(low, high))
    return alt.X(
        f"{name}:Q", title=title, scale=alt.Scale(zero=True, nice=False, padding=9), axis=alt.Axis(tickCount=4)
    )
