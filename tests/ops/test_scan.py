from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from ssm_priors.ops import reference
from ssm_priors.ops.scan import scan


def complex_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


def modes(count: int, seed: int = 0) -> Tensor:
    part = complex_normal(count, seed=seed)
    return torch.complex(-part.real.abs() / 10, 3 * part.imag)


@given(length=st.integers(1, 100), seed=st.integers(0, 99))
def test_it_is_the_recurrence(length, seed):
    v, log_z = complex_normal(2, length, 3, seed=seed), modes(3, seed)
    torch.testing.assert_close(scan(v, log_z), reference.scan(v, log_z), rtol=1e-12, atol=1e-12)


def test_the_definition_of_a_constant_input_is_a_geometric_series():
    log_z = modes(4)
    z, lags = torch.exp(log_z), torch.arange(1, 41)[:, None]
    found = reference.scan(torch.ones(1, 40, 4, dtype=torch.complex128), log_z)[0]
    torch.testing.assert_close(found, (1 - z**lags) / (1 - z), rtol=1e-12, atol=1e-12)


def test_single_precision_states_keep_the_phase_of_slow_modes():
    log_z = torch.tensor([-1e-5 + 1j, -1e-6 + 3.1j], dtype=torch.complex128)
    v = torch.zeros(1, 20_000, 2, dtype=torch.complex64)
    v[:, 0] = 1
    expected = torch.exp(log_z * torch.arange(20_000)[:, None])
    assert (scan(v, log_z)[0] - expected).abs().max() < 5e-6
    assert scan(v, log_z).dtype == torch.complex64


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_its_gradients_are_right(length):
    v, log_z = complex_normal(2, length, 3).requires_grad_(), modes(3).requires_grad_()
    assert gradcheck(scan, (v, log_z))


@pytest.mark.parametrize("frozen", [0, 1])
def test_its_gradients_are_right_where_one_input_has_none(frozen):
    inputs = [complex_normal(2, 7, 3), modes(3)]
    inputs[1 - frozen].requires_grad_()
    assert gradcheck(scan, tuple(inputs))


def test_a_mode_at_the_border_of_growth_neither_grows_nor_dies():
    ones = torch.ones(1, 4096, 1, dtype=torch.complex128)
    found = scan(ones, torch.zeros(1, dtype=torch.complex128))
    torch.testing.assert_close(found[0, :, 0].real, torch.arange(1, 4097, dtype=torch.float64))
