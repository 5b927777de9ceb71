"""SGConv: a convolution kernel put together from few numbers at many scales, each twice as long and weaker.

    K = [w_0, a stretch(w_1, 1), a^2 stretch(w_2, 2), a^3 stretch(w_3, 4), ...] / norm

w_i: as many numbers at every scale; stretch(w, s): linear interpolation to s times the length; a: one decay a channel,
between 0 and 1; norm: the kernel's own length at the start, a constant that is saved with the weights.

Source: Li et al. 2022, arXiv 2210.09298; in this form: Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from ssm_priors.models.statespace import convolve, gate, kept_in_float32, kernel_dtype, one_sided, parameter, read_out
from ssm_priors.ops.fftconv import fir_step
from ssm_priors.registry import MIXERS


@MIXERS.register("sgconv")
class SGConv(nn.Module):
    """Structured global convolution: multi-scale decaying kernels; then GELU and a gated linear unit.

    Source: Li et al. 2022, arXiv 2210.09298.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of SGConv."""

        segment: Annotated[int, Ge(1)] = 8
        """Learned numbers a scale and channel."""
        max_length: Annotated[int, Ge(1)] = 1024
        """Steps that the kernel reaches at least: segment 2^k for the smallest k that covers them, and 0 beyond."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.causal = causal
        scales = 1 + max(0, math.ceil(math.log2(options.max_length / options.segment)))
        directions = 1 if causal else 2
        segments = rng.standard_normal((scales, directions, d_model, options.segment)) / options.segment
        decay = rng.uniform(0.5, 1, (directions, d_model))
        self.segments = parameter(segments)
        self.decay_logit = parameter(np.log(decay / (1 - decay)))
        self.D = parameter(rng.standard_normal(d_model))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, 2 * d_model)
        self.norm: Tensor
        self.register_buffer("norm", self._multiscale().detach().norm(dim=-1, keepdim=True))

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        return gate(convolve(u, lengths, self.kernel, self.D, gelu=True), self.dropout, self.output)

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), 0 beyond the last scale, float32 or float64 as the weights."""
        kernel = self._multiscale()[..., :length]
        return F.pad(kernel / self.norm.to(kernel.dtype), (0, length - kernel.shape[-1]))

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: as many inputs as the kernel is long, (B, reach, H)."""
        scales, _, channels, segment = self.segments.shape
        reach = segment << (scales - 1)
        dtype = kernel_dtype(self.segments.dtype)
        return torch.zeros(batch, reach, channels, dtype=dtype, device=self.segments.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, reach, H) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        one_sided(self.causal)
        y, state = fir_step(u, state, self.kernel(state.shape[1])[0])
        return read_out(y.to(u.dtype) + self.D * u, self.dropout, self.output), state

    def ssm_parameters(self) -> list[nn.Parameter]:
        """The decay from scale to scale."""
        return [self.decay_logit]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SGConv:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)

    def _multiscale(self) -> Tensor:
        """The whole kernel, before it is divided by its norm: (direction, H, reach)."""
        dtype = kernel_dtype(self.segments.dtype)
        decay = torch.sigmoid(self.decay_logit.double())[..., None]
        return torch.cat(
            [
                stretch(segment.to(dtype), 1 << max(0, scale - 1)) * (decay**scale).to(dtype)
                for scale, segment in enumerate(self.segments)
            ],
            dim=-1,
        )


def stretch(segment: Tensor, factor: int) -> Tensor:
    """Linear interpolation to `factor` times the length, constant outside the first and last midpoint.

    Args:
        segment: (direction, H, N), float32 or float64.

    Returns:
        (direction, H, N factor).
    """
    return F.interpolate(segment, size=segment.shape[-1] * factor, mode="linear", align_corners=False)
