"""`inspect-kernels` on files of other code, `compare-priors` and `inspect-attention`, as real processes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from ssm_priors.analyses import schema
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.cli.app import app

from .conftest import FROM_SCRATCH, TINY

DATA = Path(__file__).parents[1] / "data"
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
FOREIGN = sorted(path.name for path in [*DATA.glob("foreign_*.ckpt"), *DATA.glob("foreign_*.pt")])

pytestmark = pytest.mark.xdist_group("looking")


@pytest.fixture(scope="module")
def run(ssmp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("looking") / "run"
    said = ssmp("train", *TINY, "--pretrain", "masked", "--out", folder)
    assert said.returncode == 0, said.stderr
    return folder


@pytest.fixture(scope="module")
def attending(ssmp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attending") / "run"
    small = [part for part in TINY if "d_state" not in part and part != "--set"]
    settings = [word for part in small if "=" in part for word in ("--set", part)]
    said = ssmp(
        "train", "--task", "digits", "--model", "transformer", "--pretrain", "masked", *settings, "--out", folder
    )
    assert said.returncode == 0, said.stderr
    return folder


def shown(arguments: list) -> tuple[int, str]:
    """What a command answers, in this process: a second for each file instead of eight."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output + result.stderr


@pytest.mark.parametrize("name", FOREIGN)
def test_kernels_of_other_code_are_shown(tmp_path, name):
    shutil.copy(DATA / name, tmp_path)
    code, said = shown(["inspect-kernels", tmp_path / name, "--length", 64])
    assert code == 0, said
    assert "2 layers, 64 lags" in said.splitlines()[0]
    found = schema.read(tmp_path / "inspect" / Path(name).stem / "kernels.nc")
    assert list(found.stage.values) == ["learned"]
    assert found.sizes["lag"] == 64


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden checkpoints lie beside a working copy only")
def test_every_golden_checkpoint_of_other_code_is_shown_or_refused_for_what_it_is(tmp_path):
    files = [path for path in sorted(GOLDEN.iterdir()) if path.suffix in (".ckpt", ".pt", ".pth")]
    assert len(files) > 10
    for path in files:
        look = ["--length", 16, "--layers", 0, "--out", tmp_path / path.name]
        code, said = shown(["inspect-kernels", path, *look])
        if "transformer" in path.name:
            assert "this model has no kernels: its mixer is a Transformer, not a convolution" in said
        else:
            assert code == 0, (path, said)


def test_a_mamba_shows_its_spectrum_and_says_nothing_of_kernels(ssmp, tmp_path):
    layer = {"A_log": torch.arange(1, 9.0).log().repeat(4, 1), "dt_proj.bias": torch.full((4,), -2.0)}
    save_file({f"backbone.layers.0.mixer.{name}": value for name, value in layer.items()}, tmp_path / "m.safetensors")
    said = ssmp("inspect-kernels", tmp_path / "m.safetensors")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("Mamba: ")
    assert "kernels\t" not in said.stdout
    dt = torch.nn.functional.softplus(torch.tensor(-2.0)).item()
    found = schema.read(tmp_path / "inspect" / "m" / "kernels.nc")
    assert found.decay_rate.values.min() == pytest.approx(dt, rel=1e-6)
    assert found.weight.isnull().all()


def test_an_unknown_file_is_told_by_its_parameters(ssmp, tmp_path):
    torch.save({"conv.3.weight": torch.ones(2)}, tmp_path / "other.pt")
    said = ssmp("inspect-kernels", tmp_path / "other.pt")
    assert said.returncode == 2
    assert "Its parameters: conv.*.weight" in said.stderr
    assert "s4d-standalone" in said.stderr


def test_a_checkpoint_is_held_against_priors_and_beside_another(ssmp, run, tmp_path):
    said = ssmp(
        *("inspect-kernels", run / "ckpt.pt", "--against", "s4d-lin,s4d-inv", "--compare", run / "pretrained.pt"),
        *("--layers", "0", "--length", "32", "--out", tmp_path, "--json"),
    )
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    assert (document["phase"], document["compared"]["phase"]) == ("finetune", "pretrain")
    assert [answer["prior"] for answer in document["priors"]["answers"]] == ["s4d-lin", "s4d-inv"]
    assert document["priors"]["answers"][0]["init"]["decay_distance"] == pytest.approx(0, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "compared.nc",
        "kernels.html",
        "kernels.nc",
        "priors.nc",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layers", "5"], "--layers: no layer '5'; this model has the layers 0"),
        (["--against", "s4d-linn"], "unknown prior 's4d-linn'. Did you mean s4d-lin?"),
    ],
)
def test_wrong_use_is_one_line(ssmp, run, arguments, reason):
    said = ssmp("inspect-kernels", run / "ckpt.pt", *arguments)
    assert (said.returncode, said.stderr) == (2, f"ssmp: {reason}\n")


