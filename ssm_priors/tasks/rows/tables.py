"""CSV and Parquet: a row an example. A series stands in many columns of one number each, or in one cell.

    label,t0,t1,t2     label,ecg,ppg            label,text
    cat,0.1,0.2,0.3    cat,0.1 0.2 0.3,5 6 7    cat,"Any text."

In many columns, a column is a step, and a series may end early: its last cells are empty. Columns of lists are the
features of one series. Rows are counted as a spreadsheet does: the first after the header is row 2.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from ssm_priors.errors import BadConfig, BadData, NotReady, suggest
from ssm_priors.tasks.rows import Example, Rows
from ssm_priors.tasks.rows.cells import (
    finite,
    is_absent,
    is_list,
    is_text,
    label_name,
    numbers,
    refuse_underscores,
    shortened,
    split_name,
)
from ssm_priors.tasks.rows.options import Options

HEADER = 1
MOST_LETTERS = 2**28
"""Longest cell of a CSV."""
BATCH = 256
"""Rows of a Parquet file that are read together."""


class Columns:
    """Which columns of a table are what, and how a row of cells becomes an example.

    Args:
        path: for errors.
        names: the header.
        options: what the user says of them.

    Raises:
        BadConfig: a column that was named is not there.
        BadData: a header that names one twice.
    """

    def __init__(self, path: Path, names: Sequence[str], options: Options):
        self.path, self.names, self.options = path, list(names), options
        twice = (
            next((name for name in self.names if self.names.count(name) > 1), None)
            if len(set(names)) < len(names)
            else None
        )
        if twice is not None:
            raise BadData(f"{path}, row {HEADER}: two columns are called '{twice}'")
        self.label = self._index(options.label, "label")
        self.split = self._index(options.split or "split", "split") if options.split or "split" in self.names else None
        self.series = self._series()
        self.read: Callable[[Sequence[Any], str], np.ndarray] | None = None
        """How the series is read; the first row decides."""
        self.notes: dict[str, Any] = {}

    def where(self, place: int) -> str:
        """A row in words."""
        return f"{self.path}, row {place}"

    def example(self, place: int, cells: Sequence[Any]) -> Example:
        """A row of cells; raises BadData naming the row and the column."""
        where = self.where(place)
        if len(cells) != len(self.names):
            raise BadData(f"{where}: {len(cells)} cells, but the header has {len(self.names)} columns")
        if self.read is None:
            self.read = self._decide([cells[column] for column in self.series], where)
        series = self.read([cells[column] for column in self.series], where)
        label = label_name(cells[self.label], where, self.options.label)
        split = "" if self.split is None else split_name(cells[self.split], where, self.names[self.split])
        return Example(place, series, label, split)

    def _index(self, name: str, what: str) -> int:
        if name in self.names:
            return self.names.index(name)
        shown = ", ".join(self.names[:12]) + (", .." if len(self.names) > 12 else "")
        near = suggest(name, self.names)
        raise BadConfig(
            f"{self.path}, row {HEADER}: no column '{name}'. {near or f'Its columns: {shown}.'} "
            f"Name the right one: --set task.{what}=COLUMN (the first row must name the columns)"
        )

    def _series(self) -> list[int]:
        others = [column for column in range(len(self.names)) if column not in (self.label, self.split)]
        if not self.options.columns:
            found = others
        else:
            found = [column for name in self.options.columns for column in self._matching(name)]
        if not found:
            raise BadConfig(
                f"{self.path}, row {HEADER}: no column is left for the series; the columns are "
                f"{', '.join(self.names)}. Is the delimiter right? --set task.delimiter=';'"
            )
        return list(dict.fromkeys(found))

    def _matching(self, name: str) -> list[int]:
        if name in self.names or "*" not in name:
            return [self._index(name, "series")]
        found = [column for column, other in enumerate(self.names) if fnmatchcase(other, name)]
        kept = [column for column in found if column not in (self.label, self.split)]
        return kept or [self._index(name, "series")]

    def _decide(self, cells: list[Any], where: str) -> Callable[[Sequence[Any], str], np.ndarray]:
        kind = self.options.kind
        if kind == "auto":
            kind = "text" if len(cells) == 1 and is_text(cells[0]) else "numbers"
        if kind == "text" and len(cells) > 1:
            named = ", ".join(self.names[column] for column in self.series[:12])
            raise BadConfig(f"{self.path}: a text stands in one column, not in {named}: --set task.series=COLUMN")
        is_wide = len(cells) > 1 and not any(is_list(cell) for cell in cells)
        read = self._text if kind == "text" else self._wide if is_wide else self._lists
        told = {"_text": "text", "_wide": "numbers, a column a step", "_lists": "numbers, a list a cell"}
        self.notes["read as"] = told[read.__name__]
        return read

    def _text(self, cells: Sequence[Any], where: str) -> np.ndarray:
        if not isinstance(cells[0], str) or not cells[0]:
            raise BadData(f"{where}, {self._column(0)}: {shortened(cells[0])} was found; a text was expected")
        return np.frombuffer(cells[0].encode(), dtype=np.uint8)

    def _wide(self, cells: Sequence[Any], where: str) -> np.ndarray:
        kept = len(cells)
        while kept and is_absent(cells[kept - 1]):
            kept -= 1
        if not kept:
            raise BadData(f"{where}: the series is empty; numbers were expected from {self._column(0)} on")
        try:
            refuse_underscores(cells[:kept])
            series = np.array(cells[:kept], dtype=np.float64)
        except (ValueError, TypeError):
            series = np.empty(0)
        if series.shape != (kept,) or not np.isfinite(series).all():
            raise BadData(self._not_numbers(cells[:kept], where))
        return series[:, None]

    def _lists(self, cells: Sequence[Any], where: str) -> np.ndarray:
        features = []
        for at, cell in enumerate(cells):
            try:
                found = numbers(cell)
            except (ValueError, TypeError) as error:
                raise BadData(
                    f"{where}, {self._column(at)}: {shortened(cell)} is no list of numbers ({error}); if it is a text: "
                    "--set task.kind=text"
                ) from error
            if not found.size:
                raise BadData(f"{where}, {self._column(at)}: the series is empty; a list of numbers was expected")
            features.append(finite(found if found.ndim == 2 else found[:, None], where, self._column(at)))
        if len({len(feature) for feature in features}) > 1:
            told = ", ".join(f"{self.names[self.series[at]]} {len(feature)}" for at, feature in enumerate(features))
            raise BadData(f"{where}: the features of a series must have the same number of steps, found {told}")
        return np.concatenate(features, axis=1)

    def _column(self, at: int) -> str:
        return f"column '{self.names[self.series[at]]}'"

    def _not_numbers(self, cells: Sequence[Any], where: str) -> str:
        """Which cell is no number, and what to do."""
        at = next(at for at, cell in enumerate(cells) if not _is_number(cell))
        if is_absent(cells[at]):
            return f"{where}, {self._column(at)}: empty; only the last cells of a series may be"
        return (
            f"{where}, {self._column(at)}: {shortened(cells[at])} was found; a finite number was expected. If it is "
            "no part of the series, name those that are: --set task.series='[\"t*\"]'"
        )


def csv_rows(path: Path, options: Options) -> Rows:
    """A CSV file, row by row."""
    rows = _records(path, options.delimiter or _delimiter(path))
    header = next(rows, None)
    if header is None:
        raise BadData(f"{path}: the file is empty; a header and a row an example were expected")
    names = [name.strip() for name in header[1]]
    if all(_is_number(name) for name in names):
        raise BadData(f"{path}, row {HEADER}: numbers were found; the first row must name the columns")
    columns = Columns(path, names, options)
    state = {"bytes": 0}

    def examples() -> Iterator[Example]:
        for place, cells, read in rows:
            state["bytes"] = read
            yield columns.example(place, cells)

    return Rows(examples(), columns.where, path.stat().st_size, lambda: state["bytes"], columns.notes)


def parquet_rows(path: Path, options: Options) -> Rows:
    """A Parquet file, batch by batch; raises NotReady without pyarrow."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as missing:
        raise NotReady(f"{path}: Parquet needs pyarrow; pip install 'ssm-priors[parquet]'") from missing
    try:
        file = ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise BadData(f"{path} cannot be read as Parquet: {error}") from error
    columns = Columns(path, file.schema_arrow.names, options)
    state = {"rows": 0}

    def examples() -> Iterator[Example]:
        used = [columns.names[at] for at in dict.fromkeys([*columns.series, columns.label, *_given(columns.split)])]
        try:
            for batch in file.iter_batches(batch_size=BATCH, columns=used):
                for row in zip(
                    *(batch.column(name).to_pylist() for name in columns.names if name in used), strict=True
                ):
                    state["rows"] += 1
                    named = dict(zip((name for name in columns.names if name in used), row, strict=True))
                    yield columns.example(state["rows"] + HEADER, [named.get(name) for name in columns.names])
        except (ArrowException, OSError) as error:
            raise BadData(f"{path}, after row {state['rows'] + HEADER}: cannot be read as Parquet: {error}") from error

    return Rows(examples(), columns.where, file.metadata.num_rows, lambda: state["rows"], columns.notes)


