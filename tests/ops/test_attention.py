from __future__ import annotations

import math

import pytest
import torch
from builders import normal
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ssm_priors.ops import reference
from ssm_priors.ops.attention import attention, laplace_attention, local_attention, rotate, sinusoid


def qkv(batch: int, heads: int, length: int, d: int = 4) -> list[torch.Tensor]:
    return [normal(batch, heads, length, d, seed=seed) for seed in range(3)]


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), causal=st.booleans(), more=st.integers(0, 4))
def test_valid_outputs_equal_the_defining_form(lengths, causal, more):
    lengths = torch.tensor(lengths)
    parts = qkv(len(lengths), 2, int(lengths.max()) + more)
    found, expected = attention(*parts, lengths, causal), reference.attention(*parts, lengths, causal)
    assert torch.isfinite(found).all()
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :, :length], expected[row, :, :length], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_never_a_key(causal):
    lengths = torch.tensor([5, 9])
    parts = qkv(2, 2, 9)
    garbage = [part.clone() for part in parts]
    for part in garbage:
        part[0, :, 5:] = 1e3
    before, after = attention(*parts, lengths, causal), attention(*garbage, lengths, causal)
    torch.testing.assert_close(before[0, :, :5], after[0, :, :5], rtol=1e-12, atol=1e-12)


def test_a_causal_query_sees_exactly_the_past():
    parts = qkv(1, 2, 64)
    changed = [part.clone() for part in parts]
    for part in changed:
        part[:, :, 40] += 1
    lengths = torch.tensor([64])
    before, after = attention(*parts, lengths, True), attention(*changed, lengths, True)
    assert torch.equal(before[:, :, :40], after[:, :, :40])
    assert not torch.equal(before[:, :, 40:], after[:, :, 40:])


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_right(causal):
    parts = [part.requires_grad_() for part in qkv(2, 1, 4)]
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, torch.tensor([4, 4]), causal), parts)


def test_dropout_zeroes_weights_and_keeps_the_mean():
    q = torch.zeros(1, 1, 200, 4)
    v = torch.ones(1, 1, 200, 4)
    torch.manual_seed(0)
    dropped = attention(q, q, v, torch.tensor([200]), False, dropout=0.5)
    assert dropped.std() > 0.01
    assert dropped.mean().item() == pytest.approx(1, abs=0.05)


def test_rotated_scores_depend_on_the_distance_only():
    q, k = (normal(1, 1, 1, 8, seed=seed).expand(1, 1, 50, 8) for seed in (0, 1))
    scores = (rotate(q) @ rotate(k).transpose(-1, -2))[0, 0]
    for offset in (-7, 0, 1, 13):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-11, atol=1e-11)
    assert scores.diagonal(1)[0] != pytest.approx(scores.diagonal(2)[0].item(), abs=1e-3)


def test_rotation_keeps_lengths_and_leaves_the_first_position():
    x = normal(2, 3, 20, 6)
    torch.testing.assert_close(rotate(x).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rotate(x)[:, :, 0], x[:, :, 0])


def test_rotation_turns_the_first_pair_by_one_radian_a_step():
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    x[..., 0] = 1
    t = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(rotate(x)[0, 0, :, 0], t.cos())
    torch.testing.assert_close(rotate(x)[0, 0, :, 1], t.sin())


def test_rotation_in_float32_is_right_at_position_sixteen_thousand():
    x = normal(1, 1, 16_385, 2)
    rough = rotate(x.float()).double()
    assert (rough - rotate(x)).abs().max() < 1e-5


# -- windows


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    causal=st.booleans(),
    window=st.integers(1, 45),
    more=st.integers(0, 30),
)
def test_a_window_equals_dense_attention_with_the_same_band(lengths, causal, window, more):
    lengths = torch.tensor(lengths)
    parts = qkv(len(lengths), 2, int(lengths.max()) + more)
    found = local_attention(*parts, lengths, causal, window)
    expected = reference.attention(*parts, lengths, causal, window)
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :, :length], expected[row, :, :length], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_through_a_window_are_right_and_finite_where_only_padding_is_seen(causal):
    parts = [part.requires_grad_() for part in qkv(2, 1, 9)]
    lengths = torch.tensor([9, 2])
    assert torch.autograd.gradcheck(lambda *qkv: local_attention(*qkv, lengths, causal, 2), parts)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_reaches_exactly_so_far(causal):
    parts = qkv(1, 1, 50)
    changed = [part.clone() for part in parts]
    for part in changed[1:]:
        part[:, :, 23] += 1
    full = torch.tensor([50])
    moved = (local_attention(*parts, full, causal, 7) != local_attention(*changed, full, causal, 7)).any(-1)[0, 0]
    assert moved.nonzero().flatten().tolist() == list(range(23 if causal else 16, 31))


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        for part in answer if isinstance(answer, (tuple, list)) else [answer]:
            if isinstance(part, torch.Tensor):
                self.size = max(self.size, part.numel())
        return answer


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_makes_nothing_of_the_size_of_length_squared(causal):
    length, window = 8192, 8
    parts = [part.requires_grad_() for part in qkv(1, 1, length, 4)]
    with Largest() as largest:
        local_attention(*parts, torch.tensor([length - 3]), causal, window).sum().backward()
    assert length < largest.size <= 4 * length * window


# -- Laplace


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3), causal=st.booleans(), more=st.integers(0, 4))
def test_laplace_attention_equals_the_defining_form(lengths, causal, more):
    lengths = torch.tensor(lengths)
    length = int(lengths.max()) + more
    parts, bias = qkv(len(lengths), 2, length), normal(length, length, seed=7)
    found = laplace_attention(*parts, lengths, causal, bias)
    expected = reference.laplace_attention(*parts, lengths, causal, bias)
    for row, valid in enumerate(lengths):
        torch.testing.assert_close(found[row, :, :valid], expected[row, :, :valid], rtol=1e-11, atol=1e-11)


def test_the_laplace_function_has_the_value_and_slope_of_a_squared_relu_at_its_mean():
    x = torch.tensor(math.sqrt(0.5), dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    y = laplace_attention(x * one, one, one, torch.tensor([1]), False, 0 * one[0, 0]).sum()
    y.backward()
    assert y.item() == pytest.approx(0.5, rel=1e-14)
    assert x.grad.item() == pytest.approx(math.sqrt(2), rel=1e-14)


# -- positions


@pytest.mark.parametrize("channels", [1, 6, 7])
def test_sinusoids_are_their_formula(channels):
    table = sinusoid(300, channels)
    assert table.shape == (300, channels)
    for t, channel in [(0, 0), (1, 0), (299, channels - 1), (17, channels // 2)]:
        angle = t / 10_000 ** (2 * (channel // 2) / channels)
        expected = math.cos(angle) if channel % 2 else math.sin(angle)
        assert table[t, channel].item() == pytest.approx(expected, abs=1e-12)


def test_sinusoids_are_the_published_table(golden):
    saved = torch.load(golden / "nfs_transformer_plain.ckpt", weights_only=True)["state_dict"]["encoder.1.pe"]
    table = saved.reshape(-1, saved.shape[-1]).double()
    error = (sinusoid(*table.shape) - table).abs()
    assert error.max() < 1e-5  # its angles, up to 255, were rounded to float32
    assert error[:8].max() < 1e-6
