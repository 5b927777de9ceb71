"""Runs on this machine: worker processes that take one run after the other.

A worker that dies (killed, out of memory) fails its own run only; another takes its place. Workers notice the end of
their parent at the next message and stop, leaving their state to be resumed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from ssm_priors.config import RunConfig
from ssm_priors.errors import SsmPriorsError

LEAST_BETWEEN_REPORTS = 0.2
"""Seconds; more often is not seen by anybody."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to execute."""

    config: RunConfig
    folder: Path


@dataclass(frozen=True, slots=True)
class Message:
    """What became of a job, or where it stands."""

    job: int
    """Index into the jobs."""
    kind: Literal["started", "step", "finished", "failed"]
    content: Any = None
    """A StepReport, or the reason of a failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalEngine:
    """A pool of worker processes."""

    workers: int
    threads: int
    """CPU threads of each worker."""
    device: str = "auto"
    save_every: float = 20.0
    """Seconds between saved states."""
    malloc_tuning: bool = True
    """Whether workers keep freed memory for their next tensors."""

    def execute(self, jobs: Sequence[Job]) -> Iterator[Message]:
        """Run all jobs, in the given order as workers become free; ends when each has finished or failed."""
        waiting = list(range(len(jobs)))
        pool: dict[Connection, _Worker] = {}
        try:
            while waiting or pool:
                while waiting and len(pool) < min(self.workers, len(jobs)):
                    worker = _Worker(self)
                    pool[worker.pipe] = worker
                    worker.give(waiting.pop(0), jobs)
                for pipe in wait(list(pool)):
                    worker = pool[pipe]  # type: ignore[index]
                    message = worker.receive()
                    yield message
                    if message.kind in ("started", "step"):
                        continue
                    if waiting and worker.is_alive:
                        worker.give(waiting.pop(0), jobs)
                    else:
                        worker.stop()
                        del pool[pipe]  # type: ignore[arg-type]
        finally:
            for worker in pool.values():
                worker.stop()


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, engine: LocalEngine):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, engine), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the worker does
        self.job = -1
        self.is_alive = True

    def give(self, job: int, jobs: Sequence[Job]) -> None:
        self.job = job
        self.pipe.send((job, jobs[job].config.to_dict(), jobs[job].folder))

    def receive(self) -> Message:
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.is_alive = False
            return Message(self.job, "failed", _cause_of_death(self.process.exitcode))

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"the worker process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"the worker process ended with exit code {exit_code}"


def _work(pipe: Connection, engine: LocalEngine) -> None:
    """The worker's life: a run at a time, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.environ.setdefault("OMP_NUM_THREADS", str(engine.threads))  # before torch is imported below
    from ssm_priors.training.run import run

    try:
        while True:
            job, raw, folder = pipe.recv()
            pipe.send(Message(job, "started"))
            try:
                run(
                    RunConfig.from_dict(raw),
                    folder,
                    device=engine.device,
                    threads=engine.threads,
                    save_every=engine.save_every,
                    malloc_tuning=engine.malloc_tuning,
                    watch=_throttled(pipe, job),
                )
                outcome = Message(job, "finished")
            except SsmPriorsError as error:
                outcome = Message(job, "failed", str(error))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception:  # a bug in one run must not end the study; the whole traceback becomes its reason
                outcome = Message(job, "failed", traceback.format_exc())
            pipe.send(outcome)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone; the saved state is for whoever comes next


def _throttled(pipe: Connection, job: int) -> Any:
    last = 0.0

    def watch(report: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if report.metric is None and report.step < report.steps and now - last < LEAST_BETWEEN_REPORTS:
            return
        last = now
        pipe.send(Message(job, "step", report))

    return watch
