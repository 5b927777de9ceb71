"""`ssmp inspect-kernels`: a checkpoint's kernels and spectra beside those it began with, as numbers, data, a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.charts import kernels as kernel_charts
from ssm_priors.analyses.charts import page
from ssm_priors.analyses.charts import spectra as spectrum_charts
from ssm_priors.analyses.summaries import QUANTITIES, inspection, summarise
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.container import plain
from ssm_priors.cli.output import Output
from ssm_priors.errors import BadConfig

COLUMNS = ("layer", "quantity", "learned", "init")
RANGE = "Median (5%..95%) over channels and modes; 90% energy lag: over channels and directions."


def inspect_kernels(checkpoint: Path, *, out: Path | None, format: str, length: int | None, output: Output) -> int:
    """Print the table per layer; write `kernels.nc` (or `kernels.zarr`) and `kernels.html`.

    Args:
        checkpoint: a file of this package.
        out: folder of the results; None means `inspect/NAME` beside the checkpoint, NAME being its file's.
        format: "nc" or "zarr".
        length: lags of each kernel; None means the task's length.
        output: says it.

    Raises:
        BadCheckpoint: not a checkpoint.
        NotThere: its model is no convolution.
        BadConfig: an unknown format, a length below 1, or a place that cannot be written to.
    """
    schema.require_format(format)
    opened = Checkpoint.read(checkpoint)
    length = opened.spec.length if length is None else length
    dataset = inspection(opened, length)
    summary = summarise(dataset)
    folder = checkpoint.parent / "inspect" / checkpoint.stem if out is None else out
    files = {"data": folder / f"kernels.{format}", "page": folder / "kernels.html"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        schema.write(dataset, files["data"], format)
        page.write(files["page"], _title(dataset), _text(dataset, checkpoint), _figures(dataset), [_table(summary)])
    except OSError as error:
        raise BadConfig(f"cannot write to {folder}: {error.strerror or error}. Choose another --out") from error
    output.json(_document(summary, checkpoint, length, files))
    output.text(_headline(dataset))
    output.table(COLUMNS, _rows(summary))
    output.text(RANGE)
    output.wrote(files)
    return 0


def _headline(dataset: xr.Dataset) -> str:
    about = dataset.attrs
    pretrained = "from scratch" if about["pretrain"] == "none" else f"pretrained: {about['pretrain']}"
    return (
        f"{about['model']}, init {about['init']}, {pretrained}, on {about['task']}, seed {about['seed']}: "
        f"weights after {about['phase']}, {dataset.sizes['lag']:,} lags"
    )


def _title(dataset: xr.Dataset) -> str:
    return f"Kernels of {dataset.attrs['model']} on {dataset.attrs['task']}"


def _text(dataset: xr.Dataset, checkpoint: Path) -> list[str]:
    about = dataset.attrs
    return [
        f"{_headline(dataset)}. Grey is the init: the model as it was before its first step of training.",
        f"Checkpoint {checkpoint.name}, run {about['fingerprint']}, weights {about['weights_sha256'][:16]}.",
    ]


def _figures(dataset: xr.Dataset) -> list[page.Figure]:
    figures = [kernel_charts.reach(dataset), kernel_charts.examples(dataset)]
    if "decay_rate" in dataset:
        figures += [spectrum_charts.eigenvalues(dataset), spectrum_charts.memory(dataset)]
    return figures


def _table(summary: xr.Dataset) -> page.Table:
    return page.Table("Layer by layer", COLUMNS, list(_rows(summary)), RANGE)


def _rows(summary: xr.Dataset) -> Iterator[tuple[str, ...]]:
    for layer in summary.layer.values:
        here = summary.sel(layer=layer)
        count = str(int(here.kernels))
        yield str(layer), schema.label("kernels"), count, count
        for name in (name for name in QUANTITIES if name in summary):
            learned, init = (_range(here[name].sel(stage=stage).values) for stage in ("learned", "init"))
            yield str(layer), schema.label(name), learned, init


def _range(values: np.ndarray) -> str:
    """Low, median and high as people read them: 0.018 (0.0006..0.04)."""
    low, median, high = values
    if np.isnan(values).any():
        return "undefined"
    return f"{_number(median, 3)} ({_number(low, 2)}..{_number(high, 2)})"


def _number(value: float, digits: int) -> str:
    """Some digits, without an exponent where the number is one that people read at a glance."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def _document(summary: xr.Dataset, checkpoint: Path, length: int, files: dict[str, Path]) -> Any:
    layers = [_layer(summary.sel(layer=layer)) for layer in summary.layer.values]
    return plain({"checkpoint": checkpoint, **summary.attrs, "length": length, "layers": layers, "files": files})


def _layer(here: xr.Dataset) -> dict[str, Any]:
    quantities = [name for name in QUANTITIES if name in here]
    stages = {
        stage: {name: _distribution(here[name].sel(stage=stage)) for name in quantities} for stage in schema.STAGES
    }
    return {"layer": int(here.layer), "kernels": int(here.kernels), **stages}


def _distribution(array: xr.DataArray) -> dict[str, Any]:
    low, median, high = array.values.tolist()
    return {"median": median, "low": low, "high": high, "unit": array.attrs["units"]}
