"""Numbers that others published, from `published.toml`: for a benchmark's own data, and for nothing that stands in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

from ssm_priors.config import Part
from ssm_priors.registry import TASKS


@runtime_checkable
class IsBenchmark(Protocol):
    """A task that may read a benchmark's own files; a task without this has no published numbers."""

    def benchmark(self, options: Any) -> str:
        """The benchmark's name in `published.toml`; empty where these options read or generate anything else."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """One number of one source."""

    model: str
    training: str
    accuracy: float | str
    """Percent, or the source's word for a failure."""
    source: str


def benchmark_of(task: Part) -> str:
    """The name of the benchmark whose own data a configured task reads; empty if it reads none's."""
    kind = TASKS[task.name]
    return kind.benchmark(task.options) if isinstance(kind, IsBenchmark) else ""


def published(benchmark: str) -> list[Published]:
    """All published numbers of a benchmark, in the order of their sources."""
    return [number for name, number in _read() if name == benchmark]


def _read() -> Iterator[tuple[str, Published]]:
    text = files("ssm_priors.studies.report").joinpath("published.toml").read_text(encoding="utf-8")
    for table in tomllib.loads(text)["tables"]:
        for model, training, values in table["rows"]:
            for benchmark, value in zip(table["benchmarks"], values, strict=True):
                yield benchmark, Published(model, training, value, table["source"])
