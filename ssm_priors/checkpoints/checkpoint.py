"""Checkpoint: a run's configuration, weights and record in one file, `ckpt.pt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssm_priors.batch import TaskSpec
from ssm_priors.checkpoints import container
from ssm_priors.config import RunConfig, validate
from ssm_priors.errors import BadCheckpoint, SsmPriorsError
from ssm_priors.models.build import Model, build

KIND = "checkpoint"
FINISHED, PRETRAINED = "ckpt.pt", "pretrained.pt"
"""What the checkpoints of a run's two phases are called in its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a run leaves: enough to rebuild the model without its task's data."""

    config: RunConfig
    spec: TaskSpec
    """The task's input kind and sizes."""
    phase: str
    """"pretrain" or "finetune": the phase these weights come out of."""
    tensors: dict[str, Tensor]
    """The model's state dict, float32."""
    record: dict[str, Any]
    """Plain values: step, metrics, provenance."""

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Open a file written by `write`.

        Raises:
            BadCheckpoint: the file is missing, damaged, unsafe, of another tool, or does not hold together.
        """
        record, tensors = container.read(path, KIND)
        try:
            config = RunConfig.from_dict(record.pop("config"))
            spec = validate(TaskSpec, _without_metric(record.pop("spec")), "spec")
            return cls(config=config, spec=spec, phase=str(record.pop("phase")), tensors=tensors, record=record)
        except KeyError as missing:
            raise BadCheckpoint(f"{path}: its record lacks {missing}") from missing
        except (SsmPriorsError, TypeError) as error:
            reason = str(error).replace("\n", "; ")
            raise BadCheckpoint(f"{path}: its configuration is not valid: {reason}") from error

    def write(self, path: Path) -> None:
        """Write atomically."""
        spec = {name: getattr(self.spec, name) for name in TaskSpec.__dataclass_fields__}
        head = {"config": self.config.to_dict(), "spec": spec, "phase": self.phase}
        container.write(path, KIND, head | self.record, self.tensors)

    def model(self) -> Model:
        """The trained model, in evaluation mode; raises BadCheckpoint naming the tensor that does not fit."""
        model = self.initial_model()
        load_exactly(model, self.tensors)
        return model

    def initial_model(self) -> Model:
        """The model as it was before the first step of training: rebuilt from the configuration and the seed."""
        self._refuse_other_size()
        pooled = self.phase == "finetune" and self.spec.answer != "tokens"
        outputs, stand_ins = len(self.tensors["head.output.weight"]), len(self.tensors.get("head.stand_ins", ()))
        config, seed = self.config.model, self.config.seed
        try:
            return build(config, self.spec, seed, outputs=outputs, pooled=pooled, stand_ins=stand_ins).eval()
        except SsmPriorsError as error:
            raise BadCheckpoint(f"its configuration builds no model: {error}") from error

    def _refuse_other_size(self) -> None:
        """Hold the configuration's sizes against the tensors', before a model is built of sizes that nobody has."""
        blocks = {name.split(".")[2] for name in self.tensors if name.startswith("backbone.blocks.")}
        names = ("backbone.blocks.0.mixer_norm.weight", "head.output.weight")
        norm, head = (self.tensors.get(name, torch.zeros(())) for name in names)
        width, layers = self.config.model.d_model, self.config.model.layers
        if norm.shape != (width,) or len(blocks) != layers or head.ndim != 2 or head.shape[1] != width:
            raise BadCheckpoint(f"its tensors are not those of a model with {layers} layers of {width} channels")

    @property
    def digest(self) -> str:
        """SHA-256 of all tensors' names, types, shapes and bytes: equal digests are equal weights."""
        return container.digest(self.tensors)


def _without_metric(spec: Any) -> Any:
    """What a metric is called follows from `answer`; it stood beside it before there was more than one."""
    return {name: value for name, value in spec.items() if name != "metric"} if isinstance(spec, dict) else spec


def load_exactly(module: torch.nn.Module, tensors: Mapping[str, Tensor], fresh: str = "") -> int:
    """Copy tensors into a module by name; nothing may be missing, left over, of another shape or type, or not finite.

    Args:
        module: receives the tensors.
        tensors: a state dict.
        fresh: a prefix of names that stay as they are in the module and are passed over in `tensors`: "head.".

    Returns:
        How many tensors were loaded.

    Raises:
        BadCheckpoint: one line naming the first tensor that does not fit.
    """
    own = module.state_dict()
    wanted = {name for name in own if not (fresh and name.startswith(fresh))}
    given = {name for name in tensors if not (fresh and name.startswith(fresh))}
    for name in sorted(wanted ^ given):
        raise BadCheckpoint(f"tensor '{name}' is {'missing' if name in wanted else 'not one of this model'}")
    for name in sorted(wanted):
        if own[name].shape != tensors[name].shape:
            expected, found = tuple(own[name].shape), tuple(tensors[name].shape)
            raise BadCheckpoint(f"tensor '{name}' has the shape {found}, {expected} was expected")
        if own[name].dtype != tensors[name].dtype:
            raise BadCheckpoint(f"tensor '{name}' is {tensors[name].dtype}, {own[name].dtype} was expected")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise BadCheckpoint(f"tensor '{name}' holds values that are not finite")
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return len(wanted)
