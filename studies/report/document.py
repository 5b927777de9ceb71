"""A report as data: sections of text, tables and figures. Every format is made from this, and adds nothing to it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text, with the words that it begins with set apart."""

    text: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Text whose lines stay as they are; a page shows it when asked."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """What a table's column holds."""

    title: str
    kind: Literal["name", "number", "text", "code"] = "name"
    """A few words that stay on one line; a number; a sentence; something to copy."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell."""

    text: str
    tone: Literal["", "bad", "strong"] = ""
    """Whether it tells of something that is missing or broken, or is what the reader came for."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column titles. The first column says what a row is about."""

    name: str
    """Of its files."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    is_headed: bool = True
    """Whether column titles are shown; a table of names and values needs none."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with what has to be said about it."""

    name: str
    """Of its files."""
    title: str
    chart: alt.TopLevelMixin
    caption: str
    alt: str
    """What it shows, with its numbers, for whoever does not see it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Paragraph | Listing | Table | Figure]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report. No two of its tables, and no two of its figures, have the same name."""

    title: str
    sections: Sequence[Section]

    @property
    def tables(self) -> Iterator[Table]:
        """In the order in which they stand."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Table))

    @property
    def figures(self) -> Iterator[Figure]:
        """In the order in which they stand."""
        return (block for section in self.sections for block in section.blocks if isinstance(block, Figure))


def row(*cells: str | Cell) -> list[Cell]:
    """A table's row from texts and cells."""
    return [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]


def slug(text: str) -> str:
    """A name that is safe in a path, a link and LaTeX, whatever the text: letters a to z, digits and hyphens."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].rstrip("-") or "part"


class Names:
    """Gives each of several things a name of its own."""

    def __init__(self, *taken: str) -> None:
        self.taken = set(taken)

    def new(self, text: str) -> str:
        """The text's slug, with a number where that is taken."""
        name, number = slug(text), 2
        while name in self.taken:
            name, number = f"{slug(text)}-{number}", number + 1
        self.taken.add(name)
        return name
