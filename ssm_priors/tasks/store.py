"""Prepared data: a folder of arrays a task, written once, whole or not at all, and mapped from the disk when used.

    DATA_DIR/NAME-KEY/{train,validation,test}.{inputs,lengths,targets}.npy, manifest.json

KEY is a fingerprint of the options that decide the data, so that two sizes of one task lie side by side. What was made
from files that may change is here only while they are as they were. Arrays are as compact as the task says (bytes for
pixels and characters); rows are streamed into them, so no split is ever held in memory, neither when it is written nor
when it is read. What is written has been checked, and has a SHA-256 in the manifest; opening compares shapes and sizes
only, and `verify` reads everything again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.lib.format import open_memmap
from platformdirs import user_cache_path

from ssm_priors import atomic
from ssm_priors.batch import TaskSpec
from ssm_priors.config import fingerprint, validate
from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout, Seen, Tally, as_stored, refuse
from ssm_priors.tasks.records import described, wrong_file, wrong_shape
from ssm_priors.tasks.task import (
    SPLITS,
    Archive,
    HasContent,
    HasKey,
    MayLack,
    MayNeedArchive,
    Progress,
    Split,
    Task,
    archive_of,
    faults,
    is_stored,
    origin_of,
    silent,
)

ENVIRONMENT = "SSMP_DATA_DIR"
FORMAT = 1
MANIFEST = "manifest.json"
PARTS = ("inputs", "lengths", "targets")
BLOCK = 2**24
"""Most numbers of a stored array that are looked at together."""
MOST_OF_NAME = 60
"""Letters of a task's name in its folder's name: a path as an argument may be long."""
MOST_TOLD = 20
"""Faults of one kind that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found."""

    faults: list[str]
    """Empty if all is well."""
    notes: list[str]
    """What is known and allowed."""


def data_dir() -> Path:
    """Where prepared data lie: what the environment says, or the platform's cache folder."""
    given = os.environ.get(ENVIRONMENT)
    return Path(given).absolute() if given else user_cache_path("ssm-priors") / "data"


def folder_of(name: str, options: Any) -> Path:
    """Where the data of a task with these options lie, whether or not they are there."""
    kind = TASKS[name]
    key = dict(kind.key(options)) if isinstance(kind, HasKey) else asdict(options)
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", name)[:MOST_OF_NAME]
    return data_dir() / f"{safe}-{fingerprint({'task': name, 'options': key, 'format': FORMAT})}"


def is_here(name: str, options: Any) -> bool:
    """Whether the data have been prepared, and what they were made from has not changed since."""
    kind, folder = TASKS[name], folder_of(name, options)
    if not (folder / MANIFEST).is_file():
        return False
    return not isinstance(kind, HasContent) or manifest(folder).get("content") == kind.content(options)


def missing(name: str, options: Any) -> str:
    """What must be done before a task can load; empty if it can, be it after it has generated its data."""
    kind = TASKS[name]
    if (archive := archive_of(kind, options)) and not is_here(name, options):
        return _not_ready(name, options, archive)
    return kind.missing(options) if isinstance(kind, MayLack) else ""


def prepare(name: str, options: Any, source: Path | None = None, progress: Progress = silent) -> Path:
    """Have a task write its data; give their folder. Data generated from a seed are kept if they are there.

    Args:
        name: of the task.
        options: its `Config`.
        source: the archive or folder that the user brought; for a task that can do without, it sets `data="official"`.
        progress: told how far it is.

    Raises:
        NotReady: no source was given where one is needed.
        BadConfig: a source that is not needed or not there, or a task that prepares nothing.
        BadData: what the source holds cannot be trained on.
    """
    kind = TASKS[name]
    if source is not None and isinstance(kind, MayNeedArchive):
        options = replace(options, data="official")
    if not is_stored(kind, options):
        raise BadConfig(f"task '{name}' has nothing to prepare; where its data come from: {origin_of(kind, options)}")
    archive = archive_of(kind, options)
    if archive:
        if source is None:
            raise NotReady(_not_ready(name, options, archive))
        if not source.exists():
            raise BadConfig(f"{source}: no such file or folder; {archive.name} was expected")
    elif source is not None:
        raise BadConfig(f"task '{name}' is {kind.origin}; it takes no --source")
    elif is_here(name, options):
        return folder_of(name, options)
    return kind.prepare(source, options, progress)


def load(name: str, options: Any) -> Task:
    """A task's three splits, mapped from the store; data that need no archive are made first if they are not there.

    Raises:
        NotReady: the user must bring the data.
        BadData: the folder does not hold what its manifest says.
    """
    if not is_here(name, options):
        if lacking := missing(name, options):
            raise NotReady(lacking)
        prepare(name, options)
    folder = folder_of(name, options)
    found = manifest(folder)
    train, validation, test = (_mapped(folder, found, split) for split in SPLITS)
    return Task(stored_spec(found), train, validation, test, found["sha256"])


