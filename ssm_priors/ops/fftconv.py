"""Long convolution by FFT, one- or two-sided, never circular.

    y[t] = sum_{s<=t} K0[t-s] u[s] + sum_{s>t} K1[s-t-1] u[s]

Both directions are one kernel on the circle: K0 at lags 0 .. L-1 and K1 at lags -1 .. -(L-1), which do not meet when
the circle has at least 2L - 1 points. Rows are transformed in blocks that stay in cache, so no spectrum of the whole
batch exists; the backward recomputes them (one FFT in six, where keeping them would hold twice u), so only u and the
kernel are kept. FFTs run in float32 or float64 whatever autocast says: half precision has no complex type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ssm_priors.ops.precision import without_autocast

BLOCK = 1 << 19
"""Numbers of a padded block: 2 MB in float32, so that a block, its spectrum and its product stay in the last cache."""


def fftconv(u: Tensor, kernel: Tensor) -> Tensor:
    """Convolve every channel with its own kernel.

    Args:
        u: (B, L, H), any floating dtype.
        kernel: (direction, H, L), float32 or float64, direction 1 (causal) or 2 (both sides).

    Returns:
        (B, L, H), in the kernel's dtype.
    """
    y: Tensor = _FFTConv.apply(u.to(kernel.dtype), kernel)
    return y


def fast_length(least: int) -> int:
    """The smallest 2^a 3^b 5^c that is at least `least`: other lengths cost the FFT several times as much."""
    odd = [3**b * 5**c for b in range(12) for c in range(8) if 3**b * 5**c < 2 * least]
    return min(base << max(0, (-(-least // base) - 1).bit_length()) for base in odd)


def fir_step(u: Tensor, state: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a convolution whose kernel ends, with its last inputs as the state.

    Args:
        u: (B, H), the present input.
        state: (B, R, H), the R inputs before it, oldest first.
        kernel: (H, R), lags 0 .. R-1.

    Returns:
        y: (B, H) and the next state, in the state's dtype.
    """
    state = torch.cat([state[:, 1:], u[:, None].to(state.dtype)], dim=1)
    with torch.autocast(u.device.type, enabled=False):
        return torch.einsum("brh,hr->bh", state, kernel.to(state.dtype).flip(-1)), state


class _FFTConv(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, u: Tensor, kernel: Tensor) -> Tensor:
        length = u.shape[1]
        points = fast_length(2 * length - 1)
        ctx.save_for_backward(u, kernel)
        ctx.points = points
        spectrum = torch.fft.rfft(_on_circle(kernel, points))
        y = torch.empty_like(u, memory_format=torch.contiguous_format)
        for rows, channels in _blocks(u, points):
            product = _rfft(u[rows, :, channels], points).mul_(spectrum[channels])
            y[rows, :, channels] = _irfft(product, points, length)
        return y

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        u, kernel = ctx.saved_tensors
        points, length = ctx.points, u.shape[1]
        wants_u, wants_kernel = ctx.needs_input_grad
        grad_u = torch.empty_like(u, memory_format=torch.contiguous_format) if wants_u else None
        mirrored = torch.fft.rfft(_on_circle(kernel, points)).conj_physical()
        correlation = torch.zeros_like(mirrored)
        for rows, channels in _blocks(u, points):
            grad_spectrum = _rfft(grad[rows, :, channels], points)
            if wants_kernel:
                spectrum = _rfft(u[rows, :, channels], points).conj_physical_()
                correlation[channels] += spectrum.mul_(grad_spectrum).sum(0)
            if grad_u is not None:
                grad_u[rows, :, channels] = _irfft(grad_spectrum.mul_(mirrored[channels]), points, length)
        if not wants_kernel:
            return grad_u, None
        return grad_u, _off_circle(torch.fft.irfft(correlation, points), kernel.shape[0], length)


def _blocks(u: Tensor, points: int) -> Iterator[tuple[slice, slice]]:
    """Rows of the batch and channels that are transformed together: as many as the cache holds; on a GPU, all."""
    batch, _, channels = u.shape
    room = max(1, BLOCK // points) if u.device.type == "cpu" else max(1, batch * channels)
    width = max(1, min(channels, room))
    height = max(1, room // width)
    for first in range(0, channels, width):
        for row in range(0, batch, height):
            yield slice(row, row + height), slice(first, first + width)


def _rfft(u: Tensor, points: int) -> Tensor:
    """(B, L, H) -> (B, H, points // 2 + 1); the padding transposes on its way."""
    return torch.fft.rfft(u.transpose(1, 2), points)


def _irfft(spectrum: Tensor, points: int, length: int) -> Tensor:
    """(B, H, points // 2 + 1) -> (B, L, H), a view."""
    return torch.fft.irfft(spectrum, points)[..., :length].transpose(1, 2)


def _on_circle(kernel: Tensor, points: int) -> Tensor:
    """(direction, H, L) -> (H, points)."""
    direction, channels, length = kernel.shape
    circle = kernel.new_zeros(channels, points)
    circle[:, :length] = kernel[0]
    if direction == 2 and length > 1:
        circle[:, points - length + 1 :] = kernel[1, :, : length - 1].flip(-1)
    return circle


def _off_circle(circle: Tensor, direction: int, length: int) -> Tensor:
    """The adjoint of `_on_circle`: (H, points) -> (direction, H, L)."""
    kernel = circle.new_zeros(direction, circle.shape[0], length)
    kernel[0] = circle[:, :length]
    if direction == 2 and length > 1:
        kernel[1, :, : length - 1] = circle[:, circle.shape[1] - length + 1 :].flip(-1)
    return kernel
