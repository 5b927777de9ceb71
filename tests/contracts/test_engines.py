"""Every engine executes runs, tells what becomes of them, and outlives their failures and their workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import builders
import pytest

from ssm_priors.registry import ENGINES
from ssm_priors.studies.engines.engine import Job, Message, Workers
from ssm_priors.training.run import read_finished

NEEDS = {"ray": "ray"}
"""Engine -> the module that it cannot do without."""
pytestmark = pytest.mark.xdist_group("engines")


@pytest.fixture(params=list(ENGINES))
def engine(request):
    if NEEDS.get(request.param) and not find_spec(NEEDS[request.param]):
        pytest.skip(f"{NEEDS[request.param]} is not installed")
    with closing(ENGINES[request.param](Workers(count=2, device="cpu", save_every=0.0))) as engine:
        yield engine


def heard_of(engine) -> Iterator[Message]:
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        yield from engine.wait(0.5)


def job(folder: Path, seed: int = 0, **changes) -> Job:
    config = builders.config(seed=seed, **changes)
    return Job(config, folder / config.fingerprint)


def until(engine, ended: int) -> list:
    """All messages up to the one that ends so many jobs."""
    heard = []
    for message in heard_of(engine):
        heard.append(message)
        if sum(message.kind not in ("started", "step") for message in heard) == ended:
            return heard
    raise AssertionError(heard)


def begun(folder: Path) -> None:
    """Waits until a run has saved a state."""
    limit = time.monotonic() + 120
    while not (folder / "state.pt").exists():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_it_does_good_jobs_tells_of_bad_ones_and_takes_the_next(engine, tmp_path):
    assert engine.free == 2
    good, bad = job(tmp_path), job(tmp_path, seed=1, finetune={"learning_rate": 1e30, "clip": 1e30, "warmup": 0.0})
    engine.start(good)
    engine.start(bad)
    assert engine.free == 0
    heard = until(engine, 2)
    ends = {message.job: message for message in heard if message.kind not in ("started", "step")}
    assert (ends[good.name].kind, ends[bad.name].kind) == ("finished", "failed")
    assert "learning_rate" in ends[bad.name].content
    assert "Traceback" not in ends[bad.name].content
    told = [message for message in heard if message.job == good.name]
    assert [message.kind for message in told[:2]] == ["started", "step"]
    assert told[-2].content.step == told[-2].content.steps
    read_finished(good.folder, good.config)
    assert engine.free == 2
    third = job(tmp_path, seed=2)
    engine.start(third)
    assert [message.kind for message in until(engine, 1)][-1] == "finished"
    read_finished(third.folder, third.config)


def test_a_killed_worker_costs_its_own_job_only_and_another_goes_on_from_the_saved_state(engine, tmp_path):
    doomed, other = job(tmp_path, finetune={"epochs": 2000}), job(tmp_path, seed=1)
    engine.start(doomed)
    begun(doomed.folder)
    engine.start(other)
    os.kill(at_work(doomed.folder), signal.SIGKILL)
    ends = {message.job: message for message in until(engine, 2) if message.kind not in ("started", "step")}
    assert (ends[doomed.name].kind, ends[other.name].kind) == ("died", "finished")
    engine.start(doomed)
    assert next(message for message in heard_of(engine) if message.kind == "step").content.step > 1


def test_closing_ends_what_runs_and_keeps_its_state(engine, tmp_path):
    running = job(tmp_path, finetune={"epochs": 2000})
    engine.start(running)
    begun(running.folder)
    worker = at_work(running.folder)
    engine.close()
    limit = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    assert (running.folder / "state.pt").exists()
    assert not (running.folder / "ckpt.pt").exists()
    assert not multiprocessing.active_children()


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
