"""The convolution kernels of a model: what each layer's mixer answers to an impulse, without the skip D.

    y[t] = sum_lag kernel[forward, lag] u[t - lag] + sum_lag kernel[backward, lag] u[t + lag]

`lag` is the distance in steps in both directions. The present input belongs to the forward kernel, so the backward one
is 0 at lag 0. Computed in float64 from the parameters as they stand, without a tensor of shape (channel, mode, lag).

    energy lag       = first lag up to which sum K^2 reaches a share of its total
    centroid         = sum_lag lag K^2 / sum K^2
    effective length = (sum K^2)^2 / sum K^4
    zero crossings   = changes of sign, with values of at most 1e-9 of the largest passed over
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import xarray as xr
from numpy.typing import DTypeLike

from ssm_priors.analyses.models import HasMixers, Source, in_float64, subject
from ssm_priors.analyses.schema import DIRECTIONS, check, index, labelled
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.models.protocols import HasKernel

ENERGY_SHARE = 0.9
SHARES = (0.1, 0.5, ENERGY_SHARE)
FLOOR = 1e-9
"""Of a kernel's largest value: what lies below is rounding of a sum of modes, whose sign means nothing."""

_AXES = ("stage", "layer", "channel", "direction")
_AT_ONCE = 2
"""Layers computed at a time."""
_ROWS = 4
"""Kernels measured at a time: their temporary arrays then stay in the processor's cache."""


def impulse_response(mixer: HasKernel, length: int) -> np.ndarray:
    """A mixer's kernels, indexed by the distance in steps.

    Args:
        mixer: is left as it was.
        length: number of lags L.

    Returns:
        (direction, H, L), float64.
    """
    with torch.no_grad():
        return by_distance(in_float64(mixer).kernel(length).detach().double().numpy())


def by_distance(kernel: np.ndarray) -> np.ndarray:
    """In its place, (direction, H, L) with a backward kernel that begins at its own first lag, a distance of one step,
    becomes one that is indexed by the distance.
    """
    kernel[1:, :, 1:] = kernel[1:, :, :-1]
    kernel[1:, :, 0] = 0
    return kernel


def kernels(source: Source | HasMixers, length: int) -> xr.Dataset:
    """Kernels of all layers.

    Args:
        source: a checkpoint (its trained weights) or a model.
        length: number of lags L, in steps.

    Returns:
        kernel(layer, channel, direction, lag), and of each kernel within its L lags: energy_lag, which holds 90% of the
        energy, energy_share_lag(..., share), energy_centroid and effective_length, in steps, and zero_crossings; NaN
        where a kernel is zero everywhere.

    Raises:
        NotThere: the model's mixer is no convolution.
        BadConfig: a length below 1.
    """
    looked_at = subject(source)
    mixers = looked_at.mixers(HasKernel, "kernels", "a convolution")
    return _dataset([mixers], length).isel(stage=0).assign_attrs(looked_at.origin)


def kernels_of_stages(stages: Mapping[str, HasMixers], length: int, dtype: DTypeLike = np.float64) -> xr.Dataset:
    """As `kernels`, of several models of one shape along `stage`.

    Args:
        stages: what each is called, as in `models.stages_of`.
        length: number of lags L, in steps.
        dtype: to which kernels are rounded once everything else has been computed from them.
    """
    mixers = [subject(model).mixers(HasKernel, "kernels", "a convolution") for model in stages.values()]
    return check(_dataset(mixers, length, dtype).assign_coords(index("stage", list(stages))))


