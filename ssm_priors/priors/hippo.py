"""HiPPO: the state matrix whose state holds the coefficients of the input's history in a polynomial basis.

x'(t) = A x(t) + B u(t).  Source: Gu et al. 2020, arXiv 2008.07669; normal plus low rank form: Gu et al. 2022,
arXiv 2111.00396.
"""

from __future__ import annotations

import numpy as np


def legs(d_state: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-LegS, scaled Legendre polynomials.

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


def legs_normal_eigenvalues(d_state: int) -> np.ndarray:
    """Eigenvalues of LegS's normal part A + P P^T with P = sqrt(n + 1/2), one of each conjugate pair.

    The normal part is -1/2 plus a skew-symmetric matrix, so the imaginary parts come from a Hermitian eigenproblem and
    the real parts are -1/2 exactly.

    Args:
        d_state: state size N, even.

    Returns:
        (N/2,) complex, ascending in the imaginary part.

    Source: arXiv 2111.00396, theorem 1.
    """
    A, B = legs(d_state)
    normal = A + np.outer(B, B) / 2
    skew = normal + np.eye(d_state) / 2
    frequencies = np.linalg.eigvalsh(-1j * skew)
    return -0.5 + 1j * frequencies[d_state // 2 :]
