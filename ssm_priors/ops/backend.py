"""Which arithmetic runs on the CPU: torch's, or the compiled kernels (`fused`).

The environment variable SSM_PRIORS_BACKEND decides, once a process, at the first operation that asks: torch (the
default), auto (the compiled kernels where they are there and right, else torch's) or fused (or nothing). They agree to
rounding, so a run's numbers depend on it as on the machine; which one ran is part of its provenance.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.errors import BadConfig
from ssm_priors.ops import fused
from ssm_priors.ops.fftconv import fftconv
from ssm_priors.ops.vandermonde import vandermonde

VARIABLE = "SSM_PRIORS_BACKEND"
DEFAULT = "torch"
TOLERANCE = 1e-4
"""Of the self-check: largest difference over largest value. Both sides are right to 1e-6; a wrong one is off by 1."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What was chosen."""

    name: str
    """fused or torch."""
    detail: str
    """What the fused kernels were compiled for; or why it is torch."""

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})"


_chosen: Backend | None = None


def chosen() -> Backend:
    """The backend of this process.

    Raises:
        BadConfig: SSM_PRIORS_BACKEND names none, or asks for kernels that are not there.
    """
    global _chosen
    if _chosen is None:
        _chosen = _choose(os.environ.get(VARIABLE, DEFAULT))
    return _chosen


@contextmanager
def using(name: str | Backend) -> Iterator[Backend]:
    """Choose by hand within: auto, fused or torch, or what was chosen before; raises as `chosen`."""
    global _chosen
    before, _chosen = _chosen, name if isinstance(name, Backend) else _choose(name)
    try:
        yield _chosen
    finally:
        _chosen = before


def _is_fused() -> bool:
    return chosen().name == "fused"


# What torch.compiler.assume_constant_result sets, which imports the compiler for it: 2 s that every command would wait
_is_fused._dynamo_marked_constant = True  # type: ignore[attr-defined]


def runs_fused(u: Tensor, dtype: torch.dtype, length: int) -> bool:
    """Whether an operation on tensors like `u`, computed in `dtype`, goes to the compiled kernels."""
    return u.device.type == "cpu" and dtype == torch.float32 and length <= fused.LONGEST and _is_fused()


def _choose(wanted: str) -> Backend:
    if wanted not in ("auto", "fused", "torch"):
        raise BadConfig(f"{VARIABLE}={wanted}: auto, fused or torch was expected")
    if wanted == "torch":
        return Backend("torch", f"{VARIABLE}=auto takes the compiled kernels where there are any")
    library, detail = fused.load()
    if library is not None:
        off = _difference()
        if off < TOLERANCE:  # False for NaN too
            return Backend("fused", f"{detail}, {library.ssmp_lanes()} lanes")
        detail = f"the compiled kernels failed their self-check: they are off by {off:.1e}"
        logging.getLogger(__name__).warning("%s; torch's operations are used instead", detail)
    if wanted == "fused":
        raise BadConfig(f"{VARIABLE}=fused: {detail}; use auto or torch")
    return Backend("torch", detail)


def _difference() -> float:
    """The self-check on a tiny problem: by how much the kernels differ from torch, forward and backward."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        u, skip, weight = numbers(3, 10, 19), numbers(19), numbers(3, 10, 7)
        matrix, bias = numbers(14, 19), numbers(14)
        c, d = (numbers(2, 19, 3, dtype=torch.float64) for _ in range(2))
        decay, angle = -numbers(19, 3, dtype=torch.float64).abs(), numbers(19, 3, dtype=torch.float64)
        inputs = [u, skip, c, d, decay, angle, matrix, bias]
        ours = fused.gate(fused.convolve(u, fused.vandermonde(c, d, decay, angle, 10), skip, True), matrix, bias)
        kernel = vandermonde(c, d, decay, angle, 10, torch.float32)
        theirs = F.glu(F.linear(F.gelu(fftconv(u, kernel) + skip * u), matrix, bias))
        pairs = zip(
            [ours, *torch.autograd.grad(ours, inputs, weight)],
            [theirs, *torch.autograd.grad(theirs, inputs, weight)],
            strict=True,
        )
        return torch.stack([(one - other).abs().max() / other.abs().max() for one, other in pairs]).max().item()
