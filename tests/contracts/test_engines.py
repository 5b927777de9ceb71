"""Every engine executes runs, tells what becomes of them, and outlives their failures and their workers."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import builders
import pytest
from runners import at_work
from stores import Failing

from ssm_priors.registry import ENGINES
from ssm_priors.studies import afar
from ssm_priors.studies.engines.engine import Job, Message, Workers
from ssm_priors.studies.store import Store
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


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Ray workers that have a folder of their own and see a store, but nothing of the runner's."""
    pytest.importorskip("ray")
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "node"))
    workers = Workers(count=2, device="cpu", save_every=0.0, store=f"file://{tmp_path}/store")
    with closing(ENGINES["ray"](workers)) as engine:
        yield engine


def test_ray_workers_that_share_no_disk_bring_their_runs_and_states_to_the_store(apart, tmp_path):
    good, doomed = job(tmp_path / "runner"), job(tmp_path / "runner", seed=1, finetune={"epochs": 2000})
    apart.start(good)
    assert [message.kind for message in until(apart, 1)][-1] == "finished"
    read_finished(tmp_path / "store" / "runs" / good.name, good.config)
    apart.start(doomed)
    begun(tmp_path / "store" / "runs" / doomed.name)
    [folder] = (tmp_path / "node" / "tasks").glob("*/*")
    os.kill(at_work(folder), signal.SIGKILL)
    assert until(apart, 1)[-1].kind == "died"
    shutil.rmtree(tmp_path / "node")  # the next try is at another node
    apart.start(doomed)
    assert next(message for message in heard_of(apart) if message.kind == "step").content.step > 1
    assert not (tmp_path / "runner").exists()
    assert {path.name for path in (tmp_path / "node" / "tasks").glob("*/*")} == {doomed.name}, (
        "what is there is gone here"
    )


def test_a_ray_worker_that_cannot_reach_the_store_says_so_and_keeps_its_run(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(afar, "PAUSES", ())
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "node"))
    Failing.reset()
    Failing.obey(lambda number: Failing.calls[number][0] == "put_file")
    one, workers = job(tmp_path / "runner"), Workers(count=1, device="cpu", store="failing://study")
    end = afar.perform_afar(one, workers, lambda message: None)
    assert end.kind == "failed"
    assert "No space left on device" in end.content
    assert "what the run has is kept there" in end.content
    [folder] = (tmp_path / "node" / "tasks").glob("*/*")
    read_finished(folder, one.config)
    Failing.obey(lambda number: False)
    told = []
    assert afar.perform_afar(one, workers, told.append).kind == "finished"
    assert [message.kind for message in told] == ["started"], "it was trained once"
    assert "ckpt.pt" in Store("failing://study").runs()[one.name]
    assert not folder.exists()


def test_a_state_that_is_damaged_at_the_store_is_not_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "node"))
    Failing.reset()
    one, workers = job(tmp_path / "runner"), Workers(count=1, device="cpu", store="failing://study")
    for name, text in (("run.toml", one.config.to_toml()), ("state.pt", "torn")):
        Store("failing://study").write(f"runs/{one.name}/{name}", text.encode())
    assert afar.perform_afar(one, workers, lambda message: None).kind == "finished"
    Store("failing://study").fetch_run(one.name, tmp_path / "back")
    read_finished(tmp_path / "back", one.config)
    assert "state.pt" not in Store("failing://study").runs()[one.name]