def manifest(folder: Path) -> dict[str, Any]:
    """What a prepared folder says of itself; raises BadData."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT or not isinstance(found["sha256"], str):
            raise BadData(f"{path}: of format {found['format']}, {FORMAT} was expected; prepare the task again")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path} cannot be read ({error}); remove {folder} and prepare the task again") from error


def stored_spec(found: Mapping[str, Any]) -> TaskSpec:
    """The spec in a manifest: for a task that cannot tell what it is like without its data."""
    return validate(TaskSpec, found["spec"], "spec")


def spec_of(name: str, options: Any) -> TaskSpec:
    """The spec of a task that cannot tell what it is like without its data; raises NotReady until they are prepared."""
    if not is_here(name, options):
        raise NotReady(missing(name, options) or f"task '{name}' is not prepared yet: ssmp data prepare '{name}'")
    return stored_spec(manifest(folder_of(name, options)))


def write(
    name: str,
    options: Any,
    spec: TaskSpec,
    layout: Layout,
    splits: Mapping[str, Incoming],
    *,
    source: str,
    notes: Mapping[str, Any] | None = None,
    content: str = "",
    progress: Progress = silent,
) -> Path:
    """Write a task's data into the store and give their folder. For the `prepare` of a task.

    A second process that prepares the same data meanwhile waits, and takes what the first has written. Generated data
    that are there are kept; those from an archive are replaced, for the archive may be another.

    Args:
        name: of the task.
        options: its `Config`.
        spec: what the data are like.
        layout: how they are stored.
        splits: train, validation, test.
        source: where they come from, in words.
        notes: what else a person should know: files that were skipped, say.
        content: of a task with `HasContent`, asked before its files were read.
        progress: told how far it is.

    Raises:
        BadData: an example that cannot be trained on, with its split and row, counts that do not fit, or files that
            changed while they were read.
    """
    folder = folder_of(name, options)
    is_replaced = is_here(name, options) and archive_of(TASKS[name], options) is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if is_here(name, options) and not is_replaced:
            return folder
        for left in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(left)
        about = {
            "format": FORMAT,
            "task": name,
            "options": asdict(options),
            "source": source,
            "notes": dict(notes or {}),
            "content": content,
        }

        def fill(fresh: Path) -> None:
            _fill(fresh, about, spec, layout, splits, progress)
            if content and TASKS[name].content(options) != content:
                raise BadData(f"task '{name}': its files changed while they were read; prepare it again")

        atomic.write_folder(folder, fill)
    return folder


def verify(folder: Path, progress: Progress = silent) -> Verdict:
    """Read everything again: hashes, shapes, ranges, examples that stand in two splits.

    Raises:
        BadData: there is no manifest that can be read.
    """
    found = manifest(folder)
    wrong = [fault for name in found["files"] if (fault := wrong_file(folder / name, found["files"][name], progress))]
    if wrong:
        return Verdict(wrong, [])
    spec, seen = stored_spec(found), Seen()
    for split in SPLITS:
        arrays = {part: np.load(folder / f"{split}.{part}.npy", mmap_mode="r") for part in PARTS}
        for first, chunk in _blocks(spec, arrays):
            wrong += [f"{split}.inputs.npy, example {first + row}: {words}" for row, words in faults(spec, *chunk)]
            seen.add(split, first, chunk)
    told = [str(one) for one in seen.duplicates]
    allowed = found["layout"]["duplicates"] == "report" and len(told) == found["duplicates"]
    return Verdict(_shortened(wrong) + ([] if allowed else _shortened(told)), _shortened(told) if allowed else [])


def _fill(
    fresh: Path,
    about: dict[str, Any],
    spec: TaskSpec,
    layout: Layout,
    splits: Mapping[str, Incoming],
    progress: Progress,
) -> None:
    """Write arrays and manifest into a new folder."""
    if set(splits) != set(SPLITS):
        raise BadData(f"splits {', '.join(splits)} were given; {', '.join(SPLITS)} are needed")
    fresh.mkdir()
    seen, counts = Seen(), {}
    for split in SPLITS:
        arrays = _new_arrays(fresh, split, splits[split].examples, spec, layout)
        counts[split] = _fill_split(arrays, split, splits[split], spec, layout, seen, progress)
        for array in arrays.values():
            array.flush()
    files = {path.name: described(path) for path in sorted(fresh.glob("*.npy"))}
    hashes = json.dumps({name: file["sha256"] for name, file in files.items()}, sort_keys=True)
    about |= {"spec": asdict(spec), "layout": asdict(layout), "splits": counts, "duplicates": len(seen.duplicates)}
    about |= {"files": files, "sha256": hashlib.sha256(hashes.encode()).hexdigest()}
    atomic.write_text(fresh / MANIFEST, json.dumps(about, indent=1, allow_nan=False) + "\n")


def _fill_split(
    arrays: Mapping[str, np.ndarray],
    split: str,
    incoming: Incoming,
    spec: TaskSpec,
    layout: Layout,
    seen: Seen,
    progress: Progress,
) -> dict[str, Any]:
    """Check and store chunk after chunk; gives the split's counts."""
    tally = Tally(spec)
    for given in incoming.chunks:
        refuse(spec, split, tally.examples, given)
        if tally.examples + len(given.targets) > incoming.examples:
            raise BadData(f"the {split} split has more than the {incoming.examples} examples that were announced")
        chunk = as_stored(given, arrays["inputs"].dtype)
        seen.add(split, tally.examples, chunk)
        if seen.duplicates and layout.duplicates == "refuse":
            raise BadData(f"{seen.duplicates[0]}; nothing may be both trained on and tested")
        _store(arrays, tally.examples, chunk)
        tally.add(chunk)
        progress(split, tally.examples, incoming.examples)
    if tally.examples != incoming.examples:
        raise BadData(f"the {split} split has {tally.examples} examples, {incoming.examples} were announced")
    return tally.summary()


