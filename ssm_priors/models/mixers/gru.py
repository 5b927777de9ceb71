"""GRU: the gated recurrent baseline, one- or two-sided.

    h_t = (1 - z_t) n_t + z_t h_{t-1},   n_t = tanh(W u_t + b + r_t (V h_{t-1} + c)),   r_t, z_t = sigmoid(..)

A two-sided layer runs a second GRU over each example's valid positions in reverse, so that padding comes last in either
direction and reaches no valid output.

Source: Cho et al. 2014, arXiv 1406.1078.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from ssm_priors.batch import valid_positions
from ssm_priors.errors import BadConfig
from ssm_priors.models.padding import silence_padding
from ssm_priors.registry import MIXERS


@MIXERS.register("gru")
class GRU(nn.Module):
    """Gated recurrent unit, the recurrent baseline; then a linear map from its hidden units to the channels.

    Source: Cho et al. 2014, arXiv 1406.1078.
    """

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the GRU."""

        d_hidden: Annotated[int, Ge(0)] = 0
        """Hidden units a direction; 0 means d_model."""

    def __init__(self, options: Config, *, d_model: int, causal: bool, dropout: float, rng: np.random.Generator):
        super().__init__()
        hidden = options.d_hidden or d_model
        self.rightward = nn.GRU(d_model, hidden, batch_first=True)
        self.leftward = None if causal else nn.GRU(d_model, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden if causal else 2 * hidden, d_model)

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) -> (B, L, H)."""
        u = silence_padding(u, lengths)
        hidden = _run(self.rightward, u)
        if self.leftward is not None:
            backward = reverse_valid(_run(self.leftward, reverse_valid(u, lengths)), lengths)
            hidden = torch.cat([hidden, backward], dim=-1)
        return self._read_out(hidden, u.dtype)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros: (B, hidden units)."""
        weight = next(self.rightward.parameters())
        return torch.zeros(batch, self.rightward.hidden_size, dtype=weight.dtype, device=weight.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u: (B, H), state: (B, hidden units) -> y: (B, H), next state. Causal only.

        Raises:
            BadConfig: the mixer is two-sided, so that the present output needs the future.
        """
        if self.leftward is not None:
            raise BadConfig("a two-sided model has no step form; set model.causal = true")
        state = _run(self.rightward, u[:, None], state)[:, 0]
        return self._read_out(state, u.dtype), state

    def _read_out(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        return self.output(self.dropout(hidden.to(dtype)))


def _run(gru: nn.GRU, u: Tensor, state: Tensor | None = None) -> Tensor:
    """u: (B, L, H), state before it: (B, hidden) or None for zeros -> hidden states (B, L, hidden).

    In the weights' own precision: the recurrence would gather the rounding of autocast from step to step.
    """
    with torch.autocast(u.device.type, enabled=False):
        hidden: Tensor = gru(u.to(next(gru.parameters()).dtype), None if state is None else state[None].contiguous())[0]
    return hidden


def reverse_valid(u: Tensor, lengths: Tensor) -> Tensor:
    """Each example's valid positions in reverse, its padding left where it is; its own inverse.

    Args:
        u: (B, L, H).
        lengths: (B,), valid positions from the left.

    Returns:
        (B, L, H).
    """
    position = torch.arange(u.shape[1], device=u.device)
    source = torch.where(valid_positions(lengths, u.shape[1]), lengths[:, None] - 1 - position, position)
    return u.gather(1, source[..., None].expand_as(u))
