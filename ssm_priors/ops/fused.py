"""The compiled kernels (`native/`), each one pass over (B, L, H) that torch would make in many.

    y = act(u * K + D u), act GELU or nothing;   K[h, l] = 2 Re sum_n C_n z_n^l;   a sigmoid(b), [a, b] = W y + bias

A library without torch's or Python's headers, called through ctypes and registered as torch operators, so that
autograd and `torch.compile` see them. It is compiled twice, for x86-64-v4 (AVX-512, 16 float lanes) and x86-64-v3 (8);
the better of those that the processor runs is loaded. Installing builds both where it finds a compiler. Float32 on the
CPU only.

From any number of threads come the same bits: what threads share is written by one of them, and sums over the batch are
cut by its shape, not by the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

AVX2 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
OBJECTS = {
    "x86-64-v4": AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": AVX2,
}
"""What an object is compiled for, the better first -> what the processor must have, in the words of /proc/cpuinfo."""

LONGEST = 1 << 24
"""Lags up to which an FFT is indexed with 32 bits."""


@functools.cache
def load() -> tuple[ctypes.CDLL | None, str]:
    """The best object that this processor runs, and which it is; or None, and what is lacking."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None, f"the compiled kernels are for Linux on x86-64, not {platform.system()} on {platform.machine()}"
    flags = _processor_flags()
    fitting = [level for level, needed in OBJECTS.items() if needed <= flags]
    if not fitting:
        return None, "the compiled kernels need AVX2 and FMA, which this processor lacks"
    built = [level for level in fitting if _path(level).exists()]
    if not built:
        return None, "this installation has no compiled kernels: no C++ compiler was found, or it failed"
    try:
        library = _declared(ctypes.CDLL(str(_path(built[0]))))
    except OSError as error:  # such as another OpenMP than the compiler's
        return None, f"the compiled kernels do not load: {error}"
    if library.ssmp_source().decode() != _digest():
        return None, f"{_path(built[0]).name} was made from other sources than those beside it; install again"
    return library, built[0]


def _path(level: str) -> Path:
    return Path(__file__).with_name(f"_fused_{level.rpartition('-')[2]}.so")


