"""HiPPO matrices, their normal part, and the precision of its eigendecomposition."""

from __future__ import annotations

import numpy as np
import pytest
from golden import prior_arrays
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.priors.hippo import TRANSITIONS, dplr, fout, lagt, legs, legs_normal_eigenvalues, legt, nplr

NAMES = {"legs": "legs", "legt": "legt", "fout": "fourier"}
"""Ours and the published arrays'."""
REAL = {"legs": -0.5, "legt": 0.0, "fout": 0.0, "lagt": 0.0}


def rebuilt(family: str, n: int) -> np.ndarray:
    """A from its diagonal form."""
    form, P = dplr(family, n), nplr(family, n).P
    return 2 * ((form.V * form.eigenvalues) @ form.V.conj().T).real - P.T @ P


def secular(frequencies: np.ndarray, n: int) -> np.ndarray:
    """sum_k arctan(2 w / (2k + 1)) / pi - 1/2: a whole number where LegS's normal part has the eigenvalue i w - 1/2.

    Each row of the eigenproblem less the one above it has two terms left, so that every entry of an eigenvector follows
    from the one before by a turn of known angle; this is the condition that the last row closes the circle.
    """
    return np.arctan2(2 * frequencies[:, None], 2 * np.arange(n) + 1.0).sum(-1) / np.pi - 0.5


