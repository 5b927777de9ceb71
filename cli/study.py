"""`ssmp study list` and `show`: what the catalogue and files of studies say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ssm_priors.cli.output import Output
from ssm_priors.studies import catalogue
from ssm_priors.studies.report.words import flat
from ssm_priors.studies.tuning import trials

WORDS = ("title", "question")


def list_studies(output: Output) -> int:
    """Name and title of every study in the catalogue."""
    entries = [catalogue.load(name) for name in catalogue.names()]
    output.json([{"name": entry.name, **{word: entry.raw[word].strip() for word in WORDS}} for entry in entries])
    output.table(["name", "what"], [[entry.name, entry.raw["title"]] for entry in entries])
    return 0


def show(name: str, given: Mapping[str, Any], output: Output) -> int:
    """What a study asks and what it consists of; raises UnknownName, BadConfig."""
    entry = catalogue.load(name)
    study = entry.study(given)
    axes = {key: value for key, value in study.to_dict().items() if key not in (*WORDS, "settings")}
    cells = study.cells()
    runs = len({config.fingerprint for *_, config in [*trials(study), *study.runs()]})
    document = {"name": entry.name, "title": study.title, "question": study.question.strip(), **axes}
    output.json(document | {"cells": [asdict(cell) for cell in cells], "runs": runs})
    output.text(f"{study.title or entry.name}\n")
    if study.question:
        output.text(f"{study.question.strip()}\n")
    for key, value in axes.items():
        if value or value is False:
            output.text(f"{key}: {_shown(key, value)}")
    output.text(f"\n{len(cells)} cells, {runs} runs:")
    for name in study.names().values():
        output.text(f"  {name}")
    return 0


def _shown(key: str, value: Any) -> str:
    """What a study says of one of its fields."""
    if key == "claims":
        return "".join(f"\n  {claim['text']}" for claim in value)
    if key in ("budgets", "variants"):
        return "; ".join(f"{name} ({', '.join(flat(settings))})" for name, settings in value.items())
    if key == "tune":
        space = "; ".join(f"{path} ({', '.join(flat(given))})" for path, given in value["space"].items())
        return f"{value['trials']} trials a cell over {space}"
    if isinstance(value, Mapping):
        return ", ".join(flat(value))
    if isinstance(value, (list, tuple)):
        return ", ".join(" & ".join(flat(one)) if isinstance(one, Mapping) else str(one) for one in value)
    return str(value)
