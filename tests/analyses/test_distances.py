from __future__ import annotations

import builders
import numpy as np
import pytest
import torch
from scipy.linalg import expm, subspace_angles

from ssm_priors.analyses import schema
from ssm_priors.analyses.bases import known_priors
from ssm_priors.analyses.distances import Question, best_fits, distances, distances_of_stages
from ssm_priors.analyses.kernels import impulse_response, kernels
from ssm_priors.errors import BadConfig, NotThere, UnknownName
from ssm_priors.priors.hippo import lagt

from .conftest import make_checkpoint

OWN = ("s4d-lin", "dss-lin")
"""One law under two names."""
OTHERS = tuple(name for name in known_priors() if name not in OWN)
DISTANCES = ("decay_distance", "frequency_distance")


def lin(**options):
    return builders.model(layers=2, **options)


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_model_that_is_s4d_lin_has_distance_0_to_it_and_more_to_every_other(discretisation, causal):
    found = distances(lin(causal=causal, mixer={"discretisation": discretisation}), Question((*OWN, *OTHERS), 64))
    own, others = found.sel(prior=list(OWN)), found.sel(prior=list(OTHERS))
    for name in DISTANCES:
        assert (own[name] < 1e-6).all()
    assert (own.captured > 1 - 1e-9).all()
    assert (own.principal_angle < 1e-3).all()
    np.testing.assert_allclose(own.best_timescale, 1, rtol=1e-5)
    assert (others.decay_distance + others.frequency_distance > 1e-3).all()
    assert (others.captured < 0.99).all()
    assert (others.principal_angle.max("angle") > 0.1).all()


@pytest.mark.parametrize("init", ["s4d-inv", "s4d-legs", "s4d-quad", "s4d-real"])
def test_every_other_law_is_its_own_nearest_too(init):
    found = distances(lin(mixer={"init": init}), Question(tuple(known_priors()), 64)).isel(layer=0)
    total = found.decay_distance + found.frequency_distance
    assert total.sel(prior=init) < 1e-6
    assert total.sel(prior=init) == total.min()
    assert found.captured.sel(prior=init) > 1 - 1e-9


def test_a_slower_clock_is_found_and_moves_the_decay_by_its_logarithm():
    model = lin()
    for mixer in model.mixers:
        mixer.log_A_real.data += np.log(3)  # of all modes alike: three times the decay
    found = distances(model, Question(("s4d-lin",), 64))
    np.testing.assert_allclose(found.decay_distance, np.log10(3), atol=1e-6)
    np.testing.assert_allclose(found.best_timescale, 3, rtol=1e-4)


def test_modes_count_by_their_weight():
    model = builders.model()
    mixer = model.mixers[0]
    mixer.log_A_real.data[:, 1] += np.log(10)
    light, heavy = (mixer.C.data.clone() for _ in range(2))
    light[:, :, 1] *= 1e-3
    heavy[:, :, 1] *= 1e3
    found = []
    for weights in (light, heavy):
        mixer.C.data = weights
        found.append(distances(model, Question(("s4d-lin",), 64)).decay_distance.item())
    assert found[0] < 0.01
    assert found[1] == pytest.approx(1, abs=0.01)


def test_the_first_basis_kernels_capture_ever_more():
    captured = [distances(lin(), Question(("hippo-legs",), 64, basis=n)).captured.values for n in (1, 2, 4, 8)]
    assert (np.diff(captured, axis=0) > 0).all()
    assert (np.array(captured) < 1).all()


