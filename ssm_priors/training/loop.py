"""One phase of training: step, validate, keep the best, save, resume.

Data order, masks and dropout of a step are functions of (seed, phase, step), so a resumed phase needs no generator
state and repeats exactly what the uninterrupted one did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.config import PhaseConfig
from ssm_priors.errors import BadConfig, RunFailed
from ssm_priors.metrics import ACCURACY, Metric, metric_of
from ssm_priors.models.build import Model
from ssm_priors.objectives.objective import Objective, Problem
from ssm_priors.seeds import reseed, torch_stream
from ssm_priors.tasks.task import Split
from ssm_priors.training.evaluate import evaluate
from ssm_priors.training.journal import Journal, Progress, restore
from ssm_priors.training.optimiser import adamw, set_rate
from ssm_priors.training.teacher import Teacher, taught, teacher_of
from ssm_priors.training.team import ALONE, Team


@dataclass(frozen=True, slots=True)
class StepReport:
    """What is told after every step to whoever watches."""

    phase: str
    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    metric: float | None
    """Its value on the validation split, on steps that end an epoch of finetuning."""
    examples: int
    """Seen in this phase so far, repeats counted."""
    measure: Metric = ACCURACY
    """What `metric` is a value of."""
    ends_epoch: bool = False
    """Whether the training split has been gone through once more, or the phase is over."""


if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule

Watch = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase, ready to train."""

    name: str
    settings: PhaseConfig
    objective: Objective
    train: Split
    validation: Split | None
    """None: no validation, the last weights are kept. Pretraining must not see these inputs."""
    seed: int
    spec: TaskSpec
    allowed: int | None = None
    """Steps that a budget leaves to this phase; None means its epochs."""

    def __post_init__(self) -> None:
        """Refuse a warm-up that would never end; raises BadConfig."""
        if self.settings.warmup_steps >= self.steps:
            raise BadConfig(
                f"{self.name}.warmup_steps: {self.settings.warmup_steps} were given, but the phase has "
                f"{self.steps} steps; give fewer, or 0 for the share {self.name}.warmup, {self.settings.warmup:g} "
                f"(on the command line: --set {self.name}.warmup_steps=0)"
            )

    @property
    def metric(self) -> Metric:
        """What validation measures."""
        return metric_of(self.spec)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that cover the training split once; the last may be smaller."""
        return -(-len(self.train) // self.settings.batch_size)

    @property
    def steps(self) -> int:
        """Batches of the whole phase."""
        return self.steps_per_epoch * self.settings.epochs if self.allowed is None else self.allowed

    @property
    def epochs(self) -> int:
        """Passes over the training split, the last of which a budget may cut short."""
        return -(-self.steps // self.steps_per_epoch)

    def ends_epoch(self, steps: int) -> bool:
        """Whether so many steps go through the training split a whole number of times, or are all there are."""
        return steps % self.steps_per_epoch == 0 or steps == self.steps

    def rows(self, step: int) -> Tensor:
        """The examples of a step: every epoch is one permutation, cut into batches."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.train), generator=torch_stream(self.seed, "order", self.name, epoch))
        return order[position * self.settings.batch_size :][: self.settings.batch_size]

    def pose(self, batch: Batch, step: int) -> Problem:
        """What a step asks about its batch."""
        return self.objective.pose(batch, torch_stream(self.seed, "masks", self.name, step))

    def score(self, model: Callable[..., Tensor], batch: Batch, problem: Problem) -> tuple[Tensor, int]:
        """The model's loss on a posed batch, summed over what is scored, and how many that is."""
        return self.objective.score(model(*problem.given(batch)), problem)


