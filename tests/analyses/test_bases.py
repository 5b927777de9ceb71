from __future__ import annotations

import numpy as np
import pytest
from scipy.special import eval_legendre

from ssm_priors.analyses.bases import FAMILIES, Prior, kernel_basis, known_priors, prior_named
from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.registry import INITS


def prior(name: str, d_state: int = 8) -> Prior:
    return prior_named(name, d_state, 2, np.random.default_rng(0))


def outside(basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """What of each unit column is not in the span."""
    unit = columns / np.linalg.norm(columns, axis=0)
    return np.linalg.norm(unit - basis @ (basis.T @ unit), axis=0)


def test_every_init_and_every_family_is_known_and_decays():
    assert set(known_priors()) == {*INITS, *FAMILIES}
    for name in known_priors():
        modes = prior(name).eigenvalue
        assert modes.shape[0] == 2, name
        assert (modes.real < 0).all(), name
        assert (np.diff(np.abs(modes.imag), axis=1) >= 0).all(), name


def test_the_spectra_of_the_families_are_those_of_the_whole_matrix():
    assert np.sort(prior("hippo-legs").eigenvalue[0].real) == pytest.approx(-np.arange(8, 0, -1))
    assert prior("hippo-lagt").eigenvalue[0] == pytest.approx(np.full(8, -0.5))
    modes = prior("hippo-legt").eigenvalue[0]
    whole = np.concatenate([modes, modes[modes.imag > 0].conj()])
    A, _ = FAMILIES["hippo-legt"](8)
    assert len(whole) == 8
    assert np.poly(whole).real == pytest.approx(np.poly(A), rel=1e-8)


def test_the_state_that_fout_never_reaches_is_no_mode():
    modes = prior("hippo-fout").eigenvalue[0]
    assert len(modes) + (modes.imag > 0).sum() == 7


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_legs_spans_its_warped_legendre_polynomials(rule):
    """exp(tA) B = sqrt(2n+1) e^-t P_n(1 - 2 e^-t) in exact time; sampled so finely that both rules are near it."""
    dt, length = 1e-3, 2000
    basis = kernel_basis(prior("hippo-legs"), 0, dt, rule, length, 4)
    fall = np.exp(-dt * (np.arange(length)[:, None] + 0.5))
    exact = fall * eval_legendre(np.arange(4), 1 - 2 * fall)
    assert outside(basis, exact).max() < 1e-4
    assert outside(basis, fall * eval_legendre(4, 1 - 2 * fall)).min() > 0.5


def test_a_diagonal_init_spans_its_modes_slowest_first():
    basis = kernel_basis(prior("s4d-inv"), 0, 0.05, "zoh", 50, 2)
    z = np.exp(0.05 * prior("s4d-inv").eigenvalue[0])
    powers = z ** np.arange(50)[:, None]
    assert basis.T @ basis == pytest.approx(np.eye(2))
    assert outside(basis, np.stack([powers[:, 0].real, powers[:, 0].imag], 1)).max() < 1e-12
    assert outside(basis, powers[:, 1:].real).min() > 0.1


def test_a_real_mode_is_one_basis_kernel():
    assert kernel_basis(prior("s4d-real"), 0, 0.1, "zoh", 50, None).shape == (50, 4)
    assert kernel_basis(prior("s4d-lin"), 0, 0.1, "zoh", 50, None).shape == (50, 7)


def test_what_cannot_be_spanned_is_refused():
    with pytest.raises(UnknownName, match=r"unknown prior 'hippo-foul'\. Did you mean hippo-fout"):
        prior("hippo-foul")
    with pytest.raises(BadConfig, match="8 basis kernels were asked for; s4d-lin has 7"):
        kernel_basis(prior("s4d-lin"), 0, 0.1, "zoh", 50, 8)
    with pytest.raises(BadConfig, match="7 basis kernels span every kernel of 5 lags"):
        kernel_basis(prior("s4d-lin"), 0, 0.5, "zoh", 5, None)