def test_priors_are_compared_stage_by_stage(ssmp, run, tmp_path):
    said = ssmp("compare-priors", run / "ckpt.pt", run / "pretrained.pt", "--length", "32", "--out", tmp_path)
    assert said.returncode == 0, said.stderr
    rows = [line.split("\t") for line in said.stdout.splitlines() if "\t" in line]
    assert rows[0] == ["layer", "prior", "quantity", "learned", "init", "random"]
    assert [row[1] for row in rows[1:13:4]] == ["hippo-legs", "s4d-lin", "s4d-inv"]
    assert len(list(tmp_path.iterdir())) == 2
    for folder in tmp_path.iterdir():
        assert list(schema.read(folder / "priors.nc").stage.values) == ["init", "learned", "random"]
        assert (folder / "priors.html").is_file()


def test_attention_is_shown_over_the_course_of_a_run(ssmp, attending):
    said = ssmp("inspect-attention", attending / "ckpt.pt", "--examples", "3", "--near", "4")
    assert said.returncode == 0, said.stderr
    rows = [line.split("\t") for line in said.stdout.splitlines() if "\t" in line]
    assert rows[0] == ["layer", "quantity", "learned", "pretrained", "init", "even"]
    padding = next(row for row in rows if row[1] == "padding")
    assert padding[2] == "0 (0..0)"
    found = schema.read(attending / "inspect" / "ckpt" / "attention.nc")
    assert list(found.stage.values) == ["init", "pretrained", "learned"]
    assert found.attrs["examples"] == 3
    assert (attending / "inspect" / "ckpt" / "attention.html").is_file()


def test_what_has_no_attention_is_refused(ssmp, run):
    said = ssmp("inspect-attention", run / "ckpt.pt")
    assert (said.returncode, said.stderr) == (
        2,
        "ssmp: this model has no attention: its mixer is a S4D, not an attention\n",
    )
    said = ssmp("inspect-attention", DATA / "foreign_s4d_standalone.pt")
    assert said.returncode == 2
    assert "needs the whole model and its task: a checkpoint of ssm-priors" in said.stderr


def test_what_pretraining_learned_is_told_beside_trivial_guesses(run, tmp_path):
    told = [
        shown(["inspect-pretraining", run / name, "--out", tmp_path, "--json"]) for name in ("ckpt.pt", "pretrained.pt")
    ]
    assert [code for code, _ in told] == [0, 0], told
    document, again = (json.loads(said) for _, said in told)
    assert document == again
    assert document["checkpoint"].endswith("pretrained.pt")
    assert set(document["pretrain_loss"]) == {"init", "pretrained", "constant"}
    found = schema.read(tmp_path / "pretraining.nc")
    assert document["answers"] == int((found.is_asked == 1).sum())
    assert "data:image/png" in (tmp_path / "pretraining.html").read_text(encoding="utf-8")


def test_a_run_without_pretraining_or_without_its_weights_says_so(ssmp, run, tmp_path):
    shutil.copy(run / "ckpt.pt", tmp_path)
    code, said = shown(["inspect-pretraining", tmp_path / "ckpt.pt"])
    assert code == 2
    assert "pretrained.pt of the same run was expected beside it" in said
    assert ssmp("train", *FROM_SCRATCH, "--out", tmp_path / "scratch").returncode == 0
    code, said = shown(["inspect-pretraining", tmp_path / "scratch" / "ckpt.pt"])
    assert code == 2
    assert "this run was trained from scratch" in said
    shutil.copy(run / "pretrained.pt", tmp_path / "scratch")
    code, said = shown(["inspect-pretraining", tmp_path / "scratch" / "pretrained.pt"])
    assert code == 0, said


def test_losses_on_other_data_than_those_of_the_run_are_refused(run, tmp_path):
    of_run = Checkpoint.read(run / "pretrained.pt")
    record = of_run.record | {"provenance": of_run.record["provenance"] | {"data_sha256": "0" * 64}}
    replace(of_run, record=record).write(tmp_path / "pretrained.pt")
    code, said = shown(["inspect-pretraining", tmp_path / "pretrained.pt"])
    assert code == 2
    assert "was trained on other data than task 'digits' has now" in said
