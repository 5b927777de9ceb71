"""Every operation in its defining form: slow, any dtype, no tricks. The oracle of the tests."""

from __future__ import annotations

import torch
from torch import Tensor


def vandermonde(C: Tensor, log_z: Tensor, length: int) -> Tensor:
    """K[h, l] = 2 Re sum_n C[h, n] exp(log_z[h, n] l).

    Args:
        C: (..., H, N/2), complex.
        log_z: (H, N/2), complex, per step.
        length: number of lags L.

    Returns:
        (..., H, L), real.
    """
    lags = torch.arange(length, device=log_z.device, dtype=log_z.real.dtype)
    return 2 * torch.einsum("...hn,hnl->...hl", C, torch.exp(log_z.unsqueeze(-1) * lags)).real


def convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """y[t] = sum_{s<=t} K0[t-s] u[s], and for two directions + sum_{s>t} K1[s-t-1] u[s].

    The second direction starts one step away, so that the present input is counted once.

    Args:
        u: (B, L, H).
        kernel: (direction, H, L), direction 1 or 2.

    Returns:
        (B, L, H).
    """
    length = u.shape[1]
    rows = []
    for t in range(length):
        row = torch.einsum("hs,bsh->bh", kernel[0, :, : t + 1].flip(-1), u[:, : t + 1])
        if kernel.shape[0] == 2 and t + 1 < length:
            row = row + torch.einsum("hs,bsh->bh", kernel[1, :, : length - t - 1], u[:, t + 1 :])
        rows.append(row)
    return torch.stack(rows, dim=1)


def recurrence(u: Tensor, C: Tensor, log_z: Tensor, reverse: bool = False) -> Tensor:
    """x_t = z x_{t-1} + u_t, y_t = 2 Re sum_n C_n x_t; reversed in time it reads the state after step t + 1.

    Args:
        u: (B, L, H).
        C: (H, N/2), complex, gain included.
        log_z: (H, N/2), complex, per step.
        reverse: run from the end, and give at t what the inputs after t contribute (lags from 1).

    Returns:
        (B, L, H).
    """
    z = torch.exp(log_z)
    state = torch.zeros(u.shape[0], *z.shape, dtype=z.dtype, device=u.device)
    out = [u.new_zeros(u.shape[0], u.shape[2])] * u.shape[1]
    for t in reversed(range(u.shape[1])) if reverse else range(u.shape[1]):
        before = state
        state = z * state + u[:, t].unsqueeze(-1)
        out[t] = 2 * (C * (before if reverse else state)).sum(-1).real
    return torch.stack(out, dim=1)


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over valid keys, and earlier ones only if causal.

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left.

    Returns:
        (B, heads, L, d).
    """
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    position = torch.arange(q.shape[2], device=q.device)
    visible = (position < lengths[:, None])[:, None, None, :]
    if causal:
        visible = visible & (position[None, :] <= position[:, None])
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1) @ v
