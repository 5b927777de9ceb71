"""What reads the backbone out: an answer a position (pretraining, tokens), or one an example, be it a pair or not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.models.padding import silence_padding


class PositionHead(nn.Module):
    """A linear answer at every position; carries the vectors that stand in for hidden inputs, and goes with them."""

    def __init__(self, d_model: int, outputs: int, stand_ins: int):
        super().__init__()
        self.output = nn.Linear(d_model, outputs)
        self.stand_ins = nn.Parameter(torch.randn(stand_ins, d_model) * 0.02)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H) -> (B, L, outputs)."""
        return self.output(u)


class PooledHead(nn.Module):
    """A linear answer from the mean over valid positions."""

    def __init__(self, d_model: int, outputs: int):
        super().__init__()
        self.output = nn.Linear(d_model, outputs)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H), (B,) -> (B, outputs)."""
        return self.output(mean_pool(u, lengths))


class PairHead(nn.Module):
    """An answer about two documents a and b, each read on its own: [a, b, a - b, a b] -> linear, GELU, linear.

    Source: the features of Mou et al. 2016, arXiv 1512.08422, as the public code of arXiv 2310.02980 uses them for AAN.
    """

    def __init__(self, d_model: int, outputs: int):
        super().__init__()
        self.pair = nn.Linear(4 * d_model, d_model)
        self.output = nn.Linear(d_model, outputs)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(2B, L, H), (2B,) -> (B, outputs); rows 2i and 2i + 1 are pair i."""
        pooled = mean_pool(u, lengths)
        a, b = pooled[0::2], pooled[1::2]
        return self.output(F.gelu(self.pair(torch.cat([a, b, a - b, a * b], dim=-1))))


Head = PositionHead | PooledHead | PairHead


def mean_pool(u: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the first `lengths` positions: (B, L, H), (B,) -> (B, H)."""
    return silence_padding(u, lengths).sum(1) / lengths[:, None]
