"""`ssmp inspect-pretraining`: what a pretrained model makes of inputs that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from ssm_priors.analyses import schema
from ssm_priors.analyses.charts import page
from ssm_priors.analyses.charts import pretraining as charts
from ssm_priors.analyses.pretraining import NUMBERS, objective_of, overall, reconstructions
from ssm_priors.checkpoints.checkpoint import PRETRAINED, Checkpoint
from ssm_priors.checkpoints.container import plain
from ssm_priors.checkpoints.load import load
from ssm_priors.cli import looking
from ssm_priors.cli.output import Output
from ssm_priors.errors import BadCheckpoint, BadData, NotThere
from ssm_priors.registry import TASKS
from ssm_priors.tasks.task import Task, words_of

COLUMNS = {
    "pretrained": "after pretraining",
    "init": "before training",
    "constant": "best constant",
    "copy": "copy of the input",
}
"""Whose answer it is, in the order of the table."""


def inspect_pretraining(path: Path, *, examples: int, out: Path | None, format: str, output: Output) -> int:
    """Print the objective's loss beside trivial guesses; write `pretraining.nc` (or `.zarr`) and `pretraining.html`.

    Args:
        path: `pretrained.pt` of a run, or its finished `ckpt.pt`.
        examples: of the validation split, so many, evenly spaced.
        out: folder of the results; None means `inspect/pretrained` beside the checkpoint.
        format: "nc" or "zarr".
        output: says it.

    Raises:
        BadCheckpoint: not a checkpoint, or not of the run beside which it lies.
        NotThere: the run has no pretraining, or the weights after it are not there.
        BadData: the task's data are not here, or others than those of the run.
    """
    schema.require_format(format)
    path, checkpoint = _pretrained(path)
    task = _task(checkpoint, path)
    dataset = reconstructions(checkpoint, task.validation, examples)
    folder = looking.folder_for(path, out)
    files = {"data": folder / f"pretraining.{format}", "page": folder / "pretraining.html"}
    with looking.writing(folder):
        schema.write(dataset, files["data"], format)
        _page(files["page"], path, checkpoint, dataset)
    output.json(_document(dataset, path, files))
    output.text(f"{looking.headline(dataset.attrs)}; {_seen(dataset)}")
    output.table(_columns(dataset), list(_rows(dataset)))
    output.text(_meaning(dataset))
    output.wrote(files)
    return 0


def _pretrained(path: Path) -> tuple[Path, Checkpoint]:
    """The weights after pretraining of the run that a file belongs to."""
    found = looking.own(load(path), path, "What an objective asks")
    objective_of(found)  # refuses a run from scratch
    if found.phase == "pretrain":
        return path, found
    beside = path.parent / PRETRAINED
    if not beside.is_file():
        raise NotThere(
            f"{path} holds the weights after finetuning; {PRETRAINED} of the same run was expected beside it"
        )
    pretrained = Checkpoint.read(beside)
    if pretrained.config != found.config:
        raise BadCheckpoint(f"{beside} is of another run than {path.name}")
    return beside, pretrained


def _task(checkpoint: Checkpoint, path: Path) -> Task:
    part = checkpoint.config.task
    task: Task = TASKS[part.name].load(part.options)
    trained_on = checkpoint.record.get("provenance", {}).get("data_sha256")
    if task.sha256 != trained_on:
        raise BadData(
            f"{path} was trained on other data than task '{part.name}' has now (SHA-256 {str(trained_on)[:12]}, now "
            f"{task.sha256[:12]}), so its losses would mean nothing"
        )
    return task


def _page(path: Path, of: Path, checkpoint: Checkpoint, dataset: xr.Dataset) -> None:
    text = [f"{looking.headline(dataset.attrs)}; {_seen(dataset)}.", looking.of_which(dataset.attrs, of)]
    table = page.Table("What the answers cost", _columns(dataset), list(_rows(dataset)), _meaning(dataset))
    part = checkpoint.config.task
    is_text = "token" in dataset
    passages = charts.passages(dataset, words_of(TASKS[part.name], part.options, checkpoint.spec)) if is_text else []
    figures = [] if is_text else [charts.images(dataset) if dataset.attrs["width"] else charts.series(dataset)]
    figures += [charts.agreement(dataset)] if "cosine" in dataset or "is_right" in dataset else []
    page.write(path, f"Pretraining: {dataset.attrs['pretrain']} on {part.name}", text, figures, [table], passages)


def _seen(dataset: xr.Dataset) -> str:
    return f"{dataset.sizes['example']} documents of the validation split, {int(dataset.answers.sum()):,} answers"


def _meaning(dataset: xr.Dataset) -> str:
    unit = "Loss in nats. " if "accuracy" in dataset else ""
    copy = " Copy: what the model is given at the same step." if "copy" in dataset.answer else ""
    teacher = f" Target: the representation by {dataset.attrs['teacher']}." if "teacher" in dataset.attrs else ""
    return (
        f"{unit}Means over all steps that are asked. Best constant: an answer that ignores the input, fitted to these "
        f"very targets; chance, where the answer is a choice.{copy}{teacher}"
    )


def _columns(dataset: xr.Dataset) -> list[str]:
    return ["quantity", *(title for answer, title in COLUMNS.items() if answer in dataset.answer)]


def _rows(dataset: xr.Dataset) -> Iterator[tuple[str, ...]]:
    for name in NUMBERS:
        if name in dataset:
            means = overall(dataset, name)
            yield schema.label(name), *(looking.number(means[answer]) for answer in COLUMNS if answer in means)


def _document(dataset: xr.Dataset, path: Path, files: dict[str, Path]) -> Any:
    numbers = {name: overall(dataset, name) for name in NUMBERS if name in dataset}
    counts = {"examples": dataset.sizes["example"], "answers": int(dataset.answers.sum())}
    return plain({"checkpoint": path, **dataset.attrs, **counts, **numbers, "files": files})
