"""The linear recurrence of a diagonal SSM, x_t = z x_{t-1} + v_t with x_{-1} = 0, over all positions at once.

Because z is the same at every t, the sum over the past doubles its reach with each pass:

    x^(0) = v,   x^(k+1)_t = x^(k)_t + z^(2^k) x^(k)_{t - 2^k}

so ceil(log2 L) passes suffice. The backward is the same scan in reverse with conj(z), and keeps only z and x.
Source: Hillis and Steele 1986, doi 10.1145/7902.7903; for SSMs: Smith et al. 2023, arXiv 2208.04933.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scan(v: Tensor, log_z: Tensor) -> Tensor:
    """States of every position.

    Args:
        v: (B, L, N), complex: what drives each mode.
        log_z: (N,), complex128, per step; Re <= 0.

    Returns:
        x: (B, L, N), in v's dtype. Powers of z come from log_z in complex128, so that they stay right at long lags.
    """
    x: Tensor = _Scan.apply(v, log_z)
    return x


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, log_z: Tensor) -> Tensor:
        x = doubled(v, log_z)
        ctx.save_for_backward(x, log_z)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, log_z = ctx.saved_tensors
        grad_v = doubled(grad.flip(1), log_z.conj()).flip(1)
        grad_log_z = None
        if ctx.needs_input_grad[1]:
            # d x_t / d z = x_{t-1}, carried on as any other input is; the sum over positions cancels, so float64
            into_z = (grad_v[:, 1:].to(log_z.dtype) * x[:, :-1].conj()).sum((0, 1))
            grad_log_z = into_z * torch.exp(log_z).conj()
        return grad_v, grad_log_z


def doubled(v: Tensor, log_z: Tensor) -> Tensor:
    """What `scan` computes, without a backward: v: (B, L, ...), log_z: (...), complex128."""
    x, reach = v, 1
    while reach < v.shape[1]:
        power = torch.exp(reach * log_z).to(v.dtype)
        x = torch.cat([x[:, :reach], x[:, reach:] + power * x[:, :-reach]], dim=1)
        reach *= 2
    return x
