"""What a study will take, told before it is started and while it runs.

    FLOPs of a phase = those of its batches, as `training.compute` counts them, padded as in its first epoch
    seconds of a phase = steps x seconds a step + validation;  a pass over the validation split costs the forward share

Seconds a step are those of runs that are finished or at work, or else of a few steps that are timed here and thrown
away. What happens outside of training (starting workers, saving, testing) is in neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.build import Model, parameter_count
from ssm_priors.registry import TASKS
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.tuning import settled, trials
from ssm_priors.tasks.task import Task
from ssm_priors.training.compute import Flops, expected_shapes, phase_flops, step_flops
from ssm_priors.training.loop import Phase, StepReport
from ssm_priors.training.optimiser import adamw
from ssm_priors.training.run import CHECKPOINT
from ssm_priors.training.stages import staged, step_cost
from ssm_priors.training.teacher import taught, teacher_of

MOST_TIMED = 5e10
"""FLOPs of a step that is timed whole; of a larger one, as many examples as cost that much."""
COUNTING = 0.02
"""Share of a study's time that may be spent on counting FLOPs for its estimate."""
ROW = 100
"""Bytes of a row of metrics.csv, about."""
SMALL_FILES = 8_000
"""Bytes of a run's other files, about."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a cell's runs once its data are loaded and its models built."""

    parameters: int
    steps: dict[str, int]
    """Phase -> steps."""
    test_examples: int

    @property
    def bytes(self) -> int:
        """What a finished run leaves on the disk, about: weights after each phase, metrics, predictions."""
        weights = 4 * self.parameters * len(self.steps)
        return weights + ROW * sum(self.steps.values()) + 16 * self.test_examples + SMALL_FILES


def survey(study: Study) -> dict[Cell, Outline]:
    """Find out whether every cell can work, before anything leaves a trace, and what its runs consist of.

    Raises:
        UnknownName, BadConfig, BadData
    """
    return {cell: _outline(config, task) for cell, config, task in loaded(study)}


def loaded(study: Study) -> Iterator[tuple[Cell, RunConfig, Task]]:
    """Every cell with its first run and its whole task; those of one task follow each other, so it is loaded once."""
    part, task = None, None
    for cell in study.cells():
        config = study.config(cell, seed=0)
        if task is None or config.task != part:
            part, task = config.task, TASKS[config.task.name].load(config.task.options)
        yield cell, config, task


def _outline(config: RunConfig, whole: Task) -> Outline:
    stages = list(staged(config, whole))
    _, model, task = stages[-1]
    return Outline(parameter_count(model), {phase.name: phase.steps for phase, *_ in stages}, len(task.test))


def count(config: RunConfig, whole: Task | None = None) -> dict[str, Flops]:
    """Phase -> its FLOPs, without training; `whole` is the task, if it was loaded before."""
    return {
        phase.name: phase_flops(step_cost(config, task.spec, phase), expected_shapes(phase))
        for phase, _, task in staged(config, whole)
    }


def time_phases(config: RunConfig, device: torch.device, threads: int, whole: Task | None = None) -> dict[str, float]:
    """Phase -> seconds, from steps that are timed on this machine, one run at a time; `whole` as for `count`."""
    torch.set_num_threads(threads)
    return {phase.name: _phase_seconds(phase, model, task, device) for phase, model, task in staged(config, whole)}


def _phase_seconds(phase: Phase, model: Model, task: Task, device: torch.device) -> float:
    flops = step_flops(phase, model, phase.settings.batch_size, task.spec.length)
    seconds = _step_seconds(phase, model.to(device), flops, device)
    if phase.validation is None:
        return phase.steps * seconds
    batches = phase.epochs * len(phase.validation) / phase.settings.batch_size
    return phase.steps * seconds + batches * seconds * flops.forward / flops.training


def _step_seconds(phase: Phase, model: Model, flops: Flops, device: torch.device) -> float:
    """Of a whole training step: the shortest of three, after one that warms up."""
    rows = phase.rows(0)
    part = rows[: max(1, round(len(rows) * min(1.0, MOST_TIMED / max(flops.training, 1))))]
    batch, teacher = phase.train.take(part).to(device), teacher_of(phase.objective, model)
    optimiser = adamw(model, phase.settings)
    took = []
    model.train()
    for _ in range(4):
        began = time.perf_counter()
        problem = taught(phase.objective, phase.pose(batch, 0), batch, teacher)
        total, scored = phase.score(model, batch, problem)
        optimiser.zero_grad()
        (total / scored).backward()
        optimiser.step()
        total.item()  # waits for the device
        took.append(time.perf_counter() - began)
    return min(took[1:]) * len(rows) / len(part)