def matrix(path: Path, delimiter: str) -> np.ndarray:
    """(L, features) of a file that holds one example: a row a step, with or without names of columns.

    Raises:
        BadData: with the row and the column that is no number.
    """
    steps: list[list[float]] = []
    for place, cells, _ in _records(path, delimiter):
        if place == HEADER and not any(_is_number(cell) for cell in cells):
            continue
        wrong = next((at for at, cell in enumerate(cells) if not _is_number(cell)), None)
        if wrong is not None:
            raise BadData(f"{path}, row {place}, column {wrong + 1}: {shortened(cells[wrong])} is no finite number")
        if steps and len(cells) != len(steps[0]):
            raise BadData(f"{path}, row {place}: {len(cells)} columns, {len(steps[0])} in the rows before")
        steps.append([float(cell) for cell in cells])
    if not steps:
        raise BadData(f"{path}: no numbers; a row a step was expected")
    return np.array(steps)


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str], int]]:
    """Number, cells, and bytes read so far of every row that is not blank."""
    place = 0
    with open(path, "rb") as raw, TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file, _long_cells():
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for cells in rows:
                place += 1
                if cells:
                    yield place, cells, raw.tell()
        except csv.Error as error:
            raise BadData(f"{path}, row {place + 1}: not a CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise BadData(f"{path}, after row {place}: not UTF-8 text ({error.reason})") from error


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be long; the csv module knows one limit for a whole process."""
    before = csv.field_size_limit(MOST_LETTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() in (".tsv", ".tab") else ","


def _given(column: int | None) -> list[int]:
    return [] if column is None else [column]


def _is_number(cell: Any) -> bool:
    try:
        found = numbers(cell)
    except (ValueError, TypeError):
        return False
    return found.size == 1 and bool(np.isfinite(found).all())
