"""HiPPO: the state matrix whose state holds the coefficients of the input's history in a basis of functions.

x'(t) = A x(t) + B u(t), and for every family here A = S - P P^T, with S normal and P of rank 1 or 2. S is a multiple of
the identity plus a skew-symmetric matrix K, so it is diagonalised through the Hermitian matrix -iK: its real parts are
exact, its eigenvectors unitary, whatever N. In that eigenbasis, with one of each conjugate pair kept,

    A = 2 Re(V diag(eigenvalues) V^*) - P P^T

A itself is far from normal: its eigenvectors grow exponentially with N, so it is never diagonalised directly.

Precision, in float64, checked in tests/priors/test_hippo.py. Rebuilt from its diagonal form, A is right to 1e-12 of its
largest entry up to N = 1024 (5e-14 found for LegS). A single eigenvalue is as precise as the largest one allows: LegS's
lie between 0.18 and N^2/pi, and their relative error, held against the roots of a closed form, grows from 6e-14 at
N = 64 to 3e-11 at N = 1024. FouT and LagT are closed forms.

Source: Gu et al. 2020, arXiv 2008.07669; normal plus low rank form: Gu et al. 2022, arXiv 2111.00396.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ssm_priors.errors import BadConfig, UnknownName


class NormalPlusLowRank(NamedTuple):
    """A, B of a HiPPO family, and the P that makes A + P P^T normal."""

    A: np.ndarray
    """(N, N), per unit of time."""
    B: np.ndarray
    """(N,)"""
    P: np.ndarray
    """(rank, N)"""

    @property
    def normal(self) -> np.ndarray:
        """A + P P^T: (N, N), a multiple of the identity plus a skew-symmetric matrix."""
        return self.A + self.P.T @ self.P


class DiagonalPlusLowRank(NamedTuple):
    """The same in the eigenbasis of the normal part, one of each conjugate pair, ascending in the imaginary part.

    V's columns have unit length and no phase of their own: P and B turn with them; |P|, |B| and B conj(P) do not.
    """

    eigenvalues: np.ndarray
    """(N/2,) complex, per unit of time, imaginary part >= 0."""
    P: np.ndarray
    """V^* P: (rank, N/2) complex."""
    B: np.ndarray
    """V^* B: (N/2,) complex."""
    V: np.ndarray
    """(N, N/2) complex: what turns a state of the eigenbasis back, x = 2 Re(V z)."""


def legs(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-LegS, scaled Legendre polynomials: all of the history, stretched to one window.

    Args:
        d_state: state size N.

    Returns:
        A: (N, N), -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; B: (N,), sqrt(2n+1).

    Source: arXiv 2008.07669, theorem 2.
    """
    n = np.arange(d_state, dtype=np.float64)
    root = np.sqrt(2 * n + 1)
    A = -np.tril(np.outer(root, root), -1) - np.diag(n + 1)
    return A, root


