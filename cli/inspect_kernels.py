"""`ssmp inspect-kernels`: a checkpoint's kernels and spectra beside those it began with, as numbers, data, a page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.charts import kernel_maps, page
from ssm_priors.analyses.charts import kernels as kernel_charts
from ssm_priors.analyses.charts import spectra as spectrum_charts
from ssm_priors.analyses.models import Source, along_stages, stages_of
from ssm_priors.analyses.spectra import decay_density, response
from ssm_priors.analyses.summaries import QUANTITIES, inspection, summarise
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.container import plain
from ssm_priors.checkpoints.load import load
from ssm_priors.cli import compare_priors, looking
from ssm_priors.cli.looking import number, stages
from ssm_priors.cli.output import Output
from ssm_priors.training.allocator import keep_freed_memory

GAIN_POINTS = 129
"""Frequencies at which the page draws responses: one every two pixels."""
RANGE = "Median (5%..95%) over channels and modes; 90% energy lag: over channels and directions."


@dataclass(frozen=True, slots=True)
class Look:
    """What to look at."""

    length: int | None = None
    """Lags of each kernel; None means the length that the model was made for."""
    layers: tuple[str, ...] = ()
    """Positions of layers; none means all."""
    against: tuple[str, ...] = ()
    """Priors to hold the checkpoint against."""
    compare: Path | None = None
    """A second checkpoint, shown beside the first."""


def inspect_kernels(checkpoint: Path, look: Look, *, out: Path | None, format: str, output: Output) -> int:
    """Print the table per layer; write `kernels.nc` (or `.zarr`), with priors `priors.nc`, and `kernels.html`.

    Args:
        checkpoint: a file of this package, or of a known family of other code.
        look: what to look at.
        out: folder of the results; None means `inspect/NAME` beside the checkpoint, NAME being its file's.
        format: "nc" or "zarr".
        output: says it.

    Raises:
        BadCheckpoint: not a checkpoint.
        NotThere: its model is neither a convolution nor a state space.
        UnknownName: no such prior.
        BadConfig: an unknown format, a length below 1, a layer that is not there, or a place that cannot be written to.
    """
    schema.require_format(format)
    keep_freed_memory()
    paths = [checkpoint, *([look.compare] if look.compare else [])]
    sources = [load(path) for path in paths]
    seen = [_look(source, look) for source in sources]
    priors = compare_priors.found(checkpoint, look.against, look.length, look.layers) if look.against else None
    folder = looking.folder_for(checkpoint, out)
    files = {"data": folder / f"kernels.{format}"}
    files |= {"compared": folder / f"compared.{format}"} if look.compare else {}
    files |= {"priors": folder / f"priors.{format}"} if priors else {}
    files |= {"page": folder / "kernels.html"}
    datasets = [*seen, *([priors] if priors else [])]
    with looking.writing(folder), ThreadPoolExecutor(1) as meanwhile:
        places = [place for name, place in files.items() if name != "page"]
        pairs = zip(datasets, places, strict=True)
        writing = [meanwhile.submit(schema.write, dataset, place, format) for dataset, place in pairs]
        _page(files["page"], list(zip(paths, sources, seen, strict=True)), look, priors)
        for each in writing:
            each.result()
    summaries = [summarise(dataset) for dataset in seen]
    document = [_document(*each) for each in zip(seen, summaries, paths, strict=True)]
    extra = {"compared": document[1]} if look.compare else {}
    extra |= {"priors": compare_priors.document(priors)} if priors else {}
    output.json(document[0] | extra | {"files": plain(files)})
    for dataset, summary in zip(seen, summaries, strict=True):
        output.text(_headline(dataset))
        output.table(_columns(summary), _rows(summary))
    output.text(RANGE)
    if priors:
        compare_priors.say(priors, output)
    output.wrote(files)
    return 0


def _look(source: Source, look: Look) -> xr.Dataset:
    return looking.layers_of(inspection(source, looking.lags(source, look.length)), look.layers)


Seen = tuple[Path, Source, xr.Dataset]


def _page(path: Path, seen: list[Seen], look: Look, priors: xr.Dataset | None) -> None:
    figures = [figure for _, source, dataset in seen for figure in _figures(source, dataset, look)]
    tables = [page.Table(f"Layer by layer: {_headline(each)}", *_table(summarise(each)), RANGE) for _, _, each in seen]
    text = [line for of, _, dataset in seen for line in _text(dataset, of)]
    if priors:
        figures += compare_priors.figures(priors)
        tables.append(compare_priors.table(priors))
    page.write(path, f"Kernels of {seen[0][2].attrs['model']}", text, figures, tables)


def _headline(dataset: xr.Dataset) -> str:
    lags = f", {dataset.sizes['lag']:,} lags" if "lag" in dataset.sizes else ""
    return looking.headline(dataset.attrs) + lags


def _text(dataset: xr.Dataset, checkpoint: Path) -> list[str]:
    grey = " Grey is the init: the model as it was before its first step of training."
    return [
        f"{_headline(dataset)}.{grey if 'init' in dataset.stage else ''}",
        looking.of_which(dataset.attrs, checkpoint),
    ]


def _figures(source: Source, dataset: xr.Dataset, look: Look) -> list[page.Figure]:
    figures = _of_kernels(source, dataset, look) if "kernel" in dataset else []
    if "decay_rate" not in dataset:
        return figures
    figures += [spectrum_charts.eigenvalues(dataset), spectrum_charts.disc(dataset)]
    if not np.isfinite(dataset.weight).any():
        return figures
    models, length = stages_of(source), dataset.sizes.get("lag")
    density = along_stages({stage: decay_density(model) for stage, model in models.items()}, source)
    figures += [spectrum_charts.memory(dataset), spectrum_charts.density(looking.layers_of(density, look.layers))]
    if length is None:
        return figures
    gains = {stage: response(model, GAIN_POINTS, length) for stage, model in models.items()}
    gain = along_stages(gains, source)
    return [*figures, spectrum_charts.gain(looking.layers_of(gain, look.layers))]


def _of_kernels(source: Source, dataset: xr.Dataset, look: Look) -> list[page.Figure]:
    figures = [kernel_charts.reach(dataset), kernel_charts.examples(dataset), *_fitted(source, dataset, look)]
    figures.append(kernel_maps.heat(dataset))
    width = source.spec.width if isinstance(source, Checkpoint) else 0
    return [*figures, kernel_maps.unrolled(dataset, width)] if 0 < width <= dataset.sizes["lag"] else figures


def _fitted(source: Source, dataset: xr.Dataset, look: Look) -> Iterator[page.Figure]:
    """The kernels that are drawn as examples, beside what each prior makes of them."""
    from ssm_priors.analyses.distances import best_fits

    channels = kernel_charts.drawn(dataset)
    for prior in look.against if channels else ():
        fit = looking.layers_of(best_fits(source, prior, dataset.sizes["lag"], channels), look.layers)
        yield kernel_charts.examples(dataset, fit)


def _columns(summary: xr.Dataset) -> list[str]:
    return ["layer", "quantity", *stages(summary)]


def _table(summary: xr.Dataset) -> tuple[list[str], list[tuple[str, ...]]]:
    return _columns(summary), list(_rows(summary))


def _rows(summary: xr.Dataset) -> Iterator[tuple[str, ...]]:
    shown = stages(summary)
    for layer in summary.layer.values:
        here = summary.sel(layer=layer)
        if "kernels" in here:
            yield str(layer), schema.label("kernels"), *[str(int(here.kernels))] * len(shown)
        for name in (name for name in QUANTITIES if name in summary):
            ranges = (_range(here[name].sel(stage=stage).values) for stage in shown)
            yield str(layer), schema.label(name), *ranges


def _range(values: np.ndarray) -> str:
    """Low, median and high as people read them: 0.018 (0.0006..0.04)."""
    low, median, high = values
    return "undefined" if np.isnan(values).any() else f"{number(median)} ({number(low, 2)}..{number(high, 2)})"


def _document(dataset: xr.Dataset, summary: xr.Dataset, checkpoint: Path) -> dict[str, Any]:
    layers = [_layer(summary.sel(layer=layer)) for layer in summary.layer.values]
    length = {"length": dataset.sizes["lag"]} if "lag" in dataset.sizes else {}
    found: dict[str, Any] = plain({"checkpoint": checkpoint, **summary.attrs, **length, "layers": layers})
    return found


def _layer(here: xr.Dataset) -> dict[str, Any]:
    quantities = [name for name in QUANTITIES if name in here]
    by_stage = {
        stage: {name: _distribution(here[name].sel(stage=stage)) for name in quantities} for stage in stages(here)
    }
    count = {"kernels": int(here.kernels)} if "kernels" in here else {}
    return {"layer": int(here.layer), **count, **by_stage}


def _distribution(array: xr.DataArray) -> dict[str, Any]:
    low, median, high = array.values.tolist()
    return {"median": median, "low": low, "high": high, "unit": array.attrs["units"]}
