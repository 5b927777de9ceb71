"""Small configurations and models that the tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ssm_priors.batch import TaskSpec
from ssm_priors.config import RunConfig
from ssm_priors.models.build import Model, build
from ssm_priors.presets import merge
from ssm_priors.registry import MIXERS
from ssm_priors.seeds import numpy_stream

SMALL: dict[str, dict[str, Any]] = {
    "dlr": {"d_state": 6},
    "dss": {"d_state": 6},
    "gpt-neox": {"heads": 2, "rotary": 1.0},
    "longconv": {"max_length": 64},
    "lru": {"d_state": 6},
    "mega": {"d_state": 4, "d_query": 8},
    "s4": {"d_state": 8},
    "s4d": {"d_state": 8},
    "s5": {"d_state": 8},
    "sgconv": {"max_length": 64},
    "transformer": {"heads": 2},
}
"""Options that make a mixer small; a mixer that is not named here runs with its defaults."""

CONTINUOUS = TaskSpec(kind="continuous", length=64, classes=3)
TOKENS = TaskSpec(kind="token", length=64, classes=3, vocabulary=20)


def raw(mixer: str = "s4d", **changes: Any) -> dict[str, Any]:
    base = {
        "task": {"name": "digits"},
        "model": {"mixer": {"name": mixer, **SMALL.get(mixer, {})}, "d_model": 8, "layers": 1},
        "finetune": {"epochs": 1, "batch_size": 50},
        "fraction": 0.1,
    }
    return merge(base, changes)


def config(mixer: str = "s4d", **changes: Any) -> RunConfig:
    return RunConfig.from_dict(raw(mixer, **changes))


def masked(**phase: Any) -> dict[str, Any]:
    return {"objective": {"name": "masked"}, "epochs": 1, "batch_size": 50, **phase}


def model(
    name: str = "s4d",
    spec: TaskSpec = CONTINUOUS,
    *,
    pooled: bool = True,
    outputs: int | None = 3,
    stand_ins: int = 1,
    seed: int = 0,
    **changes: Any,
) -> Model:
    sizes = {"outputs": outputs, "pooled": pooled, "stand_ins": stand_ins}
    return build(config(name, model=changes).model, spec, seed, **sizes)


def mixer_alone(name: str, *, causal: bool, d_model: int = 4, **options: Any) -> nn.Module:
    """One mixer in float64 and evaluation mode."""
    part = config(name, model={"mixer": options}).model.mixer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = MIXERS[name](part.options, d_model=d_model, causal=causal, dropout=0.0, rng=numpy_stream(0, name))
    return made.double().eval()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
