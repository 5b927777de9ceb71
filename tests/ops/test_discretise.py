from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import diagonal_ssms

from ssm_priors.ops.discretise import DISCRETISATIONS
from ssm_priors.priors import discretise as priors


def both(rule: str, A: np.ndarray, dt: np.ndarray) -> tuple[tuple, tuple]:
    a, b, c, d = (
        part.numpy() for part in DISCRETISATIONS[rule](*map(torch.from_numpy, (A.real.copy(), A.imag.copy(), dt)))
    )
    return (a + 1j * b, c + 1j * d), priors.DISCRETISATIONS[rule](A, dt)


def test_the_two_twins_know_the_same_rules():
    assert set(DISCRETISATIONS) == set(priors.DISCRETISATIONS)


@given(ssm=diagonal_ssms())
@pytest.mark.parametrize("rule", DISCRETISATIONS)
def test_the_form_that_trains_equals_its_numpy_twin(rule, ssm):
    (log_z, gain), (log_z_expected, gain_expected) = both(rule, ssm.A, ssm.dt)
    np.testing.assert_allclose(np.exp(log_z), np.exp(log_z_expected), atol=1e-14)
    np.testing.assert_allclose(log_z, log_z_expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(gain, gain_expected, rtol=1e-12)


@pytest.mark.parametrize("rule", DISCRETISATIONS)
def test_fast_and_stiff_modes_agree_too(rule):
    A = np.array([[-2.5 + 0j, -1e3 + 0j, -0.5 + 1e4j, -40 + 1j, -1e-6 + 3j]])
    (log_z, gain), (log_z_expected, gain_expected) = both(rule, A, np.array([1.0]))
    np.testing.assert_allclose(np.exp(log_z), np.exp(log_z_expected), atol=1e-12)
    np.testing.assert_allclose(gain, gain_expected, rtol=1e-10)


@pytest.mark.parametrize("rule", DISCRETISATIONS)
def test_gradients_are_right(rule):
    generator = torch.Generator().manual_seed(0)
    real = -torch.rand(2, 3, generator=generator, dtype=torch.float64) - 0.01
    imag = 5 * torch.rand(2, 3, generator=generator, dtype=torch.float64)
    dt = torch.tensor([0.01, 0.2], dtype=torch.float64)
    leaves = [part.requires_grad_() for part in (real, imag, dt)]
    assert torch.autograd.gradcheck(lambda *parts: tuple(DISCRETISATIONS[rule](*parts)), leaves)
