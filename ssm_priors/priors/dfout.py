"""S4D-DFouT: modes on one discrete Fourier grid, shared out over all channels of a layer.

z_{h,n} = exp(-xi_h/2 + i (2 pi n / N + 2 pi h / (N H))),   h = 0 .. H-1

Frequency and decay are set per step, so that neither depends on dt: these modes are no init for mixers that multiply by
one. Of the N modes of a channel, those with n = 0 .. N/2-1 are kept: their conjugates are the mirror image of the grid,
and what reaches [pi, 2 pi) is redundant for real signals.

Source: Solozabal et al. 2025, "Uncovering the Spectral Bias in Diagonal State Space Models", arXiv 2508.20441.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.priors.discretise import log_uniform_dt

XI_BOUNDS = (1e-3, 1e-1)
"""Bounds of the damping xi, 1/step. Source: arXiv 2508.20441, table 5; for sequences of 16,384 and more, from 1e-4."""


def grid(d_state: int, channels: int, rng: np.random.Generator, xi: tuple[float, float] = XI_BOUNDS) -> np.ndarray:
    """The modes of a layer's channels, per step.

    The paper gives the range of xi, one to a channel, but not its law: it is log-uniform here, as the dt it stands for.

    Args:
        d_state: state size N.
        channels: H.
        rng: where the draws of xi come from.
        xi: bounds of the damping, 1/step.

    Returns:
        log z: (H, N/2) complex, per step; the frequencies of all channels together are i pi j / (N H / 2), each once.

    Raises:
        BadConfig: bounds that are not 0 < least <= most.

    Source: arXiv 2508.20441, section 4.2 (layer-wise initialization, half plane).
    """
    n, h = np.arange(d_state // 2), np.arange(channels)[:, None]
    angle = 2 * np.pi * (n + h / channels) / d_state
    return -log_uniform_dt(channels, *xi, rng)[:, None] / 2 + 1j * angle
