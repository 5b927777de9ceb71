"""How any study is run from the command line: checked, told, followed, reported; or only told what it would take."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssm_priors.cli.data import make_ready
from ssm_priors.cli.live import clock, watch
from ssm_priors.cli.output import Output
from ssm_priors.cli.report import present
from ssm_priors.errors import RunFailed
from ssm_priors.folder import needing_room
from ssm_priors.registry import ENGINES
from ssm_priors.studies.engines.engine import Workers
from ssm_priors.studies.forecast import Outline, Pace, count, finished_seconds, loaded, survey, time_phases
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.remote import Courier, Depot
from ssm_priors.studies.runner import STUDY, execute, plan, workers_for
from ssm_priors.studies.tuning import settled
from ssm_priors.training.loggers.logger import refuse_missing
from ssm_priors.training.provenance import kernels
from ssm_priors.training.run import pick_device


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """With what a study is run; nothing of this decides a result, but for threads, which round."""

    device: str = "auto"
    jobs: int | None = None
    """Runs at a time; None: as many as there are cores for."""
    threads: int = 1
    save_every: float = 20.0
    malloc_tuning: bool = True
    loggers: tuple[str, ...] = ()
    engine: str = "local"
    address: str = ""
    dry_run: bool = False


def conduct(study: Study, out: Path, means: Means, output: Output, depot: Depot | None = None) -> int:
    """Run a study, write and print its results; 1 if a run failed.

    Args:
        study: the grid.
        out: its folder.
        means: with what.
        output: what says it.
        depot: where the study lives at a URL; `out` is then its folder on this machine.

    Raises:
        SsmPriorsError: wrong use, found before any training.
    """
    engine = ENGINES[means.engine]
    refuse_missing(means.loggers)
    make_ready({study.config(cell, seed=0).task: None for cell in study.cells()}, output)
    outlines = survey(settled(study, out))
    runs = plan(study, out)
    workers = means.jobs or _workers(means, len(runs))
    if means.dry_run:
        return _foretell(study, out, outlines, workers, means, output)
    if means.engine == "local":
        output.note(f"kernels: {kernels(pick_device(means.device))}")
    tried = sum(run.trial is not None for run in runs)
    trials = f", {tried} of them trials" if tried else ""
    hired = Workers(
        count=workers,
        threads=means.threads,
        device=means.device,
        save_every=means.save_every,
        malloc_tuning=means.malloc_tuning,
        loggers=means.loggers,
        address=means.address,
        store=depot.store.url if depot else "",
    )
    made = Courier(engine(hired), depot) if depot else engine(hired)
    output.note(f"{len(study.cells())} cells, {len(runs)} runs{trials}, {made.free} at a time, in {out}")
    failed = watch(execute(study, out, made), runs, Pace(settled(study, out), outlines), made.free, output)
    with needing_room(out):
        present(Study.read(out / STUDY), out, output)  # which another runner may have extended
    return RunFailed.exit_code if failed else 0


def _workers(means: Means, runs: int) -> int:
    """As many as this machine has cores for; a cluster bounds them by itself."""
    has_cluster = means.engine == "ray" and bool(means.address or os.environ.get("RAY_ADDRESS"))
    return runs if has_cluster else workers_for(runs, means.threads)


def _foretell(
    study: Study, out: Path, outlines: dict[Cell, Outline], workers: int, means: Means, output: Output
) -> int:
    """Print what a study would take, its trials included; writes nothing."""
    study = settled(study, out)
    device = pick_device(means.device)
    known = finished_seconds(study, out)
    names = study.names()
    open_runs = Counter(run.cell for run in plan(study, out) if not run.is_done)
    runs_a_cell = study.seeds + (study.tune.trials if study.tune else 0)
    rows = []
    for cell, config, task in loaded(study):
        seconds = known.get(cell) or sum(time_phases(config, device, means.threads, task).values())
        flops = sum(one.training for one in count(config, task).values())
        about = (runs_a_cell, open_runs[cell], outlines[cell], flops, seconds, cell in known)
        rows.append(_row(cell, names[cell], *about))
    total = _total(rows, workers)
    output.json({"cells": rows, "total": total})
    columns = ["cell", "runs", "to do", "parameters", "steps", "FLOPs a run", "time a run", "disk a run"]
    output.table(columns, [_shown(row) for row in rows], title="What this study would take")
    output.text("")
    output.text(
        f"{total['runs']} runs in {len(rows)} cells, {total['to_do']} to do: {total['flops']:.3g} FLOPs, about "
        f"{clock(total['seconds'])} with {workers} at a time, {_size(total['bytes'])} of disk"
    )
    if study.tune:
        output.text(f"{study.tune.trials} of a cell's runs are trials; theirs were taken to cost what its others do.")
    output.text(
        "Times are those of this folder's finished runs where there are any (*), else of a few steps timed here; "
        "starting workers, saving and testing are not in them."
    )
    return 0


def _row(
    cell: Cell, name: str, runs: int, to_do: int, outline: Outline, flops: int, seconds: float, is_known: bool
) -> dict[str, Any]:
    own = {"label": name, "runs": runs, "to_do": to_do, "parameters": outline.parameters, "steps": outline.steps}
    return asdict(cell) | own | {"flops": flops, "seconds": seconds, "from_finished": is_known, "bytes": outline.bytes}


def _total(rows: list[dict[str, Any]], workers: int) -> dict[str, Any]:
    sums: dict[str, Any] = {what: sum(row[what] * row["to_do"] for row in rows) for what in ("flops", "bytes")}
    left = [row["seconds"] * row["to_do"] for row in rows]
    longest = max((row["seconds"] for row in rows if row["to_do"]), default=0.0)
    to_do = sum(row["to_do"] for row in rows)
    seconds = max(longest, sum(left) / max(1, min(workers, to_do)))
    return sums | {"runs": sum(row["runs"] for row in rows), "to_do": to_do, "seconds": seconds}


def _shown(row: dict[str, Any]) -> list[str]:
    steps = " + ".join(f"{steps:,}" for steps in row["steps"].values())
    took = f"{clock(row['seconds'])}{'*' if row['from_finished'] else ''}"
    numbers = [f"{row['parameters']:,}", steps, f"{row['flops']:.3g}", took, _size(row["bytes"])]
    return [row["label"], str(row["runs"]), str(row["to_do"]), *numbers]


def _size(bytes: int) -> str:
    return f"{bytes / 1e6:.1f} MB" if bytes < 1e9 else f"{bytes / 1e9:.1f} GB"
