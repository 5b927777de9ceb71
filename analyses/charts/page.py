"""One HTML file that needs no network: text, tables and charts, with the drawing library inside, once."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Literal, NamedTuple

import altair as alt
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from platformdirs import user_cache_path

from ssm_priors import atomic
from ssm_priors.analyses.charts.theme import FONT, Figure, spec
from ssm_priors.analyses.schema import MADE_BY, foreign

MARK = '<meta name="generator" content="ssm-priors '


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


class Word(NamedTuple):
    """A word of a passage."""

    text: str
    look: Literal["", "hidden", "right", "wrong", "faint"] = ""
    hint: str = ""
    """Told under the pointer."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines of coloured words under a title."""

    title: str
    lines: Sequence[tuple[str, Sequence[Word]]]
    """Each with what it is called."""
    gap: str = " "
    """Between words; empty where a word is a character."""
    caption: str = ""


def write(
    path: Path,
    title: str,
    text: Sequence[str],
    figures: Sequence[Figure],
    tables: Sequence[Table] = (),
    passages: Sequence[Passage] = (),
) -> None:
    """Write the page atomically; all text is escaped.

    Args:
        path: the file; replaced if this package wrote it.
        title: heading and name of the window.
        text: paragraphs under the heading.
        figures: drawn in this order, each with its title and caption.
        tables: stand before the figures.
        passages: between tables and figures.

    Raises:
        BadConfig: something stands there that this package did not write.
    """
    if path.exists() and not _is_ours(path):
        raise foreign(path)
    atomic.write_text(path, render(title, text, figures, tables, passages))


def render(
    title: str,
    text: Sequence[str],
    figures: Sequence[Figure],
    tables: Sequence[Table] = (),
    passages: Sequence[Passage] = (),
) -> str:
    """The page as HTML. Arguments as `write`."""
    environment = Environment(
        loader=PackageLoader("ssm_priors.analyses.charts", "."), autoescape=True, undefined=StrictUndefined
    )
    drawn = [{"title": figure.title, "caption": figure.caption, "spec": _embedded(figure)} for figure in figures]
    return environment.get_template("page.html").render(
        title=title,
        text=text,
        tables=tables,
        passages=passages,
        figures=drawn,
        generator=MADE_BY,
        font=FONT,
        vega=_vega() if drawn else "",
    )


def _embedded(figure: Figure) -> str:
    """Strict JSON that no HTML parser can mistake for the end of its script."""
    return json.dumps(spec(figure.chart), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, in the version that Altair writes for.

    It takes seconds to make, so each version is kept in the user's cache folder.
    """
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    kept = user_cache_path("ssm-priors") / f"vega-lite-{version}-vl-convert-{version_of('vl-convert-python')}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle(None, vl_version=version)  # type: ignore[arg-type]  # None is the bundle alone
    with suppress(OSError):  # what cannot be kept is made again
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(kept, bundle)
    return bundle


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return MARK.encode() in file.read(4096)
