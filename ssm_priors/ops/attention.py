"""Softmax attention over valid positions, whole or within a window, and positions.

    y = softmax(q k^T / sqrt(d)) v

through torch's `scaled_dot_product_attention`, which shows no weights; `Weights` computes the same ones, some rows at a
time. Source: Vaswani et al. 2017, arXiv 1706.03762; rotary positions:
Su et al. 2021, arXiv 2104.09864; windows: Beltagy et al. 2020, arXiv 2004.05150.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


def local_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool, window: int, dropout: float = 0.0
) -> Tensor:
    """Attention in which a query sees only keys at most `window` steps away, in memory that grows with L times window.

    Queries are cut into blocks of `window`; each sees its own block and its neighbours (the left one only, if causal)
    through a mask of the block's own size.

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left, at least 1 each.
        causal: whether a query sees only keys up to itself.
        window: largest distance in steps, at least 1.
        dropout: probability of dropping an attention weight.

    Returns:
        (B, heads, L, d); what stands at padded queries is finite and of no meaning.

    Source: arXiv 2004.05150, section 3.1 (sliding window).
    """
    batch, _, length, _ = q.shape
    if window >= length - 1:  # no key is out of reach
        return attention(q, k, v, lengths, causal, dropout)
    rest = -length % window
    ahead = 0 if causal else window
    queries = F.pad(q, (0, 0, 0, rest)).unflatten(2, (-1, window))
    keys, values = (F.pad(x, (0, 0, window, rest + ahead)).unfold(2, 2 * window + ahead, window) for x in (k, v))
    y = F.scaled_dot_product_attention(
        _fold(queries),
        _fold(keys.transpose(-1, -2)),
        _fold(values.transpose(-1, -2)),
        attn_mask=_block_mask(lengths, queries.shape[2], window, causal),
        dropout_p=dropout,
    )
    return y.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _fold(blocks: Tensor) -> Tensor:
    """(B, heads, blocks, steps, d) -> (B blocks, heads, steps, d)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def _block_mask(lengths: Tensor, blocks: int, window: int, causal: bool) -> Tensor:
    """(B blocks, 1, window, keys of a block), True where a query sees a key; every query sees itself."""
    device = lengths.device
    block = torch.arange(blocks, device=device)[:, None, None] * window
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(-window, window if causal else 2 * window, device=device)
    band = (key - query <= 0 if causal else key - query <= window) & (query - key <= window)
    there = (block + key >= 0) & (block + key < lengths[:, None, None, None])
    # a padded query would see no key at all: softmax over nothing is NaN, and so is its gradient
    return ((band & there) | (key == query)).flatten(0, 1)[:, None]


def laplace_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, causal: bool, bias: Tensor, dropout: float = 0.0
) -> Tensor:
    """Attention whose weights do not compete: y = f(q k^T / keys + bias) v, f the Laplace function of Mega.

    f(x) = (1 + erf((x - m) / (s sqrt 2))) / 2 with m = sqrt(1/2) and s = sqrt(1/(4 pi)), which has the value and
    slope of a squared ReLU at x = m; `keys` is how many keys the query sees. Its memory grows with L squared.

    Args:
        q, k, v: (B, heads, L, d).
        lengths: (B,), valid positions from the left, at least 1 each.
        causal: whether a query sees only keys up to itself.
        bias: broadcasts to (B, heads, L, L).
        dropout: probability of dropping an attention weight.

    Returns:
        (B, heads, L, d).

    Source: Ma et al. 2023, arXiv 2209.10655 (Laplace attention function).
    """
    position = torch.arange(q.shape[2], device=q.device)
    visible = (position < lengths[:, None])[:, None, None, :]
    if causal:
        visible = visible & (position <= position[:, None])
    scores = q @ k.transpose(-1, -2) / visible.sum(-1, keepdim=True) + bias
    return F.dropout(laplace(scores) * visible, dropout) @ v


def laplace(scores: Tensor) -> Tensor:
    """(1 + erf((x - m) / (s sqrt 2))) / 2 with m = sqrt(1/2), s = sqrt(1/(4 pi)); source as `laplace_attention`."""
    return (1 + torch.erf((scores - math.sqrt(0.5)) * math.sqrt(2 * math.pi))) / 2


@dataclass(frozen=True, slots=True)
class Weights:
    """What an attention's weights are made of, as the mixer has them; no table of (L, L) until rows are asked for."""

    q: Tensor
    """(B, heads, L, d), turned by their positions where the mixer does that."""
    k: Tensor
    """(B, heads, L, d)"""
    v: Tensor
    """(B, heads, L, values): what the weights read."""
    lengths: Tensor
    """(B,), valid positions from the left."""
    causal: bool
    window: int = 0
    """Largest distance between a query and a key it sees; 0: no limit."""
    chunk: int = 0
    """Keys outside the query's own stretch of so many steps are not seen; 0: one stretch."""
    bias: tuple[Tensor, Tensor] | None = None
    """Laplace attention instead of softmax: two (L, d) whose product is added to the scores."""

    def example(self, position: int) -> Weights:
        """One example of the batch, as a batch of one."""
        only = slice(position, position + 1)
        return replace(self, q=self.q[only], k=self.k[only], v=self.v[only], lengths=self.lengths[only])

    def visible(self, start: int, stop: int) -> Tensor:
        """(B, 1, rows, L): the keys that the queries from `start` to `stop` may see; padding is none."""
        key = torch.arange(self.k.shape[2], device=self.k.device)
        query = key[start:stop, None]
        seen = (key < self.lengths[:, None])[:, None, None, :]
        if self.causal:
            seen = seen & (key <= query)
        if self.window:
            seen = seen & ((key - query).abs() <= self.window)
        if self.chunk:
            seen = seen & (key // self.chunk == query // self.chunk)
        return seen.expand(-1, -1, len(query), -1)

    def rows(self, start: int, stop: int) -> Tensor:
        """(B, heads, rows, L), float64: weights of the queries from `start` to `stop`; of no meaning at padded ones."""
        seen = self.visible(start, stop)
        scores = self.q[:, :, start:stop].double() @ self.k.double().transpose(-1, -2)
        if self.bias is None:
            scores = (scores / math.sqrt(self.q.shape[-1])).masked_fill(~seen, -math.inf)
            return torch.softmax(scores, dim=-1)
        of_query, of_key = self.bias
        bias = of_query[start:stop].double() @ of_key.double().T
        return laplace(scores / seen.sum(-1, keepdim=True).clamp(min=1) + bias) * seen


def sinusoid(length: int, channels: int, device: torch.device | None = None) -> Tensor:
    """Fixed positions: sin(t 10000^(-2i/H)) at channel 2i and the cosine at channel 2i + 1.

    Args:
        length: number of positions L.
        channels: H, odd ones too.

    Returns:
        (L, H), float64.

    Source: arXiv 1706.03762, section 3.5.
    """
    rate = 10_000.0 ** (-torch.arange(0, channels, 2, device=device, dtype=torch.float64) / channels)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, :channels]


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
