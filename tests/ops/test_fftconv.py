from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import normal
from golden import arrays, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import next_fast_len

from ssm_priors.ops import fftconv as module
from ssm_priors.ops import reference
from ssm_priors.ops.fftconv import fast_length, fftconv, fir_step
from ssm_priors.priors import response

LENGTHS = [1, 2, 3, 5, 7, 195, 196, 783, 784, 785]


def test_the_end_never_leaks_into_the_start():
    u, kernel = torch.zeros(1, 8, 1), torch.zeros(1, 1, 8)
    u[0, 7], kernel[0, 0, 1] = 1, 1
    assert fftconv(u, kernel).abs().max() < 1e-6


def test_the_start_never_leaks_into_the_end_of_a_two_sided_one():
    u, kernel = torch.zeros(1, 8, 1), torch.zeros(2, 1, 8)
    u[0, 0], kernel[1, 0, 0] = 1, 1
    assert fftconv(u, kernel).abs().max() < 1e-6


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_any_length_comes_out_as_it_went_in_and_equals_direct_convolution(length, directions):
    u, kernel = normal(2, length, 2), normal(directions, 2, length, seed=1)
    answer = fftconv(u, kernel)
    assert answer.shape == u.shape
    torch.testing.assert_close(answer, reference.convolution(u, kernel), rtol=1e-10, atol=1e-10)


@given(length=st.integers(1, 40), directions=st.integers(1, 2), batch=st.integers(1, 3), channels=st.integers(1, 3))
def test_any_shape_equals_direct_convolution(length, directions, batch, channels):
    u, kernel = normal(batch, length, channels), normal(directions, channels, length, seed=1)
    torch.testing.assert_close(fftconv(u, kernel), reference.convolution(u, kernel), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("length", [8191, 8192, 8193, 14_113, 16_385])
def test_long_and_odd_lengths_equal_direct_convolution(length):
    u, kernel = normal(1, length, 1), normal(2, 1, length, seed=1)
    past = np.convolve(u[0, :, 0], kernel[0, 0])[:length]
    future = np.convolve(u[0, :, 0].flip(0), kernel[1, 0])[:length]
    expected = past + np.concatenate([[0.0], future[:-1]])[::-1]
    np.testing.assert_allclose(fftconv(u, kernel)[0, :, 0], expected, atol=1e-9)


@pytest.mark.parametrize("length", [1, 3, 5, 14_113])
def test_half_precision_input_keeps_its_length(length):
    u = normal(1, length, 2, dtype=torch.bfloat16)
    kernel = normal(1, 2, length, seed=1, dtype=torch.float32) / length**0.5
    answer = fftconv(u, kernel)
    assert answer.shape == u.shape
    exact = fftconv(u.double(), kernel.double())
    assert (answer.double() - exact).abs().max() < 1e-4 * exact.abs().max()


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_gradients_are_right(length, directions):
    u, kernel = normal(2, length, 2).requires_grad_(), normal(directions, 2, length, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(fftconv, (u, kernel))


@pytest.mark.parametrize("frozen", ["input", "kernel"])
def test_a_frozen_side_gets_no_gradient_and_the_other_the_same_one(frozen):
    u, kernel = normal(2, 9, 2), normal(2, 2, 9, seed=1)
    pair = [u.clone().requires_grad_(), kernel.clone().requires_grad_()]
    fftconv(*pair).square().sum().backward()
    moving = 1 if frozen == "input" else 0
    half = [u.clone(), kernel.clone()]
    half[moving].requires_grad_()
    fftconv(*half).square().sum().backward()
    assert half[1 - moving].grad is None
    torch.testing.assert_close(half[moving].grad, pair[moving].grad)


def test_an_input_that_is_not_contiguous_is_read_right():
    u, kernel = normal(2, 3, 9).transpose(1, 2), normal(1, 3, 9, seed=1)
    torch.testing.assert_close(fftconv(u, kernel), reference.convolution(u, kernel), rtol=1e-11, atol=1e-11)


def test_a_later_input_changes_no_earlier_output():
    u, kernel = normal(1, 1024, 2), normal(1, 2, 1024, seed=1) / 32
    changed = u.clone()
    changed[0, 512] += 1
    before, after = fftconv(u, kernel), fftconv(changed, kernel)
    assert (after - before)[0, :512].abs().max() < 1e-12
    assert (after - before)[0, 512:].abs().max() > 1e-3


@pytest.mark.parametrize("length", [196, 784])
def test_autocast_changes_nothing(length):
    u, kernel = normal(2, length, 3, dtype=torch.float32), normal(2, 3, length, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fftconv(u, kernel)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, fftconv(u, kernel))


@pytest.mark.parametrize("name", [f"{rule}{both}" for rule in ("zoh", "bilinear") for both in ("", "_bidir")])
def test_it_gives_the_published_layer_outputs(name):
    layer = {key.rpartition("/")[2]: value for key, value in arrays().items() if key.startswith(f"layers/{name}/")}
    A = -np.exp(layer["A_real_raw"]) - 1j * layer["A_imag_raw"]
    C, log_z = modes(A, layer["B"], layer["C"], layer["log_dt"], name.removesuffix("_bidir"))
    u = torch.from_numpy(arrays()["layers/u"].transpose(0, 2, 1).copy())
    kernel = torch.from_numpy(response.kernel(C, log_z, 64))
    answer = fftconv(u, kernel) + torch.from_numpy(layer["D"][0]) * u
    np.testing.assert_allclose(answer.numpy().transpose(0, 2, 1), layer["y_id"], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("reach", [1, 7, 30])
def test_steps_with_the_last_inputs_as_state_equal_the_convolution(reach):
    u, kernel = normal(2, 20, 3), normal(1, 3, reach, seed=1)
    whole = torch.nn.functional.pad(kernel, (0, max(0, 20 - reach)))[..., :20]
    state, outputs = u.new_zeros(2, reach, 3), []
    for t in range(20):
        y, state = fir_step(u[:, t], state, kernel[0])
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), reference.convolution(u, whole), rtol=1e-12, atol=1e-12)


@given(st.integers(1, 2**21))
def test_the_fast_length_is_the_smallest_with_the_factors_two_three_and_five(least):
    assert fast_length(least) == next_fast_len(least, real=True)


@pytest.mark.parametrize("block", [1, 64, 300, 1 << 30])
def test_the_size_of_a_block_changes_no_value_and_no_gradient(monkeypatch, block):
    parts = [normal(5, 40, 3).requires_grad_(), normal(2, 3, 40, seed=1).requires_grad_()]
    weight = normal(5, 40, 3, seed=2)
    whole = fftconv(*parts)
    monkeypatch.setattr(module, "BLOCK", block)
    cut = fftconv(*parts)
    torch.testing.assert_close(cut, whole, rtol=1e-13, atol=1e-13)
    grads = (torch.autograd.grad(y, parts, weight) for y in (cut, whole))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-12)


def test_blocks_cover_every_row_and_channel_once(monkeypatch):
    for block in (1, 50, 64, 300, 1 << 30):
        monkeypatch.setattr(module, "BLOCK", block)
        seen = torch.zeros(5, 7, 3)
        for rows, channels in module._blocks(seen, 16):
            seen[rows, :, channels] += 1
        assert (seen == 1).all()