def _new_arrays(fresh: Path, split: str, examples: int, spec: TaskSpec, layout: Layout) -> dict[str, np.memmap]:
    if examples < 1:
        raise BadData(f"the {split} split is empty")
    rows = examples * spec.documents
    trailing = () if spec.kind == "token" else (spec.features,)
    asked = {"class": (), "values": (spec.classes,), "tokens": (spec.length,)}[spec.answer]
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "inputs": (layout.dtype, (rows, spec.length, *trailing)),
        "lengths": ("int32", (rows,)),
        "targets": ("float32" if spec.answer == "values" else "int32", (examples, *asked)),
    }
    return {
        part: open_memmap(fresh / f"{split}.{part}.npy", mode="w+", dtype=np.dtype(dtype), shape=shape)
        for part, (dtype, shape) in shapes.items()
    }


def _store(arrays: Mapping[str, np.ndarray], first: int, chunk: Chunk) -> None:
    """Put a chunk in its place; what lies beyond its columns stays zero, or -1 where it is a target."""
    examples = slice(first, first + len(chunk.targets))
    documents = len(chunk.inputs) // len(chunk.targets)
    rows = slice(first * documents, first * documents + len(chunk.inputs))
    arrays["inputs"][rows, : chunk.inputs.shape[1]] = chunk.inputs
    arrays["lengths"][rows] = chunk.lengths
    targets = arrays["targets"]
    if targets.ndim == 2:
        targets[examples] = -1
        targets[examples, : chunk.targets.shape[1]] = chunk.targets
    else:
        targets[examples] = chunk.targets


def _mapped(folder: Path, found: Mapping[str, Any], split: str) -> Split:
    arrays = {}
    for part in PARTS:
        path = folder / f"{split}.{part}.npy"
        fault = wrong_shape(path, found["files"].get(path.name, {}))
        if fault:
            raise BadData(f"{path}: {fault}; remove {folder} and prepare the task again")
        arrays[part] = torch.from_numpy(np.load(path, mmap_mode="c"))  # copy on write: torch wants it writable
    layout = found["layout"]
    return Split(
        arrays["inputs"],
        arrays["lengths"],
        arrays["targets"],
        scale=tuple(layout["scale"]),
        offset=tuple(layout["offset"]),
        documents=found["spec"]["documents"],
        is_checked=True,
    )


def _blocks(spec: TaskSpec, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[int, Chunk]]:
    """The first example of a block, and the block."""
    inputs, lengths, targets = (arrays[part] for part in PARTS)
    step = max(1, BLOCK // (spec.documents * int(np.prod(inputs.shape[1:]))))
    for first in range(0, len(targets), step):
        rows = slice(first * spec.documents, (first + step) * spec.documents)
        yield (
            first,
            Chunk(np.asarray(inputs[rows]), np.asarray(lengths[rows]), np.asarray(targets[first : first + step])),
        )


def _shortened(told: list[str]) -> list[str]:
    rest = len(told) - MOST_TOLD
    return told if rest <= 0 else [*told[:MOST_TOLD], f".. and {rest} more like these"]


def _not_ready(name: str, options: Any, archive: Archive) -> str:
    """What to bring, from where, and the exact command."""
    changed = [
        f" --set {key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in asdict(options).items()
        if value != getattr(TASKS[name].Config(), key)
    ]
    place = f" --data-dir {os.environ[ENVIRONMENT]}" if os.environ.get(ENVIRONMENT) else ""
    return (
        f"task '{name}' needs {archive.name} ({archive.origin}), which is never downloaded. Once you have it: "
        f"ssmp data prepare {name} --source PATH{place}{''.join(changed)}"
    )
