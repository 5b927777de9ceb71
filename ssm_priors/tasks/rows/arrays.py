"""NPZ and Zarr: arrays whose first axis counts examples, read a few at a time.

    label (N,), series (N, L) or (N, L, features) or texts (N,), and if they are there: lengths (N,), split (N,)

A series may end early: `lengths` says where, or its last steps are NaN. Arrays (N, L) that are named together are the
features of one series. Examples are counted from 0, as in the array.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssm_priors.errors import BadConfig, BadData, suggest
from ssm_priors.tasks.rows import Example, Rows
from ssm_priors.tasks.rows.cells import finite, label_name, split_name
from ssm_priors.tasks.rows.options import Options

LENGTHS = "lengths"
BLOCK = 2**22
"""Most numbers that are read together."""


class Stored(NamedTuple):
    """An array that has not been read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Callable[[int], Iterator[np.ndarray]]
    """Rows a block -> the array, block after block."""


def npz_rows(path: Path, options: Options) -> Rows:
    """An NPZ file. Arrays of Python objects are refused: reading them could run what they hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name[:-4]: _member(path, name) for name in archive.namelist() if name.endswith(".npy")}
    except (OSError, zipfile.BadZipFile) as error:
        raise BadData(f"{path} cannot be read as NPZ: {error}") from error
    return _rows(path, arrays, options)


def zarr_rows(path: Path, options: Options) -> Rows:
    """A Zarr group."""
    import zarr

    try:
        group = zarr.open_group(path, mode="r")
        arrays = {
            name: Stored(array.shape, np.dtype(array.dtype), _slices(path, name, array))
            for name, array in group.arrays()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path} cannot be read as a Zarr group: {error}") from error
    return _rows(path, arrays, options)


def _rows(path: Path, arrays: Mapping[str, Stored], options: Options) -> Rows:
    label = _column(path, arrays, options.label, "label")
    named = options.split or ("split" if "split" in arrays else "")
    splits = _column(path, arrays, named, "split") if named else None
    names = _series(path, arrays, options, {options.label, named, LENGTHS})
    lengths = _column(path, arrays, LENGTHS, "lengths") if LENGTHS in arrays else None
    for name in [*names, *([named] if named else []), *([LENGTHS] if LENGTHS in arrays else [])]:
        if arrays[name].shape[:1] != (len(label),):
            raise BadData(f"{path}, array '{name}': {arrays[name].shape} for {len(label)} labels")
    read = _reader([arrays[name] for name in names], path, names, options)
    state = {"rows": 0}

    def where(place: int) -> str:
        return f"{path}, example {place}"

    def examples() -> Iterator[Example]:
        width = sum(int(np.prod(arrays[name].shape[1:])) for name in names)
        step = max(1, BLOCK // max(width, 1))
        for blocks in zip(*(arrays[name].blocks(step) for name in names), strict=True):
            for cells in zip(*blocks, strict=True):
                place = state["rows"]
                state["rows"] += 1
                end = None if lengths is None else _length(lengths[place], where(place))
                series = read(cells, end, where(place))
                split = "" if splits is None else split_name(splits[place], where(place), named)
                yield Example(place, series, label_name(label[place], where(place), options.label), split)

    return Rows(examples(), where, len(label), lambda: state["rows"], {"read as": f"arrays {', '.join(names)}"})


def _column(path: Path, arrays: Mapping[str, Stored], name: str, what: str) -> np.ndarray:
    """A whole array of one value an example."""
    if name not in arrays:
        near = suggest(name, arrays) or f"Its arrays: {_shapes(arrays)}."
        raise BadConfig(f"{path}: no array '{name}'. {near} Name the right one: --set task.{what}=ARRAY")
    if len(arrays[name].shape) != 1:
        raise BadData(f"{path}, array '{name}': of shape {arrays[name].shape}; one value an example was expected")
    values = np.concatenate([np.empty(0, arrays[name].dtype), *arrays[name].blocks(BLOCK)])
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _series(path: Path, arrays: Mapping[str, Stored], options: Options, others: set[str]) -> list[str]:
    if not options.columns:
        found = [name for name in sorted(arrays) if name not in others]
        if len(found) != 1:
            raise BadConfig(
                f"{path}: which array is the series? Its arrays: {_shapes(arrays)}. Name it: --set task.series=ARRAY"
            )
        return found
    found = []
    for name in options.columns:
        fits = [one for one in sorted(arrays) if one == name or fnmatchcase(one, name)]
        if not fits:
            raise BadConfig(f"{path}: no array '{name}'. {suggest(name, arrays) or f'Its arrays: {_shapes(arrays)}.'}")
        found += [one for one in fits if one not in others or one == name]
    return list(dict.fromkeys(found))


def _reader(
    series: list[Stored], path: Path, names: list[str], options: Options
) -> Callable[[tuple[Any, ...], int | None, str], np.ndarray]:
    """How one example's parts become a series."""
    is_text = all(one.dtype.kind in "UST" and len(one.shape) == 1 for one in series)
    if is_text and len(series) == 1 and options.kind != "numbers":
        return lambda cells, end, where: _text(cells[0], end, where, names[0])
    for name, one in zip(names, series, strict=True):
        if options.kind == "text" or one.dtype.kind not in "iufb" or len(one.shape) not in (2, 3):
            expected = "texts (N,)" if options.kind == "text" else "numbers (N, L) or (N, L, features), or texts (N,)"
            raise BadData(f"{path}, array '{name}': {one.dtype} of shape {one.shape}; {expected} was expected")
    if len({one.shape[:2] for one in series}) > 1:
        raise BadData(f"{path}: series of different shapes: {_shapes(dict(zip(names, series, strict=True)))}")
    return lambda cells, end, where: _numbers(cells, end, where, names)


