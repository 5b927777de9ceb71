"""What a study will take: the very numbers its runs then record, and a pace that needs no luck."""

from __future__ import annotations

import time

import pytest
import torch

from ssm_priors.errors import BadConfig
from ssm_priors.studies import forecast
from ssm_priors.studies.forecast import Outline, Pace, count, finished_seconds, survey, time_phases
from ssm_priors.studies.grid import Study
from ssm_priors.training.loop import StepReport
from ssm_priors.training.run import run

TINY = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}, "finetune": {"epochs": 2}}
STUDY = {
    "tasks": ["digits"],
    "pretrains": ["masked"],
    "fractions": [0.1],
    "changes": TINY | {"pretrain": {"epochs": 1}},
}


def test_flops_steps_and_parameters_are_those_that_the_run_records(tmp_path):
    study = Study.from_dict(STUDY)
    outlines = survey(study)
    for cell in study.cells():
        config = study.config(cell, seed=0)
        cost = run(config, tmp_path / config.fingerprint, device="cpu").record["cost"]
        assert outlines[cell].parameters == cost["parameters"]
        assert outlines[cell].steps == cost["steps"]
        assert {phase: flops.training for phase, flops in count(config).items()} == cost["flops"]
        folder = tmp_path / config.fingerprint
        left = sum(path.stat().st_size for path in folder.iterdir())
        assert left / 2 < outlines[cell].bytes < 2 * left


def test_a_cell_that_cannot_work_is_found_before_anything_is_written():
    with pytest.raises(BadConfig, match="batch_size"):
        survey(Study.from_dict(STUDY | {"changes": TINY | {"finetune": {"batch_size": 10_000}}}))


def test_times_are_finite_and_of_every_phase():
    study = Study.from_dict(STUDY)
    times = time_phases(study.config(study.cells()[1], seed=0), torch.device("cpu"), threads=1)
    assert set(times) == {"pretrain", "finetune"}
    assert all(0 < seconds < 1000 for seconds in times.values())


def test_a_step_too_large_to_time_is_timed_in_part(monkeypatch):
    seen = []
    monkeypatch.setattr(forecast, "MOST_TIMED", 1.0)
    take = forecast.Phase.score
    monkeypatch.setattr(
        forecast.Phase,
        "score",
        lambda self, model, batch, problem: seen.append(len(batch)) or take(self, model, batch, problem),
    )
    study = Study.from_dict(STUDY)
    time_phases(study.config(study.cells()[0], seed=0), torch.device("cpu"), threads=1)
    assert seen[-4:] == [1, 1, 1, 1]


def test_finished_runs_say_how_long_their_cell_takes(tmp_path):
    study = Study.from_dict(STUDY | {"seeds": 2})
    assert finished_seconds(study, tmp_path) == {}
    cell = study.cells()[0]
    took = []
    for seed in range(2):
        config = study.config(cell, seed)
        checkpoint = run(config, tmp_path / "runs" / config.fingerprint, device="cpu")
        took.append(sum(checkpoint.record["cost"]["seconds"].values()))
    assert finished_seconds(study, tmp_path) == {cell: pytest.approx(sum(took) / 2)}
    (tmp_path / "runs" / config.fingerprint / "ckpt.pt").write_bytes(b"torn")
    assert finished_seconds(study, tmp_path) == {cell: pytest.approx(took[0])}


def report(phase: str, at: int) -> StepReport:
    return StepReport(phase, at, 10, 0, 1, 0.5, None, at)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_kind_that_has_not_run_is_foretold_by_its_flops(clock, monkeypatch):
    study = Study.from_dict(STUDY)
    scratch, masked = study.cells()
    outlines = {scratch: Outline(1, {"finetune": 10}, 1), masked: Outline(1, {"pretrain": 10, "finetune": 10}, 1)}
    pace = Pace(study, outlines)
    assert pace.left(scratch, None) is None
    pace.take("a", scratch, report("finetune", 1))
    clock[0] += 2.0
    pace.take("a", scratch, report("finetune", 3))  # 1 s a step
    assert pace.left(scratch, report("finetune", 3)) == 7.0
    assert pace.left(masked, None) == 20.0, "nothing is known of pretraining but that others take 1 s"
    per_step = {"finetune": 50, "pretrain": 150}
    monkeypatch.setattr(
        forecast,
        "count",
        lambda config: {
            phase: forecast.Flops(0, 10 * per_step[phase])
            for phase in (["pretrain"] if config.pretrain else []) + ["finetune"]
        },
    )
    for _ in range(2):
        pace.look_ahead(elapsed=100.0)
    assert pace.left(masked, None) == 40.0
    assert pace.left(masked, report("pretrain", 4)) == 6 * 3 + 10
    assert pace.left(masked, report("finetune", 4)) == 6
    pace.take("b", masked, report("pretrain", 1))
    clock[0] += 0.5
    pace.take("b", masked, report("pretrain", 2))
    assert pace.left(masked, None) == 15.0, "what was measured counts more"


def test_counting_takes_no_more_than_its_share_of_the_time(clock, monkeypatch):
    study = Study.from_dict(STUDY)
    outlines = {cell: Outline(1, {"finetune": 10}, 1) for cell in study.cells()}
    pace = Pace(study, outlines | {study.cells()[1]: Outline(1, {"pretrain": 10, "finetune": 10}, 1)})
    calls = []

    def slow(config):
        calls.append(config)
        clock[0] += 5.0
        return {"finetune": forecast.Flops(1, 1)}

    monkeypatch.setattr(forecast, "count", slow)
    pace.look_ahead(elapsed=10.0)
    assert calls == [], "nothing has run yet"
    pace.take("a", study.cells()[0], report("finetune", 1))
    clock[0] += 1
    pace.take("a", study.cells()[0], report("finetune", 2))
    for elapsed in (10.0, 20.0, 249.0):
        pace.look_ahead(elapsed)
    assert len(calls) == 1
    pace.look_ahead(elapsed=251.0)
    assert len(calls) == 2
