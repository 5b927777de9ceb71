"""Every backend against the defining forms in float64: shapes of all kinds, gradients, threads, layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from against_reference import (
    FORWARD,
    check_convolution,
    check_gate,
    check_kernel,
    convolution,
    gate_problem,
    modes,
    near,
    problem,
)
from builders import CONTINUOUS, normal, raw
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.config import RunConfig
from ssm_priors.models.build import build
from ssm_priors.ops import backend, dispatch, fused
from ssm_priors.ops.dispatch import convolve, diagonal_kernel

LIBRARY, LACKING = fused.load()
needs_fused = pytest.mark.skipif(LIBRARY is None, reason=LACKING)
FUSED = pytest.param("fused", marks=needs_fused)


@pytest.fixture(params=["torch", FUSED])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    with backend.using(request.param):
        yield request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def _one_thread_after() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 16, 31, 48, 97])
@pytest.mark.parametrize("shape", [(1, 1), (2, 17), (3, 8), (5, 2)], ids=str)
def test_convolution_with_skip_and_gelu(name, dtype, shape, length, directions, gelu):
    check_convolution(shape[0], length, shape[1], directions, gelu, dtype)


@given(
    B=st.integers(1, 6), L=st.integers(1, 60), H=st.integers(1, 20), directions=st.integers(1, 2), gelu=st.booleans()
)
@pytest.mark.parametrize("chosen", ["torch", FUSED])
def test_convolution_of_any_shape(chosen, B, L, H, directions, gelu):
    with backend.using(chosen):
        check_convolution(B, L, H, directions, gelu, torch.float32)


@pytest.mark.parametrize(("length", "channels"), [(784, 100), (1000, 17), (1021, 1), (16_384, 2)])
def test_long_convolution(name, dtype, length, channels):
    (u, kernel, skip), _ = problem(2, length, channels, 2, dtype)
    found = convolve(u, kernel, skip)
    u, kernel, skip = (part.detach().double() for part in (u, kernel, skip))
    points = 1 << (2 * length).bit_length()
    circle = torch.zeros(channels, points, dtype=torch.float64)
    circle[:, :length] = kernel[0]
    circle[:, points - length + 1 :] = kernel[1, :, :-1].flip(-1)
    product = torch.fft.rfft(u.transpose(1, 2), points) * torch.fft.rfft(circle)
    near(found, torch.fft.irfft(product, points)[..., :length].transpose(1, 2) + skip * u, FORWARD[dtype])


@pytest.mark.parametrize("channels", [(1, 1), (2, 3), (17, 17), (8, 16), (33, 40), (100, 100), (128, 128)], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 23, 97, 300])
def test_linear_layer_and_gate(name, dtype, rows, channels):
    check_gate(rows, *channels, dtype)


def test_a_gate_that_is_wide_open_or_shut_is_right(name):
    y = torch.tensor([[1.0]])
    weight, bias = torch.zeros(8, 1), torch.tensor([3.0] * 4 + [200.0, -200.0, 30.0, torch.nan])
    found = dispatch.gate(y, weight, bias)[0]
    assert found[:2].tolist() == [3.0, 0.0]
    assert found[2] == 3.0
    assert found[3].isnan()


def test_a_gate_reads_rows_of_any_shape_and_layout(name):
    (y, weight, bias), _ = gate_problem(30, 9, 5, torch.float32)
    y = y.detach().reshape(2, 3, 5, 9)
    strided = y.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.stack([weight.detach(), weight.detach()], dim=-1)[..., 0]
    expected = F.glu(F.linear(y.double(), weight.double(), bias.double()))
    near(dispatch.gate(strided, wide, bias), expected, 1e-5)


def test_a_gate_without_rows_gives_nothing_and_zero_gradients(name):
    parts, _ = gate_problem(0, 9, 5, torch.float32)
    found = dispatch.gate(*parts)
    assert found.shape == (0, 5)
    assert all((grad == 0).all() for grad in torch.autograd.grad(found.sum(), parts))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_gate_gives_the_other_gradients_where_one_is_not_wanted(name, frozen):
    parts, weight = gate_problem(6, 9, 5, torch.float32)
    whole = torch.autograd.grad(dispatch.gate(*parts), parts, weight.float())
    parts[frozen].requires_grad_(False)
    wanted = [part for part in parts if part.requires_grad]
    some = torch.autograd.grad(dispatch.gate(*parts), wanted, weight.float())
    for one, other in zip(some, whole[:frozen] + whole[frozen + 1 :], strict=True):
        assert torch.equal(one, other)


@needs_fused
def test_gates_in_other_precisions_are_torchs(monkeypatch):
    (y, weight, bias), _ = gate_problem(3, 9, 5, torch.float32)
    calls = []
    with backend.using("fused"):
        monkeypatch.setattr(fused, "gate", lambda *parts: calls.append(parts) or parts[0])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert dispatch.gate(y, weight, bias).dtype == torch.bfloat16
        for other in (torch.bfloat16, torch.float64):
            assert dispatch.gate(y.to(other), weight.to(other), bias.to(other)).dtype == other
        assert not calls
        dispatch.gate(y, weight, bias)
    assert len(calls) == 1


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 97, 250])
@pytest.mark.parametrize("shape", [(1, 1), (17, 3), (8, 16)], ids=str)
def test_kernel_of_diagonal_state_spaces(name, dtype, shape, length, directions):
    check_kernel(directions, *shape, length, dtype)


def test_slow_fast_turning_modes_keep_their_phase_at_sixteen_thousand_lags(name):
    log_z = 0.1 * (-1e-4 + 1j * np.pi * np.arange(32.0))[None]
    parts = [torch.ones(1, 1, 32, dtype=torch.float64), torch.zeros(1, 1, 32, dtype=torch.float64)]
    parts += [torch.from_numpy(np.ascontiguousarray(part)) for part in (log_z.real, log_z.imag)]
    brute = torch.from_numpy(2 * np.exp(np.outer(log_z[0], np.arange(16_384))).sum(0).real)
    found = diagonal_kernel(*parts, 16_384, torch.float32)[0, 0]
    near(found, brute, 1e-5)
    near(found[-1000:], brute[-1000:], 1e-5)


def test_modes_that_decay_at_once_leave_no_subnormal_numbers(name):
    parts = [torch.ones(1, 1, 1, dtype=torch.float64)] * 2 + [torch.full((1, 1), -0.9, dtype=torch.float64)] * 2
    found = diagonal_kernel(*parts, 512, torch.float32)
    assert found.isfinite().all()
    assert (found[..., 200:] == 0).all()


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_without_rows_gives_nothing_and_zero_gradients(name, batch):
    parts, _ = problem(batch, 9, 5, 2, torch.float32)
    y = convolve(*parts, True)
    assert y.shape == (batch, 9, 5)
    grads = torch.autograd.grad(y.sum(), parts)
    assert all((grad == 0).all() == (batch == 0) for grad in grads[1:])


def test_inputs_that_are_not_contiguous_are_read_right(name, dtype):
    u = normal(2, 5, 9).transpose(1, 2).to(dtype)
    kernel = normal(2, 9, 10, seed=1).transpose(1, 2)[:, ::2].to(dtype)
    skip = normal(10, seed=2)[::2].to(dtype)
    expected = convolution(u.double(), kernel.double(), skip.double(), True)
    near(convolve(u, kernel, skip, True), expected, FORWARD[dtype])


def test_a_gradient_that_is_not_contiguous_is_read_right(name):
    parts, _ = problem(2, 9, 5, 1, torch.float32)
    weight = normal(2, 5, 9, dtype=torch.float32)
    whole = torch.autograd.grad(convolve(*parts), parts, weight.transpose(1, 2).contiguous())
    strided = torch.autograd.grad(convolve(*parts), parts, weight.transpose(1, 2))
    for one, other in zip(whole, strided, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_is_kept_for_a_backward_that_nobody_wants(name):
    parts, _ = problem(2, 9, 5, 1, torch.float32)
    with torch.no_grad():
        assert not convolve(*parts, True).requires_grad
    torch.testing.assert_close(convolve(*(part.detach() for part in parts), True), convolve(*parts, True).detach())


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_dtype(name, half):
    (u, kernel, skip), _ = problem(2, 33, 5, 1, torch.float32)
    u, skip = u.detach().to(half), skip.detach().to(half)
    found = convolve(u, kernel, skip, True)
    assert found.dtype == half
    near(found, convolution(u.double(), kernel.double(), skip.double(), True), 0.02)


def test_autocast_changes_no_bit(name):
    parts, _ = problem(3, 50, 5, 1, torch.float32)
    weight = normal(3, 50, 5, seed=3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = convolve(*parts, True)
        grads = torch.autograd.grad(inside, parts, weight)
    outside = convolve(*parts, True)
    assert inside.dtype == torch.float32
    for one, other in zip([inside, *grads], [outside, *torch.autograd.grad(outside, parts, weight)], strict=True):
        assert torch.equal(one, other)


def test_mixed_precision_multiplies_matrices_in_bfloat16_and_nothing_else(name, monkeypatch):
    model = build(RunConfig.from_dict(raw("s4d")).model, CONTINUOUS, 0, outputs=3, pooled=True)
    seen: dict[str, set[torch.dtype]] = {"linear": set(), "convolution": set(), "kernel": set()}
    linear, convolution_of = F.linear, dispatch.convolve

    def watched_linear(*arguments):
        y = linear(*arguments)
        seen["linear"].add(y.dtype)
        return y

    def watched_convolution(u, kernel, *rest):
        seen["kernel"].add(kernel.dtype)
        y = convolution_of(u, kernel, *rest)
        seen["convolution"].add(y.dtype)
        return y

    monkeypatch.setattr(F, "linear", watched_linear)
    monkeypatch.setattr(dispatch, "convolve", watched_convolution)
    inputs, lengths = torch.randn(2, 20, 1, generator=torch.Generator().manual_seed(0)), torch.tensor([20, 20])
    exact = model(inputs, lengths)
    seen["linear"].clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(inputs, lengths)
    assert seen == {"linear": {torch.bfloat16}, "convolution": {torch.float32}, "kernel": {torch.float32}}
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()
    rough.float().square().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


@needs_fused
@pytest.mark.parametrize("dtype_of_u", [torch.float32, torch.bfloat16])
def test_half_of_mixed_precision_runs_on_the_compiled_kernels_too(monkeypatch, dtype_of_u):
    calls = []
    real = fused._call
    monkeypatch.setattr(fused, "_call", lambda name, *rest: calls.append(name) or real(name, *rest))
    with backend.using("fused"):
        calls.clear()
        (u, kernel, skip), _ = problem(2, 9, 5, 1, torch.float32)
        convolve(u.to(dtype_of_u), kernel, skip, True).sum().backward()
    assert calls == ["convolve", "convolve_backward"]


def on_threads(threads: int, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    torch.set_num_threads(threads)
    with backend.using("fused"):
        return work()


def same_bits(work: Callable[[], list[torch.Tensor]]) -> None:
    for threads in (2, 3):
        for one, other in zip(on_threads(1, work), on_threads(threads, work), strict=True):
            assert torch.equal(one, other)


# Of each, sizes above that below which one thread does it all; blocks and groups of them do not come out even
@needs_fused
@pytest.mark.parametrize(("B", "L", "H", "directions"), [(2, 300, 100, 2), (9, 512, 8, 1), (40, 300, 5, 2)])
def test_convolutions_give_the_same_bits_from_any_number_of_threads(B, L, H, directions):
    assert B * L * H >= 32_768

    def work() -> list[torch.Tensor]:
        parts, weight = problem(B, L, H, directions, torch.float32)
        y = convolve(*parts, True)
        return [y, *torch.autograd.grad(y, parts, weight.float())]

    same_bits(work)


@needs_fused
@pytest.mark.parametrize(("H", "N", "L", "directions"), [(100, 16, 1000, 2), (17, 32, 2500, 1)])
def test_diagonal_kernels_give_the_same_bits_from_any_number_of_threads(H, N, L, directions):
    assert H * N * L >= 1 << 20

    def work() -> list[torch.Tensor]:
        C = modes(directions, H, N)
        kernel = diagonal_kernel(*C, L, torch.float32)
        return [kernel, *torch.autograd.grad(kernel, C, torch.ones_like(kernel))]

    same_bits(work)


@needs_fused
@pytest.mark.parametrize(("rows", "K", "H"), [(5000, 17, 33), (3001, 64, 64), (600, 128, 100)])
def test_gates_give_the_same_bits_from_any_number_of_threads(rows, K, H):
    assert rows * K * H >= 1 << 20

    def work() -> list[torch.Tensor]:
        parts, weight = gate_problem(rows, K, H, torch.float32)
        out = dispatch.gate(*parts)
        return [out, *torch.autograd.grad(out, parts, weight.float())]

    same_bits(work)


@needs_fused
def test_sums_over_many_rows_keep_their_digits():
    u = torch.ones(300, 200, 1) + normal(300, 200, 1, dtype=torch.float32) / 100
    kernel, skip = torch.zeros(1, 1, 200), torch.ones(1).requires_grad_()
    kernel[0, 0, 0] = 1
    kernel.requires_grad_()
    with backend.using("fused"):
        grads = torch.autograd.grad(convolve(u, kernel, skip), (kernel, skip), u)
    exact = u.double().square().sum()
    assert (grads[1].double() - exact).abs() < 1e-7 * exact
    assert (grads[0][0, 0, 0].double() - exact).abs() < 1e-6 * exact


@needs_fused
def test_gelu_keeps_the_digits_of_its_tail():
    x = torch.linspace(-8, 8, 4001)[:, None, None]
    with backend.using("fused"):
        found = convolve(x, torch.zeros(1, 1, 1), torch.ones(1), True)
    exact = x.double() * torch.special.erfc(-x.double() * 0.5**0.5) / 2  # gelu() in float64 has lost them
    assert ((found - exact).abs() <= 5e-6 * exact.abs()).all()


@needs_fused
def test_values_that_are_not_finite_stay_so():
    u = normal(2, 9, 3, dtype=torch.float32)
    u[0, 4, 1] = torch.nan
    with backend.using("fused"):
        found = convolve(u, normal(1, 3, 9, seed=1, dtype=torch.float32), torch.ones(3), True)
    assert found[0, :, 1].isnan().all()
    assert found[:, :, [0, 2]].isfinite().all()


@needs_fused
def test_torch_accepts_the_operators():
    parts, weight = problem(3, 12, 5, 2, torch.float32)
    u, kernel, skip = parts[0], parts[1].detach().transpose(1, 2).contiguous().requires_grad_(), parts[2]
    library = torch.library.opcheck
    library(fused._convolve, (u, kernel, skip, True, True))
    library(fused._convolve, (u, kernel, skip, False, False))
    before = torch.randn_like(u)
    library(fused._convolve_backward, (weight.float(), *(x.detach() for x in (u, before, kernel, skip)), True))
    C = modes(2, 5, 3)
    library(fused._vandermonde, (*C, 12))
    library(fused._vandermonde_backward, (torch.randn(2, 12, 5), *(part.detach() for part in C)))
    gated, weight = gate_problem(7, 5, 3, torch.float32)
    library(fused._gate, (*gated, True))
    y, matrix, bias = (part.detach() for part in gated)
    library(fused._gate, (y, matrix, bias, False))
    library(fused._gate_backward, (weight.float(), y, torch.randn(7, 6), matrix, bias))


@needs_fused
@pytest.mark.parametrize("wrong", ["dtype", "shape", "strides"])
def test_the_operators_refuse_memory_that_is_not_as_they_take_it(wrong):
    (u, kernel, skip), _ = problem(2, 9, 9, 1, torch.float32)
    changed = {"dtype": u.double(), "shape": u[:, :5].contiguous(), "strides": u.transpose(1, 2)}[wrong]
    with pytest.raises(TypeError, match="was expected"):
        fused._convolve(changed.detach(), kernel.detach().transpose(1, 2).contiguous(), skip.detach(), False, False)
    C = [part.detach() for part in modes(1, 9, 3)]
    with pytest.raises(TypeError, match="was expected"):
        fused._vandermonde(C[0].float(), *C[1:], 9)
