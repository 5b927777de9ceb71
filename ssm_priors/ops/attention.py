"""Softmax attention over valid positions, and rotary positions.

    y = softmax(q k^T / sqrt(d)) v

through torch's `scaled_dot_product_attention`. Source: Vaswani et al. 2017, arXiv 1706.03762; rotary positions:
Su et al. 2021, arXiv 2104.09864.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool, dropout: float = 0.0) -> Tensor:
    """Attention in which padding is never a key.

    A causal query at a valid position sees only valid keys already, since padding stands to the right; so a mask is
    built only for two-sided attention over a padded batch.

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left, at least 1 each.
        causal: whether a query sees only keys up to itself.
        dropout: probability of dropping an attention weight.

    Returns:
        (B, heads, L, d); what stands at padded queries is finite and of no meaning.
    """
    length = q.shape[2]
    mask = None
    if not causal and bool((lengths < length).any()):
        mask = (torch.arange(length, device=q.device) < lengths[:, None])[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout)


def rotate(x: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions: channel pairs (2i, 2i + 1) at position t turned by the angle t base^(-2i/d).

    Args:
        x: (B, heads, L, d), d even.

    Returns:
        As x. Scores between rotated queries and keys depend on their distance only.

    Source: arXiv 2104.09864, equation 34.
    """
    length, d = x.shape[-2:]
    rate = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float64) / d)
    angle = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (L, d/2)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
