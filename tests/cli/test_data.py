"""`ssmp data`, and the options of other commands that are about data."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import made_tasks
import pytest
from typer.testing import CliRunner, Result

from ssm_priors.cli.app import app
from ssm_priors.tasks import store

TINY = ["--set", "model.d_model=8", "--set", "model.layers=1", "--set", "finetune.epochs=1", "--fraction", "1"]


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    before = signal.getsignal(signal.SIGTERM)
    with made_tasks.registered():
        yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def numbers(tmp_path) -> Path:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(f"{number:04}" for number in range(100, 160)))
    return path


def ssmp(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def listed(kind: list[str]) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(ssmp(*kind, "--json").stdout)}


def test_list_says_what_is_here_and_what_is_not(numbers):
    rows = listed(["data", "list"])
    assert (rows["mnist"]["ready"], rows["mnist"]["size"], rows["mnist"]["origin"]) == (
        "yes",
        None,
        "ships with ssm-priors",
    )
    assert rows["brought"]["ready"] == "no: bring the archive"
    assert rows["waves"]["ready"] == "made when it is first used"
    assert ssmp("data", "prepare", "brought", "--source", numbers).exit_code == 0
    rows = listed(["data", "list"])
    assert rows["brought"]["ready"] == "yes"
    assert rows["brought"]["size"] > 0
    assert "brought\t\t4\ttoken\t2" in ssmp("data", "list").stdout


def test_other_sizes_of_a_task_are_listed_too():
    assert ssmp("data", "prepare", "waves", "--set", "examples=30").exit_code == 0
    document = json.loads(ssmp("data", "list", "--json").stdout)
    assert [row["options"] for row in document if row["name"] == "waves"] == ["", "examples=30"]


def test_list_tasks_shows_kind_metric_origin_and_what_is_missing():
    rows = listed(["list", "tasks"])
    assert rows["rate"]["metric"] == "RMSE, bpm"
    assert rows["double"]["metric"] == "token accuracy, %"
    assert "ssmp data prepare brought --source PATH" in rows["brought"]["ready"]
    assert rows["waves"]["ready"] == "yes"


def test_prepare_prints_counts_balance_and_place(numbers):
    said = ssmp("data", "prepare", "brought", "--source", numbers)
    assert said.exit_code == 0
    assert "train\t20\t4 to 4, mean 4.0\t20, 0" in said.stdout.replace("0, 20", "20, 0")
    assert str(store.data_dir()) in said.stdout
    document = json.loads(ssmp("data", "prepare", "brought", "--source", numbers, "--json").stdout)
    assert document["splits"]["test"]["examples"] == 20


def test_another_folder_may_be_named(tmp_path):
    assert ssmp("data", "prepare", "waves", "--data-dir", tmp_path / "other").exit_code == 0
    assert list((tmp_path / "other").glob("waves-*/manifest.json"))


def test_verify_finds_what_is_wrong_and_says_so_in_its_exit_code():
    ssmp("data", "prepare", "waves")
    assert ssmp("data", "verify", "waves").exit_code == 0
    [path] = store.data_dir().glob("waves-*/train.inputs.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = ssmp("data", "verify", "waves")
    assert said.exit_code == 1
    assert "train.inputs.npy: its SHA-256 is" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "prepare", "brought"], "Once you have it: ssmp data prepare brought --source PATH"),
        (["data", "verify", "brought"], "Once you have it"),
        (["data", "verify", "waves"], "ssmp data prepare waves"),
        (["data", "prepare", "wavs"], "Did you mean waves?"),
        (["data", "prepare", "waves", "--set", "exampels=3"], "Did you mean examples?"),
        (["data", "prepare", "mnist"], "nothing to prepare"),
        (["train", "--task", "brought"], "Once you have it: ssmp data prepare brought --source PATH"),
        (["ablate", "--pretrain", "masked", "--task", "brought"], "Once you have it"),
        (["train", "--task", "mnist", "--examples", "30"], "'mnist' has no option examples; its options: data, pool"),
        (["train", "--task", "waves", "--max-length", "8", "--set", "task.max_length=9"], "leave one of them out"),
        (
            ["ablate", "--task", "waves,large", "--pretrain", "masked", "--examples", "9"],
            "'large' has no option examples",
        ),
    ],
)
def test_wrong_use_is_told_in_a_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ssmp(*arguments)
    assert said.exit_code == 2
    assert words in said.stderr
    assert "Traceback" not in said.stderr
    assert said.stdout == ""


def test_train_makes_a_small_version_of_a_task_and_evaluate_finds_it_again(tmp_path):
    arguments = ["--task", "waves", "--examples", "36", "--max-length", "8", "--data-dir", tmp_path / "more", *TINY]
    said = ssmp("train", *arguments, "--out", tmp_path / "run")
    assert said.exit_code == 0, said.stderr
    assert "generated from a seed" in said.stderr
    assert "examples = 36" in (tmp_path / "run" / "run.toml").read_text()
    assert str(tmp_path) not in (tmp_path / "run" / "run.toml").read_text()
    again = ssmp("evaluate", tmp_path / "run" / "ckpt.pt", "--data-dir", tmp_path / "more", "--json")
    assert json.loads(again.stdout)["equals_recorded"] is True


def test_a_regression_is_told_in_its_unit(tmp_path):
    said = ssmp("train", "--task", "rate", *TINY, "--out", tmp_path / "run")
    assert said.exit_code == 0, said.stderr
    assert "test RMSE" in said.stdout
    assert " bpm [" in said.stdout
    assert "RMSE" in said.stderr
    document = json.loads(ssmp("evaluate", tmp_path / "run" / "ckpt.pt", "--json").stdout)
    assert document["equals_recorded"] is True
    assert (document["metric"], document["unit"]) == ("rmse", "bpm")
    assert document["low"] <= document["rmse"] <= document["high"]
