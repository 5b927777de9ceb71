"""What every logger is, and what keeps it from harming a run.

    a logger is made when a run begins or goes on, and is then given every row of `metrics.csv` from the first one:
    those that were kept, then those that come

So what it shows is what `metrics.csv` holds, each step once, however often the run was interrupted, and also where the
logger was asked for late. One that fails is left out from there on, which is said once; the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ssm_priors.config import RunConfig
from ssm_priors.registry import LOGGERS

Row = Mapping[str, Any]
"""A row of `metrics.csv`: the phase and, by column, numbers; None where the step has none."""


class Logger(Protocol):
    """One place where rows go; made from a run's folder and configuration, whose earlier traces it removes."""

    @staticmethod
    def refuse_missing() -> None:
        """Raise NotReady if what it needs is not installed."""
        ...

    def row(self, number: int, values: Row) -> None:
        """Take a row; they come in order, and `number` counts them from 1 over all phases."""
        ...

    def close(self) -> None:
        """Write what is left; must end in bounded time."""
        ...


def refuse_missing(names: Sequence[str]) -> None:
    """Raise UnknownName or NotReady if a logger cannot work here."""
    for name in names:
        LOGGERS[name].refuse_missing()


def numbers(values: Row) -> dict[str, float]:
    """What a row says of its step, called "phase/column"."""
    said = {name: value for name, value in values.items() if name not in ("phase", "step") and value is not None}
    return {f"{values['phase']}/{name}": value for name, value in said.items()}


@dataclass(slots=True)
class Loggers:
    """All loggers of a run; nothing here raises for what goes wrong in one of them."""

    names: Sequence[str]
    folder: Path
    """Of the run."""
    config: RunConfig
    _at_work: dict[str, Logger] = field(default_factory=dict)
    _rows: int = 0

    def open(self, kept: Iterable[Row]) -> None:
        """Begin, with the rows that are already there."""
        self._rows = 0
        for name in self.names:
            with self._harmless(name):
                self._at_work[name] = LOGGERS[name](self.folder, self.config)
        if self._at_work:
            for row in kept:
                self.row(row)

    def row(self, values: Row) -> None:
        """Give a row to all."""
        self._rows += 1
        for name, logger in list(self._at_work.items()):
            with self._harmless(name):
                logger.row(self._rows, values)

    def close(self) -> None:
        """End all."""
        for name, logger in list(self._at_work.items()):
            with self._harmless(name):
                logger.close()
        self._at_work = {}

    @contextmanager
    def _harmless(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._at_work.pop(name, None)
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            logging.getLogger(__name__).warning(
                "logger %s failed and is left out; the run itself goes on: %s", name, reason
            )
