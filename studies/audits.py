"""The leak audits of a study's tasks: made before anything is trained, kept in its folder, shown in its report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ssm_priors import atomic
from ssm_priors.config import Part, validate
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.registry import TASKS
from ssm_priors.studies.grid import Study
from ssm_priors.tasks.audit import Audit, audit

FILE = "audits.json"


def examine(study: Study, out: Path) -> dict[str, Audit]:
    """Task -> what was found, for every task of a study; data that were looked at before are not read again."""
    before = read(out)
    found = {}
    for part in _tasks(study):
        task = TASKS[part.name].load(part.options)
        known = before.get(part.name)
        found[part.name] = known if known and known.sha256 == task.sha256 else audit(task)
    if found != before:
        text = json.dumps({name: asdict(each) for name, each in found.items()}, indent=1, sort_keys=True)
        atomic.write_text(out / FILE, text)
    return found


def read(out: Path) -> dict[str, Audit]:
    """What `examine` left; nothing where it was not asked. Raises BadData for a damaged file."""
    path = out / FILE
    if not path.exists():
        return {}
    try:
        return {name: validate(Audit, raw, name) for name, raw in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError, BadConfig) as error:
        raise BadData(f"{path} is damaged; move it away, and the next run of the study makes it again") from error


def warnings(found: dict[str, Audit]) -> list[str]:
    """A sentence for every task that leaks."""
    return [f"task '{name}' leaks: {leaks(each)}" for name, each in found.items() if not each.is_clean]


def leaks(found: Audit) -> str:
    """'3 of 1,000 test examples stand in the training split', and so on; empty where there is nothing."""
    told = []
    for how, counts in (("stand", found.exact), ("nearly stand", found.near or {})):
        for pair, count in counts.items():
            split, _, where = pair.partition(" in ")
            if count:
                told.append(
                    f"{count:,} of {found.examples[split]:,} {split} examples {how} in the {_spoken(where)} split"
                )
    return "; ".join(told)


def _spoken(split: str) -> str:
    return "training" if split == "train" else split


def _tasks(study: Study) -> list[Part]:
    """Every task with the options of its first cell; variants of a task's options share its name, and its report."""
    parts = {cell.task: study.config(cell, 0).task for cell in reversed(study.cells())}
    return list(reversed(parts.values()))
