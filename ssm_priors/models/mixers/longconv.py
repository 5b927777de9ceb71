"""Long convolution: a kernel of free numbers for every channel, with or without an exponential decay; gated if wanted.

    K[lag] = w[lag] exp(-rate lag)  for lag < max_length, 0 beyond
    y = u * K + D u,  then GELU and a gated linear unit;     gated:  y = W (a o (K + D)(b o c)),  [a, b, c] = V u

An input more than max_length - 1 steps away is not seen, so any sequence goes through, longer ones with that reach.

Source: Fu et al. 2023, arXiv 2302.06646; gating and decay: Poli et al. 2023, arXiv 2302.10866.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from ssm_priors.models.padding import silence_padding
from ssm_priors.models.statespace import (
    LEAST_DECAY,
    bounded_decay,
    convolve,
    gate,
    kept_in_float32,
    kernel_dtype,
    one_sided,
    parameter,
    read_out,
)
from ssm_priors.ops.fftconv import fir_step
from ssm_priors.registry import MIXERS

SHORTEST_TIMESCALE = 4.0
"""Steps: of the channel that forgets first, at the start."""


@MIXERS.register("longconv")
class LongConv(nn.Module):
    """A free kernel for every channel up to a maximum length, with optional decay and Hyena-style gating.

    Source: Fu et al. 2023, arXiv 2302.06646; gating and decay: Poli et al. 2023, arXiv 2302.10866.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the long convolution."""

        max_length: Annotated[int, Ge(1)] = 1024
        """Reach of the kernel, in steps: inputs farther away are not seen. Each channel has as many parameters."""
        decay: bool = True
        """Multiply the kernel by an exponential decay, one learned rate a channel."""
        gated: bool = False
        """Two gates that depend on the input around the convolution (Hyena, order 2, without its short filter)."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.causal, self.gated = causal, options.gated
        reach = options.max_length
        rate = 1 / np.geomspace(min(SHORTEST_TIMESCALE, reach), reach, d_model)
        weights = rng.standard_normal((1 if causal else 2, d_model, reach))
        # the kernel's expected energy is 1, whatever its length and decay
        self.weights = parameter(weights * (np.sqrt(-np.expm1(-2 * rate))[:, None] if options.decay else reach**-0.5))
        self.log_rate = parameter(np.log(rate)) if options.decay else None
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.input = nn.Linear(d_model, 3 * d_model) if self.gated else None
        self.output = nn.Linear(d_model, d_model if self.gated else 2 * d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        outer, inner = self._gates(silence_padding(u, lengths))
        y = convolve(inner, lengths, self.kernel, self.D, gelu=outer is None)
        return gate(y, self.dropout, self.output) if outer is None else self._gated(outer, y)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), 0 from max_length on; float32 or float64 as the weights."""
        kernel = self.weights[..., :length].to(kernel_dtype(self.weights.dtype))
        if self.log_rate is not None:
            lag = torch.arange(kernel.shape[-1], device=kernel.device)
            rate = bounded_decay(self.log_rate, LEAST_DECAY)[:, None]  # float64
            kernel = kernel * torch.exp(-rate * lag).to(kernel.dtype)
        return F.pad(kernel, (0, length - kernel.shape[-1]))

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: the last max_length inputs of the convolution (B, max_length, H)."""
        _, channels, reach = self.weights.shape
        dtype = kernel_dtype(self.weights.dtype)
        return torch.zeros(batch, reach, channels, dtype=dtype, device=self.weights.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, max_length, H) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        outer, inner = self._gates(u)
        y, state = fir_step(inner, state, self.kernel(state.shape[1])[0])
        y = y.to(u.dtype) + self.D * inner
        return read_out(y, self.dropout, self.output) if outer is None else self._gated(outer, y), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """The decay rates, if there are any."""
        return [] if self.log_rate is None else [self.log_rate]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LongConv:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _gates(self, u: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gate behind the convolution, if there is one, and what goes into it; each (..., H)."""
        if self.input is None:
            return None, u
        outer, inner, value = self.input(u).chunk(3, dim=-1)
        return outer, inner * value

    def _gated(self, outer: Tensor, y: Tensor) -> Tensor:
        return self.output(self.dropout(outer * y))
