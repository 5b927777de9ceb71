"""Discretisation with gradients: the twin of `ssm_priors.priors.discretise`, in float64 and real pairs.

Only (H, N/2) numbers are made here, so float64 costs nothing, and it is what keeps the phase of slow modes right at
lags of tens of thousands: an angle rounded to float32 before it is multiplied by the lag is lost there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Discrete(NamedTuple):
    """Modes per step, as real pairs; each (H, N/2), float64."""

    log_z_real: Tensor
    log_z_imag: Tensor
    gain_real: Tensor
    gain_imag: Tensor


def zoh(A_real: Tensor, A_imag: Tensor, dt: Tensor) -> Discrete:
    """log z = dt A, gain = (exp(dt A) - 1) / A, the difference taken without cancellation.

    Args:
        A_real, A_imag: (H, N/2), float64, per unit of time; A_real < 0.
        dt: (H,), float64, units of time a step.
    """
    real, imag = dt[:, None] * A_real, dt[:, None] * A_imag
    decayed = torch.exp(real)
    top_real = torch.expm1(real) * torch.cos(imag) - 2 * torch.sin(imag / 2) ** 2
    top_imag = decayed * torch.sin(imag)
    return Discrete(real, imag, *_divide(top_real, top_imag, A_real, A_imag))


def bilinear(A_real: Tensor, A_imag: Tensor, dt: Tensor) -> Discrete:
    """z = (1 + dt A/2) / (1 - dt A/2), gain = dt / (1 - dt A/2). Arguments as `zoh`."""
    real, imag = dt[:, None] * A_real / 2, dt[:, None] * A_imag / 2
    square = (1 - real) ** 2 + imag**2
    # |1 + x|^2 = |1 - x|^2 + 4 Re x; the clamp keeps the one real mode with z = 0 exactly off log 0
    log_magnitude = torch.log1p((4 * real / square).clamp(min=-1 + 1e-15)) / 2
    angle = torch.atan2(imag, 1 + real) - torch.atan2(-imag, 1 - real)
    one = torch.ones_like(real)
    gain_real, gain_imag = _divide(dt[:, None] * one, torch.zeros_like(real), one - real, -imag)
    return Discrete(log_magnitude, angle, gain_real, gain_imag)


DISCRETISATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Discrete]] = {"zoh": zoh, "bilinear": bilinear}


def _divide(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + ib) / (c + id)."""
    square = c * c + d * d
    return (a * c + b * d) / square, (b * c - a * d) / square
