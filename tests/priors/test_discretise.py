from __future__ import annotations

import numpy as np
import pytest
import torch
from golden import prior_arrays
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import cont2discrete
from strategies import diagonal_ssms

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.ops import discretise as twins
from ssm_priors.priors import response
from ssm_priors.priors.discretise import (
    DISCRETISATIONS,
    RULES,
    bilinear,
    discretise,
    dss_softmax,
    dss_softmax_log_gain,
    fixed_dt,
    log_uniform_dt,
    zoh,
)


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


def test_unusable_timescales_are_refused():
    rng = np.random.default_rng(0)
    for bounds in ((0.1, 0.01), (0.0, 0.1), (-1.0, 1.0)):
        with pytest.raises(BadConfig, match="0 < least <= most"):
            log_uniform_dt(3, *bounds, rng)
    with pytest.raises(BadConfig, match="positive"):
        fixed_dt(3, 0.0)


def test_a_fixed_timescale_is_the_same_everywhere():
    np.testing.assert_array_equal(fixed_dt(3, 0.25), [0.25, 0.25, 0.25])
    np.testing.assert_allclose(log_uniform_dt(3, 0.25, 0.25, np.random.default_rng(0)), 0.25, rtol=1e-15)


def test_a_mode_that_neither_decays_nor_turns_integrates_its_input():
    log_z, gain = zoh(np.zeros((1, 1), dtype=complex), np.array([0.1]))
    assert log_z[0, 0] == 0
    assert gain[0, 0] == 0.1


MODES_NEAR_ZERO = [-2 + 0j, -2 + 1e-9j, -1.9999999 + 0j, -2.0000001 + 0j, -2 + 1e-3j, -3 + 0j, -1e-12 + 0j, -1e-12 + 5j]


def test_the_bilinear_mode_with_z_of_0_is_finite_and_its_twins():
    """dt A = -2 exactly: log z has no value; both forms floor |z|^2 at 1e-15."""
    A = np.array([MODES_NEAR_ZERO])
    log_z, gain = bilinear(A, np.array([1.0]))
    twin = twins.bilinear(torch.tensor(A.real), torch.tensor(A.imag), torch.ones(1, dtype=torch.float64))
    assert np.isfinite(log_z).all()
    np.testing.assert_allclose(log_z.imag, twin.log_z_imag.numpy(), rtol=1e-14)
    np.testing.assert_allclose(np.exp(log_z.real), np.exp(twin.log_z_real.numpy()), atol=3e-8)
    assert log_z.real[0, 0] == pytest.approx(twin.log_z_real[0, 0].item(), rel=1e-14)
    np.testing.assert_allclose(gain, 1 / (1 - A / 2), rtol=1e-15)


@given(offset=st.floats(1e-6, 0.5), imag=st.floats(0, 3))
def test_the_bilinear_rule_keeps_its_precision_near_z_of_0(offset, imag):
    A = np.array([[-2 + offset + 1j * imag]])
    log_z, _ = bilinear(A, np.array([1.0]))
    z = (1 + A[0, 0] / 2) / (1 - A[0, 0] / 2)
    assert np.exp(log_z[0, 0]) == pytest.approx(z, rel=1e-9, abs=0)


