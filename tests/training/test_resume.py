from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import config, masked

import ssm_priors
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadData
from ssm_priors.training import run as module
from ssm_priors.training.run import run

CHILD = Path(__file__).parent / "kill_and_resume.py"
SETTINGS = {
    "fraction": 0.2,
    "pretrain": masked(epochs=4, batch_size=60, warmup=0.3),
    "finetune": {"epochs": 4, "batch_size": 60, "warmup": 0.3},
}
LEFT = {".lock", "run.toml", "metrics.csv", "pretrained.pt", "test.npz", "ckpt.pt"}


def kind(mixer: str, norm: str):
    """All tests of one kind run in one process, so that its run is killed once."""
    return pytest.param((mixer, norm), id=mixer, marks=pytest.mark.xdist_group(f"killed {mixer}"))


@pytest.fixture(scope="module", params=[kind("s4d", "batch"), kind("transformer", "layer")])
def folders(request, tmp_path_factory) -> tuple[Path, Path, list]:
    mixer, norm = request.param
    folder = tmp_path_factory.mktemp(mixer)
    settings = config(mixer, model={"dropout": 0.2, "norm": norm, "layers": 2}, **SETTINGS)
    (folder / "config.toml").write_text(settings.to_toml())
    command = [sys.executable, str(CHILD), str(folder), str(folder / "config.toml"), "1"]
    same_package = os.environ | {"PYTHONPATH": str(Path(ssm_priors.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=same_package)
    assert done.returncode == 0, done.stderr
    return folder / "undisturbed", folder / "disturbed", json.loads(done.stdout.splitlines()[-1])


def test_it_was_killed_often_and_in_the_middle_of_writes(folders):
    ends = folders[2]
    assert ends[0] == ["undisturbed", 0]
    assert ends[-1] == ["to the end", 0]
    killed = {name for name, code in ends[1:-1] if code == -9}
    assert killed >= {
        "a random moment",
        "half a row",
        "before a rename",
        "half a state",
        "half a test.npz",
        "half a ckpt.pt",
    }
    assert len(ends) >= 12
    assert all(code in (0, -9) for _, code in ends), ends


@pytest.mark.parametrize("name", ["ckpt.pt", "pretrained.pt"])
def test_the_weights_are_those_of_the_undisturbed_run_bit_for_bit(folders, name):
    undisturbed, disturbed, _ = folders
    assert Checkpoint.read(disturbed / name).digest == Checkpoint.read(undisturbed / name).digest


@pytest.mark.parametrize("name", ["metrics.csv", "test.npz", "run.toml"])
def test_the_files_are_those_of_the_undisturbed_run_byte_for_byte(folders, name):
    undisturbed, disturbed, _ = folders
    assert (disturbed / name).read_bytes() == (undisturbed / name).read_bytes()


def test_the_record_is_that_of_the_undisturbed_run(folders):
    one, other = (Checkpoint.read(folder / "ckpt.pt").record for folder in folders[:2])
    assert one["metrics"] == other["metrics"]
    assert one["step"] == other["step"]
    assert one["cost"]["examples"] == other["cost"]["examples"]


def test_every_step_stands_in_the_metrics_once(folders):
    with open(folders[1] / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = -(-251 // 60) * 4
    expected = [("pretrain", step) for step in range(1, steps + 1)] + [
        ("finetune", step) for step in range(1, steps + 1)
    ]
    assert [(row["phase"], int(row["step"])) for row in rows] == expected


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_else_is_left_in_the_folder(folders, which):
    assert {path.name for path in folders[which].iterdir()} == LEFT


# -- one process


class Stop(Exception):
    pass


def stop_at(phase: str, step: int):
    def watch(report):
        if (report.phase, report.step) == (phase, step):
            raise Stop

    return watch


SMALL = config(pretrain=masked(epochs=2), finetune={"epochs": 2, "batch_size": 50}, model={"dropout": 0.1})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(SMALL, folder, device="cpu")
    return folder


@pytest.mark.parametrize(
    ("phase", "step", "save_every"),
    [("pretrain", 1, 0.0), ("pretrain", 6, 0.0), ("finetune", 1, 0.0), ("finetune", 6, 0.0), ("finetune", 3, 1e9)],
)
def test_a_run_stopped_at_any_border_ends_the_same(whole, tmp_path, phase, step, save_every):
    with pytest.raises(Stop):
        run(SMALL, tmp_path, device="cpu", save_every=save_every, watch=stop_at(phase, step))
    torch.manual_seed(step)  # nothing may hang on the global generator
    finished = run(SMALL, tmp_path, device="cpu", save_every=save_every)
    assert finished.digest == Checkpoint.read(whole / "ckpt.pt").digest
    for name in ("metrics.csv", "test.npz"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_an_interrupted_run_goes_on_with_the_threads_it_began_with(tmp_path, monkeypatch):
    with pytest.raises(Stop):
        run(SMALL, tmp_path, device="cpu", threads=1, save_every=0.0, watch=stop_at("pretrain", 2))
    seen = []
    real = module._train_and_test
    monkeypatch.setattr(module, "_train_and_test", lambda *args: seen.append(torch.get_num_threads()) or real(*args))
    finished = run(SMALL, tmp_path, device="cpu", threads=2)
    assert seen == [1]
    assert finished.record["provenance"]["threads"] == 1
    assert torch.get_num_threads() == 1


def test_metrics_that_were_lost_are_not_filled_with_zero_bytes(tmp_path):
    with pytest.raises(Stop):
        run(SMALL, tmp_path, device="cpu", save_every=0.0, watch=stop_at("pretrain", 4))
    (tmp_path / "metrics.csv").unlink()
    with pytest.raises(BadData, match="lacks rows"):
        run(SMALL, tmp_path, device="cpu")
    assert not (tmp_path / "metrics.csv").exists()
