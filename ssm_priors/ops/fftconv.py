"""Long convolution by FFT, one- or two-sided, never circular.

    y[t] = sum_{s<=t} K0[t-s] u[s] + sum_{s>t} K1[s-t-1] u[s]

Both directions are one kernel on the circle: K0 at lags 0 .. L-1 and K1 at lags -1 .. -(L-1), which do not meet when
the circle has at least 2L - 1 points. The backward recomputes the spectra, so only u and the kernel are kept.
FFTs run in float32 or float64 whatever autocast says: half precision has no complex type.
"""

from __future__ import annotations

from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from ssm_priors.ops.precision import without_autocast


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
        points = next_fast_len(2 * length - 1, real=True)
        ctx.save_for_backward(u, kernel)
        ctx.points = points
        spectrum = _rfft(u, points).mul_(torch.fft.rfft(_on_circle(kernel, points)))
        return _irfft(spectrum, points, length)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        u, kernel = ctx.saved_tensors
        points, length = ctx.points, u.shape[1]
        grad_spectrum = _rfft(grad, points)
        grad_u = grad_kernel = None
        if ctx.needs_input_grad[1]:
            on_circle = torch.fft.irfft((_rfft(u, points).conj() * grad_spectrum).sum(0), points)
            grad_kernel = _off_circle(on_circle, kernel.shape[0], length)
        if ctx.needs_input_grad[0]:
            grad_u = _irfft(grad_spectrum.mul_(torch.fft.rfft(_on_circle(kernel, points)).conj()), points, length)
        return grad_u, grad_kernel


def _rfft(u: Tensor, points: int) -> Tensor:
    """(B, L, H) -> (B, H, points // 2 + 1)."""
    return torch.fft.rfft(u.transpose(1, 2).contiguous(), points)


def _irfft(spectrum: Tensor, points: int, length: int) -> Tensor:
    """(B, H, points // 2 + 1) -> (B, L, H), contiguous."""
    return torch.fft.irfft(spectrum, points)[..., :length].transpose(1, 2).contiguous()


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
