from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from builders import config, model
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.config import PhaseConfig
from ssm_priors.models.protocols import HasSsmParameters
from ssm_priors.registry import MIXERS
from ssm_priors.training.optimiser import DT, adamw, parameter_groups, rate_factor, set_rate


def phase(**settings) -> PhaseConfig:
    return config(finetune=settings).finetune


SETTINGS = phase(learning_rate=0.1, weight_decay=0.1, ssm_learning_rate=0.05)
AT_THE_TOP = phase(warmup=0.0)


@pytest.mark.parametrize("name", MIXERS)
def test_with_zero_gradients_only_matrices_move_and_by_the_decay_alone(name):
    network = model(name, layers=2, norm="batch", expand=1)
    before = {key: parameter.detach().clone() for key, parameter in network.named_parameters()}
    optimiser = adamw(network, SETTINGS)
    set_rate(optimiser, AT_THE_TOP, 0, AT_THE_TOP.epochs, 1)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    parts = [part for part in network.modules() if isinstance(part, HasSsmParameters)]
    own_rate = {id(parameter) for part in parts for parameter in part.ssm_parameters()}
    moved = 0
    for key, parameter in network.named_parameters():
        if parameter.ndim == 1 or id(parameter) in own_rate:
            assert torch.equal(parameter, before[key]), key
        else:
            torch.testing.assert_close(parameter.detach(), before[key] * 0.99, rtol=1e-6, atol=0)
            moved += 1
    assert moved >= 4


def test_the_groups_of_s4d_are_A_and_dt_then_vectors_then_matrices():
    network = model()
    names = {id(parameter): key.split(".")[-1] for key, parameter in network.named_parameters()}
    groups = {
        group["name"]: {names[id(one)] for one in group["params"]} for group in parameter_groups(network, SETTINGS)
    }
    assert groups["ssm"] == {"log_dt", "log_A_real", "A_imag"}
    assert groups["vectors"] == {"D", "bias", "weight"}
    assert groups["matrices"] == {"C", "weight"}


def test_ssm_parameters_train_at_their_own_rate_and_stand_still_at_zero():
    for rate, still in ((0.05, False), (0.0, True)):
        network = model(layers=1)
        before = network.mixers[0].A_imag.detach().clone()
        optimiser = adamw(network, phase(ssm_learning_rate=rate))
        set_rate(optimiser, AT_THE_TOP, 0, AT_THE_TOP.epochs, 1)
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        moved = (network.mixers[0].A_imag.detach() - before).abs()
        assert (moved.max() == 0) if still else moved.allclose(torch.tensor(rate), atol=1e-5)


def test_the_groups_are_named_counted_and_have_their_settings():
    groups = {group["name"]: group for group in parameter_groups(model(layers=3), SETTINGS)}
    assert {name: (group["peak_lr"], group["weight_decay"]) for name, group in groups.items()} == {
        "ssm": (0.05, 0.0),
        "vectors": (0.1, 0.0),
        "matrices": (0.1, 0.1),
    }
    assert len(groups["ssm"]["params"]) == 3 * 3


def test_a_model_without_a_state_space_has_no_such_group():
    assert [group["name"] for group in parameter_groups(model("transformer"), SETTINGS)] == ["vectors", "matrices"]


@pytest.mark.parametrize("name", [name for name in MIXERS if hasattr(MIXERS[name].Config(), "dt_min")])
def test_dt_trains_at_a_rate_of_its_own_if_it_has_one(name):
    network = model(name, layers=2)
    of_dt = {id(one) for key, one in network.named_parameters() if key.endswith(DT)}
    assert len(of_dt) == 2
    for rate in (0.07, 0.0):
        groups = {group["name"]: group for group in parameter_groups(network, phase(dt_learning_rate=rate))}
        assert {id(one) for one in groups["dt"]["params"]} == of_dt
        assert (groups["dt"]["peak_lr"], groups["dt"]["weight_decay"]) == (rate, 0)
        assert not {id(one) for one in groups["ssm"]["params"]} & of_dt
    assert "dt" not in {group["name"] for group in parameter_groups(network, phase())}


def test_vectors_decay_if_they_are_to_and_the_state_space_never_does():
    groups = {group["name"]: group["weight_decay"] for group in parameter_groups(model(), phase(decay_vectors=True))}
    assert groups == {"ssm": 0, "vectors": 0.01, "matrices": 0.01}


def test_the_memory_of_squares_is_the_optimisers():
    assert {group["betas"] for group in adamw(model(), phase(beta2=0.98)).param_groups} == {(0.9, 0.98)}
    assert adamw(model(), phase()).defaults["betas"] == (0.9, 0.999)


def test_the_weights_of_dlr_are_as_slow_as_its_modes_if_they_are_to_be():
    for slow in (True, False):
        network = model("dlr", mixer={"slow_weights": slow}, layers=1)
        ssm = {id(one) for one in parameter_groups(network, SETTINGS)[0]["params"]}
        assert (id(network.mixers[0].W) in ssm) == slow


# -- the rate's course


def course(per_epoch: int, **settings) -> list[float]:
    chosen = phase(**settings)
    return [
        rate_factor(chosen, step, chosen.epochs * per_epoch, per_epoch) for step in range(chosen.epochs * per_epoch)
    ]


def test_the_corners_of_warm_up_and_cosine():
    for factors in (course(100, epochs=10, warmup=0.1), course(50, epochs=20, warmup_steps=100, warmup=0.7)):
        assert factors[0] == 0.01
        assert factors[99] == 1
        assert factors[100] == 1
        assert factors[550] == pytest.approx(0.5)
        assert 0 < factors[999] < 1e-5
        assert all(factor > 1e-5 for factor in factors[:-3])
    assert rate_factor(phase(epochs=1), 1000, 1000, 1000) == pytest.approx(0, abs=1e-15)


@given(steps=st.integers(1, 400), warmup=st.floats(0, 0.99))
def test_the_rate_is_continuous_positive_and_has_one_top_for_any_course(steps, warmup):
    optimiser = torch.optim.SGD([{"params": [torch.zeros(1)], "peak_lr": 2.0}], lr=0.0)
    settings = phase(epochs=steps, warmup=warmup)
    rates = []
    for step in range(steps):
        set_rate(optimiser, settings, step, settings.epochs, 1)
        rates.append(optimiser.param_groups[0]["lr"])
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(2.0)
    assert all(rate > 0 for rate in rates)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    ramp = max(round(warmup * steps), 1)
    largest = 2 * max(1 / ramp, 1.6 / max(steps - round(warmup * steps), 1)) + 1e-9
    assert all(abs(b - a) <= largest for a, b in pairwise(rates))


def test_no_warm_up_begins_at_the_top():
    assert course(10, epochs=1, warmup=0.0)[0] == 1
    assert rate_factor(phase(epochs=1, warmup=0.99), 0, 1, 1) == 1


@pytest.mark.parametrize("settings", [{"warmup": 0.25}, {"warmup_steps": 5}])
def test_a_constant_rate_stays_at_its_peak_after_the_warm_up(settings):
    factors = course(4, epochs=5, schedule="constant", **settings)
    assert factors == [0.2, 0.4, 0.6, 0.8, *[1.0] * 16]


def test_a_multistep_rate_falls_at_whole_epochs():
    factors = course(4, epochs=7, schedule="multistep", step_epochs=3, step_factor=0.5, warmup=0.0)
    assert factors == [*[1.0] * 12, *[0.5] * 12, *[0.25] * 4]
