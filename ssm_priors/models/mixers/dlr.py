"""DLR, a diagonal linear RNN: modes given per step, with no timescale and no discretisation, as a long convolution.

    K[h, l] = to_real(sum_n W[h, n] z_n^l),   |z_n| < 1, shared by all channels

`to_real` is Re, Im or their sum. The N modes are not conjugate pairs. Source: Gupta, Mehta, Berant 2022,
arXiv 2212.00768; as used by Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from ssm_priors.config import newer
from ssm_priors.errors import BadConfig
from ssm_priors.models.protocols import Spectrum
from ssm_priors.models.statespace import (
    as_complex,
    complex_normal,
    convolve_modes,
    diagonal_kernel,
    gate,
    kept_in_float32,
    one_sided,
    parameter,
    per_step,
    prefill_modes,
    read_out,
    state_dtype,
    step_modes,
    undiscretised,
)
from ssm_priors.ops.discretise import Discrete
from ssm_priors.priors import dlr
from ssm_priors.registry import MIXERS

TO_REAL = {"real": 1, "imag": -1j, "sum": 1 - 1j}
"""What W is multiplied by, so that the real part of the product is what is asked for."""


@MIXERS.register("dlr")
class DLR(nn.Module):
    """Diagonal linear RNN with no timescale, as a long convolution; then GELU and a gated linear unit.

    Source: Gupta, Mehta, Berant 2022, arXiv 2212.00768.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of DLR."""

        d_state: Annotated[int, Ge(1)] = 64
        """State size N: complex modes, none the conjugate of another."""
        frequencies: Literal["omega", "randn"] = "omega"
        """How the angles of z start: on the discrete Fourier grid 2 pi n / N, or normal."""
        to_real: Literal["real", "imag", "sum"] = "real"
        """What becomes the kernel: real part, imaginary part, or their sum."""
        decay_min: Annotated[float, Gt(0)] = 5e-5
        """Smallest initial decay rate, 1/step."""
        decay_max: Annotated[float, Gt(0)] = 5e-2
        """Largest initial decay rate, 1/step; log-uniform between the two, for every mode."""
        slow_weights: bool = newer(False)
        """Train W as z, at ssm_learning_rate and never decayed, as the public code of arXiv 2310.02980 does."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        if options.decay_min > options.decay_max:
            raise BadConfig(f"model.mixer: decay_min {options.decay_min} is larger than decay_max {options.decay_max}")
        self.causal = causal
        self.slow_weights = options.slow_weights
        self.to_real = TO_REAL[options.to_real]
        start = {"omega": dlr.omega, "randn": dlr.randn}[options.frequencies]
        log_z = start(options.d_state, 2 * options.decay_min, 2 * options.decay_max, rng)  # bounds of delta
        self.log_decay = parameter(np.log(-log_z.real))
        self.angle = parameter(log_z.imag)
        directions = 1 if causal else 2
        self.W = parameter(complex_normal(rng, directions, d_model, options.d_state, deviation=1 / options.d_state))
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        return gate(convolve_modes(u, lengths, *self._modes(), self.D, gelu=True), self.dropout, self.output)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), in float32, or float64 if the parameters are."""
        return diagonal_kernel(*self._modes(), length, self.W.dtype)

    def spectrum(self) -> Spectrum:
        """log z per step (the same in every row, dt = 1) and weights, in float64.

        Re(W z^l) is (W z^l + conj(W z^l)) / 2, so a mode is half of a conjugate pair with the weight W / 2.
        """
        with torch.no_grad():
            weight, modes = self._modes()
            log_z = torch.complex(modes.log_z_real, modes.log_z_imag).cpu().numpy()
            return Spectrum(log_z, np.ones(len(log_z)), as_complex(weight).cpu().numpy(), "none")

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, H, N), complex."""
        return torch.zeros(batch, *self.W.shape[1:3], dtype=state_dtype(self.W.dtype), device=self.W.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, H, N) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        weight, modes = self._modes()
        y, state = step_modes(u, state, weight[0], modes, self.D)
        return read_out(y, self.dropout, self.output), state

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many positions at once: u: (B, L, H), state: (B, H, N) -> y: (B, L, H), next state. Causal only.

        Raises:
            BadConfig: as `step`.
        """
        one_sided(self.causal)
        weight, modes = self._modes()
        y, state = prefill_modes(u, state, weight[0], modes, self.D)
        return read_out(y, self.dropout, self.output), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """log z, and W if it is to be as slow."""
        return [self.log_decay, self.angle, *([self.W] if self.slow_weights else [])]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DLR:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _modes(self) -> tuple[Tensor, Discrete]:
        """W / 2, turned as `to_real` says, as pairs (direction, H, N, 2), and the modes per step (H, N); float64."""
        weight = torch.view_as_real(as_complex(self.W) * (self.to_real / 2))
        return weight, undiscretised(per_step(self.log_decay, self.angle).expand(weight.shape[1:3]))
