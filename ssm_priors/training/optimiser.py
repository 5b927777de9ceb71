"""AdamW with its parameter groups, and the learning rate's course.

Three groups: SSM parameters (their own rate, never decayed), vectors (biases, norms, D: not decayed), matrices.
Source of the SSM group: Gu et al. 2022, arXiv 2111.00396, appendix; Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ssm_priors.config import PhaseConfig
from ssm_priors.models.protocols import HasSsmParameters


def parameter_groups(model: nn.Module, phase: PhaseConfig) -> list[dict]:
    """Every trainable parameter in exactly one group: its `name`, `params`, `peak_lr` and `weight_decay`."""
    ssm = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, HasSsmParameters)
        for parameter in module.ssm_parameters()
    }
    parts: dict[str, list[nn.Parameter]] = {"ssm": [], "vectors": [], "matrices": []}
    for parameter in model.parameters():
        name = "ssm" if id(parameter) in ssm else "vectors" if parameter.ndim <= 1 else "matrices"
        parts[name].append(parameter)
    settings = {
        "ssm": (phase.ssm_learning_rate, 0.0),
        "vectors": (phase.learning_rate, 0.0),
        "matrices": (phase.learning_rate, phase.weight_decay),
    }
    return [
        {"name": name, "params": params, "peak_lr": settings[name][0], "lr": 0.0, "weight_decay": settings[name][1]}
        for name, params in parts.items()
        if params
    ]


def adamw(model: nn.Module, phase: PhaseConfig) -> torch.optim.AdamW:
    """The optimiser of one phase, fresh."""
    return torch.optim.AdamW(parameter_groups(model, phase), fused=True)


def set_rate(optimiser: torch.optim.Optimizer, step: int, steps: int, warmup: float) -> None:
    """Give every group its rate at `step` (from 0) of `steps`."""
    factor = rate_factor(step, steps, round(warmup * steps))
    for group in optimiser.param_groups:
        group["lr"] = group["peak_lr"] * factor


def rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """Share of the peak rate: rises linearly to 1 at the end of the warm-up, then falls to 0 at `steps`.

    Continuous at the border: 1 at the last warm-up step and at the first after it; 0 is reached at `steps` only.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return (1 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps))) / 2
