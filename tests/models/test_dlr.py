from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone
from golden import published

from ssm_priors.errors import BadConfig
from ssm_priors.models.mixers.dlr import DLR

PUBLISHED = {"dlr": "real", "dlr_bidir": "real", "dlr_imag": "imag", "dlr_sum": "sum"}


@pytest.fixture(scope="module")
def kernels():
    return published("kernels")


@pytest.fixture(scope="module")
def layers():
    return published("layers_nfs")


def carrying(Lambda: np.ndarray, W: np.ndarray, to_real: str = "real") -> DLR:
    """A mixer with the parameters of the public code."""
    mixer = mixer_alone("dlr", causal=len(W) == 1, d_model=W.shape[1], d_state=W.shape[2], to_real=to_real)
    values = {
        "log_decay": np.log(-Lambda.real),
        "angle": Lambda.imag,
        "W": np.stack([W.real, W.imag], axis=-1),
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()}, strict=False)
    return mixer


@pytest.mark.parametrize(("name", "length"), [*((name, 64) for name in PUBLISHED), ("dlr", 1000)])
def test_it_gives_the_published_kernels(kernels, name, length):
    mixer = carrying(kernels[f"{name}/Lambda"], kernels[f"{name}/W"], PUBLISHED[name])
    expected = kernels[f"{name}/L{length}/K"]
    found = mixer.kernel(length).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["dlr_block", "dlr_block_bidir"])
def test_it_gives_the_published_layer_output(layers, name):
    part = {key.rpartition("/")[2]: value for key, value in layers.items() if key.startswith(f"{name}/")}
    W = part["kernel.W"][..., 0] + 1j * part["kernel.W"][..., 1]
    mixer = carrying(-(part["kernel.Lambda_log_neg_re"] ** 2) + 1j * part["kernel.Lambda_im"], W)
    rest = {
        "D": part["D"][0],
        "output.weight": part["output_linear.0.weight"],
        "output.bias": part["output_linear.0.bias"],
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in rest.items()}, strict=False)
    answer = mixer(torch.from_numpy(layers["u_BLH"]), torch.tensor([64, 64])).detach().numpy()
    np.testing.assert_allclose(answer, part["y_BLH"], rtol=1e-10, atol=1e-10)


def test_it_starts_on_the_grid_of_the_discrete_fourier_transform():
    spectrum = mixer_alone("dlr", causal=True, d_state=8).spectrum()
    np.testing.assert_allclose(spectrum.eigenvalue[0].imag, 2 * np.pi * np.arange(8) / 8, rtol=1e-6)
    assert (spectrum.dt == 1).all()
    assert spectrum.discretisation == "none"


@pytest.mark.parametrize("frequencies", ["omega", "randn"])
def test_its_decay_rates_start_in_the_range_asked_for(frequencies):
    mixer = mixer_alone("dlr", causal=True, frequencies=frequencies, decay_min=0.02, decay_max=0.03)
    decay = -mixer.spectrum().eigenvalue.real
    assert ((decay > 0.02 * (1 - 1e-6)) & (decay < 0.03 * (1 + 1e-6))).all()


def test_decay_rates_out_of_order_are_refused():
    with pytest.raises(BadConfig, match=r"decay_min.*decay_max"):
        mixer_alone("dlr", causal=True, decay_min=1.0, decay_max=0.1)