def _text(cell: Any, end: int | None, where: str, name: str) -> np.ndarray:
    content = cell if isinstance(cell, bytes) else str(cell).encode()
    if end is not None or not content:
        raise BadData(f"{where}, array '{name}': a text that is not empty was expected, and no lengths")
    return np.frombuffer(content, dtype=np.uint8)


def _numbers(cells: tuple[np.ndarray, ...], end: int | None, where: str, names: list[str]) -> np.ndarray:
    series = np.concatenate([cell.reshape(len(cell), -1) for cell in cells], axis=1).astype(np.float64)
    if end is None:
        there = np.flatnonzero(~np.isnan(series).all(axis=1))
        end = int(there[-1]) + 1 if len(there) else 0
    if not 1 <= end <= len(series):
        raise BadData(f"{where}: {end} valid steps; 1 to {len(series)} were expected")
    return finite(series[:end], where, f"array '{', '.join(names)}'")


def _length(value: Any, where: str) -> int:
    if float(value) != int(value):
        raise BadData(f"{where}, array '{LENGTHS}': {value} was found; a whole number of steps was expected")
    return int(value)


def _member(path: Path, name: str) -> Stored:
    """An array of an NPZ file, from its header alone."""
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        shape, is_fortran, dtype = _header(file, f"{path}, array '{name[:-4]}'")
    if dtype.hasobject:
        raise BadData(f"{path}, array '{name[:-4]}': Python objects, which are never read; save numbers or texts")
    return Stored(shape, dtype, lambda rows: _streamed(path, name, rows, is_fortran))


def _streamed(path: Path, name: str, rows: int, is_fortran: bool) -> Iterator[np.ndarray]:
    """The array block after block, never unpacked as a whole unless its columns come first."""
    where = f"{path}, array '{name[:-4]}'"
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        shape, _, dtype = _header(file, where)
        if is_fortran and len(shape) > 1:
            rows = shape[0]
        try:
            for first in range(0, shape[0] if shape else 0, rows):
                some = (min(rows, shape[0] - first), *shape[1:])
                wanted = int(np.prod(some)) * dtype.itemsize
                content = file.read(wanted)
                if len(content) != wanted:
                    raise BadData(f"{where}, from example {first} on: the array ends early")
                yield np.frombuffer(content, dtype=dtype).reshape(some, order="F" if is_fortran else "C")
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise BadData(f"{where}: damaged: {error}") from error


def _header(file: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(file)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadData(f"{where}: not an array: {error}") from error


def _slices(path: Path, name: str, array: Any) -> Callable[[int], Iterator[np.ndarray]]:
    def blocks(rows: int) -> Iterator[np.ndarray]:
        for first in range(0, array.shape[0] if array.shape else 0, rows):
            try:
                yield np.asarray(array[first : first + rows])
            except (OSError, ValueError, RuntimeError, TypeError) as error:
                raise BadData(f"{path}, array '{name}', from example {first} on: damaged: {error}") from error

    return blocks


def _shapes(arrays: Mapping[str, Stored]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "none"
