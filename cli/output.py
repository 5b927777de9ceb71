"""One object decides how things are said: people at a terminal, plain lines in a pipe, JSON for machines, or quiet.

Results go to standard output; notes, progress and errors to standard error, so that a pipe carries results alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Output:
    """Says things in the form that was asked for.

    Args:
        as_json: say nothing but one JSON document, given to `json`.
        quiet: leave out notes.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False):
        self.as_json, self.is_quiet = as_json, quiet
        self.console = Console(highlight=False, soft_wrap=True, quiet=as_json)
        self.notes = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet or as_json)

    @property
    def is_live(self) -> bool:
        """Whether a person watches: a display may move."""
        return self.console.is_terminal and self.notes.is_terminal and not self.is_quiet and not self.as_json

    def text(self, line: str) -> None:
        """A line of the result. Never read as markup: names and paths may hold brackets."""
        self.console.print(_safe(line))

    def note(self, line: str) -> None:
        """A line about what is going on."""
        self.notes.print(_safe(line))

    def error(self, line: str) -> None:
        """What went wrong; never left out."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(_safe(f"ssmp: {line}"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
        """A table: aligned by rich at a terminal, tab-separated in a pipe. Columns of numbers are right-aligned."""
        rows = [[str(cell) for cell in row] for row in rows]
        if self.as_json:
            return
        if not self.console.is_terminal:
            for row in [list(columns), *rows]:
                self.console.file.write("\t".join(row) + "\n")  # not by rich, which turns tabs into spaces
            return
        table = Table(title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False)
        for index, column in enumerate(columns):
            numeric = all(row[index][:1] in "-+0123456789" for row in rows)
            table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table, soft_wrap=False)

    def wrote(self, files: Mapping[str, Path]) -> None:
        """Where things went: what it is -> path."""
        for what, path in files.items():
            self.text(f"{what}: {path}")

    def json(self, document: Any) -> None:
        """The one JSON document, strict: NaN and infinities must have become null before."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _safe(line: str) -> Text:
    """Text that is never read as markup, with control characters shown: names and reasons come from files of others."""
    return Text("".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in line))
