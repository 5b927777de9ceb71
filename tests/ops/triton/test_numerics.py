"""The Triton kernels against the defining forms in float64: on a GPU where there is one, else in Triton's interpreter.

Which of the two is decided when the kernels are imported, for the whole process: `test_processes` starts one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from builders import mixer_alone, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad

from ssm_priors.models.backbone import Block
from ssm_priors.models.mixers.s4d import S4D
from ssm_priors.ops import backend, chunked, dispatch, reference

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = "cuda" if HAS_GPU else "cpu"

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not (IS_INTERPRETED or HAS_GPU),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1 (test_processes.py starts the latter where Triton is there)",
)

FORWARD, BACKWARD = 1e-5, 1e-4


@pytest.fixture(autouse=True)
def scans_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter combines two numbers at a time, a Python call each; here it combines two rows of a tile."""
    if not IS_INTERPRETED:
        return
    from triton.runtime.interpreter import ScanOps

    def scan(self, inputs):
        def lifted(rows):
            return tuple(self.to_tensor(row, each.dtype) for row, each in zip(rows, inputs, strict=True))

        first, *others = zip(*(np.moveaxis(each.handle.data, self.axis, 0) for each in inputs), strict=True)
        done = [lifted(first)]
        for rows in others:
            done.append(self.combine_fn.fn(*done[-1], *lifted(rows)))
        columns = (np.stack([row.handle.data for row in column], axis=self.axis) for column in zip(*done, strict=True))
        return list(lifted(columns))

    monkeypatch.setattr(ScanOps, "generic_scan", scan)


