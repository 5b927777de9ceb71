"""The stack every mixer is compared in: pre-norm residual blocks, optional feed-forward, final norm.

u = u + dropout(mixer(norm(u)));   u = u + dropout(feed_forward(norm(u)))   if expand > 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.batch import valid_positions
from ssm_priors.models.protocols import HasStep


class Backbone(nn.Module):
    """(B, L, H), (B,) -> (B, L, H)."""

    def __init__(
        self,
        make_mixer: Callable[[int], nn.Module],
        *,
        d_model: int,
        layers: int,
        expand: int,
        norm: str,
        dropout: float,
    ):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(make_mixer(layer), d_model=d_model, expand=expand, norm=norm, dropout=dropout)
            for layer in range(layers)
        )
        self.norm = NORMS[norm](d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """What the last block leaves, normalised."""
        for block in self.blocks:
            u = block(u, lengths)
        return self.norm(u, lengths)


class Block(nn.Module):
    """One mixer and its optional feed-forward, each with its own norm and residual."""

    def __init__(self, mixer: nn.Module, *, d_model: int, expand: int, norm: str, dropout: float):
        super().__init__()
        self.mixer_norm = NORMS[norm](d_model)
        self.mixer = mixer
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = FeedForward(d_model, expand, norm, dropout) if expand else None

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H), (B,) -> (B, L, H)."""
        u = u + self.dropout(self.mixer(self.mixer_norm(u, lengths), lengths))
        return self._feed_forward(u, lengths)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: (B, H), state -> (B, H), next state. For mixers that have a step form."""
        full = torch.ones(len(u), dtype=torch.long, device=u.device)
        mixed, state = cast(HasStep, self.mixer).step(self.mixer_norm(u[:, None], full)[:, 0], state)
        return self._feed_forward((u + self.dropout(mixed))[:, None], full)[:, 0], state

    def _feed_forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        return u if self.feed_forward is None else u + self.dropout(self.feed_forward(u, lengths))


class FeedForward(nn.Module):
    """Norm, linear, GELU, dropout, linear."""

    def __init__(self, d_model: int, expand: int, norm: str, dropout: float):
        super().__init__()
        self.norm = NORMS[norm](d_model)
        self.up = nn.Linear(d_model, expand * d_model)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(expand * d_model, d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H), (B,) -> (B, L, H)."""
        return self.down(self.dropout(F.gelu(self.up(self.norm(u, lengths)))))


class LayerNorm(nn.LayerNorm):
    """Over the channels of each position; lengths do not matter."""

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]  # lengths are part of ours
        """(B, L, H), (B,) -> (B, L, H)."""
        return super().forward(u)


class BatchNorm(nn.BatchNorm1d):
    """Over all valid positions of the batch: what stands in the padding enters no statistic."""

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]  # lengths are part of ours
        """(B, L, H), (B,) -> (B, L, H), zero in the padding."""
        valid = valid_positions(lengths, u.shape[1])
        normed = u.new_zeros(u.shape)
        normed[valid] = super().forward(u[valid])
        return normed


NORMS = {"layer": LayerNorm, "batch": BatchNorm}
