"""DSS: one set of eigenvalues that all channels share, each with its own timescale and weights, as a long convolution.

    K[h, l] = Re sum_n W[h, n] S[h, n] exp(dt_h A_n l)

    dss-exp        S = (exp(dt A) - 1) / A                               zero-order hold
    dss-softmax    S = (exp(dt A) - 1) / (A (exp(dt A P) - 1))           exp(dt A l) softmax-normalised over P lags

The N modes are not conjugate pairs: the real part is taken of each alone. Source: Gupta, Gu, Berant 2022,
arXiv 2203.14343.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from ssm_priors.models.protocols import Spectrum
from ssm_priors.models.statespace import (
    LEAST_DECAY,
    as_complex,
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
    with_gain,
)
from ssm_priors.ops.discretise import Discrete, zoh
from ssm_priors.registry import INITS, MIXERS

SOFTMAX_FLOOR = 1e-7
"""Keeps the softmax finite where exp(dt A P) comes back to 1; as the public code has it."""


@MIXERS.register("dss")
class DSS(nn.Module):
    """Diagonal SSM with eigenvalues shared by all channels, as a long convolution; then GELU and a gated linear unit.

    Source: Gupta, Gu, Berant 2022, arXiv 2203.14343.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of DSS."""

        d_state: Annotated[int, Ge(1)] = 64
        """State size N: complex modes, none the conjugate of another."""
        init: str = "dss-hippo-skew"
        """How the eigenvalues start: those of a real state of size 2N, one of each pair. See: ssmp list inits"""
        discretisation: Literal["dss-exp", "dss-softmax"] = "dss-exp"
        """How a mode is scaled."""
        softmax_length: Annotated[int, Ge(1)] = 1024
        """Lags P over which dss-softmax normalises; fixed, so that neither length nor padding changes a weight."""
        dt_min: Annotated[float, Gt(0)] = 1e-3
        """Smallest initial timescale, in units of time a step."""
        dt_max: Annotated[float, Gt(0)] = 1e-1
        """Largest initial timescale; dt is log-uniform between the two."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.causal = causal
        self.softmax_length = options.softmax_length if options.discretisation == "dss-softmax" else None
        A = INITS[options.init](2 * options.d_state, 1, rng)[0]
        self.log_A_real = parameter(np.log(-A.real))
        self.A_imag = parameter(A.imag)
        self.log_dt = parameter(np.log(timescales(options, d_model, rng)))
        self.W = parameter(complex_normal(rng, 1 if causal else 2, d_model, options.d_state, deviation=1.0))
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
        """Eigenvalues (the same in every row), dt and weights as they stand, in float64.

        Re(W x) is (W x + conj(W x)) / 2, so a mode is half of a conjugate pair with the weight W / 2. The softmax's
        denominator belongs to the weights: what remains of the scale is the zero-order hold.
        """
        with torch.no_grad():
            A_real, A_imag, dt = self._continuous()
            A = torch.complex(A_real, A_imag).cpu().numpy()
            return Spectrum(A, dt.cpu().numpy(), as_complex(self._weight()).cpu().numpy(), "zoh")

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
        """A and dt."""
        return [self.log_A_real, self.A_imag, self.log_dt]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DSS:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _continuous(self) -> tuple[Tensor, Tensor, Tensor]:
        """A_real, A_imag: (H, N) and dt: (H,), float64; Re A < 0 by construction."""
        dt = bounded_dt(self.log_dt)
        A_real = -bounded_decay(self.log_A_real, LEAST_DECAY / dt[:, None])
        return A_real, self.A_imag.double().expand_as(A_real), dt

    def _modes(self) -> tuple[Tensor, Discrete]:
        """W / 2 with its scale as pairs (direction, H, N, 2), and the modes per step; float64."""
        modes = zoh(*self._continuous())
        return with_gain(self._weight(), modes), modes

    def _weight(self) -> Tensor:
        """W / 2, over the softmax's denominator if there is one: (direction, H, N, 2), float64."""
        weight = self.W.double() / 2
        if self.softmax_length is None:
            return weight
        A_real, A_imag, dt = self._continuous()
        A = torch.complex(A_real, A_imag)
        below = A * (torch.exp(dt[:, None] * A * self.softmax_length) - 1)
        scale = A * below.conj() / (below.abs().square() + SOFTMAX_FLOOR)
        return torch.view_as_real(as_complex(weight) * scale)
