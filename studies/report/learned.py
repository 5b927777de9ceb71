"""What a study's models learned, as sections of its report: spectra against priors, attention before and after.

One run a cell is looked at, its first seed that is done: these sections describe, they claim nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from ssm_priors.analyses.attention import attention_summary
from ssm_priors.analyses.charts import attention as attention_charts
from ssm_priors.analyses.charts import kernels as kernel_charts
from ssm_priors.analyses.charts import page
from ssm_priors.analyses.charts import spectra as spectrum_charts
from ssm_priors.analyses.charts.theme import Figure
from ssm_priors.analyses.distances import Question, best_fits, distances_of_stages
from ssm_priors.analyses.kernels import kernels_of_stages
from ssm_priors.analyses.models import along_stages, stages_of
from ssm_priors.analyses.schema import label
from ssm_priors.analyses.spectra import decay_density
from ssm_priors.analyses.trajectory import stages
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadData
from ssm_priors.models.protocols import HasAttention, HasKernel, HasSpectrum
from ssm_priors.registry import TASKS
from ssm_priors.studies import results as runs
from ssm_priors.studies.grid import Cell
from ssm_priors.studies.report.content import Extra
from ssm_priors.studies.report.labels import label as named
from ssm_priors.training.run import CHECKPOINT

PRIORS = ("hippo-legs", "s4d-lin")
FITTED = "hippo-legs"
"""The prior whose best fit is drawn over single kernels."""
MOST_CELLS = 6
"""Cells that are looked at; a large study has one page a checkpoint for the others (`ssmp inspect-kernels`)."""
EXAMPLES, LONGEST = 16, 4096
"""Validation inputs whose attention is looked at, and the longest of them in steps: the time grows with its square."""
DISTANCES = ("decay_distance", "frequency_distance", "captured")
Looked = tuple[Cell, Path, Checkpoint]


def sections(results: xr.Dataset, out: Path) -> list[Extra]:
    """Sections for the state spaces and for the attention of a study's models; none where there are none.

    Args:
        results: of `results.collect`.
        out: the study's folder.
    """
    spaces: list[Looked] = []
    attending: list[Looked] = []
    for looked in _looked_at(results, Path(out)):
        mixers = looked[2].model().mixers
        for skill, chosen in ((HasSpectrum, spaces), (HasAttention, attending)):
            if len(chosen) < MOST_CELLS and all(isinstance(mixer, skill) for mixer in mixers):
                chosen.append(looked)
        if min(len(spaces), len(attending)) == MOST_CELLS:
            break
    return [*([_spectra(spaces)] if spaces else []), *([_attention(attending)] if attending else [])]


def _looked_at(results: xr.Dataset, out: Path) -> Iterator[Looked]:
    """The first done run of every cell."""
    for cell in runs.cells(results):
        one = runs.at(results, cell)
        done = np.flatnonzero(one.status.values == runs.Status.DONE)
        if len(done):
            folder = out / "runs" / str(one.fingerprint.values[done[0]])
            yield cell, folder, Checkpoint.read(folder / CHECKPOINT)


def _spectra(looked: list[Looked]) -> Extra:
    figures: list[Figure] = []
    rows: list[list[str]] = []
    for cell, _, checkpoint in looked:
        found = distances_of_stages(checkpoint, Question(PRIORS, checkpoint.spec.length))
        rows += _distance_rows(named(cell), found)
        parts = {stage: decay_density(model) for stage, model in stages_of(checkpoint).items()}
        drawn = [spectrum_charts.density(along_stages(parts, checkpoint)), *_kernels(checkpoint)]
        figures += [Figure(f"{each.title}: {named(cell)}", each.chart, each.caption) for each in drawn]
    caption = (
        "One run a cell, its first seed; mean over layers. A distance is 0 for a model whose modes are the prior's; "
        "init is the same model before its first step, random one whose modes are all drawn anew (the null). "
        "Captured: share of the kernels' energy that the prior's basis can say."
    )
    columns = ["cell", "prior", "quantity", "learned", "init", "random"]
    return "What the state spaces learned", figures, [page.Table("Distance from priors", columns, rows, caption)]


def _kernels(checkpoint: Checkpoint) -> Iterator[Figure]:
    """Single kernels, with those of the init and the best fit of a prior; none where the mixers are no convolutions."""
    if not all(isinstance(mixer, HasKernel) for mixer in checkpoint.model().mixers):
        return
    found = kernels_of_stages(stages_of(checkpoint), checkpoint.spec.length)
    if channels := kernel_charts.drawn(found):
        fit = best_fits(checkpoint, FITTED, checkpoint.spec.length, channels)
        yield kernel_charts.examples(found, fit)


def _distance_rows(cell: str, found: xr.Dataset) -> Iterator[list[str]]:
    for prior in found.prior.values:
        for name in (name for name in DISTANCES if name in found):
            means = found[name].sel(prior=prior).mean("layer")
            yield [cell, str(prior), label(name), *(f"{float(means.sel(stage=s)):.3g}" for s in ORDER)]


ORDER = ("learned", "init", "random")


def _attention(looked: list[Looked]) -> Extra:
    title, figures, rows = "Where attention looks", [], []
    for cell, folder, checkpoint in looked:
        found = _attention_of(folder, checkpoint)
        if found is None:
            continue
        there = [str(stage) for stage in found.stage.values]
        for layer in found.layer.values:
            here = found.sel(layer=layer)
            means = {stage: f"{float(here.mean_distance.sel(stage=stage).mean()):.3g}" for stage in there}
            even = f"{float(here.uniform_distance.sel(stage='learned')):.3g}"
            rows.append([named(cell), str(layer), *(means.get(stage, "-") for stage in COURSE), even])
        drawn = attention_charts.proximity(found)
        figures.append(Figure(f"{drawn.title}: {named(cell)}", drawn.chart, drawn.caption))
    caption = (
        f"One run a cell, its first seed; the first {EXAMPLES} validation inputs, mean over heads. even: what "
        f"attention spread evenly over the visible keys would have. Models of more than {LONGEST:,} steps are left out."
    )
    columns = ["cell", "layer", "init", "pretrained", "learned", "even"]
    return title, figures, [page.Table("Mean distance, steps", columns, rows, caption)]


COURSE = ("init", "pretrained", "learned")


def _attention_of(folder: Path, checkpoint: Checkpoint) -> xr.Dataset | None:
    """Over the course of a run; None where its inputs are too long, or no longer here."""
    if checkpoint.spec.length > LONGEST:
        return None
    try:
        task = TASKS[checkpoint.config.task.name].load(checkpoint.config.task.options)
    except BadData:  # a report is also written where the data are not
        return None
    held = task.validation.without_labels().take(torch.arange(min(EXAMPLES, len(task.validation))))
    width = checkpoint.spec.width or None
    parts = {stage: attention_summary(model, [held], width=width) for stage, model in stages(folder).items()}
    return along_stages(parts, checkpoint)
