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


def scan(v: Tensor, log_z: Tensor) -> Tensor:
    """x_t = z x_{t-1} + v_t, from x_{-1} = 0.

    Args:
        v: (B, L, N), complex.
        log_z: (N,), complex, per step.

    Returns:
        (B, L, N).
    """
    z = torch.exp(log_z)
    state, states = torch.zeros_like(v[:, 0]), []
    for t in range(v.shape[1]):
        state = z * state + v[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


def cauchy(v: Tensor, poles: Tensor, points: Tensor) -> Tensor:
    """y[h, m] = sum_n v[h, n] / (points[m] - poles[h, n]) + conj(v[h, n]) / (points[m] - conj(poles[h, n])).

    Args:
        v: (..., H, N/2), complex.
        poles: (H, N/2), complex.
        points: (M,), complex.

    Returns:
        (..., H, M), complex.
    """
    apart = points - poles.unsqueeze(-1)  # (H, N/2, M)
    mirrored = points - poles.conj().unsqueeze(-1)
    v = v.unsqueeze(-1)
    return (v / apart + v.conj() / mirrored).sum(-2)


def dplr_kernel(A: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor, length: int) -> Tensor:
    """K[l] = C Abar^l Bbar, step by step, with the bilinear transform of A = diag(a) - P P* over both conjugate halves.

    Args:
        A, P, B: (H, N/2), complex; A is the diagonal a.
        C: (direction, H, N/2), complex.
        dt: (H,), units of time a step.
        length: number of lags L.

    Returns:
        (direction, H, L), real.
    """
    A, P, B, C = (torch.cat([part, part.conj()], dim=-1) for part in (A, P, B, C))
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    half = dt[:, None, None] / 2 * (torch.diag_embed(A) - P.unsqueeze(-1) * P.conj().unsqueeze(-2))
    A_bar = torch.linalg.solve(one - half, one + half)
    state = torch.linalg.solve(one - half, (dt[:, None] * B).unsqueeze(-1))
    lags = []
    for _ in range(length):
        lags.append((C * state.squeeze(-1)).sum(-1).real)
        state = A_bar @ state
    return torch.stack(lags, dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool, window: int | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over valid keys, and earlier ones only if causal.

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left.
        window: largest distance in steps between a query and a key it sees; None: any.

    Returns:
        (B, heads, L, d).
    """
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    position = torch.arange(q.shape[2], device=q.device)
    visible = (position < lengths[:, None])[:, None, None, :]
    if causal:
        visible = visible & (position[None, :] <= position[:, None])
    if window is not None:
        visible = visible & ((position[None, :] - position[:, None]).abs() <= window)
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1) @ v


def laplace_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool, bias: Tensor) -> Tensor:
    """P(X <= q k^T / keys + bias) v over valid keys, X normal with mean sqrt(1/2) and variance 1/(4 pi).

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left.
        bias: (L, L).

    Returns:
        (B, heads, L, d). `keys` counts those a query sees.
    """
    law = torch.distributions.Normal(torch.tensor(0.5, dtype=q.dtype).sqrt(), q.new_tensor(4 * torch.pi).rsqrt())
    y = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype, device=v.device)
    for row, length in enumerate(lengths.tolist()):
        for t in range(q.shape[2]):
            keys = min(t + 1, length) if causal else length
            scores = torch.einsum("hd,hsd->hs", q[row, :, t], k[row, :, :keys]) / keys + bias[t, :keys]
            y[row, :, t] = torch.einsum("hs,hsd->hd", law.cdf(scores), v[row, :, :keys])
    return y


def moving_average(u: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """y = sum_n weight_n x_n with x_{n,t} = q_n x_{n,t-1} + u_t, and the same from the end if there are two directions.

    Args:
        u: (B, L, H).
        weight, q: (direction, H, N). Both directions read the present input.

    Returns:
        (B, L, H).
    """
    y = torch.zeros_like(u)
    for direction, order in enumerate([range(u.shape[1]), reversed(range(u.shape[1]))][: len(q)]):
        state = u.new_zeros(u.shape[0], *q.shape[1:])
        for t in order:
            state = q[direction] * state + u[:, t].unsqueeze(-1)
            y[:, t] += (weight[direction] * state).sum(-1)
    return y
