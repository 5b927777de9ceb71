"""Two processes that talk through gloo do what one does."""

from __future__ import annotations

import csv
import multiprocessing
from functools import partial
from pathlib import Path

import pytest
import team_work
import torch
from builders import config, masked
from hypothesis import given
from hypothesis import strategies as st
from team_work import Case

from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig, RunFailed
from ssm_priors.objectives.objective import Problem
from ssm_priors.registry import OBJECTIVES
from ssm_priors.training.run import run
from ssm_priors.training.team import ALONE, Team, assembled

pytestmark = pytest.mark.xdist_group("team")  # one process, so that what all tests share is made once
CASES = [
    Case(""),
    Case("", "token", examples=8),
    Case("", mixer="transformer", clip=1e-3),
    *(Case(name, kind) for name in OBJECTIVES for kind in OBJECTIVES[name].kinds),
    *(Case(name, kind, examples=1) for name in ("masked", "causal", "jepa") for kind in OBJECTIVES[name].kinds),
    Case("masked", "token", documents=2),
    Case("causal", mixer="transformer"),
    *(Case(name, mixer=mixer, precision="64-true") for name in ("", "masked", "causal") for mixer in ("s4d", "lru")),
]
ROUNDING = {"32-true": 3e-6, "64-true": 1e-13}
"""Relative to the norm of the whole gradient."""


DROPPED = Case("masked", dropout=0.3)


@pytest.fixture(scope="module")
def stepped() -> list[team_work.Stepped]:
    """All steps of two devices, one after the other; the last two are the same."""
    cases = [*CASES, DROPPED, DROPPED]
    with assembled(2, "cpu", partial(team_work.steps, cases)) as team:
        return team_work.steps(cases, team)


@pytest.fixture(scope="module")
def together(stepped) -> dict[Case, team_work.Stepped]:
    return dict(zip(CASES, stepped, strict=False))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradients_of_two_devices_are_those_of_one(case, together):
    both, one = together[case], team_work.step(case, ALONE)
    assert both.examples == one.examples == case.examples
    assert both.loss == pytest.approx(one.loss, rel=ROUNDING[case.precision])
    assert both.norm == pytest.approx(one.norm, rel=ROUNDING[case.precision])
    used = [name for name, gradient in one.gradients.items() if gradient is not None]
    assert used == [name for name, gradient in both.gradients.items() if gradient is not None]
    found, expected = (torch.cat([made.gradients[name].flatten() for name in used]) for made in (both, one))
    assert one.norm > 1e-3
    assert torch.linalg.vector_norm(expected) == pytest.approx(case.clip or one.norm, rel=1e-3)
    assert torch.linalg.vector_norm(found - expected) < ROUNDING[case.precision] * torch.linalg.vector_norm(expected)


@given(examples=st.integers(1, 9), size=st.integers(1, 6), documents=st.sampled_from([1, 2]), labels=st.booleans())
def test_every_example_is_in_one_share_with_all_that_belongs_to_it(examples, size, documents, labels):
    rows = torch.arange(examples * documents)
    batch = Batch(rows[:, None] + torch.zeros(3), rows, torch.arange(examples) if labels else None, documents)
    problem = Problem(None, rows[:, None], rows[:, None] >= 0, inputs=batch.inputs, lengths=rows)
    shares = [Team(rank, size).share(batch, problem) for rank in range(size)]
    assert sum(len(own) for own, _ in shares) == examples
    assert max(len(own) for own, _ in shares) - min(len(own) for own, _ in shares) <= 1
    for whole, parts in (
        (batch.inputs, [own.inputs for own, _ in shares]),
        (rows, [own.lengths for own, _ in shares]),
        (problem.targets, [asked.targets for _, asked in shares]),
        (problem.scored, [asked.scored for _, asked in shares]),
        (problem.inputs, [asked.inputs for _, asked in shares]),
        (problem.lengths, [asked.lengths for _, asked in shares]),
    ):
        assert torch.equal(torch.cat(parts), whole)
    for own, asked in shares:
        assert asked.hidden is None
        assert len(own.lengths) == documents * len(own)
        if labels:
            assert own.targets.tolist() == (own.lengths[::documents] // documents).tolist()


def test_weights_that_drift_apart_are_noticed():
    with (
        pytest.raises(RunFailed, match="2 devices are no longer the same"),
        assembled(2, "cpu", team_work.drifted) as team,
    ):
        team_work.drifted(team)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("refuses", "^device 1: a reason of its own$"),
        ("fails", "(?s)^device 1: Traceback.*ZeroDivisionError: a bug"),
        ("is killed", "^the process of device 1 ended with exit code -9$"),
    ],
)
def test_a_device_that_breaks_down_ends_the_run_with_its_reason(how, said):
    with pytest.raises(RunFailed, match=said), assembled(2, "cpu", partial(team_work.breaks, how)) as team:
        team_work.breaks(how, team)
    assert multiprocessing.active_children() == []


