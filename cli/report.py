"""`ssmp report`, and how any study's results are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.load import load
from ssm_priors.cli.compare_priors import PRIORS
from ssm_priors.cli.inspect_attention import inspect_attention
from ssm_priors.cli.inspect_kernels import Look, inspect_kernels
from ssm_priors.cli.output import Output
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.folder import held
from ssm_priors.models.protocols import HasAttention
from ssm_priors.studies import results, tuning
from ssm_priors.studies.claims import Answer
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import NONE, Study
from ssm_priors.studies.report import report as html
from ssm_priors.studies.report.learned import sections
from ssm_priors.studies.runner import PATIENCE
from ssm_priors.studies.statistics import CellScore, Effect
from ssm_priors.studies.store import is_url


def report(paths: Sequence[str | Path], output: Output) -> int:
    """Report on studies and on single checkpoints.

    Raises:
        BadConfig: one JSON document was asked for about several things.
        BadData: a folder that holds no study.
        BadCheckpoint: a file that is no checkpoint.
    """
    if output.as_json and len(paths) > 1:
        raise BadConfig("--json gives one document; report on one study or checkpoint at a time")
    for path in paths:
        if is_url(path):
            from ssm_priors.cli import remote  # which needs `present` of this module

            remote.report(str(path), output)
        elif Path(path).is_file():
            _on_checkpoint(Path(path), output)
        else:
            _on_study(Path(path), output)
    return 0


def _on_study(folder: Path, output: Output) -> None:
    path = folder / "study.toml"
    if not path.is_file():
        raise BadData(f"{folder} holds no study.toml; a folder written by ssmp ablate, or a checkpoint, was expected")
    present(Study.read(path), folder, output)


def _on_checkpoint(path: Path, output: Output) -> None:
    """The page of its attention if it has any, else that of its kernels and spectra, held against priors."""
    source = load(path)
    if isinstance(source, Checkpoint) and all(isinstance(mixer, HasAttention) for mixer in source.model().mixers):
        inspect_attention(path, examples=32, near=16, layers=(), out=None, format="nc", output=output)
    else:
        inspect_kernels(path, Look(against=PRIORS), out=None, format="nc", output=output)


def present(study: Study, out: Path, output: Output) -> None:
    """Collect a study's runs, write results and report, print the table, the effects, and where the files are."""
    study = tuning.settled(study, out)
    with held(out, PATIENCE):  # another runner of the same study may end at the same time
        dataset = results.collect(study, out)
        findings = find(study, dataset)
        written = html.write(study, dataset, out, findings, sections(dataset, out))
        files = {"results": results.write(dataset, out), **written}
    output.json(
        {
            "cells": [_cell_document(score) for score in findings.scores],
            "effects": [_effect_document(effect) for effect in findings.effects],
            "claims": [_claim_document(answer) for answer in findings.answers],
            "tried": tuning.document({one.cell: one for one in results.tried(dataset)}),
            "files": {what: str(path) for what, path in files.items()},
            "report_files": [str(path) for path in html.written(out)],
        }
    )
    _print_cells(findings.scores, study, output)
    output.text("")
    for answer in findings.answers:
        output.text(answer.sentence)
    if findings.answers:
        output.text("")
    _print_effects(findings.effects, output)
    output.text("")
    output.wrote(files)


def _print_cells(cells: Sequence[CellScore], study: Study, output: Output) -> None:
    columns = ["model", "init", "pretrain"]
    for axis, values in (("task", study.tasks), ("fraction", study.fractions), ("budget", study.budgets)):
        columns += [axis] if len(values) > 1 else []
    columns += ["variant"] if study.variants else []
    metrics = {score.metric.label: score.metric for score in cells}
    several = len(metrics) > 1
    columns += ["metric"] if several else []
    rows = [[_coordinate(score, column) for column in columns] + _numbers(score) for score in cells]
    [first, *_] = metrics.values()
    value = "value" if several else first.label.replace(",", "")
    title = "Test results" if several else f"Test {first.title}"
    output.table([*columns, value, "95% interval", "seeds"], rows, title=title)
    for score in cells:
        for remark in score.remarks:
            output.text(f"{score.cell.label}: {remark}")


def _print_effects(gaps: Sequence[Effect], output: Output) -> None:
    """A sentence an effect; a verdict that all of them share is said once, at the end."""
    verdicts = {effect.verdict for effect in gaps}
    shared = len(gaps) > 1 and len(verdicts) == 1
    for effect in gaps:
        output.text(f"{effect.text}: {effect.numbers}" if shared else effect.sentence)
    if shared:
        output.text(f"All of these: {verdicts.pop()}")


def _numbers(score: CellScore) -> list[str]:
    if score.interval is None:
        return ["no result", "", "0"]
    estimate, low, high = map(score.metric.text, score.interval)
    return [estimate, f"[{low}, {high}]", str(score.seeds)]


def _coordinate(score: CellScore, column: str) -> str:
    if column == "metric":
        return score.metric.label
    value = getattr(score.cell, column)
    return "-" if value == NONE and column == "init" else f"{value:g}" if column == "fraction" else str(value)


def _cell_document(score: CellScore) -> dict[str, Any]:
    estimate, low, high = score.interval or (None, None, None)
    numbers = {score.metric.name: estimate, "low": low, "high": high}
    metric = {"metric": score.metric.name, "unit": score.metric.unit}
    return {**asdict(score.cell), **numbers, **metric, "seeds": score.seeds, "remarks": score.remarks}


def _claim_document(answer: Answer) -> dict[str, Any]:
    estimate, low, high = answer.interval or (None, None, None)
    numbers = {"estimate": estimate, "low": low, "high": high, "p": answer.p_value, "p_adjusted": answer.adjusted}
    about = {"claim": answer.claim.text, "task": answer.task, "verdict": answer.verdict, "why": answer.why}
    return about | numbers | {"metric": answer.metric.name, "seeds": answer.seeds, "examples": answer.examples}


def _effect_document(effect: Effect) -> dict[str, Any]:
    numbers = {name: value for name, value in asdict(effect).items() if name != "metric"}
    return numbers | {"metric": effect.metric.name, "unit": effect.metric.gap_unit, "verdict": effect.verdict}
