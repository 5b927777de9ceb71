"""From continuous to discrete time: (A, dt) -> (z, gain), with x_t = z x_{t-1} + gain u_t for each mode and B = 1.

    zoh          z = exp(dt A)                      gain = (exp(dt A) - 1) / A
    bilinear     z = (1 + dt A/2) / (1 - dt A/2)    gain = dt / (1 - dt A/2)
    dss-exp      as zoh
    dss-softmax  z = exp(dt A)                      gain = (exp(dt A) - 1) / (A (exp(dt A L) - 1)), L the length
    none         z = exp(A)                         gain = 1, for modes that are given per step

`log_z` is returned instead of z: powers z^l then keep their precision at any lag. The forms that train are in
`ssm_priors.ops`.  Source: Gu et al. 2022, arXiv 2206.11893, section 3.2; DSS: Gupta et al. 2022, arXiv 2203.14343.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ssm_priors.errors import BadConfig, UnknownName

Discretisation = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

_LEAST_SQUARE = 1 + (-1 + 1e-15)
"""|z|^2 of the bilinear rule's one mode with z = 0, dt A = -2, whose logarithm would be infinite. As in its twin."""


def log_uniform_dt(channels: int, dt_min: float, dt_max: float, rng: np.random.Generator) -> np.ndarray:
    """Timescales dt: (H,), log-uniform in [dt_min, dt_max], in units of time a step.

    Raises:
        BadConfig: bounds that are not 0 < dt_min <= dt_max.

    Source: Gu et al. 2022, arXiv 2111.00396, appendix.
    """
    if not 0 < dt_min <= dt_max:
        raise BadConfig(f"timescales from {dt_min} to {dt_max}: the bounds must be 0 < least <= most")
    return np.exp(rng.uniform(np.log(dt_min), np.log(dt_max), size=channels))


def fixed_dt(channels: int, dt: float) -> np.ndarray:
    """The same timescale in every channel: (H,), units of time a step.

    Raises:
        BadConfig: dt is not positive.
    """
    if not dt > 0:
        raise BadConfig(f"a timescale of {dt}: it must be positive")
    return np.full(channels, float(dt))


def zoh(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zero-order hold: exact for an input that is constant during each step.

    Args:
        A: eigenvalues (H, N/2), or (N/2,) shared by all channels, per unit of time. 0 is allowed.
        dt: (H,), units of time a step; (H, N/2) where every mode has its own.

    Returns:
        log_z and gain, each (H, N/2).
    """
    log_z = _per_mode(dt) * A
    return log_z, _per_mode(dt) * _growth(log_z)


def bilinear(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bilinear (Tustin): the trapezoid rule; keeps stability, warps high frequencies. Arguments as `zoh`."""
    half = _per_mode(dt) * A / 2
    real, imag = half.real, half.imag
    square = (1 - real) ** 2 + imag**2
    change = 4 * real / square  # |z|^2 - 1
    small = np.maximum(((1 + real) ** 2 + imag**2) / square, _LEAST_SQUARE)
    log_magnitude = np.where(change > -0.5, np.log1p(np.maximum(change, -0.5)), np.log(small)) / 2
    angle = np.arctan2(imag, 1 + real) - np.arctan2(-imag, 1 - real)
    return log_magnitude + 1j * angle, _per_mode(dt) / (1 - half)


def dss_exp(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """DSS-exp: what zero-order hold gives, in DSS's name. Arguments as `zoh`; DSS takes Re, without the factor 2.

    Source: Gupta et al. 2022, arXiv 2203.14343, proposition 1a.
    """
    return zoh(A, dt)


def dss_softmax(A: np.ndarray, dt: np.ndarray, length: int, epsilon: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """DSS-softmax: each mode, summed over the whole length, is 1/A; so a mode may grow.

    Args:
        A: eigenvalues (H, N) or (N,), per unit of time, of either sign of the real part; no mode
            may neither grow nor decay and turn a whole number of times in L.
        dt: (H,) or (H, N/2), units of time a step.
        length: L, steps: the kernel holds for this length only.
        epsilon: added to |A (exp(dt A L) - 1)|^2 in the reciprocal. 0: as defined; public code takes 1e-7.

    Returns:
        log_z and gain, each (H, N). The gain of a growing mode tends to 0 as exp(-dt A L): below 1e-308 it is 0, and
        the kernel needs `dss_softmax_log_gain`.

    Source: Gupta et al. 2022, arXiv 2203.14343, proposition 1b.
    """
    log_z, log_gain = dss_softmax_log_gain(A, dt, length, epsilon)
    return log_z, np.exp(log_gain)


def dss_softmax_log_gain(
    A: np.ndarray, dt: np.ndarray, length: int, epsilon: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """log_z and the logarithm of the gain of `dss_softmax`, which neither overflows nor underflows. Arguments as there.

    exp(log_gain + l log_z) is finite at every lag l < length, also where exp(l log_z) is not: a growing mode is divided
    by its largest power, that of the last lag.
    """
    log_z = _per_mode(dt) * A
    grows = log_z.real > 0
    x = np.where(grows, -log_z, log_z)
    below = A * expm1(x * length)
    gain = expm1(x) * below.conj() / (np.abs(below) ** 2 + epsilon)
    return log_z, np.log(gain) - np.where(grows, log_z * (length - 1), 0)


def none(A: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """No discretisation: A is log z itself, per step (DLR, LRU); dt is not used. Arguments and shapes as `zoh`."""
    log_z = np.broadcast_to(A, (len(dt), A.shape[-1])).astype(np.complex128)
    return log_z, np.ones_like(log_z)


DISCRETISATIONS: dict[str, Discretisation] = {"zoh": zoh, "bilinear": bilinear}
"""The rules a model may choose from: each has a twin that trains, in `ssm_priors.ops.discretise`."""

RULES: dict[str, Discretisation] = {**DISCRETISATIONS, "dss-exp": dss_exp, "none": none}
"""Every rule that needs no length."""


def discretise(rule: str, A: np.ndarray, dt: np.ndarray, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """log_z and gain by the rule's name.

    Args:
        rule: a name in RULES, or `dss-softmax`.
        A: eigenvalues (H, N/2) or (N/2,), per unit of time; per step for `none`.
        dt: (H,) or (H, N/2), units of time a step.
        length: L, steps; for `dss-softmax` only.

    Returns:
        log_z and gain, each (H, N/2).

    Raises:
        UnknownName: no such rule.
        BadConfig: `dss-softmax` without a length.
    """
    if rule == "dss-softmax":
        if length is None:
            raise BadConfig("dss-softmax scales its modes by the length of the sequence: give one")
        return dss_softmax(A, dt, length)
    if rule not in RULES:
        raise UnknownName("discretisation", rule, [*RULES, "dss-softmax"])
    return RULES[rule](A, dt)


def expm1(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 for complex x, of any shape, without cancellation near 0."""
    return np.expm1(x.real) * np.cos(x.imag) - 2 * np.sin(x.imag / 2) ** 2 + 1j * np.exp(x.real) * np.sin(x.imag)


def _per_mode(dt: np.ndarray) -> np.ndarray:
    """(H, 1), or (H, N/2) as given."""
    return dt[:, None] if dt.ndim == 1 else dt


def _growth(x: np.ndarray) -> np.ndarray:
    """(exp(x) - 1) / x, 1 at x = 0."""
    nonzero = np.where(x == 0, 1, x)
    return np.where(x == 0, 1, expm1(nonzero) / nonzero)
