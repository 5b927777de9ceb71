"""LRU, the linear recurrent unit: one diagonal complex state that all channels write to and read from, as a scan.

    x_t = z x_{t-1} + gamma B u_t,   y_t = Re(C x_t) + D u_t,   z = exp(-exp(log_decay) + i angle)

gamma starts at sqrt(1 - |z|^2), so that the state has the size of its input however slow the mode; then it trains.
Source: Orvieto et al. 2023, arXiv 2303.06349.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval, Le
from torch import Tensor, nn

from ssm_priors.models.protocols import Spectrum
from ssm_priors.models.statespace import (
    LOG_A_BOUNDS,
    Shared,
    as_complex,
    complex_normal,
    kept_in_float32,
    one_sided,
    parameter,
    per_step,
    prefill_shared,
    read_out,
    recur,
    shared_spectrum,
    state_dtype,
    step_shared,
)
from ssm_priors.priors import lru
from ssm_priors.registry import MIXERS


@MIXERS.register("lru")
class LRU(nn.Module):
    """Linear recurrent unit: one diagonal state for all channels, as a scan; then GELU and a gated linear unit.

    Source: Orvieto et al. 2023, arXiv 2303.06349.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the LRU."""

        d_state: Annotated[int, Ge(1)] = 64
        """State size N: complex modes, none the conjugate of another."""
        r_min: Annotated[float, Interval(ge=0, lt=1)] = 0.0
        """Smallest initial |z|."""
        r_max: Annotated[float, Interval(gt=0, le=1)] = 0.999
        """Largest initial |z|; z is uniform on the ring between the two."""
        max_phase: Annotated[float, Gt(0), Le(2 * math.pi)] = 2 * math.pi
        """Largest initial angle of z, in radians a step; uniform from 0."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.causal = causal
        modes, directions = options.d_state, 1 if causal else 2
        log_z = lru.ring(modes, options.r_min, options.r_max, options.max_phase, rng)
        self.log_decay = parameter(np.log(-log_z.real))
        self.angle = parameter(log_z.imag)
        self.log_gamma = parameter(np.log(lru.gamma(log_z)))
        self.B = parameter(complex_normal(rng, modes, d_model, deviation=math.sqrt(0.5 / d_model)))
        self.C = parameter(complex_normal(rng, directions, d_model, modes, deviation=math.sqrt(1 / modes)))
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H); the second direction starts one step away, at lag 1."""
        return read_out(recur(u, lengths, self._per_step(), self.D, lag=1), self.dropout, self.output)

    def spectrum(self) -> Spectrum:
        """One row for the state that all channels share: log z per step (dt = 1) and the sizes of c_n b_n.

        Re(C x) is half of the sum over the modes and their conjugates, so weights are halved.
        """
        log_z, B, C = self._per_step()
        return shared_spectrum(log_z, torch.ones(1, dtype=torch.float64), B, C / 2, "none")

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, N), complex."""
        return torch.zeros(batch, len(self.angle), dtype=state_dtype(self.C.dtype), device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, N) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        y, state = step_shared(u, state, self._per_step(), self.D)
        return read_out(y, self.dropout, self.output), state

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many positions at once: u: (B, L, H), state: (B, N) -> y: (B, L, H), next state. Causal only.

        Raises:
            BadConfig: as `step`.
        """
        one_sided(self.causal)
        y, state = prefill_shared(u, state, self._per_step(), self.D)
        return read_out(y, self.dropout, self.output), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """log z, and gamma and B as in the paper's code."""
        return [self.log_decay, self.angle, self.log_gamma, self.B]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LRU:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _per_step(self) -> Shared:
        gain = torch.exp(self.log_gamma.double().clamp(*LOG_A_BOUNDS))[:, None]
        return Shared(per_step(self.log_decay, self.angle), gain * as_complex(self.B), as_complex(self.C))
