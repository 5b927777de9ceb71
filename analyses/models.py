"""What every analysis asks of its model: the mixers that have a skill, as float64 copies, and where they come from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import xarray as xr
from torch import nn

from ssm_priors.analyses.schema import MADE_BY, STAGES, index
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.foreign import ForeignCheckpoint
from ssm_priors.errors import NotThere
from ssm_priors.models.build import Model


class HasMixers(Protocol):
    """What can be looked at: a model, or the layers found in a file."""

    @property
    def mixers(self) -> list[nn.Module]:
        """The mixer of every layer, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to look at, and what is known of its origin."""

    model: HasMixers
    origin: dict[str, Any]
    """Becomes the attributes of the dataset; plain values."""

    def mixers(self, skill: type, shows: str, kind: str) -> list[Any]:
        """The mixer of every layer; raises NotThere where one lacks the skill.

        Args:
            skill: a protocol of `ssm_priors.models.protocols`.
            shows: what can be seen in a mixer with this skill: "kernels".
            kind: what such a mixer is: "a convolution".
        """
        for mixer in self.model.mixers:
            if not isinstance(mixer, skill):
                raise NotThere(f"this model has no {shows}: its mixer is a {type(mixer).__name__}, not {kind}")
        return self.model.mixers


def subject(source: Checkpoint | ForeignCheckpoint | Model) -> Subject:
    """A checkpoint's trained model with its record, or a bare model."""
    if isinstance(source, Checkpoint):
        return Subject(source.model(), origin(source, "learned"))
    if isinstance(source, ForeignCheckpoint):
        return Subject(source, foreign_origin(source))
    return Subject(source, {"source": MADE_BY, "model": type(source.mixers[0]).__name__})


def origin(checkpoint: Checkpoint, stage: str) -> dict[str, Any]:
    """Where data come from, as plain attributes: the run in brief, its fingerprint, its weights' hash."""
    config = checkpoint.config
    pretrain = config.pretrain and config.pretrain.objective
    return {
        "source": MADE_BY,
        "stage": stage,
        "model": config.model.mixer.name,
        "init": getattr(config.model.mixer.options, "init", "none"),
        "pretrain": pretrain.name if pretrain else "none",
        "task": config.task.name,
        "seed": config.seed,
        "fingerprint": config.fingerprint,
        "phase": checkpoint.phase,
        "weights_sha256": checkpoint.digest,
    }


def foreign_origin(checkpoint: ForeignCheckpoint) -> dict[str, Any]:
    """Where data of a foreign checkpoint come from: what it was taken for, what was assumed, the file's hash."""
    return {
        "source": MADE_BY,
        "stage": "learned",
        "model": checkpoint.family,
        "recognised": checkpoint.recognised,
        "file_sha256": checkpoint.sha256,
    }


def both_stages(checkpoint: Checkpoint, analysis: Callable[[Model], xr.Dataset]) -> xr.Dataset:
    """An analysis of the model before its first step of training and as trained, joined along `stage`."""
    found = [analysis(model) for model in (checkpoint.initial_model(), checkpoint.model())]
    joined = xr.concat(found, dim="stage", combine_attrs="override", data_vars="all", coords="minimal", compat="equals")
    return joined.assign_coords(index("stage", STAGES)).assign_attrs(origin(checkpoint, " and ".join(STAGES)))


def in_float64(mixer: Any) -> Any:
    """A float64 copy on the CPU: what is done to it leaves the model's outputs, mode, gradients and memory alone."""
    return copy.deepcopy(mixer).to("cpu", torch.float64)