def legt(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-LegT, translated Legendre polynomials: a sliding window, here two units of time long.

    Args:
        d_state: state size N.

    Returns:
        A: (N, N), -sqrt((2n+1)(2k+1))/2 on and below the diagonal, the same times (-1)^(n-k) above; B: (N,),
        sqrt(2n+1)/2.

    Source: arXiv 2008.07669, theorem 1; scaled to an orthonormal basis as in Gu et al. 2022, arXiv 2206.12037 (a window
    of length 1), and halved as in the public S4 code.
    """
    n = np.arange(d_state)
    root = np.sqrt(2.0 * n + 1)
    sign = np.where(n[:, None] >= n, 1, (-1.0) ** (n[:, None] - n))
    return -np.outer(root, root) * sign / 2, root / 2


def fout(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-FouT, truncated Fourier basis: a sliding window, here two units of time long.

    Args:
        d_state: state size N, even: a cosine and a sine a frequency.

    Returns:
        A: (N, N), a rotation by pi k of the pair (2k, 2k+1), less B B^T; B: (N,), 1, 0, sqrt 2, 0, sqrt 2, 0, ...

    Raises:
        BadConfig: N is odd.

    Source: Gu et al. 2022, arXiv 2206.12037, S4-FouT (a window of length 1), halved as in the public S4 code.
    """
    _check_even(d_state)
    B = np.zeros(d_state)
    B[::2] = np.sqrt(2)
    B[0] = 1
    turn = np.zeros(d_state - 1)
    turn[::2] = np.pi * np.arange(d_state // 2)
    return np.diag(turn, -1) - np.diag(turn, 1) - np.outer(B, B), B


def lagt(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-LagT, translated Laguerre polynomials: all of the history, fading exponentially.

    Args:
        d_state: state size N.

    Returns:
        A: (N, N), -1 below the diagonal, -1/2 on it, 0 above; B: (N,), ones.

    Source: arXiv 2008.07669, appendix D.2, with alpha = beta = 0, as in the public S4 code.
    """
    return np.eye(d_state) / 2 - np.tril(np.ones((d_state, d_state))), np.ones(d_state)


TRANSITIONS: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "legs": legs,
    "legt": legt,
    "fout": fout,
    "lagt": lagt,
}


def nplr(family: str, d_state: int) -> NormalPlusLowRank:
    """A HiPPO family with its low-rank correction.

    Args:
        family: `legs`, `legt`, `fout` or `lagt`.
        d_state: state size N.

    Returns:
        A, B and P, of rank 1; of rank 2 for `legt`.

    Raises:
        UnknownName: no such family.

    Source: Gu et al. 2022, arXiv 2111.00396, theorem 1; FouT: arXiv 2206.12037.
    """
    if family not in TRANSITIONS:
        raise UnknownName("HiPPO family", family, TRANSITIONS)
    A, B = TRANSITIONS[family](d_state)
    return NormalPlusLowRank(A, B, _low_rank(family, B))


def dplr(family: str, d_state: int) -> DiagonalPlusLowRank:
    """A HiPPO family in the eigenbasis of its normal part, where A is diagonal less a low-rank matrix.

    Args:
        family: `legs`, `legt`, `fout` or `lagt`.
        d_state: state size N, even.

    Returns:
        eigenvalues, P, B and V, one of each conjugate pair.

    Raises:
        UnknownName: no such family.
        BadConfig: N is odd.

    Source: Gu et al. 2022, arXiv 2111.00396, theorem 1.
    """
    _check_even(d_state)
    form = nplr(family, d_state)
    if family in _CLOSED:
        eigenvalues, V = _CLOSED[family](d_state)
    else:
        eigenvalues, V = eigenpairs(form.normal, real=-0.5 if family == "legs" else 0.0)
    back = V.conj().T
    return DiagonalPlusLowRank(eigenvalues, form.P @ back.T, back @ form.B, V)


def eigenpairs(normal: np.ndarray, real: float) -> tuple[np.ndarray, np.ndarray]:
    """The upper half of the spectrum of a real matrix c I + K, K skew-symmetric without a zero eigenvalue.

    -iK is Hermitian: its eigenvalues are real and exact to rounding of the largest, its eigenvectors orthogonal.

    Args:
        normal: (N, N), real, N even.
        real: c, stated rather than read off the diagonal: rounding there could turn a decay of 0 into growth.

    Returns:
        eigenvalues (N/2,) = c + i w, w > 0 ascending; unit eigenvectors V: (N, N/2).
    """
    half = len(normal) // 2
    frequencies, V = np.linalg.eigh(_hermitian(normal))
    return real + 1j * frequencies[half:], V[:, half:]


def legs_normal_eigenvalues(d_state: int) -> np.ndarray:
    """Eigenvalues of LegS's normal part A + P P^T with P = sqrt(n + 1/2), one of each conjugate pair.

    The normal part is -1/2 plus a skew-symmetric matrix, so the imaginary parts come from a Hermitian eigenproblem and
    the real parts are -1/2 exactly.

    Args:
        d_state: state size N, even.

    Returns:
        (N/2,) complex, ascending in the imaginary part.

    Raises:
        BadConfig: N is odd.

    Source: arXiv 2111.00396, theorem 1.
    """
    _check_even(d_state)
    frequencies = np.linalg.eigvalsh(_hermitian(nplr("legs", d_state).normal))
    return -0.5 + 1j * frequencies[d_state // 2 :]


def _low_rank(family: str, B: np.ndarray) -> np.ndarray:
    """P: (rank, N)."""
    if family == "fout":
        return B[None]
    if family == "legt":  # what is left over is not skew but couples even n with even, odd with odd: two ranks
        odd = np.arange(len(B)) % 2 == 1
        return np.sqrt(2) * np.stack([np.where(odd, B, 0), np.where(odd, 0, B)])
    return B[None] / np.sqrt(2)


def _hermitian(normal: np.ndarray) -> np.ndarray:
    """-iK of c I + K, averaged with its mirror image so that rounding leaves it exactly Hermitian."""
    return -0.5j * (normal - normal.T)


def _fout_eigenpairs(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies pi k, each turning one pair of states. The pair of frequency 0 has no plane of its own: any does."""
    k = np.arange(d_state // 2)
    V = np.zeros((d_state, d_state // 2), dtype=np.complex128)
    V[2 * k, k] = 1 / np.sqrt(2)
    V[2 * k + 1, k] = -1j / np.sqrt(2)
    return 1j * np.pi * k, V


def _lagt_eigenpairs(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies tan(a)/2 with a = pi (j + 1/2) / N, and v_n = (-exp(-2ia))^n / sqrt N: K v = i w v row by row."""
    angle = np.pi * (np.arange(d_state // 2) + 0.5) / d_state
    V = np.exp(1j * np.outer(np.arange(d_state), np.pi - 2 * angle)) / np.sqrt(d_state)
    return 0.5j * np.tan(angle), V


_CLOSED = {"fout": _fout_eigenpairs, "lagt": _lagt_eigenpairs}


def _check_even(d_state: int) -> None:
    if d_state < 2 or d_state % 2:
        raise BadConfig(f"the state size is {d_state}; conjugate pairs need an even number, 2 or more")
