"""What reads the backbone out: an answer a position (pretraining, tokens), or one an example, be it a pair or not."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.models.padding import silence_padding, valid_positions


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
    """An answer from the pooled valid positions: linear, or linear, ReLU, linear."""

    def __init__(self, d_model: int, outputs: int, pooling: str, kind: str):
        super().__init__()
        self.pool = POOLS[pooling]
        self.hidden = nn.Linear(d_model, d_model) if kind == "mlp" else None
        self.output = nn.Linear(d_model, outputs)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H), (B,) -> (B, outputs)."""
        pooled = self.pool(u, lengths)
        return self.output(pooled if self.hidden is None else F.relu(self.hidden(pooled)))


class PairHead(nn.Module):
    """An answer about two documents a and b, each read on its own: [a, b, a - b, a b] -> linear, GELU, linear.

    Source: the features of Mou et al. 2016, arXiv 1512.08422, as the public code of arXiv 2310.02980 uses them for AAN.
    """

    def __init__(self, d_model: int, outputs: int, pooling: str):
        super().__init__()
        self.pool = POOLS[pooling]
        self.pair = nn.Linear(4 * d_model, d_model)
        self.output = nn.Linear(d_model, outputs)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(2B, L, H), (2B,) -> (B, outputs); rows 2i and 2i + 1 are pair i."""
        pooled = self.pool(u, lengths)
        a, b = pooled[0::2], pooled[1::2]
        return self.output(F.gelu(self.pair(torch.cat([a, b, a - b, a * b], dim=-1))))


Head = PositionHead | PooledHead | PairHead


def mean_pool(u: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the first `lengths` positions: (B, L, H), (B,) -> (B, H)."""
    return silence_padding(u, lengths).sum(1) / lengths[:, None]


def max_pool(u: Tensor, lengths: Tensor) -> Tensor:
    """Largest value over the first `lengths` positions, channel by channel: (B, L, H), (B,) -> (B, H)."""
    return u.masked_fill(~valid_positions(lengths, u.shape[1])[..., None], -torch.inf).amax(1)


def last_pool(u: Tensor, lengths: Tensor) -> Tensor:
    """The last of the first `lengths` positions: (B, L, H), (B,) -> (B, H)."""
    return u[torch.arange(len(u), device=u.device), lengths - 1]


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": mean_pool, "max": max_pool, "last": last_pool}
