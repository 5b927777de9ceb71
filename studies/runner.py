"""A study from plan to results: claim the folder, refuse what cannot work, run what is not done, tell what happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from ssm_priors import atomic
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig
from ssm_priors.studies.engines.local import Job, LocalEngine
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.training.loop import StepReport
from ssm_priors.training.run import CHECKPOINT

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
    with _claimed(study, out):
        runs = plan(study, out)
        for run in runs:
            if run.is_done:
                yield Event("kept", run)
        todo = sorted((run for run in runs if not run.is_done), key=lambda run: -run.size)
        for message in engine.execute([Job(run.config, run.folder) for run in todo]):
            run = todo[message.job]
            if message.kind == "failed":
                run.folder.mkdir(parents=True, exist_ok=True)
                atomic.write_text(run.folder / FAILURE, message.content)
                yield Event("failed", run, reason=message.content)
            elif message.kind == "finished":
                (run.folder / FAILURE).unlink(missing_ok=True)
                yield Event("finished", run)
            else:
                yield Event(message.kind, run, report=message.content)


def share_cores(runs: int, workers: int | None, threads: int | None) -> tuple[int, int]:
    """Workers and threads each: as many workers as there are runs or cores, and the cores divided among them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = workers or max(1, min(runs, cores // (threads or 1)))
    return workers, threads or max(1, cores // workers)


@contextmanager
def _claimed(study: Study, out: Path) -> Iterator[None]:
    """Hold the folder, and write `study.toml` into it or find a study there that this one contains."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadConfig(f"{out}: another process is running this study") from None
    try:
        path = out / "study.toml"
        if path.exists():
            _refuse_other(study, path)
        elif any(entry.name != ".lock" for entry in out.iterdir()):
            raise BadConfig(f"{out} holds files but no study; choose an empty or a new folder")
        atomic.write_text(path, study.to_toml())
        yield
    finally:
        lock.release()


def _refuse_other(study: Study, path: Path) -> None:
    """A folder's study may be run again or extended (more seeds, more values), never replaced by another."""
    before = Study.read(path)
    lost = {config.fingerprint for *_, config in before.runs()} - {config.fingerprint for *_, config in study.runs()}
    if lost:
        raise BadConfig(
            f"{path.parent} holds another study: {len(lost)} of its runs are not in this one. Choose another --out"
        )