def test_angles_of_one_common_dt_are_those_of_the_two_subspaces():
    model = builders.model(causal=True)
    mixer = model.mixers[0]
    mixer.log_dt.data[:] = np.log(0.05)
    found = distances(model, Question(("hippo-lagt",), 64, rank=3)).principal_angle.values[0, 0]
    kernels = impulse_response(mixer, 64)[0]
    kernels /= np.linalg.norm(kernels, axis=1, keepdims=True)
    lead = np.linalg.svd(kernels.T, full_matrices=False)[0][:, :3]
    A, B = lagt(8)
    step = expm(0.05 * A)
    states = [np.linalg.solve(A, (step - np.eye(8)) @ B)]
    for _ in range(63):
        states.append(step @ states[-1])
    np.testing.assert_allclose(found, np.sort(subspace_angles(lead, np.array(states))), atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_the_best_fit_of_a_models_own_law_is_its_kernels(causal):
    model, chosen = lin(causal=causal), [1, 6]
    found = best_fits(model, "s4d-lin", 64, chosen)
    assert found.attrs["prior"] == "s4d-lin"
    np.testing.assert_allclose(found.kernel, kernels(model, 64).kernel.sel(channel=chosen), atol=1e-9)


def test_a_best_fit_holds_the_energy_that_is_captured_and_what_is_left_is_orthogonal_to_it():
    model, everything = lin(causal=True), list(range(8))
    learned, fit = kernels(model, 64).kernel, best_fits(model, "hippo-lagt", 64, everything).kernel
    captured = distances(model, Question(("hippo-lagt",), 64)).captured.sel(prior="hippo-lagt")
    energies = [np.square(each).sum(("channel", "direction", "lag")) for each in (fit, learned)]
    np.testing.assert_allclose(energies[0] / energies[1], captured, rtol=1e-9)
    assert (captured < 0.99).all()
    np.testing.assert_allclose((fit * (learned - fit)).sum("lag"), 0, atol=1e-9)


@pytest.mark.parametrize("name", ["longconv", "dlr"])
def test_kernels_without_a_step_size_have_a_best_fit_too(name):
    model = builders.model(name)
    learned, fit = (each.kernel for each in (kernels(model, 64), best_fits(model, "s4d-lin", 64, [0, 3])))
    left = np.square(learned.sel(channel=[0, 3]) - fit).sum("lag")
    assert (left < np.square(learned.sel(channel=[0, 3])).sum("lag")).all()


def test_stages_are_the_init_the_trained_weights_and_a_null(checkpoint):
    question = Question(("s4d-lin", "s4d-inv"), 64)
    found = distances_of_stages(checkpoint, question)
    assert list(found.stage.values) == ["init", "learned", "random"]
    own = found.sel(prior="s4d-lin", layer=0)
    for name in DISTANCES:
        assert own[name].sel(stage="init") < 1e-6 < own[name].sel(stage="learned")
        assert own[name].sel(stage="random") > 1e-3
    assert own.captured.sel(stage="init") > own.captured.sel(stage="learned") > own.captured.sel(stage="random")
    alone = distances(checkpoint, question)
    for name in alone.data_vars:
        assert found[name].sel(stage="learned", drop=True).equals(alone[name])


def test_a_comparison_survives_a_file_and_is_the_same_again(checkpoint, tmp_path):
    found = distances_of_stages(checkpoint, Question(("random", "hippo-fout"), 64))
    assert found.equals(distances_of_stages(checkpoint, Question(("random", "hippo-fout"), 64)))
    schema.write(found, tmp_path / "distances.nc")
    assert schema.read(tmp_path / "distances.nc").identical(found)


@pytest.mark.parametrize("mixer", ["longconv", "sgconv", "s4", "mega"])
def test_kernels_without_a_spectrum_have_the_numbers_of_kernels_only(mixer):
    found = distances_of_stages(make_checkpoint(mixer), Question(("hippo-legs", "s4d-lin"), 64))
    assert set(found.data_vars) == {"best_timescale", "captured", "principal_angle"}
    assert found.attrs["basis"] == 16
    assert found.captured.notnull().all()
    if mixer != "longconv":  # whose init is noise already
        assert (found.captured.sel(stage="random") < found.captured.sel(stage="init")).all()


@pytest.mark.parametrize("mixer", ["lru", "s5"])
def test_a_shared_state_has_the_numbers_of_modes_only(mixer):
    found = distances_of_stages(make_checkpoint(mixer), Question(("hippo-legs", "s4d-legs"), 64))
    assert set(found.data_vars) == {"best_timescale", "decay_distance", "frequency_distance"}
    if mixer == "s5":  # one block: LegS's normal part
        assert (found.decay_distance + found.frequency_distance).sel(stage="init", prior="s4d-legs") < 1e-6


@pytest.mark.parametrize("mixer", ["dss", "dlr"])
def test_modes_that_are_no_pairs_are_compared_all_the_same(mixer):
    found = distances_of_stages(make_checkpoint(mixer), Question(tuple(known_priors()), 64))
    assert all(found[name].notnull().all() for name in found.data_vars if name != "principal_angle")
    if mixer == "dss":
        assert (found.captured.sel(stage="init", prior="dss-hippo-skew") > 1 - 1e-9).all()


def test_a_layer_without_weight_has_no_distance():
    model = builders.model()
    model.mixers[0].C.data.zero_()
    found = distances(model, Question(("s4d-lin",), 64))
    assert all(found[name].isnull().all() for name in found.data_vars)


def test_only_some_channels_are_projected_and_that_is_said():
    found = distances(lin(), Question(("s4d-inv",), 64, channels=3))
    assert found.attrs["channels_projected"] == 3
    assert not found.captured.equals(distances(lin(), Question(("s4d-inv",), 64)).captured)


def test_looking_leaves_the_model_as_it_was():
    model = lin().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.random.get_rng_state()
    distances(model, Question(("random",), 64))
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(NotThere, match="neither spectra nor kernels: its mixer is a Transformer"):
        distances(builders.model("transformer"), Question(("s4d-lin",), 64))
    with pytest.raises(UnknownName, match=r"unknown prior 's4d-lim'\. Did you mean s4d-lin"):
        distances(lin(), Question(("s4d-lim",), 64))
    with pytest.raises(BadConfig, match="no prior"):
        Question((), 64)
    with pytest.raises(BadConfig, match="1 or more"):
        Question(("s4d-lin",), 64, basis=0)
    with pytest.raises(BadConfig, match="99 basis kernels were asked for"):
        distances(lin(), Question(("s4d-lin",), 200, basis=99))