def train(
    phase: Phase,
    model: Model,
    fabric: Fabric,
    journal: Journal,
    progress: Progress,
    saved: dict[str, Tensor] | None,
    watch: Watch,
    team: Team = ALONE,
) -> dict[str, Tensor]:
    """Train one phase to its end, from its start or from a saved state, and give its weights.

    Args:
        phase: what to learn, from what.
        model: trained in place.
        fabric: device and precision.
        journal: receives a row a step, and the state when it is due.
        progress: where to begin; brought up to date.
        saved: the tensors of that state; None at the start of the phase.
        watch: told after every step.
        team: the devices that share the batches. Only the first of them validates, and has a journal and a watch.

    Returns:
        The state dict with the best validation metric (the first of equals), or the last one without validation.

    Raises:
        RunFailed: the loss or the gradient is not finite.
    """
    module, optimiser = fabric.setup(model, adamw(model, phase.settings))
    teacher = teacher_of(phase.objective, model)
    if saved:
        restore(model, optimiser.optimizer, saved, teacher)
    team.refuse_unequal(model)
    watcher = _Clock(progress, phase.name)
    for step in range(progress.step, phase.steps):
        model.train()
        set_rate(optimiser, phase.settings, step, phase.steps, phase.steps_per_epoch)
        loss, norm, batch = _step(phase, module, optimiser, fabric, step, teacher, team)
        if teacher is not None:
            teacher.follow(model)
        if not team.is_first:
            continue
        metrics = _validate(phase, model, fabric.device, progress, step + 1)
        progress.step = step + 1
        progress.count(batch)
        epoch = step // phase.steps_per_epoch
        rate = optimiser.param_groups[-1]["lr"]
        row = {"phase": phase.name, "step": step + 1, "epoch": epoch, "loss": loss, "learning_rate": rate}
        journal.row(row | {"gradient_norm": norm} | metrics)
        watcher.tick()
        journal.save_if_due(progress, model, optimiser.optimizer, teacher)
        value, seen = metrics.get(f"validation_{phase.metric.name}"), progress.examples[phase.name]
        told = (loss, value, seen, phase.metric, phase.ends_epoch(step + 1))
        watch(StepReport(phase.name, step + 1, phase.steps, epoch, phase.epochs, *told))
    team.refuse_unequal(model)
    return progress.best or _copy(model)


def _step(
    phase: Phase,
    module: _FabricModule,
    optimiser: torch.optim.Optimizer,
    fabric: Fabric,
    step: int,
    teacher: Teacher | None,
    team: Team = ALONE,
) -> tuple[float, float, Batch]:
    """Forward, backward, clip, update: the loss before the update, the gradient's norm, the batch; all of the whole."""
    whole = phase.train.take(phase.rows(step)).to(fabric.device)
    batch, problem = team.share(whole, phase.pose(whole, step))
    reseed(phase.seed, "dropout", phase.name, step, *team.stream)
    if len(batch):
        with fabric.autocast():
            problem = taught(phase.objective, problem, batch, teacher)
        total, count = phase.score(module, batch, problem)
    else:
        total, count = torch.zeros((), device=fabric.device, requires_grad=True), 0  # whose gradient reaches nothing
    all_total, all_count = team.sums(total.detach(), count)
    if all_count == 0:
        raise RunFailed(
            f"{phase.name}, step {step + 1}: no position of the batch is scored; its examples are too short"
        )
    loss = all_total / all_count
    optimiser.zero_grad()
    fabric.backward(total / all_count)
    team.sum_gradients(module)
    limit = phase.settings.clip or math.inf
    norm = fabric.clip_gradients(module, optimiser, max_norm=limit, error_if_nonfinite=False)
    assert norm is not None  # it is only where a strategy clips inside its own step
    if not (bool(torch.isfinite(loss)) and bool(torch.isfinite(norm))):
        raise RunFailed(
            f"{phase.name}, step {step + 1} of {phase.steps}: loss {loss.item():.4g}, gradient norm {norm.item():.4g}. "
            f"Try a smaller learning_rate (now {phase.settings.learning_rate:g}) or ssm_learning_rate "
            f"(now {phase.settings.ssm_learning_rate:g}), a longer warmup, or a smaller clip."
        )
    optimiser.step()
    return loss.item(), norm.item(), whole


def _validate(phase: Phase, model: Model, device: torch.device, progress: Progress, step: int) -> dict[str, float]:
    """Where an epoch ends: metrics, and a copy of the weights they belong to if they are the best so far."""
    if phase.validation is None or not phase.ends_epoch(step):
        return {}
    result = evaluate(model, phase.validation, phase.settings.batch_size, device, phase.spec)
    value = result.value
    if progress.best_metric is None or phase.metric.is_better(value, progress.best_metric):
        progress.best_metric, progress.best_step, progress.best = value, step, _copy(model)
    return {"validation_loss": result.loss, f"validation_{phase.metric.name}": value}


def _copy(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


class _Clock:
    """Adds the time since the last tick to a phase's seconds."""

    def __init__(self, progress: Progress, phase: str):
        self.progress, self.phase = progress, phase
        self.last = time.perf_counter()

    def tick(self) -> None:
        now = time.perf_counter()
        self.progress.seconds[self.phase] = self.progress.seconds.get(self.phase, 0.0) + now - self.last
        self.last = now
