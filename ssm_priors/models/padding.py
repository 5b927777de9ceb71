"""Right padding: how to silence it."""

from __future__ import annotations

from torch import Tensor

from ssm_priors.batch import valid_positions


def silence_padding(u: Tensor, lengths: Tensor) -> Tensor:
    """u: (B, L, H) with zeros after each length, whatever stood there (NaN included); u itself if nothing is padded."""
    if bool((lengths == u.shape[1]).all()):
        return u
    return u.masked_fill(~valid_positions(lengths, u.shape[1])[..., None], 0)
