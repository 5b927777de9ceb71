"""From a task's inputs to (B, L, H): a table for tokens, a linear map for continuous features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.ops.attention import sinusoid


class Embedding(nn.Module):
    """Inputs -> channels, with hidden positions replaced by learned vectors.

    For continuous inputs this is the same family of maps as "zero the value and append a mask channel": W 0 + w + b is
    one vector too. So tokens and features share one mechanism, and a hidden value cannot leak through any weight.
    """

    def __init__(self, spec: TaskSpec, d_model: int, positions: str):
        super().__init__()
        tokens = spec.kind == "token"
        self.values = nn.Embedding(spec.vocabulary, d_model) if tokens else nn.Linear(spec.features, d_model)
        self.positions = nn.Parameter(torch.randn(spec.length, d_model) * 0.02) if positions == "learned" else None
        self.sinusoidal = positions == "sinusoidal"

    def forward(self, inputs: Tensor, hidden: Tensor | None = None, stand_ins: Tensor | None = None) -> Tensor:
        """Embed.

        Args:
            inputs: (B, L) ids or (B, L, features).
            hidden: (B, L), k where the k-th stand-in is seen instead of the input (True is 1), 0 where it is seen.
            stand_ins: (K, H).

        Returns:
            (B, L, H).

        Raises:
            BadData: learned positions do not reach this length.
        """
        u = self.values(inputs)
        if hidden is not None and stand_ins is not None:
            u = torch.where(hidden[..., None] > 0, F.embedding((hidden.long() - 1).clamp(min=0), stand_ins), u)
        if self.sinusoidal:
            u = u + sinusoid(u.shape[1], u.shape[2], u.device).to(u.dtype)
        if self.positions is None:
            return u
        if u.shape[1] > len(self.positions):
            raise BadData(f"{u.shape[1]} positions were given, but the model learned only {len(self.positions)}")
        return u + self.positions[: u.shape[1]]
