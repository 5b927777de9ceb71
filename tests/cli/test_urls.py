"""Studies at a URL from the command line: run, asked about, gone on with, reported; what cannot be, told in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from runners import wait_for
from stores import Failing
from task_runs import TINY_STUDY, ssmp

pytestmark = pytest.mark.xdist_group("study")


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    Failing.reset()
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "scratch"))
    (tmp_path / "tiny.toml").write_text(TINY_STUDY)
    return tmp_path / "tiny.toml"


def test_a_study_at_a_url_is_run_asked_about_gone_on_with_and_reported(file, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/there"
    dry = json.loads(ssmp("study", "run", file, "--out", url, "--dry-run", "--json").stdout)
    assert dry["total"]["to_do"] == 2
    assert not (tmp_path / "there").exists()
    said = ssmp("study", "run", file, "--out", url, "--jobs", "2")
    assert said.exit_code == 0, said.stderr
    assert f"results, report and runs are at {url}" in said.stderr
    assert str(tmp_path / "scratch" / "studies") in said.stderr, "its folder is told"
    here = next((tmp_path / "scratch" / "studies").glob("*/study"))
    names = {path.name for path in here.iterdir() if not path.name.startswith(("ledger.sqlite", ".lock"))}
    assert {path.name for path in (tmp_path / "there").iterdir()} == names
    arrays = [path.relative_to(here) for path in here.glob("results.zarr/**/*") if path.is_file()]
    assert len(arrays) > 20
    assert all((tmp_path / "there" / path).read_bytes() == (here / path).read_bytes() for path in arrays)
    before = xr.open_zarr(tmp_path / "there" / "results.zarr").load()
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "another machine"))
    told = json.loads(ssmp("study", "status", url, "--json").stdout)
    assert [row["done"] for row in told["cells"]] == [1, 1]
    again = ssmp("study", "resume", url)
    assert again.exit_code == 0
    assert again.stderr.count("finished before, kept") == 2
    (tmp_path / "there" / "report.html").unlink()
    assert ssmp("report", url).exit_code == 0
    assert (tmp_path / "there" / "report.html").exists()
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "there" / "results.zarr").load(), before)


def test_a_runner_that_is_killed_is_followed_at_once_and_what_it_had_brought_is_kept(file, tmp_path):
    url = f"file://{tmp_path}/there"
    command = [
        "study",
        "run",
        str(file),
        "--set",
        "finetune.epochs=12",
        "--out",
        url,
        "--jobs",
        "1",
        "--save-every",
        "0",
    ]
    killed = subprocess.Popen([sys.executable, "-m", "ssm_priors.cli", *command], stderr=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob("there/runs/*/ckpt.pt")) and list(tmp_path.glob("scratch/**/state.pt")))
    killed.kill()
    killed.wait()
    assert (tmp_path / "there" / "runner.json").exists()
    assert len(list(tmp_path.glob("there/runs/*/ckpt.pt"))) == 1
    said = ssmp(*command)
    assert said.exit_code == 0, said.stderr
    assert said.stderr.count("finished before, kept") == 1
    assert len(list(tmp_path.glob("there/runs/*/ckpt.pt"))) == 2
    assert not (tmp_path / "there" / "runner.json").exists()


def test_what_could_not_be_brought_is_an_error_and_the_same_command_brings_it(file):
    command = ("study", "run", file, "--set", "inits=s4d-lin", "--out", "failing://study", "--jobs", "1")
    Failing.obey(lambda number: Failing.calls[number][0] == "put_file")
    said = ssmp(*command)
    assert said.exit_code == 1
    assert "Not there yet: 1 finished run, results and report. They are in" in said.stderr
    assert "accuracy" in said.stdout, "the results are told anyway"
    Failing.obey(lambda number: False)
    said = ssmp(*command)
    assert said.exit_code == 0
    assert "finished before, kept" in said.stderr
    assert any(path.endswith("report.html") for path in Failing.store)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("memry://study", "Did you mean memory"),
        ("absent://study", "Install absentfs"),
        ("memory://", "PROTOCOL://FOLDER was expected"),
        ("failing://full", "No space left on device"),
    ],
)
def test_a_url_that_cannot_work_is_refused_before_any_training(file, url, hint):
    Failing.obey(lambda number: True)
    for arguments in (("run", file, "--out", url), ("resume", url), ("status", url)):
        said = ssmp("study", *arguments)
        assert said.exit_code == 2
        assert hint in said.stderr
        assert "started" not in said.stderr


def test_a_url_without_a_study_is_told(file):
    for arguments in (("study", "resume"), ("study", "status"), ("report",)):
        said = ssmp(*arguments, "memory://nothing-here")
        assert said.exit_code == 2
        assert "holds no study.toml" in said.stderr


def test_commands_that_take_no_url_say_which_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("study", "merge", "s3://bucket/a", "s3://bucket/b", "--out", "whole"),
        ("study", "merge", "a", "b", "--out", "s3://bucket/whole"),
        ("train", "--task", "digits", "--out", "s3://bucket/run"),
        ("inspect-kernels", "s3://bucket/study/runs/0/ckpt.pt"),
    ):
        said = ssmp(*arguments)
        assert said.exit_code == 2
        assert "looks like a URL" in said.stderr
        assert "study resume" in said.stderr
    assert list(tmp_path.iterdir()) == []
