"""Runs on this machine: worker processes that take one run after the other.

A worker that dies (killed, out of memory) loses its own run only; another takes its place. Workers end with their
parent, however that ends, and leave their state to be resumed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig
from ssm_priors.registry import ENGINES
from ssm_priors.studies.engines.engine import Job, Message, Workers, perform

GRACE = 5.0
"""Seconds that workers have to end by themselves."""


@ENGINES.register("local")
class LocalEngine:
    """Worker processes on this machine; the CPU threads of each are given by --threads."""

    def __init__(self, workers: Workers):
        if workers.address:
            raise BadConfig(f"address '{workers.address}' was given, but engine local works on this machine alone")
        self.workers = workers
        self._pool: list[_Worker] = []

    @property
    def free(self) -> int:
        """Workers without a job, those that are not there yet included."""
        return self.workers.count - sum(bool(worker.job) for worker in self._pool)

    def start(self, job: Job) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = next((worker for worker in self._pool if not worker.job), None)
        if worker is None:
            worker = _Worker(self.workers)
            self._pool.append(worker)
        worker.give(job)

    def wait(self, seconds: float) -> list[Message]:
        """One message from each worker that has one."""
        heard = wait([worker.pipe for worker in self._pool], seconds)
        told = [worker.receive() for worker in self._pool if worker.pipe in heard]
        self._pool = [worker for worker in self._pool if worker.is_alive]
        return [message for message in told if message]

    def close(self) -> None:
        """End all workers, after the step that they are at if it is not a long one."""
        for worker in self._pool:
            worker.process.terminate()
        until = time.monotonic() + GRACE
        for worker in self._pool:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._pool = []


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, workers: Workers):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, workers), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the worker does
        self.job = ""
        """Name of what it is at; empty while it is idle."""
        self.is_alive = True

    def give(self, job: Job) -> None:
        self.job = job.name
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while it was idle: the next `receive` tells
            self.pipe.send((job.config.to_dict(), job.folder))

    def receive(self) -> Message | None:
        """Its next message; None if it died without a job."""
        try:
            message: Message = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.is_alive = False
            return Message(self.job, "died", _cause_of_death(self.process.exitcode)) if self.job else None
        if message.kind not in ("started", "step"):
            self.job = ""
        return message


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"the worker process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"the worker process ended with exit code {exit_code}"


def _work(pipe: Connection, workers: Workers) -> None:
    """The worker's life: a run at a time, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop)
    os.environ.setdefault("OMP_NUM_THREADS", str(workers.threads))  # before torch is imported
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):  # the parent is gone, or it ends
        while not stop.was_asked:
            raw, folder = pipe.recv()
            stop.has_job = True
            pipe.send(perform(Job(RunConfig.from_dict(raw), folder), workers, pipe.send, lambda: stop.was_asked))
            stop.has_job = False


class _Stop:
    """Takes SIGTERM: a run ends after its step, with its state saved; a worker without one ends at once."""

    def __init__(self) -> None:
        self.has_job = self.was_asked = False

    def __call__(self, *_: object) -> None:
        self.was_asked = True
        if not self.has_job:
            raise KeyboardInterrupt


def _end_with_parent() -> None:
    """A killed parent says nothing, and between two messages its worker would go on for as long as a step takes."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)