def test_an_error_of_the_first_device_is_its_own():
    with pytest.raises(RuntimeError, match=r"^mine$"), assembled(2, "cpu", partial(team_work.steps, CASES[:1])):
        raise RuntimeError("mine")
    assert multiprocessing.active_children() == []


# -- whole runs; 175 training examples in batches of 58: the last has one, which is fewer than there are devices

WHOLE = config(
    fraction=175 / 1257,
    pretrain=masked(epochs=2, batch_size=58, warmup=0.3),
    finetune={"epochs": 2, "batch_size": 58, "warmup": 0.3},
)


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> tuple[Path, Checkpoint]:
    folder = tmp_path_factory.mktemp("one")
    return folder, run(WHOLE, folder, device="cpu")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Checkpoint]:
    folder = tmp_path_factory.mktemp("two")
    return folder, run(WHOLE, folder, device="cpu", devices=2)


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def assert_close(found: list[dict[str, str]], expected: list[dict[str, str]]) -> None:
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row["phase"] == other["phase"]
        for name in set(row) - {"phase"}:
            assert (row[name] == "") == (other[name] == ""), name
            assert not row[name] or float(row[name]) == pytest.approx(float(other[name]), rel=1e-4), (row, other)


def test_a_run_over_two_devices_is_that_of_one_but_for_rounding(one, two):
    assert len(rows(one[0])) == 16
    assert_close(rows(two[0]), rows(one[0]))
    assert two[1].record["metrics"] == pytest.approx(one[1].record["metrics"], abs=1e-4)
    assert two[1].record["step"] == one[1].record["step"]
    for name in ("flops", "steps", "examples", "tokens"):
        assert two[1].record["cost"][name] == one[1].record["cost"][name]
    assert {path.name for path in two[0].iterdir()} == {path.name for path in one[0].iterdir()}


def test_the_record_says_over_how_many_devices(one, two):
    for (folder, checkpoint), devices in ((one, [1]), (two, [2])):
        assert checkpoint.record["provenance"]["devices"] == devices
        assert Checkpoint.read(folder / "pretrained.pt").record["provenance"]["devices"] == devices


def test_a_model_of_two_devices_is_opened_by_one_process(two):
    model = two[1].model()
    assert model(torch.zeros(2, 64, 1), torch.tensor([64, 5])).shape == (2, 10)


class Stop(Exception):
    pass


def begun(folder: Path, phase: str, step: int, devices: int) -> None:
    def watch(report):
        if (report.phase, report.step) == (phase, step):
            raise Stop

    with pytest.raises(Stop):
        run(WHOLE, folder, device="cpu", devices=devices, save_every=0.0, watch=watch)


def test_an_interrupted_run_goes_on_with_another_number_of_devices(one, tmp_path):
    begun(tmp_path, "pretrain", 3, 1)
    begun(tmp_path, "finetune", 3, 2)
    begun(tmp_path, "finetune", 5, 1)
    finished = run(WHOLE, tmp_path, device="cpu")
    assert_close(rows(tmp_path), rows(one[0]))
    assert finished.record["provenance"]["devices"] == [1, 2, 1]


def test_a_killed_device_leaves_a_run_that_goes_on(two, tmp_path):
    def watch(report):
        if (report.phase, report.step) == ("finetune", 2):
            multiprocessing.active_children()[0].kill()

    with pytest.raises(RunFailed, match="device 1 ended with exit code -9"):
        run(WHOLE, tmp_path, device="cpu", devices=2, save_every=0.0, watch=watch)
    assert run(WHOLE, tmp_path, device="cpu", devices=2).digest == two[1].digest
    assert (tmp_path / "metrics.csv").read_bytes() == (two[0] / "metrics.csv").read_bytes()


def test_dropout_is_drawn_for_each_share_and_repeats(stepped):
    once, again = stepped[-2:]
    assert once.loss == again.loss
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in once.weights.items())
    assert once.loss != team_work.step(DROPPED, ALONE).loss
    assert Team(0, 2).stream == ALONE.stream != Team(1, 2).stream


@pytest.mark.parametrize(
    ("changes", "devices", "said"),
    [
        ({"model": {"norm": "batch"}}, 2, r"model\.norm is batch.*--set model\.norm=layer"),
        ({}, 0, "devices 0 was given; 1 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_written(changes, devices, said, tmp_path):
    with pytest.raises(BadConfig, match=said):
        run(config(**changes), tmp_path / "new", device="cpu", devices=devices)
    assert not (tmp_path / "new").exists()


def test_batch_norm_is_no_trouble_on_one_device(tmp_path):
    assert run(config(model={"norm": "batch"}), tmp_path, device="cpu").record["provenance"]["devices"] == [1]