def _digest() -> str:
    """Of the sources, as setup.py computes it."""
    files = sorted(Path(__file__).with_name("native").glob("*.[ch]pp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _processor_flags() -> set[str]:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.ssmp_source.restype = ctypes.c_char_p
    library.ssmp_convolve.argtypes = [pointer] * 5 + [size] * 3 + [number] * 3
    library.ssmp_convolve_backward.argtypes = [pointer] * 8 + [size] * 3 + [number] * 3
    library.ssmp_vandermonde.argtypes = [pointer] * 5 + [size] * 4 + [number]
    library.ssmp_vandermonde_backward.argtypes = [pointer] * 9 + [size] * 4 + [number]
    library.ssmp_gate.argtypes = [pointer] * 5 + [size] * 3 + [number]
    library.ssmp_gate_backward.argtypes = [pointer] * 7 + [size] * 3 + [number]
    return library


def _call(name: str, tensors: Sequence[Tensor | None], *numbers: int) -> None:
    library, lacking = load()
    if library is None:
        raise RuntimeError(f"ssm_priors::{name} was called, but {lacking}")
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    if getattr(library, f"ssmp_{name}")(*pointers, *numbers, torch.get_num_threads()):
        raise MemoryError(f"ssm_priors::{name}: no memory for the work space of a thread")


def _check(dtype: torch.dtype, shapes: dict[Tensor, tuple[int, ...]]) -> None:
    """What the kernels take for granted about memory; raises TypeError."""
    for tensor, shape in shapes.items():
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
            raise TypeError(
                f"{tensor.dtype} of shape {tuple(tensor.shape)}, strides {tensor.stride()} was given; "
                f"contiguous {dtype} of shape {shape} was expected"
            )


# -- convolution


def convolve(u: Tensor, kernel: Tensor, skip: Tensor, gelu: bool) -> Tensor:
    """act(u * K + D u), one- or two-sided.

    Args:
        u: (B, L, H), float32.
        kernel: (direction, L, H), float32, direction 1 (causal) or 2 (both sides, the second from one step away).
        skip: D: (H,), float32.
        gelu: whether act is GELU; else it is nothing.

    Returns:
        (B, L, H), float32.
    """
    learns = torch.is_grad_enabled() and (u.requires_grad or kernel.requires_grad or skip.requires_grad)
    y: Tensor = _convolve(u.contiguous(), kernel.contiguous(), skip.contiguous(), gelu, gelu and learns)[0]
    return y


@torch.library.custom_op("ssm_priors::convolve", mutates_args=(), device_types="cpu")
def _convolve(u: Tensor, kernel: Tensor, skip: Tensor, gelu: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """y, and what stands before the GELU if it is to be kept for the backward, else nothing."""
    batch, length, channels = u.shape
    shapes = {u: (batch, length, channels), kernel: (len(kernel), length, channels), skip: (channels,)}
    _check(torch.float32, shapes)
    y, before = torch.empty_like(u), torch.empty_like(u) if keep else u.new_empty(0)
    if u.numel():
        _call("convolve", [u, kernel, skip, y, before if keep else None], *u.shape, len(kernel), gelu)
    return y, before


@_convolve.register_fake
def _(u: Tensor, kernel: Tensor, skip: Tensor, gelu: bool, keep: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(u) if keep else u.new_empty(0)


@torch.library.custom_op("ssm_priors::convolve_backward", mutates_args=(), device_types="cpu")
def _convolve_backward(
    grad: Tensor, u: Tensor, before: Tensor, kernel: Tensor, skip: Tensor, gelu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _, length, channels = whole = tuple(u.shape)
    shapes = {u: whole, grad: whole, kernel: (len(kernel), length, channels), skip: (channels,)}
    _check(torch.float32, shapes | ({before: whole} if gelu else {}))
    gradients = torch.empty_like(u), torch.zeros_like(kernel), torch.zeros_like(skip)
    if u.numel():
        tensors = [grad, u, before if gelu else None, kernel, skip, *gradients]
        _call("convolve_backward", tensors, *u.shape, len(kernel), gelu)
    return gradients


@_convolve_backward.register_fake
def _(
    grad: Tensor, u: Tensor, before: Tensor, kernel: Tensor, skip: Tensor, gelu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(kernel), torch.empty_like(skip)


def _keep_for_convolve(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    u, kernel, skip, ctx.gelu, _ = inputs
    ctx.save_for_backward(u, output[1], kernel, skip)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_convolve(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None
    u, before, kernel, skip = ctx.saved_tensors
    return (*_convolve_backward(grad.contiguous(), u, before, kernel, skip, ctx.gelu), None, None)


_convolve.register_autograd(_differentiate_convolve, setup_context=_keep_for_convolve)


# -- kernel of diagonal state spaces


def vandermonde(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    """2 Re sum_n C_n z_n^l.

    Args:
        C_real, C_imag: (direction, H, N/2), float64, gain included.
        log_z_real, log_z_imag: (H, N/2), float64, per step.
        length: number of lags L.

    Returns:
        (direction, L, H), float32.
    """
    parts = [part.contiguous() for part in (C_real, C_imag, log_z_real, log_z_imag)]
    kernel: Tensor = _vandermonde(*parts, length)
    return kernel


def _check_modes(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor) -> None:
    whole = tuple(C_real.shape)
    _check(torch.float64, {C_real: whole, C_imag: whole, log_z_real: whole[1:], log_z_imag: whole[1:]})


@torch.library.custom_op("ssm_priors::vandermonde", mutates_args=(), device_types="cpu")
def _vandermonde(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    directions, channels, modes = C_real.shape
    _check_modes(C_real, C_imag, log_z_real, log_z_imag)
    kernel = C_real.new_empty(directions, length, channels, dtype=torch.float32)
    if kernel.numel():
        tensors = [C_real, C_imag, log_z_real, log_z_imag, kernel]
        _call("vandermonde", tensors, directions, channels, modes, length)
    return kernel


@_vandermonde.register_fake
def _(C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor, length: int) -> Tensor:
    return C_real.new_empty(C_real.shape[0], length, C_real.shape[1], dtype=torch.float32)


@torch.library.custom_op("ssm_priors::vandermonde_backward", mutates_args=(), device_types="cpu")
def _vandermonde_backward(
    grad: Tensor, C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = (C_real, C_imag, log_z_real, log_z_imag)
    _check_modes(*parts)
    _check(torch.float32, {grad: (len(C_real), grad.shape[1], C_real.shape[1])})
    first, second, third, fourth = (torch.zeros_like(part) for part in parts)
    if grad.numel():
        tensors = [grad, *parts, first, second, third, fourth]
        _call("vandermonde_backward", tensors, *C_real.shape, grad.shape[1])
    return first, second, third, fourth


@_vandermonde_backward.register_fake
def _(
    grad: Tensor, C_real: Tensor, C_imag: Tensor, log_z_real: Tensor, log_z_imag: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = (C_real, C_imag, log_z_real, log_z_imag)
    first, second, third, fourth = (torch.empty_like(part) for part in parts)
    return first, second, third, fourth


def _keep_for_vandermonde(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _differentiate_vandermonde(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_vandermonde_backward(grad.contiguous(), *ctx.saved_tensors), None)


_vandermonde.register_autograd(_differentiate_vandermonde, setup_context=_keep_for_vandermonde)


# -- linear layer and gate


def gate(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """a sigmoid(b), [a, b] = W y + bias.

    Args:
        y: (..., K), float32.
        weight: W: (2H, K), float32.
        bias: (2H,), float32.

    Returns:
        (..., H), float32.
    """
    learns = torch.is_grad_enabled() and (y.requires_grad or weight.requires_grad or bias.requires_grad)
    rows = y.reshape(-1, y.shape[-1]).contiguous()
    out: Tensor = _gate(rows, weight.contiguous(), bias.contiguous(), learns)[0]
    return out.unflatten(0, y.shape[:-1])


def _check_gate(y: Tensor, weight: Tensor, bias: Tensor) -> None:
    _check(torch.float32, {y: (len(y), weight.shape[1]), weight: tuple(weight.shape), bias: (len(weight),)})


@torch.library.custom_op("ssm_priors::gate", mutates_args=(), device_types="cpu")
def _gate(y: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """What leaves the gate, and [a, sigmoid(b)] if it is to be kept for the backward, else nothing."""
    _check_gate(y, weight, bias)
    rows, twice = len(y), len(weight)
    out, before = y.new_empty(rows, twice // 2), y.new_empty((rows, twice) if keep else 0)
    if out.numel():
        _call("gate", [y, weight, bias, out, before if keep else None], *y.shape, twice // 2)
    return out, before


@_gate.register_fake
def _(y: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    rows, twice = len(y), len(weight)
    return y.new_empty(rows, twice // 2), y.new_empty((rows, twice) if keep else 0)


@torch.library.custom_op("ssm_priors::gate_backward", mutates_args=(), device_types="cpu")
def _gate_backward(
    grad: Tensor, y: Tensor, before: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, twice = len(y), len(weight)
    _check_gate(y, weight, bias)
    _check(torch.float32, {grad: (rows, twice // 2), before: (rows, twice)})
    gradients = torch.empty_like(y), torch.zeros_like(weight), torch.zeros_like(bias)
    if grad.numel() and y.numel():
        _call("gate_backward", [grad, y, before, weight, *gradients], *y.shape, twice // 2)
    return gradients


@_gate_backward.register_fake
def _(grad: Tensor, y: Tensor, before: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(y), torch.empty_like(weight), torch.empty_like(bias)


def _keep_for_gate(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    y, weight, bias, _ = inputs
    ctx.save_for_backward(y, output[1], weight, bias)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_gate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    return (*_gate_backward(grad.contiguous(), *ctx.saved_tensors), None)


_gate.register_autograd(_differentiate_gate, setup_context=_keep_for_gate)
