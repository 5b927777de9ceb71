"""A layer of GPT-NeoX: attention and feed-forward beside each other, both reading the block's input.

    u = u + attention(g1 n + b1) + feed_forward(g2 n + b2),   n the block's normalised input

The first `rotary` share of a head's channels turns with position, channel i with channel i + half; the rest has none.
Matrices start normal with variance 2 / (5 H), biases at 0. The block's own norm has a gain and a shift too, before both
branches; they begin at 1 and 0, where the layer is exactly that of the public language models (Pythia), whose weights
`--pretrain hf:PATH` takes.
Source: Black et al. 2022, arXiv 2204.06745; Biderman et al. 2023 (Pythia), arXiv 2304.01373; the start: Nguyen and
Salazar 2019, arXiv 1910.05895.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval
from torch import Tensor, nn

from ssm_priors.errors import BadConfig
from ssm_priors.models.padding import silence_padding
from ssm_priors.ops.attention import Weights, attention
from ssm_priors.registry import MIXERS

BASE = 10_000.0
"""The slowest pair of channels turns by about 1 / BASE a step."""


@MIXERS.register("gpt-neox")
class GptNeox(nn.Module):
    """Attention with its feed-forward beside it: the layer of Pythia, whose published weights it can take.

    Source: Black et al. 2022, arXiv 2204.06745; Biderman et al. 2023, arXiv 2304.01373.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the layer; leave model.expand at 0, for the layer has a feed-forward of its own."""

        heads: Annotated[int, Ge(1)] = 4
        """Attention heads; must divide d_model."""
        inner: Annotated[int, Ge(1)] = 4
        """Width of the feed-forward, in multiples of d_model."""
        rotary: Annotated[float, Interval(gt=0, le=1)] = 0.25
        """Share of a head's channels that turn with position."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        if d_model % options.heads:
            raise BadConfig(f"model.d_model {d_model} does not divide into {options.heads} heads")
        self.heads, self.causal, self.attention_dropout = options.heads, causal, dropout
        self.turning = int(d_model // options.heads * options.rotary)
        if self.turning < 2 or self.turning % 2:
            raise BadConfig(
                f"rotary positions turn pairs: {self.turning} of a head's {d_model // options.heads} channels; "
                "change model.d_model, model.mixer.heads or model.mixer.rotary"
            )
        self.attention_norm, self.feed_forward_norm = Affine(d_model), Affine(d_model)
        self.input, self.output = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, options.inner * d_model), nn.Linear(options.inner * d_model, d_model)
        for matrix in (self.input, self.output, self.up, self.down):
            nn.init.normal_(matrix.weight, std=(2 / (5 * d_model)) ** 0.5)
            nn.init.zeros_(matrix.bias)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        u = silence_padding(u, lengths)  # a padded value of NaN would reach every output through a weight of 0
        q, k, v = self._heads(u)
        y = attention(q, k, v, lengths, self.causal, self.attention_dropout if self.training else 0.0)
        return self.output(y.transpose(1, 2).flatten(-2)) + self.down(F.gelu(self.up(self.feed_forward_norm(u))))

    def attention_weights(self, u: Tensor, lengths: Tensor) -> Weights:
        """u: (B, L, H), lengths: (B,) -> what `forward` attends with, without dropout."""
        return Weights(*self._heads(silence_padding(u, lengths)), lengths, self.causal)

    def _heads(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, heads, L, d)."""
        heads = self.input(self.attention_norm(u)).unflatten(-1, (self.heads, 3, -1))
        q, k, v = heads.permute(3, 0, 2, 1, 4)
        return turned(q, self.turning), turned(k, self.turning), v


class Affine(nn.Module):
    """g n + b, channel by channel: the second half of a layer norm."""

    def __init__(self, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, n: Tensor) -> Tensor:
        """(B, L, H) -> (B, L, H)."""
        return n * self.weight + self.bias


def turned(x: Tensor, turning: int) -> Tensor:
    """The first `turning` channels turned by position: pair (i, i + turning / 2) by position * BASE^(-2i / turning).

    Args:
        x: (B, heads, L, d).
        turning: even.
    """
    pair = torch.arange(0, turning, 2, dtype=torch.float64) / turning
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * BASE**-pair
    cosine, sine = (part.to(x) for part in (angle.cos(), angle.sin()))
    first, second, rest = x.tensor_split((turning // 2, turning), dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)
