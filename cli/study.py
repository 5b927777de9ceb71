"""`ssmp study list` and `show`: what the catalogue and files of studies say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ssm_priors.cli.output import Output
from ssm_priors.studies import catalogue


def list_studies(output: Output) -> int:
    """Name and title of every study in the catalogue."""
    entries = [catalogue.load(name) for name in catalogue.names()]
    output.json([{"name": entry.name, "title": entry.title, "question": entry.question.strip()} for entry in entries])
    output.table(["name", "what"], [[entry.name, entry.title] for entry in entries])
    return 0


def show(name: str, given: Mapping[str, Any], output: Output) -> int:
    """What a study asks and what it consists of; raises UnknownName, BadConfig."""
    entry = catalogue.load(name)
    study = entry.study(given)
    axes = {key: value for key, value in study.to_dict().items() if key != "settings"}
    cells = study.cells()
    document = {"name": entry.name, "title": entry.title, "question": entry.question.strip(), **axes}
    output.json(document | {"cells": [asdict(cell) for cell in cells], "runs": len(cells) * study.seeds})
    output.text(f"{entry.title or entry.name}\n")
    if entry.question:
        output.text(f"{entry.question.strip()}\n")
    for key, value in axes.items():
        shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        output.text(f"{key}: {shown if shown or shown is False else '-'}")
    output.text(f"\n{len(cells)} cells, {len(cells) * study.seeds} runs:")
    for cell in cells:
        output.text(f"  {cell.label}")
    return 0
