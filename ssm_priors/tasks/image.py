"""CIFAR-10, pixel by pixel, row by row: in grey (the Long Range Arena's Image) and in colour (sequential CIFAR).

    grey = 0.299 R + 0.587 G + 0.114 B, rounded;   input = (byte - mean) / deviation

with the means and deviations that the comparison's public code uses, which are constants and not computed here. The
official archive's batches are pickles; they are read without being run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors import pickles
from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.tasks import parts, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.members import Members, members
from ssm_priors.tasks.task import Archive, Progress, Task, silent

SIDE, CLASSES = 32, 10
STEPS = SIDE * SIDE
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
OFFICIAL = {"train": 45_000, "validation": 5_000, "test": 10_000}
MOST_BYTES = 2**26
"""Of one batch; the official ones have 31 million."""
TOGETHER = 256
GREY = np.array([19595, 38470, 7471], dtype=np.uint32)
"""0.299, 0.587 and 0.114 in units of 2^-16."""
ARRAY = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
"""What a pickle of an array calls."""
ARCHIVE = Archive(
    "cifar-10-python.tar.gz",
    "offered by the University of Toronto as 'CIFAR-10 python version'; the binary version, cifar-10-binary.tar.gz, "
    "will do too, and so will the unpacked folder of either",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The defaults are the whole set."""

    examples: Annotated[int, Ge(1)] = OFFICIAL["train"]
    """Images of training; fewer are drawn from all, every class in proportion."""
    held_out: Annotated[int, Ge(0)] = 0
    """Images of validation, and as many of test; 0 means 5,000 and 10,000, or the part of them that `examples` is."""


@TASKS.register("image")
class Image:
    """CIFAR-10 in grey, a pixel a step: 10 kinds of things.

    Source: Krizhevsky 2009; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    origin = "cifar-10-python.tar.gz, from the University of Toronto"
    archive = ARCHIVE
    Config = Options

    @staticmethod
    def benchmark(options: Options) -> str:
        """The benchmark whose published numbers may stand beside a score: only for its own files, whole."""
        return "Image" if options == Options() else ""

    @staticmethod
    def spec(options: Options) -> TaskSpec:
        """One number a pixel."""
        return TaskSpec(kind="continuous", length=STEPS, classes=CLASSES, width=SIDE)

    @staticmethod
    def load(options: Options) -> Task:
        """The three splits; raises NotReady."""
        return store.load("image", options)

    @staticmethod
    def prepare(source: Path, options: Options, progress: Progress = silent) -> Path:
        """Read the archive at `source`; raises BadData."""
        return _prepare("image", source, options, _layout([122.6], [61.0]), grey, progress)


@TASKS.register("cifar")
class Cifar:
    """CIFAR-10 in colour, a pixel a step: 10 kinds of things.

    Source: Krizhevsky 2009.
    """

    origin = "cifar-10-python.tar.gz, from the University of Toronto"
    archive = ARCHIVE
    Config = Options

    @staticmethod
    def spec(options: Options) -> TaskSpec:
        """Red, green and blue of a pixel."""
        return TaskSpec(kind="continuous", length=STEPS, classes=CLASSES, features=3, width=SIDE)

    @staticmethod
    def load(options: Options) -> Task:
        """The three splits; raises NotReady."""
        return store.load("cifar", options)

    @staticmethod
    def prepare(source: Path, options: Options, progress: Progress = silent) -> Path:
        """Read the archive at `source`; raises BadData."""
        mean, deviation = (255 * np.array(part) for part in ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)))
        return _prepare("cifar", source, options, _layout(mean, deviation), pixels, progress)


def pixels(planes: np.ndarray) -> np.ndarray:
    """(images, 3072) bytes, all red ones first, then green, then blue -> (images, 1024, 3)."""
    return planes.reshape(-1, 3, STEPS).transpose(0, 2, 1)


def grey(planes: np.ndarray) -> np.ndarray:
    """(images, 3072) bytes -> (images, 1024, 1) by the weights of ITU-R BT.601, rounded to the nearest byte."""
    return ((pixels(planes).astype(np.uint32) @ GREY + 2**15) >> 16).astype(np.uint8)[..., None]


class _Images(NamedTuple):
    """One batch of the archive."""

    planes: np.ndarray
    """(images, 3072) bytes."""
    labels: np.ndarray
    """(images,)."""


def _layout(mean: Any, deviation: Any) -> Layout:
    """Bytes that become (byte - mean) / deviation. That an official set repeats itself is counted, not refused."""
    scale = 1 / np.asarray(deviation, dtype=np.float64)
    return Layout(
        dtype="uint8",
        scale=tuple(scale.tolist()),
        offset=tuple((-np.asarray(mean) * scale).tolist()),
        duplicates="report",
    )


def _prepare(
    name: str,
    source: Path,
    options: Options,
    layout: Layout,
    convert: Callable[[np.ndarray], np.ndarray],
    progress: Progress,
) -> Path:
    with members(source, _wanted, MOST_BYTES, progress) as found:
        rows = _rows(found, options, progress)
        splits = {split: Incoming(len(part), _chunks(found, split, part, convert)) for split, part in rows.items()}
        spec = TASKS[name].spec(options)
        return store.write(name, options, spec, layout, splits, source=ARCHIVE.name, progress=progress)


def _wanted(path: PurePosixPath) -> str | None:
    """Batches of either version; the binary one's end in .bin."""
    batches = {name for names in BATCHES.values() for name in names}
    return path.name if path.name.removesuffix(".bin") in batches else None


