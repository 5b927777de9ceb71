"""The spectra of a model's state spaces: eigenvalues as they stand, and what they mean per step.

log z = dt A (or its bilinear twin)    decay rate = -ln |z|    timescale = 1 / decay rate    frequency = arg z / 2 pi
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from ssm_priors.analyses.models import subject
from ssm_priors.analyses.schema import DIRECTIONS, check, index, labelled, split_complex
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.models.build import Model
from ssm_priors.models.protocols import HasSpectrum, Spectrum
from ssm_priors.priors.response import decay_rate, frequency, timescale

MODES = ("layer", "channel", "mode")


def per_step(spectrum: Spectrum) -> dict[str, np.ndarray]:
    """decay_rate (1/step), timescale (steps) and frequency (cycles/step) of every mode, each (H, N/2), float64."""
    log_z, _ = spectrum.per_step()
    return {"decay_rate": decay_rate(log_z), "timescale": timescale(log_z), "frequency": frequency(log_z)}


def spectra(source: Checkpoint | Model) -> xr.Dataset:
    """Spectra of all layers.

    Args:
        source: a checkpoint (its trained weights) or a model.

    Returns:
        eigenvalue_real, eigenvalue_imag (1/unit of time), decay_rate (1/step), timescale (steps) and frequency
        (cycles/step), each (layer, channel, mode); weight |C B| (layer, channel, direction, mode); dt (layer, channel),
        or (layer, channel, mode) where every mode has its own. Channels that share one state make one row of it.
        The attribute `discretisation` names what leads from eigenvalues to steps.

    Raises:
        NotThere: the model's mixer is no state space.
    """
    looked_at = subject(source)
    found = [mixer.spectrum() for mixer in looked_at.mixers(HasSpectrum, "spectra", "a state space")]
    weight = np.stack([np.abs(spectrum.weight).swapaxes(0, 1) for spectrum in found])
    steps = [per_step(spectrum) for spectrum in found]
    variables = {
        **split_complex("eigenvalue", MODES, np.stack([spectrum.eigenvalue for spectrum in found])),
        **{name: labelled(name, MODES, np.stack([step[name] for step in steps])) for name in steps[0]},
        "weight": labelled("weight", ["layer", "channel", "direction", "mode"], weight),
        "dt": labelled("dt", MODES[: 1 + found[0].dt.ndim], np.stack([spectrum.dt for spectrum in found])),
    }
    layers, channels, directions, modes = weight.shape
    coords = (
        index("layer", range(layers))
        | index("channel", range(channels))
        | index("direction", DIRECTIONS[:directions])
        | index("mode", range(modes))
    )
    attrs = looked_at.origin | {"discretisation": found[0].discretisation}
    return check(xr.Dataset(variables, coords, attrs))
