from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone, normal
from golden import published

from ssm_priors.models.mixers.dss import DSS
from ssm_priors.priors.discretise import dss_exp, dss_softmax

EXP = ("dss_exp", "dss_exp_bidir")
SOFTMAX = ("dss_softmax", "dss_softmax_bidir")


@pytest.fixture(scope="module")
def kernels():
    return published("kernels")


@pytest.fixture(scope="module")
def layers():
    return published("layers_nfs")


def carrying(Lambda: np.ndarray, W: np.ndarray, log_dt: np.ndarray, **options: object) -> DSS:
    """A mixer with the parameters of the public code."""
    mixer = mixer_alone("dss", causal=len(W) == 1, d_model=W.shape[1], d_state=W.shape[2], **options)
    values = {
        "log_A_real": np.log(-Lambda.real),
        "A_imag": Lambda.imag,
        "log_dt": log_dt,
        "W": np.stack([W.real, W.imag], axis=-1),
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()}, strict=False)
    return mixer


@pytest.mark.parametrize("name", EXP + SOFTMAX)
@pytest.mark.parametrize("length", [64, 1000])
def test_it_gives_the_published_kernels(kernels, name, length):
    options = {"discretisation": "dss-exp"}
    if name in SOFTMAX:
        options = {"discretisation": "dss-softmax", "softmax_length": length}
    parts = (kernels[f"{name}/{key}"] for key in ("Lambda", "W", "log_dt"))
    found = carrying(*parts, **options).kernel(length).detach().numpy()
    expected = kernels[f"{name}/L{length}/K"]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["dss_block", "dss_block_bidir"])
def test_it_gives_the_published_layer_output(layers, name):
    part = {key.rpartition("/")[2]: value for key, value in layers.items() if key.startswith(f"{name}/")}
    W = part["kernel.W"][..., 0] + 1j * part["kernel.W"][..., 1]
    Lambda = -np.exp(part["kernel.Lambda_log_neg_re"]) + 1j * part["kernel.Lambda_im"]
    mixer = carrying(Lambda, W, part["kernel.log_dt"])
    rest = {
        "D": part["D"][0],
        "output.weight": part["output_linear.0.weight"],
        "output.bias": part["output_linear.0.bias"],
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in rest.items()}, strict=False)
    answer = mixer(torch.from_numpy(layers["u_BLH"]), torch.tensor([64, 64])).detach().numpy()
    np.testing.assert_allclose(answer, part["y_BLH"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("discretisation", ["dss-exp", "dss-softmax"])
def test_the_kernel_is_that_of_the_prior_with_the_weights_as_they_stand(discretisation):
    mixer = mixer_alone("dss", causal=False, d_state=6, discretisation=discretisation, softmax_length=100)
    spectrum = mixer.spectrum()
    rule = dss_exp if discretisation == "dss-exp" else lambda A, dt: dss_softmax(A, dt, 100, 1e-7)
    log_z, gain = rule(spectrum.eigenvalue, spectrum.dt)
    W = torch.view_as_complex(mixer.W.detach()).numpy()
    expected = np.einsum("chn,hnl->chl", W * gain, np.exp(log_z[..., None] * np.arange(50))).real
    np.testing.assert_allclose(mixer.kernel(50).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_all_channels_share_their_eigenvalues_and_no_mode_is_the_conjugate_of_another():
    eigenvalue = mixer_alone("dss", causal=True, d_state=8).spectrum().eigenvalue
    assert eigenvalue.shape == (4, 8)
    assert (eigenvalue == eigenvalue[0]).all()
    assert (eigenvalue.imag > 0).all()


def test_a_softmax_mode_that_comes_back_to_its_start_stays_finite():
    mixer = mixer_alone("dss", causal=True, d_state=2, discretisation="dss-softmax", softmax_length=64)
    with torch.no_grad():
        mixer.log_dt.zero_()
        mixer.log_A_real.fill_(-100)
        mixer.A_imag.fill_(2 * np.pi / 64)
    kernel = mixer.kernel(64)
    kernel.sum().backward()
    assert torch.isfinite(kernel).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.ssm_parameters())


def test_the_softmax_length_is_not_that_of_the_batch():
    mixer = mixer_alone("dss", causal=True, discretisation="dss-softmax")
    u = normal(1, 30, 4)
    longer = torch.cat([u, normal(1, 30, 4, seed=1)], dim=1)
    torch.testing.assert_close(mixer(longer, torch.tensor([60]))[:, :30], mixer(u, torch.tensor([30])))
