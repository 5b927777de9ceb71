"""What is timed: a layer forward and backward, or a training step of a classifier, in every variant."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.batch import TaskSpec
from ssm_priors.config import RunConfig
from ssm_priors.models.build import build
from ssm_priors.ops import backend
from ssm_priors.registry import MIXERS
from ssm_priors.studies.bench.naive import NaiveClassifier, NaiveLayer

Variant = Literal["naive", "torch", "fused", "attention"]
CLASSES = 10
HEADS = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to do, at one size."""

    kind: Literal["layer", "step"]
    batch: int
    channels: int
    d_state: int
    length: int
    layers: int = 1
    precision: Literal["32", "bf16-mixed"] = "32"

    @property
    def label(self) -> str:
        """As the table names it: a layer forward and backward, or a training step."""
        size = f"B{self.batch} H{self.channels} N{self.d_state} L{self.length}"
        what = "layer" if self.kind == "layer" else f"step of {self.layers} layers"
        return f"{what}, {size}" + (", bf16" if self.precision == "bf16-mixed" else "")

    @property
    def input_bytes(self) -> int:
        """Of the layer's input in float32."""
        return 4 * self.batch * self.channels * self.length


def ready(problem: Problem, variant: Variant) -> Callable[[], None]:
    """The problem in one variant, set up: each call does it once."""
    torch.manual_seed(0)
    work = _layer(problem, variant) if problem.kind == "layer" else _step(problem, variant)
    if variant not in ("torch", "fused"):
        return work
    with backend.using(variant) as chosen:  # the self-check is not part of what is timed
        pass

    def under_it() -> None:
        with backend.using(chosen):
            work()

    return under_it


def _precision(problem: Problem) -> torch.autocast | nullcontext:
    half = problem.precision == "bf16-mixed"
    return torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext()


def _layer(problem: Problem, variant: Variant) -> Callable[[], None]:
    shape = (problem.batch, problem.length, problem.channels)
    apply, parameters = _layer_of(problem, variant)
    u = torch.randn(shape).transpose(1, 2).contiguous() if variant == "naive" else torch.randn(shape)
    u.requires_grad_()
    weight = torch.randn_like(u)

    def work() -> None:
        with _precision(problem):
            y = apply(u)
        torch.autograd.grad(y, [u, *parameters], weight.to(y.dtype))

    return work


def _layer_of(problem: Problem, variant: Variant) -> tuple[Callable[[Tensor], Tensor], list[nn.Parameter]]:
    if variant == "naive":
        naive = NaiveLayer(problem.channels, problem.d_state)
        return naive, list(naive.parameters())
    make = MIXERS["transformer" if variant == "attention" else "s4d"]
    options = make.Config(heads=HEADS) if variant == "attention" else make.Config(d_state=problem.d_state)
    mixer = make(options, d_model=problem.channels, causal=True, dropout=0.0, rng=np.random.default_rng(0))
    lengths = torch.full((problem.batch,), problem.length)
    return lambda u: mixer(u, lengths), list(mixer.parameters())


def _step(problem: Problem, variant: Variant) -> Callable[[], None]:
    model = _classifier(problem, variant)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(problem.batch, problem.length, 1)
    lengths = torch.full((problem.batch,), problem.length)
    targets = torch.randint(CLASSES, (problem.batch,))

    def work() -> None:
        with _precision(problem):
            answers = model(inputs) if variant == "naive" else model(inputs, lengths)
            loss = F.cross_entropy(answers.float(), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return work


def _classifier(problem: Problem, variant: Variant) -> nn.Module:
    if variant == "naive":
        return NaiveClassifier(problem.channels, problem.d_state, problem.layers, CLASSES)
    model = {
        "mixer": {"name": "s4d", "d_state": problem.d_state},
        "d_model": problem.channels,
        "layers": problem.layers,
        "expand": 0,
        "causal": True,
        "dropout": 0.0,
    }
    config = RunConfig.from_dict({"task": {"name": "digits"}, "model": model, "finetune": {}})
    spec = TaskSpec(kind="continuous", length=problem.length, classes=CLASSES)
    return build(config.model, spec, 0, outputs=CLASSES, pooled=True)
