"""What an SSM does, from its parameters: kernel, decay rate, timescale, frequency, effective memory. Float64.

With log z = dt A (zero-order hold) or its bilinear twin, for each mode of each channel:

    kernel[l] = 2 Re sum_n C_n gain_n z_n^l        decay rate = -ln |z| (1/step)
    timescale = 1 / decay rate (steps)             frequency  = arg z / 2 pi (cycles/step)
    response(f) = sum_l kernel[l] exp(-2 pi i f l) effective memory = the lag up to which most of the energy lies

Response and memory are closed forms: geometric series over the modes, and over pairs of modes.  Source: Oppenheim and
Schafer, Discrete-Time Signal Processing, on rational transforms and Parseval's relation.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.errors import BadConfig
from ssm_priors.priors.discretise import expm1

_LONGEST = 2**62
"""Steps: no memory is looked for beyond it."""
_CHANNELS = 8
"""Channels whose responses are summed at a time: their temporary arrays then stay in the processor's cache."""


def kernel(C: np.ndarray, log_z: np.ndarray, length: int) -> np.ndarray:
    """Impulse response 2 Re sum_n C_n z_n^l.

    All powers are held at once, (H, N/2, L) complex: 0.5 GB for 64 channels of 32 modes at L = 16,384. For long or wide
    layers, ask channel by channel, or take `frequency_response` and `effective_memory`, which hold none.

    Args:
        C: weights (..., H, N/2), complex, gain included, one of each conjugate pair.
        log_z: (H, N/2), complex, per step.
        length: number of lags L.

    Returns:
        (..., H, L), real.
    """
    powers = np.exp(log_z[..., None] * np.arange(length))  # (H, N/2, L)
    return 2 * np.einsum("...hn,hnl->...hl", C, powers).real


def decay_rate(log_z: np.ndarray) -> np.ndarray:
    """-ln |z|, 1/step."""
    return 0.0 - log_z.real  # not -log_z.real: a mode that does not decay has 0, not -0, and 1/0 is infinite


def timescale(log_z: np.ndarray) -> np.ndarray:
    """Steps in which a mode falls to 1/e; infinite for one that does not decay."""
    with np.errstate(divide="ignore"):
        return 1 / decay_rate(log_z)


def frequency(log_z: np.ndarray) -> np.ndarray:
    """arg z / 2 pi, cycles/step, folded into [0, 0.5]: what a sampled signal can show."""
    cycles = log_z.imag / (2 * np.pi)
    return np.abs(cycles - np.round(cycles))


def energy_lag(kernel: np.ndarray, share: float) -> np.ndarray:
    """The first lag up to which a kernel holds `share` of its energy sum_l K[l]^2.

    Args:
        kernel: (..., L), real.
        share: in (0, 1], 0.9 for the lag holding 90%.

    Returns:
        (...), integer lags; -1 where the kernel is zero everywhere or not finite.
    """
    energy = np.cumsum(np.square(np.asarray(kernel, dtype=np.float64)), axis=-1)
    total = energy[..., -1:]
    lag = np.argmax(energy >= share * total, axis=-1)
    return np.where((total[..., 0] > 0) & np.isfinite(total[..., 0]), lag, -1)