def exact_frequencies(n: int) -> np.ndarray:
    """LegS's frequencies as roots of `secular`: Newton in log w from the ones found, on the smaller of two sums."""
    log_w, j, odd = np.log(legs_normal_eigenvalues(n).imag), np.arange(n // 2), 2 * np.arange(n) + 1.0
    for _ in range(4):
        w = np.exp(log_w)[:, None]
        below = np.arctan2(2 * w, odd).sum(-1) - np.pi * (j + 0.5)
        above = np.pi * (n / 2 - j - 0.5) - np.arctan2(odd, 2 * w).sum(-1)
        log_w = log_w - np.where(j < n // 4, below, above) / (2 * w * odd / (odd**2 + 4 * w**2)).sum(-1)
    return np.exp(log_w)


@pytest.mark.parametrize("family", ["legt", "fout"])
def test_a_family_is_the_published_one(family):
    A, B = TRANSITIONS[family](8)
    np.testing.assert_allclose(A, prior_arrays()[f"hippo/{NAMES[family]}/N8/A"], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(B, prior_arrays()[f"hippo/{NAMES[family]}/N8/B"][:, 0], rtol=1e-14)


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("n", [4, 8, 64])
def test_a_family_is_the_published_one_in_the_full_arrays(family, n, golden):
    A, B = TRANSITIONS[family](n)
    with np.load(golden / "hippo.npz") as source:
        np.testing.assert_allclose(A, source[f"{NAMES[family]}/N{n}/A"], rtol=1e-14, atol=1e-13)
        np.testing.assert_allclose(B, source[f"{NAMES[family]}/N{n}/B"][:, 0], rtol=1e-14)


def test_the_families_by_hand():
    root = 3**0.5
    np.testing.assert_allclose(legt(2)[0], [[-0.5, root / 2], [-root / 2, -1.5]], rtol=1e-15)
    np.testing.assert_allclose(legt(2)[1], [0.5, root / 2], rtol=1e-15)
    np.testing.assert_allclose(
        fout(4)[0],
        [[-1, 0, -(2**0.5), 0], [0, 0, 0, 0], [-(2**0.5), 0, -2, -np.pi], [0, 0, np.pi, 0]],
        rtol=1e-15,
    )
    np.testing.assert_array_equal(lagt(3)[0], [[-0.5, 0, 0], [-1, -0.5, 0], [-1, -1, -0.5]])
    np.testing.assert_array_equal(lagt(3)[1], [1, 1, 1])


def check_published_form(source: dict[str, np.ndarray], family: str, n: int) -> None:
    """Compared where the phase of the eigenvectors, which is arbitrary, does not show."""
    form = dplr(family, n)
    A, P, B = (source[f"nplr_{NAMES[family]}/N{n}/{key}"].conj() for key in ("A_diag", "P", "B"))
    order = np.argsort(A.imag)
    np.testing.assert_allclose(form.eigenvalues, A[order], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.abs(form.P), np.abs(P[:, order]), rtol=1e-10)
    np.testing.assert_allclose(np.abs(form.B), np.abs(B[order]), rtol=1e-10)
    product, expected = form.B * form.P.conj(), (B * P.conj())[:, order]
    if family == "fout":  # frequency 0: the plane of its eigenvector is arbitrary too, so even the product may turn
        product, expected = product[:, 1:], expected[:, 1:]
    np.testing.assert_allclose(product, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", NAMES)
def test_the_diagonal_form_is_the_published_one(family):
    source = {key.removeprefix("hippo/"): value for key, value in prior_arrays().items() if key.startswith("hippo/")}
    check_published_form(source, family, 8)


@pytest.mark.parametrize("family", ["legs", "fout"])
def test_the_diagonal_form_is_the_published_one_in_the_full_arrays(family, golden):
    with np.load(golden / "hippo.npz") as source:
        check_published_form(source, family, 64)


@pytest.mark.parametrize("family", TRANSITIONS)
@pytest.mark.parametrize("n", [2, 6, 64, 256])
def test_the_low_rank_term_makes_the_rest_normal(family, n):
    form = nplr(family, n)
    assert form.P.shape == ((2, n) if family == "legt" else (1, n))
    skew = form.normal - REAL[family] * np.eye(n)
    np.testing.assert_allclose(skew, -skew.T, atol=1e-15 * np.abs(form.A).max())


@pytest.mark.parametrize("family", TRANSITIONS)
@pytest.mark.parametrize("n", [2, 4, 64, 256])
def test_the_matrix_is_rebuilt_from_its_diagonal_form(family, n):
    form, given_form = dplr(family, n), nplr(family, n)
    np.testing.assert_allclose(rebuilt(family, n), given_form.A, atol=1e-13 * np.abs(given_form.A).max())
    np.testing.assert_allclose(2 * (form.V @ form.B).real, given_form.B, rtol=0, atol=1e-12 * given_form.B.max())
    np.testing.assert_allclose(2 * (form.P @ form.V.T).real, given_form.P, rtol=0, atol=1e-12 * given_form.P.max())


@pytest.mark.parametrize("family", TRANSITIONS)
@pytest.mark.parametrize("n", [2, 64, 256])
def test_the_eigenvectors_are_unitary_and_the_decay_exact(family, n):
    form = dplr(family, n)
    np.testing.assert_allclose(form.V.conj().T @ form.V, np.eye(n // 2), atol=1e-13)
    np.testing.assert_array_equal(form.eigenvalues.real, REAL[family])
    assert (np.diff(form.eigenvalues.imag) > 0).all()
    assert (form.eigenvalues.imag >= 0).all()


@pytest.mark.parametrize("family", ["legs", "legt", "lagt"])
def test_precision_holds_to_the_largest_size(family):
    A = nplr(family, 1024).A
    np.testing.assert_allclose(rebuilt(family, 1024), A, rtol=0, atol=1e-12 * np.abs(A).max())


@pytest.mark.parametrize(("n", "precision"), [(2, 1e-15), (8, 1e-14), (64, 1e-12), (256, 1e-11), (1024, 1e-10)])
def test_the_eigenvalues_of_legs_solve_their_closed_form(n, precision):
    exact = exact_frequencies(n)
    np.testing.assert_allclose(secular(exact, n), np.arange(n // 2), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(legs_normal_eigenvalues(n).imag, exact, rtol=precision)


@pytest.mark.parametrize(("n", "precision"), [(8, 1e-14), (64, 1e-12), (256, 1e-11)])
def test_the_input_of_legs_in_its_eigenbasis_is_known_in_closed_form(n, precision):
    """|V^* B|^2 = 1 / sum_k (2k+1) / ((2k+1)^2 + 4 w^2), and P is B / sqrt 2."""
    form, odd = dplr("legs", n), 2 * np.arange(n) + 1.0
    expected = (odd / (odd**2 + 4 * exact_frequencies(n)[:, None] ** 2)).sum(-1) ** -0.5
    np.testing.assert_allclose(np.abs(form.B), expected, rtol=precision)
    np.testing.assert_allclose(form.P[0] * np.sqrt(2), form.B, rtol=1e-10)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_the_closed_form_of_lagt_is_a_general_eigensolvers(n):
    general = np.sort(np.linalg.eigvals(nplr("lagt", n).normal).imag)[n // 2 :]
    np.testing.assert_allclose(dplr("lagt", n).eigenvalues.imag, general, rtol=1e-11, atol=1e-13)


@given(half=st.integers(1, 40), family=st.sampled_from(sorted(TRANSITIONS)))
def test_any_even_size_has_a_diagonal_form_and_no_family_grows(half, family):
    A = nplr(family, 2 * half).A
    np.testing.assert_allclose(rebuilt(family, 2 * half), A, rtol=0, atol=1e-13 * np.abs(A).max())
    assert np.linalg.eigvalsh(A + A.T).max() < 1e-12 * np.abs(A).max()  # A + A^T <= 0: no state gains energy


@pytest.mark.parametrize("n", [-2, 0, 3])
@pytest.mark.parametrize("family", TRANSITIONS)
def test_a_state_that_cannot_be_paired_is_refused(family, n):
    with pytest.raises(BadConfig, match="even"):
        dplr(family, n)


def test_an_odd_state_is_refused_by_every_door():
    for door in (fout, legs_normal_eigenvalues):
        with pytest.raises(BadConfig, match="even"):
            door(5)


def test_an_unknown_family_is_told_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean legt"):
        nplr("legt2", 4)
    assert legs(3)[0].shape == (3, 3)  # an odd size is fine where nothing is paired
