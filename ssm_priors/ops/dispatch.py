"""The operations of state-space mixers, each handed to some backend's kernels or to torch's (see `ops.backend`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.ops import fused
from ssm_priors.ops.backend import runs_fused, runs_triton
from ssm_priors.ops.fftconv import fftconv
from ssm_priors.ops.vandermonde import vandermonde


def convolve(u: Tensor, kernel: Tensor, D: Tensor, gelu: bool = False) -> Tensor:
    """u * kernel + D u, and GELU over it if wanted.

    Args:
        u: (B, L, H), any floating dtype.
        kernel: (direction, H, L), float32 or float64, direction 1 (causal) or 2 (both sides); lags on the last but one
            axis in memory, as `diagonal_kernel` makes it, are read without a copy.
        D: (H,).
        gelu: whether the output goes through GELU.

    Returns:
        (B, L, H), in u's dtype (D's, if that is wider).
    """
    if u.dtype in (torch.float32, torch.bfloat16) and runs_fused(u, kernel.dtype, u.shape[1]):
        y = fused.convolve(u.float(), kernel.transpose(1, 2), D.float(), gelu)
        return y.to(torch.promote_types(u.dtype, D.dtype))
    y = fftconv(u, kernel).to(u.dtype) + D * u
    return F.gelu(y) if gelu else y


def diagonal_kernel(
    C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int, dtype: torch.dtype
) -> Tensor:
    """2 Re sum_n C_n z_n^l: (direction, H, L). Arguments as `ops.vandermonde.vandermonde`."""
    if runs_triton(C_real, dtype):
        from ssm_priors.ops.triton import launch

        return launch.vandermonde(C_real, C_imag, log_z_real, log_z_imag, length)
    if runs_fused(C_real, dtype, length):
        return fused.vandermonde(C_real, C_imag, log_z_real, log_z_imag, length).transpose(1, 2)
    return vandermonde(C_real, C_imag, log_z_real, log_z_imag, length, dtype)


def convolve_modes(
    u: Tensor, C: tuple[Tensor, Tensor], log_z: tuple[Tensor, Tensor], D: Tensor, dtype: torch.dtype, gelu: bool = False
) -> Tensor:
    """`convolve` with the kernel of a diagonal SSM, which the chunked form on a GPU never makes.

    Args:
        u: (B, L, H), any floating dtype.
        C: real and imaginary part, (direction, H, N/2), float64, gain included.
        log_z: real and imaginary part, (H, N/2), float64, per step.
        D: (H,).
        dtype: of the kernel where it is made.
        gelu: whether the output goes through GELU.

    Returns:
        (B, L, H), in u's dtype (D's, if that is wider).
    """
    if u.dtype in (torch.float32, torch.bfloat16) and runs_triton(u, dtype):
        from ssm_priors.ops.triton import launch

        y = launch.convolve(u, C, log_z, D).to(torch.promote_types(u.dtype, D.dtype))
        return F.gelu(y) if gelu else y
    kernel = diagonal_kernel(*C, *log_z, u.shape[1], dtype)
    return convolve(u, kernel.to(torch.promote_types(u.dtype, torch.float32)), D, gelu)


def gate(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """a sigmoid(b), [a, b] = W y + bias: a linear layer and its gate.

    Args:
        y: (..., K), any floating dtype.
        weight: W: (2H, K).
        bias: (2H,).

    Returns:
        (..., H), in y's dtype, or autocast's.
    """
    if _gates_fused(y, weight, bias):
        return fused.gate(y, weight, bias)
    return F.glu(F.linear(y, weight, bias), dim=-1)


def _gates_fused(*tensors: Tensor) -> bool:
    """Autocast asks for products in half precision, which are torch's."""
    if torch.is_autocast_enabled("cpu") or any(tensor.dtype != torch.float32 for tensor in tensors):
        return False
    return runs_fused(tensors[0], torch.float32, 1)
