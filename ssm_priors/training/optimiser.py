"""AdamW with its parameter groups, and the learning rate's course.

Three groups: SSM parameters (their own rate, never decayed), vectors (biases, norms, D: not decayed unless asked for),
matrices. Where dt has a rate apart, it is a fourth.
Source of the SSM group: Gu et al. 2022, arXiv 2111.00396, appendix; Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ssm_priors.config import PhaseConfig
from ssm_priors.models.protocols import HasSsmParameters

DT = "log_dt"
"""What every mixer that has timescales calls them."""


def parameter_groups(model: nn.Module, phase: PhaseConfig) -> list[dict]:
    """Every trainable parameter in exactly one group: its `name`, `params`, `peak_lr` and `weight_decay`."""
    ssm = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, HasSsmParameters)
        for parameter in module.ssm_parameters()
    }
    dt_rate = phase.dt_learning_rate
    parts: dict[str, list[nn.Parameter]] = {"ssm": [], "dt": [], "vectors": [], "matrices": []}
    for key, parameter in model.named_parameters():
        name = "ssm" if id(parameter) in ssm else "vectors" if parameter.ndim <= 1 else "matrices"
        is_apart = name == "ssm" and dt_rate is not None and key.rpartition(".")[2] == DT
        parts["dt" if is_apart else name].append(parameter)
    settings = {
        "ssm": (phase.ssm_learning_rate, 0.0),
        "dt": (dt_rate, 0.0),
        "vectors": (phase.learning_rate, phase.weight_decay if phase.decay_vectors else 0.0),
        "matrices": (phase.learning_rate, phase.weight_decay),
    }
    return [
        {"name": name, "params": params, "peak_lr": settings[name][0], "lr": 0.0, "weight_decay": settings[name][1]}
        for name, params in parts.items()
        if params
    ]


def adamw(model: nn.Module, phase: PhaseConfig) -> torch.optim.AdamW:
    """The optimiser of one phase, fresh."""
    return torch.optim.AdamW(parameter_groups(model, phase), betas=(0.9, phase.beta2), fused=True)


def set_rate(optimiser: torch.optim.Optimizer, phase: PhaseConfig, step: int, steps: int, steps_per_epoch: int) -> None:
    """Give every group its rate at a step of the phase, from 0."""
    factor = rate_factor(phase, step, steps, steps_per_epoch)
    for group in optimiser.param_groups:
        group["lr"] = group["peak_lr"] * factor


def rate_factor(phase: PhaseConfig, step: int, steps: int, steps_per_epoch: int) -> float:
    """Share of the peak rate: rises linearly to 1 at the end of the warm-up, then goes as the schedule says.

    Continuous at the border: 1 at the last warm-up step and at the first after it, unless a multistep schedule has
    fallen by then. A cosine reaches 0 where the phase has ended.
    """
    ramp = warmup_steps(phase, steps)
    if step < ramp:
        return (step + 1) / ramp
    if phase.schedule == "constant":
        return 1.0
    if phase.schedule == "multistep":
        return phase.step_factor ** (step // steps_per_epoch // phase.step_epochs)
    return (1 + math.cos(math.pi * (step - ramp) / (steps - ramp))) / 2


def warmup_steps(phase: PhaseConfig, steps: int) -> int:
    """Steps of the warm-up, of so many in all."""
    return phase.warmup_steps or round(phase.warmup * steps)
