"""train, evaluate, report, list: each small, each complete."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from ssm_priors.checkpoints.checkpoint import Checkpoint

from .conftest import FROM_SCRATCH, TINY

pytestmark = pytest.mark.xdist_group("study")


@pytest.fixture(scope="module")
def trained(ssmp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "run"
    said = ssmp("train", *TINY, "--pretrain", "masked", "--out", folder)
    assert said.returncode == 0, said.stderr
    return folder, said


def test_train_prints_the_recorded_accuracy_with_an_interval(trained):
    folder, said = trained
    accuracy = Checkpoint.read(folder / "ckpt.pt").record["metrics"]["test_accuracy"]
    assert f"{accuracy:.1%} [" in said.stdout
    assert "pretrain epoch 1/1" in said.stderr
    assert "finetune epoch 2/2" in said.stderr


def test_a_study_and_a_single_run_of_the_same_configuration_have_the_same_weights(study, trained):
    single = Checkpoint.read(trained[0] / "ckpt.pt")
    twin = Checkpoint.read(study[0] / "runs" / single.config.fingerprint / "ckpt.pt")
    assert twin.digest == single.digest


def test_train_from_a_file_repeats_the_run(ssmp, trained, tmp_path):
    said = ssmp("train", trained[0] / "run.toml", "--out", tmp_path / "again", "--threads", "1", "--json")
    assert said.returncode == 0, said.stderr
    digest = Checkpoint.read(tmp_path / "again" / "ckpt.pt").digest
    assert digest == Checkpoint.read(trained[0] / "ckpt.pt").digest
    assert json.loads(said.stdout)["folder"] == str(tmp_path / "again")


def test_a_file_beside_options_that_choose_is_refused(ssmp, trained):
    said = ssmp("train", trained[0] / "run.toml", "--seed", "3")
    assert said.returncode == 2
    assert "--seed" in said.stderr


def test_evaluate_finds_the_recorded_accuracy_exactly(ssmp, trained):
    said = ssmp("evaluate", trained[0] / "ckpt.pt", "--json")
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert document["equals_recorded"] is True
    assert document["low"] <= document["accuracy"] <= document["high"]


def test_evaluate_refuses_the_pretrained_weights(ssmp, trained):
    said = ssmp("evaluate", trained[0] / "pretrained.pt")
    assert said.returncode == 2
    assert "no head for the task" in said.stderr


def test_report_is_written_again_from_the_runs(ssmp, study, tmp_path):
    folder, first = study
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "results.zarr")
    (tmp_path / "copy" / "report.html").unlink()
    said = ssmp("report", tmp_path / "copy")
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "copy" / "report.html").exists()
    assert said.stdout.splitlines()[:5] == first.stdout.splitlines()[:5]


def test_report_on_a_checkpoint_is_its_page(ssmp, trained):
    said = ssmp("report", trained[0] / "ckpt.pt")
    assert said.returncode == 0, said.stderr
    assert "hippo-legs" in said.stdout
    assert (trained[0] / "inspect" / "ckpt" / "kernels.html").is_file()
    said = ssmp("report", trained[0] / "ckpt.pt", trained[0] / "ckpt.pt", "--json")
    assert (said.returncode, said.stderr) == (
        2,
        "ssmp: --json gives one document; report on one study or checkpoint at a time\n",
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("models", {"s4d", "transformer"}),
        ("inits", {"s4d-lin", "s4d-inv", "s4d-legs", "random"}),
        ("objectives", {"masked", "causal"}),
        ("tasks", {"mnist", "digits"}),
        ("presets", {"paper", "quick", "small"}),
    ],
)
def test_list_names_everything_with_a_sentence(ssmp, kind, names):
    said = ssmp("list", kind, "--json")
    rows = json.loads(said.stdout)
    assert {row["name"] for row in rows} >= names
    assert all(len(row["what"]) > 10 for row in rows)
    assert {line.split("\t")[0] for line in ssmp("list", kind).stdout.splitlines()[1:]} == {row["name"] for row in rows}


def test_a_reader_that_leaves_early_is_no_error():
    line = f"{sys.executable} -m ssm_priors.cli list inits | head -1; echo ${{PIPESTATUS[0]}}"
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert "Traceback" not in said.stderr
    assert "name" in said.stdout


def test_a_run_over_two_devices_from_the_command_line(ssmp, tmp_path):
    said = ssmp("train", *FROM_SCRATCH, "--fraction", "0.1", "--devices", "2", "--out", tmp_path / "run", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["record"]["provenance"]["devices"] == [2]


def test_a_norm_over_the_batch_is_refused_on_several_devices(ssmp, tmp_path):
    said = ssmp("train", *FROM_SCRATCH, "--set", "model.norm=batch", "--devices", "2", "--out", tmp_path / "run")
    assert said.returncode == 2
    assert "model.norm=layer" in said.stderr
    assert not (tmp_path / "run").exists()
