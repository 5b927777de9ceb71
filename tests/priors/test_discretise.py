from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from scipy.signal import cont2discrete
from strategies import diagonal_ssms

from ssm_priors.priors.discretise import DISCRETISATIONS, bilinear, log_uniform_dt, zoh


def by_scipy(A: complex, dt: float, method: str) -> tuple[complex, complex]:
    """z and gain of one complex mode, through its real 2 x 2 form."""
    real = np.array([[A.real, -A.imag], [A.imag, A.real]])
    z, gain, *_ = cont2discrete((real, np.array([[1.0], [0.0]]), np.eye(2), np.zeros((2, 1))), dt, method)
    return complex(z[0, 0], z[1, 0]), complex(gain[0, 0], gain[1, 0])


@given(ssm=diagonal_ssms())
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_each_rule_is_scipys(method, ssm):
    log_z, gain = DISCRETISATIONS[method](ssm.A, ssm.dt)
    for (h, n), A in np.ndenumerate(ssm.A):
        z_expected, gain_expected = by_scipy(A, ssm.dt[h], method)
        assert np.exp(log_z[h, n]) == pytest.approx(z_expected, abs=1e-10)
        assert gain[h, n] == pytest.approx(gain_expected, abs=1e-10)


@given(ssm=diagonal_ssms())
@pytest.mark.parametrize("rule", [zoh, bilinear])
def test_a_stable_mode_stays_stable(rule, ssm):
    log_z, _ = rule(ssm.A, ssm.dt)
    assert (log_z.real < 0).all()


def test_the_gain_of_a_very_slow_mode_is_dt():
    _, gain = zoh(np.array([[-1e-14 + 0j]]), np.array([0.1]))
    np.testing.assert_allclose(gain, 0.1, rtol=1e-12)


def test_zoh_is_exact_for_a_constant_input_at_any_rate():
    """One mode a = -1 + 2i, C = 1: the answer to a constant 1 is known in closed form."""
    expected = [0.3534, 0.5979, 0.7297, 0.7646, 0.7288]
    for dt, stride in ((0.1, 2), (0.2, 1)):
        log_z, gain = zoh(np.array([[-1 + 2j]]), np.array([dt]))
        kernel = 2 * (gain[0, 0] * np.exp(log_z[0, 0] * np.arange(10))).real
        answer = np.cumsum(kernel)
        np.testing.assert_allclose(answer[stride - 1 :: stride][:5], expected, atol=5e-5)


def test_timescales_are_log_uniform_in_their_bounds():
    dt = log_uniform_dt(20_000, 1e-3, 1e-1, np.random.default_rng(0))
    assert dt.min() >= 1e-3
    assert dt.max() <= 1e-1
    assert stats.kstest(np.log(dt), stats.uniform(np.log(1e-3), np.log(100)).cdf).pvalue > 0.01
