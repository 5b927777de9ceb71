"""How every chart looks: one configuration, and one colour for one thing everywhere.

Colours can be told apart with any colour vision and in grey print.  Source: Okabe and Ito 2008, "Color Universal
Design", jfly.uni-koeln.de/color, with a wine red of Paul Tol's in the place of their yellow, which is lost on white.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.thin import evenly
from ssm_priors.analyses.schema import DIMS, NULL, VARIABLES, index, label
from ssm_priors.checkpoints.container import plain
from ssm_priors.registry import MIXERS

MOST_ROWS = 5000
"""What one chart may embed: more freezes browsers, and Altair refuses it."""

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, WINE, BLACK, GREY = "#56B4E9", "#CC79A7", "#882255", "#222222", "#8C8C8C"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, WINE)
DIVERGING = alt.Scale(domain=[-1, 0, 1], range=[BLUE, "#ffffff", VERMILION], interpolate="lab")
"""Of what is signed and has been divided by its largest magnitude: 0 is white."""
SEQUENTIAL: dict[str, Any] = {"range": ["#ffffff", SKY, BLUE, "#00213a"], "interpolate": "lab"}
"""Scale of shares: 0 is white; darker is more, in grey print too."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a stage is drawn: wide below, thin above, so that lines which coincide are all seen."""

    colour: str
    width: float
    """Of lines, in pixels."""
    dash: tuple[int, int]


STAGE_LOOKS = {
    "init": Look(GREY, 3.5, (1, 0)),
    "pretrained": Look(SKY, 2.4, (1, 0)),
    "learned": Look(BLUE, 1.4, (1, 0)),
    NULL: Look("#b5b5b5", 1.4, (4, 3)),
}

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
_TEXT = {
    "labelFontSize": 12,
    "titleFontSize": 13,
    "titleFontWeight": "normal",
    "labelColor": "#333",
    "titleColor": "#222",
}
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": "#bbb"},
    "axis": {
        **_TEXT,
        "gridColor": "#e6e6e6",
        "domainColor": "#888",
        "tickColor": "#888",
        "labelOverlap": True,
        "labelSeparation": 6,
    },
    "legend": {**_TEXT, "orient": "top", "symbolOpacity": 1, "symbolStrokeWidth": 3},
    "header": {**_TEXT, "labelFontWeight": "bold"},
    "range": {"category": list(PALETTE)},
    "facet": {"spacing": 16},
}
PANEL_WIDTH = 245
"""Pixels; three panels fill a page."""
MOST_LAYERS = 12
"""Panels of one chart that a reader compares."""
LAYER_HEADER = alt.Header(labelExpr="'layer ' + datum.value")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and what has to be said about it."""

    title: str
    chart: alt.TopLevelMixin
    caption: str
    """How to read it, in what units, and what was thinned."""


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """A chart as a Vega-Lite specification with this look; NaN and infinities have become null."""
    drawn: dict[str, Any] = plain(chart.to_dict())
    return {**drawn, "config": {**drawn.get("config", {}), **CONFIG}}


def model_colour(model: str) -> str:
    """The colour of a model, the same in every chart: its place in the alphabet of all models decides."""
    return PALETTE[list(MIXERS).index(model) % len(PALETTE)] if model in MIXERS else GREY


def staged(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with a `stage`: what was made of one model alone is shown as learned."""
    return dataset if "stage" in dataset.dims else dataset.expand_dims(index("stage", ["learned"]))


def stages_shown(dataset: xr.Dataset) -> list[str]:
    """The stages of a dataset in the order in which they are drawn, the earlier below the later."""
    return [stage for stage in STAGE_LOOKS if stage in dataset.stage.values]


def last_stage(dataset: xr.Dataset) -> str:
    """The stage that training led to: what is shown where there is room for one."""
    return [stage for stage in stages_shown(dataset) if stage != NULL][-1]


def stage_colour(stages: Sequence[str], **options: Any) -> alt.Color:
    """Init in grey, learned in blue, with a legend of the stages that are there.

    Args:
        stages: names of stages, in any order.
        options: of `alt.Color`.
    """
    shown = [stage for stage in STAGE_LOOKS if stage in stages]
    scale = alt.Scale(domain=shown, range=[STAGE_LOOKS[stage].colour for stage in shown])
    legend = alt.Legend(labelExpr=f"datum.label == '{NULL}' ? 'null ({NULL})' : datum.label")
    return alt.Color("stage:N", **{"scale": scale, "title": None, "legend": legend, **options})


