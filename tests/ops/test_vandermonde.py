from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import normal
from golden import arrays, modes
from hypothesis import given
from hypothesis import strategies as st
from strategies import diagonal_ssms

from ssm_priors.ops import reference
from ssm_priors.ops.vandermonde import vandermonde
from ssm_priors.priors.discretise import zoh


def kernel(C: np.ndarray, log_z: np.ndarray, length: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in (C.real, C.imag, log_z.real, log_z.imag)]
    return vandermonde(*parts, length, dtype)


@given(ssm=diagonal_ssms(), length=st.integers(1, 300))
def test_it_equals_the_defining_form_at_any_length(ssm, length):
    log_z, gain = zoh(ssm.A, ssm.dt)
    C = ssm.C * gain
    expected = reference.vandermonde(torch.from_numpy(C), torch.from_numpy(log_z), length)
    found = kernel(C, log_z, length)
    assert found.shape == (*C.shape[:2], length)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [f"s4d_{rule}{both}" for rule in ("zoh", "bilinear") for both in ("", "_bidir")])
def test_it_gives_the_published_kernels(name):
    parts = [arrays()[f"kernels/{name}/{key}"] for key in ("A", "B", "C", "log_dt")]
    C, log_z = modes(*parts, "zoh" if "zoh" in name else "bilinear")
    np.testing.assert_allclose(kernel(C, log_z, 64), arrays()[f"kernels/{name}/L64/K"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_gradients_are_right(directions, length):
    C = [normal(directions, 2, 3, seed=seed).requires_grad_() for seed in (0, 1)]
    log_z = [(-normal(2, 3, seed=2).abs()).requires_grad_(), normal(2, 3, seed=3).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *parts: vandermonde(*parts, length, torch.float64), C + log_z)


def test_float32_gradients_stay_near_the_float64_ones():
    rng = np.random.default_rng(0)
    A = -0.5 + 1j * np.pi * np.tile(np.arange(16.0), (2, 1))
    log_z, gain = zoh(A, np.array([0.01, 0.1]))
    C = gain * (rng.standard_normal((2, 2, 16)) + 1j * rng.standard_normal((2, 2, 16)))
    grads = {}
    for dtype in (torch.float32, torch.float64):
        parts = [torch.from_numpy(part.copy()).requires_grad_() for part in (C.real, C.imag, log_z.real, log_z.imag)]
        weight = normal(2, 2, 784, seed=5).to(dtype)
        (vandermonde(*parts, 784, dtype) * weight).sum().backward()
        grads[dtype] = [part.grad for part in parts]
    for rough, exact in zip(*grads.values(), strict=True):
        assert (rough - exact).abs().max() < 1e-4 * exact.abs().max()


def test_slow_fast_turning_modes_keep_their_phase_at_sixteen_thousand_lags():
    A = -1e-4 + 1j * np.pi * np.arange(32.0)[None]
    log_z = 0.1 * A
    C = np.ones((1, 1, 32), dtype=complex)
    rough, exact = kernel(C, log_z, 16_384, torch.float32).double(), kernel(C, log_z, 16_384)
    brute = 2 * np.exp(np.outer(log_z[0], np.arange(16_384))).sum(0).real
    np.testing.assert_allclose(exact[0, 0], brute, atol=1e-8)
    assert (rough - exact).abs().max() < 1e-4 * exact.abs().max()
    tail = slice(-1000, None)
    assert (rough - exact)[..., tail].norm() < 1e-4 * exact[..., tail].norm()


@pytest.mark.parametrize("length", [8191, 8192, 8193, 14_113, 16_385])
def test_long_and_odd_lengths_equal_the_defining_form(length):
    log_z, gain = zoh(-0.5 + 1j * np.pi * np.arange(4.0)[None], np.array([0.001]))
    C = gain[None] * (1 + 1j)
    expected = reference.vandermonde(torch.from_numpy(C), torch.from_numpy(log_z), length)
    torch.testing.assert_close(kernel(C, log_z, length), expected, rtol=1e-9, atol=1e-12)


def test_autocast_leaves_the_matrix_product_in_the_precision_asked_for():
    C = [normal(1, 2, 8, seed=seed).requires_grad_() for seed in (0, 1)]
    log_z = [-normal(2, 8, seed=2).abs() / 10, normal(2, 8, seed=3)]

    def value_and_gradient(autocast: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            made = vandermonde(*C, *log_z, 196, torch.float32)
            (grad,) = torch.autograd.grad(made.square().sum(), C[0])
        return made, grad

    inside, outside = value_and_gradient(True), value_and_gradient(False)
    assert inside[0].dtype == torch.float32
    assert torch.equal(inside[0], outside[0])
    assert torch.equal(inside[1], outside[1])


def test_it_holds_no_tensor_of_channels_by_modes_by_length():
    C = [normal(1, 8, 32, seed=seed).requires_grad_() for seed in (0, 1)]
    log_z = [-normal(8, 32, seed=2).abs(), normal(8, 32, seed=3)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept):
        vandermonde(*C, *log_z, 4096, torch.float32).sum()
    assert max(sizes) < 8 * 32 * math.isqrt(4096)
