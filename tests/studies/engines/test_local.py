"""Workers on this machine that are told to stop save what they have done, however seldom they save otherwise."""

from __future__ import annotations

import time
from contextlib import closing

import builders
import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.studies.engines import local
from ssm_priors.studies.engines.engine import Job, Workers
from ssm_priors.studies.engines.local import LocalEngine
from ssm_priors.training.journal import Journal
from ssm_priors.training.run import run

SELDOM = Workers(count=2, device="cpu", save_every=1e9)


def test_closing_saves_the_step_that_a_run_is_at_and_the_run_ends_as_if_left_alone(tmp_path):
    config = builders.config(finetune={"epochs": 200})
    folder = tmp_path / config.fingerprint
    with closing(LocalEngine(SELDOM)) as engine:
        engine.start(Job(config, folder))
        last, limit = 0, time.monotonic() + 120
        while last < 3:
            assert time.monotonic() < limit
            last = max([0, *(message.content.step for message in engine.wait(0.5) if message.kind == "step")])
    saved = Journal(folder, 0).read()
    assert saved is not None
    assert last <= saved.progress.step < 600
    alone = run(config, tmp_path / "alone", device="cpu")
    assert run(config, folder, device="cpu").digest == alone.digest
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / "alone" / "metrics.csv").read_bytes()


def test_idle_workers_end_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "GRACE", 120.0)
    config = builders.config()
    engine = LocalEngine(SELDOM)
    engine.start(Job(config, tmp_path / config.fingerprint))
    while not any(message.kind == "finished" for message in engine.wait(0.5)):
        pass
    [worker] = engine._pool
    engine.close()
    assert worker.process.exitcode == 0


def test_it_has_no_cluster():
    with pytest.raises(BadConfig, match="works on this machine alone"):
        LocalEngine(Workers(count=1, address="10.0.0.1:6379"))
