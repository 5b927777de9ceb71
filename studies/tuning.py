"""The trials of a study: what each found on the validation split, and the settings that the cell's runs then have.

    chosen(cell) = settings of the first of its trials that no other betters by the validation metric

A trial is a run with a seed of its own that ends without a look at the test split (`test = false`). One that failed
counts as worse than any other; where all have, the cell's runs fail for that reason, and its trials may be done again.
A choice is a function of the trials' results and nothing else, so that runners of one folder agree, and is made once:
what stands in `tuned.json` holds, whatever becomes of the trials' folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ssm_priors import atomic
from ssm_priors.config import RunConfig, validate
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.metrics import Metric, metric_of
from ssm_priors.registry import TASKS
from ssm_priors.studies.grid import Cell, Choice, Study

FILE = "tuned.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What became of a trial."""

    value: float | None = None
    """Best value of the validation metric; None where it failed."""
    error: str = ""
    flops: int | None = None
    """Of its training; None where it failed, or did not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(Found):
    """One trial and what became of it."""

    settings: dict[str, Any]
    """Path of a setting -> value: of those that mean something to its cell."""
    fingerprint: str
    """Name of its folder."""


@dataclass(frozen=True, slots=True)
class Tried:
    """All trials of a cell."""

    cell: Cell
    trials: tuple[Trial, ...]
    best: int | None = None
    """Which of them was chosen; None where all failed."""

    @property
    def reason(self) -> str:
        """Why nothing was chosen."""
        first = "".join(self.trials[0].error.strip().splitlines()[-1:])
        return f"none of its {len(self.trials)} trials ended well, so no settings were chosen; the first: {first}"

    @property
    def flops(self) -> int:
        """Of all trials that say what they cost."""
        return sum(trial.flops or 0 for trial in self.trials)

    def values(self, metric: Metric) -> list[float]:
        """Of the trials that ended well, best first."""
        known = (trial.value for trial in self.trials if trial.value is not None)
        return sorted(known, reverse=not metric.lower_is_better)


def trials(study: Study, cells: Iterable[Cell] | None = None) -> list[tuple[Cell, int, RunConfig]]:
    """Every trial of some cells, or of all: its cell, its number, its configuration; none where nothing is tuned."""
    if study.tune is None:
        return []
    every = product(study.cells() if cells is None else cells, range(study.tune.trials))
    return [(cell, number, study.trial(cell, number)) for cell, number in every]


def undecided(study: Study) -> list[Cell]:
    """Cells of a settled study whose settings are still to be chosen; none where nothing is tuned."""
    known = {choice.cell for choice in study.chosen}
    return [cell for cell in study.cells() if cell not in known] if study.tune else []


def settled(study: Study, out: Path) -> Study:
    """The study with what its trials have decided, as far as they have; raises BadData for a damaged file."""
    if study.tune is None:
        return study
    chosen = {choice.cell: choice for choice in study.chosen}
    for cell, tried in read(out).items():
        if tried.best is not None:
            chosen[cell] = Choice(cell=cell, settings=tried.trials[tried.best].settings)
    return replace(study, chosen=tuple(chosen[cell] for cell in study.cells() if cell in chosen))


def decide(study: Study, out: Path, found: Mapping[str, Found]) -> dict[Cell, Tried]:
    """Choose for the cells that have no settings yet, and write it down. For whoever holds the folder.

    Args:
        study: the grid.
        out: the study's folder.
        found: fingerprint -> what that trial found, of all trials of those cells.
    """
    before = read(out)
    fresh = {cell: _tried(study, cell, found) for cell in undecided(settled(study, out))}
    tried = before | fresh
    if tried != before:
        write(tried, out)
    return tried


def _tried(study: Study, cell: Cell, found: Mapping[str, Found]) -> Tried:
    assert study.tune is not None  # or no cell would be undecided
    tried = []
    for _, number, config in trials(study, [cell]):
        settings = {path: study.tune.points[number][path] for path in study.searched(cell)}
        became = asdict(found[config.fingerprint])
        tried.append(Trial(settings=settings, fingerprint=config.fingerprint, **became))
    task = study.config(cell, 0).task
    metric = metric_of(TASKS[task.name].spec(task.options))
    return Tried(cell, tuple(tried), best_of([trial.value for trial in tried], metric))


def best_of(values: Sequence[float | None], metric: Metric) -> int | None:
    """Place of the first of the best values; None where there is no value at all."""
    best: int | None = None
    for place, value in enumerate(values):
        leader = None if best is None else values[best]
        if value is not None and (leader is None or metric.is_better(value, leader)):
            best = place
    return best


def unite(folders: Iterable[Path], out: Path) -> None:
    """Write down in `out` what the trials in several folders have decided; raises BadConfig where they disagree."""
    united: dict[Cell, Tried] = {}
    for folder in folders:
        for cell, tried in read(folder).items():
            known = united.get(cell)
            if known is None or known.best is None:
                united[cell] = tried
            elif tried.best is not None and tried.trials[tried.best].settings != known.trials[known.best].settings:
                raise BadConfig(f"the trials chose different settings for '{cell.label}'; these folders stay apart")
    if united:
        write(united, out)


def write(tried: Mapping[Cell, Tried], out: Path) -> None:
    """Replace `tuned.json`."""
    atomic.write_text(out / FILE, json.dumps(document(tried), indent=1))


def document(tried: Mapping[Cell, Tried]) -> list[dict[str, Any]]:
    """As plain values."""
    return [asdict(one) for one in tried.values()]


def read(out: Path) -> dict[Cell, Tried]:
    """What `decide` has written, cell by cell; nothing where it has not. Raises BadData for a damaged file."""
    path = Path(out) / FILE
    if not path.exists():
        return {}
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, AttributeError, BadConfig) as error:
        raise BadData(f"{path} is damaged; move it away, and the next run of the study chooses again") from error


def parsed(text: str) -> dict[Cell, Tried]:
    """`document` as JSON text -> what it says; raises ValueError, TypeError, BadConfig."""
    every = [validate(Tried, raw, f"{FILE}.{place}") for place, raw in enumerate(json.loads(text))]
    if any(one.best is not None and one.best not in range(len(one.trials)) for one in every):
        raise ValueError("a choice that is none of its trials")
    return {one.cell: one for one in every}