def dss(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    source = {key.removeprefix(f"kernels/{name}/"): value for key, value in prior_arrays().items()}
    return source["Lambda"], np.exp(source["log_dt"]), source["W"], source["L64/K"]


def test_dss_exp_gives_the_published_kernel():
    A, dt, W, expected = dss("dss_exp")
    log_z, gain = discretise("dss-exp", A, dt)
    np.testing.assert_allclose(response.kernel(W * gain / 2, log_z, 64), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["dss_softmax", "dss_softmax_mixed"])
def test_dss_softmax_gives_the_published_kernel(name):
    A, dt, W, expected = dss(name)
    log_z, gain = dss_softmax(A, dt, 64, epsilon=1e-7)
    np.testing.assert_allclose(response.kernel(W * gain / 2, log_z, 64), expected, rtol=1e-10, atol=1e-13)
    exact = discretise("dss-softmax", A, dt, 64)[1]
    np.testing.assert_allclose(exact, gain, rtol=1e-4)  # what 1e-7 in the reciprocal is worth


@pytest.mark.parametrize("name", ["dss_exp", "dss_exp_bidir", "dss_softmax", "dss_softmax_bidir"])
def test_dss_kernels_are_the_published_ones_in_the_full_arrays(name, golden):
    with np.load(golden / "kernels.npz") as source:
        A, W, dt = source[f"{name}/Lambda"], source[f"{name}/W"], np.exp(source[f"{name}/log_dt"])
        expected = source[f"{name}/L1000/K"]
    log_z, gain = dss_softmax(A, dt, 1000, 1e-7) if "softmax" in name else discretise("dss-exp", A, dt)
    np.testing.assert_allclose(response.kernel(W * gain / 2, log_z, 1000), expected, rtol=1e-10, atol=1e-13)


def test_s4ds_own_dss_rule_gives_the_published_kernel():
    """In the public code that one is in float32, and takes the real part without the factor 2."""
    A, B, C, log_dt, expected = (prior_arrays()[f"kernels/s4d_dss/{key}"] for key in ("A", "B", "C", "log_dt", "L64/K"))
    log_z, gain = dss_softmax(A, np.exp(log_dt), 64, epsilon=1e-7)
    found = response.kernel(C * B * gain / 2, log_z, 64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@given(ssm=diagonal_ssms(), sign=st.sampled_from([-1, 1]), length=st.integers(1, 60))
def test_a_softmax_mode_sums_to_1_over_a(ssm, sign, length):
    A = sign * ssm.A.real + 1j * ssm.A.imag
    log_z, log_gain = dss_softmax_log_gain(A, ssm.dt, length)
    powers = np.exp(log_gain[..., None] + log_z[..., None] * np.arange(length))
    tolerance = 1e-12 * np.abs(powers).sum(-1).max() + 1e-12
    np.testing.assert_allclose(powers.sum(-1) * A, np.ones_like(A), atol=tolerance * np.abs(A).max())


@pytest.mark.parametrize("real", [5.0, -5.0, 1e-9, -1e-9])
def test_a_softmax_neither_overflows_nor_underflows(real):
    length = 100_000
    log_z, log_gain = dss_softmax_log_gain(np.array([real + 3j]), np.ones(1), length)
    last, first = log_gain + log_z * (length - 1), log_gain
    assert np.isfinite(log_gain).all()
    assert max(last.real.max(), first.real.max()) < 2
    _, gain = dss_softmax(np.array([real + 3j]), np.ones(1), length)
    assert np.isfinite(gain).all()


def test_none_takes_the_modes_as_they_are():
    modes = np.array([-0.1 + 1j, -0.2 + 2j])
    log_z, gain = discretise("none", modes, np.array([0.5, 7.0]))
    np.testing.assert_array_equal(log_z, [modes, modes])
    np.testing.assert_array_equal(gain, np.ones((2, 2)))


def test_dlrs_modes_need_no_discretisation():
    source = {key.removeprefix("kernels/dlr/"): value for key, value in prior_arrays().items()}
    log_z, gain = discretise("none", source["Lambda"], np.ones(4))
    found = response.kernel(source["W"] * gain / 2, log_z, 64)
    np.testing.assert_allclose(found, source["L64/K"], rtol=1e-10, atol=1e-13)


@given(ssm=diagonal_ssms())
@pytest.mark.parametrize("rule", [*RULES, "dss-softmax"])
def test_every_rule_gives_a_mode_and_a_gain_for_each_eigenvalue(rule, ssm):
    log_z, gain = discretise(rule, ssm.A, ssm.dt, length=20)
    assert log_z.shape == gain.shape == ssm.A.shape
    assert log_z.dtype == gain.dtype == np.complex128
    assert np.isfinite(gain).all()
    assert (log_z.real < 0).all()
    shared, _ = discretise(rule, ssm.A[0], ssm.dt, length=20)
    assert shared.shape == ssm.A.shape


@given(ssm=diagonal_ssms())
@pytest.mark.parametrize("rule", [*RULES, "dss-softmax"])
def test_a_timescale_may_belong_to_each_mode(rule, ssm):
    spread = ssm.dt[:, None] * (1 + np.arange(ssm.A.shape[1]))
    log_z, gain = discretise(rule, ssm.A, spread, length=20)
    for n in range(ssm.A.shape[1]):
        alone = discretise(rule, ssm.A[:, n : n + 1], spread[:, n], length=20)
        np.testing.assert_array_equal(log_z[:, n : n + 1], alone[0])
        np.testing.assert_array_equal(gain[:, n : n + 1], alone[1])


def test_a_rule_that_does_not_exist_or_lacks_its_length_is_refused():
    A, dt = np.array([[-1 + 1j]]), np.ones(1)
    with pytest.raises(UnknownName, match="Did you mean dss-softmax"):
        discretise("dss-softmx", A, dt)
    with pytest.raises(BadConfig, match="length"):
        discretise("dss-softmax", A, dt)


def test_the_shipped_arrays_are_cut_from_the_full_ones(golden):
    shipped = prior_arrays()
    for room in ("hippo", "s4d_init", "kernels", "s5_lru"):
        prefix = f"{room.removeprefix('s4d_')}/"
        keys = [key for key in shipped if key.startswith(prefix)]
        assert keys
        with np.load(golden / f"{room}.npz") as source:
            for key in keys:
                np.testing.assert_array_equal(shipped[key], source[key.removeprefix(prefix)])
