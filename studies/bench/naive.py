"""The layer as one writes it first: what the benchmark compares with, and nothing else uses.

    K = 2 Re sum_n C_n exp(dt A_n l)   through a tensor (H, N/2, L)
    y = irfft(rfft(u, 2L) rfft(K, 2L)) + D u   on (B, H, L)
    output = a sigmoid(b),   [a, b] = W GELU(y) + bias   as a convolution of width 1

Source of the formulas: Gu et al. 2022, arXiv 2206.11893.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NaiveLayer(nn.Module):
    """A causal S4D layer with the zero-order hold, channels first.

    Args:
        channels: H.
        d_state: N, counting both of each conjugate pair.
    """

    def __init__(self, channels: int, d_state: int):
        super().__init__()
        modes = d_state // 2
        self.log_dt = nn.Parameter(torch.rand(channels) * math.log(100) + math.log(1e-3))
        self.log_A_real = nn.Parameter(torch.full((channels, modes), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes, dtype=torch.float32).repeat(channels, 1))
        self.C = nn.Parameter(torch.randn(channels, modes, 2))
        self.D = nn.Parameter(torch.randn(channels))
        self.output = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, u: Tensor) -> Tensor:
        """u: (B, H, L) -> (B, H, L)."""
        length = u.shape[-1]
        dt, A = torch.exp(self.log_dt)[:, None], torch.complex(-torch.exp(self.log_A_real), self.A_imag)
        C = torch.view_as_complex(self.C) * (torch.exp(dt * A) - 1) / A
        powers = torch.exp((dt * A).unsqueeze(-1) * torch.arange(length, device=u.device))
        kernel = 2 * torch.einsum("hn,hnl->hl", C, powers).real
        product = torch.fft.rfft(u.float(), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(product, n=2 * length)[..., :length] + self.D[:, None] * u
        return F.glu(self.output(F.gelu(y)), dim=1)


class NaiveClassifier(nn.Module):
    """Embedding, pre-norm residual layers, final norm, mean, head: the shape of this package's models."""

    def __init__(self, channels: int, d_state: int, layers: int, classes: int):
        super().__init__()
        self.embedding = nn.Linear(1, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(layers))
        self.layers = nn.ModuleList(NaiveLayer(channels, d_state) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (B, L, 1) -> (B, classes)."""
        u = self.embedding(inputs).transpose(1, 2)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            u = u + layer(norm(u.transpose(1, 2)).transpose(1, 2))
        return self.head(self.norm(u.transpose(1, 2)).mean(1))
