from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from ssm_priors.ops import cauchy as op
from ssm_priors.ops import reference
from ssm_priors.ops.cauchy import cauchy, dplr_kernel, dplr_step
from ssm_priors.priors.hippo import dplr, nplr

DOUBLE = torch.float64


def complex_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


def system(channels: int, modes: int, directions: int = 1, seed: int = 0) -> tuple[Tensor, ...]:
    """A, P, B, C and dt, stable and otherwise of no design."""
    raw = complex_normal(channels, modes, seed=seed)
    A = torch.complex(-raw.real.abs() - 0.01, 3 * raw.imag)
    P, B = (complex_normal(channels, modes, seed=seed + more) for more in (1, 2))
    C = complex_normal(directions, channels, modes, seed=seed + 3)
    return A, P, B, C, torch.linspace(0.01, 0.4, channels, dtype=DOUBLE)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@given(modes=st.integers(1, 5), points=st.integers(1, 40), seed=st.integers(0, 99))
def test_the_sum_over_poles_is_its_definition(modes, points, seed):
    v, poles = complex_normal(3, 2, modes, seed=seed), complex_normal(2, modes, seed=seed + 1) - 5
    where = complex_normal(points, seed=seed + 2)
    torch.testing.assert_close(cauchy(v, poles, where), reference.cauchy(v, poles, where), rtol=1e-12, atol=1e-12)


def test_the_definition_of_one_conjugate_pair_is_a_real_rational_function():
    s = torch.linspace(1, 3, 9, dtype=DOUBLE)
    found = reference.cauchy(torch.tensor([[2 + 3j]]), torch.tensor([[-1 + 5j]]), s.to(torch.complex128))
    expected = (4 * s + 4 - 30) / (s**2 + 2 * s + 26)  # (2 Re v s - 2 Re(v conj p)) / (s^2 - 2 Re p s + |p|^2)
    torch.testing.assert_close(found[0], expected.to(torch.complex128), rtol=1e-6, atol=1e-12)


def test_blocks_of_points_change_nothing(monkeypatch):
    v, poles, where = complex_normal(3, 2, 4), complex_normal(2, 4) - 5, complex_normal(37)
    whole = cauchy(v, poles, where)
    monkeypatch.setattr(op, "BLOCK", 5 * 2 * poles.numel())
    torch.testing.assert_close(cauchy(v, poles, where), whole, rtol=1e-14, atol=1e-14)


def test_its_gradients_are_right(monkeypatch):
    monkeypatch.setattr(op, "BLOCK", 30)
    v, poles = complex_normal(2, 2, 3).requires_grad_(), (complex_normal(2, 3) - 5).requires_grad_()
    assert gradcheck(lambda v, poles: cauchy(v, poles, complex_normal(7)), (v, poles))


@given(length=st.integers(1, 90), modes=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_kernel_is_that_of_the_dense_system(length, modes, seed):
    parts = system(3, modes, directions=2, seed=seed)
    assert relative(dplr_kernel(*parts, length, DOUBLE), reference.dplr_kernel(*parts, length)) < 1e-11


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-7)])
@pytest.mark.parametrize("family", ["legs", "fout"])
def test_hippo_at_full_size_keeps_its_precision(family, dtype, tolerance):
    form = dplr(family, 64)
    A = torch.from_numpy(np.minimum(form.eigenvalues.real, -1e-3) + 1j * form.eigenvalues.imag).expand(3, -1)
    P, B = torch.from_numpy(form.P[0]).expand(3, -1), torch.from_numpy(form.B).expand(3, -1)
    parts = A, P, B, complex_normal(1, 3, 32), torch.tensor([1e-3, 1e-2, 1e-1], dtype=DOUBLE)
    found = dplr_kernel(*parts, 2048, dtype)
    assert found.dtype == dtype
    assert relative(found, reference.dplr_kernel(*parts, 2048)) < tolerance


def test_hippo_legs_in_its_own_basis_is_the_same_system():
    form, whole = dplr("legs", 8), nplr("legs", 8)
    half = 0.05 * torch.from_numpy(whole.A) / 2
    one = torch.eye(8, dtype=DOUBLE)
    A_bar, state = (
        torch.linalg.solve(one - half, one + half),
        torch.linalg.solve(one - half, 0.05 * torch.from_numpy(whole.B)),
    )
    C = torch.arange(8, dtype=DOUBLE)
    expected = []
    for _ in range(30):
        expected.append(C @ state)
        state = A_bar @ state
    row = (torch.from_numpy(part)[None] for part in (form.eigenvalues, form.P[0], form.B))
    turned = (C.to(torch.complex128) @ torch.from_numpy(form.V))[None, None]
    found = dplr_kernel(*row, turned, torch.tensor([0.05], dtype=DOUBLE), 30, DOUBLE)
    assert relative(found[0, 0], torch.stack(expected)) < 1e-11


def test_the_kernel_s_gradients_are_right():
    parts = [part.requires_grad_() for part in system(2, 2, directions=2)]
    assert gradcheck(lambda *parts: dplr_kernel(*parts, 5, DOUBLE), parts)


def test_stepping_gives_the_kernel_and_its_gradients_are_right():
    A, P, B, C, dt = system(3, 4)
    state, u, out = torch.zeros(1, 3, 4, dtype=torch.complex128), torch.ones(1, 3, dtype=DOUBLE), []
    for _ in range(20):
        state = dplr_step(state, u, A, P, B, dt)
        out.append(2 * (C[0] * state).sum(-1).real)
        u = torch.zeros_like(u)
    assert relative(torch.stack(out, dim=-1)[0], reference.dplr_kernel(A, P, B, C, dt, 20)[0]) < 1e-12
    inputs = [part.requires_grad_() for part in (complex_normal(2, 3, 4), torch.ones(2, 3, dtype=DOUBLE), A, P, B, dt)]
    assert gradcheck(dplr_step, inputs)


def test_no_table_of_every_mode_at_every_point_is_held(monkeypatch):
    sizes = []
    monkeypatch.setattr(op, "BLOCK", 1000)
    tables = op._tables

    def watched(poles: Tensor, points: Tensor) -> Iterator[Tensor]:
        for table in tables(poles, points):
            sizes.append(table.numel())
            yield table

    monkeypatch.setattr(op, "_tables", watched)
    A, *rest = system(5, 10)
    dplr_kernel(A.requires_grad_(), *rest, 1000, DOUBLE).sum().backward()
    assert max(sizes) <= 1000
    assert sum(sizes) >= 2 * (5 * 20 * op.OVERSAMPLING[DOUBLE] * 1000 / 2)  # forward and backward