def modes(H: int, N: int, directions: int, seed: int = 0) -> list[Tensor]:
    """C, real and imaginary, and log z likewise; decay rates from 1e-4 to 1, any angle."""
    decay = 10 ** (-4 * torch.rand(H, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    C = [normal(directions, H, N, seed=seed + each) for each in (0, 1)]
    return [*C, -decay, 3 * normal(H, N, seed=seed + 2)]


def problem(B: int, L: int, H: int, N: int, directions: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """u, D, C and log z as they are given, the same in float64, and weights of the outputs."""
    exact = [normal(B, L, H, seed=9), normal(H, seed=8), *modes(H, N, directions)]
    given_parts = [part.float() if index < 2 else part.clone() for index, part in enumerate(exact)]
    given_parts = [part.to(DEVICE).requires_grad_() for part in given_parts]
    return given_parts, [part.requires_grad_() for part in exact], normal(B, L, H, seed=7)


def convolved(parts: list[Tensor], T: int = 64) -> Tensor:
    from ssm_priors.ops.triton.launch import TRITON

    u, D, a, b, c, d = parts
    return chunked.convolve(u, (a, b), (c, d), D, TRITON, chunk=T)


def defined(parts: list[Tensor]) -> Tensor:
    u, D, a, b, c, d = parts
    kernel = reference.vandermonde(torch.complex(a, b), torch.complex(c, d), u.shape[1])
    return reference.convolution(u, kernel) + D * u


def near(found: Tensor, exact: Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    assert (found.cpu() - exact).abs().max() <= tolerance * max(exact.abs().max(), 1e-3)


def check(B: int, L: int, H: int, N: int, directions: int, T: int) -> None:
    parts, exact, weight = problem(B, L, H, N, directions)
    found, expected = convolved(parts, T), defined(exact)
    assert found.dtype == torch.float32
    near(found, expected, FORWARD)
    grads = grad(found, parts, weight.float().to(DEVICE))
    for one, other in zip(grads, grad(expected, exact, weight), strict=True):
        near(one, other, BACKWARD)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("B", "L", "H", "N"), [(1, 1, 1, 1), (2, 2, 17, 1), (1, 16, 1, 3), (3, 17, 2, 1), (2, 97, 3, 5), (1, 101, 3, 33)]
)
def test_a_convolution_and_its_gradients(B, L, H, N, directions):
    check(B, L, H, N, directions, 16)


def test_a_convolution_of_many_channels_and_its_gradients():
    check(1, 19, 100, 2, 2, 16)


@pytest.mark.parametrize("length", [63, 64, 129, 300])
def test_a_convolution_and_its_gradients_in_chunks_as_long_as_they_are(length):
    check(2, length, 2, 4, 2, chunked.CHUNK)


@given(
    B=st.integers(1, 4),
    L=st.integers(1, 150),
    H=st.integers(1, 4),
    N=st.integers(1, 4),
    directions=st.integers(1, 2),
    T=st.sampled_from([16, 32]),
)
@settings(max_examples=6)
def test_a_convolution_of_any_shape(B, L, H, N, directions, T):
    check(B, L, H, N, directions, T)


def test_many_rows_are_summed_in_parts():
    check(40, 40, 2, 2, 1, 16)  # 120 chunks: four parts of 32


@pytest.mark.parametrize("length", [1, 16, 75])
def test_from_a_state_to_a_state(length):
    from ssm_priors.ops.triton.launch import TRITON

    exact = [normal(2, length, 3), normal(2, 3, 4, seed=1), *(part.squeeze(0) for part in modes(3, 2, 1))]
    rough = [part.float() if index < 2 else part.clone() for index, part in enumerate(exact)]
    rough = [part.to(DEVICE) for part in rough]
    found = []
    for parts, steps in ((rough, TRITON), (exact, chunked.TORCH)):
        u, entering, a, b, c, d = (part.requires_grad_() for part in parts)
        tables = chunked.tabulate(torch.complex(a, b)[None], torch.complex(c, d), 16)
        y, before = chunked.run(u, tables, entering, steps)
        total = (y * normal(*y.shape, seed=5).to(y)).sum() + (before * normal(*before.shape, seed=6).to(before)).sum()
        found.append([y, before, *grad(total, [u, entering, a, b, c, d])])
    for one, other in zip(*found, strict=True):
        near(one, other, BACKWARD)


@pytest.mark.parametrize("length", [16_384, 14_113])
def test_slow_fast_turning_modes_keep_their_phase_at_sixteen_thousand_lags(length):
    log_z = 0.1 * (-1e-4 + 1j * np.pi * np.arange(8.0))[None]
    ones = torch.ones(1, 1, 8, dtype=torch.float64)
    parts = [ones, 0 * ones, *(torch.from_numpy(np.ascontiguousarray(part)) for part in (log_z.real, log_z.imag))]
    brute = torch.from_numpy(2 * np.exp(np.outer(log_z[0], np.arange(length))).sum(0).real)
    impulse = torch.zeros(1, length, 1)
    impulse[0, 0] = 1
    answer = convolved([part.to(DEVICE) for part in (impulse, torch.zeros(1), *parts)])[0, :, 0]
    for found in (answer, table(parts, length)[0, 0]):
        near(found, brute, FORWARD)
        near(found[-1000:], brute[-1000:], FORWARD)


def test_gradients_of_slow_modes_over_many_chunks():
    log_z = np.repeat(0.01 * (-1e-2 + 1j * np.pi * np.arange(4.0))[None], 2, axis=0)
    parts = [normal(1, 2, 4, seed=seed) for seed in (1, 2)]
    parts += [torch.from_numpy(np.ascontiguousarray(part)) for part in (log_z.real, log_z.imag)]
    exact = [normal(1, 3001, 2), normal(2, seed=3), *parts]
    rough = [part.float() if index < 2 else part.clone() for index, part in enumerate(exact)]
    rough, exact = ([part.to(at).requires_grad_() for part in each] for each, at in ((rough, DEVICE), (exact, "cpu")))
    u, D, a, b, c, d = exact
    expected = chunked.convolve(u, (a, b), (c, d), D, chunked.TORCH)  # held against the definition in its own tests
    weight = normal(1, 3001, 2, seed=4)
    found = convolved(rough)
    near(found, expected, FORWARD)
    for one, other in zip(grad(found, rough, weight.float().to(DEVICE)), grad(expected, exact, weight), strict=True):
        near(one, other, BACKWARD)


@pytest.mark.parametrize("t", [1, 15, 16, 40, 69])
def test_no_later_input_changes_a_bit_of_an_earlier_output(t):
    parts, _, _ = problem(2, 70, 2, 3, 1)
    changed = parts[0].detach().clone()
    changed[:, t] += 1e6
    before, after = convolved(parts, 16), convolved([changed, *parts[1:]], 16)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(-1).any(-1).all()


def test_the_same_input_gives_the_same_bits():
    parts, _, weight = problem(3, 100, 3, 4, 2)
    found = []
    for _ in range(2):
        y = convolved(parts, 16)
        found.append([y, *grad(y, parts, weight.float().to(DEVICE))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_batch_without_rows_gives_nothing_and_zero_gradients():
    parts, _, _ = problem(0, 70, 3, 2, 2)
    y = convolved(parts, 16)
    assert y.shape == (0, 70, 3)
    grads = grad(y.sum(), parts)
    assert all((each == 0).all() for each in grads)
    assert [each.shape for each in grads] == [part.shape for part in parts]


def test_bfloat16_inputs_are_read_as_they_are_and_computed_in_float32():
    parts, exact, weight = problem(2, 50, 3, 2, 2)
    half = parts[0].detach().bfloat16().requires_grad_()
    exact[0] = half.detach().cpu().double().requires_grad_()
    found, expected = convolved([half, *parts[1:]], 16), defined(exact)
    near(found, expected, FORWARD)
    grads = grad(found, [half, *parts[1:]], weight.float().to(DEVICE))
    assert grads[0].dtype == torch.bfloat16
    for index, (one, other) in enumerate(zip(grads, grad(expected, exact, weight), strict=True)):
        near(one.double(), other, 1e-2 if index == 0 else BACKWARD)


def test_inputs_and_gradients_that_are_not_contiguous_are_read_right():
    parts, exact, weight = problem(2, 40, 6, 2, 2)
    u = parts[0].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    found, expected = convolved([u, *parts[1:]], 16), defined(exact)
    near(found, expected, FORWARD)
    grads = grad(found, [u, *parts[1:]], weight.float().to(DEVICE))
    for one, other in zip(grads, grad(expected, exact, weight), strict=True):
        near(one, other, BACKWARD)


# -- kernel of diagonal state spaces


def table(parts: list[Tensor], length: int) -> Tensor:
    from ssm_priors.ops.triton import launch

    return launch.vandermonde(*(part.to(DEVICE) for part in parts), length)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("H", "N", "length"), [(1, 1, 1), (17, 3, 2), (2, 40, 97), (1, 33, 1025), (3, 5, 2048)])
def test_the_kernel_and_its_gradients(H, N, length, directions):
    parts = [part.requires_grad_() for part in modes(H, N, directions)]
    found, weight = table(parts, length), normal(directions, H, length, seed=5)
    expected = reference.vandermonde(torch.complex(*parts[:2]), torch.complex(*parts[2:]), length)
    near(found, expected, FORWARD)
    grads = grad(found, parts, weight.float().to(DEVICE))
    for one, other in zip(grads, grad(expected, parts, weight), strict=True):
        near(one, other, BACKWARD)


def test_modes_that_decay_at_once_leave_no_subnormal_numbers():
    parts = [torch.ones(1, 1, 1, dtype=torch.float64)] * 2 + [torch.full((1, 1), -0.9, dtype=torch.float64)] * 2
    found = table(parts, 512)
    assert found.isfinite().all()
    assert (found[..., 200:] == 0).all()


# -- what the interpreter multiplies in float32, and a GPU in three products of shorter numbers


def shortened(values: np.ndarray) -> np.ndarray:
    """float32 cut to the 10 bits of fraction that TF32 has."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.fixture
def in_tf32(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Products of the leading parts and, `three` times, of these with what is left: as tensor cores do it."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def dot(self, a, b, total, input_precision, max_num_imprecise_acc):
        big_a, big_b = shortened(a.data), shortened(b.data)
        product = total.data + big_a @ big_b
        if request.param == 3:
            product += big_a @ shortened(b.data - big_b) + shortened(a.data - big_a) @ big_b
        return TensorHandle(product, total.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@pytest.mark.skipif(HAS_GPU, reason="a GPU does it itself")
@pytest.mark.parametrize("in_tf32", [3], indirect=True)
@pytest.mark.parametrize("length", [65, 500])
def test_three_tf32_products_are_near_enough(in_tf32, length):
    check(2, length, 2, 4, 2, chunked.CHUNK)
    parts = [part.requires_grad_() for part in modes(2, 5, 2)]
    found, expected = (
        table(parts, length),
        reference.vandermonde(torch.complex(*parts[:2]), torch.complex(*parts[2:]), length),
    )
    near(found, expected, FORWARD)
    weight = normal(2, 2, length, seed=5)
    for one, other in zip(grad(found, parts, weight.float()), grad(expected, parts, weight), strict=True):
        near(one, other, BACKWARD)


@pytest.mark.skipif(HAS_GPU, reason="a GPU does it itself")
@pytest.mark.parametrize("in_tf32", [1], indirect=True)
def test_one_tf32_product_would_not_be(in_tf32):
    with pytest.raises(AssertionError):
        check(2, 65, 2, 4, 2, chunked.CHUNK)


# -- where the mixers meet them


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Everything in float32 goes to the kernels; the names of those that ran."""
    from ssm_priors.ops.triton import launch

    ran: list[str] = []
    real = launch._launch
    monkeypatch.setattr(launch, "_launch", lambda name, *rest, **more: ran.append(name) or real(name, *rest, **more))
    monkeypatch.setattr(dispatch, "runs_triton", lambda u, dtype: dtype == torch.float32)
    return ran


@pytest.mark.parametrize("name", ["s4d", "dss", "dlr"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_mixer_computes_the_same_with_them(on_triton, name, causal):
    mixer = mixer_alone(name, causal=causal)
    u, lengths = normal(3, 70, 4), torch.tensor([70, 12, 41])
    found = []
    for dtype in (torch.float64, torch.float32):
        mixer = mixer.to(dtype)
        y = mixer(u.to(dtype), lengths)
        found.append([y, *grad(y[1, :12].square().sum() + y[0].square().sum(), list(mixer.parameters()))])
        assert bool(on_triton) == (dtype == torch.float32)
    for index, (exact, rough) in enumerate(zip(*found, strict=True)):
        near(rough, exact, BACKWARD if index else FORWARD)
    assert {"project", "carry", "emit", "correlate"} <= set(on_triton)
    near(mixer.kernel(70), mixer.double().kernel(70), FORWARD)
    assert on_triton[-1] == "vandermonde"


def test_an_s4d_block_is_one_graph_with_the_same_values_and_gradients(on_triton):
    mixer = S4D(S4D.Config(d_state=4), d_model=3, causal=False, dropout=0.0, rng=np.random.default_rng(0))
    block = Block(mixer, d_model=3, width=0, norm="layer", dropout=0.0)
    u, lengths = normal(2, 11, 3, dtype=torch.float32), torch.tensor([11, 6])
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own, which differ between versions of torch
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        found, expected = compiled(u, lengths), block(u, lengths)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        parameters = list(block.parameters())
        grads = grad(found.square().sum(), parameters)
        for one, other in zip(grads, grad(expected.square().sum(), parameters), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert on_triton


# -- the self-check


def test_they_pass_their_self_check():
    assert backend._failing_on_gpu(DEVICE) is None


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("project", 1e-2),
        ("carry", 1e-2),
        ("emit", float("nan")),
        ("correlate", 1e-2),
        ("vandermonde", float("nan")),
        ("vandermonde_backward", 1e-2),
    ],
)
def test_a_wrong_one_fails_the_self_check(monkeypatch, name, off):
    from ssm_priors.ops.triton import launch

    real = launch._launch

    def wrong(called, grid, tensors, *rest, **more):
        real(called, grid, tensors, *rest, **more)
        if called == name:
            tensors[-1] += off

    monkeypatch.setattr(launch, "_launch", wrong)
    assert "failed their self-check" in backend._failing_on_gpu(DEVICE)


def test_one_that_does_not_compile_fails_the_self_check(monkeypatch):
    from ssm_priors.ops.triton import launch

    def broken(*arguments, **more):
        raise RuntimeError("no assembler")

    monkeypatch.setattr(launch, "_launch", broken)
    assert "do not run here: RuntimeError: no assembler" in backend._failing_on_gpu(DEVICE)
