"""Every mixer learns: a few dozen steps on a tiny real task, through the same `run` as everything else."""

from __future__ import annotations

import csv

import builders
import numpy as np
import pytest

from ssm_priors.config import RunConfig
from ssm_priors.registry import MIXERS
from ssm_priors.training.run import run


@pytest.mark.parametrize("name", MIXERS)
def test_the_loss_falls_within_sixty_steps(name, tmp_path):
    config = RunConfig.from_dict(
        {
            "task": {"name": "digits"},
            "fraction": 0.16,
            "model": {"d_model": 16, "layers": 1, "mixer": {"name": name, **builders.SMALL.get(name, {})}},
            "finetune": {"epochs": 5, "batch_size": 16, "learning_rate": 1e-2},
        }
    )
    run(config, tmp_path, device="cpu", threads=1)
    with open(tmp_path / "metrics.csv", newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert len(losses) >= 60
    assert np.mean(losses[-10:]) < 0.97 * np.mean(losses[:10])
