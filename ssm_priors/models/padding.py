"""Right padding: which positions are valid, and how to silence the rest."""

from __future__ import annotations

import torch
from torch import Tensor


def valid_positions(lengths: Tensor, length: int) -> Tensor:
    """(B,) -> (B, L), True at the first `lengths` positions."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def silence_padding(u: Tensor, lengths: Tensor) -> Tensor:
    """u: (B, L, H) with zeros after each length, whatever stood there (NaN included); u itself if nothing is padded."""
    if bool((lengths == u.shape[1]).all()):
        return u
    return u.masked_fill(~valid_positions(lengths, u.shape[1])[..., None], 0)
