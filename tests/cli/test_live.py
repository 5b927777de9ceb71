"""What is drawn while a study runs: lines worth reading, a table that fits, an estimate that means something."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ssm_priors.cli.live import Board, watch
from ssm_priors.cli.output import Output
from ssm_priors.studies.forecast import Outline, Pace
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import Event, plan
from ssm_priors.training.loop import StepReport

TINY = {"finetune": {"epochs": 2, "batch_size": 100}, "pretrain": {"epochs": 2, "batch_size": 100}}


STUDY = {"tasks": ["digits"], "inits": ["random"], "pretrains": ["masked"], "changes": TINY}
OUTLINE = {"none": {"finetune": 20}, "masked": {"pretrain": 20, "finetune": 20}}


@pytest.fixture
def runs(tmp_path):
    return plan(Study.from_dict(STUDY), tmp_path)


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def pace(runs) -> Pace:
    study = Study.from_dict(STUDY)
    return Pace(study, {run.cell: Outline(100, OUTLINE[run.cell.pretrain], 360) for run in runs})


@pytest.fixture(autouse=True)
def no_counting(monkeypatch):
    monkeypatch.setattr(Pace, "look_ahead", lambda self, elapsed: None)


def board_of(runs, workers: int = 1) -> Board:
    return Board(runs, pace(runs), workers)


def step(phase: str, at: int, metric: float | None = None) -> StepReport:
    return StepReport(phase, at, 20, (at - 1) // 10, 2, 0.5, metric, at * 100, ends_epoch=at % 10 == 0)


def test_a_line_comes_at_the_end_of_an_epoch_and_not_before(runs):
    board = board_of(runs)
    assert "started" in board.take(Event("started", runs[0]))
    assert board.take(Event("step", runs[0], step("finetune", 9))) == ""
    line = board.take(Event("step", runs[0], step("finetune", 10, 0.25)))
    assert "finetune epoch 1/2" in line
    assert "accuracy 25.0%" in line


def test_the_estimate_is_steps_left_by_seconds_a_step_and_kept_runs_take_no_part(runs, clock):
    board = board_of(runs)
    [first, *others] = [run for run in runs if run.cell.pretrain == "none"]
    for run in runs:
        if run.cell.pretrain != "none":
            board.take(Event("kept", run))
    assert "estimating" in board._eta()
    board.take(Event("step", first, step("finetune", 1)))
    assert "estimating" in board._eta()
    clock[0] += 9 * 3
    board.take(Event("step", first, step("finetune", 10)))
    assert board._eta() == "2 of 4 runs done, 0:27 gone, about 1:30 left"
    board.take(Event("finished", first))
    assert "about 1:00 left" in board._eta()
    for run in others:
        board.take(Event("elsewhere", run))
    assert "4 of 4 runs done, 0:27 gone, none left" in board._eta()


def test_each_kind_of_phase_has_its_own_pace_and_workers_share_the_work(runs, clock):
    board = board_of(runs, workers=2)
    slow, fast = (next(run for run in runs if run.cell.pretrain == pretrain) for pretrain in ("masked", "none"))
    board.take(Event("step", slow, step("pretrain", 1)))
    board.take(Event("step", fast, step("finetune", 1)))
    clock[0] += 10
    board.take(Event("step", slow, step("pretrain", 2)))  # 10 s a step
    board.take(Event("step", fast, step("finetune", 11)))  # 1 s a step
    slow_left, fast_left = 18 * 10 + 20, 9
    others = 20 * 10 + 20 + 20
    whole = (slow_left + fast_left + others) / 2
    assert f"about {int(whole // 60)}:{round(whole % 60):02} left" in board._eta()
    for run in runs:
        if run not in (slow, fast):
            board.take(Event("kept", run))
    assert "about 3:20 left" in board._eta(), "no study ends before its longest run does"


def test_a_pause_between_two_tries_of_a_run_is_not_its_pace(runs, clock):
    board = board_of(runs)
    board.take(Event("step", runs[0], step("finetune", 4)))
    clock[0] += 1
    board.take(Event("step", runs[0], step("finetune", 5)))
    board.take(Event("again", runs[0], reason="the worker process was ended by SIGKILL"))
    clock[0] += 1000
    board.take(Event("step", runs[0], step("finetune", 6)))
    clock[0] += 1
    board.take(Event("step", runs[0], step("finetune", 7)))
    assert board.pace.left(runs[0].cell, step("finetune", 19)) == 1.0


def test_what_another_runner_did_and_what_was_set_aside_is_said(runs):
    board = board_of(runs)
    assert board.take(Event("note", reason="no ledger")) == "no ledger"
    assert board.take(Event("note", runs[0], reason="damaged")).endswith(": damaged")
    assert "finished by another runner" in board.take(Event("elsewhere", runs[0]))
    assert "go on" in board.take(Event("again", runs[1], reason="killed"))


@pytest.mark.parametrize("width", [40, 60, 200])
def test_the_table_names_every_run_at_any_width(runs, width):
    board = board_of(runs)
    board.take(Event("started", runs[1]))
    board.take(Event("step", runs[1], step("pretrain", 10)))
    paper = io.StringIO()
    Console(file=paper, width=width).print(board.table())
    drawn = paper.getvalue()
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.count("seed") >= 4


def test_a_failure_is_counted_and_told_with_its_last_line(runs, capsys):
    failed = watch([Event("failed", runs[0], reason="Traceback\nboom: too hot")], runs, pace(runs), 1, Output())
    assert failed == 1
    assert "boom: too hot" in capsys.readouterr().err


def test_quiet_says_nothing(runs, capsys):
    watch([Event("started", runs[0]), Event("finished", runs[0])], runs, pace(runs), 1, Output(quiet=True))
    said = capsys.readouterr()
    assert said.out + said.err == ""
