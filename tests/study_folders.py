"""Study folders for tests, written file by file: no training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssm_priors import atomic
from ssm_priors.batch import TaskSpec
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.config import RunConfig
from ssm_priors.metrics import ACCURACY
from ssm_priors.studies import results
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.report import report
from ssm_priors.studies.report.content import Extra
from ssm_priors.training.journal import columns

SPEC = TaskSpec(kind="continuous", length=196, classes=10)
PROVENANCE = {"ssm_priors": "0.1.0", "versions": {"torch": "2.6"}, "threads": 1, "data_sha256": "ab" * 32}
ABLATION = Study(inits=("random",), pretrains=("masked",), fractions=(1.0,), seeds=3)

COSTS = {
    "flops": {"pretrain": 3_400_000_000, "finetune": 1_200_000_000},
    "steps": {"pretrain": 80, "finetune": 40},
    "examples": {"pretrain": 2000, "finetune": 1000},
    "tokens": {"pretrain": 392_000, "finetune": 196_000},
    "seconds": {"pretrain": 20.25, "finetune": 12.5},
}

Outcome = float | str | None
"""A run's test accuracy, the reason it failed, or None for a run that is not there."""


def study_folder(
    out: Path, study: Study, outcome: Callable[[Cell, int], Outcome], *, examples: int = 200, steps: int = 40
) -> Path:
    """Write every run's folder. Easy examples are the same for all runs, so that cells are paired as in real life."""
    out.mkdir(parents=True, exist_ok=True)
    atomic.write_text(out / "study.toml", study.to_toml())
    for cell, seed, config in study.runs():
        result, folder = outcome(cell, seed), out / "runs" / config.fingerprint
        if result is None or folder.exists():  # a run that several cells share is there once
            continue
        folder.mkdir(parents=True)
        atomic.write_text(folder / "run.toml", config.to_toml())
        write_metrics(folder, config, steps)
        if isinstance(result, str):
            atomic.write_text(folder / "failed.txt", result)
        else:
            write_done(folder, config, result, examples)
    return out


def reported(study: Study, out: Path, extra: Sequence[Extra] = (), into: Path | None = None) -> dict[str, Path]:
    """Write the report of a study's folder, into another folder if one is given."""
    dataset = results.collect(study, out)
    return report.write(study, dataset, into or out, find(study, dataset), extra)


def write_done(
    folder: Path, config: RunConfig, accuracy: float, examples: int, cost: dict[str, Any] | None = None
) -> None:
    """`test.npz` and `ckpt.pt` of a run whose first `accuracy * examples` examples are right."""
    target = np.arange(examples) % 10
    prediction = np.where(np.arange(examples) < round(accuracy * examples), target, (target + 1) % 10)
    np.savez(folder / "test.npz", prediction=prediction, target=target)
    phases = ["pretrain", "finetune"] if config.pretrain else ["finetune"]
    if cost is None:
        cost = {name: {phase: COSTS[name][phase] for phase in phases} for name in COSTS}
        cost |= {"parameters": 21, "process_peak_memory_bytes": 300 * 2**20, "device_peak_memory_bytes": None}
    metrics = {"validation_accuracy": accuracy, "test_accuracy": (prediction == target).mean(), "test_loss": 0.5}
    record = {"step": 30, "metrics": metrics, "cost": cost, "provenance": PROVENANCE}
    tensors = {"weight": torch.zeros(7, 3)}
    Checkpoint(config=config, spec=SPEC, phase="finetune", tensors=tensors, record=record).write(folder / "ckpt.pt")


def write_metrics(folder: Path, config: RunConfig, steps: int) -> None:
    """`metrics.csv` of both phases, falling losses with noise."""
    lines, rng = [",".join(columns(ACCURACY))], np.random.default_rng(config.seed)
    for phase in (["pretrain"] if config.pretrain else []) + ["finetune"]:
        for step in range(1, steps + 1):
            ends = phase == "finetune" and step % 10 == 0
            loss = 2 * np.exp(-3 * step / steps) + 0.1 * rng.random()
            accuracy = f"{1 - loss / 3:.4f}" if ends else ""
            validation_loss = f"{loss:.4f}" if ends else ""
            lines.append(f"{phase},{step},{(step - 1) // 10},{loss:.6f},0.001,1.0,{validation_loss},{accuracy}")
    atomic.write_text(folder / "metrics.csv", "\n".join(lines) + "\n")
