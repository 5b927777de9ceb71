from __future__ import annotations

import builders
import numpy as np
import pytest

from ssm_priors.analyses.models import NotThere
from ssm_priors.analyses.schema import join_complex
from ssm_priors.analyses.spectra import per_step, spectra
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
