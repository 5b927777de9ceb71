"""`ssmp report`, and how any study's results are printed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssm_priors.cli.output import Output
from ssm_priors.errors import BadData
from ssm_priors.studies import results
from ssm_priors.studies.grid import NONE, Study
from ssm_priors.studies.report import report as html
from ssm_priors.studies.statistics import CellScore, Effect, effects, percent, scores


def report(folder: Path, output: Output) -> int:
    """Collect and print a study; raises BadData if the folder holds none."""
    path = folder / "study.toml"
    if not path.is_file():
        raise BadData(f"{folder} holds no study.toml; a folder written by ssmp ablate was expected")
    present(Study.from_toml(path.read_text(encoding="utf-8")), folder, output)
    return 0


def present(study: Study, out: Path, output: Output) -> None:
    """Collect a study's runs, write results and report, print the table, the effects, and where the files are."""
    dataset = results.collect(study, out)
    files = {"results": results.write(dataset, out), **html.write(study, dataset, out)}
    cells, gaps = scores(dataset), effects(dataset)
    output.json(
        {
            "cells": [_cell_document(score) for score in cells],
            "effects": [asdict(effect) | {"verdict": effect.verdict} for effect in gaps],
            "files": {what: str(path) for what, path in files.items()},
        }
    )
    _print_cells(cells, study, output)
    output.text("")
    for effect in gaps:
        output.text(effect.sentence)
    output.text("")
    output.wrote(files)


def _print_cells(cells: list[CellScore], study: Study, output: Output) -> None:
    columns = ["model", "init", "pretrain"]
    columns += ["task"] if len(study.tasks) > 1 else []
    columns += ["fraction"] if len(study.fractions) > 1 else []
    rows = []
    for score in cells:
        interval = score.interval
        numbers = (
            ["failed" if score.reason else "missing", "", str(score.seeds)]
            if interval is None
            else [percent(interval.estimate), f"[{percent(interval.low)}, {percent(interval.high)}]", str(score.seeds)]
        )
        rows.append([_coordinate(score, column) for column in columns] + numbers)
    output.table([*columns, "accuracy %", "95% interval", "seeds"], rows, title="Test accuracy")
    for score in cells:
        for remark in score.remarks:
            output.text(f"{score.cell.label}: {remark}")


def _coordinate(score: CellScore, column: str) -> str:
    value = getattr(score.cell, column)
    return "-" if value == NONE and column == "init" else f"{value:g}" if column == "fraction" else str(value)


def _cell_document(score: CellScore) -> dict[str, Any]:
    interval = score.interval
    numbers = {"accuracy": None, "low": None, "high": None}
    if interval is not None:
        numbers = {"accuracy": interval.estimate, "low": interval.low, "high": interval.high}
    return {**asdict(score.cell), **numbers, "seeds": score.seeds, "remarks": score.remarks}
