"""What holds for every mixer there is, and every one there will be."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from builders import CONTINUOUS, config, mixer_alone, model, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ssm_priors.models.backbone import Block
from ssm_priors.models.build import fresh_head, parameter_count
from ssm_priors.models.protocols import HasKernel, HasPrefill, HasSpectrum, HasSsmParameters, HasStep, Mixer
from ssm_priors.priors import response
from ssm_priors.priors.discretise import RULES
from ssm_priors.registry import INITS, MIXERS, source, summary
from ssm_priors.seeds import numpy_stream
from ssm_priors.training.optimiser import parameter_groups

LENGTHS = torch.tensor([5, 17, 32])
SSMS = [name for name in MIXERS if isinstance(mixer_alone(name, causal=True), HasSpectrum)]
STEPPERS = [name for name in MIXERS if isinstance(mixer_alone(name, causal=True), HasStep)]
PREFILLERS = [name for name in STEPPERS if isinstance(mixer_alone(name, causal=True), HasPrefill)]
CONVOLUTIONS = [name for name in MIXERS if isinstance(mixer_alone(name, causal=True), HasKernel)]
INITIALISED = [name for name in SSMS if hasattr(MIXERS[name].Config(), "init")]


def by_discretisation(names: list[str]) -> list:
    """Each of these mixers under every discretisation it offers, or once as it is."""
    return [
        pytest.param(name, {"discretisation": rule} if rule else {}, id=f"{name}-{rule}" if rule else name)
        for name in names
        for rule in get_args(get_type_hints(MIXERS[name].Config).get("discretisation")) or [None]
    ]


each_ssm = pytest.mark.parametrize(("name", "options"), by_discretisation(SSMS))
each_stepper = pytest.mark.parametrize(("name", "options"), by_discretisation(STEPPERS))

each_mixer = pytest.mark.parametrize("name", MIXERS)
either_side = pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])


def stack(name: str, *, causal: bool, layers: int = 4, **changes: object) -> nn.Module:
    """A backbone in float64 and evaluation mode, with every bias at 1, so that padding is refilled after each layer."""
    made = model(name, layers=layers, causal=causal, **changes).backbone.double().eval()
    with torch.no_grad():
        for parameter_name, parameter in made.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.fill_(1)
    return made


def fill_padding(u: Tensor, lengths: Tensor, value: float) -> Tensor:
    padded = torch.arange(u.shape[1]) >= lengths[:, None]
    return u.masked_fill(padded[..., None], value)


def valid(y: Tensor, lengths: Tensor) -> list[Tensor]:
    return [row[:length] for row, length in zip(y, lengths, strict=True)]


@each_mixer
def test_it_says_what_it_is_and_where_it_comes_from(name):
    assert summary(MIXERS[name])
    assert source(MIXERS[name])
    assert isinstance(mixer_alone(name, causal=True), Mixer)


@each_mixer
@either_side
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("garbage", [1e4, float("nan"), float("inf")])
def test_what_stands_in_the_padding_changes_no_valid_output(name, causal, norm, garbage):
    network = stack(name, causal=causal, norm=norm, expand=2)
    u = normal(3, 32, 8)
    together = valid(network(fill_padding(u, LENGTHS, 0), LENGTHS), LENGTHS)
    alone = [
        network(u[row : row + 1, :length], torch.tensor([length]))[0] for row, length in enumerate(LENGTHS.tolist())
    ]
    longer = torch.cat([fill_padding(u, LENGTHS, garbage), torch.full((3, 32, 8), garbage, dtype=u.dtype)], dim=1)
    padded = valid(network(longer, LENGTHS), LENGTHS)
    for one, other, third in zip(together, alone, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(third, other, rtol=1e-10, atol=1e-10)


@each_mixer
@either_side
@pytest.mark.parametrize(("make", "garbage"), [(stack, 1e4), (mixer_alone, 1e4), (mixer_alone, float("nan"))])
def test_what_stands_in_the_padding_changes_no_gradient(name, causal, make, garbage):
    network = stack(name, causal=causal) if make is stack else mixer_alone(name, causal=causal, d_model=8)
    u, target = normal(3, 32, 8), normal(3, 32, 8, seed=1)

    def gradients(value: float) -> dict[str, Tensor]:
        network.zero_grad()
        leaf = fill_padding(u, LENGTHS, value).requires_grad_()
        answers = valid(network(leaf, LENGTHS) * target, LENGTHS)
        torch.cat(answers).sum().backward()
        found = {key: parameter.grad.clone() for key, parameter in network.named_parameters()}
        return found | {"input": torch.cat(valid(leaf.grad, LENGTHS))}

    clean, dirty = gradients(0), gradients(garbage)
    for key, grad in clean.items():
        torch.testing.assert_close(dirty[key], grad, rtol=1e-9, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")


@each_mixer
@either_side
def test_a_whole_model_answers_the_same_alone_and_in_company(name, causal):
    network = model(name, layers=2, causal=causal, expand=1, positions="learned").double().eval()
    x = normal(3, 64, 1)
    dirty = fill_padding(x, LENGTHS, 1e6)
    together = network(dirty, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = network(x[row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-10, atol=1e-10)


@each_mixer
@either_side
def test_whole_model_gradients_ignore_the_padding(name, causal):
    network = model(name, layers=2, causal=causal).double()
    x = normal(3, 40, 1)

    def gradients(value: float) -> list[Tensor]:
        network.zero_grad()
        network(fill_padding(x, LENGTHS, value), LENGTHS).square().sum().backward()
        return [parameter.grad.clone() for parameter in network.parameters()]

    for clean, dirty in zip(gradients(0), gradients(1e5), strict=True):
        torch.testing.assert_close(dirty, clean, rtol=1e-9, atol=1e-10)


@each_mixer
def test_training_statistics_of_batch_norm_ignore_the_padding(name):
    u = normal(3, 32, 8)
    clean, dirty = (stack(name, causal=False, layers=2, norm="batch").train() for _ in range(2))
    for network, value in ((clean, 0), (dirty, 1e4)):
        network(fill_padding(u, LENGTHS, value), LENGTHS)
    for key, tensor in clean.state_dict().items():
        torch.testing.assert_close(dirty.state_dict()[key], tensor, rtol=1e-10, atol=1e-10)


@each_mixer
def test_a_causal_mixer_sees_no_later_input(name):
    mixer = mixer_alone(name, causal=True)
    u = normal(1, 1024, 4)
    changed = u.clone()
    changed[0, 512] += 1
    full = torch.tensor([1024])
    difference = (mixer(changed, full) - mixer(u, full))[0]
    assert difference[:512].abs().max() < (1e-12 if isinstance(mixer, HasKernel) else 5e-324)
    assert difference[512:].abs().max() > 1e-6


@each_mixer
def test_a_two_sided_mixer_does_see_later_inputs(name):
    mixer = mixer_alone(name, causal=False)
    u = normal(1, 64, 4)
    changed = u.clone()
    changed[0, 32] += 1
    full = torch.tensor([64])
    assert (mixer(changed, full) - mixer(u, full))[0, :32].abs().max() > 1e-6


@each_mixer
@either_side
@given(length=st.integers(1, 70))
@settings(max_examples=12)
def test_any_length_goes_through_and_gives_finite_gradients(name, causal, length):
    mixer = mixer_alone(name, causal=causal).train()
    u = normal(2, length, 4).requires_grad_()
    y = mixer(u, torch.tensor([length, 1]))
    assert y.shape == u.shape
    y[0].sum().backward()
    assert torch.isfinite(u.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


@each_mixer
def test_evaluation_is_repeatable_and_dropout_belongs_to_training(name):
    network = model(name, dropout=0.5, layers=2)
    x, lengths = normal(2, 20, 1, dtype=torch.float32), torch.tensor([20, 9])
    network.eval()
    assert torch.equal(network(x, lengths), network(x, lengths))
    network.train()
    assert not torch.equal(network(x, lengths), network(x, lengths))


# -- steps


@torch.no_grad()
def steps(one_step, state: Tensor, u: Tensor) -> Tensor:
    outputs = []
    for t in range(u.shape[1]):
        y, state = one_step(u[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@each_stepper
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_stepping_equals_the_whole_sequence_at_once(name, options, skip, dtype, tolerance):
    mixer = mixer_alone(name, causal=True, d_model=3, **options).to(dtype)
    if not skip and hasattr(mixer, "D"):
        nn.init.zeros_(mixer.D)
    u = normal(2, 200, 3).to(dtype)
    at_once = mixer(u, torch.tensor([200, 200]))
    stepped = steps(mixer.step, mixer.initial_state(2), u)
    assert stepped.dtype == dtype
    assert relative(stepped, at_once) < tolerance
    assert torch.equal(stepped, steps(mixer.step, mixer.initial_state(2), u))


@each_stepper
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("expand", [0, 2])
def test_stepping_through_a_block_equals_the_whole_sequence_at_once(name, options, norm, norm_position, expand):
    mixer = mixer_alone(name, causal=True, **options)
    block = Block(mixer, d_model=4, width=4 * expand, norm=norm, norm_position=norm_position, dropout=0.3).double()
    block(normal(3, 20, 4, seed=9), torch.tensor([20, 20, 20]))  # running statistics that are not 0 and 1
    block.eval()
    u = normal(2, 50, 4)
    stepped = steps(block.step, mixer.initial_state(2), u)
    assert relative(stepped, block(u, torch.tensor([50, 50]))) < 1e-10


@pytest.mark.parametrize("name", STEPPERS)
def test_stepping_leaves_the_weights_alone_and_follows_them_when_they_change(name):
    mixer = mixer_alone(name, causal=True)
    u = normal(1, 5, 4)
    before = copy.deepcopy(mixer.state_dict())
    first = steps(mixer.step, mixer.initial_state(1), u)
    assert all(torch.equal(tensor, before[key]) for key, tensor in mixer.state_dict().items())
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1
    second = steps(mixer.step, mixer.initial_state(1), u)
    assert not torch.equal(first, second)
    assert relative(second, mixer(u, torch.tensor([5]))) < 1e-10


@pytest.mark.parametrize("name", STEPPERS)
def test_a_two_sided_mixer_refuses_to_step(name):
    mixer = mixer_alone(name, causal=False)
    with pytest.raises(Exception, match="causal"):
        mixer.step(normal(1, 4), mixer.initial_state(1))


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), by_discretisation(PREFILLERS))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("prompt", [1, 3, 5, 130])
def test_prefilling_a_prompt_leaves_the_state_that_stepping_does(name, options, dtype, tolerance, prompt):
    mixer = mixer_alone(name, causal=True, d_model=3, **options).to(dtype)
    u, outputs = normal(2, prompt + 7, 3).to(dtype), []
    start, expected = mixer.step(u[:, 0], mixer.initial_state(2))
    state = expected.clone()
    for t in range(1, prompt + 1):
        y, expected = mixer.step(u[:, t], expected)
        outputs.append(y)
    found, state = mixer.prefill(u[:, 1 : prompt + 1], state)
    assert state.shape == expected.shape
    assert found.dtype == dtype
    assert state.dtype == expected.dtype
    assert relative(found, torch.stack(outputs, dim=1)) < tolerance
    assert relative(state, expected) < tolerance
    whole = torch.cat([start[:, None], found, steps(mixer.step, state, u[:, prompt + 1 :])], dim=1)
    full = torch.tensor([prompt + 7] * 2)
    assert relative(whole, mixer(u, full)) < tolerance


@pytest.mark.parametrize("name", PREFILLERS)
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_prefilling_through_a_block_equals_the_whole_sequence_at_once(name, norm_position):
    mixer = mixer_alone(name, causal=True)
    block = Block(mixer, d_model=4, width=8, norm="layer", norm_position=norm_position, dropout=0.3).double().eval()
    u = normal(2, 50, 4)
    first, state = block.prefill(u[:, :43], mixer.initial_state(2))
    second, _ = block.prefill(u[:, 43:], state)
    assert relative(torch.cat([first, second], dim=1), block(u, torch.tensor([50, 50]))) < 1e-10


def test_the_diagonal_state_spaces_prefill():
    assert {"s4d", "dss", "dlr", "lru", "s5"} <= set(PREFILLERS)


@pytest.mark.parametrize("name", PREFILLERS)
def test_a_two_sided_mixer_refuses_to_prefill(name):
    mixer = mixer_alone(name, causal=False)
    with pytest.raises(Exception, match="causal"):
        mixer.prefill(normal(1, 4, 4), mixer.initial_state(1))


# -- kernels, spectra, state


@pytest.mark.parametrize(("name", "options"), by_discretisation([name for name in SSMS if name in CONVOLUTIONS]))
@either_side
def test_the_kernel_follows_from_the_spectrum(name, options, causal):
    mixer = mixer_alone(name, causal=causal, **options)
    spectrum = mixer.spectrum()
    log_z, gain = spectrum.per_step()
    expected = response.kernel(spectrum.weight * gain, log_z, 300)
    found = mixer.kernel(300).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@each_ssm
@either_side
def test_a_spectrum_has_one_row_a_channel_or_one_for_all(name, options, causal):
    spectrum = mixer_alone(name, causal=causal, **options).spectrum()
    rows, modes = spectrum.eigenvalue.shape
    assert rows in (1, 4)
    assert spectrum.dt.shape in ((rows,), (rows, modes))
    assert spectrum.weight.shape == (1 if causal else 2, rows, modes)
    assert spectrum.discretisation in RULES
    assert options.get("discretisation") in (spectrum.discretisation, "dss-exp", "dss-softmax", None)


@pytest.mark.parametrize("name", INITIALISED)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_the_init_survives_building_moving_and_changing_the_head(name, init, norm):
    options = config(name, model={"mixer": {"init": init, "d_state": 16}})
    network = model(name, mixer={"init": init, "d_state": 16}, layers=3, norm=norm, expand=1)

    def right(tolerance: float) -> None:
        for layer, mixer in enumerate(network.mixers):
            assert isinstance(mixer, HasSpectrum)
            spectrum = mixer.spectrum()
            assert ((spectrum.dt > 1e-3 * (1 - 1e-6)) & (spectrum.dt < 1e-1 * (1 + 1e-6))).all()
            rows, modes = len(np.unique(spectrum.eigenvalue, axis=0)), spectrum.eigenvalue.shape[1]
            expected = INITS[init](2 * modes, rows, numpy_stream(0, "init", layer))
            expected = np.broadcast_to(expected, spectrum.eigenvalue.shape)  # one row for all that share it
            np.testing.assert_allclose(spectrum.eigenvalue, expected, rtol=tolerance)

    right(1e-6)
    network.double()
    right(1e-6)
    network.to(torch.float32).to("cpu")
    right(1e-6)
    network.head = fresh_head(options.model, 0, outputs=7, pooled=True)
    right(1e-6)


@each_mixer
def test_the_state_dict_is_real_contiguous_and_owns_its_storage(name):
    for key, tensor in model(name, norm="batch", positions="learned").state_dict().items():
        assert not tensor.is_complex(), key
        assert tensor.is_contiguous(), key
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), key


@each_mixer
@either_side
def test_the_state_dict_does_not_depend_on_any_length_seen(name, causal):
    long = model(name, causal=causal)
    long(normal(1, 400, 1, dtype=torch.float32), torch.tensor([400]))
    short = model(name, replace(CONTINUOUS, length=100), causal=causal, seed=1)
    short(normal(1, 100, 1, dtype=torch.float32), torch.tensor([100]))
    short.load_state_dict(long.state_dict())
    x = normal(1, 100, 1, dtype=torch.float32)
    assert torch.equal(short.eval()(x, torch.tensor([100])), long.eval()(x, torch.tensor([100])))


@pytest.mark.parametrize("name", SSMS)
@pytest.mark.parametrize("convert", ["float64", "double", "bfloat16", "half", "float"])
def test_no_change_of_dtype_harms_an_eigenvalue(name, convert):
    network = model(name, mixer=inverse(name))
    before = network.mixers[0].spectrum()
    network = network.to(torch.float64) if convert == "float64" else getattr(network, convert)()
    after = network.mixers[0].spectrum()
    np.testing.assert_allclose(after.eigenvalue.imag, before.eigenvalue.imag, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(after.eigenvalue.real, before.eigenvalue.real, rtol=1e-6)
    np.testing.assert_allclose(after.dt, before.dt, rtol=1e-6)


@each_mixer
def test_a_conversion_to_double_is_complete(name):
    network = model(name).double()
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float64}
    for mixer in network.mixers:
        if isinstance(mixer, HasKernel):
            rough, exact = model(name).mixers[0].kernel(64).double(), mixer.kernel(64)
            assert exact.dtype == torch.float64
            assert 0 < (rough - exact).abs().max() < 1e-5 * exact.abs().max()


@each_mixer
@either_side
@pytest.mark.parametrize("length", [196, 784])
def test_a_model_turned_to_bfloat16_runs_forward_and_backward_near_float32(name, causal, length):
    network = model(name, causal=causal)
    x, lengths = normal(2, length, 1, dtype=torch.float32), torch.tensor([length, length // 2])
    exact = network(x, lengths)
    half = copy.deepcopy(network).bfloat16()
    rough = half(x.bfloat16(), lengths)
    rough.float().sum().backward()
    assert relative(rough.float(), exact) < 2e-2
    assert all(torch.isfinite(parameter.grad).all() for parameter in half.parameters())


@each_mixer
@either_side
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_forward_and_backward_near_float32(name, causal, norm, dtype):
    network = model(name, causal=causal, norm=norm, expand=1)
    x, lengths = normal(2, 196, 1, dtype=torch.float32), torch.tensor([196, 100])
    exact = network(x, lengths)
    with torch.autocast("cpu", dtype=dtype):
        rough = network(x, lengths)
    rough.float().sum().backward()
    assert relative(rough.float(), exact) < 2e-2
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_autocast_leaves_the_kernel_in_float32(name):
    mixer = model(name).mixers[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mixer.kernel(196)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, mixer.kernel(196))


@each_ssm
def test_a_raw_parameter_cannot_leave_the_stable_region(name, options):
    mixer = mixer_alone(name, causal=False, **options).float()
    with torch.no_grad():
        for parameter in mixer.ssm_parameters():
            parameter.view(-1)[::2] = 100
            parameter.view(-1)[1::2] = -100
    assert_stable(mixer)
    impulse = torch.zeros(1, 16_384, 4)
    impulse[0, 0] = 1
    answer = mixer.kernel(16_384) if isinstance(mixer, HasKernel) else mixer(impulse, torch.tensor([16_384]))
    answer.sum().backward()
    assert torch.isfinite(answer).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.ssm_parameters())


@each_ssm
def test_two_hundred_steps_at_a_rate_of_one_stay_stable_and_finite(name, options):
    mixer = mixer_alone(name, causal=False, **options, **inverse(name)).float().train()
    optimiser = torch.optim.Adam(mixer.parameters(), lr=1.0)
    u, target = normal(2, 64, 4, dtype=torch.float32), normal(2, 64, 4, seed=1, dtype=torch.float32)
    full = torch.tensor([64, 64])
    for _ in range(200):
        optimiser.zero_grad()
        (mixer(u, full) - target).square().mean().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
        optimiser.step()
    assert_stable(mixer)


def inverse(name: str) -> dict[str, object]:
    """The init with the widest spread of frequencies, for a mixer that takes one."""
    return {"init": "s4d-inv"} if name in INITIALISED else {}


def assert_stable(mixer: nn.Module) -> None:
    spectrum = mixer.spectrum()
    log_z, gain = spectrum.per_step()
    assert (spectrum.eigenvalue.real < 0).all()
    assert np.isfinite(log_z).all()
    assert np.isfinite(gain).all()
    # what trains, besides what is told of it: a scan has log z itself, a convolution its modes
    trains = mixer._modes()[1].log_z_real if isinstance(mixer, HasKernel) else mixer._per_step().log_z.real
    assert (trains < 0).all()
    assert (torch.exp(trains) < 1).all()


@each_mixer
def test_every_parameter_gets_a_gradient_and_stands_in_one_group(name):
    network = model(name, layers=2, norm="batch", expand=1, positions="learned")
    network(normal(2, 30, 1, dtype=torch.float32), torch.tensor([30, 11])).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in network.parameters())
    groups = parameter_groups(network, config(name).finetune)
    placed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(placed) == sorted(id(parameter) for parameter in network.parameters())
    assert sum(parameter.numel() for group in groups for parameter in group["params"]) == parameter_count(network)


@pytest.mark.parametrize("name", SSMS)
def test_a_state_space_names_its_parameters_for_their_own_rate(name):
    network = model(name, layers=2)
    assert all(isinstance(mixer, HasSsmParameters) for mixer in network.mixers)
    ssm = {id(parameter) for mixer in network.mixers for parameter in mixer.ssm_parameters()}
    group = next(group for group in parameter_groups(network, config(name).finetune) if group["name"] == "ssm")
    assert {id(parameter) for parameter in group["params"]} == ssm
    assert group["weight_decay"] == 0
