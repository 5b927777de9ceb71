"""The kernel of a diagonal-plus-low-rank SSM from its generating function, without powers of a matrix.

With the bilinear transform, w inside the unit circle and s = 2 (1 - w) / (1 + w),

    G(w) = sum_l K[l] w^l = 2 dt / (1 + w)  C (s - dt A)^-1 B,   A = diag(a) - P P*

Woodbury's identity turns the resolvent into sums over simple poles, R = diag(s - dt a)^-1:

    C (s - dt A)^-1 B = C R B - dt (C R P) (P* R B) / (1 + dt P* R P)

G is taken at M points w = r exp(-2 pi i k / M) and inverted by FFT: of lag l + M, only r^M comes back at lag l, so the
tail is truncated by damping, while the division by r^l magnifies rounding. r^M = epsilon^(M / (M + L)) balances the
two; what is left, relative to the kernel's largest value, is 1e-12 with M = 4 L and 1e-8 with M = 1.25 L. The points
lie inside the unit circle and all poles outside, so no denominator vanishes. (The usual r = 1 removes the tail through
C (1 - A^L): a matrix power for every channel and length, and its gradient.)

Source: Gu, Goel, Re 2022, arXiv 2111.00396, algorithm 1; inversion on a damped circle: Abate and Whitt 1992,
"Numerical inversion of probability generating functions", Operations Research Letters 12.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor

OVERSAMPLING = {torch.float64: 4.0, torch.float32: 1.25}
"""M / L, for a result in this dtype; the arithmetic is float64 in both."""
BLOCK = 1 << 20
"""Numbers of the table (H, N, points) that are made at once."""


def dplr_kernel(A: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """K[l] = 2 Re(C Abar^l Bbar) of a real system given by one half of its conjugate pairs.

    Args:
        A: diagonal a: (H, N/2), complex128, Re < 0.
        P: (H, N/2), complex128, per square root of time.
        B: (H, N/2), complex128.
        C: (direction, H, N/2), complex128.
        dt: (H,), float64, units of time a step.
        length: number of lags L.
        dtype: of the result, float32 or float64.

    Returns:
        (direction, H, L).
    """
    count = next_fast_len(math.ceil(OVERSAMPLING[dtype] * length), real=True)
    radius = torch.finfo(torch.float64).eps ** (1 / (count + length))
    turns = torch.arange(count // 2 + 1, device=A.device, dtype=torch.float64) * (-2 * math.pi / count)
    w = radius * torch.exp(1j * turns)
    spectrum = _generating_function(A, P, B, C, dt, w)
    lags = torch.arange(length, device=A.device, dtype=torch.float64)
    return (torch.fft.irfft(spectrum, count)[..., :length] * radius**-lags).to(dtype)


def cauchy(v: Tensor, poles: Tensor, points: Tensor) -> Tensor:
    """y[h, m] = sum_n v[h, n] / (points[m] - poles[h, n]) + conj(v[h, n]) / (points[m] - conj(poles[h, n])).

    In blocks of points, whose tables the backward makes again: nothing of shape (H, N, M) is kept.

    Args:
        v: (J, H, N/2), complex: J rows share their poles.
        poles: (H, N/2), complex, away from every point.
        points: (M,), complex.

    Returns:
        (J, H, M), complex.
    """
    y: Tensor = _Cauchy.apply(v, poles, points)
    return y


class _Cauchy(torch.autograd.Function):
    """y = w r with r = 1 / (s - p) over both halves of the pairs: dy/dw = r, dy/dp = w r^2."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, poles: Tensor, points: Tensor) -> Tensor:
        ctx.save_for_backward(v, poles, points)
        weights = _both(v).transpose(0, 1)  # (H, J, N)
        return torch.cat([weights @ table for table in _tables(poles, points)], dim=-1).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        v, poles, points = ctx.saved_tensors
        into_weights = torch.zeros_like(_both(v)).transpose(0, 1)
        into_squares = torch.zeros_like(into_weights)
        blocks = grad.transpose(0, 1).split(_block(poles), dim=-1)
        for part, table in zip(blocks, _tables(poles, points), strict=True):
            into_weights += part @ table.mH
            into_squares += part @ table.square().mH
        into_poles = (_both(v).conj().transpose(0, 1) * into_squares).sum(1)  # (H, N)
        return _fold(into_weights).transpose(0, 1), _fold(into_poles), None


def _tables(poles: Tensor, points: Tensor) -> Iterator[Tensor]:
    """1 / (s - p), in blocks of points: each (H, N, m), over both halves of the conjugate pairs."""
    both = _both(poles).unsqueeze(-1)
    return ((block - both).reciprocal() for block in points.split(_block(poles)))


def _block(poles: Tensor) -> int:
    """Points in a block."""
    return max(1, BLOCK // (2 * poles.numel()))


def _both(half: Tensor) -> Tensor:
    """One half of the conjugate pairs -> both."""
    return torch.cat([half, half.conj()], dim=-1)


def _fold(both: Tensor) -> Tensor:
    """The adjoint of `_both`."""
    upper, lower = both.chunk(2, dim=-1)
    return upper + lower.conj()


def _generating_function(A: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor, w: Tensor) -> Tensor:
    """G at the points w: (direction, H, M)."""
    left = torch.cat([C, P.conj().unsqueeze(0)])  # (direction + 1, H, N/2)
    rows = torch.stack([left * B, left * P])
    found = cauchy(rows.flatten(0, 1), dt[:, None] * A, 2 * (1 - w) / (1 + w))
    through_B, through_P = found.unflatten(0, rows.shape[:2])
    step = dt[:, None]
    corrected = through_B[:-1] - step * through_P[:-1] * through_B[-1] / (1 + step * through_P[-1])
    return 2 * step / (1 + w) * corrected


def dplr_step(state: Tensor, u: Tensor, A: Tensor, P: Tensor, B: Tensor, dt: Tensor) -> Tensor:
    """One bilinear step, x' = (1 - dt A/2)^-1 ((1 + dt A/2) x + dt B u), in O(N) by Woodbury's identity.

    Args:
        state: x: (B, H, N/2), complex: one half of the conjugate pairs.
        u: (B, H).
        A, P, B, dt: as in `dplr_kernel`.

    Returns:
        x': (B, H, N/2).
    """
    half = dt[:, None] / 2
    ahead = state + half * (A * state - P * _inner(P, state)) + 2 * half * B * u.unsqueeze(-1)
    damped = 1 / (1 - half * A)
    solved, low_rank = damped * ahead, damped * P
    return solved - low_rank * half * _inner(P, solved) / (1 + half * _inner(P, low_rank))


def _inner(P: Tensor, x: Tensor) -> Tensor:
    """P* x over both halves of the conjugate pairs: (..., H, 1), real."""
    return 2 * (P.conj() * x).real.sum(-1, keepdim=True)
