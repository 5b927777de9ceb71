"""A run from its init over its pretraining to its end: one analysis of each, joined along `stage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import xarray as xr

from ssm_priors.analyses.models import along_stages
from ssm_priors.analyses.schema import COURSE
from ssm_priors.checkpoints.checkpoint import FINISHED, PRETRAINED, Checkpoint
from ssm_priors.errors import BadData
from ssm_priors.models.build import Model

Analysis = Callable[[Model], xr.Dataset]


def stages(folder: Path) -> dict[str, Model]:
    """The models of a run, in the order of its course.

    Args:
        folder: of a finished run, or of one that is pretrained.

    Returns:
        init, pretrained (where the run has a pretraining) and learned (where it is finished), in evaluation mode.

    Raises:
        BadData: the folder has neither checkpoint, or they are of different runs.
        BadCheckpoint: one of them is damaged.
    """
    return _models(_checkpoints(folder))


def trajectory(folder: Path, analysis: Analysis) -> xr.Dataset:
    """Any analysis of one model, over the course of a run.

    The init is rebuilt from configuration and seed; its head is that of the first phase. "learned" is what `ckpt.pt`
    holds: the finetuned weights that were best in validation.

    Args:
        folder: of a run.
        analysis: `spectra`, `lambda model: kernels(model, 1024)`, `lambda model: attention_summary(model, batches)`, ..

    Returns:
        Its variables with a leading `stage`: init, pretrained, learned, as far as the run went.

    Raises:
        BadData: as `stages`; or the analysis has a `stage` already.
    """
    found = _checkpoints(folder)
    parts = {stage: analysis(model) for stage, model in _models(found).items()}
    if any("stage" in part.dims for part in parts.values()):
        raise BadData("this analysis looks at several stages itself; a trajectory takes one that looks at one model")
    return along_stages(parts, list(found.values())[-1])


def _checkpoints(folder: Path) -> dict[str, Checkpoint]:
    files = {"pretrained": folder / PRETRAINED, "learned": folder / FINISHED}
    found = {stage: Checkpoint.read(path) for stage, path in files.items() if path.exists()}
    if not found:
        raise BadData(f"{folder}: neither {PRETRAINED} nor {FINISHED} is there; no run got so far here")
    if len({checkpoint.config.fingerprint for checkpoint in found.values()}) > 1:
        raise BadData(f"{folder}: {PRETRAINED} and {FINISHED} are of different runs")
    return found


def _models(found: Mapping[str, Checkpoint]) -> dict[str, Model]:
    first = next(iter(found.values())).initial_model()
    models = {"init": first} | {stage: checkpoint.model() for stage, checkpoint in found.items()}
    return {stage: models[stage] for stage in COURSE if stage in models}
