"""Each operation of a backend against its defining form in float64, forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from builders import normal

from ssm_priors.ops import dispatch, reference

FORWARD, BACKWARD = {torch.float32: 1e-5, torch.float64: 1e-10}, {torch.float32: 1e-4, torch.float64: 1e-10}
Problem = tuple[list[torch.Tensor], torch.Tensor]
"""Inputs that learn, and a weight for the result."""


def near(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    assert (found.double() - exact).abs().max() <= tolerance * max(exact.abs().max(), 1e-3)


def agree(
    found: torch.Tensor,
    expected: torch.Tensor,
    parts: list[torch.Tensor],
    exact: list[torch.Tensor],
    weight: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    near(found, expected, FORWARD[dtype])
    grads = torch.autograd.grad(found, parts, weight.to(dtype))
    for grad, right in zip(grads, torch.autograd.grad(expected, exact, weight), strict=True):
        near(grad, right, BACKWARD[dtype])


def exactly(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part.detach().double().requires_grad_() for part in parts]


def convolution(u: torch.Tensor, kernel: torch.Tensor, skip: torch.Tensor, gelu: bool) -> torch.Tensor:
    y = reference.convolution(u, kernel) + skip * u
    return F.gelu(y) if gelu else y


def problem(B: int, L: int, H: int, directions: int, dtype: torch.dtype) -> Problem:
    parts = [normal(B, L, H), normal(directions, H, L, seed=1) / L**0.5, normal(H, seed=2)]
    return [part.to(dtype).requires_grad_() for part in parts], normal(B, L, H, seed=3)


def check_convolution(B: int, L: int, H: int, directions: int, gelu: bool, dtype: torch.dtype) -> None:
    parts, weight = problem(B, L, H, directions, dtype)
    exact = exactly(parts)
    agree(dispatch.convolve(*parts, gelu), convolution(*exact, gelu), parts, exact, weight, dtype)


def gate_problem(rows: int, K: int, H: int, dtype: torch.dtype) -> Problem:
    parts = [normal(rows, K), normal(2 * H, K, seed=1) / K**0.5, normal(2 * H, seed=2)]
    return [part.to(dtype).requires_grad_() for part in parts], normal(rows, H, seed=3)


def check_gate(rows: int, K: int, H: int, dtype: torch.dtype) -> None:
    parts, weight = gate_problem(rows, K, H, dtype)
    exact = exactly(parts)
    agree(dispatch.gate(*parts), F.glu(F.linear(*exact)), parts, exact, weight, dtype)


def modes(directions: int, H: int, N: int) -> list[torch.Tensor]:
    C = [normal(directions, H, N, seed=seed) for seed in (0, 1)]
    return [part.requires_grad_() for part in (*C, -normal(H, N, seed=2).abs() / 10, normal(H, N, seed=3))]


def check_kernel(directions: int, H: int, N: int, length: int, dtype: torch.dtype) -> None:
    parts = modes(directions, H, N)
    found = dispatch.diagonal_kernel(*parts, length, dtype)
    expected = reference.vandermonde(torch.complex(*parts[:2]), torch.complex(*parts[2:]), length)
    agree(found, expected, parts, parts, normal(directions, H, length, seed=5), dtype)
