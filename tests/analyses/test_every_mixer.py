"""Every convolution and every state space can be looked into, whatever its mixer."""

from __future__ import annotations

import numpy as np
import pytest
from builders import CONTINUOUS, config, model

from ssm_priors.analyses.summaries import QUANTITIES, inspection, summarise
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import NotThere
from ssm_priors.models.protocols import HasKernel, HasSpectrum
from ssm_priors.registry import MIXERS


@pytest.mark.parametrize("name", MIXERS)
def test_kernels_and_spectra_of_every_mixer_are_shown_as_far_as_it_has_them(name):
    made = model(name, layers=2)
    checkpoint = Checkpoint(
        config=config(name, model={"layers": 2}),
        spec=CONTINUOUS,
        phase="finetune",
        tensors={key: tensor.clone() for key, tensor in made.state_dict().items()},
        record={},
    )
    kernels, spectra = (all(isinstance(mixer, skill) for mixer in made.mixers) for skill in (HasKernel, HasSpectrum))
    if not kernels and not spectra:
        with pytest.raises(NotThere):
            inspection(checkpoint, 16)
        return
    found = inspection(checkpoint, 16)
    assert ("kernel" in found, "decay_rate" in found) == (kernels, spectra)
    summary = summarise(found)
    assert {name for name in QUANTITIES if name in summary}
    for variable in found.data_vars.values():
        init, learned = (variable.sel(stage=stage).values for stage in ("init", "learned"))
        np.testing.assert_array_equal(init, learned)
