"""What an SSM does, from its parameters: kernel, decay rate, timescale, frequency, effective memory. Float64.

With log z = dt A (zero-order hold) or its bilinear twin, for each mode of each channel:

    kernel[l] = 2 Re sum_n C_n gain_n z_n^l        decay rate = -ln |z| (1/step)
    timescale = 1 / decay rate (steps)             frequency  = arg z / 2 pi (cycles/step)
"""

from __future__ import annotations

import numpy as np


def kernel(C: np.ndarray, log_z: np.ndarray, length: int) -> np.ndarray:
    """Impulse response 2 Re sum_n C_n z_n^l.

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
    return -log_z.real


def timescale(log_z: np.ndarray) -> np.ndarray:
    """Steps in which a mode falls to 1/e."""
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
