"""Every dimension, variable and unit of the analyses, once; and how their data are checked, written and read.

    layer      position of a block in the backbone, from 0
    channel    position in d_model, from 0
    mode       one eigenvalue of a conjugate pair
    lag        distance in steps between an output and an input
    direction  forward: the inputs at lags 0, 1, .. in the past; backward: those at lags 1, 2, .. in the future
    stage      init: before the first step of training; pretrained: before the first label; learned: as trained;
               random: the null of a comparison, modes or kernels of no design
    quantile   of a distribution, 0 to 1
    share      of a kernel's energy, 0 to 1
    row        of a kernel or map unrolled to an image: lag = row * width + column
    column     the same
    rate       decay rate at which a density is taken, the middle of its bin
    cycle      frequency at which a response is taken
    prior      name of what a model is held against
    angle      rank of a principal angle, from 0, the smallest first
    example    position of an input among those shown to the model, from 0
    head       one attention head of a layer, from 0
    query      position that looks
    key        position looked at
    reach      least distance of a bin of distances; the bin ends where the next one begins
    other      layer of the model on the other side of a comparison
    step       position in a sequence, from 0
    feature    of a step of numbers, from 0
    answer     whose answer: the model's before training (init) or after pretraining (pretrained), the best constant
               (constant), or what is given at the same step (copy)

Complex numbers never reach a file, because NetCDF has no type for them: `x` is stored as `x_real` and `x_imag`, made by
`split_complex` and joined again, in memory, by `join_complex`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr

from ssm_priors import __version__, atomic
from ssm_priors.errors import BadConfig, BadData, suggest

Format = Literal["nc", "zarr"]
FORMATS: tuple[Format, ...] = ("nc", "zarr")
MADE_BY = f"ssm-priors {__version__}"
"""Stands in the attribute `source` of every file: how a later call knows that it may replace it."""

DIRECTIONS = ("forward", "backward")
STAGES = ("init", "learned")
"""What every checkpoint holds."""
COURSE = ("init", "pretrained", "learned")
"""What a run leaves behind, in the order in which it happened."""
NULL = "random"
"""The stage that nobody trained or designed."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a variable is."""

    unit: str
    """As it stands in the attribute `units`; "1" for a pure number, empty for names and indices."""
    meaning: str
    """The attribute `long_name`."""
    label: str = ""
    """What a reader calls it, where that is not the variable's name."""


DIMS: dict[str, Quantity] = {
    "layer": Quantity("", "position of the block in the backbone, from 0"),
    "channel": Quantity("", "position in d_model, from 0"),
    "mode": Quantity("", "eigenvalue, one of each conjugate pair"),
    "lag": Quantity("steps", "distance between output and input"),
    "direction": Quantity("", "forward reads the present and the past, backward the future"),
    "stage": Quantity("", "init: before the first step of training; learned: as trained"),
    "quantile": Quantity("1", "share of the values that lie below"),
    "share": Quantity("1", "share of a kernel's energy"),
    "row": Quantity("rows", "rows of the image"),
    "column": Quantity("columns", "columns of the image"),
    "rate": Quantity("1/step", "decay rate, middle of its bin on the log axis"),
    "cycle": Quantity("cycles/step", "frequency of the response"),
    "prior": Quantity("", "what the model is held against"),
    "angle": Quantity("", "rank of the principal angle, the smallest first"),
    "example": Quantity("", "position of the input among those shown"),
    "head": Quantity("", "attention head of the layer, from 0"),
    "query": Quantity("steps", "position that looks"),
    "key": Quantity("steps", "position looked at"),
    "reach": Quantity("steps", "least distance of the bin"),
    "other": Quantity("", "layer of the other model, from 0"),
    "step": Quantity("steps", "position in the sequence, from 0"),
    "feature": Quantity("", "of a step of numbers, from 0"),
    "answer": Quantity("", "init, pretrained: the model's; constant: the best constant; copy: what is given there"),
}

