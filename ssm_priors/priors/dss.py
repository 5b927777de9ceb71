"""DSS: diagonal state spaces whose modes are shared by all channels and need not come in conjugate pairs.

K[l] = Re sum_n W_n gain_n exp(dt Lambda_n l), over N modes Lambda_n, with no factor 2: the gains are
`ssm_priors.priors.discretise.dss_exp` and `dss_softmax`.

The functions give those modes. The inits give the same numbers to a model that keeps one of each conjugate pair: its
2 Re of N/2 modes is then DSS's Re of N/2 modes with weights twice as large.

Source: Gupta, Gu, Berant 2022, "Diagonal State Spaces are as Effective as Structured State Spaces", arXiv 2203.14343.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.priors.hippo import legs_normal_eigenvalues
from ssm_priors.registry import INITS


def hippo_skew(modes: int) -> np.ndarray:
    """The eigenvalues of positive frequency of LegS's normal part at twice the size.

    Args:
        modes: number of modes N.

    Returns:
        (N,) complex, per unit of time, real part -1/2, ascending in the imaginary part.

    Source: Gupta et al. 2022, arXiv 2203.14343 (Skew-HiPPO initialisation).
    """
    return legs_normal_eigenvalues(2 * modes)


def lin(modes: int) -> np.ndarray:
    """Evenly spaced frequencies, -1/2 + i pi n for n = 0 .. N-1.

    Args:
        modes: number of modes N.

    Returns:
        (N,) complex, per unit of time.

    Source: `Lambda_init = lin` of the public code, github.com/IdoAmos/not-from-scratch; Gu et al. 2022, arXiv
        2206.11893, equation 9.
    """
    return -0.5 + 1j * np.pi * np.arange(modes)


def randn(modes: int, rng: np.random.Generator) -> np.ndarray:
    """Normal frequencies, -1/2 + i N(0, 1); of either sign.

    Args:
        modes: number of modes N.
        rng: where the draws come from.

    Returns:
        (N,) complex, per unit of time.

    Source: `Lambda_init = randn` of the public code, github.com/IdoAmos/not-from-scratch.
    """
    return -0.5 + 1j * rng.standard_normal(modes)


@INITS.register("dss-hippo-skew")
def dss_hippo_skew(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """DSS's Skew-HiPPO, one of each conjugate pair: the same numbers as s4d-legs.

    Source: Gupta et al. 2022, arXiv 2203.14343 (Skew-HiPPO initialisation).
    """
    return np.tile(hippo_skew(d_state // 2), (channels, 1))


@INITS.register("dss-lin")
def dss_lin(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """DSS's linear frequencies, one of each conjugate pair: the same numbers as s4d-lin.

    Source: `Lambda_init = lin` of the public code, github.com/IdoAmos/not-from-scratch.
    """
    return np.tile(lin(d_state // 2), (channels, 1))


@INITS.register("dss-random")
def dss_random(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -1/2 + i |N(0, 1)|, drawn once for all channels; a conjugate pair has no sign of frequency to keep.

    Source: `Lambda_init = randn` of the public code, github.com/IdoAmos/not-from-scratch.
    """
    modes = randn(d_state // 2, rng)
    return np.tile(modes.real + 1j * np.abs(modes.imag), (channels, 1))
