"""`ssmp data`: what data are here, and how they come here; never from a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ssm_priors.cli.output import Output
from ssm_priors.config import Part, validate
from ssm_priors.errors import BadConfig, BadData, NotReady, UnknownName
from ssm_priors.metrics import metric_of
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.crew import crew
from ssm_priors.tasks.task import MayNeedArchive, archive_of, is_stored, origin_of

FAULTY = 1
"""Exit code where data are there and are not what they should be."""


class Bar:
    """Shows how far a preparation is: a moving bar at a terminal, a line a split elsewhere."""

    def __init__(self, output: Output):
        self.output = output
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=output.notes, transient=True) if output.is_live else None
        self.rows: dict[str, Any] = {}

    def __enter__(self) -> Bar:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take one report."""
        if self.bar:
            row = self.rows.get(what)
            self.rows[what] = self.bar.add_task(what, total=total) if row is None else row
            self.bar.update(self.rows[what], completed=done, total=total)
        elif done == total:
            self.output.note(f"{what}: {total:,}")


def list_data(output: Output) -> int:
    """Every task, and every other size of one that was prepared: what it is, whether it is here, how large."""
    rows = [_listed(name, TASKS[name].Config()) for name in TASKS]
    usual = {row["folder"] for row in rows}
    rows += [row | {"options": "", "size": None, "folder": ""} for row in describe_families()]
    rows += [row for name, options in _prepared(output) if (row := _listed(name, options))["folder"] not in usual]
    output.json(rows)
    shown = ("name", "options", "length", "kind", "classes", "origin", "ready", "size")
    output.table(shown, [[str(row[column]) for column in shown[:-1]] + [_size(row["size"])] for row in rows])
    output.text(f"data folder: {store.data_dir()}")
    return 0


def prepare(name: str, source: Path | None, changes: dict[str, Any], output: Output) -> int:
    """Write a task's data into the data folder and say what they are.

    Raises:
        SsmPriorsError: wrong use, or a source that cannot be trained on.
    """
    name = TASKS.spelled(name)
    options = options_of(name, changes)
    with Bar(output) as bar, crew():
        folder = store.prepare(name, options, source, bar)
    found = store.manifest(folder)
    output.json({"folder": str(folder)} | {key: found[key] for key in ("splits", "notes", "duplicates", "sha256")})
    rows = [[split, *map(str, _counted(counts))] for split, counts in found["splits"].items()]
    output.table(["split", "examples", "steps", "labels"], rows, title=name)
    for key, value in found["notes"].items():
        output.text(f"{key}: {value}")
    if found["duplicates"]:
        output.text(f"{found['duplicates']:,} examples stand in two splits; see: ssmp data verify {name}")
    if source and isinstance(TASKS[name], MayNeedArchive):
        output.text(f"to train on these: ssmp train --task {name} --set task.data=official, and the same options")
    output.wrote({"data": folder})
    return 0


def verify(name: str, changes: dict[str, Any], output: Output) -> int:
    """Read a task's data again and hold them against what was written; 1 if they are not that.

    Raises:
        NotReady: they were not prepared.
        BadData: what ships with a package is damaged, or a manifest cannot be read.
    """
    name = TASKS.spelled(name)
    options = options_of(name, changes)
    if not is_stored(TASKS[name], options):
        TASKS[name].load(options)  # which checks itself
        output.json({"faults": [], "notes": []})
        output.text(f"{name}: all is well; {TASKS[name].origin}")
        return 0
    folder = store.folder_of(name, options)
    if not store.is_here(name, options):
        raise NotReady(store.missing(name, options) or f"{folder} is not there yet: ssmp data prepare {name}")
    with Bar(output) as bar:
        verdict = store.verify(folder, bar)
    output.json({"folder": str(folder), "faults": verdict.faults, "notes": verdict.notes})
    for line in [*verdict.faults, *(f"known when it was prepared: {note}" for note in verdict.notes)]:
        output.text(line)
    output.text(f"{folder}: {len(verdict.faults)} faults" if verdict.faults else f"{folder}: all is well")
    return FAULTY if verdict.faults else 0


def make_ready(parts: Iterable[Part], output: Output) -> None:
    """Generate what runs will need, with a bar, before any begins; raises NotReady for what a user must bring."""
    for part in parts:
        lacking = store.missing(part.name, part.options)
        if lacking:
            raise NotReady(lacking)
        kind = TASKS[part.name]
        if is_stored(kind, part.options) and not store.is_here(part.name, part.options):
            output.note(f"{part.name}: {kind.origin}, into {store.data_dir()}")
            with Bar(output) as bar, crew():
                store.prepare(part.name, part.options, progress=bar)


def options_of(name: str, changes: dict[str, Any]) -> Any:
    """A task's options from what the command line says; raises UnknownName, BadConfig."""
    return validate(TASKS[name].Config, changes, "")


def describe(name: str, options: Any) -> dict[str, Any]:
    """What a task is like, from its spec alone."""
    lacking = store.missing(name, options)
    row: dict[str, Any] = {"name": name, "length": "", "kind": "", "classes": "", "metric": ""}
    try:
        spec = TASKS[name].spec(options)
    except NotReady:  # only its data can tell
        pass
    else:
        label = metric_of(spec).label
        row |= {"length": spec.length, "kind": spec.kind, "classes": spec.classes, "metric": label}
    return row | {"origin": origin_of(TASKS[name], options), "ready": f"no: {lacking}" if lacking else "yes"}


def describe_families() -> list[dict[str, Any]]:
    """What stands for many tasks, such as `ucr:NAME`: what there is to name, in place of what one task is like."""
    unknown = dict.fromkeys(("length", "kind", "classes", "metric"), "")
    return [
        {"name": name, **unknown, "origin": family.origin, "ready": family.ready()}
        for name, family in TASKS.families.items()
    ]


def _listed(name: str, options: Any) -> dict[str, Any]:
    is_here, kind = store.is_here(name, options), TASKS[name]
    usual = asdict(kind.Config())
    changed = [f"{key}={value}" for key, value in asdict(options).items() if value != usual[key]]
    row = describe(name, options) | {"options": " ".join(changed)}
    if is_stored(kind, options) and not is_here:
        row["ready"] = "no: bring the archive" if archive_of(kind, options) else "made when it is first used"
    folder = store.folder_of(name, options)
    return row | {"size": _bytes(folder) if is_here else None, "folder": str(folder)}


def _prepared(output: Output) -> Iterator[tuple[str, Any]]:
    """Task and options of everything in the data folder; what no task of this version can use is noted."""
    for path in sorted(store.data_dir().glob(f"*/{store.MANIFEST}")):
        try:
            about = store.manifest(path.parent)
            yield about["task"], options_of(about["task"], about["options"])
        except (BadData, BadConfig, UnknownName) as error:
            output.note(f"{path.parent} is of no task that is installed here: {error}")


def _counted(counts: dict[str, Any]) -> tuple[str, str, str]:
    steps = f"{counts['shortest']:,} to {counts['longest']:,}, mean {counts['mean_length']:,.1f}"
    labels = counts["labels"]
    said = ", ".join(map(str, labels["counts"])) if "counts" in labels else json.dumps(labels)
    return f"{counts['examples']:,}", steps, said


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _size(number: int | None) -> str:
    """'12.3 MB', or a dash."""
    return "-" if number is None else f"{number / 1e6:,.1f} MB"