VARIABLES: dict[str, Quantity] = {
    "kernel": Quantity("1", "impulse response without the skip D"),
    "energy_lag": Quantity("steps", "lag up to which a kernel holds 90% of its energy", "90% energy lag"),
    "energy_share_lag": Quantity("steps", "lag up to which a kernel holds a share of its energy", "energy lag"),
    "energy_centroid": Quantity("steps", "mean lag, each weighted with its energy", "energy centroid"),
    "effective_length": Quantity("steps", "lags that would hold the energy evenly, (sum K^2)^2 / sum K^4"),
    "zero_crossings": Quantity("1", "changes of sign between values above 1e-9 of the largest"),
    "eigenvalue_real": Quantity("1/unit of time", "real part of the eigenvalue of A"),
    "eigenvalue_imag": Quantity("1/unit of time", "imaginary part of the eigenvalue of A"),
    "z_real": Quantity("1", "real part of the eigenvalue per step"),
    "z_imag": Quantity("1", "imaginary part of the eigenvalue per step"),
    "dt": Quantity("unit of time/step", "step size"),
    "decay_rate": Quantity("1/step", "decay rate -ln|z|", "decay rate"),
    "timescale": Quantity("steps", "steps in which a mode falls to 1/e"),
    "frequency": Quantity("cycles/step", "frequency arg z / 2 pi, folded into [0, 0.5]"),
    "weight": Quantity("1", "magnitude |C B| of a mode's weight"),
    "kernels": Quantity("1", "number of kernels, channels x directions", "kernels"),
    "decay_density": Quantity("1/decade", "density of the weight |C B| over log10 of the decay rate"),
    "outside": Quantity("1", "share of the weight whose decay rate lies outside the axis"),
    "response_real": Quantity("1", "real part of the frequency response of the kernel"),
    "response_imag": Quantity("1", "imaginary part of the frequency response of the kernel"),
    "gain": Quantity("1", "magnitude of the frequency response", "gain"),
    "decay_distance": Quantity("decades", "Wasserstein-1 distance of the decay rates on their log10 axis"),
    "frequency_distance": Quantity("cycles/step", "Wasserstein-1 distance of the frequencies"),
    "captured": Quantity("1", "share of the kernels' energy in the span of the prior's first basis kernels"),
    "principal_angle": Quantity("radians", "principal angle between the kernels and what the prior makes of them"),
    "best_timescale": Quantity("1", "multiplier of the prior's dt that fits best", "best timescale"),
    "attention": Quantity("1", "weight that a query gives to a key"),
    "mass": Quantity("1", "mean share of attention on keys within the bin of distances"),
    "offset_mass": Quantity("1", "mean share of attention on keys so many rows and columns away"),
    "mean_distance": Quantity("steps", "mean distance between query and key, weighted with attention"),
    "mean_row_distance": Quantity("rows", "mean distance in rows, weighted with attention"),
    "mean_column_distance": Quantity("columns", "mean distance in columns, weighted with attention"),
    "entropy": Quantity("nats", "mean entropy of a query's attention"),
    "uniform_entropy": Quantity("nats", "mean log of the number of keys that a query sees"),
    "uniform_distance": Quantity("steps", "mean distance if all visible keys were attended alike"),
    "locality": Quantity("1", "mean share of attention within the given distance"),
    "recency": Quantity("1", "mean share of attention on the given number of steps before the query"),
    "padding": Quantity("1", "mean share of attention on padding"),
    "total_weight": Quantity("1", "mean sum of a query's weights before they are made shares"),
    "queries": Quantity("1", "number of queries that the means are taken over"),
    "cka": Quantity("1", "linear centred kernel alignment"),
    "value": Quantity("1", "the input as it is, scaled as the model reads it"),
    "value_given": Quantity("1", "what the model is given, NaN where it sees a stand-in"),
    "value_asked": Quantity("1", "what is asked at the step, NaN where nothing is"),
    "value_answered": Quantity("1", "what the model answers, NaN where nothing is asked"),
    "token": Quantity("", "id of the input as it is, -1 behind its end"),
    "token_given": Quantity("", "id that the model is given, -1 where it sees a stand-in"),
    "token_asked": Quantity("", "id that is asked at the step, -1 where none is"),
    "token_answered": Quantity("", "likeliest id of the model's answer, -1 where none is asked"),
    "stand_in": Quantity("", "0 where the model sees its input, else which learned vector it sees instead"),
    "is_asked": Quantity("", "1 where an answer counts"),
    "is_right": Quantity("1", "1 where the answer picks the right choice, NaN where nothing is asked"),
    "cosine": Quantity("1", "cosine of the angle between answer and target, NaN where nothing is asked"),
    "pretrain_loss": Quantity("1", "mean loss of the objective over asked steps", "loss"),
    "accuracy": Quantity("1", "share of the asked steps with the right answer"),
    "mean_cosine": Quantity("1", "mean cosine of the angle between answer and target", "cosine"),
    "answers": Quantity("1", "number of asked steps"),
}


def labelled(name: str, dims: Sequence[str], values: np.ndarray) -> xr.Variable:
    """A variable or dimension coordinate of the schema, with its unit and meaning.

    Args:
        name: a key of `VARIABLES` or `DIMS`.
        dims: the names of the axes.
        values: their length and order are those of `dims`.
    """
    quantity = VARIABLES.get(name) or DIMS[name]
    units = {"units": quantity.unit} if quantity.unit else {}
    return xr.Variable(tuple(dims), values, {**units, "long_name": quantity.meaning})


def index(dim: str, labels: Sequence | np.ndarray) -> dict[str, xr.Variable]:
    """The coordinate of a dimension, as the keyword that datasets take."""
    return {dim: labelled(dim, [dim], np.asarray(labels))}


