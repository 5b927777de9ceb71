"""LRU: linear recurrent units, modes drawn in a ring of the complex plane, given per step.

x_t = z x_{t-1} + gamma (B u)_t with gamma = sqrt(1 - |z|^2): white input then gives a state of unit variance, however
slowly a mode decays.

Source: Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", arXiv 2303.06349.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.errors import BadConfig

_MOST_SQUARE = np.nextafter(1.0, 0.0)
"""The largest |z|^2 below 1: a draw that rounds to 1 would never decay."""


def ring(modes: int, r_min: float, r_max: float, max_phase: float, rng: np.random.Generator) -> np.ndarray:
    """Modes uniform in area on the ring r_min <= |z| <= r_max, in the sector of phases [0, max_phase].

    Args:
        modes: number of modes N.
        r_min, r_max: bounds of |z|, per step.
        max_phase: largest arg z, radians/step; 2 pi for the whole ring.
        rng: where the draws come from.

    Returns:
        log z: (N,) complex, per step, real part < 0.

    Raises:
        BadConfig: bounds that are not 0 <= r_min <= r_max <= 1, or r_max of 0.

    Source: arXiv 2303.06349, lemma 3.2.
    """
    if not (0 <= r_min <= r_max <= 1 and r_max > 0):
        raise BadConfig(f"the ring's radii are {r_min} and {r_max}; they must be 0 <= r_min <= r_max <= 1, r_max > 0")
    square = r_min**2 + (r_max**2 - r_min**2) * rng.uniform(size=modes)
    square = np.clip(square, np.finfo(np.float64).tiny, _MOST_SQUARE)
    return np.log(square) / 2 + 1j * rng.uniform(0, max_phase, size=modes)


def gamma(log_z: np.ndarray) -> np.ndarray:
    """The input's normalisation sqrt(1 - |z|^2), without cancellation for slow modes.

    Args:
        log_z: (...), complex, per step, real part <= 0.

    Returns:
        (...), real, in [0, 1]: gamma itself; its logarithm is what LRU stores.

    Source: arXiv 2303.06349, equation 7.
    """
    return np.sqrt(-np.expm1(2 * log_z.real))
