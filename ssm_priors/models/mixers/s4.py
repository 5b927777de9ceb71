"""S4: a state space for every channel whose state matrix is HiPPO's, diagonal plus low rank, as a long convolution.

    x'(t) = A x(t) + B u(t),   y(t) = 2 Re(C x(t)) + D u(t),   A = diag(a) - P P*,   bilinear in time

With Re a < 0, A + A* is negative definite whatever P is: no P can make the state grow. a, P and B belong to `n_ssm`
state spaces that channels share in turn; C and dt are each channel's own.

Source: Gu, Goel, Re 2022, arXiv 2111.00396; one P for both factors: Goel et al. 2022, arXiv 2202.09729.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval, MultipleOf
from torch import Tensor, nn

from ssm_priors.errors import BadConfig
from ssm_priors.models.statespace import (
    LEAST_DECAY,
    as_complex,
    bounded_decay,
    bounded_dt,
    complex_normal,
    convolve,
    gate,
    kept_in_float32,
    kernel_dtype,
    one_sided,
    pairs,
    parameter,
    read_out,
    state_dtype,
    timescales,
)
from ssm_priors.ops.cauchy import dplr_kernel, dplr_step
from ssm_priors.priors.hippo import dplr
from ssm_priors.registry import MIXERS

LEAST_START = 1e-3
"""1/unit of time: where FouT's normal part, whose decay rate is 0, starts; as the public code has it."""


@MIXERS.register("s4")
class S4(nn.Module):
    """HiPPO state space, diagonal plus low rank, as a long convolution; then GELU and a gated linear unit.

    Source: Gu, Goel, Re 2022, arXiv 2111.00396.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of S4."""

        d_state: Annotated[int, Interval(ge=2), MultipleOf(2)] = 64
        """State size N, counting both of each conjugate pair."""
        hippo: Literal["legs", "fout"] = "legs"
        """The HiPPO family that A, P and B start from: scaled Legendre or truncated Fourier."""
        n_ssm: Annotated[int, Ge(0)] = 1
        """State spaces (A, P, B) that the channels share in turn; must divide d_model. 0: one for every channel."""
        dt_min: Annotated[float, Gt(0)] = 1e-3
        """Smallest initial timescale, in units of time a step."""
        dt_max: Annotated[float, Gt(0)] = 1e-1
        """Largest initial timescale; dt is log-uniform between the two."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        copies = options.n_ssm or d_model
        if d_model % copies:
            raise BadConfig(f"model.mixer: n_ssm {copies} does not divide model.d_model {d_model}")
        self.causal = causal
        start = dplr(options.hippo, options.d_state)
        self.log_A_real = parameter(np.tile(np.log(np.maximum(-start.eigenvalues.real, LEAST_START)), (copies, 1)))
        self.A_imag = parameter(np.tile(start.eigenvalues.imag, (copies, 1)))
        self.P = parameter(np.tile(pairs(start.P[0]), (copies, 1, 1)))
        self.B = parameter(np.tile(pairs(start.B), (copies, 1, 1)))
        self.log_dt = parameter(np.log(timescales(options, d_model, rng)))
        directions, modes = 1 if causal else 2, options.d_state // 2
        self.C = parameter(complex_normal(rng, directions, d_model, modes, deviation=math.sqrt(0.5)))
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        return gate(convolve(u, lengths, self.kernel, self.D, gelu=True), self.dropout, self.output)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), in float32, or float64 if the parameters are."""
        system, dtype = self._system(), kernel_dtype(self.C.dtype)
        return dplr_kernel(system.A, system.P, system.B, as_complex(self.C), system.dt, length, dtype)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, H, N/2), complex, in the eigenbasis of A's normal part."""
        shape = self.C.shape[1:3]
        return torch.zeros(batch, *shape, dtype=state_dtype(self.C.dtype), device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, H, N/2) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        state = dplr_step(state, u, *self._system()).to(state.dtype)
        y = 2 * (as_complex(self.C)[0] * state).sum(-1).real
        return read_out(y.to(u.dtype) + self.D * u, self.dropout, self.output), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """A with its low-rank part, B and dt, as in the paper's code."""
        return [self.log_A_real, self.A_imag, self.P, self.B, self.log_dt]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> S4:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _system(self) -> System:
        """Channel h takes the state space h mod n_ssm; Re a < 0 by construction."""
        dt = bounded_dt(self.log_dt)
        turns = len(dt) // len(self.A_imag)
        decay = bounded_decay(self.log_A_real.repeat(turns, 1), LEAST_DECAY / dt[:, None])
        A = torch.complex(-decay, self.A_imag.double().repeat(turns, 1))
        return System(A, as_complex(self.P).repeat(turns, 1), as_complex(self.B).repeat(turns, 1), dt)


class System(NamedTuple):
    """Every channel's state space, in complex128; A without its low-rank part."""

    A: Tensor
    """(H, N/2), per unit of time."""
    P: Tensor
    """(H, N/2)"""
    B: Tensor
    """(H, N/2)"""
    dt: Tensor
    """(H,), float64, units of time a step."""
