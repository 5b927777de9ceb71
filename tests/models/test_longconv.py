from __future__ import annotations

import pytest
import torch
from builders import mixer_alone, model, normal

from ssm_priors.ops import reference


def with_skip(mixer: torch.nn.Module, u: torch.Tensor) -> torch.Tensor:
    return reference.convolution(u, mixer.kernel(u.shape[1])) + mixer.D * u


@pytest.mark.parametrize("causal", [True, False])
def test_the_kernel_is_its_formula(causal):
    mixer = mixer_alone("longconv", causal=causal, max_length=20)
    rate = mixer.log_rate.exp()
    kernel = mixer.kernel(20)
    assert kernel.shape == (1 if causal else 2, 4, 20)
    for lag in (0, 1, 19):
        torch.testing.assert_close(kernel[..., lag], mixer.weights[..., lag] * torch.exp(-rate * lag))


@pytest.mark.parametrize("decay", [True, False])
def test_a_kernel_is_the_start_of_a_longer_one_and_ends_at_its_reach(decay):
    mixer = mixer_alone("longconv", causal=False, max_length=20, decay=decay)
    longer = mixer.kernel(50)
    assert longer.shape == (2, 4, 50)
    assert (longer[..., 20:] == 0).all()
    assert (longer[..., :20] != 0).all()
    assert torch.equal(mixer.kernel(7), longer[..., :7])


def test_without_decay_the_kernel_is_free():
    mixer = mixer_alone("longconv", causal=True, max_length=20, decay=False)
    assert torch.equal(mixer.kernel(20), mixer.weights)
    assert mixer.ssm_parameters() == []


@pytest.mark.parametrize("causal", [True, False])
def test_it_reads_out_the_convolution_and_the_skip(causal):
    mixer = mixer_alone("longconv", causal=causal, max_length=20)
    u = normal(2, 33, 4)
    a, b = mixer.output(torch.nn.functional.gelu(with_skip(mixer, u))).chunk(2, dim=-1)
    torch.testing.assert_close(mixer(u, torch.tensor([33, 33])), a * torch.sigmoid(b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_gates_stand_on_both_sides_of_the_convolution(causal):
    mixer = mixer_alone("longconv", causal=causal, max_length=20, gated=True)
    u = normal(2, 33, 4)
    outer, gate, value = mixer.input(u).split(4, dim=-1)
    expected = mixer.output(outer * with_skip(mixer, gate * value))
    torch.testing.assert_close(mixer(u, torch.tensor([33, 33])), expected, rtol=1e-10, atol=1e-10)


def test_an_input_beyond_the_reach_is_not_seen():
    mixer = mixer_alone("longconv", causal=False, max_length=20)
    u = normal(1, 90, 4)
    changed = u.clone()
    changed[0, 40] += 1
    moved = (mixer(changed, torch.tensor([90])) - mixer(u, torch.tensor([90])))[0].abs().amax(-1)
    # the backward kernel starts one step away, so it reaches one step farther
    assert moved[:20].max() < 1e-12
    assert moved[60:].max() < 1e-12
    assert moved[20:60].min() > 1e-9


@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("max_length", [1, 100, 3000])
def test_the_expected_energy_at_the_start_is_one(decay, max_length):
    mixer = model("longconv", d_model=400, mixer={"max_length": max_length, "decay": decay}).mixers[0]
    assert mixer.kernel(max_length).square().sum(-1).mean().item() == pytest.approx(1, abs=0.15)


def test_a_rate_cannot_turn_into_growth():
    mixer = mixer_alone("longconv", causal=True, max_length=1000)
    with torch.no_grad():
        mixer.weights.fill_(1)
        mixer.log_rate.copy_(torch.tensor([-100.0, 100.0, -30.0, 30.0]))
    kernel = mixer.kernel(1000)
    assert (kernel.diff(dim=-1) <= 0).all()
    assert (kernel[0, [0, 2], -1] < 1).all()
    kernel.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in (mixer.weights, mixer.log_rate))


def test_half_precision_leaves_the_rates_as_they_were():
    mixer = mixer_alone("longconv", causal=True).float()
    before = mixer.log_rate.clone()
    assert torch.equal(mixer.bfloat16().log_rate, before)
    assert mixer.weights.dtype == torch.bfloat16
    assert mixer.kernel(10).dtype == torch.float32
