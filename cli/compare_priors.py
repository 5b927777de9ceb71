"""`ssmp compare-priors`: how far checkpoints are from what theory prescribes, from their own init, and from chance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.charts import distances as charts
from ssm_priors.analyses.charts import page
from ssm_priors.checkpoints.container import plain
from ssm_priors.checkpoints.load import load
from ssm_priors.cli import looking
from ssm_priors.cli.looking import number, stages
from ssm_priors.cli.output import Output

PRIORS = ("hippo-legs", "s4d-lin", "s4d-inv")
NUMBERS = ("decay_distance", "frequency_distance", "captured", "best_timescale")
"""What a layer's comparison comes to, in the order in which it is shown."""
MEANING = (
    "Distances are 0 for a model that is the prior, whatever its weights. random: every mode drawn anew, the null. "
    "Captured: share of the kernels' energy that the prior's basis can say."
)


def compare_priors(
    checkpoints: list[Path],
    *,
    against: tuple[str, ...],
    length: int | None,
    layers: tuple[str, ...],
    out: Path | None,
    format: str,
    output: Output,
) -> int:
    """Print a table a checkpoint; write `priors.nc` (or `.zarr`) and `priors.html` for each.

    Args:
        checkpoints: files of this package, or of known families of other code.
        against: priors by name; none means `PRIORS`.
        length: lags of the kernels; None means the length that each model was made for.
        layers: positions of layers; none means all.
        out: folder of the results, with a folder for each checkpoint where there are several; None means
            `inspect/NAME` beside each.
        format: "nc" or "zarr".
        output: says it.

    Raises:
        BadCheckpoint, NotThere, UnknownName, BadConfig: as the analysis.
    """
    schema.require_format(format)
    documents = []
    for place, path in enumerate(checkpoints):
        dataset = found(path, against or PRIORS, length, layers)
        own = out if out is None or len(checkpoints) == 1 else out / f"{place}-{path.parent.name}-{path.stem}"
        folder = looking.folder_for(path, own)
        files = {"data": folder / f"priors.{format}", "page": folder / "priors.html"}
        with looking.writing(folder):
            schema.write(dataset, files["data"], format)
            text = [f"{looking.headline(dataset.attrs)}.", looking.of_which(dataset.attrs, path)]
            page.write(files["page"], "Learned, and prescribed", text, figures(dataset), [table(dataset)])
        documents.append(plain({"checkpoint": path, **document(dataset), "files": files}))
        output.text(looking.headline(dataset.attrs))
        say(dataset, output)
        output.wrote(files)
    output.json(documents)
    return 0


def found(path: Path, against: tuple[str, ...], length: int | None, layers: tuple[str, ...]) -> xr.Dataset:
    """The distances of one checkpoint, of its init, and of the null."""
    from ssm_priors.analyses.distances import Question, distances_of_stages  # SciPy's statistics: a second

    source = load(path)
    return looking.layers_of(distances_of_stages(source, Question(against, looking.lags(source, length))), layers)


def say(dataset: xr.Dataset, output: Output) -> None:
    """The table at a terminal, with what it means."""
    output.table(_columns(dataset), list(_rows(dataset)))
    output.text(MEANING)


def table(dataset: xr.Dataset) -> page.Table:
    """The same for a page."""
    return page.Table("Distance from priors", _columns(dataset), list(_rows(dataset)), MEANING)


def figures(dataset: xr.Dataset) -> list[page.Figure]:
    """The charts of a comparison."""
    return [charts.dots(dataset), *([charts.angles(dataset)] if "principal_angle" in dataset else [])]


def document(dataset: xr.Dataset) -> dict[str, Any]:
    """For machines: every number of every layer, prior and stage."""
    answers = [
        {"layer": int(layer), "prior": str(prior)}
        | {
            stage: {name: float(dataset[name].sel(layer=layer, prior=prior, stage=stage)) for name in _shown(dataset)}
            for stage in stages(dataset)
        }
        for layer in dataset.layer.values
        for prior in dataset.prior.values
    ]
    units = {name: schema.VARIABLES[name].unit for name in _shown(dataset)}
    found: dict[str, Any] = plain({**dataset.attrs, "units": units, "answers": answers})
    return found


def _shown(dataset: xr.Dataset) -> list[str]:
    return [name for name in NUMBERS if name in dataset]


def _columns(dataset: xr.Dataset) -> list[str]:
    return ["layer", "prior", "quantity", *stages(dataset)]


def _rows(dataset: xr.Dataset) -> Iterator[tuple[str, ...]]:
    for layer in dataset.layer.values:
        for prior in dataset.prior.values:
            here = dataset.sel(layer=layer, prior=prior)
            for name in _shown(dataset):
                numbers = [number(float(here[name].sel(stage=stage))) for stage in stages(dataset)]
                yield str(layer), str(prior), schema.label(name), *numbers
