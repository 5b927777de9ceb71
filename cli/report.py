"""`ssmp report`, and how any study's results are printed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssm_priors.cli.output import Output
from ssm_priors.errors import BadData
from ssm_priors.folder import held
from ssm_priors.studies import results
from ssm_priors.studies.grid import NONE, Study
from ssm_priors.studies.report import report as html
from ssm_priors.studies.statistics import CellScore, Effect, effects, scores


def report(folder: Path, output: Output) -> int:
    """Collect and print a study; raises BadData if the folder holds none."""
    path = folder / "study.toml"
    if not path.is_file():
        raise BadData(f"{folder} holds no study.toml; a folder written by ssmp ablate was expected")
    present(Study.read(path), folder, output)
    return 0


def present(study: Study, out: Path, output: Output) -> None:
    """Collect a study's runs, write results and report, print the table, the effects, and where the files are."""
    with held(out):
        dataset = results.collect(study, out)
        files = {"results": results.write(dataset, out), **html.write(study, dataset, out)}
    cells, gaps = scores(dataset), effects(dataset)
    output.json(
        {
            "cells": [_cell_document(score) for score in cells],
            "effects": [_effect_document(effect) for effect in gaps],
            "files": {what: str(path) for what, path in files.items()},
            "report_files": [str(path) for path in html.written(out)],
        }
    )
    _print_cells(cells, study, output)
    output.text("")
    _print_effects(gaps, output)
    output.text("")
    output.wrote(files)


def _print_cells(cells: list[CellScore], study: Study, output: Output) -> None:
    columns = ["model", "init", "pretrain"]
    columns += ["task"] if len(study.tasks) > 1 else []
    columns += ["fraction"] if len(study.fractions) > 1 else []
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


def _print_effects(gaps: list[Effect], output: Output) -> None:
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


def _effect_document(effect: Effect) -> dict[str, Any]:
    numbers = {name: value for name, value in asdict(effect).items() if name != "metric"}
    return numbers | {"metric": effect.metric.name, "unit": effect.metric.gap_unit, "verdict": effect.verdict}
