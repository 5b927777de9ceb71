"""S5: one diagonal state space with as many inputs and outputs as there are channels, run as a scan.

    x'(t) = A x(t) + B u(t),   y(t) = 2 Re(C x(t)) + D u(t),   A diagonal: HiPPO's normal part in each of J blocks

Every mode has its own timescale. Source: Smith, Warrington, Linderman 2023, arXiv 2208.04933.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval, MultipleOf
from torch import Tensor, nn

from ssm_priors.errors import BadConfig
from ssm_priors.models.protocols import Spectrum
from ssm_priors.models.statespace import (
    LEAST_DECAY,
    Shared,
    as_complex,
    bounded_decay,
    bounded_dt,
    complex_normal,
    kept_in_float32,
    one_sided,
    parameter,
    prefill_shared,
    read_out,
    recur,
    shared_spectrum,
    state_dtype,
    step_shared,
    timescales,
)
from ssm_priors.ops.discretise import DISCRETISATIONS
from ssm_priors.registry import INITS, MIXERS


@MIXERS.register("s5")
class S5(nn.Module):
    """Diagonal SSM with many inputs and outputs, as a scan; then GELU and a gated linear unit.

    Source: Smith, Warrington, Linderman 2023, arXiv 2208.04933.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of S5."""

        d_state: Annotated[int, Interval(ge=2), MultipleOf(2)] = 64
        """State size N of the whole layer, counting both of each conjugate pair."""
        blocks: Annotated[int, Ge(1)] = 1
        """Blocks J of the initial state matrix, each an init of size N / J."""
        init: str = "s4d-legs"
        """How the eigenvalues of a block start; s4d-legs is HiPPO's normal part. See: ssmp list inits"""
        discretisation: Literal["zoh", "bilinear"] = "zoh"
        dt_min: Annotated[float, Gt(0)] = 1e-3
        """Smallest initial timescale, in units of time a step."""
        dt_max: Annotated[float, Gt(0)] = 1e-1
        """Largest initial timescale; dt is log-uniform between the two, for every mode."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        size, blocks, directions = options.d_state, options.blocks, 1 if causal else 2
        if size % (2 * blocks):
            raise BadConfig(f"model.mixer: d_state {size} does not divide into {blocks} blocks of conjugate pairs")
        self.causal = causal
        self.discretisation = options.discretisation
        A = INITS[options.init](size // blocks, blocks, rng).ravel()
        self.log_A_real = parameter(np.log(-A.real))
        self.A_imag = parameter(A.imag)
        self.log_dt = parameter(np.log(timescales(options, len(A), rng)))
        # real normal matrices, seen in the eigenbasis of a skew-symmetric matrix, are complex normal
        self.B = parameter(complex_normal(rng, len(A), d_model, deviation=math.sqrt(0.5 / size)))
        self.C = parameter(complex_normal(rng, directions, d_model, len(A), deviation=math.sqrt(1 / size)))
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H); both directions include the present input, as in the paper."""
        return read_out(recur(u, lengths, self._per_step(), self.D, lag=0), self.dropout, self.output)

    def spectrum(self) -> Spectrum:
        """One row for the state that all channels share: eigenvalues, a dt for each, and the sizes of c_n b_n."""
        A, dt = self._continuous()
        return shared_spectrum(A, dt[None], as_complex(self.B), as_complex(self.C), self.discretisation)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, N/2), complex."""
        return torch.zeros(batch, len(self.A_imag), dtype=state_dtype(self.C.dtype), device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, N/2) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        y, state = step_shared(u, state, self._per_step(), self.D)
        return read_out(y, self.dropout, self.output), state

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many positions at once: u: (B, L, H), state: (B, N/2) -> y: (B, L, H), next state. Causal only.

        Raises:
            BadConfig: as `step`.
        """
        one_sided(self.causal)
        y, state = prefill_shared(u, state, self._per_step(), self.D)
        return read_out(y, self.dropout, self.output), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """A, dt and B, as in the paper's code."""
        return [self.log_A_real, self.A_imag, self.log_dt, self.B]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> S5:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _continuous(self) -> tuple[Tensor, Tensor]:
        """A: (N/2,), complex128, and dt: (N/2,), float64; Re A < 0 by construction."""
        dt = bounded_dt(self.log_dt)
        return torch.complex(-bounded_decay(self.log_A_real, LEAST_DECAY / dt), self.A_imag.double()), dt

    def _per_step(self) -> Shared:
        A, dt = self._continuous()
        modes = DISCRETISATIONS[self.discretisation](A.real[:, None], A.imag[:, None], dt)
        log_z, gain = torch.complex(modes.log_z_real, modes.log_z_imag), torch.complex(modes.gain_real, modes.gain_imag)
        return Shared(log_z[:, 0], gain * as_complex(self.B), 2 * as_complex(self.C))
