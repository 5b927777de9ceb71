from __future__ import annotations

import builders
import numpy as np
import pytest
import torch

from ssm_priors.analyses.kernels import kernels
from ssm_priors.analyses.models import NotThere
from ssm_priors.analyses.schema import join_complex
from ssm_priors.analyses.spectra import decay_density, per_step, response, spectra
from ssm_priors.errors import BadConfig
from ssm_priors.models.protocols import Spectrum
from ssm_priors.priors.s4d import s4d_lin

from .conftest import make_checkpoint


def test_one_mode_has_its_closed_form():
    found = per_step(Spectrum(np.array([[-0.5 + 2j * np.pi]]), np.array([0.1]), np.ones((1, 1, 1), complex), "zoh"))
    assert found["decay_rate"] == pytest.approx(0.05)
    assert found["timescale"] == pytest.approx(20)
    assert found["frequency"] == pytest.approx(0.1)


def test_an_untrained_model_has_the_eigenvalues_of_its_init():
    model = builders.model(d_model=8, layers=2)
    found = spectra(model)
    prescribed = s4d_lin(8, 8, np.random.default_rng(0))
    for layer in range(2):
        np.testing.assert_allclose(join_complex(found, "eigenvalue")[layer], prescribed, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.decay_rate, -found.eigenvalue_real * found.dt)
    np.testing.assert_allclose(found.timescale * found.decay_rate, 1)
    assert found.weight.dims == ("layer", "channel", "direction", "mode")
    np.testing.assert_allclose(found.weight[0], np.abs(model.mixers[0].spectrum().weight).swapaxes(0, 1))


def test_bilinear_is_told_from_zero_order_hold():
    zoh, bilinear = (spectra(builders.model(mixer={"discretisation": name})) for name in ("zoh", "bilinear"))
    assert (zoh.attrs["discretisation"], bilinear.attrs["discretisation"]) == ("zoh", "bilinear")
    assert zoh.eigenvalue_imag.equals(bilinear.eigenvalue_imag)
    assert not np.allclose(zoh.frequency, bilinear.frequency)


@pytest.mark.parametrize(("name", "timescales"), [("lru", ("layer", "channel")), ("s5", ("layer", "channel", "mode"))])
def test_a_state_that_all_channels_share_is_one_row(name, timescales):
    found = spectra(builders.model(name, layers=2))
    assert found.sizes["channel"] == 1
    assert found.dt.dims == timescales
    assert (found.decay_rate > 0).all()
    assert (found.weight > 0).all()


def test_a_model_without_a_spectrum_says_so():
    with pytest.raises(NotThere, match="has no spectra: its mixer is a Transformer, not a state space"):
        spectra(make_checkpoint("transformer"))


@pytest.mark.parametrize("rate", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_a_kernel_of_one_decay_rate_gives_it_back(rate, discretisation):
    """The rate that the spectrum states, from the kernel's own fall."""
    model = builders.model(mixer={"d_state": 2, "init": "s4d-real", "discretisation": discretisation}).double()
    mixer = model.mixers[0]
    mixer.log_dt.data[:] = 0
    mixer.log_A_real.data[:] = np.log(rate)
    found = spectra(model)
    kernel = kernels(model, 50).kernel.values[0, :, 0]
    measured = -np.diff(np.log(np.abs(kernel)), axis=-1)
    np.testing.assert_allclose(measured, np.broadcast_to(found.decay_rate[0], measured.shape), rtol=1e-6)
    if discretisation == "zoh":
        np.testing.assert_allclose(found.decay_rate, rate, rtol=1e-6)


@pytest.mark.parametrize("mixer", ["s4d", "dss", "dlr", "lru", "s5"])
def test_the_discrete_eigenvalue_says_what_its_polar_form_says(mixer):
    found = spectra(builders.model(mixer))
    z = join_complex(found, "z")
    np.testing.assert_allclose(-np.log(np.abs(z)), found.decay_rate, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.abs(np.angle(z)) / (2 * np.pi), found.frequency, atol=1e-9)


def test_the_decay_density_integrates_to_1_and_peaks_where_the_modes_are():
    model = builders.model(layers=2)
    for mixer in model.mixers:
        mixer.log_dt.data[:] = np.log(0.02)
    found = decay_density(model, per_decade=20)
    np.testing.assert_allclose(found.decay_density.sum("rate") / 20, 1)
    assert (found.outside < 1e-12).all()
    assert np.abs(np.log10(found.rate[found.decay_density.argmax("rate")] / 0.01)).max() <= 1 / 20


def test_a_density_counts_weights_and_says_what_lies_beyond_its_axis():
    model = builders.model(causal=True)
    mixer = model.mixers[0]
    mixer.log_dt.data[:] = 0
    mixer.log_A_real.data[:] = np.log(0.3)
    mixer.log_A_real.data[:, 0] = np.log(0.003)
    mixer.C.data[:] = torch.tensor([1.0, 0.0])
    mixer.C.data[:, :, 0] = torch.tensor([0.0, 3.0])
    found = decay_density(model, per_decade=1, decades=(-3, 0))
    np.testing.assert_allclose(found.decay_density[0], [0.5, 0, 0.5], atol=1e-7)
    cut = decay_density(model, per_decade=1, decades=(-2, 0))
    np.testing.assert_allclose(cut.decay_density[0], [0, 0.5], atol=1e-7)
    np.testing.assert_allclose(cut.outside, 0.5, atol=1e-7)


def test_a_density_of_no_weight_is_undefined():
    model = builders.model()
    model.mixers[0].C.data.zero_()
    found = decay_density(model)
    assert found.decay_density.isnull().all()
    assert found.outside.isnull().all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("mixer", "fast"), [("s4d", "dt"), ("dss", "dt"), ("dlr", "decay")])
def test_the_response_in_closed_form_is_the_fourier_sum_of_a_long_kernel(mixer, fast, causal):
    model = builders.model(mixer, causal=causal, mixer={f"{fast}_min": 0.05, f"{fast}_max": 0.2})
    found = response(model, points=9)
    assert found.attrs["response_of"] == "endless kernel, closed form"
    kernel = kernels(model, 4000).kernel.values
    turn = np.exp(-2j * np.pi * np.outer(np.arange(4000), found.cycle))
    np.testing.assert_allclose(join_complex(found, "response"), kernel @ turn, atol=1e-6)
    np.testing.assert_allclose(found.gain, np.abs(kernel @ turn), atol=1e-6)


@pytest.mark.parametrize("length", [1, 7, 16, 33])
def test_the_response_of_a_kernel_without_a_spectrum_is_its_fourier_sum(length):
    model = builders.model("longconv")
    found = response(model, points=9, length=length)
    assert found.attrs["response_of"] == f"Fourier sum of the first {length} lags"
    kernel = kernels(model, length).kernel.values
    turn = np.exp(-2j * np.pi * np.outer(np.arange(length), found.cycle))
    np.testing.assert_allclose(join_complex(found, "response"), kernel @ turn, atol=1e-12)


def test_axes_and_models_that_show_nothing_are_refused():
    with pytest.raises(BadConfig, match="that is no axis"):
        decay_density(builders.model(), decades=(0, 0))
    with pytest.raises(BadConfig, match="at least 2 frequencies"):
        response(builders.model(), points=1)
    with pytest.raises(NotThere, match="has no frequency response"):
        response(builders.model("s5"))
