"""Datasets of any size without a model, one a subject of the charts; and what can be asked of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts import theme
from ssm_priors.analyses.schema import COURSE, DIRECTIONS, NULL, check, index, labelled

SIZES = {
    "layer": 2,
    "channel": 6,
    "lag": 40,
    "mode": 4,
    "rate": 30,
    "cycle": 33,
    "prior": 5,
    "angle": 4,
    "head": 3,
    "query": 20,
    "key": 20,
    "row": 6,
    "column": 5,
    "reach": 5,
    "other": 3,
    "example": 2,
}
LARGE = {
    "layer": 30,
    "channel": 200,
    "lag": 3000,
    "mode": 32,
    "rate": 100,
    "cycle": 257,
    "prior": 8,
    "angle": 8,
    "head": 8,
    "query": 300,
    "key": 300,
    "row": 60,
    "column": 50,
    "reach": 10,
    "other": 100,
}
ONE = dict.fromkeys(SIZES, 1) | {"cycle": 2}

_KERNEL = ("layer", "channel", "direction")
_MODE = ("layer", "channel", "mode")
_HEAD = ("layer", "head")
SUBJECTS: dict[str, dict[str, tuple[str, ...]]] = {
    "kernels": {"kernel": (*_KERNEL, "lag"), "energy_lag": _KERNEL, "energy_centroid": _KERNEL},
    "spectra": {
        **dict.fromkeys(("z_real", "z_imag", "decay_rate", "timescale", "frequency"), _MODE),
        "weight": (*_KERNEL, "mode"),
    },
    "density": {"decay_density": ("layer", "rate"), "outside": ("layer",)},
    "response": {"gain": (*_KERNEL, "cycle")},
    "distances": {
        **dict.fromkeys(("decay_distance", "frequency_distance", "captured", "best_timescale"), ("layer", "prior")),
        "principal_angle": ("layer", "prior", "angle"),
    },
    "maps": {"attention": ("layer", "example", "head", "query", "key")},
    "summary": {
        "mass": (*_HEAD, "reach"),
        "offset_mass": (*_HEAD, "row", "column"),
        **dict.fromkeys(("mean_distance", "mean_row_distance", "mean_column_distance", "entropy"), _HEAD),
        **dict.fromkeys(("uniform_distance", "uniform_entropy"), ("layer",)),
    },
    "cka": {"cka": ("layer", "other")},
}
"""What each analysis leaves, with its axes."""


def made(subject: str, stages: Sequence[str] = (), sizes: dict[str, int] | None = None) -> xr.Dataset:
    """Numbers between 0.01 and 0.5, along `stage` where stages are given."""
    long = {**SIZES, **(sizes or {}), "direction": 2, "stage": len(stages)}
    rng = np.random.default_rng(0)
    variables, coords = {}, {}
    for name, dims in SUBJECTS[subject].items():
        axes = ("stage", *dims) if stages else dims
        values = rng.uniform(0.01, 0.5, [long[axis] for axis in axes])
        variables[name] = labelled(name, axes, values)
        for axis in axes:
            coords |= index(axis, _ticks(axis, long[axis], stages))
    attrs = {"estimator": "debiased", "points": 99, "point": "input", "model": "s4d", "other_model": "dlr"}
    return check(xr.Dataset(variables, coords, attrs if subject == "cka" else {}))


def _ticks(axis: str, size: int, stages: Sequence[str]) -> Sequence | np.ndarray:
    special = {
        "stage": stages,
        "direction": DIRECTIONS,
        "prior": [f"prior-{k}" for k in range(size)],
        "rate": 10 ** np.linspace(-4, 0, size),
        "cycle": np.linspace(0, 0.5, size),
        "reach": [0, *(2**k for k in range(size - 1))],
    }
    return special.get(axis, range(size))


ALL_STAGES = (*COURSE, NULL)


def results(models: Sequence[str] = ("s4d", "dlr"), inits: Sequence[str] = ("s4d-lin", "random")) -> pd.DataFrame:
    """A study over three shares of the data."""
    return pd.DataFrame(
        {
            "cell": f"{model} {init} {pretrain}",
            "model": model,
            "init": init,
            "pretrain": pretrain,
            "x": x,
            "value": 0.5 + x / 4,
        }
        for model in models
        for init in inits
        for pretrain in ("none", "masked")
        for x in (0.01, 0.1, 1.0)
    ).assign(low=lambda frame: frame["value"] - 0.1, high=lambda frame: frame["value"] + 0.1)


def rows(figure: theme.Figure) -> list[dict[str, Any]]:
    """All that the chart embeds."""
    return [row for data in theme.spec(figure.chart)["datasets"].values() for row in data]


def frame(figure: theme.Figure, column: str) -> pd.DataFrame:
    """The rows that have this column."""
    return pd.DataFrame([row for row in rows(figure) if column in row])


def units(part: Any) -> Iterator[dict[str, Any]]:
    """Every part of a specification that draws marks."""
    if isinstance(part, dict):
        if "mark" in part:
            yield part
        for value in part.values():
            yield from units(value)
    elif isinstance(part, list):
        for value in part:
            yield from units(value)


def channel(figure: theme.Figure, name: str) -> list[dict[str, Any]]:
    """This channel of all marks that have it."""
    return [unit["encoding"][name] for unit in units(theme.spec(figure.chart)) if name in unit["encoding"]]


def axis_titles(spec: dict[str, Any]) -> set[str]:
    found = (unit["encoding"].get(axis, {}).get("title") for unit in units(spec) for axis in ("x", "y"))
    return {title for title in found if title}
