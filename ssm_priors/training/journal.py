"""What a run writes while it goes: `metrics.csv`, a row a step, and `state.pt`, all that is needed to go on.

The state remembers how long the metrics file was; on resuming, rows after that are cut off and written again, so the
file ends byte for byte as that of a run left alone.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor

from ssm_priors.batch import Batch
from ssm_priors.checkpoints import container
from ssm_priors.checkpoints.checkpoint import load_exactly
from ssm_priors.errors import BadData
from ssm_priors.metrics import Metric
from ssm_priors.models.build import Model
from ssm_priors.training.loggers.logger import Loggers, Row
from ssm_priors.training.teacher import Teacher

KIND = "state"


COLUMNS = ("phase", "step", "epoch", "loss", "learning_rate", "gradient_norm", "validation_loss")
"""What every run's `metrics.csv` has; one more is called after the task's metric."""


def columns(metric: Metric) -> tuple[str, ...]:
    """All columns of `metrics.csv`."""
    return (*COLUMNS, f"validation_{metric.name}")


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything here is in the saved state."""

    phase: str
    step: int = 0
    """Steps of this phase that are done."""
    best_step: int = 0
    best_metric: float | None = None
    """Best value of the validation metric so far; None before the first validation."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """Weights at `best_step`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each phase, over all sittings."""
    examples: dict[str, int] = field(default_factory=dict)
    """Training examples seen in each phase, repeats counted."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Valid positions seen in each phase, repeats counted."""
    shapes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Phase -> "BxL" -> how many of its steps had a batch of B examples padded to L positions."""

    def next(self, phase: str) -> Progress:
        """The start of the phase after this one; what was spent is carried on."""
        return Progress(phase, seconds=self.seconds, examples=self.examples, tokens=self.tokens, shapes=self.shapes)

    def count(self, batch: Batch) -> None:
        """Add a batch that was trained on."""
        self.examples[self.phase] = self.examples.get(self.phase, 0) + len(batch)
        self.tokens[self.phase] = self.tokens.get(self.phase, 0) + int(batch.lengths.sum())
        shapes, shape = self.shapes.setdefault(self.phase, {}), f"{len(batch)}x{batch.inputs.shape[1]}"
        shapes[shape] = shapes.get(shape, 0) + 1


class Saved(NamedTuple):
    """A state as it was saved."""

    progress: Progress
    tensors: dict[str, Tensor]
    metrics_bytes: int
    threads: int
    """Another number may round differently, so the run goes on with this one."""
    data_sha256: str
    """Of the data it was trained on so far."""
    devices: list[int]
    """Over how many it was trained so far, one after the other."""


class Journal:
    """The files of one run folder."""

    def __init__(
        self,
        folder: Path,
        save_every: float,
        loggers: Loggers | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ):
        self.folder = folder
        self.loggers = loggers
        self.stopping = stopping
        self.columns: tuple[str, ...] = ()
        self.data_sha256 = ""
        self.devices = [1]
        self.save_every = save_every
        self.state = folder / "state.pt"
        self.metrics = folder / "metrics.csv"
        self._metrics: TextIO
        self._saved = time.monotonic()

    def read(self) -> Saved | None:
        """What an interrupted run left to go on from; None at the beginning.

        Raises:
            BadCheckpoint: the file is damaged; removing it starts the run again.
        """
        if not self.state.exists():
            return None
        record, tensors = container.read(self.state, KIND)
        progress = Progress(**record["progress"], best=_under("best.", tensors))
        return Saved(
            progress,
            tensors,
            record["metrics_bytes"],
            record["threads"],
            record["data_sha256"],
            record.get("devices", [1]),
        )

    def open(self, keep_bytes: int, metric: Metric) -> None:
        """Open the metrics file for appending, cut to its first `keep_bytes` bytes; raises BadData if it has fewer."""
        self.columns = columns(metric)
        self.refuse_short(keep_bytes)
        self._metrics = open(self.metrics, "a", encoding="utf-8", newline="")  # noqa: SIM115 (closed by `close`)
        self._metrics.truncate(keep_bytes)
        if keep_bytes == 0:
            self._metrics.write(",".join(self.columns) + "\n")
        if self.loggers:
            self.loggers.open(self._kept())

    def refuse_short(self, bytes: int) -> None:
        """Raise BadData if the metrics file is shorter than a saved state says."""
        if bytes and (not self.metrics.exists() or self.metrics.stat().st_size < bytes):
            raise BadData(f"{self.metrics} lacks rows that state.pt counts on; remove state.pt to begin this run again")

    def close(self) -> None:
        """Flush and close the metrics file, and let the loggers end."""
        self._metrics.close()
        if self.loggers:
            self.loggers.close()

    def row(self, values: dict[str, Any]) -> None:
        """Append one step's row; absent columns stay empty, floats are written so that they read back exactly."""
        self._metrics.write(",".join(_cell(values.get(column)) for column in self.columns) + "\n")
        if self.loggers:
            self.loggers.row({column: values.get(column) for column in self.columns})

    def _kept(self) -> Iterator[Row]:
        """The rows that are in the file."""
        self._metrics.flush()
        with open(self.metrics, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield {name: text if name == "phase" else _number(text) for name, text in row.items()}

    def save_if_due(
        self, progress: Progress, model: Model, optimiser: torch.optim.Optimizer, teacher: Teacher | None = None
    ) -> None:
        """Save the state if the last time is long enough ago; or because the run is to stop, by KeyboardInterrupt."""
        is_over = self.stopping()
        if is_over or time.monotonic() - self._saved >= self.save_every:
            self.save(progress, model, optimiser, teacher)
        if is_over:
            raise KeyboardInterrupt

    def save(
        self, progress: Progress, model: Model, optimiser: torch.optim.Optimizer, teacher: Teacher | None = None
    ) -> None:
        """Write `state.pt`; the metrics rows it counts are on the disk before it is."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in progress.best.items()}
        if teacher is not None:
            tensors |= {f"teacher.{name}": tensor for name, tensor in teacher.state_dict().items()}
        for index, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in moments.items()}
        fields = ("phase", "step", "best_step", "best_metric", "seconds", "examples", "tokens", "shapes")
        record = {
            "progress": {name: getattr(progress, name) for name in fields},
            "metrics_bytes": self._metrics.tell(),
            "threads": torch.get_num_threads(),
            "data_sha256": self.data_sha256,
            "devices": self.devices,
        }
        container.write(self.state, KIND, record, tensors)
        self._saved = time.monotonic()

    def discard_state(self) -> None:
        """Remove what is only needed to go on."""
        self.state.unlink(missing_ok=True)


def restore(
    model: Model, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], teacher: Teacher | None = None
) -> None:
    """Put a saved state's tensors back."""
    load_exactly(model, _under("model.", tensors))
    if teacher is not None:
        teacher.restore(_under("teacher.", tensors))
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _under("optimiser.", tensors).items():
        index, name = key.split(".")
        moments.setdefault(int(index), {})[name] = tensor
    state = optimiser.state_dict()
    optimiser.load_state_dict({"state": moments, "param_groups": state["param_groups"]})


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
