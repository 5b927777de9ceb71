"""The families whose modes are given per step or shared by all channels: DSS, DLR, LRU, S5, S4D-DFouT."""

from __future__ import annotations

import numpy as np
import pytest
from golden import prior_arrays
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ssm_priors.errors import BadConfig
from ssm_priors.priors import dfout, dlr, dss, lru, s5
from ssm_priors.priors.hippo import legs_normal_eigenvalues, nplr


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- DSS


def test_dss_modes_are_their_formulas():
    np.testing.assert_array_equal(dss.hippo_skew(16), legs_normal_eigenvalues(32))
    np.testing.assert_array_equal(dss.lin(5), -0.5 + 1j * np.pi * np.arange(5))
    drawn = dss.randn(20_000, rng())
    np.testing.assert_array_equal(drawn.real, -0.5)
    assert stats.kstest(drawn.imag, "norm").pvalue > 0.01


def test_skew_hippo_is_the_matrix_of_the_paper():
    """sqrt((2i+1)(2j+1))/2 above the diagonal, its negative below, -1/2 on it."""
    root = np.sqrt(2 * np.arange(16) + 1)
    half = np.outer(root, root) / 2
    eigenvalues = np.linalg.eigvals(np.triu(half, 1) - np.tril(half, -1) - np.eye(16) / 2)
    expected = np.sort_complex(eigenvalues[eigenvalues.imag > 0])
    np.testing.assert_allclose(dss.hippo_skew(8).imag, np.sort(expected.imag), rtol=1e-12)


# -- DLR


@given(modes=st.integers(1, 200), seed=st.integers(0, 2**31))
def test_omega_is_the_fourier_grid_lightly_damped(modes, seed):
    log_z = dlr.omega(modes, 1e-4, 1e-1, rng(seed))
    np.testing.assert_allclose(log_z.imag, 2 * np.pi * np.arange(modes) / modes, rtol=1e-15)
    assert ((log_z.real >= -0.05 * (1 + 1e-12)) & (log_z.real <= -5e-5 * (1 - 1e-12))).all()


def test_omegas_damping_is_log_uniform():
    delta = -2 * dlr.omega(20_000, 1e-4, 1e-1, rng()).real
    assert stats.kstest(np.log(delta), stats.uniform(np.log(1e-4), np.log(1e3)).cdf).pvalue > 0.01


def test_the_published_dlr_lies_on_omegas_grid():
    """The public layer's Lambda at its start: the damping is drawn, the frequencies are the formula."""
    published = prior_arrays()["kernels/dlr/Lambda"]
    np.testing.assert_allclose(dlr.omega(16, 1e-4, 1e-1, rng()).imag, published.imag, rtol=1e-6)
    assert ((published.real < 0) & (published.real >= -0.05)).all()


def test_the_normal_frequencies_of_dlr_are_folded_into_one_turn():
    log_z = dlr.randn(20_000, 1e-4, 1e-1, rng())
    assert ((log_z.imag >= 0) & (log_z.imag < 2 * np.pi)).all()
    back = np.where(log_z.imag > np.pi, log_z.imag - 2 * np.pi, log_z.imag)
    assert stats.kstest(back, "norm").pvalue > 0.01
    assert (log_z.real < 0).all()


# -- LRU


@given(
    radii=st.tuples(st.floats(0, 1), st.floats(1e-3, 1)).map(sorted),
    phase=st.floats(0, 2 * np.pi),
    seed=st.integers(0, 2**31),
)
def test_the_ring_keeps_its_bounds(radii, phase, seed):
    r_min, r_max = radii
    log_z = lru.ring(50, r_min, r_max, phase, rng(seed))
    radius = np.exp(log_z.real)
    assert (log_z.real < 0).all()
    assert ((radius >= r_min * (1 - 1e-12)) & (radius <= r_max * (1 + 1e-12) + 1e-150)).all()
    assert ((log_z.imag >= 0) & (log_z.imag <= phase)).all()


def test_the_ring_is_uniform_in_area_and_phase():
    log_z = lru.ring(20_000, 0.4, 0.9, 2.0, rng())
    assert stats.kstest(np.exp(2 * log_z.real), stats.uniform(0.16, 0.65).cdf).pvalue > 0.01
    assert stats.kstest(log_z.imag, stats.uniform(0, 2).cdf).pvalue > 0.01


class Extremes:
    def __init__(self, share: float):
        self.share = share

    def uniform(self, low: float = 0.0, high: float = 1.0, size: int = 1) -> np.ndarray:
        return np.full(size, low + (high - low) * self.share)


@pytest.mark.parametrize("share", [0.0, 1 - 2**-53, 1.0])
def test_the_ring_never_draws_a_mode_that_does_not_decay_or_has_no_logarithm(share):
    log_z = lru.ring(3, 0.0, 1.0, 6.28, Extremes(share))
    assert np.isfinite(log_z).all()
    assert (log_z.real < 0).all()
    assert (lru.gamma(log_z) > 0).all()


@pytest.mark.parametrize("radii", [(-0.1, 0.5), (0.9, 0.5), (0.5, 1.1), (0.0, 0.0)])
def test_a_ring_that_is_none_is_refused(radii):
    with pytest.raises(BadConfig, match="radii"):
        lru.ring(4, *radii, 1.0, rng())


