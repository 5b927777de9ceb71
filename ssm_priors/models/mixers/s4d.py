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
import torch.nn.functional as F
from annotated_types import Gt, Interval, MultipleOf
from torch import Tensor, nn

from ssm_priors.errors import BadConfig
from ssm_priors.models.padding import silence_padding
from ssm_priors.models.protocols import Spectrum
from ssm_priors.ops.discretise import DISCRETISATIONS, Discrete
from ssm_priors.ops.fftconv import fftconv
from ssm_priors.ops.vandermonde import vandermonde
from ssm_priors.priors.discretise import log_uniform_dt
from ssm_priors.registry import INITS, MIXERS

# Outside these bounds exp() of a parameter overflows, or |z| rounds to 1 in float32. No init comes near them; they hold
# a run that was pushed there (a learning rate far too large) inside the stable region, with finite numbers.
LOG_A_BOUNDS = (math.log(1e-6), math.log(1e6))
LOG_DT_BOUNDS = (math.log(1e-6), math.log(1e3))
LEAST_DECAY = 1e-7
"""1/step: the smallest decay rate whose |z| is below 1 in float32."""


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
        if options.dt_min > options.dt_max:
            raise BadConfig(f"model.mixer: dt_min {options.dt_min} is larger than dt_max {options.dt_max}")
        self.causal = causal
        self.discretisation = options.discretisation
        directions, modes = (1 if causal else 2), options.d_state // 2
        A = INITS[options.init](options.d_state, d_model, rng)
        dt = log_uniform_dt(d_model, options.dt_min, options.dt_max, rng)
        C = rng.standard_normal((directions, d_model, modes, 2)) * math.sqrt(0.5)  # complex, unit variance
        self.log_A_real = _parameter(np.log(-A.real))
        self.A_imag = _parameter(A.imag)
        self.log_dt = _parameter(np.log(dt))
        self.C = _parameter(C)  # B is 1: only the product C B matters for a diagonal SSM
        self.D = _parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        u = silence_padding(u, lengths)
        y = fftconv(u, self.kernel(u.shape[1]).to(_fft_dtype(u.dtype)))
        return self._read_out(y.to(u.dtype) + self.D * u)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), in float32, or float64 if the parameters are."""
        weight, modes = self._modes()
        return vandermonde(
            weight[..., 0],
            weight[..., 1],
            modes.log_z_real,
            modes.log_z_imag,
            length,
            _fft_dtype(self.C.dtype),
        )

    def spectrum(self) -> Spectrum:
        """Eigenvalues, dt and weights as they stand, in float64."""
        with torch.no_grad():
            A_real, A_imag, dt = (part.cpu().numpy() for part in self._continuous())
            weight = torch.view_as_complex(self.C.double().contiguous()).cpu().numpy()
        return Spectrum(A_real + 1j * A_imag, dt, weight, self.discretisation)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, H, N/2), complex."""
        dtype = torch.complex128 if self.C.dtype == torch.float64 else torch.complex64
        return torch.zeros(batch, *self.A_imag.shape, dtype=dtype, device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, H, N/2) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        if not self.causal:
            raise BadConfig("a two-sided model has no step form; set model.causal = true")
        weight, modes = self._modes()
        z = torch.polar(torch.exp(modes.log_z_real), modes.log_z_imag)
        state = (z * state + u.unsqueeze(-1)).to(state.dtype)
        y = 2 * (torch.view_as_complex(weight[0].contiguous()) * state).sum(-1).real
        return self._read_out(y.to(u.dtype) + self.D * u), state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> S4D:
        """`.half()` and `.bfloat16()` leave A and dt in float32: rounded, they would be another state space."""
        before = [parameter.detach().clone() for parameter in self.ssm_parameters()]
        super()._apply(fn, recurse)
        for parameter, kept in zip(self.ssm_parameters(), before, strict=True):
            if parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = kept.to(parameter.device)
        return self

    def ssm_parameters(self) -> list[nn.Parameter]:
        """A and dt."""
        return [self.log_A_real, self.A_imag, self.log_dt]

    def _read_out(self, y: Tensor) -> Tensor:
        """What follows the state space, the same in both forms."""
        return F.glu(self.output(self.dropout(F.gelu(y))), dim=-1)

    def _continuous(self) -> tuple[Tensor, Tensor, Tensor]:
        """A_real, A_imag: (H, N/2) and dt: (H,), float64; Re A < 0 by construction."""
        dt = torch.exp(self.log_dt.double().clamp(*LOG_DT_BOUNDS))
        decay = torch.exp(self.log_A_real.double().clamp(*LOG_A_BOUNDS))
        return -torch.maximum(decay, LEAST_DECAY / dt[:, None]), self.A_imag.double(), dt

    def _modes(self) -> tuple[Tensor, Discrete]:
        """C times the input gain as pairs (direction, H, N/2, 2), and the modes per step; float64."""
        modes = DISCRETISATIONS[self.discretisation](*self._continuous())
        c, d = self.C.double().unbind(-1)
        weight = [c * modes.gain_real - d * modes.gain_imag, c * modes.gain_imag + d * modes.gain_real]
        return torch.stack(weight, dim=-1), modes


def _parameter(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array)).float())


def _fft_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