def _rows(found: Members, options: Options, progress: Progress) -> dict[str, np.ndarray]:
    """Which images each split takes, counted through its batches."""
    wanted = parts.sizes(options.examples, options.held_out, OFFICIAL)
    labels: dict[str, np.ndarray] = {}
    contents: dict[str, list[bytes]] = {}
    for split, names in BATCHES.items():
        batches = []
        contents[split] = []
        for done, name in enumerate(names, 1):
            images = _read(found, name)
            batches.append(images.labels)
            contents[split] += [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images.planes]
            progress(f"batches of {split} looked through", done, len(names))
        labels[split] = np.concatenate(batches)
    where, whole = str(found.source), OFFICIAL["train"] + OFFICIAL["validation"]
    parts.require(where, "training", len(labels["train"]), wanted["train"] + wanted["validation"], whole)
    parts.require(where, "test", len(labels["test"]), wanted["test"], OFFICIAL["test"])
    if wanted == OFFICIAL:
        for split in BATCHES:
            parts.require_balance(where, split, labels[split], CLASSES)
    rows = parts.held_out(labels["train"], contents["train"], wanted, OFFICIAL["validation"] / whole, "cifar-10")
    return rows | {"test": parts.drawn(labels["test"], wanted["test"], "cifar-10", "test")}


def _chunks(
    found: Members, split: str, rows: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]
) -> Iterator[Chunk]:
    """Images of a split; one batch is in memory."""
    first = 0
    for name in BATCHES["test" if split == "test" else "train"]:
        images = _read(found, name)
        here = rows[(rows >= first) & (rows < first + len(images.labels))] - first
        first += len(images.labels)
        for start in range(0, len(here), TOGETHER):
            some = here[start : start + TOGETHER]
            yield Chunk(convert(images.planes[some]), np.full(len(some), STEPS), images.labels[some])


def _read(found: Members, name: str) -> _Images:
    """A batch of whichever version is there; raises BadData with file and row."""
    if name not in found.sizes and f"{name}.bin" not in found.sizes:
        raise BadData(f"{found.source} has no {name}; expected {ARCHIVE.name}, or its unpacked folder")
    is_pickle = name in found.sizes
    where = found.where(name if is_pickle else f"{name}.bin")
    return _unpickled(found.read(name), where) if is_pickle else _unpacked(found.read(f"{name}.bin"), where)


def _classes(labels: Sequence[int], where: str) -> np.ndarray:
    """Labels that are classes; raises BadData with the row."""
    for row, label in enumerate(labels):
        if not 0 <= label < CLASSES:
            raise BadData(f"{where}, row {row}: label {label}, one of 0 .. {CLASSES - 1} was expected")
    return np.array(labels, dtype=np.int64)


def _unpacked(content: bytes, where: str) -> _Images:
    """The binary version: a label and 3,072 bytes an image."""
    if not content or len(content) % (1 + 3 * STEPS):
        raise BadData(f"{where} has {len(content):,} bytes; a multiple of 3,073 was expected")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * STEPS)
    return _Images(rows[:, 1:], _classes(rows[:, 0].tolist(), where))


def _unpickled(content: bytes, where: str) -> _Images:
    """The Python version: a table with an array `data` and a list `labels`."""
    try:
        table = pickles.read(content)
    except Exception as error:  # a damaged program can fail in any way
        raise BadData(f"{where} cannot be read ({error}); it is damaged") from error
    if not isinstance(table, dict) or not {"data", "labels"} <= set(table):
        raise BadData(f"{where} is not a table with 'data' and 'labels', as a batch of CIFAR-10 is")
    labels = table["labels"]
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise BadData(f"{where}: its labels are not a list of integers")
    return _Images(_array(table["data"], len(labels), where), _classes(labels, where))


def _array(data: Any, rows: int, where: str) -> np.ndarray:
    """The bytes of a pickled array, if it is one of bytes, (rows, 3072), row by row."""
    state = data.state if isinstance(data, pickles.Thing) and data.name in ARRAY else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise BadData(f"{where}: its data are not an array")
    _, shape, kind, is_by_column, stored = state
    content = _as_bytes(stored)
    is_bytes = isinstance(kind, pickles.Thing) and kind.name == "numpy.dtype" and kind.args[:1] == ("u1",)
    if rows == 0 or not is_bytes or is_by_column or shape != (rows, 3 * STEPS) or len(content) != rows * 3 * STEPS:
        raise BadData(
            f"{where}: {len(content):,} bytes of data of shape {shape} beside {rows:,} labels; "
            f"{3 * STEPS:,} bytes a label were expected"
        )
    return np.frombuffer(content, np.uint8).reshape(rows, 3 * STEPS)


def _as_bytes(stored: Any) -> bytes:
    """Python 2 wrote bytes as text; Python 3, for it, as a call of the codec that makes them."""
    if isinstance(stored, pickles.Thing) and stored.name == "_codecs.encode" and stored.args:
        stored = stored.args[0]
    if isinstance(stored, str):
        return stored.encode("latin-1", errors="ignore")
    return stored if isinstance(stored, bytes) else b""
