from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from ssm_priors.analyses import schema

from .conftest import TINY

pytestmark = pytest.mark.xdist_group("study")


@pytest.fixture(scope="module")
def run(ssmp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect") / "run"
    said = ssmp("train", *TINY, "--pretrain", "masked", "--out", folder)
    assert said.returncode == 0, said.stderr
    return folder


def test_it_prints_the_layers_and_says_where_the_files_are(ssmp, run):
    said = ssmp("inspect-kernels", run / "ckpt.pt")
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    rows = [line.split("\t") for line in lines if "\t" in line]
    assert rows[0] == ["layer", "quantity", "learned", "init"]
    assert [row[1] for row in rows[1:]] == [
        *("kernels", "decay rate, 1/step", "timescale, steps", "frequency, cycles/step", "90% energy lag, steps")
    ]
    assert rows[1][2:] == ["16", "16"]
    folder = run / "inspect" / "ckpt"
    assert lines[-2:] == [f"data: {folder / 'kernels.nc'}", f"page: {folder / 'kernels.html'}"]
    found = schema.read(folder / "kernels.nc")
    assert list(found.stage.values) == ["init", "learned"]
    assert (found.sizes["lag"], found.sizes["direction"]) == (64, 2)
    assert not found.kernel.sel(stage="init").equals(found.kernel.sel(stage="learned"))
    assert (folder / "kernels.html").read_text().startswith("<!doctype html>")


def test_json_is_one_strict_document_and_nothing_else(ssmp, run, tmp_path):
    arguments = ["--json", "--format", "zarr", "--length", "32", "--out", tmp_path / "there"]
    said = ssmp("inspect-kernels", run / "pretrained.pt", *arguments)
    assert said.returncode == 0, said.stderr
    assert "NaN" not in said.stdout
    document = json.loads(said.stdout)
    assert (document["phase"], document["length"], document["stage"]) == ("pretrain", 32, "init and learned")
    (layer,) = document["layers"]
    assert layer["kernels"] == 16
    assert layer["learned"]["decay_rate"].keys() == {"median", "low", "high", "unit"}
    assert layer["init"]["timescale"]["low"] <= layer["init"]["timescale"]["median"]
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["kernels.html", "kernels.zarr"]


def test_a_second_look_replaces_its_own_files_and_no_others(ssmp, run, tmp_path):
    for _ in range(2):
        assert ssmp("inspect-kernels", run / "ckpt.pt", "--out", tmp_path, "--length", "4").returncode == 0
    (tmp_path / "kernels.html").write_text("mine")
    said = ssmp("inspect-kernels", run / "ckpt.pt", "--out", tmp_path, "--length", "4")
    assert said.returncode == 2
    assert "not written by ssm-priors" in said.stderr
    assert (tmp_path / "kernels.html").read_text() == "mine"


def test_a_transformer_has_no_kernels(ssmp, tmp_path):
    small = ["--set", "model.d_model=8", "--set", "model.layers=1", "--set", "finetune.epochs=1", "--threads", "1"]
    said = ssmp("train", "--task", "digits", "--model", "transformer", *small, "--out", tmp_path / "run")
    assert said.returncode == 0, said.stderr
    said = ssmp("inspect-kernels", tmp_path / "run" / "ckpt.pt")
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr == "ssmp: this model has no kernels: its mixer is a Transformer, not a convolution\n"
    assert not (tmp_path / "run" / "inspect").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--format", "csv"], "unknown format 'csv'. Known: nc, zarr."),
        (["--out", "/dev/null/folder"], "cannot write to /dev/null/folder"),
    ],
)
def test_wrong_use_is_one_line(ssmp, run, arguments, reason):
    said = ssmp("inspect-kernels", run / "ckpt.pt", *arguments)
    assert said.returncode == 2
    assert said.stderr.startswith(f"ssmp: {reason}")
    assert said.stderr.count("\n") == 1


def test_a_narrow_terminal_shows_whole_numbers(run):
    """On a terminal of 60 columns no line is longer, and each range stands in one piece."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "ssm_priors.cli", "inspect-kernels", str(run / "ckpt.pt")]
    environment = os.environ | {"COLUMNS": "60", "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    said = b""
    while chunk := _read(master):
        said += chunk
    assert process.wait(timeout=60) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", said.decode())
    table = plain.split("layer", 1)[1].split("Median", 1)[0].splitlines()[1:]
    assert max(len(line.rstrip()) for line in table) <= 60
    assert all(line.count("(") == line.count(")") for line in table)


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # what Linux answers once the other end is closed
        return b""
