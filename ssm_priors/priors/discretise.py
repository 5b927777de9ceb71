"""From continuous to discrete time: (A, dt) -> (z, gain), with x_t = z x_{t-1} + gain u_t for each mode and B = 1.

    zoh        z = exp(dt A)                      gain = (exp(dt A) - 1) / A
    bilinear   z = (1 + dt A/2) / (1 - dt A/2)    gain = dt / (1 - dt A/2)

`log_z` is returned instead of z: powers z^l then keep their precision at any lag. The form that trains is
`ssm_priors.ops.discretise`.  Source: Gu et al. 2022, arXiv 2206.11893, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Discretisation = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def log_uniform_dt(channels: int, dt_min: float, dt_max: float, rng: np.random.Generator) -> np.ndarray:
    """Timescales dt: (H,), log-uniform in [dt_min, dt_max], in units of time a step.

    Source: Gu et al. 2022, arXiv 2111.00396, appendix.
    """
    return np.exp(rng.uniform(np.log(dt_min), np.log(dt_max), size=channels))


def zoh(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zero-order hold: exact for an input that is constant during each step.

    Args:
        A: eigenvalues (H, N/2), per unit of time.
        dt: (H,), units of time a step.

    Returns:
        log_z and gain, each (H, N/2).
    """
    log_z = dt[:, None] * A
    return log_z, _expm1(log_z) / A


def bilinear(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bilinear (Tustin): the trapezoid rule; keeps stability, warps high frequencies. Arguments as `zoh`."""
    half = dt[:, None] * A / 2
    return np.log1p(half) - np.log1p(-half), dt[:, None] / (1 - half)


DISCRETISATIONS: dict[str, Discretisation] = {"zoh": zoh, "bilinear": bilinear}


def _expm1(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 for complex x without cancellation near 0."""
    return np.expm1(x.real) * np.cos(x.imag) - 2 * np.sin(x.imag / 2) ** 2 + 1j * np.exp(x.real) * np.sin(x.imag)
