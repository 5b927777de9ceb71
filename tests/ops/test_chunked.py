"""The chunked form against the recurrence, closed forms and published kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import normal
from golden import arrays
from golden import modes as published_modes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad, gradcheck

from ssm_priors.ops import reference
from ssm_priors.ops.chunked import CHUNK, TORCH, convolve, stream
from ssm_priors.priors.discretise import discretise

FORWARD, BACKWARD = {torch.float32: 1e-5, torch.float64: 1e-10}, {torch.float32: 1e-4, torch.float64: 1e-10}
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def modes(H: int, N: int, directions: int | None = None, seed: int = 0) -> list[Tensor]:
    """C, real and imaginary, and log z likewise; decay rates from 1e-4 to 1, any angle."""
    shape = (H, N) if directions is None else (directions, H, N)
    decay = 10 ** (-4 * torch.rand(H, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return [normal(*shape, seed=seed), normal(*shape, seed=seed + 1), -decay, 3 * normal(H, N, seed=seed + 2)]


def streamed(u: Tensor, parts: list[Tensor], state: Tensor | None = None, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    wide = torch.complex128 if u.dtype == torch.float64 else torch.complex64
    if state is None:
        state = torch.zeros(len(u), *parts[2].shape)
    return stream(u, (parts[0], parts[1]), (parts[2], parts[3]), state.to(wide), chunk=chunk)


def stepped(u: Tensor, parts: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    C, z = torch.complex(*parts[:2]), torch.exp(torch.complex(*parts[2:]))
    outputs = []
    for t in range(u.shape[1]):
        state = z * state + u[:, t, :, None]
        outputs.append(2 * (C * state).sum(-1).real)
    return torch.stack(outputs, dim=1), state


def near(found: Tensor, exact: Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= tolerance * max(exact.abs().max(), 1e-3)


shapes = {"B": st.integers(1, 3), "L": st.integers(1, 70), "H": st.integers(1, 4), "N": st.integers(1, 5)}


@each_dtype
@given(**shapes, chunk=st.sampled_from([1, 2, 8, 16, 64]), seed=st.integers(0, 99))
def test_it_is_the_recurrence(dtype, B, L, H, N, chunk, seed):
    u, parts = normal(B, L, H, seed=seed), modes(H, N, seed=seed)
    found, _ = streamed(u.to(dtype), parts, chunk=chunk)
    assert found.dtype == dtype
    near(found, reference.recurrence(u, torch.complex(*parts[:2]), torch.complex(*parts[2:])), FORWARD[dtype])


@each_dtype
@pytest.mark.parametrize("length", [1, 3, 5, 64, 65, 14_113])
def test_the_state_it_leaves_is_that_after_as_many_steps(dtype, length):
    u, parts, start = normal(2, length, 3), modes(3, 2), torch.complex(normal(2, 3, 2), normal(2, 3, 2, seed=1))
    y, state = streamed(u.to(dtype), parts, start)
    expected, after = stepped(u, parts, start)
    assert y.shape == u.shape
    near(y, expected, FORWARD[dtype])
    near(state, after, FORWARD[dtype])


@given(**shapes, cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_sequence_in_two_parts_is_the_sequence(B, L, H, N, cut, seed):
    u, parts = normal(B, L + 1, H, seed=seed), modes(H, N, seed=seed)
    where = 1 + int(cut * (L - 1))
    first, state = streamed(u[:, :where], parts, chunk=8)
    second, end = streamed(u[:, where:], parts, state, chunk=8)
    whole, exact = streamed(u, parts, chunk=16)
    near(torch.cat([first, second], dim=1), whole, 1e-10)
    near(end, exact, 1e-10)


@each_dtype
@pytest.mark.parametrize("size", [1, 1e6])
@pytest.mark.parametrize("t", [1, 511, 512, 700, 1023])
def test_no_later_input_changes_a_bit_of_an_earlier_output(dtype, t, size):
    u, parts = normal(1, 1024, 4, dtype=dtype), modes(4, 8)
    changed = u.clone()
    changed[:, t] += size
    before, after = streamed(u, parts)[0], streamed(changed, parts)[0]
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(-1).any(-1).all()


@each_dtype
@given(**shapes, directions=st.integers(1, 2), chunk=st.sampled_from([1, 4, 16]))
def test_a_convolution_on_one_or_both_sides_and_its_gradients(dtype, B, L, H, N, directions, chunk):
    exact = [normal(B, L, H, seed=9), normal(H, seed=8), *modes(H, N, directions)]
    rough = [part.to(dtype) if index == 0 else part.clone() for index, part in enumerate(exact)]
    for part in (*exact, *rough):
        part.requires_grad_()
    (u, D, *parts), weight = exact, normal(B, L, H, seed=7)
    kernel = reference.vandermonde(torch.complex(*parts[:2]), torch.complex(*parts[2:]), L)
    expected = reference.convolution(u, kernel) + D * u
    (u, D, *parts) = rough
    found = convolve(u, (parts[0], parts[1]), (parts[2], parts[3]), D, TORCH, chunk=chunk)
    near(found, expected, FORWARD[dtype])
    for one, other in zip(grad(found, rough, weight.to(dtype)), grad(expected, exact, weight), strict=True):
        near(one, other, BACKWARD[dtype])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 4, 11])
def test_gradients_of_a_convolution_are_right(directions, length):
    inputs = [normal(2, length, 2, seed=9), normal(2, seed=8), *modes(2, 3, directions)]

    def function(u, D, *parts):
        return convolve(u, parts[:2], parts[2:], D, TORCH, chunk=4)

    assert gradcheck(function, tuple(part.requires_grad_() for part in inputs))


@pytest.mark.parametrize("length", [1, 4, 11])
def test_gradients_of_output_and_state_with_respect_to_everything_are_right(length):
    inputs = [normal(2, length, 2, seed=9), torch.complex(normal(2, 2, 3), normal(2, 2, 3, seed=5)), *modes(2, 3)]

    def function(u, state, *parts):
        return streamed(u, list(parts), state, chunk=4)

    assert gradcheck(function, tuple(part.requires_grad_() for part in inputs))


def test_float32_gradients_of_slow_modes_stay_near_the_float64_ones():
    log_z, _ = discretise("zoh", -0.5 + 1j * np.pi * np.tile(np.arange(16.0), (2, 1)), np.array([1e-3, 0.1]))
    found = []
    for dtype in (torch.float32, torch.float64):
        parts = [normal(2, 16, seed=seed) for seed in (1, 2)]
        parts += [torch.from_numpy(np.ascontiguousarray(part)) for part in (log_z.real, log_z.imag)]
        inputs = [normal(2, 3000, 2, dtype=dtype), *parts]
        y, _ = streamed(inputs[0].requires_grad_(), [part.requires_grad_() for part in parts])
        found.append(grad(y, inputs, normal(2, 3000, 2, seed=3).to(dtype)))
    for rough, exact in zip(*found, strict=True):
        near(rough, exact, 1e-4)


def test_slow_fast_turning_modes_keep_their_phase_at_sixteen_thousand_lags():
    log_z = 0.1 * (-1e-4 + 1j * np.pi * np.arange(32.0))[None]
    parts = [torch.ones(1, 32, dtype=torch.float64), torch.zeros(1, 32, dtype=torch.float64)]
    parts += [torch.from_numpy(np.ascontiguousarray(part)) for part in (log_z.real, log_z.imag)]
    impulse = torch.zeros(1, 16_384, 1)
    impulse[0, 0] = 1
    found, state = streamed(impulse, parts)
    brute = torch.from_numpy(2 * np.exp(np.outer(log_z[0], np.arange(16_384))).sum(0).real)
    near(found[0, :, 0], brute, 1e-5)
    near(found[0, -1000:, 0], brute[-1000:], 1e-5)
    near(state[0, 0], torch.from_numpy(np.exp(log_z[0] * 16_383)), 1e-5)


def test_a_constant_input_to_one_real_mode_is_a_geometric_series():
    parts = [torch.full((1, 1), 0.5, dtype=torch.float64), *[torch.zeros(1, 1, dtype=torch.float64)] * 3]
    parts[2] = torch.full((1, 1), -0.01, dtype=torch.float64)
    z = np.exp(-0.01)
    y, state = streamed(torch.ones(1, 200, 1, dtype=torch.float64), parts)
    np.testing.assert_allclose(y[0, :, 0], (1 - z ** np.arange(1, 201)) / (1 - z), rtol=1e-12)
    np.testing.assert_allclose(state.item(), (1 - z**200) / (1 - z), rtol=1e-12)


@pytest.mark.parametrize("name", [f"s4d_{rule}{both}" for rule in ("zoh", "bilinear") for both in ("", "_bidir")])
def test_its_answer_to_an_impulse_is_the_published_kernel(name):
    found = [arrays()[f"kernels/{name}/{key}"] for key in ("A", "B", "C", "log_dt")]
    weight, log_z = published_modes(*found, "zoh" if "zoh" in name else "bilinear")
    halves = (weight.real, weight.imag, log_z.real, log_z.imag)
    parts = [torch.from_numpy(np.ascontiguousarray(half)) for half in halves]
    published = arrays()[f"kernels/{name}/L64/K"]
    impulse = torch.zeros(1, 127, published.shape[1], dtype=torch.float64)
    impulse[0, 63] = 1
    D = torch.zeros(published.shape[1])
    answer = convolve(impulse, (parts[0], parts[1]), (parts[2], parts[3]), D, TORCH, chunk=16)[0].T.numpy()
    np.testing.assert_allclose(answer[:, 63:], published[0], rtol=1e-9, atol=1e-11)
    if len(published) == 2:
        np.testing.assert_allclose(answer[:, :63], published[1][:, 62::-1], rtol=1e-9, atol=1e-11)


def test_a_batch_without_rows_gives_nothing_and_zero_gradients():
    u, parts = normal(0, 70, 3).requires_grad_(), [part.requires_grad_() for part in modes(3, 2)]
    y, state = streamed(u, parts)
    assert y.shape == (0, 70, 3)
    assert state.shape == (0, 3, 2)
    assert all((each == 0).all() for each in grad(y.sum(), [u, *parts]))


def test_autocast_changes_no_bit():
    u, parts = normal(2, 100, 3, dtype=torch.float32).requires_grad_(), [part.requires_grad_() for part in modes(3, 2)]
    found = []
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y, state = streamed(u, parts)
            found.append([y, state, *grad(y.square().sum() + state.abs().sum(), [u, *parts])])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_what_it_keeps_grows_with_the_length_no_faster_than_its_input():
    parts = [part.requires_grad_() for part in modes(4, 32)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept):
        streamed(normal(3, 8192, 4, dtype=torch.float32), parts)
    assert max(sizes) == 3 * 8192 * 4  # the input, and as many numbers of states: N = T
