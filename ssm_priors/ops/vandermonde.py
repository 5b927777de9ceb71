"""The kernel of a diagonal SSM, K[h, l] = 2 Re sum_n C_n z_n^l, without a tensor of shape (H, N, L).

With l = q R + r and R near sqrt(L), z^l = z^{qR} z^r, so K is one batched real matrix product of two small tables:

    K[h, qR + r] = 2 sum_n [ Re(C z^{qR}) Re(z^r) - Im(C z^{qR}) Im(z^r) ]

Phases are reduced modulo 2 pi in float64 before they are rounded, so slow modes stay right at long lags. The backward
is written out: it recomputes the tables, keeping only the (H, N/2) inputs in memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ssm_priors.ops.precision import without_autocast


def vandermonde(
    C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int, dtype: torch.dtype
) -> Tensor:
    """Kernel of every direction and channel.

    Args:
        C_real, C_imag: (direction, H, N/2), float64, gain included.
        log_z_real, log_z_imag: (H, N/2), float64, per step.
        length: number of lags L.
        dtype: of the result and of the matrix product.

    Returns:
        (direction, H, L).
    """
    kernel: Tensor = _Vandermonde.apply(C_real, C_imag, log_z_real, log_z_imag, length, dtype)
    return kernel


class _Vandermonde(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, C_real: Tensor, C_imag: Tensor, log_real: Tensor, log_imag: Tensor, length: int, dtype: torch.dtype
    ) -> Tensor:
        coarse, fine = _tables(log_real, log_imag, length, dtype)
        c, d = C_real.to(dtype).unsqueeze(-1), C_imag.to(dtype).unsqueeze(-1)  # (direction, H, N/2, 1)
        real, imag = coarse
        rows = torch.cat([real * c - imag * d, -(real * d + imag * c)], dim=-2)  # (direction, H, N, Q)
        kernel = 2 * rows.transpose(-1, -2) @ torch.cat(fine, dim=-2)  # (direction, H, Q, R)
        ctx.save_for_backward(C_real, C_imag, log_real, log_imag)
        ctx.length, ctx.dtype = length, dtype
        return kernel.flatten(-2)[..., :length]

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        C_real, C_imag, log_real, log_imag = ctx.saved_tensors
        (coarse_real, coarse_imag), (fine_real, fine_imag) = _tables(log_real, log_imag, ctx.length, ctx.dtype)
        Q, R = coarse_real.shape[-1], fine_real.shape[-1]
        grad = 2 * torch.nn.functional.pad(grad.to(ctx.dtype), (0, Q * R - ctx.length)).unflatten(-1, (Q, R))
        r = torch.arange(R, device=grad.device, dtype=ctx.dtype)
        q = torch.arange(Q, device=grad.device, dtype=ctx.dtype) * R
        # sum over r of grad[q, r] z^r, and of r grad[q, r] z^r, in one product
        columns = torch.cat([fine_real, fine_imag, r * fine_real, r * fine_imag], dim=-2)  # (H, 2N, R)
        inner = columns @ grad.transpose(-1, -2)  # (direction, H, 2N, Q)
        zero_real, zero_imag, one_real, one_imag = inner.chunk(4, dim=-2)
        # S = sum_l grad[l] z^l and T = sum_l l grad[l] z^l, with z^l = z^{qR} z^r and l = qR + r
        S_real, S_imag = _sum_product(coarse_real, coarse_imag, zero_real, zero_imag)
        T_real, T_imag = _sum_product(coarse_real, coarse_imag, one_real + q * zero_real, one_imag + q * zero_imag)
        # K = Re(C z^l): dC = conj(S), d(log z) = conj(C T), summed over the directions that share z
        log_grad_real = (C_real * T_real - C_imag * T_imag).sum(0)
        log_grad_imag = -(C_real * T_imag + C_imag * T_real).sum(0)
        return S_real, -S_imag, log_grad_real, log_grad_imag, None, None


def _tables(
    log_real: Tensor, log_imag: Tensor, length: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """z^{qR}: two tables (H, N/2, Q), and z^r: two tables (H, N/2, R), as real pairs."""
    R = 1 << round(math.log2(length) / 2)
    Q = -(-length // R)
    steps = torch.arange(max(Q, R), device=log_real.device, dtype=torch.float64)
    return _powers(log_real, log_imag, steps[:Q] * R, dtype), _powers(log_real, log_imag, steps[:R], dtype)


def _powers(log_real: Tensor, log_imag: Tensor, lags: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = torch.remainder(log_imag.unsqueeze(-1) * lags, 2 * math.pi).to(dtype)
    magnitude = torch.exp((log_real.unsqueeze(-1) * lags).to(dtype))
    return magnitude * torch.cos(angle), magnitude * torch.sin(angle)


def _sum_product(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """sum over the last axis of (a + ib)(c + id), as float64: these sums cancel."""
    a, b, c, d = a.double(), b.double(), c.double(), d.double()
    return (a * c - b * d).sum(-1), (a * d + b * c).sum(-1)
