"""A study from plan to results: claim the folder, refuse what cannot work, run what is not done, tell what happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ssm_priors import atomic
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint, BadConfig, BadData
from ssm_priors.folder import claimed
from ssm_priors.studies.engines.local import Job, LocalEngine
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.training.loop import StepReport
from ssm_priors.training.run import CHECKPOINT, CONFIG, read_finished

FAILURE = "failed.txt"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a study and where it lives."""

    cell: Cell
    seed: int
    config: RunConfig
    folder: Path

    @property
    def is_done(self) -> bool:
        """Whether its checkpoint is there; a finished run is never done again."""
        return (self.folder / CHECKPOINT).exists()

    def damage(self) -> str:
        """What is wrong with what a finished run left, and what to do; empty if nothing is."""
        try:
            read_finished(self.folder, self.config)
        except (BadCheckpoint, BadData) as error:
            return f"{error}. Remove {self.folder} to run it again"
        return ""

    def note_failure(self, reason: str) -> None:
        """Leave the reason in the run's folder; with the configuration, without which a later try may not claim it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / CONFIG).exists():
            atomic.write_text(self.folder / CONFIG, self.config.to_toml())
        atomic.write_text(self.folder / FAILURE, reason)

    @property
    def size(self) -> float:
        """Relative cost: epochs times fraction."""
        epochs = self.config.finetune.epochs + (self.config.pretrain.epochs if self.config.pretrain else 0)
        return epochs * self.config.fraction


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run."""

    kind: Literal["kept", "started", "step", "finished", "failed"]
    run: Run
    report: StepReport | None = None
    reason: str = ""


def plan(study: Study, out: Path) -> list[Run]:
    """Every run of a study, with its folder under `out`."""
    return [Run(cell, seed, config, out / "runs" / config.fingerprint) for cell, seed, config in study.runs()]


def execute(study: Study, out: Path, engine: LocalEngine) -> Iterator[Event]:
    """Run what is not done yet, the largest first, and yield what happens; a failed run does not stop the others.

    Args:
        study: the grid.
        out: the study's folder; made if it is not there.
        engine: where the runs go.

    Raises:
        BadConfig: the folder belongs to another study, or another process is at work in it.
    """
    with claimed(out, "study.toml", study.to_toml(), lambda path: _refuse_other(study, path)):
        runs = plan(study, out)
        for run in runs:
            if run.is_done:
                damage = run.damage()
                yield Event("failed", run, reason=damage) if damage else Event("kept", run)
        todo = sorted((run for run in runs if not run.is_done), key=lambda run: -run.size)
        for message in engine.execute([Job(run.config, run.folder) for run in todo]):
            run = todo[message.job]
            if message.kind == "failed":
                run.note_failure(message.content)
                yield Event("failed", run, reason=message.content)
            elif message.kind == "finished":
                (run.folder / FAILURE).unlink(missing_ok=True)
                yield Event("finished", run)
            else:
                yield Event(message.kind, run, report=message.content)


def workers_for(runs: int, threads: int) -> int:
    """As many runs at a time as there are runs, or as the cores allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(runs, cores // threads))


def _refuse_other(study: Study, path: Path) -> None:
    """A folder's study may be run again or extended (more seeds, more values), never replaced by another."""
    before = Study.read(path)
    lost = {config.fingerprint for *_, config in before.runs()} - {config.fingerprint for *_, config in study.runs()}
    if lost:
        raise BadConfig(
            f"{path.parent} holds another study: {len(lost)} of its runs are not in this one. Choose another --out"
        )
