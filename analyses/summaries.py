"""What a layer's kernels and spectra come to: median and 5-95% range of each quantity, init and learned apart."""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr

from ssm_priors.analyses.kernels import kernels_of_stages
from ssm_priors.analyses.models import Source, along_stages, listed, origin, stages_of
from ssm_priors.analyses.schema import check, index, labelled
from ssm_priors.analyses.spectra import spectra
from ssm_priors.models.protocols import HasKernel, HasSpectrum

QUANTILES = (0.05, 0.5, 0.95)
QUANTITIES = ("decay_rate", "timescale", "frequency", "energy_lag")
"""What is summed up, in the order in which it is shown; modes count alike, whatever their weight."""


def inspection(source: Source, length: int) -> xr.Dataset:
    """All there is to see in a checkpoint's convolutions and state spaces: kernels, spectra, or both; each per `stage`.

    Args:
        source: of this package, whose init is rebuilt from configuration and seed, or of other code: then only learned.
        length: number of lags, in steps.

    Raises:
        NotThere: the model's mixers have neither.
        BadConfig: a length below 1.
    """
    stages = stages_of(source)
    mixers = stages["learned"].mixers
    found = []
    if all(isinstance(mixer, HasSpectrum) for mixer in mixers):
        found.append(along_stages({stage: spectra(model) for stage, model in stages.items()}, source))
    if not found or all(isinstance(mixer, HasKernel) for mixer in mixers):
        kernels = kernels_of_stages(stages, length, np.float32)  # files of half the size, right to 7 digits
        found.append(kernels.assign_attrs(origin(source, listed(stages))))
    return xr.merge(found, combine_attrs="no_conflicts", join="exact", compat="equals")


def summarise(dataset: xr.Dataset) -> xr.Dataset:
    """Quantiles over everything but layer and stage.

    Args:
        dataset: of `inspection`, `kernels` or `spectra`; what it lacks is left out.

    Returns:
        Each of `QUANTITIES` as (quantile, ..., layer), NaN where no value is defined; where there are kernels, their
        number `kernels`, channels x directions.
    """
    kept = {"layer", "stage"}
    variables = {name: _quantiles(dataset[name], kept) for name in QUANTITIES if name in dataset}
    if "kernel" in dataset:
        count = dataset.sizes["channel"] * dataset.sizes["direction"]
        variables["kernels"] = labelled("kernels", ["layer"], np.full(dataset.sizes["layer"], count))
    coords = {name: dataset.coords[name] for name in kept if name in dataset.coords}
    return check(xr.Dataset(variables, coords | index("quantile", QUANTILES), dataset.attrs))


def _quantiles(array: xr.DataArray, kept: set[str]) -> xr.Variable:
    over = [axis for axis, dim in enumerate(array.dims) if dim not in kept]
    with warnings.catch_warnings():  # a layer without a defined value is NaN, and says so itself
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        values = np.nanquantile(array.values, QUANTILES, axis=tuple(over))
    return labelled(str(array.name), ["quantile", *(str(dim) for dim in array.dims if dim in kept)], values)
