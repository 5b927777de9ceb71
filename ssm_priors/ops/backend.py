"""Which arithmetic runs: torch's, on the CPU the compiled kernels (`fused`), on a GPU the Triton ones (`triton`).

The environment variable SSM_PRIORS_BACKEND decides, once a process and kind of device, at the first operation that
asks: torch, auto (the kernels for this device where they are there and right, else torch's), fused or triton (or
nothing; the other device runs torch's). Where it is not set, a CPU has auto, and a GPU torch, since the Triton kernels
have run on none yet. They agree to rounding, so a run's numbers depend on it as on the machine; which one ran is part
of its provenance.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.errors import BadConfig
from ssm_priors.ops import fused
from ssm_priors.ops.fftconv import fftconv
from ssm_priors.ops.triton import lacking
from ssm_priors.ops.vandermonde import vandermonde

VARIABLE = "SSM_PRIORS_BACKEND"
DEFAULT = {"cpu": "auto"}
"""By kind of device; any other has torch."""
TOLERANCE = 1e-4
"""Of the self-check: largest difference over largest value. Both sides are right to 1e-6; a wrong one is off by 1."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What was chosen."""

    name: str
    """fused, triton or torch."""
    detail: str
    """What the kernels were compiled for; or why it is torch."""

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})"


_chosen: dict[str, Backend] = {}
"""By kind of device."""


def chosen(device: str = "cpu") -> Backend:
    """The backend of this process on a kind of device, cpu or cuda.

    Raises:
        BadConfig: SSM_PRIORS_BACKEND names none, or asks for kernels that are not there.
    """
    if device not in _chosen:
        _chosen[device] = _choose(os.environ.get(VARIABLE) or DEFAULT.get(device, "torch"), device)
    return _chosen[device]


@contextmanager
def using(name: str | Backend) -> Iterator[Backend]:
    """Choose by hand within: auto, fused, triton or torch, or for the CPU what was chosen before; raises as `chosen`.

    Gives the CPU's choice.
    """
    global _chosen
    wanted = {device: _choose(name, device) for device in ("cpu", "cuda")} if isinstance(name, str) else {"cpu": name}
    before, _chosen = _chosen, wanted
    try:
        yield _chosen["cpu"]
    finally:
        _chosen = before


def _is_fused() -> bool:
    return chosen().name == "fused"


def _is_triton() -> bool:
    return chosen("cuda").name == "triton"


# What torch.compiler.assume_constant_result sets, which imports the compiler for it: 2 s that every command would wait
_is_fused._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def runs_fused(u: Tensor, dtype: torch.dtype, length: int) -> bool:
    """Whether an operation on tensors like `u`, computed in `dtype`, goes to the compiled kernels."""
    return u.device.type == "cpu" and dtype == torch.float32 and length <= fused.LONGEST and _is_fused()


def runs_triton(u: Tensor, dtype: torch.dtype) -> bool:
    """Whether an operation on tensors like `u`, computed in `dtype`, goes to the Triton kernels."""
    return u.device.type == "cuda" and dtype == torch.float32 and _is_triton()


def _choose(wanted: str, device: str = "cpu") -> Backend:
    if wanted not in ("auto", "fused", "triton", "torch"):
        raise BadConfig(f"{VARIABLE}={wanted}: auto, fused, triton or torch was expected")
    if device != "cpu":
        return _choose_on_gpu(wanted, device)
    if wanted == "torch":
        return Backend("torch", f"{VARIABLE}=torch")
    if wanted == "triton":
        return Backend("torch", "the Triton kernels are for GPUs")
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


def _choose_on_gpu(wanted: str, device: str) -> Backend:
    if wanted in ("torch", "fused"):
        return Backend("torch", f"on {device}")
    detail = lacking() if device == "cuda" else f"the Triton kernels are not for {device}"
    if detail is None:
        detail = _failing_on_gpu()
        if detail is None:
            return Backend("triton", torch.cuda.get_device_name())
        logging.getLogger(__name__).warning("%s; torch's operations are used instead", detail)
    if wanted == "triton":
        raise BadConfig(f"{VARIABLE}=triton: {detail}; use auto or torch")
    return Backend("torch", detail)


def _failing_on_gpu(device: str = "cuda") -> str | None:
    """What the self-check of the Triton kernels says against them."""
    from ssm_priors.ops.triton import launch

    def whole(u: Tensor, skip: Tensor, c: Tensor, d: Tensor, decay: Tensor, angle: Tensor, *gate: Tensor) -> Tensor:
        return _gated(launch.convolve(u, (c, d), (decay, angle), skip), *gate)

    def kernel(u: Tensor, skip: Tensor, c: Tensor, d: Tensor, decay: Tensor, angle: Tensor, *gate: Tensor) -> Tensor:
        return _gated(fftconv(u, launch.vandermonde(c, d, decay, angle, u.shape[1])) + skip * u, *gate)

    for layer in (whole, kernel):
        try:
            off = _difference(layer, device)
        except Exception as error:  # whatever a compiler for a GPU that nobody tried may raise
            return f"the Triton kernels do not run here: {type(error).__name__}: {error}"
        if not off < TOLERANCE:  # NaN neither
            return f"the Triton kernels failed their self-check: they are off by {off:.1e}"
    return None


def _fused_layer(u: Tensor, skip: Tensor, c: Tensor, d: Tensor, decay: Tensor, angle: Tensor, *gate: Tensor) -> Tensor:
    return fused.gate(fused.convolve(u, fused.vandermonde(c, d, decay, angle, u.shape[1]), skip, True), *gate)


def _gated(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.glu(F.linear(F.gelu(y), weight, bias))


def _difference(layer: Callable[..., Tensor] = _fused_layer, device: str = "cpu", length: int = 150) -> float:
    """The self-check on a tiny problem: by how much the kernels differ from torch, forward and backward."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()

    with torch.enable_grad(), torch.autocast(device, enabled=False):
        u, skip, weight = numbers(3, length, 19), numbers(19), numbers(3, length, 7)
        matrix, bias = numbers(14, 19), numbers(14)
        c, d = (numbers(2, 19, 3, dtype=torch.float64) for _ in range(2))
        decay, angle = -numbers(19, 3, dtype=torch.float64).abs(), numbers(19, 3, dtype=torch.float64)
        inputs = [u, skip, c, d, decay, angle, matrix, bias]
        ours = layer(*inputs)
        theirs = _gated(fftconv(u, vandermonde(c, d, decay, angle, length, torch.float32)) + skip * u, matrix, bias)
        pairs = zip(
            [ours, *torch.autograd.grad(ours, inputs, weight)],
            [theirs, *torch.autograd.grad(theirs, inputs, weight)],
            strict=True,
        )
        return torch.stack([(one - other).abs().max() / other.abs().max() for one, other in pairs]).max().item()
