from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import builders
import numpy as np
import pytest
import torch

from ssm_priors.analyses import schema
from ssm_priors.analyses.attention import attention_summary
from ssm_priors.analyses.distances import Question, distances, distances_of_stages
from ssm_priors.analyses.kernels import kernels
from ssm_priors.analyses.spectra import spectra
from ssm_priors.analyses.trajectory import stages, trajectory
from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadCheckpoint, BadData
from ssm_priors.training import run

from .conftest import make_checkpoint


def moved(checkpoint: Checkpoint, phase: str, seed: int) -> Checkpoint:
    """The same run at another point of its course; a pretraining answers per position."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in checkpoint.tensors.items()}
    if phase == "pretrain":
        head = builders.model(checkpoint.config.model.mixer.name, pooled=False, outputs=1, layers=2).state_dict()
        tensors = {n: t for n, t in tensors.items() if not n.startswith("head.")}
        tensors |= {name: tensor.clone() for name, tensor in head.items() if name.startswith("head.")}
    return replace(checkpoint, phase=phase, tensors=tensors)


def folder_of(path: Path, mixer: str = "s4d", *, pretrained: bool = True, finished: bool = True) -> Path:
    checkpoint = make_checkpoint(mixer, layers=2)
    if pretrained:
        moved(checkpoint, "pretrain", 2).write(path / run.PRETRAINED)
    if finished:
        checkpoint.write(path / run.CHECKPOINT)
    return path


def test_a_run_is_its_init_its_pretraining_and_its_end(tmp_path):
    folder = folder_of(tmp_path)
    found = trajectory(folder, spectra)
    assert list(found.stage.values) == ["init", "pretrained", "learned"]
    pretrained, learned = (Checkpoint.read(folder / name) for name in (run.PRETRAINED, run.CHECKPOINT))
    expected = {"init": learned.initial_model(), "pretrained": pretrained, "learned": learned}
    for stage, source in expected.items():
        for name, variable in spectra(source).data_vars.items():
            assert found[name].sel(stage=stage, drop=True).equals(variable), (stage, name)
    assert found.attrs["weights_sha256"] == learned.digest
    assert found.attrs["stage"] == "init, pretrained and learned"
    assert found.attrs["discretisation"] == "zoh"


@pytest.mark.parametrize(
    ("pretrained", "finished", "names"),
    [(False, True, ["init", "learned"]), (True, False, ["init", "pretrained"])],
)
def test_a_run_is_shown_as_far_as_it_went(tmp_path, pretrained, finished, names):
    folder = folder_of(tmp_path, pretrained=pretrained, finished=finished)
    assert list(trajectory(folder, lambda model: kernels(model, 16)).stage.values) == names
    assert list(stages(folder)) == names


def test_any_analysis_will_do_and_survives_a_file(tmp_path):
    folder = folder_of(tmp_path, "transformer")
    inputs = Batch(builders.normal(2, 9, 1, dtype=torch.float32), torch.tensor([9, 4]), None)
    found = trajectory(folder, lambda model: attention_summary(model, [inputs]))
    assert found.mean_distance.dims == ("stage", "layer", "head")
    assert len(np.unique(found.mean_distance.values)) == found.mean_distance.size
    assert (found.padding == 0).all()
    schema.write(found, tmp_path / "attention.nc")
    assert schema.read(tmp_path / "attention.nc").identical(found)


def test_distances_grow_from_a_start_of_0(tmp_path):
    found = trajectory(folder_of(tmp_path), lambda model: distances(model, Question(("s4d-lin",), 64)))
    moved = found.decay_distance + found.frequency_distance
    assert (moved.sel(stage="init") < 1e-6).all()
    assert (moved.sel(stage=["pretrained", "learned"]) > 1e-3).all()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadData, match=r"neither pretrained\.pt nor ckpt\.pt"):
        trajectory(tmp_path, spectra)
    folder = folder_of(tmp_path)
    question = Question(("s4d-lin",), 64)
    checkpoint = Checkpoint.read(folder / run.CHECKPOINT)
    with pytest.raises(BadData, match="looks at several stages itself"):
        trajectory(folder, lambda model: distances_of_stages(checkpoint, question))
    make_checkpoint(layers=2, d_model=4).write(folder / run.CHECKPOINT)
    with pytest.raises(BadData, match="of different runs"):
        stages(folder)
    (folder / run.CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(BadCheckpoint):
        stages(folder)
