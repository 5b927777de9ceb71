"""A folder: a sub-folder a class, or labels.csv with a file an example.

    CLASS/FILE          {train,validation,test}/CLASS/FILE          labels.csv: file,label[,split]

A file is one series: .npy (L,) or (L, features); .csv, .tsv: a row a step; .wav: a sample a step; .txt: a text.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssm_priors.errors import BadData
from ssm_priors.tasks.rows import Example, Rows
from ssm_priors.tasks.rows.cells import SPLIT_NAMES, finite
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.rows.tables import csv_rows, matrix

LABELS = "labels.csv"
FILE = "file"
TEXT = (".txt", ".text", ".md")
WAVE_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


class Found(NamedTuple):
    """A file that is an example."""

    path: Path
    label: str
    split: str


def folder_rows(path: Path, options: Options) -> Rows:
    """All examples of a folder, in the order of their names or of labels.csv."""
    has_table = (path / LABELS).is_file()
    found = _listed(path, options) if has_table else _sorted(path)
    if not found:
        raise BadData(f"{path}: no examples; sub-folders named after classes, or {LABELS}, were expected")
    read = _Files(options)
    state = {"files": 0}

    def examples() -> Iterator[Example]:
        for place, (file, label, split) in enumerate(found):
            state["files"] += 1
            yield Example(place, read(file), label, split)

    told = f"files of {LABELS}" if has_table else "a folder a class"
    return Rows(examples(), lambda place: str(found[place].path), len(found), lambda: state["files"], {"read as": told})


class _Files:
    """Reads one file after the other; those of one folder must agree in what they are."""

    def __init__(self, options: Options):
        self.options = options
        self.rate = 0

    def __call__(self, path: Path) -> np.ndarray:
        suffix = path.suffix.lower()
        is_text = self.options.kind == "text" or (self.options.kind == "auto" and suffix in TEXT)
        if is_text:
            content = path.read_bytes()
            if not content:
                raise BadData(f"{path}: the file is empty; a text was expected")
            return np.frombuffer(content, dtype=np.uint8)
        readers: dict[str, Callable[[Path], np.ndarray]] = {
            ".npy": _npy,
            ".csv": lambda path: matrix(path, self.options.delimiter or ","),
            ".tsv": lambda path: matrix(path, self.options.delimiter or "\t"),
            ".wav": self._wav,
        }
        if suffix not in readers:
            raise BadData(
                f"{path}: {', '.join(readers)} or {', '.join(TEXT)} was expected; any file is read as text with "
                "--set task.kind=text"
            )
        return finite(readers[suffix](path), str(path), "its series")

    def _wav(self, path: Path) -> np.ndarray:
        try:
            with wave.open(str(path)) as file:
                width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
                content = file.readframes(file.getnframes())
        except (wave.Error, EOFError, OSError) as error:
            raise BadData(f"{path} cannot be read as WAV (PCM): {error}") from error
        if width not in WAVE_TYPES:
            raise BadData(f"{path}: {8 * width} bits a sample; 8, 16 or 32 were expected")
        self.rate = self.rate or rate
        if rate != self.rate:
            raise BadData(f"{path}: {rate} samples a second, {self.rate} in the files before; resample them first")
        samples = np.frombuffer(content, dtype=WAVE_TYPES[width]).reshape(-1, channels).astype(np.float64)
        if not len(samples):
            raise BadData(f"{path}: no samples")
        return samples - 128 if width == 1 else samples


def _npy(path: Path) -> np.ndarray:
    try:
        series = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadData(f"{path} cannot be read as an array of numbers: {error}") from error
    if series.dtype.kind not in "iufb" or series.ndim not in (1, 2) or series.size == 0:
        raise BadData(f"{path}: {series.dtype} of shape {series.shape}; numbers (L,) or (L, features) were expected")
    return np.array(series.reshape(len(series), -1), dtype=np.float64)


def _sorted(path: Path) -> list[Found]:
    """Every file below a class's folder, and where the first level names splits, below that."""
    tops = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    has_splits = bool(tops) and all(name.lower() in SPLIT_NAMES for name in tops)
    depth = 2 if has_splits else 1
    found = []
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if not file.is_file() or any(part.startswith(".") for part in parts):
            continue
        if len(parts) <= depth:
            raise BadData(f"{file}: lies beside the folders of classes; take it away, or list all files in {LABELS}")
        split = SPLIT_NAMES[parts[0].lower()] if has_splits else ""
        found.append(Found(file, parts[depth - 1], split))
    return found


def _listed(path: Path, options: Options) -> list[Found]:
    """What labels.csv says; its column `file` is relative to the folder and leads to nothing outside it."""
    table = path / LABELS
    read = Options(label=options.label, series=FILE, kind="text", split=options.split, delimiter=options.delimiter)
    rows, found = csv_rows(table, read), []
    inside = path.resolve()
    for place, name, label, split in rows.examples:
        file = path / name.tobytes().decode()
        if not file.resolve().is_relative_to(inside):
            raise BadData(f"{rows.where(place)}, column '{FILE}': {file} lies outside of {path}")
        if not file.is_file():
            raise BadData(f"{rows.where(place)}, column '{FILE}': no such file: {file}")
        found.append(Found(file, label, split))
    return found
