"""What is drawn while a study runs: lines worth reading, a table that fits, an estimate that means something."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ssm_priors.cli.live import Board, watch
from ssm_priors.cli.output import Output
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import Event, plan
from ssm_priors.training.loop import StepReport

TINY = {"finetune": {"epochs": 2, "batch_size": 100}, "pretrain": {"epochs": 2, "batch_size": 100}}


@pytest.fixture
def runs(tmp_path):
    return plan(
        Study.from_dict({"tasks": ["digits"], "inits": ["random"], "pretrains": ["masked"], "changes": TINY}), tmp_path
    )


def step(phase: str, at: int, metric: float | None = None) -> StepReport:
    return StepReport(phase, at, 20, (at - 1) // 10, 2, 0.5, metric, at * 100)


def test_a_line_comes_at_the_end_of_an_epoch_and_not_before(runs):
    board = Board(runs)
    assert "started" in board.take(Event("started", runs[0]))
    assert board.take(Event("step", runs[0], step("finetune", 9))) == ""
    line = board.take(Event("step", runs[0], step("finetune", 10, 0.25)))
    assert "finetune epoch 1/2" in line
    assert "accuracy 25.0%" in line


def test_kept_runs_take_no_part_in_the_estimate(runs):
    board = Board(runs)
    for run in runs[1:]:
        board.take(Event("kept", run))
    board.take(Event("step", runs[0], step("finetune", 1)))
    assert "estimating" in board._eta()
    board.take(Event("step", runs[0], step("finetune", 10)))
    assert "left" in board._eta()
    assert board._eta().startswith("3 of 4 runs done")
    board.take(Event("finished", runs[0]))
    assert "none left" in board._eta()


@pytest.mark.parametrize("width", [40, 60, 200])
def test_the_table_names_every_run_at_any_width(runs, width):
    board = Board(runs)
    board.take(Event("started", runs[1]))
    board.take(Event("step", runs[1], step("pretrain", 10)))
    paper = io.StringIO()
    Console(file=paper, width=width).print(board.table())
    drawn = paper.getvalue()
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.count("seed") >= 4


def test_a_failure_is_counted_and_told_with_its_last_line(runs, capsys):
    failed = watch([Event("failed", runs[0], reason="Traceback\nboom: too hot")], runs, Output())
    assert failed == 1
    assert "boom: too hot" in capsys.readouterr().err


def test_quiet_says_nothing(runs, capsys):
    watch([Event("started", runs[0]), Event("finished", runs[0])], runs, Output(quiet=True))
    said = capsys.readouterr()
    assert said.out + said.err == ""