def frequency_response(C: np.ndarray, log_z: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Fourier transform of the endless kernel: sum_n C_n / (1 - z_n e^-i w) + conj(C_n) / (1 - conj(z_n) e^-i w).

    Args:
        C: weights (..., H, N/2), complex, gain included, one of each conjugate pair.
        log_z: (H, N/2), complex, per step, real part < 0.
        frequencies: (F,), cycles/step; 0.5 is the highest that a sampled signal shows.

    Returns:
        (..., H, F), complex; its modulus is the gain of a sinusoid, its argument the phase shift, in radians.

    Raises:
        BadConfig: a mode does not decay.
    """
    _check_decay(log_z)
    half_turn = np.pi * np.asarray(frequencies, dtype=np.float64)
    found = np.empty((*C.shape[:-1], len(half_turn)), np.complex128)
    for start in range(0, len(log_z), _CHANNELS):
        here = slice(start, start + _CHANNELS)
        weight = np.moveaxis(C[..., here, :], -2, 0).reshape(len(log_z[here]), -1, C.shape[-1])  # (h, ..., N/2)
        sums = weight @ _geometric(log_z[here], half_turn) + weight.conj() @ _geometric(log_z[here].conj(), half_turn)
        found[..., here, :] = np.moveaxis(sums.reshape(len(sums), *C.shape[:-2], len(half_turn)), 0, -2)
    return found


def _geometric(log_z: np.ndarray, half_turn: np.ndarray) -> np.ndarray:
    """sum_l (z e^-iw)^l = -1 / (e^(a + ib) - 1), a + ib = log z - iw: (h, N/2) and w / 2 (F,) -> (h, N/2, F).

    With s, c the sine and cosine of b / 2, e^(a + ib) - 1 = (e^a - 1) - 2 e^a s^2 + 2i e^a s c: nothing cancels, and
    the difference of two angles needs no sine for each pair of mode and frequency.
    """
    angle = log_z.imag[..., None] / 2
    sine = np.sin(angle) * np.cos(half_turn) - np.cos(angle) * np.sin(half_turn)
    cosine = np.cos(angle) * np.cos(half_turn) + np.sin(angle) * np.sin(half_turn)
    twice = 2 * np.exp(log_z.real)[..., None] * sine
    real, imag = np.expm1(log_z.real)[..., None] - twice * sine, twice * cosine
    size = real * real + imag * imag
    return (imag * 1j - real) / size


def tail_energy(C: np.ndarray, log_z: np.ndarray, lag: np.ndarray | int = 0) -> np.ndarray:
    """Energy sum K[l]^2 of the endless kernel from a lag on, as a double sum over its modes.

    Where modes cancel, its absolute error is 1e-16 of the energy they would have one by one.

    Args:
        C: weights (..., H, N/2), complex, gain included, one of each conjugate pair.
        log_z: (H, N/2), complex, per step, real part < 0.
        lag: first lag counted; one, or (..., H).

    Returns:
        (..., H); lag 0 gives the whole energy.

    Raises:
        BadConfig: a mode does not decay.
    """
    return _tail(C, log_z, lag, _pairs(log_z))


def effective_memory(C: np.ndarray, log_z: np.ndarray, share: float = 0.9) -> np.ndarray:
    """The first lag up to which the endless kernel holds `share` of its energy, by bisection on `tail_energy`.

    `energy_lag` says the same of a kernel that is cut at some length.

    Args:
        C: weights (..., H, N/2), complex, gain included, one of each conjugate pair.
        log_z: (H, N/2), complex, per step, real part < 0.
        share: in (0, 1).

    Returns:
        (..., H), integer lags, steps; -1 where the kernel is zero.

    Raises:
        BadConfig: a mode does not decay, or the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise BadConfig(f"a share of {share}: it must lie between 0 and 1; all of an endless kernel has no last lag")
    pairs = _pairs(log_z)
    energy = _tail(C, log_z, 0, pairs)
    low, high = np.zeros(energy.shape, dtype=np.int64), np.full(energy.shape, _LONGEST)
    while (low < high).any():  # the least lag with at most 1 - share of the energy after it
        middle = low + (high - low) // 2
        enough = _tail(C, log_z, middle + 1, pairs) <= (1 - share) * energy
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return np.where(energy > 0, low, -1)


def _check_decay(log_z: np.ndarray) -> None:
    if not (log_z.real < 0).all():
        raise BadConfig("a mode does not decay: its kernel has neither a transform nor an energy")


def _pairs(log_z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sum_l (z_m z_k)^l and sum_l (z_m conj(z_k))^l for all pairs of modes: each (H, N/2, N/2)."""
    _check_decay(log_z)
    alike = -1 / expm1(log_z[:, :, None] + log_z[:, None, :])
    return alike, -1 / expm1(log_z[:, :, None] + log_z.conj()[:, None, :])


def _tail(C: np.ndarray, log_z: np.ndarray, lag: np.ndarray | int, pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """K[l]^2 = 2 Re sum_mk C_m C_k (z_m z_k)^l + C_m conj(C_k) (z_m conj(z_k))^l, summed from `lag` on."""
    weight = C * np.exp(log_z * np.asarray(lag, dtype=np.float64)[..., None])
    alike = np.einsum("...hm,...hk,hmk->...h", weight, weight, pairs[0])
    return 2 * (alike + np.einsum("...hm,...hk,hmk->...h", weight, weight.conj(), pairs[1])).real
