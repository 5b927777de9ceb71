"""How alike layers are: a matrix of CKA, with its numbers where there is room."""

from __future__ import annotations

import altair as alt
import xarray as xr

from ssm_priors.analyses.charts.theme import GREY, SEQUENTIAL, Figure, nothing, tips
from ssm_priors.analyses.charts.thin import evenly

MOST_NUMBERS = 12
"""Layers of either model up to which a cell holds its number."""
MOST_SIDE = 64
STEP, SMALL_STEP = 36, 8
"""Pixels of a cell, with its number and without."""


def matrix(dataset: xr.Dataset) -> Figure:
    """Every layer of one model against every layer of the other.

    Args:
        dataset: of `representation.cka`.
    """
    title = "How alike the layers are"
    kept = {dim: evenly(dataset.sizes[dim], MOST_SIDE) for dim in ("layer", "other")}
    rows = dataset.isel(kept).cka.to_dataframe().reset_index()
    undefined = int(rows["cka"].isna().sum())
    rows = rows.dropna()
    if rows.empty:
        return nothing(
            title, "CKA is not defined for these layers (they say the same at every point), so none is drawn."
        )
    few = max(map(len, kept.values())) <= MOST_NUMBERS
    layers, others = ([int(number) for number in dataset[dim].values[kept[dim]]] for dim in ("layer", "other"))
    upright = alt.Axis(labelAngle=0)
    scale = alt.Scale(domain=[0, 1], clamp=True, **SEQUENTIAL)
    base = alt.Chart(rows).encode(
        x=alt.X("other:O", title=_named(dataset, "other_"), axis=upright, sort=others),
        y=alt.Y("layer:O", title=_named(dataset, ""), axis=upright, sort=layers[::-1]),
        tooltip=tips("layer:O", "other:O", "cka:Q", cka="CKA"),
    )
    colour = alt.Color("cka:Q", scale=scale, title="linear CKA", legend=alt.Legend(gradientLength=160, tickCount=3))
    cells = base.mark_rect(stroke=GREY, strokeWidth=0.3).encode(color=colour)
    ink = alt.when(alt.datum.cka > 0.5).then(alt.value("white")).otherwise(alt.value("#222222"))
    numbers = base.mark_text(fontSize=12).encode(text=alt.Text("cka:Q", format=".2f"), color=ink)
    step = STEP if few else SMALL_STEP
    chart = alt.layer(*([cells, numbers] if few else [cells])).properties(width=alt.Step(step), height=alt.Step(step))
    about = dataset.attrs
    asked = f"{about['estimator']} estimator, {about['points']:,} points, a point is a {about['point']}"
    thinned = any(len(kept[dim]) < dataset.sizes[dim] for dim in kept)
    caption = (
        f"Linear CKA of what the layers leave ({asked}): 1 is alike up to rotation and scale, 0 is nothing in common. "
        + (f"Left out: {undefined:,} pairs where it is not defined. " if undefined else "")
        + (f"Thinned: {' x '.join(str(len(part)) for part in kept.values())} layers are drawn. " if thinned else "")
    )
    return Figure(title, chart, caption)


def _named(dataset: xr.Dataset, prefix: str) -> str:
    """What a side of the matrix shows: 'layer of s4d (learned)'."""
    about = dataset.attrs
    stage = about.get(f"{prefix}stage")
    return f"layer of {about.get(f'{prefix}model', 'the model')}" + (f" ({stage})" if stage else "")
