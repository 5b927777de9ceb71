"""DLR: diagonal linear recurrences, modes given per step; no continuous time, no dt, no discretisation.

K[l] = Re sum_n W_n exp(log z_n l), over N modes that need not come in conjugate pairs, shared by all channels.

Source: Gupta, Mehta, Berant 2022, "Simplifying and Understanding State Space Models with Diagonal Linear RNNs",
arXiv 2212.00768.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.priors.discretise import log_uniform_dt


def omega(modes: int, dt_min: float, dt_max: float, rng: np.random.Generator) -> np.ndarray:
    """Modes on the grid of the discrete Fourier transform of length N, lightly damped.

    Args:
        modes: number of modes N.
        dt_min, dt_max: bounds of delta, 1/step; the papers take 1e-4 and 1e-1.
        rng: where the draws come from.

    Returns:
        log z: (N,) complex, per step: real part -delta/2 with delta log-uniform, imaginary part 2 pi n / N.

    Raises:
        BadConfig: bounds that are not 0 < dt_min <= dt_max.

    Source: arXiv 2212.00768; `Lambda_init = omega` of the public code,
        github.com/IdoAmos/not-from-scratch.
    """
    return _damping(modes, dt_min, dt_max, rng) + 2j * np.pi * np.arange(modes) / modes


def randn(modes: int, dt_min: float, dt_max: float, rng: np.random.Generator) -> np.ndarray:
    """Modes damped as in `omega`, at normal frequencies: imaginary part N(0, 1) modulo 2 pi. Arguments as `omega`.

    Source: `Lambda_init = randn` of the public code, github.com/IdoAmos/not-from-scratch.
    """
    return _damping(modes, dt_min, dt_max, rng) + 1j * np.mod(rng.standard_normal(modes), 2 * np.pi)


def _damping(modes: int, dt_min: float, dt_max: float, rng: np.random.Generator) -> np.ndarray:
    return -log_uniform_dt(modes, dt_min, dt_max, rng) / 2
