"""Scikit-learn's 8 x 8 digits as sequences of 64 steps: small enough for a first look and for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import NotReady
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.task import Task, fixed_length, stratified_parts

SIZES = [1257, 180, 360]
MISSING = "task 'digits' reads its data from scikit-learn, which is not installed: pip install scikit-learn"


@TASKS.register("digits")
class Digits:
    """1,797 real handwritten digits of 8 x 8 pixels, pixel by pixel.

    Source: UCI optical recognition of handwritten digits, as shipped in scikit-learn, which must be installed.
    """

    origin = "ships with scikit-learn"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The digits have no options."""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Images of 8 x 8 pixels, row by row."""
        return TaskSpec(kind="continuous", length=64, classes=10, width=8)

    @staticmethod
    def missing(options: Config) -> str:
        """Whether scikit-learn is."""
        return "" if find_spec("sklearn") else MISSING

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; raises NotReady where scikit-learn is missing."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as missing:
            raise NotReady(MISSING) from missing
        pixels, labels = _read(load_digits)
        rows = stratified_parts(labels, SIZES, numpy_stream(0, "digits", "split"))
        inputs = (pixels / 8 - 1)[:, :, None]
        train, validation, test = (fixed_length(inputs[part], labels[part]) for part in rows)
        return Task(Digits.spec(options), train, validation, test, hashlib.sha256(pixels.tobytes()).hexdigest())


@cache
def _read(load_digits: Callable[..., tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(image, 64) from 0 to 16, and classes (image,); once a process, since scikit-learn parses text."""
    return load_digits(return_X_y=True)
