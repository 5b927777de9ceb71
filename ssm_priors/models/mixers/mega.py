"""Mega: a moving average with several decay rates a channel, then gated attention by one head.

    x_t = q x_{t-1} + p beta u_t,   m_t = sum_n gamma_n x_{n,t} / sqrt(N) + omega u_t,   q = 1 - p sigmoid(alpha)
    h = silu(W m + U (r o attention(queries(m), keys(m), values(u)))),   y = f o (h - u),   f, r gates of m

The published block adds its own residual u; here the backbone's residual is that sum. p = sigmoid(delta), so q lies
between 0 and 1 whatever the parameters are.

Source: Ma et al. 2023, arXiv 2209.10655.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval, MultipleOf
from torch import Tensor, nn

from ssm_priors.models.padding import silence_padding
from ssm_priors.models.statespace import kept_in_float32, kernel_dtype, parameter
from ssm_priors.ops import dispatch
from ssm_priors.ops.attention import Weights, attention, laplace_attention, rotate
from ssm_priors.registry import MIXERS

LOGIT_BOUNDS = (-8.0, 8.0)
"""Keep a pushed q inside (0, 1) as float32 sees it: the smallest decay rate they allow is 1.1e-7 a step."""
INIT_STD = 0.02


@MIXERS.register("mega")
class Mega(nn.Module):
    """Damped multi-dimensional moving average and gated single-head attention, whole or in chunks.

    Source: Ma et al. 2023, arXiv 2209.10655.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of Mega."""

        d_state: Annotated[int, Ge(1)] = 16
        """Decay rates N of each channel's moving average, all real."""
        d_query: Annotated[int, Interval(ge=2), MultipleOf(2)] = 64
        """Width of queries and keys; even, because positions turn pairs."""
        d_value: Annotated[int, Ge(0)] = 0
        """Width of the values; 0 means 2 d_model."""
        attention: Literal["softmax", "laplace"] = "softmax"
        """softmax over the keys, or each weight on its own: Laplace's function of a score divided by the key count."""
        chunk: Annotated[int, Ge(0)] = 0
        """Attention within chunks of so many steps that do not overlap; 0: over the whole sequence."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        self.d_query, self.d_value = options.d_query, options.d_value or 2 * d_model
        self.causal, self.chunk, self.laplace = causal, options.chunk, options.attention == "laplace"
        self.average = MovingAverage(options.d_state, d_model, 1 if causal else 2, rng)
        self.value = _linear(d_model, self.d_value)
        self.mix = _linear(d_model, 2 * d_model + self.d_query + self.d_value)
        self.attended = _linear(self.d_value, d_model)
        self.scale = parameter(rng.standard_normal((2, self.d_query)) * INIT_STD)  # of queries, of keys
        self.shift = parameter(np.zeros((2, self.d_query)))
        self.position = parameter(rng.standard_normal((2, self.d_query)) * INIT_STD)
        self.dropout = nn.Dropout(dropout)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        u = silence_padding(u, lengths)
        gate, shared, reset, direct = self._mixed(u)
        queries, keys = self._queries_and_keys(shared)
        read = self._attend(queries, keys, F.silu(self.value(u)), lengths)
        answer = self.dropout(F.silu(direct + self.attended(read * F.silu(reset))))
        return torch.sigmoid(gate) * (answer - u)

    def attention_weights(self, u: Tensor, lengths: Tensor) -> Weights:
        """u: (B, L, H), lengths: (B,) -> what `forward` attends with, without dropout; one head."""
        u = silence_padding(u, lengths)
        q, k = self._queries_and_keys(self._mixed(u)[1])
        length, chunk = u.shape[1], min(self.chunk or u.shape[1], u.shape[1])
        place = torch.arange(length, device=u.device) % chunk
        of_query, of_key = (rows[0, 0, place] for rows in self._positions(q[:1, None, :chunk]))
        v = F.silu(self.value(u))[:, None]
        if self.laplace:
            return Weights(q[:, None], k[:, None], v, lengths, self.causal, chunk=chunk, bias=(of_query, of_key))
        q, k = self._with_bias(q, k, of_query, of_key)
        return Weights(q[:, None], k[:, None], v, lengths, self.causal, chunk=chunk)

    def kernel(self, length: int) -> Tensor:
        """Impulse response of the moving average without omega: (direction, H, L); the attention is no convolution."""
        return self.average.kernel(length)

    def ssm_parameters(self) -> list[nn.Parameter]:
        """What makes the decay rates."""
        return self.average.ssm_parameters()

    def _mixed(self, u: Tensor) -> tuple[Tensor, ...]:
        """Gate, what queries and keys share, reset and the direct part: (B, L, ...) each."""
        widths = [u.shape[-1], self.d_query, self.d_value, u.shape[-1]]
        parts: tuple[Tensor, ...] = self.mix(self.dropout(self.average(u))).split(widths, dim=-1)
        return parts

    def _queries_and_keys(self, shared: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys = (F.silu(shared)[..., None, :] * self.scale + self.shift).unbind(-2)
        return queries, keys

    def _positions(self, q: Tensor) -> list[Tensor]:
        """Of queries and of keys, as many and as wide as q: (B, 1, L, queries)."""
        return [rotate(row.to(q.dtype).expand_as(q[:1])).expand_as(q) for row in self.position[:, None, None, None]]

    def _with_bias(self, q: Tensor, k: Tensor, of_query: Tensor, of_key: Tensor) -> tuple[Tensor, Tensor]:
        """The bias is a product of rotated vectors, so it rides along as more channels and no (L, L) table is made.

        The scores will be divided by sqrt(2 d_query), where q k^T wants sqrt(d_query) and the bias nothing.
        """
        wide = torch.cat([q * math.sqrt(2), of_query.expand_as(q) * math.sqrt(2 * self.d_query)], dim=-1)
        return wide, torch.cat([k, of_key.expand_as(k)], dim=-1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        """q, k: (B, L, queries), v: (B, L, values) -> (B, L, values), each chunk as a sequence of its own."""
        batch, length, _ = q.shape
        chunk = min(self.chunk or length, length)
        q, k, v = (F.pad(x, (0, 0, 0, -length % chunk)).unflatten(1, (-1, chunk)).flatten(0, 1) for x in (q, k, v))
        starts = torch.arange(0, length, chunk, device=lengths.device)
        # a chunk of nothing but padding keeps one key, so that its softmax, and its gradient, is finite
        inside = (lengths[:, None] - starts).clamp(1, chunk).flatten()
        y = self._one_head(q[:, None], k[:, None], v[:, None], inside)[:, 0]
        return y.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]

    def _one_head(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        """All (B, 1, L, d) -> (B, 1, L, values)."""
        turned = self._positions(q)
        dropout = self.dropout.p if self.training else 0.0
        if self.laplace:
            bias = turned[0][:1] @ turned[1][:1].transpose(-1, -2)
            return laplace_attention(q, k, v, lengths, self.causal, bias, dropout)
        return attention(*self._with_bias(q, k, *turned), v, lengths, self.causal, dropout)


class MovingAverage(nn.Module):
    """Damped exponential moving averages, N a channel and direction, and the direct weight omega.

    Both published directions read the present input; `kernel` books it once, at lag 0 of the forward one.
    """

    def __init__(self, d_state: int, d_model: int, directions: int, rng: np.random.Generator):
        super().__init__()
        shape = (directions, d_model, d_state)
        self.delta = parameter(rng.standard_normal(shape) * 0.2)
        self.alpha = parameter(rng.standard_normal(shape) * 0.2)
        self.beta = parameter(rng.standard_normal(shape) * INIT_STD + (-1.0) ** np.arange(d_state))
        self.gamma = parameter(rng.standard_normal(shape))
        self.omega = parameter(rng.standard_normal(d_model))

    def forward(self, u: Tensor) -> Tensor:
        """(B, L, H) -> (B, L, H)."""
        return dispatch.convolve(u, self.kernel(u.shape[1]).to(kernel_dtype(u.dtype)), self.omega)

    def kernel(self, length: int) -> Tensor:
        """(direction, H, L) without omega, in float32, or float64 if the parameters are."""
        dtype = kernel_dtype(self.gamma.dtype)
        weight, log_q = self.modes()
        present = weight.sum(-1)[1:].sum(0)  # of the backward direction
        weight = torch.cat([weight[:1], weight[1:] * torch.exp(log_q[1:])])  # it then starts one step away
        kernel = _geometric(weight.flatten(0, 1), log_q.flatten(0, 1), length, dtype).unflatten(0, weight.shape[:2])
        start = F.pad(present[:, None], (0, length - 1)).to(dtype)
        return kernel + F.pad(start[None], (0, 0, 0, 0, 0, len(kernel) - 1))

    def modes(self) -> tuple[Tensor, Tensor]:
        """p beta gamma / sqrt(N) and log q, each (direction, H, N), float64; K[lag] = sum_n weight q^lag."""
        p = torch.sigmoid(self.delta.double().clamp(*LOGIT_BOUNDS))
        damping = torch.sigmoid(self.alpha.double().clamp(*LOGIT_BOUNDS))
        weight = p * self.beta.double() * self.gamma.double() / math.sqrt(p.shape[-1])
        return weight, torch.log1p(-p * damping)

    def ssm_parameters(self) -> list[nn.Parameter]:
        """delta and alpha."""
        return [self.delta, self.alpha]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MovingAverage:
        with kept_in_float32(self.ssm_parameters):
            return super()._apply(fn, recurse)


def _geometric(weight: Tensor, log_q: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """sum_n weight_n q_n^lag: (channels, N), (channels, N) -> (channels, L); half of a complex sum that is doubled."""
    zero = torch.zeros_like(log_q)
    return dispatch.diagonal_kernel(weight[None] / 2, zero[None], log_q, zero, length, dtype)[0]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=INIT_STD)
    nn.init.zeros_(layer.bias)
    return layer
