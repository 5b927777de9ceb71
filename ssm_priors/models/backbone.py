"""The stack every mixer is compared in: residual blocks with an optional feed-forward.

    pre-norm     u = u + dropout(f(norm(u))),   and a norm after the last block
    post-norm    u = norm(u + dropout(f(u)))

for f a mixer, then a feed-forward if it has a width; each has its own norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.batch import valid_positions
from ssm_priors.models.protocols import HasPrefill, HasStep


class Backbone(nn.Module):
    """(B, L, H), (B,) -> (B, L, H)."""

    def __init__(
        self,
        make_mixer: Callable[[int], nn.Module],
        *,
        d_model: int,
        layers: int,
        width: int,
        norm: str,
        dropout: float,
        norm_position: str = "pre",
        tied_dropout: bool = False,
    ):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(
                make_mixer(layer),
                d_model=d_model,
                width=width,
                norm=norm,
                dropout=dropout,
                norm_position=norm_position,
                tied_dropout=tied_dropout,
            )
            for layer in range(layers)
        )
        self.norm = NORMS[norm](d_model) if norm_position == "pre" else None

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """What the last block leaves, normalised."""
        for block in self.blocks:
            u = block(u, lengths)
        return u if self.norm is None else self.norm(u, lengths)


class Block(nn.Module):
    """One mixer and its optional feed-forward, each with its own norm and residual."""

    def __init__(
        self,
        mixer: nn.Module,
        *,
        d_model: int,
        width: int,
        norm: str,
        dropout: float,
        norm_position: str = "pre",
        tied_dropout: bool = False,
    ):
        super().__init__()
        self.is_post_norm = norm_position == "post"
        self.mixer_norm = NORMS[norm](d_model)
        self.mixer = mixer
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = FeedForward(d_model, width, norm, dropout) if width else None
        if tied_dropout:
            tie_dropouts(self)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, H), (B,) -> (B, L, H)."""
        mixed = self.mixer(self.mixer_input(u, lengths), lengths)
        return self._feed_forward(self._leave(u, mixed, self.mixer_norm, lengths), lengths)

    def mixer_input(self, u: Tensor, lengths: Tensor) -> Tensor:
        """What its mixer reads of what the block is given."""
        return self._enter(u, self.mixer_norm, lengths)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: (B, H), state -> (B, H), next state. For mixers that have a step form."""
        full = torch.ones(len(u), dtype=torch.long, device=u.device)
        u = u[:, None]
        mixed, state = cast(HasStep, self.mixer).step(self.mixer_input(u, full)[:, 0], state)
        return self._feed_forward(self._leave(u, mixed[:, None], self.mixer_norm, full), full)[:, 0], state

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Many positions at once: (B, L, H), state -> (B, L, H), next state. For mixers that have it."""
        full = torch.full((len(u),), u.shape[1], device=u.device)
        mixed, state = cast(HasPrefill, self.mixer).prefill(self.mixer_input(u, full), state)
        return self._feed_forward(self._leave(u, mixed, self.mixer_norm, full), full), state

    def _feed_forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        if self.feed_forward is None:
            return u
        norm = self.feed_forward.norm
        return self._leave(u, self.feed_forward(self._enter(u, norm, lengths)), norm, lengths)

    def _enter(self, u: Tensor, norm: nn.Module, lengths: Tensor) -> Tensor:
        """What a mixer or a feed-forward is given."""
        return u if self.is_post_norm else norm(u, lengths)

    def _leave(self, u: Tensor, change: Tensor, norm: nn.Module, lengths: Tensor) -> Tensor:
        """The residual sum."""
        u = u + self.dropout(change)
        return norm(u, lengths) if self.is_post_norm else u


class FeedForward(nn.Module):
    """Linear, GELU, dropout, linear; and the norm that the block puts before it or after its residual sum."""

    def __init__(self, d_model: int, width: int, norm: str, dropout: float):
        super().__init__()
        self.norm = NORMS[norm](d_model)
        self.up = nn.Linear(d_model, width)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(width, d_model)

    def forward(self, u: Tensor) -> Tensor:
        """(B, L, H) -> (B, L, H)."""
        return self.down(self.dropout(F.gelu(self.up(u))))


class TiedDropout(nn.Dropout):
    """Drops whole channels of an example, at all its positions."""

    def forward(self, u: Tensor) -> Tensor:
        """(B, L, channels) -> the same."""
        if not self.training or self.p == 0:
            return u
        return u * F.dropout(torch.ones_like(u[:, :1]), self.p)


def tie_dropouts(module: nn.Module) -> None:
    """Exchange every dropout inside a module, a mixer's own included, for a tied one of the same probability."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, TiedDropout(child.p))


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