def label(name: str) -> str:
    """A variable as readers call it, with its unit: 'decay rate, 1/step'."""
    quantity = VARIABLES.get(name) or DIMS[name]
    unit = f", {quantity.unit}" if quantity.unit not in ("", "1") else ""
    return (quantity.label or name.replace("_", " ")) + unit


def check(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset itself, if all it holds is in the schema.

    Raises:
        BadData: an unknown dimension or variable, a missing or wrong unit, or complex numbers.
    """
    for dim in map(str, dataset.dims):
        if dim not in DIMS:
            raise BadData(f"unknown dimension '{dim}'. {suggest(dim, DIMS) or _known(DIMS)}")
    for name, variable in dataset.variables.items():
        _check_variable(str(name), variable)
    return dataset


def _check_variable(name: str, variable: xr.Variable) -> None:
    known = {**DIMS, **VARIABLES}
    if name not in known:
        raise BadData(f"unknown variable '{name}'. {suggest(name, known) or _known(known)}")
    if variable.dtype.kind == "c":
        raise BadData(f"variable '{name}' is complex, which NetCDF cannot hold; use split_complex")
    given, expected = variable.attrs.get("units", ""), known[name].unit
    if given != expected:
        raise BadData(f"variable '{name}' has the unit '{given}', '{expected}' was expected")


def _known(names: dict[str, Quantity]) -> str:
    return f"Known: {', '.join(sorted(names))}."


def split_complex(name: str, dims: Sequence[str], values: np.ndarray) -> dict[str, xr.Variable]:
    """A complex array as its two plain parts, `name_real` and `name_imag`, in the matching real dtype."""
    return {f"{name}_{part}": labelled(f"{name}_{part}", dims, getattr(values, part)) for part in ("real", "imag")}


def join_complex(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """What `split_complex` took apart; complex64 from float32 parts, complex128 from float64.

    Raises:
        BadData: the dataset lacks one of the two parts.
    """
    missing = [part for part in (f"{name}_real", f"{name}_imag") if part not in dataset]
    if missing:
        raise BadData(f"'{name}' cannot be joined: the dataset has no '{missing[0]}'")
    real, imag = dataset[f"{name}_real"], dataset[f"{name}_imag"]
    joined = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    joined.real, joined.imag = real.values, imag.transpose(*real.dims).values
    attrs = {**real.attrs, "long_name": real.attrs.get("long_name", name).removeprefix("real part of the ")}
    return xr.DataArray(joined, real.coords, real.dims, name, attrs)


def write(dataset: xr.Dataset, path: Path, format: str = "nc") -> None:
    """Write atomically: a kill at any moment leaves the old file or the new one.

    Args:
        dataset: passes `check`.
        path: a file for "nc" (NetCDF 4), a folder for "zarr" (version 2 of the format).
        format: "nc" or "zarr".

    Raises:
        BadConfig: an unknown format, or something stands there that this package did not write.
        BadData: the dataset is not of the schema.
    """
    require_format(format)
    dataset = check(dataset).assign_attrs(source=MADE_BY)
    if path.exists() and not _is_ours(path):
        raise foreign(path)
    if format == "nc":
        atomic.write(path, lambda file: dataset.to_netcdf(file.name, engine="netcdf4"))
    else:
        atomic.write_folder(path, lambda fresh: dataset.to_zarr(fresh, mode="w", zarr_format=2, consolidated=True))


def require_format(format: str) -> None:
    """Raises BadConfig for a format that `write` does not know."""
    if format not in FORMATS:
        raise BadConfig(f"unknown format '{format}'. Known: {', '.join(FORMATS)}.")


def foreign(path: Path) -> BadConfig:
    """The error for a place that is taken by something not written here."""
    return BadConfig(
        f"{path} exists and was not written by ssm-priors; it stays as it is. Move it, or choose another --out"
    )


def read(path: Path) -> xr.Dataset:
    """What `write` wrote, in memory, with the file closed again.

    Raises:
        BadData: no such file, or not a dataset of this package.
    """
    if not path.exists():
        raise BadData(f"{path}: no such file")
    try:
        with _open(path) as dataset:
            return check(dataset.load())
    except (OSError, ValueError, KeyError) as error:
        raise BadData(f"{path}: not a dataset of ssm-priors: {error}") from error


def _open(path: Path) -> xr.Dataset:
    if path.is_dir():
        return xr.open_zarr(path, zarr_format=2, consolidated=True)
    return xr.open_dataset(path, engine="netcdf4")


def _is_ours(path: Path) -> bool:
    try:
        with _open(path) as dataset:
            return str(dataset.attrs.get("source", "")).startswith("ssm-priors ")
    except (OSError, ValueError, KeyError):
        return False
