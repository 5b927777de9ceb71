"""What a study does with runs that end badly: told, remembered, and free to be tried again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ssm_priors.studies.engines.local import Message
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import FAILURE, execute, plan
from ssm_priors.training.run import run

TINY = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}, "finetune": {"epochs": 1}}


@dataclass(frozen=True)
class Dying:
    """An engine whose workers die before they have written anything."""

    def execute(self, jobs):
        for job in range(len(jobs)):
            yield Message(job, "failed", "the worker process was ended by SIGKILL")


@dataclass(frozen=True)
class InProcess:
    """An engine that runs here."""

    def execute(self, jobs):
        for at, job in enumerate(jobs):
            run(job.config, job.folder, device="cpu")
            yield Message(at, "finished")


@pytest.fixture
def study():
    return Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "changes": TINY})


def test_a_run_whose_worker_died_before_it_wrote_anything_can_be_tried_again(study, tmp_path):
    [planned] = plan(study, tmp_path)
    assert [event.kind for event in execute(study, tmp_path, Dying())] == ["failed"]
    assert "SIGKILL" in (planned.folder / FAILURE).read_text()
    assert [event.kind for event in execute(study, tmp_path, InProcess())] == ["finished"]
    assert planned.is_done
    assert not (planned.folder / FAILURE).exists()


def test_a_finished_run_is_kept_and_a_damaged_one_is_told_and_left(study, tmp_path):
    [planned] = plan(study, tmp_path)
    list(execute(study, tmp_path, InProcess()))
    assert [event.kind for event in execute(study, tmp_path, Dying())] == ["kept"]
    (planned.folder / "test.npz").write_bytes(b"damaged")
    [event] = execute(study, tmp_path, Dying())
    assert event.kind == "failed"
    assert "to run it again" in event.reason
    assert planned.is_done