def finished_seconds(study: Study, out: Path) -> dict[Cell, float]:
    """Cell -> seconds of training of its finished runs and trials in a study's folder, on average."""
    times: dict[Cell, list[float]] = {}
    for cell, _, config in [*trials(study), *settled(study, out).runs()]:
        path = out / "runs" / config.fingerprint / CHECKPOINT
        if path.exists() and (seconds := _recorded(path)):
            times.setdefault(cell, []).append(seconds)
    return {cell: float(np.mean(one)) for cell, one in times.items()}


def _recorded(path: Path) -> float:
    try:
        cost = Checkpoint.read(path).record.get("cost", {})
    except BadCheckpoint:  # a runner will find it and set it aside
        return 0.0
    return float(sum(cost.get("seconds", {}).values()))


Kind = tuple[str, str, str, str, str]
"""Phase, model, task, variant and objective: what decides how long a step takes, in one study."""


def kind_of(phase: str, cell: Cell) -> Kind:
    """Of a phase of a cell's runs."""
    return phase, cell.model, cell.task, cell.variant, cell.pretrain if phase == "pretrain" else ""


@dataclass(slots=True)
class Spent:
    """What a kind of phase has taken so far."""

    seconds: float = 0.0
    steps: int = 0


@dataclass(slots=True)
class Pace:
    """How long steps take, by kind: as measured; else by their FLOPs, as fast as others go; else as others do.

    Args:
        study: whose runs they are.
        outlines: of its cells.
    """

    study: Study
    outlines: Mapping[Cell, Outline]
    spent: dict[Kind, Spent] = field(default_factory=dict)
    flops: dict[Kind, float] = field(default_factory=dict)
    """FLOPs a step, where they were counted."""
    counted: float = 0.0
    """Seconds that counting took."""
    _last: dict[str, tuple[str, int, float]] = field(default_factory=dict)

    def take(self, name: str, cell: Cell, report: StepReport) -> None:
        """Learn from a run's report: the time since the one before it, in the same phase."""
        now = time.monotonic()
        phase, step, then = self._last.get(name, ("", 0, now))
        if phase == report.phase and report.step > step:
            spent = self.spent.setdefault(kind_of(phase, cell), Spent())
            spent.seconds += now - then
            spent.steps += report.step - step
        self._last[name] = report.phase, report.step, now

    def forget(self, name: str) -> None:
        """A run is not at work any more: the time until it is heard of again says nothing."""
        self._last.pop(name, None)

    def left(self, cell: Cell, report: StepReport | None) -> float | None:
        """Seconds that a run still needs, of which this is the last report; None while nothing was measured."""
        parts = [self._seconds(phase, cell, steps, report) for phase, steps in self.outlines[cell].steps.items()]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def look_ahead(self, elapsed: float) -> None:
        """Count the FLOPs of one more cell, if some kind has not run yet and there was time enough for it."""
        kinds = {kind_of(phase, cell): cell for cell, outline in self.outlines.items() for phase in outline.steps}
        if not self.spent or kinds.keys() <= self.spent.keys() or self.counted > COUNTING * elapsed:
            return
        cell = next((cell for kind, cell in kinds.items() if kind not in self.flops), None)
        if cell is None:
            return
        began = time.monotonic()
        for phase, flops in count(self.study.config(cell, seed=0)).items():
            self.flops[kind_of(phase, cell)] = flops.training / self.outlines[cell].steps[phase]
        self.counted += time.monotonic() - began

    def _seconds(self, phase: str, cell: Cell, steps: int, report: StepReport | None) -> float | None:
        """Of what is left of one phase."""
        phases = list(self.outlines[cell].steps)
        if report is not None and phases.index(report.phase) >= phases.index(phase):
            steps = steps - report.step if report.phase == phase else 0
        step = self._step(kind_of(phase, cell))
        return None if step is None else steps * step

    def _step(self, kind: Kind) -> float | None:
        """Seconds of one step."""
        if kind in self.spent:
            return self.spent[kind].seconds / self.spent[kind].steps
        counted = [one for one in self.spent if one in self.flops]
        if counted and kind in self.flops:
            seconds = sum(self.spent[one].seconds for one in counted)
            return self.flops[kind] * seconds / sum(self.flops[one] * self.spent[one].steps for one in counted)
        if self.spent:
            return sum(one.seconds for one in self.spent.values()) / sum(one.steps for one in self.spent.values())
        return None
