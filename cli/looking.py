"""What the commands that look into checkpoints share: opening, choosing layers, words, numbers, and where to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.models import Source
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig, NotThere

LENGTH = 1024
"""Lags looked at where a file of other code does not say how long its sequences were."""


def lags(source: Source, asked: int | None) -> int:
    """How many lags to look at: as asked, else the length that the model was made for."""
    if asked is not None:
        return asked
    return source.spec.length if isinstance(source, Checkpoint) else source.length or LENGTH


def layers_of(dataset: xr.Dataset, layers: tuple[str, ...]) -> xr.Dataset:
    """The layers that were asked for; all if none was. Raises BadConfig for one that is not there."""
    there = {str(layer): layer for layer in dataset.layer.values.tolist()}
    unknown = [layer for layer in layers if layer not in there]
    if unknown:
        raise BadConfig(f"--layers: no layer '{unknown[0]}'; this model has the layers {', '.join(there)}")
    return dataset.sel(layer=[there[layer] for layer in layers]) if layers else dataset


def own(source: Source, path: Path, why: str) -> Checkpoint:
    """A checkpoint of this package; raises NotThere where only layers are known, saying what needs more."""
    if isinstance(source, Checkpoint):
        return source
    raise NotThere(f"{path}: {source.recognised}. {why} needs the whole model and its task: a checkpoint of ssm-priors")


def headline(about: Mapping[str, Any]) -> str:
    """What a dataset was computed from, in a line."""
    if "recognised" in about:
        return str(about["recognised"])
    pretrained = "from scratch" if about["pretrain"] == "none" else f"pretrained: {about['pretrain']}"
    return (
        f"{about['model']}, init {about['init']}, {pretrained}, on {about['task']}, seed {about['seed']}: "
        f"weights after {about['phase']}"
    )


def of_which(about: Mapping[str, Any], path: Path) -> str:
    """Which file, and how to know it again."""
    if "recognised" in about:
        return f"Checkpoint {path.name}, file {about['file_sha256'][:16]}."
    return f"Checkpoint {path.name}, run {about['fingerprint']}, weights {about['weights_sha256'][:16]}."


def folder_for(path: Path, out: Path | None) -> Path:
    """Where results go: as asked, else `inspect/NAME` beside the checkpoint, NAME being its file's."""
    return path.parent / "inspect" / path.stem if out is None else out


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The folder is made; what cannot be written there is told as BadConfig."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise BadConfig(f"cannot write to {folder}: {error.strerror or error}. Choose another --out") from error


def number(value: float, digits: int = 3) -> str:
    """Some digits, without an exponent where the number is one that people read at a glance; '-' for none."""
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def stages(dataset: xr.Dataset) -> list[str]:
    """The stages of a dataset as its tables show them: what was learned first, then what it is held against."""
    return sorted(map(str, dataset.stage.values), key=("learned", "pretrained", "init", schema.NULL).index)
