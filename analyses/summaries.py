"""What a layer's kernels and spectra come to: median and 5-95% range of each quantity, init and learned apart."""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr

from ssm_priors.analyses.kernels import kernels
from ssm_priors.analyses.models import both_stages
from ssm_priors.analyses.schema import check, index, labelled
from ssm_priors.analyses.spectra import spectra
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.models.build import Model
from ssm_priors.models.protocols import HasSpectrum

QUANTILES = (0.05, 0.5, 0.95)
QUANTITIES = ("decay_rate", "timescale", "frequency", "energy_lag")
"""What is summed up, in the order in which it is shown; modes count alike, whatever their weight."""


def inspection(checkpoint: Checkpoint, length: int) -> xr.Dataset:
    """All there is to see in a checkpoint's convolutions: kernels and, for state spaces, spectra; each per `stage`.

    Args:
        checkpoint: its init is rebuilt from configuration and seed.
        length: number of lags, in steps.

    Raises:
        NotThere: the model's mixer is no convolution.
        BadConfig: a length below 1.
    """
    return both_stages(checkpoint, lambda model: _kernels_and_spectra(model, length))


def _kernels_and_spectra(model: Model, length: int) -> xr.Dataset:
    found = kernels(model, length)
    if not all(isinstance(mixer, HasSpectrum) for mixer in model.mixers):
        return found
    return xr.merge([found, spectra(model)], combine_attrs="no_conflicts", join="exact", compat="equals")


def summarise(dataset: xr.Dataset) -> xr.Dataset:
    """Quantiles over everything but layer and stage.

    Args:
        dataset: of `inspection`, `kernels` or `spectra`; what it lacks is left out.

    Returns:
        Each of `QUANTITIES` as (quantile, ..., layer), NaN where no value is defined; `kernels`, channels x directions.
    """
    kept = {"layer", "stage"}
    variables = {name: _quantiles(dataset[name], kept) for name in QUANTITIES if name in dataset}
    count = dataset.sizes["channel"] * dataset.sizes["direction"]
    counts = labelled("kernels", ["layer"], np.full(dataset.sizes["layer"], count))
    coords = {name: dataset.coords[name] for name in kept if name in dataset.coords}
    return check(xr.Dataset(variables | {"kernels": counts}, coords | index("quantile", QUANTILES), dataset.attrs))


def _quantiles(array: xr.DataArray, kept: set[str]) -> xr.Variable:
    over = [axis for axis, dim in enumerate(array.dims) if dim not in kept]
    with warnings.catch_warnings():  # a layer without a defined value is NaN, and says so itself
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        values = np.nanquantile(array.values, QUANTILES, axis=tuple(over))
    return labelled(str(array.name), ["quantile", *(str(dim) for dim in array.dims if dim in kept)], values)
