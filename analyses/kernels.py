"""The convolution kernels of a model: what each layer's mixer answers to an impulse, without the skip D.

    y[t] = sum_lag kernel[forward, lag] u[t - lag] + sum_lag kernel[backward, lag] u[t + lag]

`lag` is the distance in steps in both directions. The present input belongs to the forward kernel, so the backward one
is 0 at lag 0. Computed in float64 from the parameters as they stand, without a tensor of shape (channel, mode, lag).
"""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from ssm_priors.analyses.models import in_float64, subject
from ssm_priors.analyses.schema import DIRECTIONS, check, index, labelled
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig
from ssm_priors.models.build import Model
from ssm_priors.models.protocols import HasKernel
from ssm_priors.priors.response import energy_lag

ENERGY_SHARE = 0.9


def impulse_response(mixer: HasKernel, length: int) -> np.ndarray:
    """A mixer's kernels, indexed by the distance in steps.

    Args:
        mixer: is left as it was.
        length: number of lags L.

    Returns:
        (direction, H, L), float64.
    """
    with torch.no_grad():
        kernel = in_float64(mixer).kernel(length).detach().double().numpy()
    if len(kernel) == 2:  # a mixer's own backward kernel begins at a distance of one step
        kernel[1, :, 1:] = kernel[1, :, :-1].copy()
        kernel[1, :, 0] = 0
    return kernel


def kernels(source: Checkpoint | Model, length: int) -> xr.Dataset:
    """Kernels of all layers.

    Args:
        source: a checkpoint (its trained weights) or a model.
        length: number of lags L, in steps.

    Returns:
        kernel(layer, channel, direction, lag) and energy_lag(layer, channel, direction) in steps; the latter is NaN
        where a kernel is zero everywhere, and never beyond the last of the L lags.

    Raises:
        NotThere: the model's mixer is no convolution.
        BadConfig: a length below 1.
    """
    if length < 1:
        raise BadConfig(f"length {length}: a kernel has at least 1 lag")
    looked_at = subject(source)
    mixers = looked_at.mixers(HasKernel, "kernels", "a convolution")
    first = impulse_response(mixers[0], length)
    values = np.empty((len(mixers), first.shape[1], first.shape[0], length))
    within = np.empty(values.shape[:-1])
    for layer, mixer in enumerate(mixers):
        values[layer] = (impulse_response(mixer, length) if layer else first).swapaxes(0, 1)
        lags = energy_lag(values[layer], ENERGY_SHARE)
        within[layer] = np.where(lags < 0, np.nan, lags)
    axes = ["layer", "channel", "direction", "lag"]
    variables = {"kernel": labelled("kernel", axes, values), "energy_lag": labelled("energy_lag", axes[:3], within)}
    labels = [range(values.shape[0]), range(values.shape[1]), DIRECTIONS[: values.shape[2]], range(length)]
    coords = {name: part for axis, ticks in zip(axes, labels, strict=True) for name, part in index(axis, ticks).items()}
    return check(xr.Dataset(variables, coords, looked_at.origin))
