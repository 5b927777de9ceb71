"""Loggers are given what `metrics.csv` holds, each step once, and can do a run no harm."""

from __future__ import annotations

import csv
import logging
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import config, masked
from task_runs import ssmp

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import NotReady, UnknownName
from ssm_priors.registry import LOGGERS
from ssm_priors.studies.engines.engine import Job, Workers, perform
from ssm_priors.training.loggers import tensorboard, wandb
from ssm_priors.training.loggers.logger import Logger, numbers
from ssm_priors.training.run import run

pytestmark = pytest.mark.xdist_group("loggers")  # one process: what they share is made once
SETTINGS = config(pretrain=masked(epochs=2), finetune={"epochs": 2, "batch_size": 50})
STEPS = [("pretrain", step) for step in range(1, 7)] + [("finetune", step) for step in range(1, 7)]


class Notes:
    """A logger that remembers; each sitting is a list of its own."""

    sittings: list[list[tuple[int, dict]]] = []  # noqa: RUF012 (the registry makes the instances)
    closed = 0

    def __init__(self, folder, config):
        self.sittings.append([])

    @staticmethod
    def refuse_missing():
        pass

    def row(self, number, values):
        self.sittings[-1].append((number, dict(values)))

    def close(self):
        Notes.closed += 1


@pytest.fixture
def notes(monkeypatch) -> type[Notes]:
    LOGGERS["tensorboard"]  # so that the scan is done
    monkeypatch.setitem(LOGGERS._parts, "notes", Notes)
    monkeypatch.setattr(Notes, "sittings", [])
    monkeypatch.setattr(Notes, "closed", 0)
    return Notes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(SETTINGS, folder, device="cpu")
    return folder


def metrics(folder: Path) -> list[dict]:
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {name: text if name == "phase" else float(text) if text else None for name, text in row.items()} for row in rows
    ]


