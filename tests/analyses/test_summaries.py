from __future__ import annotations

import builders
import numpy as np
import pytest

from ssm_priors.analyses import schema
from ssm_priors.analyses.kernels import kernels
from ssm_priors.analyses.spectra import spectra
from ssm_priors.analyses.summaries import QUANTITIES, inspection, summarise
from ssm_priors.checkpoints.checkpoint import Checkpoint


def test_the_init_is_the_model_before_its_first_step(checkpoint):
    found = inspection(checkpoint, 32)
    fresh = builders.model(layers=2)
    assert found.kernel.sel(stage="init", drop=True).equals(kernels(fresh, 32).kernel.astype(np.float32))
    assert found.decay_rate.sel(stage="init", drop=True).equals(spectra(fresh).decay_rate)
    assert found.kernel.sel(stage="learned", drop=True).equals(kernels(checkpoint, 32).kernel.astype(np.float32))
    assert found.attrs["stage"] == "init and learned"


def test_an_untrained_checkpoint_is_its_own_init():
    model = builders.model()
    untrained = Checkpoint(
        config=builders.config(),
        spec=builders.CONTINUOUS,
        phase="finetune",
        tensors=dict(model.state_dict()),
        record={},
    )
    found = inspection(untrained, 16)
    assert found.sel(stage="init", drop=True).equals(found.sel(stage="learned", drop=True))


@pytest.mark.parametrize("format", schema.FORMATS)
def test_an_inspection_survives_a_file(checkpoint, tmp_path, format):
    found = inspection(checkpoint, 16)
    schema.write(found, tmp_path / f"kernels.{format}", format)
    assert schema.read(tmp_path / f"kernels.{format}").identical(found)


def test_a_summary_holds_the_quantiles_of_each_layer(checkpoint):
    found = inspection(checkpoint, 32)
    summary = summarise(found)
    assert set(summary.data_vars) == {*QUANTITIES, "kernels"}
    assert (summary.kernels == 16).all()
    here = {"stage": "learned", "layer": 1}
    expected = np.quantile(found.timescale.sel(here), [0.05, 0.5, 0.95])
    np.testing.assert_allclose(summary.timescale.sel(here), expected)
    expected = np.quantile(found.energy_lag.sel(here), [0.05, 0.5, 0.95])
    np.testing.assert_allclose(summary.energy_lag.sel(here), expected)


def test_a_layer_without_energy_is_undefined_and_not_zero():
    model = builders.model()
    model.mixers[0].C.data.zero_()
    assert summarise(kernels(model, 8)).energy_lag.isnull().all()
