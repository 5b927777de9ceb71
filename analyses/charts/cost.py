"""Time and memory of a layer against the length of its sequence, a line a variant."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ssm_priors.analyses.charts.theme import BLUE, GREEN, ORANGE, VERMILION, Figure

COLOURS = {"naive": VERMILION, "torch": ORANGE, "fused": BLUE, "attention": GREEN}
PANELS = {"ms": "time (ms)", "MB": "peak memory over the input (MB)"}


def cost(rows: pd.DataFrame, caption: str) -> Figure:
    """A panel for time and one for memory, both axes logarithmic.

    Args:
        rows: a row a variant and length: columns variant, length, ms, MB; NaN where something is not known.
        caption: what was measured, where and how.
    """
    shown = [name for name in COLOURS if name in set(rows["variant"])]
    scale = alt.Scale(domain=shown, range=[COLOURS[name] for name in shown])
    colour = alt.Color("variant:N", scale=scale, title=None, legend=alt.Legend(symbolType="stroke"))
    lengths = sorted(set(rows["length"]))
    x = alt.X("length:Q", title="length (steps)", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=lengths))
    panels = [
        alt.Chart(rows[rows[column].notna()])
        .mark_line(point=True, strokeWidth=1.8)
        .encode(x=x, y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(type="log")), color=colour)
        .properties(width=340, height=260)
        for column, title in PANELS.items()
        if rows[column].notna().any()
    ]
    return Figure("Cost against length", alt.hconcat(*panels, spacing=46), caption)