def assert_same(folder: Path, undisturbed: Path) -> None:
    for name in ("metrics.csv", "test.npz"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()
    assert Checkpoint.read(folder / "ckpt.pt").digest == Checkpoint.read(undisturbed / "ckpt.pt").digest


class Stop(Exception):
    pass


def interrupted(folder: Path, step: int, loggers: list[str], save_every: float = 0.0) -> None:
    def watch(report):
        if (report.phase, report.step) == ("finetune", step):
            raise Stop

    with pytest.raises(Stop):
        run(SETTINGS, folder, device="cpu", loggers=loggers, save_every=save_every, watch=watch)


def test_a_logger_is_given_the_rows_of_the_metrics(notes, tmp_path, undisturbed):
    run(SETTINGS, tmp_path, device="cpu", loggers=["notes"])
    assert notes.sittings == [list(enumerate(metrics(undisturbed), 1))]
    assert notes.closed == 1
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("first", [["notes"], []])
def test_each_sitting_is_given_all_rows_from_the_first_one_once(first, notes, tmp_path, undisturbed):
    interrupted(tmp_path, 3, first)
    run(SETTINGS, tmp_path, device="cpu", loggers=["notes"])
    assert notes.sittings[-1] == list(enumerate(metrics(undisturbed), 1))
    assert len(notes.sittings) == notes.closed == len(first) + 1
    assert_same(tmp_path, undisturbed)


def test_a_finished_run_is_not_logged_again(notes, tmp_path):
    for _ in range(2):
        run(SETTINGS, tmp_path, device="cpu", loggers=["notes"])
    assert len(notes.sittings) == 1


@pytest.mark.parametrize(("method", "left"), [("__init__", 0), ("row", 0), ("close", 12)])
def test_a_logger_that_fails_is_named_once_and_the_run_is_as_without_it(
    method, left, notes, tmp_path, undisturbed, monkeypatch, caplog
):
    def broken(self, *_):
        raise OSError("no space\nleft")

    class Broken(Notes):
        pass

    monkeypatch.setattr(Broken, method, broken)
    monkeypatch.setitem(LOGGERS._parts, "broken", Broken)
    with caplog.at_level(logging.WARNING):
        run(SETTINGS, tmp_path, device="cpu", loggers=["broken", "notes"])
    assert [record.getMessage() for record in caplog.records] == [
        "logger broken failed and is left out; the run itself goes on: OSError: no space"
    ]
    assert [len(rows) for rows in notes.sittings][-1] == 12 + left  # both remember in the same list
    assert notes.closed == 1
    assert_same(tmp_path, undisturbed)


def test_the_runs_of_a_study_are_logged(notes, tmp_path):
    job = Job(SETTINGS, tmp_path / SETTINGS.fingerprint)
    ended = perform(job, Workers(count=1, device="cpu", loggers=("notes",)), lambda message: None)
    assert ended.kind == "finished", ended.content
    assert len(notes.sittings[0]) == 12


def test_numbers_are_called_after_their_phase():
    row = {"phase": "pretrain", "step": 3, "epoch": 0, "loss": 0.5, "validation_loss": None}
    assert numbers(row) == {"pretrain/epoch": 0, "pretrain/loss": 0.5}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_package_that_is_missing_is_named_before_anything_is_written(name, tmp_path, monkeypatch):
    module = {"tensorboard": tensorboard, "wandb": wandb}[name]
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    with pytest.raises(NotReady, match=rf"--logger {name} needs .* pip install 'ssm-priors\[{name}\]'"):
        run(SETTINGS, tmp_path / "new", device="cpu", loggers=[name])
    for command in (["train"], ["ablate", "--init", "random"], ["study", "run", "objectives"]):
        said = ssmp(*command, "--logger", name, "--out", tmp_path / "new")
        assert said.exit_code == 2
        assert f"pip install 'ssm-priors[{name}]'" in said.stderr
    assert not (tmp_path / "new").exists()


def test_an_unknown_logger_is_refused(tmp_path):
    with pytest.raises(UnknownName, match=r"unknown logger 'wand'\. Did you mean wandb"):
        run(SETTINGS, tmp_path / "new", device="cpu", loggers=["wand"])
    assert not (tmp_path / "new").exists()


# -- the real ones


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed: the extra [{name}]")


def curve(folder: Path) -> list[dict]:
    """What `metrics.csv` says, as curves: no phase, no step, nothing that is missing."""
    return [numbers(row) for row in metrics(folder)]


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_each_step_once(tmp_path, undisturbed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupted(tmp_path, 3, ["tensorboard"])
    run(SETTINGS, tmp_path, device="cpu", loggers=["tensorboard"])
    assert_same(tmp_path, undisturbed)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {
        (phase, step): {
            tag: event.value
            for tag in events.Tags()["scalars"]
            for event in events.Scalars(tag)
            if tag.startswith(phase) and event.step == step
        }
        for phase, step in STEPS
    }
    assert list(found.values()) == [pytest.approx(row, rel=1e-6) for row in curve(undisturbed)]
    assert sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"]) == sum(map(len, curve(undisturbed)))


@needs("wandb")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_is_offline_and_has_each_step_once(tmp_path, undisturbed, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    interrupted(tmp_path, 3, ["wandb"])
    run(SETTINGS, tmp_path, device="cpu", loggers=["wandb"])
    assert_same(tmp_path, undisturbed)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found = list(history(file))
    assert [number for number, _ in found] == list(range(1, 13))
    for (_, values), row, (phase, step) in zip(found, curve(undisturbed), STEPS, strict=True):
        assert values.pop(f"{phase}/step") == step
        assert {name: value for name, value in values.items() if name[0] != "_"} == row


def history(file: Path):
    """Number and values of every row in an offline run: records in blocks of 32 KiB after a header of 7 bytes."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at % 32768 > 32768 - 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield (
                    record.history.step.num,
                    {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items},
                )


@needs("wandb")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nobody_is_asked_to_log_in(tmp_path, undisturbed, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "online")
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    run(SETTINGS, tmp_path / "run", device="cpu", loggers=["wandb"])
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "logger wandb failed and is left out; the run itself goes on"
    ]
    assert_same(tmp_path / "run", undisturbed)


def test_what_is_registered_is_a_logger():
    wanted = {name for name in vars(Logger) if not name.startswith("_")}
    for name in LOGGERS:
        assert wanted <= set(dir(LOGGERS[name]))
