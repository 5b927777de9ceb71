"""The kernels as torch operators, so that `torch.compile` sees each as one, and as the steps of `ops.chunked`.

A launch covers all chunks of all sequences at once, so that a long sequence fills a GPU as a large batch does; only
`carry` runs along a sequence, over its chunks in tiles. Nothing is added by atomic operations.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from triton import cdiv

from ssm_priors.ops.chunked import CHUNK, Steps
from ssm_priors.ops.chunked import convolve as chunked
from ssm_priors.ops.precision import without_autocast
from ssm_priors.ops.triton import kernels

TILES = {
    "project": {"ROWS": 64, "WIDTH": 32},
    "emit": {"ROWS": 64, "STEPS": 32, "WIDTH": 32},
    "correlate": {"ROWS": 32, "BLOCK": 64},
    "carry": {"TILE": 16, "LANES": 32},
    "vandermonde": {"ROWS": 16, "R": 64, "MODES": 32},
    "vandermonde_backward": {"ROWS": 16, "R": 64, "MODES": 32},
}
"""What one program computes: the largest that stay in registers on sm_80, sm_90 and gfx942."""
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
PROGRAMS = 1024
"""That fill a GPU: a sum over rows is cut in so many parts, as far as there are rows."""


def convolve(u: Tensor, C: tuple[Tensor, Tensor], log_z: tuple[Tensor, Tensor], D: Tensor) -> Tensor:
    """u * K + D u with K[d, h, l] = 2 Re sum_n C_n z_n^l, one- or two-sided.

    Args:
        u: (B, L, H), float32 or bfloat16.
        C: real and imaginary part, (direction, H, N/2), float64, gain included.
        log_z: real and imaginary part, (H, N/2), float64, per step.
        D: (H,).

    Returns:
        (B, L, H), float32.
    """
    return chunked(u, C, log_z, D, TRITON, chunk=CHUNK)


@functools.cache
def precision(device: torch.device) -> str:
    """How `tl.dot` multiplies float32: thrice in TF32 where tensor cores have that, else as float32."""
    has_tf32 = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32x3" if has_tf32 else "ieee"


def _launch(name: str, grid: tuple[int, ...], tensors: list[Tensor], *numbers: int, **constants: Any) -> None:
    if 0 in grid:
        return
    with torch.cuda.device_of(tensors[0]):
        getattr(kernels, name)[grid](*tensors, *numbers, **constants, **OPTIONS)


# -- the steps of the chunked form


@torch.library.custom_op("ssm_priors::triton_project", mutates_args=())
def _project(u: Tensor, into: Tensor) -> Tensor:
    (batch, length, channels), (_, T, width) = u.shape, into.shape
    chunks, tile = cdiv(length, T), TILES["project"]
    states = u.new_empty(batch, chunks, channels, width, dtype=torch.float32)
    grid = channels, cdiv(batch * chunks, tile["ROWS"]), cdiv(width, tile["WIDTH"])
    tensors = [u.contiguous(), into.contiguous(), states]
    sizes = batch * chunks, chunks, length, channels, width
    _launch("project", grid, tensors, *sizes, **tile, T=T, PRECISION=precision(u.device))
    return states


@_project.register_fake
def _(u: Tensor, into: Tensor) -> Tensor:
    chunks = -(-u.shape[1] // into.shape[1])
    return u.new_empty(u.shape[0], chunks, u.shape[2], into.shape[2], dtype=torch.float32)


@torch.library.custom_op("ssm_priors::triton_emit", mutates_args=())
def _emit(u: Tensor, line: Tensor, states: Tensor, out: Tensor) -> Tensor:
    (batch, length, channels), (_, width, T) = u.shape, out.shape
    chunks, tile = cdiv(length, T), TILES["emit"]
    steps = min(T, tile["STEPS"])
    y = torch.empty_like(u, dtype=torch.float32, memory_format=torch.contiguous_format)
    grid = channels, cdiv(batch * chunks, tile["ROWS"]), T // steps
    tensors = [u.contiguous(), line.contiguous(), states.contiguous(), out.contiguous(), y]
    sizes = batch * chunks, chunks, length, channels, width
    constants = tile | {"T": T, "STEPS": steps, "PRECISION": precision(u.device)}
    _launch("emit", grid, tensors, *sizes, **constants)
    return y


@_emit.register_fake
def _(u: Tensor, line: Tensor, states: Tensor, out: Tensor) -> Tensor:
    return torch.empty_like(u, dtype=torch.float32, memory_format=torch.contiguous_format)


@torch.library.custom_op("ssm_priors::triton_carry", mutates_args=())
def _carry(local: Tensor, log_hop: Tensor, entering: Tensor, adjoint: bool) -> Tensor:
    (batch, chunks, channels, width), (_, directions, modes) = local.shape, log_hop.shape
    hop = torch.view_as_real(torch.exp(log_hop).contiguous())
    states = torch.empty_like(local, memory_format=torch.contiguous_format)
    lanes, tile = channels * width // 2, TILES["carry"]
    tensors = [local.contiguous(), hop, entering.contiguous(), states]
    sizes = chunks, lanes, directions * modes, modes
    _launch("carry", (batch, cdiv(lanes, tile["LANES"])), tensors, *sizes, **tile, ADJOINT=adjoint)
    return states


@_carry.register_fake
def _(local: Tensor, log_hop: Tensor, entering: Tensor, adjoint: bool) -> Tensor:
    return torch.empty_like(local, memory_format=torch.contiguous_format)


@torch.library.custom_op("ssm_priors::triton_correlate", mutates_args=())
def _correlate(left: Tensor, right: Tensor, T: int) -> Tensor:
    length, tile = (left if left.dim() == 3 else right).shape[1], TILES["correlate"]
    chunks, channels = cdiv(length, T), left.shape[2]
    rows, (height, width) = len(left) * chunks, (T if each.dim() == 3 else each.shape[3] for each in (left, right))
    blocks = cdiv(height, tile["BLOCK"]) * cdiv(width, tile["BLOCK"])
    parts = max(1, min(cdiv(rows, tile["ROWS"]), PROGRAMS // max(1, channels * blocks)))
    share = cdiv(cdiv(rows, parts), tile["ROWS"]) * tile["ROWS"]
    sums = left.new_empty(parts, channels, height, width, dtype=torch.float32)
    tensors = [left.contiguous(), right.contiguous(), sums]
    sizes = rows, share, chunks, length, channels, height, width
    kinds = {"LEFT_IS_SEQUENCE": left.dim() == 3, "RIGHT_IS_SEQUENCE": right.dim() == 3}
    _launch("correlate", (channels, parts, blocks), tensors, *sizes, **kinds, **tile, PRECISION=precision(left.device))
    return sums.sum(0, dtype=torch.float64)


@_correlate.register_fake
def _(left: Tensor, right: Tensor, T: int) -> Tensor:
    height, width = (T if each.dim() == 3 else each.shape[3] for each in (left, right))
    return left.new_empty(left.shape[2], height, width, dtype=torch.float64)


class _Triton:
    """The steps on a GPU."""

    def project(self, u: Tensor, into: Tensor) -> Tensor:
        return _project(u, into)

    def carry(self, local: Tensor, log_hop: Tensor, entering: Tensor, adjoint: bool) -> Tensor:
        return _carry(local, log_hop, entering, adjoint)

    def emit(self, u: Tensor, line: Tensor, states: Tensor, out: Tensor) -> Tensor:
        return _emit(u, line, states, out)

    def correlate(self, left: Tensor, right: Tensor, T: int) -> Tensor:
        return _correlate(left, right, T)


TRITON: Steps = _Triton()


# -- kernel of diagonal state spaces


def vandermonde(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    """2 Re sum_n C_n z_n^l.

    Args:
        C_real, C_imag: (direction, H, N/2), float64, gain included.
        log_z_real, log_z_imag: (H, N/2), float64, per step.
        length: number of lags L.

    Returns:
        (direction, H, L), float32.
    """
    kernel: Tensor = _Kernel.apply(C_real, C_imag, log_z_real, log_z_imag, length)
    return kernel


class _Kernel(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int
    ) -> Tensor:
        ctx.save_for_backward(C_real, C_imag, log_z_real, log_z_imag)
        return _vandermonde(C_real, C_imag, log_z_real, log_z_imag, length)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        C_real, C_imag, log_z_real, log_z_imag = ctx.saved_tensors
        sums = 2 * _vandermonde_backward(grad, log_z_real, log_z_imag)
        S_real, S_imag, T_real, T_imag = sums.unbind(-1)
        # K = Re(C z^l): dC = conj(S), d(log z) = conj(C T), summed over the directions that share z
        log_grad_real = (C_real * T_real - C_imag * T_imag).sum(0)
        log_grad_imag = -(C_real * T_imag + C_imag * T_real).sum(0)
        return S_real, -S_imag, log_grad_real, log_grad_imag, None


@torch.library.custom_op("ssm_priors::triton_vandermonde", mutates_args=())
def _vandermonde(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    (directions, channels, modes), tile = C_real.shape, TILES["vandermonde"]
    kernel = C_real.new_empty(directions, channels, length, dtype=torch.float32)
    grid = channels, cdiv(length, tile["R"] * tile["ROWS"]), directions
    tensors = [*(part.contiguous() for part in (C_real, C_imag, log_z_real, log_z_imag)), kernel]
    _launch("vandermonde", grid, tensors, channels, modes, length, **tile, PRECISION=precision(kernel.device))
    return kernel


@_vandermonde.register_fake
def _(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    return C_real.new_empty(*C_real.shape[:2], length, dtype=torch.float32)


@torch.library.custom_op("ssm_priors::triton_vandermonde_backward", mutates_args=())
def _vandermonde_backward(grad: Tensor, log_z_real: Tensor, log_z_imag: Tensor) -> Tensor:
    """sum_l g_l z^l and sum_l l g_l z^l, as two pairs: (direction, H, N/2, 4), float64."""
    (directions, channels, length), (_, modes) = grad.shape, log_z_real.shape
    tile = TILES["vandermonde_backward"]
    sums = log_z_real.new_empty(directions, channels, modes, 4)
    grid = channels, cdiv(modes, tile["MODES"]), directions
    tensors = [grad.contiguous(), log_z_real.contiguous(), log_z_imag.contiguous(), sums]
    precise = precision(grad.device)
    _launch("vandermonde_backward", grid, tensors, channels, modes, length, **tile, PRECISION=precise)
    return sums


@_vandermonde_backward.register_fake
def _(grad: Tensor, log_z_real: Tensor, log_z_imag: Tensor) -> Tensor:
    return log_z_real.new_empty(grad.shape[0], *log_z_real.shape, 4)
