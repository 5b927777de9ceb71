from __future__ import annotations

import numpy as np
import pytest
from golden import arrays, prior_arrays
from scipy import stats

from ssm_priors.priors import dss
from ssm_priors.priors.hippo import legs, legs_normal_eigenvalues
from ssm_priors.registry import INITS


def spectrum(name: str, d_state: int, channels: int = 3) -> np.ndarray:
    return INITS[name](d_state, channels, np.random.default_rng(0))


@pytest.mark.parametrize("n", [4, 8])
def test_legs_is_the_published_matrix(n):
    A, B = legs(n)
    np.testing.assert_allclose(A, arrays()[f"legs/N{n}/A"], rtol=1e-14)
    np.testing.assert_allclose(B, arrays()[f"legs/N{n}/B"][:, 0], rtol=1e-14)


def test_legs_by_hand():
    A, B = legs(3)
    expected = [[-1, 0, 0], [-(3**0.5), -2, 0], [-(5**0.5), -(15**0.5), -3]]
    np.testing.assert_allclose(A, expected, rtol=1e-15)
    np.testing.assert_allclose(B, [1, 3**0.5, 5**0.5], rtol=1e-15)


@pytest.mark.parametrize("n", [8, 64])
def test_the_normal_part_of_legs_has_the_published_eigenvalues(n):
    published = arrays()[f"nplr_legs/N{n}/A_diag"].conj()
    np.testing.assert_allclose(legs_normal_eigenvalues(n), np.sort_complex(published), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("n", [2, 64, 128])
def test_the_normal_part_of_legs_decays_at_one_half_by_a_general_eigensolver(n):
    A, B = legs(n)
    general = np.linalg.eigvals(A + np.outer(B, B) / 2)
    np.testing.assert_allclose(general.real, -0.5, atol=1e-9)
    upper = np.sort(general.imag)[n // 2 :]
    np.testing.assert_allclose(legs_normal_eigenvalues(n).imag, upper, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("name", "published"), [("s4d-lin", "lin"), ("s4d-inv", "inv"), ("s4d-legs", "legs_f64")])
@pytest.mark.parametrize("n", [8, 64])
def test_an_s4d_init_is_the_published_one_up_to_conjugation(name, published, n):
    expected = np.sort_complex(arrays()[f"init/{published}/N{n}/A"][0].conj())
    for row in spectrum(name, n):
        np.testing.assert_allclose(np.sort_complex(row), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("law", ["inv2", "quad", "real"])
def test_the_other_laws_are_the_published_ones_up_to_conjugation(law):
    expected = prior_arrays()[f"init/{law}/N8/A"][0].conj()
    for row in spectrum(f"s4d-{law}", 8):
        np.testing.assert_allclose(row, expected, rtol=1e-12)


@pytest.mark.parametrize("law", ["lin", "inv", "inv2", "quad", "real", "legs"])
@pytest.mark.parametrize("n", [8, 64])
def test_every_s4d_init_is_the_published_one_in_the_full_arrays(law, n, golden):
    with np.load(golden / "s4d_init.npz") as source:
        expected = source[f"{'legs_f64' if law == 'legs' else law}/N{n}/A"][0].conj()
        in_float32 = source[f"legs/N{n}/A"][0].conj()
    found = np.sort_complex(spectrum(f"s4d-{law}", n)[0])
    np.testing.assert_allclose(found, np.sort_complex(expected), rtol=1e-10, atol=1e-10)
    if law == "legs":
        np.testing.assert_allclose(found, np.sort_complex(in_float32), rtol=1e-6, atol=1e-6)


def test_dss_inits_are_dss_modes_with_one_of_each_conjugate_pair():
    np.testing.assert_array_equal(spectrum("dss-hippo-skew", 64), spectrum("s4d-legs", 64))
    np.testing.assert_array_equal(spectrum("dss-lin", 64), spectrum("s4d-lin", 64))
    drawn = dss.randn(32, np.random.default_rng(0))
    np.testing.assert_array_equal(spectrum("dss-random", 64)[2], drawn.real + 1j * np.abs(drawn.imag))


def test_the_linear_init_is_exactly_its_formula():
    np.testing.assert_array_equal(spectrum("s4d-lin", 64)[0], -0.5 + 1j * np.pi * np.arange(32))


@pytest.mark.parametrize("name", INITS)
@pytest.mark.parametrize("n", [2, 16])
def test_every_init_is_stable_and_keeps_the_upper_half_plane(name, n):
    A = spectrum(name, n, channels=5)
    assert A.shape == (5, n // 2)
    assert A.dtype == np.complex128
    assert (A.real < 0).all()
    assert (A.imag >= 0).all()


@pytest.mark.parametrize("name", INITS)
def test_an_init_is_a_function_of_its_generator(name):
    np.testing.assert_array_equal(spectrum(name, 16), spectrum(name, 16))


def test_the_random_init_has_the_stated_distribution():
    A = spectrum("random", 64, channels=200)
    assert stats.kstest(-A.real.ravel(), "uniform").pvalue > 0.01
    assert stats.kstest(np.log(A.imag).ravel(), "norm").pvalue > 0.01
    assert len(np.unique(A)) == A.size  # drawn anew for every channel and mode


def test_the_random_init_never_draws_a_mode_that_does_not_decay():
    class Zeros:
        def uniform(self, size):
            return np.zeros(size)

        def standard_normal(self, size):
            return np.zeros(size)

    A = INITS["random"](4, 2, Zeros())
    assert (A.real < 0).all()
    assert (A.real.astype(np.float32) < 0).all()
