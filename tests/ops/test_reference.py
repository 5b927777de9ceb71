from __future__ import annotations

import math

import pytest
import torch
from builders import normal

from ssm_priors.ops import reference


def test_vandermonde_of_one_real_mode_is_a_geometric_series():
    C, log_z = (torch.tensor([[value]], dtype=torch.complex128) for value in (0.5, math.log(0.9)))
    kernel = reference.vandermonde(C, log_z, 40)
    torch.testing.assert_close(kernel[0], 0.9 ** torch.arange(40, dtype=torch.float64), rtol=1e-13, atol=0)


def test_vandermonde_of_one_complex_mode_is_a_damped_cosine():
    log_z = torch.tensor([[-0.1 + 0.7j]], dtype=torch.complex128)
    lags = torch.arange(30, dtype=torch.float64)
    kernel = reference.vandermonde(torch.ones(1, 1, 1, dtype=torch.complex128), log_z, 30)
    torch.testing.assert_close(kernel[0, 0], 2 * torch.exp(-0.1 * lags) * torch.cos(0.7 * lags), rtol=1e-13, atol=1e-13)


def test_convolution_with_an_impulse_shifts_and_never_wraps_around():
    u = torch.arange(1.0, 6.0)[None, :, None]
    kernel = torch.zeros(2, 1, 5)
    kernel[0, 0, 1] = 1
    kernel[1, 0, 1] = 10  # lag -2
    assert reference.convolution(u, kernel)[0, :, 0].tolist() == [30, 41, 52, 3, 4]


def test_the_recurrence_of_one_real_mode_sums_a_geometric_series():
    z, steps = 0.8, 25
    answer = reference.recurrence(
        torch.ones(1, steps, 1, dtype=torch.float64),
        torch.tensor([[0.5 + 0j]], dtype=torch.complex128),
        torch.tensor([[math.log(z) + 0j]], dtype=torch.complex128),
    )
    expected = (1 - z ** torch.arange(1, steps + 1, dtype=torch.float64)) / (1 - z)
    torch.testing.assert_close(answer[0, :, 0], expected, rtol=1e-13, atol=0)


def test_the_recurrence_is_the_convolution_with_its_kernel_in_both_directions():
    u, C = normal(2, 30, 3), torch.complex(normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2))
    log_z = torch.complex(-normal(3, 4, seed=3).abs(), normal(3, 4, seed=4))
    both = reference.recurrence(u, C[0], log_z) + reference.recurrence(u, C[1], log_z, reverse=True)
    # the reversed recurrence gives at t the state after reading t + 1 .. end: lag 0 of its kernel meets u[t + 1]
    torch.testing.assert_close(
        both, reference.convolution(u, reference.vandermonde(C, log_z, 30)), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_equal_scores_is_a_running_mean(causal):
    v = torch.arange(1.0, 5.0, dtype=torch.float64)[None, None, :, None]
    answer = reference.attention(torch.zeros_like(v), torch.zeros_like(v), v, torch.tensor([3]), causal)
    expected = [1, 1.5, 2, 2] if causal else [2, 2, 2, 2]
    assert answer[0, 0, :, 0].tolist() == pytest.approx(expected)


def test_attention_weighs_by_the_exponential_of_the_scaled_score():
    q = torch.full((1, 1, 2, 4), 1.0, dtype=torch.float64)
    k = torch.tensor([[0.0] * 4, [math.log(3) / 2] * 4], dtype=torch.float64)[None, None]  # scores 0 and ln 3
    v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)[None, None]
    answer = reference.attention(q, k, v, torch.tensor([2]), causal=False)
    torch.testing.assert_close(answer, torch.full((1, 1, 2, 1), 0.75, dtype=torch.float64))


@pytest.mark.parametrize(("causal", "expected"), [(True, [1, 1.5, 2.5, 3]), (False, [1.5, 2, 2.5, 3])])
def test_attention_with_equal_scores_is_a_mean_within_the_window(causal, expected):
    v = torch.arange(1.0, 5.0, dtype=torch.float64)[None, None, :, None]
    answer = reference.attention(torch.zeros_like(v), torch.zeros_like(v), v, torch.tensor([3]), causal, window=1)
    assert answer[0, 0, :, 0].tolist() == pytest.approx(expected)


def test_laplace_attention_of_one_key_is_a_normal_distribution_function_of_the_score():
    q, k, v = (torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in (0.6, 1.5, 2.0))
    answer = reference.laplace_attention(q, k, v, torch.tensor([1]), False, torch.tensor([[0.1]], dtype=torch.float64))
    expected = 1 + math.erf((0.6 * 1.5 + 0.1 - math.sqrt(0.5)) * math.sqrt(2 * math.pi))
    assert answer.item() == pytest.approx(expected, rel=1e-14)


def test_laplace_attention_divides_scores_by_the_keys_seen():
    one, v = (
        torch.ones(1, 1, 4, 1, dtype=torch.float64),
        torch.tensor([1.0, 10, 100, 1000]).double()[None, None, :, None],
    )
    answer = reference.laplace_attention(one, one, v, torch.tensor([3]), True, torch.zeros(4, 4).double())[0, 0, :, 0]
    weight = [(1 + math.erf((1 / keys - math.sqrt(0.5)) * math.sqrt(2 * math.pi))) / 2 for keys in (1, 2, 3)]
    assert answer.tolist() == pytest.approx([weight[0], 11 * weight[1], 111 * weight[2], 111 * weight[2]], rel=1e-14)


def test_a_moving_average_of_an_impulse_decays_to_both_sides_from_the_impulse_itself():
    u = torch.tensor([0.0, 0, 1, 0], dtype=torch.float64)[None, :, None]
    weight, q = torch.tensor([3.0, 10]).double()[:, None, None], torch.tensor([0.5, 0.1]).double()[:, None, None]
    assert reference.moving_average(u, weight[:1], q[:1])[0, :, 0].tolist() == [0, 0, 3, 1.5]
    assert reference.moving_average(u, weight, q)[0, :, 0].tolist() == pytest.approx([0.1, 1, 13, 1.5])