def by_stage(base: alt.Chart, stages: Sequence[str]) -> Iterator[tuple[Look, alt.Chart]]:
    """The chart of each stage's rows alone, the lowest first, with how it is drawn."""
    for stage, look in STAGE_LOOKS.items():
        if stage in stages:
            yield look, base.transform_filter(alt.datum.stage == stage)


def lines(base: alt.Chart, stages: Sequence[str], y: str | alt.Y, **marks: Any) -> list[alt.Chart]:
    """A line a stage; `marks` go to `mark_line`."""
    return [
        part.mark_line(strokeWidth=look.width, strokeDash=list(look.dash), **marks).encode(y=y)
        for look, part in by_stage(base, stages)
    ]


def spread(base: alt.Chart, stages: Sequence[str], y: Callable[[str], alt.Y]) -> list[alt.Chart]:
    """From `low` to `high`: a band of the first stage and thin lines of the last, where all would hide each other.

    Args:
        base: a chart of all stages.
        stages: those that are there.
        y: the channel of a field.
    """
    (_, first), *later = by_stage(base, stages)
    edges = [part.mark_line(strokeWidth=0.8).encode(y=y(edge)) for _, part in later[-1:] for edge in ("low", "high")]
    return [first.mark_area(opacity=0.3).encode(y=y("low"), y2="high:Q"), *edges]


def spread_in_words(stages: Sequence[str]) -> str:
    """What `spread` draws, for the caption."""
    return f"band: {stages[0]}" + (f"; between thin lines: {stages[-1]}" if len(stages) > 1 else "")


def tips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    """What is told of a mark under the pointer.

    Args:
        fields: with their types: `lag:Q`, `stage:N`.
        titles: what fields are called that the schema does not know, or that mean something else here.
    """
    return [_tip(field, titles) for field in fields]


def _tip(field: str, titles: dict[str, str]) -> alt.Tooltip:
    name, _, kind = field.partition(":")
    known = name in DIMS or name in VARIABLES
    title = titles.get(name) or (axis_title(name) if known else name.replace("_", " "))
    return alt.Tooltip(field, title=title, format=".6~g" if kind == "Q" else alt.Undefined)


def few_layers(dataset: xr.Dataset, most: int = MOST_LAYERS) -> tuple[xr.Dataset, str]:
    """At most so many layers, evenly chosen, the first and the last among them; and what the caption says of it."""
    chosen = evenly(dataset.sizes["layer"], most)
    if len(chosen) == dataset.sizes["layer"]:
        return dataset, ""
    return dataset.isel(layer=chosen), f"Thinned: {len(chosen)} of {dataset.sizes['layer']} layers are drawn. "


def nothing(title: str, why: str) -> Figure:
    """What stands in the place of a chart that has nothing to draw: a sentence.

    Args:
        title: of the chart.
        why: a whole sentence.
    """
    text = alt.Chart(pd.DataFrame({"text": ["nothing to draw"]})).mark_text(fontSize=13, color=GREY)
    chart = text.encode(text="text:N", tooltip="text:N").properties(width=PANEL_WIDTH, height=30)
    return Figure(title, chart, why)


def left_out(broken: xr.DataArray, what: str) -> str:
    """A sentence for the caption on what is not drawn because it has no finite value; empty if that is nothing.

    Args:
        broken: True for each thing that is left out.
        what: those things, in the plural.
    """
    count = int(broken.sum())
    return f"Left out: {count:,} {what} with values that are not finite. " if count else ""


def by_layer(chart: Any) -> alt.FacetChart:
    """A layered chart as small multiples, a panel a layer, three in a row."""
    return chart.facet(facet=alt.Facet("layer:O", title=None, header=LAYER_HEADER), columns=3)


def log_axis(low: float, high: float, **options: Any) -> alt.Axis:
    """An axis for a logarithmic scale: ticks at powers of ten, and at three times those where there are few.

    Args:
        low, high: ends of the data, positive.
        options: of `alt.Axis`.
    """
    if not 0 < low <= high < math.inf:
        return alt.Axis(**options)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**k for k in decades for step in ((1, 3) if len(decades) < 5 else (1,))]
    return alt.Axis(values=[tick for tick in ticks if low <= tick <= high] or [low, high], format="~g", **options)


def axis_title(name: str) -> str:
    """A variable's name and unit, as an axis is titled: 'decay rate (1/step)'."""
    words, _, unit = label(name).partition(", ")
    return f"{words} ({unit})" if unit else words
