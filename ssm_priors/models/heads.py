"""What reads the backbone out: one answer a position (pretraining), or one an example (the task)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssm_priors.models.padding import silence_padding


class PositionHead(nn.Module):
    """A linear answer at every position; carries the vector that stands in for hidden inputs, and goes with it."""

    def __init__(self, d_model: int, outputs: int):
        super().__init__()
        self.output = nn.Linear(d_model, outputs)
        self.stand_in = nn.Parameter(torch.randn(d_model) * 0.02)

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


def mean_pool(u: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the first `lengths` positions: (B, L, H), (B,) -> (B, H)."""
    return silence_padding(u, lengths).sum(1) / lengths[:, None]