def _dataset(stages: Sequence[Sequence[HasKernel]], length: int, dtype: DTypeLike = np.float64) -> xr.Dataset:
    """(stage, layer, channel, direction, ...), the stages not named; few layers at a time are held in float64."""
    if length < 1:
        raise BadConfig(f"length {length}: a kernel has at least 1 lag")
    directions, channels, _ = impulse_response(stages[0][0], 1).shape
    values = np.empty((len(stages), len(stages[0]), channels, directions, length), dtype)

    def measured(place: tuple[int, int]) -> dict[str, np.ndarray]:
        kernel = impulse_response(stages[place[0]][place[1]], length)
        values[place].swapaxes(0, 1)[:] = kernel
        return {name: found.swapaxes(0, 1) for name, found in profile(kernel).items()}

    with ThreadPoolExecutor(_AT_ONCE) as pool:  # NumPy and torch leave Python to others while they compute
        layers = list(pool.map(measured, np.ndindex(values.shape[:2])))
    variables = {"kernel": labelled("kernel", [*_AXES, "lag"], values)}
    for name in layers[0]:
        whole = np.stack([layer[name] for layer in layers]).reshape(*values.shape[:2], *layers[0][name].shape)
        variables[name] = labelled(name, [*_AXES, "share"][: whole.ndim], whole)
    coords = (
        index("layer", range(values.shape[1]))
        | index("channel", range(channels))
        | index("direction", DIRECTIONS[:directions])
        | index("lag", range(length))
        | index("share", SHARES)
    )
    return check(xr.Dataset(variables, coords))


def profile(kernel: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers that describe a kernel, by the names of the schema.

    Args:
        kernel: (..., L), real.

    Returns:
        Each (...), and energy_share_lag (..., share); NaN where a kernel is zero everywhere or not finite.
    """
    rows = kernel.reshape(-1, kernel.shape[-1])
    parts = [_profile(rows[start : start + _ROWS]) for start in range(0, len(rows), _ROWS)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: array.reshape(*kernel.shape[:-1], *array.shape[1:]) for name, array in joined.items()}


def _profile(rows: np.ndarray) -> dict[str, np.ndarray]:
    energy = np.square(rows)
    running = np.cumsum(energy, axis=-1)
    total = running[:, -1]
    defined = (total > 0) & np.isfinite(total)
    total = np.where(defined, total, 1)
    wanted = np.outer(total, SHARES)
    lags = np.array([np.searchsorted(*each) for each in zip(running, wanted, strict=True)], np.float64)
    energy /= total[:, None]
    found = {
        "energy_lag": lags[:, SHARES.index(ENERGY_SHARE)].copy(),
        "energy_share_lag": lags,
        "energy_centroid": energy @ np.arange(rows.shape[1], dtype=np.float64),
        "effective_length": 1 / np.where(defined, np.einsum("rl,rl->r", energy, energy), 1),
        "zero_crossings": np.array([_sign_changes(row) for row in rows], np.float64),
    }
    undefined = ~defined
    for values in found.values():
        values[undefined] = np.nan
    return found


def _sign_changes(row: np.ndarray) -> int:
    size = np.abs(row)
    positive = row[size > FLOOR * size.max()] > 0
    return int(np.count_nonzero(positive[1:] != positive[:-1]))


def unroll(dataset: xr.Dataset, width: int) -> xr.Dataset:
    """Kernels as images: what lies `row` rows and `column` columns back in an image that was read row by row.

    Args:
        dataset: of `kernels`, or any other with kernel(..., lag).
        width: of the image, in columns.

    Returns:
        kernel(..., row, column) with lag = row * width + column; NaN beyond the last lag.

    Raises:
        BadConfig: a width below 1, or wider than the kernel is long.
        BadData: the dataset has no kernels.
    """
    if "kernel" not in dataset:
        raise BadData("the dataset has no 'kernel' to unroll")
    length = dataset.sizes["lag"]
    if not 1 <= width <= length:
        raise BadConfig(f"a width of {width} columns: kernels of {length} lags unroll to rows of 1 to {length}")
    kernel = dataset["kernel"].transpose(..., "lag")
    rows = -(-length // width)
    values = np.full((*kernel.shape[:-1], rows * width), np.nan)
    values[..., :length] = kernel.values
    axes = [*map(str, kernel.dims[:-1]), "row", "column"]
    variable = labelled("kernel", axes, values.reshape(*kernel.shape[:-1], rows, width))
    kept = {str(name): coord for name, coord in kernel.coords.items() if name != "lag"}
    coords = kept | index("row", range(rows)) | index("column", range(width))
    return check(xr.Dataset({"kernel": variable}, coords, dataset.attrs | {"width": width}))
