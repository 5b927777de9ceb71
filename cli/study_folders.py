"""`ssmp study run`, `status`, `resume` and `merge`: studies in their folders."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssm_priors.cli import remote
from ssm_priors.cli.conduct import Means, conduct
from ssm_priors.cli.live import clock
from ssm_priors.cli.output import Output
from ssm_priors.cli.report import present
from ssm_priors.errors import BadData
from ssm_priors.folder import needing_room
from ssm_priors.studies import catalogue, ledger
from ssm_priors.studies.forecast import finished_seconds
from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import Entry, State
from ssm_priors.studies.merging import unite
from ssm_priors.studies.remote import sight
from ssm_priors.studies.runner import STUDY, Run, plan
from ssm_priors.studies.store import is_url


def run(name: str, given: Mapping[str, Any], out: str | None, means: Means, output: Output) -> int:
    """Run a study of the catalogue or of a file; 1 if a run failed."""
    entry = catalogue.load(name)
    study = entry.study(given)
    return conduct_at(out or f"ssmp-runs/{entry.name}-{study.fingerprint}", study, means, output)


def resume(place: str, means: Means, output: Output) -> int:
    """Go on with the study in a folder or at a URL; raises BadData if there is none."""
    return conduct_at(place, None, means, output)


def conduct_at(place: str, study: Study | None, means: Means, output: Output) -> int:
    """Run a study, or the one that is there, in a folder or at a URL; 1 if a run failed."""
    if is_url(place):
        return remote.conduct(study, place, means, output)
    return conduct(study or _study_in(Path(place)), Path(place), means, output)


def merge(folders: list[Path], out: Path, output: Output) -> int:
    """Unite studies in a new folder and report on the whole."""
    with needing_room(out):
        united, notes = unite({folder: _study_in(folder) for folder in folders}, out)
        for note in notes:
            output.note(note)
        present(united, out, output)
    return 0


def status(place: str, output: Output) -> int:
    """Where a study stands, as its ledger says, or where there is none, as its run folders do."""
    if not is_url(place):
        return _status(Path(place), output)
    with sight(place, output.note) as depot:
        return _status(depot.folder, output)


def _status(folder: Path, output: Output) -> int:
    study = _study_in(folder)
    runs, rows = plan(study, folder), ledger.read(folder)
    entries = {run.name: _standing(run, rows.get(run.name)) for run in runs}
    names = study.names()
    of_cells: dict[str, list[Entry]] = {name: [] for name in names.values()}
    for cell, _, config in study.runs():  # a run that several cells share counts in each
        of_cells[names[cell]].append(entries[config.fingerprint])
    cells = [_cell_row(name, here) for name, here in of_cells.items()]
    at_work = [_work_row(run, entries[run.name]) for run in runs if entries[run.name].state == State.RUNNING]
    failed = [{"run": run.label, "error": entries[run.name].error} for run in runs if entries[run.name].error]
    left = _seconds_left(study, folder, runs, entries)
    output.json({"cells": cells, "running": at_work, "failed": failed, "seconds_left": left, "ledger": bool(rows)})
    states = [*map(str, State), "lost"]
    output.table(["cell", *states], [[row["cell"], *(str(row[state]) for state in states)] for row in cells])
    for row in at_work:
        output.text(f"{row['run']}: {row['share']:.0%}, {row['by']}, for {clock(row['seconds'])}")
    for row in failed:
        output.text(f"{row['run']} failed: {row['error'].strip().splitlines()[-1]}")
    output.text(_summary(entries, left, bool(rows)))
    return 0


def _study_in(folder: Path) -> Study:
    path = folder / STUDY
    if not path.is_file():
        raise BadData(f"{folder} holds no {STUDY}; a folder written by ssmp study or ssmp ablate was expected")
    return Study.read(path)


def _standing(run: Run, row: Entry | None) -> Entry:
    """The ledger's row, corrected by the run's folder, which is what counts."""
    if run.is_done or row is None:
        return Entry(run.name, run.state)
    return Entry(run.name, State.PLANNED) if row.state == State.DONE else row


def _cell_row(label: str, entries: list[Entry]) -> dict[str, Any]:
    """Counts by state; lost: running for a runner that is gone, so that the next one takes it over."""
    counts = Counter("lost" if _is_lost(entry) else str(entry.state) for entry in entries)
    return {"cell": label} | {state: counts[state] for state in (*map(str, State), "lost")}


def _is_lost(entry: Entry) -> bool:
    return entry.state == State.RUNNING and entry.is_free


def _work_row(run: Run, entry: Entry) -> dict[str, Any]:
    by = f"process {entry.pid} on {entry.host}" + (", which is gone" if entry.is_free else "")
    now = time.time()
    return {"run": run.label, "by": by, "since": entry.since, "seconds": now - entry.since, "share": entry.share}


def _seconds_left(study: Study, folder: Path, runs: list[Run], entries: Mapping[str, Entry]) -> float | None:
    """By the mean of finished runs of the same cell, or else of all, at as many at a time as run now."""
    known = finished_seconds(study, folder)
    at_work = sum(entry.state == State.RUNNING and not entry.is_free for entry in entries.values())
    if not known or not at_work:
        return None
    usual = sum(known.values()) / len(known)
    is_open = (State.PLANNED, State.RUNNING)
    left = [
        known.get(run.cell, usual) * (1 - entries[run.name].share) for run in runs if entries[run.name].state in is_open
    ]
    return max(sum(left) / at_work, max(left))


def _summary(entries: Mapping[str, Entry], left: float | None, has_ledger: bool) -> str:
    done = sum(entry.state == State.DONE for entry in entries.values())
    words = f"{done} of {len(entries)} runs done"
    if left is not None:
        words += f", about {clock(left)} left"
    return words + ("" if has_ledger else "; no ledger can be read here, so this is what the run folders say")
