"""S4D: a diagonal state space for every channel, run as one long convolution.

    x'(t) = A x(t) + u(t),   y(t) = 2 Re(C x(t)) + D u(t),   A diagonal, complex, N/2 modes a channel

Source: Gu, Gupta, Goel, Re 2022, arXiv 2206.11893.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt, Interval, MultipleOf
from torch import Tensor, nn

from ssm_priors.models.protocols import Spectrum
from ssm_priors.models.statespace import (
    LEAST_DECAY,
    bounded_decay,
    bounded_dt,
    complex_normal,
    convolve_modes,
    diagonal_kernel,
    gate,
    kept_in_float32,
    one_sided,
    parameter,
    prefill_modes,
    read_out,
    state_dtype,
    step_modes,
    timescales,
    to_numpy,
    with_gain,
)
from ssm_priors.ops.discretise import DISCRETISATIONS, Discrete
from ssm_priors.registry import INITS, MIXERS


@MIXERS.register("s4d")
class S4D(nn.Module):
    """Diagonal SSM, one per channel, as a long convolution; then GELU and a gated linear unit.

    Source: Gu et al. 2022, arXiv 2206.11893.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of S4D."""

        d_state: Annotated[int, Interval(ge=2, le=65_536), MultipleOf(2)] = 64
        """State size N, counting both of each conjugate pair."""
        init: str = "s4d-lin"
        """How the eigenvalues start. See: ssmp list inits"""
        discretisation: Literal["zoh", "bilinear"] = "zoh"
        dt_min: Annotated[float, Gt(0)] = 1e-3
        """Smallest initial timescale, in units of time a step."""
        dt_max: Annotated[float, Gt(0)] = 1e-1
        """Largest initial timescale; dt is log-uniform between the two."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.causal = causal
        self.discretisation = options.discretisation
        directions, modes = (1 if causal else 2), options.d_state // 2
        A = INITS[options.init](options.d_state, d_model, rng)
        dt = timescales(options, d_model, rng)
        C = complex_normal(rng, directions, d_model, modes, deviation=math.sqrt(0.5))  # unit variance
        self.log_A_real = parameter(np.log(-A.real))
        self.A_imag = parameter(A.imag)
        self.log_dt = parameter(np.log(dt))
        self.C = parameter(C)  # B is 1: only the product C B matters for a diagonal SSM
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        return gate(convolve_modes(u, lengths, *self._modes(), self.D, gelu=True), self.dropout, self.output)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), in float32, or float64 if the parameters are."""
        return diagonal_kernel(*self._modes(), length, self.C.dtype)

    def spectrum(self) -> Spectrum:
        """Eigenvalues, dt and weights as they stand, in float64."""
        with torch.no_grad():
            A_real, A_imag, dt = (part.cpu().numpy() for part in self._continuous())
        return Spectrum(A_real + 1j * A_imag, dt, to_numpy(self.C), self.discretisation)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, H, N/2), complex."""
        return torch.zeros(batch, *self.A_imag.shape, dtype=state_dtype(self.C.dtype), device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, H, N/2) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        weight, modes = self._modes()
        y, state = step_modes(u, state, weight[0], modes, self.D)
        return read_out(y, self.dropout, self.output), state

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many positions at once: u: (B, L, H), state: (B, H, N/2) -> y: (B, L, H), next state. Causal only.

        Raises:
            BadConfig: as `step`.
        """
        one_sided(self.causal)
        weight, modes = self._modes()
        y, state = prefill_modes(u, state, weight[0], modes, self.D)
        return read_out(y, self.dropout, self.output), state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> S4D:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def ssm_parameters(self) -> list[nn.Parameter]:
        """A and dt."""
        return [self.log_A_real, self.A_imag, self.log_dt]

    def _continuous(self) -> tuple[Tensor, Tensor, Tensor]:
        """A_real, A_imag: (H, N/2) and dt: (H,), float64; Re A < 0 by construction."""
        dt = bounded_dt(self.log_dt)
        return -bounded_decay(self.log_A_real, LEAST_DECAY / dt[:, None]), self.A_imag.double(), dt

    def _modes(self) -> tuple[Tensor, Discrete]:
        """C times the input gain as pairs (direction, H, N/2, 2), and the modes per step; float64."""
        modes = DISCRETISATIONS[self.discretisation](*self._continuous())
        return with_gain(self.C, modes), modes
