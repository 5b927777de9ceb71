"""Small tasks of every kind of answer, for tests: registered while a test needs them, and gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.task import SPLITS, Archive, Split, Task

SIZES = {"train": 60, "validation": 20, "test": 30}
LENGTH = 12


def in_memory(spec: TaskSpec, make: Any) -> Task:
    splits = {}
    for name, size in SIZES.items():
        inputs, lengths, targets = make(numpy_stream(0, "made", name), size)
        parts = (torch.from_numpy(np.ascontiguousarray(part)) for part in (inputs, lengths, targets))
        splits[name] = Split(*parts, documents=spec.documents)
    return Task(spec, *(splits[name] for name in SPLITS), "00" * 32)


def ragged(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids 1 .. 7, and lengths from 3."""
    return rng.integers(1, 8, (rows, LENGTH)).astype(np.uint8), rng.integers(3, LENGTH + 1, rows)


class InMemory:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        pass

    origin = "made by a test"


class Large(InMemory):
    """Whether the tokens are large ones: one class an example."""

    @staticmethod
    def spec(options: Any) -> TaskSpec:
        return TaskSpec(kind="token", length=LENGTH, classes=2, vocabulary=8)

    @staticmethod
    def load(options: Any) -> Task:
        def make(rng, size):
            ids, lengths = ragged(rng, size)
            is_large = rng.integers(2, size=size)
            return (ids // 2 + 4 * is_large[:, None]).astype(np.uint8), lengths, is_large

        return in_memory(Large.spec(options), make)


class Rate(InMemory):
    """The mean of a noisy series, as a heart rate: real numbers."""

    @staticmethod
    def spec(options: Any) -> TaskSpec:
        return TaskSpec(kind="continuous", length=LENGTH, classes=1, features=2, answer="values", unit="bpm")

    @staticmethod
    def load(options: Any) -> Task:
        def make(rng, size):
            rate = rng.normal(size=size)
            inputs = rate[:, None, None] + 0.1 * rng.normal(size=(size, LENGTH, 2))
            return inputs.astype(np.float32), np.full(size, LENGTH), (90 + 15 * rate[:, None]).astype(np.float32)

        return in_memory(Rate.spec(options), make)


class Same(InMemory):
    """Whether two documents have tokens of the same size."""

    @staticmethod
    def spec(options: Any) -> TaskSpec:
        return TaskSpec(kind="token", length=LENGTH, classes=2, vocabulary=8, documents=2)

    @staticmethod
    def load(options: Any) -> Task:
        def make(rng, size):
            ids, lengths = ragged(rng, 2 * size)
            is_large = rng.integers(2, size=2 * size)
            ids = (ids // 2 + 4 * is_large[:, None]).astype(np.uint8)
            return ids, lengths, (is_large[0::2] == is_large[1::2]).astype(np.int64)

        return in_memory(Same.spec(options), make)


class Double(InMemory):
    """Twice each token, modulo 8: an id at every position but the first."""

    @staticmethod
    def spec(options: Any) -> TaskSpec:
        return TaskSpec(kind="token", length=LENGTH, classes=8, vocabulary=8, answer="tokens")

    @staticmethod
    def load(options: Any) -> Task:
        def make(rng, size):
            ids, lengths = ragged(rng, size)
            targets = 2 * ids.astype(np.int64) % 8
            targets[:, 0] = -1
            targets[np.arange(LENGTH) >= lengths[:, None]] = -1
            return ids, lengths, targets

        return in_memory(Double.spec(options), make)


class Waves:
    """Which of two waves is higher, as bytes in the store."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        examples: int = 60
        max_length: int = LENGTH
        told: bool = True
        """Decides nothing about the data."""

    origin = "generated from a seed"

    @staticmethod
    def key(options: Config) -> dict[str, Any]:
        return {"examples": options.examples, "max_length": options.max_length}

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        return TaskSpec(kind="continuous", length=options.max_length, classes=2)

    @staticmethod
    def load(options: Config) -> Task:
        return store.load("waves", options)

    @staticmethod
    def chunks(split: str, size: int, length: int) -> Iterator[Chunk]:
        rng = numpy_stream(0, "waves", split)
        for first in range(0, size, 16):
            some = min(16, size - first)
            label, phase = rng.integers(2, size=some), rng.uniform(0, 6, some)
            height = rng.uniform(0.1, 0.5, (some, 1))  # so that no two are alike
            wave = height * np.sin(np.arange(length) + phase[:, None]) + label[:, None] - 0.5
            lengths = rng.integers(length // 2, length + 1, some)
            yield Chunk(np.rint(127 + 127 * wave).astype(np.uint8)[..., None], lengths, label)

    @staticmethod
    def prepare(source: Path | None, options: Config, progress: Any) -> Path:
        sizes = {"train": options.examples, "validation": options.examples // 3, "test": options.examples // 2}
        splits = {name: Incoming(size, Waves.chunks(name, size, options.max_length)) for name, size in sizes.items()}
        layout = Layout(dtype="uint8", scale=(1 / 127,), offset=(-1.0,))
        return store.write(
            "waves", options, Waves.spec(options), layout, splits, source=Waves.origin, progress=progress
        )


class Brought:
    """Lines of numbers that a user must bring."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        lowest: int = 0

    origin = "numbers.txt, from the Institute of Numbers"
    archive = Archive("numbers.txt", "offered by the Institute of Numbers as 'Numbers 1.0'")

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        return TaskSpec(kind="token", length=4, classes=2, vocabulary=10)

    @staticmethod
    def load(options: Config) -> Task:
        return store.load("brought", options)

    @staticmethod
    def prepare(source: Path, options: Config, progress: Any) -> Path:
        ids = np.array([[int(digit) for digit in line] for line in source.read_text().split()])
        parts = {name: ids[at::3] for at, name in enumerate(SPLITS)}
        splits = {
            name: Incoming(len(part), [Chunk(part, np.full(len(part), 4), part[:, 0] % 2)])
            for name, part in parts.items()
        }
        layout = Layout(dtype="uint8")
        return store.write("brought", options, Brought.spec(options), layout, splits, source=str(source.name))


KINDS = {"large": Large, "rate": Rate, "same": Same, "double": Double, "waves": Waves, "brought": Brought}


@contextmanager
def registered() -> Iterator[None]:
    """`TASKS` with those above."""
    assert len(TASKS)  # its package is scanned before anything is added
    for name, kind in KINDS.items():
        TASKS.register(name)(kind)
    try:
        yield
    finally:
        for name in KINDS:
            del TASKS._parts[name]


def prepare_watched(folder: str, go: Any, ready: Any, made: Any) -> None:
    """In a process of its own: says that it is ready, waits, prepares `waves`, tells of every split that it makes."""
    os.environ["SSMP_DATA_DIR"] = folder
    with registered():
        real = Waves.chunks

        def counted(*arguments: Any) -> Iterator[Chunk]:
            made.put(arguments[0])
            yield from real(*arguments)

        Waves.chunks = staticmethod(counted)
        ready.put(1)
        go.wait(60)
        store.prepare("waves", Waves.Config())
