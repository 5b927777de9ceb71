from __future__ import annotations

import os
import tracemalloc

import builders
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.analyses import kernels as analysis
from ssm_priors.analyses.kernels import kernels, profile, unroll
from ssm_priors.analyses.models import NotThere
from ssm_priors.errors import BadConfig, BadData, SsmPriorsError
from ssm_priors.models.mixers import s4d
from ssm_priors.models.protocols import HasKernel
from ssm_priors.priors.response import energy_lag

from .conftest import make_checkpoint

LENGTH = 40


def linear_part(mixer, u):
    """What a mixer's state space answers, before the nonlinearity and without the skip D."""
    convolve = s4d.convolve_modes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s4d, "convolve_modes", lambda *parts, gelu: convolve(*parts))
        patch.setattr(s4d, "gate", lambda y, *_: y - mixer.D * u)
        return mixer(u, torch.tensor([u.shape[1]]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_kernels_are_the_impulse_response_in_each_direction(causal, discretisation):
    model = builders.model(causal=causal, layers=2, mixer={"discretisation": discretisation})
    found = kernels(model, LENGTH).kernel
    assert found.dims == ("layer", "channel", "direction", "lag")
    middle = LENGTH - 1
    for layer, mixer in enumerate(model.double().mixers):
        u = torch.zeros(1, 2 * LENGTH - 1, 8, dtype=torch.float64)
        u[:, middle] = 1
        with torch.no_grad():
            y = linear_part(mixer, u)[0].T.numpy()
        np.testing.assert_allclose(found[layer].sel(direction="forward"), y[:, middle:], atol=1e-8)
        future = y[:, middle::-1].copy()
        future[:, 0] = 0
        if causal:
            assert list(found.direction.values) == ["forward"]
            assert np.abs(future).max() < 1e-12
        else:
            np.testing.assert_allclose(found[layer].sel(direction="backward"), future, atol=1e-8)


def test_the_energy_lag_holds_90_percent(checkpoint):
    found = kernels(checkpoint, LENGTH)
    assert (found.energy_lag == energy_lag(found.kernel.values, 0.9)).all()
    assert found.energy_lag.attrs["units"] == "steps"


def test_a_kernel_that_is_zero_has_no_energy_lag():
    model = builders.model()
    model.mixers[0].C.data.zero_()
    assert kernels(model, LENGTH).energy_lag.isnull().all()


def test_the_weights_of_a_checkpoint_and_its_origin_are_told(checkpoint):
    found = kernels(checkpoint, LENGTH)
    assert found.equals(kernels(checkpoint.model(), LENGTH))
    assert found.attrs["fingerprint"] == checkpoint.config.fingerprint
    assert found.attrs["weights_sha256"] == checkpoint.digest
    assert (found.attrs["phase"], found.attrs["init"], found.attrs["stage"]) == ("finetune", "s4d-lin", "learned")


def test_looking_leaves_the_model_as_it_was():
    model = builders.model(layers=2).train()
    inputs, lengths = builders.normal(3, 20, 1, dtype=torch.float32), torch.tensor([20, 7, 1])
    before = model(inputs, lengths)
    before.sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    random = torch.random.get_rng_state()
    kernels(model, LENGTH)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.equal(model(inputs, lengths), before)
    assert all(torch.equal(parameter.grad, gradients[name]) for name, parameter in model.named_parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_looking_often_takes_no_more_memory():
    statm = "/proc/self/statm"
    if not os.path.exists(statm):
        pytest.skip("resident memory is read from /proc, which is not here")

    def resident() -> int:
        with open(statm) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    model = builders.model(d_model=512, layers=5)
    assert sum(parameter.nbytes for parameter in model.parameters()) > 10e6
    for _ in range(5):
        kernels(model, 16)
    before = resident()
    for _ in range(50):
        kernels(model, 16)
    assert resident() - before < 20e6


def test_long_kernels_of_many_modes_never_stand_in_one_tensor(monkeypatch):
    """(H, N/2, L) in float64 would be 512 MB here; the result has 32 MB."""
    seen = []
    for name in ("exp", "cos", "sin"):
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda x, f=original: seen.append(x.numel()) or f(x))
    model = builders.model(d_model=128, mixer={"d_state": 64})
    tracemalloc.start()
    found = kernels(model, 16384)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.kernel.shape == (1, 128, 2, 16384)
    assert max(seen) <= 128 * 32 * 128
    assert peak < 4 * found.kernel.nbytes


def test_a_model_without_kernels_says_so_in_one_line():
    with pytest.raises(
        NotThere, match=r"^this model has no kernels: its mixer is a Transformer, not a convolution$"
    ) as e:
        kernels(make_checkpoint("transformer"), LENGTH)
    assert isinstance(e.value, SsmPriorsError)
    assert e.value.exit_code == 2


def test_a_length_without_lags_is_refused(checkpoint):
    with pytest.raises(BadConfig, match="at least 1 lag"):
        kernels(checkpoint, 0)
    assert kernels(checkpoint, 1).sizes["lag"] == 1


def test_any_convolution_will_do():
    class Echo(torch.nn.Module):
        def kernel(self, length):
            return torch.ones(2, 3, length)

    assert isinstance(Echo(), HasKernel)
    found = analysis.impulse_response(Echo(), 4)
    assert found.dtype == np.float64
    assert found[0].all()
    assert found[1, 0].tolist() == [0, 1, 1, 1]


class Given(torch.nn.Module):
    """A convolution whose kernels are given: (direction, H, L)."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = torch.as_tensor(np.asarray(kernels, float))

    def kernel(self, length):
        return self.kernels[..., :length]


def described(*rows):
    return {name: values.tolist() for name, values in profile(np.array(rows, dtype=float)).items()}


def test_kernels_of_known_shape_have_known_numbers():
    echo = np.zeros(20)
    echo[7] = -3
    flat = np.r_[np.ones(8), np.zeros(12)]
    turns = np.r_[np.tile([1.0, 0.0, -1.0], 4), np.zeros(8)]
    found = described(echo, flat, turns)
    assert found["energy_lag"] == [7, 7, 11]
    assert found["energy_share_lag"] == [[7, 7, 7], [0, 3, 7], [0, 5, 11]]
    assert found["energy_centroid"] == pytest.approx([7, 3.5, 5.5])
    assert found["effective_length"] == pytest.approx([1, 8, 8])
    assert found["zero_crossings"] == [0, 0, 7]


@given(st.floats(0.01, 1), st.floats(1e-6, 1e6))
def test_one_decay_has_the_numbers_of_its_geometric_series(rate, size):
    found = profile(size * np.exp(-rate * np.arange(4000))[None])
    ratio = np.exp(-2 * rate)
    assert found["energy_centroid"] == pytest.approx(ratio / (1 - ratio))
    assert found["effective_length"] == pytest.approx((1 + ratio) / (1 - ratio))
    assert found["energy_share_lag"][0] == pytest.approx(np.ceil(np.log([0.9, 0.5, 0.1]) / np.log(ratio)) - 1, abs=1)
    assert found["zero_crossings"] == 0


@pytest.mark.parametrize("period", [2, 10, 64])
def test_a_sinusoid_crosses_zero_twice_a_period(period):
    lags = np.arange(640)
    found = profile(np.cos(2 * np.pi * (lags + 0.25) / period)[None])
    assert found["zero_crossings"] == pytest.approx(2 * 640 / period, abs=1)


def test_rounding_around_zero_is_no_crossing():
    rows = np.exp(-np.arange(200.0))
    assert profile((rows + 1e-16 * (-1.0) ** np.arange(200))[None])["zero_crossings"] == 0


@pytest.mark.parametrize("kernel", [np.zeros(6), np.full(6, np.nan)])
def test_a_kernel_without_energy_has_no_numbers(kernel):
    assert all(np.isnan(values).all() for values in profile(kernel[None]).values())


def test_numbers_are_those_of_each_kernel_however_many_there_are(checkpoint):
    found = kernels(checkpoint, LENGTH)
    for name, values in profile(found.kernel.values).items():
        assert np.array_equal(found[name], values)
        alone = profile(found.kernel.values[1, 3, 1][None])[name]
        assert np.array_equal(values[1, 3, 1], alone[0])
    assert found.energy_share_lag.sel(share=0.9, drop=True).equals(found.energy_lag)


def test_a_kernel_that_looks_at_the_rows_above_peaks_in_the_first_column():
    width, rows = 7, 5
    kernel = np.zeros((2, 1, 38))
    kernel[0, 0, ::width] = 1  # whole rows away, forward; backward begins at a distance of one
    kernel[1, 0, width - 1 :: width] = 1
    model = builders.model()
    model.backbone.blocks[0].mixer = Given(kernel)
    found = unroll(kernels(model, 38), width).kernel
    assert found.dims == ("layer", "channel", "direction", "row", "column")
    assert found.shape[-2:] == (rows + 1, width)
    assert (found.sel(column=0)[0, 0, 0] == 1).all()
    assert (found.sel(column=0, row=slice(1, None))[0, 0, 1] == 1).all()
    assert (found.sel(column=slice(1, None)).isel(row=slice(0, rows)) == 0).all()
    assert found.isel(row=-1, column=slice(3, None)).isnull().all()


def test_unrolled_kernels_are_the_kernels(checkpoint):
    found = kernels(checkpoint, 36)
    image = unroll(found, 6)
    assert image.attrs["width"] == 6
    assert np.array_equal(image.kernel.values.reshape(found.kernel.shape), found.kernel.values)


def test_what_does_not_unroll_is_refused(checkpoint):
    found = kernels(checkpoint, 16)
    for width in (0, 17):
        with pytest.raises(BadConfig, match=f"a width of {width} columns"):
            unroll(found, width)
    with pytest.raises(BadData, match="no 'kernel'"):
        unroll(found.drop_vars("kernel"), 4)
