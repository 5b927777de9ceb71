from __future__ import annotations

import os
import tracemalloc

import builders
import numpy as np
import pytest
import torch

from ssm_priors.analyses import kernels as analysis
from ssm_priors.analyses.kernels import kernels
from ssm_priors.analyses.models import NotThere
from ssm_priors.errors import BadConfig, SsmPriorsError
from ssm_priors.models.mixers import s4d
from ssm_priors.models.protocols import HasKernel
from ssm_priors.priors.response import energy_lag

from .conftest import make_checkpoint

LENGTH = 40


def linear_part(mixer, u):
    """What a mixer's state space answers, before the nonlinearity and without the skip D."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s4d, "read_out", lambda y, *_: y - mixer.D * u)
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
