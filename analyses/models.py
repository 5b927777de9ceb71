"""What every analysis asks of its model: the mixers that have a skill, as float64 copies, and where they come from."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import xarray as xr
from torch import nn

from ssm_priors.analyses.schema import MADE_BY, check, index
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

    @property
    def whole(self) -> Model:
        """The model that can be run; raises NotThere where only its layers are known."""
        if isinstance(self.model, Model):
            return self.model
        raise NotThere("only the layers of this file are known, not the model that they stand in, so it cannot be run")

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


Source = Checkpoint | ForeignCheckpoint
"""A file that can be looked into."""


def subject(source: Source | HasMixers) -> Subject:
    """A checkpoint's trained model with its record, what was found in a file of other code, or a bare model."""
    if isinstance(source, Checkpoint):
        return Subject(source.model(), origin(source, "learned"))
    if isinstance(source, ForeignCheckpoint):
        return Subject(source, origin(source, "learned"))
    return Subject(source, {"source": MADE_BY, "model": type(source.mixers[0]).__name__})


def origin(source: Source, stage: str) -> dict[str, Any]:
    """Where data come from, as plain attributes: the run in brief, or what a file was taken for; and its hash."""
    if isinstance(source, ForeignCheckpoint):
        found = {"model": source.family, "recognised": source.recognised, "file_sha256": source.sha256}
        return {"source": MADE_BY, "stage": stage} | found
    config = source.config
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
        "phase": source.phase,
        "weights_sha256": source.digest,
    }


def stages_of(source: Source) -> dict[str, HasMixers]:
    """The model before its first step of training and as trained; the latter alone where the file is another code's."""
    if isinstance(source, ForeignCheckpoint):
        return {"learned": source}
    return {"init": source.initial_model(), "learned": source.model()}


def along_stages(parts: Mapping[str, xr.Dataset], source: Source) -> xr.Dataset:
    """Datasets of the same shape, joined along `stage` in the order given.

    Args:
        parts: a dataset for each stage.
        source: whose origin the whole bears.
    """
    joined = xr.concat(
        list(parts.values()), dim="stage", combine_attrs="override", data_vars="all", coords="minimal", compat="equals"
    )
    named = joined.assign_coords(index("stage", list(parts)))
    return check(named.assign_attrs(origin(source, listed(parts))))


def listed(words: Iterable[str]) -> str:
    """'init, pretrained and learned'."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def in_float64(mixer: Any) -> Any:
    """A float64 copy on the CPU: what is done to it leaves the model's outputs, mode, gradients and memory alone."""
    return copy.deepcopy(mixer).to("cpu", torch.float64)
