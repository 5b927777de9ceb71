"""Multi-head attention, full, causal or within a window, with rotary positions.

Source: Vaswani et al. 2017, arXiv 1706.03762. The feed-forward half of a Transformer block is the backbone's `expand`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from torch import Tensor, nn

from ssm_priors.errors import BadConfig
from ssm_priors.models.padding import silence_padding
from ssm_priors.ops.attention import Weights, attention, local_attention, rotate
from ssm_priors.registry import MIXERS


@MIXERS.register("transformer")
class Transformer(nn.Module):
    """Multi-head softmax attention, full or local, with rotary positions; feed-forward comes from model.expand.

    Source: Vaswani et al. 2017, arXiv 1706.03762; rotary: Su et al. 2021, arXiv 2104.09864; windows: Beltagy et al.
    2020, arXiv 2004.05150.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the Transformer's attention."""

        heads: Annotated[int, Ge(1)] = 4
        """Attention heads; must divide d_model."""
        rotary: bool = True
        """Turn queries and keys by their position. Off: positions come from model.positions, or not at all."""
        window: Annotated[int, Ge(0)] = 0
        """Local attention: the largest distance, in steps, between a query and a key it sees; 0: no limit."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        if d_model % options.heads:
            raise BadConfig(f"model.d_model {d_model} does not divide into {options.heads} heads")
        if options.rotary and (d_model // options.heads) % 2:
            raise BadConfig(f"rotary positions turn pairs: {d_model // options.heads} channels a head is odd")
        self.heads, self.rotary, self.window = options.heads, options.rotary, options.window
        self.causal = causal
        self.attention_dropout = dropout
        self.input = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        q, k, v = self._heads(u, lengths)
        dropout = self.attention_dropout if self.training else 0.0
        if self.window:
            y = local_attention(q, k, v, lengths, self.causal, self.window, dropout)
        else:
            y = attention(q, k, v, lengths, self.causal, dropout)
        return self.output(y.transpose(1, 2).flatten(-2))

    def attention_weights(self, u: Tensor, lengths: Tensor) -> Weights:
        """u: (B, L, H), lengths: (B,) -> what `forward` attends with, without dropout."""
        return Weights(*self._heads(u, lengths), lengths, self.causal, window=self.window)

    def _heads(self, u: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, heads, L, d)."""
        u = silence_padding(u, lengths)  # a padded value of NaN would reach every output through a weight of 0
        q, k, v = self.input(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return (rotate(q), rotate(k), v) if self.rotary else (q, k, v)
