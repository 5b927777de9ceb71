"""Permuted MNIST: the digits of `mnist`, all with their pixels in one random order, so that neighbours are far apart.

The order is drawn once, from the stream "pmnist", "permutation" of seed 0, and is the same for every image, split and
run. Other code takes other orders (bit reversal among them), so scores compare with those of the same order only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import mnist, store
from ssm_priors.tasks.task import Progress, Task, silent


@TASKS.register("pmnist")
class PermutedMnist:
    """MNIST-5k with the pixels of all images in one random order.

    Source: Le, Jaitly and Hinton 2015, arXiv 1504.00941; the digits of the task mnist.
    """

    Config = mnist.Options
    origin = mnist.Mnist.origin
    official = mnist.OFFICIAL

    @staticmethod
    def spec(options: mnist.Options) -> TaskSpec:
        """As many steps as pixels; no image any more, so it has no width."""
        return TaskSpec(kind="continuous", length=len(mnist.in_place(options)), classes=10)

    @staticmethod
    def load(options: mnist.Options) -> Task:
        """The three splits; raises NotReady for official ones that are not here."""
        if options.data == "official":
            return store.load("pmnist", options)
        return mnist.shipped(PermutedMnist.spec(options), options, permutation(options))

    @staticmethod
    def prepare(source: Path, options: mnist.Options, progress: Progress = silent) -> Path:
        """Read the official files in the folder `source`; raises BadData."""
        spec = PermutedMnist.spec(options)
        return mnist.official("pmnist", spec, options, source, permutation(options), progress)


def permutation(options: mnist.Options) -> np.ndarray:
    """The pixel that stands at each step: (steps,)."""
    return numpy_stream(0, "pmnist", "permutation").permutation(len(mnist.in_place(options)))
