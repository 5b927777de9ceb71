"""`ssmp inspect-attention`: where a checkpoint's attention looks, from before training to the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.attention import attention_maps, attention_summary
from ssm_priors.analyses.charts import attention as charts
from ssm_priors.analyses.charts import page
from ssm_priors.analyses.models import along_stages, stages_of
from ssm_priors.analyses.trajectory import stages as stages_of_run
from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import FINISHED, PRETRAINED, Checkpoint
from ssm_priors.checkpoints.container import plain
from ssm_priors.checkpoints.load import load
from ssm_priors.cli import looking
from ssm_priors.cli.looking import number, stages
from ssm_priors.cli.output import Output
from ssm_priors.models.build import Model
from ssm_priors.registry import TASKS

NUMBERS = ("mean_distance", "entropy", "locality", "recency", "padding")
EVEN = {"mean_distance": "uniform_distance", "entropy": "uniform_entropy"}
"""What even attention over the keys that a query sees would have, for those quantities where that says something."""
BATCH = 8
"""Examples looked at together."""


def inspect_attention(
    checkpoint: Path,
    *,
    examples: int,
    near: int,
    layers: tuple[str, ...],
    out: Path | None,
    format: str,
    output: Output,
) -> int:
    """Print the table per layer; write `attention.nc` (or `.zarr`), and `attention.html` with maps of one example.

    Args:
        checkpoint: a file of this package.
        examples: of the validation split, the first so many.
        near: largest distance that counts as local, and steps that count as recent.
        layers: positions of layers; none means all.
        out: folder of the results; None means `inspect/NAME` beside the checkpoint, NAME being its file's.
        format: "nc" or "zarr".
        output: says it.

    Raises:
        BadCheckpoint: not a checkpoint.
        NotThere: its model has no attention, or is one of other code, whose inputs are not known.
        BadData: the task's data are not here.
        BadConfig: a layer that is not there, or a place that cannot be written to.
    """
    schema.require_format(format)
    own = looking.own(load(checkpoint), checkpoint, "Attention")
    batches = _held_inputs(own, examples)
    width = own.spec.width or None
    models = _stages(own, checkpoint)
    parts = {
        stage: attention_summary(model, batches, near=near, recent=near, width=width) for stage, model in models.items()
    }
    dataset = looking.layers_of(along_stages(parts, own), layers)
    maps = looking.layers_of(attention_maps(models["learned"], _alone(batches[0])), layers)
    folder = looking.folder_for(checkpoint, out)
    files = {"data": folder / f"attention.{format}", "page": folder / "attention.html"}
    with looking.writing(folder):
        schema.write(dataset, files["data"], format)
        _page(files["page"], checkpoint, dataset, maps)
    output.json(_document(dataset, checkpoint, files))
    output.text(f"{looking.headline(dataset.attrs)}; {sum(map(len, batches))} validation examples")
    output.table(_columns(dataset), list(_rows(dataset)))
    output.text(_meaning(near))
    output.wrote(files)
    return 0


def _held_inputs(checkpoint: Checkpoint, examples: int) -> list[Batch]:
    task = TASKS[checkpoint.config.task.name].load(checkpoint.config.task.options)
    held = task.validation.without_labels()
    return [held.take(part) for part in held.spread(examples).split(BATCH)]


def _stages(checkpoint: Checkpoint, path: Path) -> dict[str, Model]:
    """The course of the run that the file belongs to; init and learned where the file stands alone."""
    if path.name == FINISHED and (path.parent / PRETRAINED).is_file():
        return stages_of_run(path.parent)
    return {stage: model for stage, model in stages_of(checkpoint).items() if isinstance(model, Model)}


def _alone(batch: Batch) -> Batch:
    """The first example, without its padding."""
    return Batch(batch.inputs[:1, : int(batch.lengths[0])], batch.lengths[:1], None)


def _page(path: Path, checkpoint: Path, dataset: xr.Dataset, maps: xr.Dataset) -> None:
    text = [f"{looking.headline(dataset.attrs)}.", looking.of_which(dataset.attrs, checkpoint)]
    table = page.Table("Layer by layer", _columns(dataset), list(_rows(dataset)), _meaning(int(dataset.attrs["near"])))
    figures = [charts.proximity(dataset), charts.mass(dataset), charts.maps(maps)]
    figures += [charts.offsets(dataset)] if "offset_mass" in dataset else []
    page.write(path, f"Attention of {dataset.attrs['model']}", text, figures, [table])


def _meaning(near: int) -> str:
    return (
        f"Mean over heads (least..most). Locality: share of attention within {near} steps; recency: on the {near} "
        "steps before the query. even: what attention spread evenly over the visible keys would have."
    )


def _columns(dataset: xr.Dataset) -> list[str]:
    return ["layer", "quantity", *stages(dataset), "even"]


def _rows(dataset: xr.Dataset) -> Iterator[tuple[str, ...]]:
    for layer in dataset.layer.values:
        here = dataset.sel(layer=layer)
        for name in NUMBERS:
            heads = [here[name].sel(stage=stage).values for stage in stages(dataset)]
            spread = [f"{number(each.mean())} ({number(each.min())}..{number(each.max())})" for each in heads]
            even = number(float(here[EVEN[name]].sel(stage="learned"))) if name in EVEN else ""
            yield str(layer), schema.label(name), *spread, even


def _document(dataset: xr.Dataset, checkpoint: Path, files: dict[str, Path]) -> Any:
    layers = [
        {"layer": int(layer)}
        | {
            stage: {name: dataset[name].sel(layer=layer, stage=stage).values for name in NUMBERS}
            for stage in stages(dataset)
        }
        | {even: float(dataset[even].sel(layer=layer, stage="learned")) for even in EVEN.values()}
        for layer in dataset.layer.values
    ]
    units = {name: schema.VARIABLES[name].unit for name in NUMBERS}
    return plain({"checkpoint": checkpoint, **dataset.attrs, "units": units, "layers": layers, "files": files})
