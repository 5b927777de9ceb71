"""What a pretrained model answers: images as images, series as lines, tokens as text."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts.page import Passage, Word
from ssm_priors.analyses.charts.theme import BLACK, BLUE, GREY, MOST_ROWS, VERMILION, Figure, tips
from ssm_priors.analyses.charts.thin import evenly

SHOWN = 4
"""Documents that are drawn, evenly spaced among those looked at."""
SIDES = 92, 192
"""Least and most pixels of the width of an image as drawn; three of the least stand beside each other on a phone."""
BLANK = (230, 159, 0)
"""Colour of a pixel that is not shown: one that no grey image has."""
STEPS = 300
"""Steps of a series that are drawn."""
WORDS, CHARACTERS = 160, 480
"""Of a text that are shown."""
ALPHABET = 64
"""Ids that stand for one character each: so many make a text whose words are not to be spaced."""
LEGEND = "Blue: the right answer; vermilion, underlined: a wrong one; yellow: what the model did not see. "
SERIES = {"input": GREY, "given": BLACK, "answered": BLUE}


# -- images


def images(dataset: xr.Dataset) -> Figure:
    """Input, what the model was given, and what it answered, an image each.

    Args:
        dataset: of `pretraining.reconstructions`, of numbers, with a width.
    """
    dataset = _some(dataset)
    width = int(dataset.attrs["width"])
    scale = _range(dataset.value.values)
    rows = []
    for example in dataset.example.values:
        here = dataset.sel(example=example)
        for kind, values in _planes(here).items():
            url = _url(_pixels(values, width, scale))
            rows.append({"example": int(example), "kind": kind, "url": url})
    kinds = list(dict.fromkeys(str(row["kind"]) for row in rows))
    side = min(max(width, SIDES[0]), SIDES[1])
    height = side * -(-dataset.sizes["step"] // width) // width
    x = alt.X("kind:N", sort=kinds, title=None, axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False))
    y = alt.Y("example:O", title="example", axis=alt.Axis(ticks=False, domain=False))
    marks = alt.Chart(pd.DataFrame(rows)).mark_image(width=side, height=height, aspect=False)
    chart = marks.encode(x=x, y=y, url="url:N", tooltip=tips("example:O", "kind:N"))
    chart = chart.properties(width=alt.Step(side + 12), height=alt.Step(height + 12))
    filled = "what it was given and, where it was asked, its answer" if "value_answered" in dataset else ""
    caption = ("Orange: what the model did not see. " + (f"Last column: {filled}. " if filled else "")).strip()
    return Figure("What the model was given and what it answered", chart, caption)


def _planes(here: xr.Dataset) -> dict[str, np.ndarray]:
    """(steps, features) of every column of pictures; NaN where nothing is shown."""
    planes = {"input": here.value.values, "given": here.value_given.values}
    if "value_answered" in here:
        planes["answered"] = np.where((here.is_asked == 1).values[:, None], here.value_answered.values, planes["given"])
    return planes


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, high if high > low else low + 1


def _pixels(values: np.ndarray, width: int, scale: tuple[float, float]) -> np.ndarray:
    """(steps, features) -> (rows, columns, 3) bytes, every pixel a square: red, green and blue, or grey."""
    values = np.pad(values, [(0, -len(values) % width), (0, 0)], constant_values=np.nan)
    colours = values if values.shape[1] == 3 else values[:, :1].repeat(3, axis=1)
    shade = np.clip((colours - scale[0]) / (scale[1] - scale[0]), 0, 1)
    known = ~np.isnan(colours).any(1, keepdims=True)
    image = np.where(known, np.nan_to_num(shade) * 255, BLANK).round().astype(np.uint8).reshape(-1, width, 3)
    enlarged = max(1, round(2 * SIDES[1] / width))  # by whole numbers, so that no browser blurs a pixel
    return image.repeat(enlarged, axis=0).repeat(enlarged, axis=1)


def _url(image: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def png(image: np.ndarray) -> bytes:
    """(rows, columns, 3) bytes as a PNG file.  Source: PNG specification, third edition, W3C 2025."""
    rows, columns, _ = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# -- series


def series(dataset: xr.Dataset) -> Figure:
    """Input, what the model was given, and what it answered, as lines, a panel a document.

    Args:
        dataset: of `pretraining.reconstructions`, of numbers.
    """
    dataset = _some(dataset)
    steps = min(STEPS, MOST_ROWS // (len(SERIES) * dataset.sizes["example"]), dataset.sizes["step"])
    parts = {"input": "value", "given": "value_given", "answered": "value_answered"}
    rows = pd.concat(
        dataset[name].isel(feature=0, step=slice(steps)).to_dataframe("value").reset_index().assign(kind=kind)
        for kind, name in parts.items()
        if name in dataset
    )
    kinds = [kind for kind, name in parts.items() if name in dataset]
    scale = alt.Scale(domain=kinds, range=[SERIES[kind] for kind in kinds])
    base = alt.Chart().encode(
        x=alt.X("step:Q", title="step"),
        y=alt.Y("value:Q", title="value", scale=alt.Scale(zero=False)),
        color=alt.Color("kind:N", title=None, scale=scale),
        tooltip=tips("kind:N", "step:Q", "value:Q"),
    )
    marks = [
        base.transform_filter(alt.datum.kind == "input").mark_line(strokeWidth=3.5, opacity=0.5),
        base.transform_filter(alt.datum.kind == "given").mark_line(strokeWidth=1.2, point={"size": 8}),
        base.transform_filter(alt.datum.kind == "answered").mark_point(size=16, filled=True),
    ]
    layers = alt.layer(*marks[: len(kinds)], data=rows[["example", "step", "kind", "value"]])
    chart = layers.properties(width=700, height=130).facet(row=alt.Row("example:O", title=None, header=_EXAMPLE))
    chart = chart.resolve_scale(y="independent")
    part = f"Drawn: the first {steps:,} of {dataset.sizes['step']:,} steps. " if steps < dataset.sizes["step"] else ""
    first = f"Feature 0 of {dataset.sizes['feature']}. " if dataset.sizes["feature"] > 1 else ""
    answered = "Blue points: its answers, where it was asked. " if "value_answered" in dataset else ""
    caption = f"Grey: the input. Black: what the model was given; a gap is hidden. {answered}{first}{part}"
    return Figure("What the model was given and what it answered", chart, caption)


_EXAMPLE = alt.Header(labelExpr="'example ' + datum.value", labelOrient="top", labelAnchor="start")


def agreement(dataset: xr.Dataset) -> Figure:
    """How well answers that are no inputs agree with what was asked, step by step, a panel a document.

    Args:
        dataset: of `pretraining.reconstructions`, with cosine or is_right.
    """
    dataset = _some(dataset)
    name = "cosine" if "cosine" in dataset else "is_right"
    steps = min(MOST_ROWS // dataset.sizes["example"], dataset.sizes["step"])
    rows = dataset[name].isel(step=slice(steps)).to_dataframe().reset_index().dropna()
    x = alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, steps]))
    y = alt.Y(f"{name}:Q", title="cosine", scale=alt.Scale(domain=[-1, 1]), axis=alt.Axis(values=[-1, 0, 1]))
    if name == "is_right":
        text = alt.Axis(values=[0, 1], labelExpr="datum.value ? 'right' : 'wrong'")
        y = alt.Y(f"{name}:Q", title=None, scale=alt.Scale(domain=[-0.2, 1.2], nice=False), axis=text)
    colour = alt.condition(f"datum.{name} > 0.5", alt.value(BLUE), alt.value(VERMILION))
    marks = alt.Chart(rows[["example", "step", name]]).mark_point(size=22, filled=True)
    chart = marks.encode(x=x, y=y, color=colour, tooltip=tips("example:O", "step:Q", f"{name}:Q"))
    chart = chart.properties(width=700, height=80).facet(row=alt.Row("example:O", title=None, header=_EXAMPLE))
    said = {
        "cosine": "The cosine of the angle between the answer and the representation that was asked for",
        "is_right": "Whether the answer picks the right hidden frame among those of the same example, at its last step",
    }
    part = f" Drawn: the first {steps:,} of {dataset.sizes['step']:,} steps." if steps < dataset.sizes["step"] else ""
    return Figure("Where the answers are right", chart, f"{said[name]}.{part}")


# -- tokens


def passages(dataset: xr.Dataset, words: Sequence[str]) -> list[Passage]:
    """Input, what the model was given, and what it answered, as text, a passage a document.

    Args:
        dataset: of `pretraining.reconstructions`, of tokens.
        words: what each id stands for.
    """
    dataset = _some(dataset)
    made = [_passage(dataset.sel(example=example), words) for example in dataset.example.values]
    return [replace(made[0], caption=LEGEND + made[0].caption), *made[1:]]


def _passage(here: xr.Dataset, words: Sequence[str]) -> Passage:
    is_spelled = sum(len(word) == 1 for word in words) < ALPHABET
    room = WORDS if is_spelled else CHARACTERS
    token, given, stand_in = here.token.values, here.token_given.values, here.stand_in.values
    valid = stand_in >= 0
    shown = [_given(words, *pair) for pair in zip(given[valid], stand_in[valid], strict=True)]
    lines = [
        ("input", [Word(_plain(words, each)) for each in token[token >= 0]]),
        ("given", shown),
    ]
    if "token_asked" in here:
        asked, said = here.token_asked.values[valid], here.token_answered.values[valid]
        first = int(np.argmax(asked >= 0)) if (asked >= 0).any() else 0
        start = first if first >= room else 0
        faint = [Word(word.text, "faint") for word in shown]
        place = f", from place {start:,} on" if start else ""
        if not np.array_equal(asked[asked >= 0], token[: len(asked)][(asked >= 0)[: len(token)]]):
            line = [Word(_visible(words, want)) if want >= 0 else old for want, old in zip(asked, faint, strict=True)]
            lines.append((f"asked{place}", line[start:]))
        line = [_answer(words, *pair) if pair[0] >= 0 else old for *pair, old in zip(asked, said, faint, strict=True)]
        lines.append((f"answered{place}", line[start:]))
    longest = max(len(line) for _, line in lines)
    cut = f"Shown: {room:,} places of a line." if longest > room else ""
    lines = [(name, line[:room]) for name, line in lines]
    return Passage(f"Example {int(here.example)}", lines, " " if is_spelled else "", cut)


def _given(words: Sequence[str], token: int, stand_in: int) -> Word:
    if not stand_in:
        return Word(_plain(words, token))
    return Word("▢" if stand_in == 1 else f"▢{stand_in}", "hidden", f"stand-in {stand_in}")


def _answer(words: Sequence[str], asked: int, said: int) -> Word:
    is_right = asked == said
    hint = "right" if is_right else f"asked: {_visible(words, asked)}"
    return Word(_visible(words, said), "right" if is_right else "wrong", hint)


def _plain(words: Sequence[str], token: int) -> str:
    """The word of an id as it stands in a text."""
    return words[token] if words[token] in " \n" and words[token] else _visible(words, token)


def _visible(words: Sequence[str], token: int) -> str:
    """The word of an id; what cannot be seen has a sign."""
    word = words[token]
    return {"": "∅", " ": "␣", "\n": "↵", "\t": "⇥"}.get(word) or (word if word.isprintable() else repr(word)[1:-1])


def _some(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.isel(example=evenly(dataset.sizes["example"], SHOWN))
