"""How tests run studies: in this process, a run at a time and each as it is told; and in processes of their own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ssm_priors.studies.engines.engine import Message, Workers, perform
from ssm_priors.studies.grid import Study

SCRIPT = Path(__file__).parent / "studies" / "run_study.py"


class OneByOne:
    """An engine that does a job when it is asked what happened, in the way it is told."""

    def __init__(self, do: Callable):
        self.do, self.jobs, self.begun = do, [], []

    @property
    def free(self):
        return 0 if self.jobs else 1

    def start(self, job):
        self.jobs.append(job)
        self.begun.append(job.name)

    def wait(self, seconds):
        return [self.do(self.jobs.pop())] if self.jobs else []

    def close(self):
        self.jobs = []


def train(job):
    return perform(job, Workers(count=1, device="cpu"), lambda message: None)


def die(job):
    return Message(job.name, "died", "the worker process was ended by SIGKILL")


def fail(job):
    return Message(job.name, "failed", "boom")


def fill_the_disk(job):
    return Message(job.name, "no room", os.strerror(errno.ENOSPC))


def runner(study: Study, out: Path, workers: int = 1) -> subprocess.Popen:
    line = [sys.executable, str(SCRIPT), str(out), study.to_toml(), str(workers)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen) -> list[list]:
    """All events of a runner that ends by itself."""
    said, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors, errors
    return [json.loads(line) for line in said.splitlines()]


def wait_for(condition) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def at_work(folder: Path) -> int:
    """The process that has a run's metrics open."""
    metrics = folder / "metrics.csv"
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(handle.samefile(metrics) for handle in (process / "fd").iterdir()):
                    return int(process.name)
            except (OSError, PermissionError):
                continue
    raise AssertionError(f"no process has {metrics} open")
