"""S5: one state space for all channels together, its state matrix block-diagonal with HiPPO-LegS's normal part.

x'(t) = A x(t) + B u(t), A = V diag(eigenvalues) V^*, with one of each conjugate pair kept: real x = 2 Re(V z).

Source: Smith, Warrington, Linderman 2023, "Simplified State Space Layers for Sequence Modeling", arXiv 2208.04933.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from ssm_priors.errors import BadConfig
from ssm_priors.priors.hippo import dplr


class BlockDiagonal(NamedTuple):
    """Eigenvalues and eigenvectors of a block-diagonal normal matrix, one of each conjugate pair."""

    eigenvalues: np.ndarray
    """(N/2,) complex, per unit of time, imaginary part > 0, ascending within each block."""
    V: np.ndarray
    """(N, N/2) complex, block-diagonal: unit eigenvectors. C becomes C V."""
    V_inverse: np.ndarray
    """V^*: (N/2, N), the rows of the inverse that belong to the kept half. B becomes V_inverse B."""


def block_diagonal_hippo(d_state: int, blocks: int) -> BlockDiagonal:
    """The normal part of HiPPO-LegS of size N / blocks, once in every block.

    Args:
        d_state: state size N, counting both of each conjugate pair.
        blocks: number of blocks J; each is of even size N / J.

    Returns:
        eigenvalues, V and V_inverse.

    Raises:
        BadConfig: N is no even multiple of the number of blocks.

    Source: arXiv 2208.04933 (block-diagonal initialization).
    """
    if blocks < 1 or d_state < 2 * blocks or d_state % (2 * blocks):
        raise BadConfig(f"{blocks} blocks cannot share a state of size {d_state}: each needs the same even size")
    block = dplr("legs", d_state // blocks)
    V = block_diag(*[block.V] * blocks)
    return BlockDiagonal(np.tile(block.eigenvalues, blocks), V, V.conj().T)