def test_gamma_is_the_published_one():
    """Its logarithm is what is stored. The public code computes it in float32."""
    log_z = -np.exp(prior_arrays()["s5_lru/lru/params/nu_log"]) + 0j
    np.testing.assert_allclose(np.log(lru.gamma(log_z)), prior_arrays()["s5_lru/lru/params/gamma_log"], rtol=3e-6)


def test_white_input_gives_a_state_of_unit_variance():
    """z = 0.99 e^{0.3i}: gamma is 0.14107; with its logarithm in its place the variance is about 190."""
    log_z = np.array([np.log(0.99) + 0.3j])
    gamma = lru.gamma(log_z)
    assert gamma[0] == pytest.approx(0.14107, abs=5e-6)
    u, x = rng().standard_normal((2_000, 4_000)), np.zeros(4_000, dtype=complex)
    for step in u:
        x = np.exp(log_z) * x + gamma * step
    assert np.mean(np.abs(x) ** 2) == pytest.approx(1, abs=0.1)
    assert np.mean(np.abs(x) ** 2) * (np.log(gamma[0]) / gamma[0]) ** 2 > 150


@given(decay=st.floats(1e-12, 50))
def test_gamma_makes_the_variance_one_at_any_decay_rate(decay):
    """sum_l gamma^2 |z|^2l = 1, a geometric series."""
    assert float(lru.gamma(np.array(-decay + 1j))) ** 2 / -np.expm1(-2 * decay) == pytest.approx(1, rel=1e-14)


# -- S5


def test_s5s_hippo_is_the_published_one():
    source = {key.removeprefix("s5_lru/hippo/N8/"): value for key, value in prior_arrays().items()}
    form = nplr("legs", 8)
    np.testing.assert_allclose(form.A, source["A"], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(form.P[0], source["P"], rtol=1e-14)
    np.testing.assert_allclose(form.B, source["B"], rtol=1e-14)
    upper = source["Lambda"][source["Lambda"].imag > 0]
    found = s5.block_diagonal_hippo(8, 1).eigenvalues
    np.testing.assert_allclose(found, upper[np.argsort(upper.imag)], rtol=1e-10, atol=1e-10)


def test_two_blocks_have_the_published_eigenvalues():
    source = {key.removeprefix("s5_lru/s5ssm_zoh/params/"): value for key, value in prior_arrays().items()}
    published = np.sort_complex(source["Lambda_re"] - 1j * source["Lambda_im"])
    found = np.sort_complex(s5.block_diagonal_hippo(16, 2).eigenvalues)
    np.testing.assert_allclose(found, published, rtol=1e-6)


@given(half=st.integers(1, 8), blocks=st.integers(1, 4))
def test_the_blocks_are_rebuilt_from_their_eigenvectors(half, blocks):
    size = 2 * half
    found = s5.block_diagonal_hippo(size * blocks, blocks)
    matrix = 2 * ((found.V * found.eigenvalues) @ found.V_inverse).real
    expected = np.kron(np.eye(blocks), nplr("legs", size).normal)
    np.testing.assert_allclose(matrix, expected, atol=1e-13 * np.abs(expected).max())
    np.testing.assert_allclose(found.V_inverse @ found.V, np.eye(half * blocks), atol=1e-13)


@pytest.mark.parametrize(("d_state", "blocks"), [(16, 3), (6, 2), (8, 0), (0, 1), (4, 4)])
def test_blocks_that_do_not_fit_are_refused(d_state, blocks):
    with pytest.raises(BadConfig, match="blocks"):
        s5.block_diagonal_hippo(d_state, blocks)


# -- S4D-DFouT


@given(half=st.integers(1, 20), channels=st.integers(1, 20))
def test_all_channels_together_cover_the_half_circle_evenly_and_once(half, channels):
    log_z = dfout.grid(2 * half, channels, rng())
    covered = np.sort(log_z.imag.ravel()) / np.pi * (half * channels)
    np.testing.assert_allclose(covered, np.arange(half * channels), atol=1e-9)
    assert (log_z.imag < np.pi).all()


def test_the_damping_is_one_to_a_channel_and_log_uniform_in_its_bounds():
    log_z = dfout.grid(4, 20_000, rng())
    np.testing.assert_array_equal(log_z.real[:, 0], log_z.real[:, 1])
    xi = -2 * log_z.real[:, 0]
    assert stats.kstest(np.log(xi), stats.uniform(np.log(1e-3), np.log(100)).cdf).pvalue > 0.01
    slower = -2 * dfout.grid(4, 1_000, rng(), xi=(1e-4, 1e-3)).real
    assert slower.max() <= 1e-3 * (1 + 1e-12)


def test_without_damping_it_is_the_discrete_fourier_transform():
    """One channel, z on the unit circle: the powers over N lags are the upper half of the transform's matrix."""
    z = np.exp(1j * dfout.grid(8, 1, rng()).imag[0])
    np.testing.assert_allclose(z[:, None] ** np.arange(8), np.conj(np.fft.fft(np.eye(8)))[:4], atol=1e-14)
