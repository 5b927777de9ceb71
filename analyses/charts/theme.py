"""How every chart looks: one configuration, and one colour for one thing everywhere.

Colours can be told apart with any colour vision and in grey print.  Source: Okabe and Ito 2008, "Color Universal
Design", jfly.uni-koeln.de/color.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import xarray as xr

from ssm_priors.analyses.schema import STAGES, label
from ssm_priors.checkpoints.container import plain
from ssm_priors.registry import MIXERS

MOST_ROWS = 5000
"""What one chart may embed: more freezes browsers, and Altair refuses it."""

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, YELLOW, BLACK, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#222222", "#8C8C8C"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW)
STAGE_COLOURS = dict(zip(STAGES, (GREY, BLUE), strict=True))

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
INIT_WIDTH, LEARNED_WIDTH = 3.5, 1.5
"""Widths of lines, in pixels."""
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


def stage_colour(stages: Sequence[str]) -> alt.Color:
    """Init in grey, learned in blue, with a legend of the stages that are there."""
    shown = [stage for stage in STAGES if stage in stages]
    scale = alt.Scale(domain=shown, range=[STAGE_COLOURS[stage] for stage in shown])
    return alt.Color("stage:N", scale=scale, title=None)


def before_and_after(base: alt.Chart) -> tuple[alt.Chart, alt.Chart]:
    """The marks of the init and of what was learned apart, so that grey lies wide below and blue thin above."""
    before, after = (base.transform_filter(alt.datum.stage == stage) for stage in STAGES)
    return before, after


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
