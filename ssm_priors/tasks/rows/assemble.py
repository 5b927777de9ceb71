"""From rows to a task's data: which split, which target, which scale, and into the store.

1. every row is read once, checked, and written into a spool; labels and splits are kept
2. labels become classes, in order of their names, or numbers; splits are taken as given or drawn, every class (or
   tenth of the targets) in proportion
3. numbers are scaled by mean and deviation of each feature over the training split's valid steps, and no others
4. each split is written from the spool, in the order of the rows
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.rows import Example, Rows
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.rows.spool import Spool
from ssm_priors.tasks.task import SPLITS, Progress, stratified_parts

TENTHS = 10
"""Groups of equal size, by their target, in which examples with numbers as targets are drawn."""
BLOCK = 2**22
"""Most numbers that are padded together."""
MOST_FEATURES = 64
"""Features whose scale is written into the manifest one by one."""
TOLD_EVERY = 1000
"""Rows between two reports of progress."""


@dataclass(slots=True)
class Gathered:
    """What was read, but for the series, which lie in the spool."""

    places: array = field(default_factory=lambda: array("q"))
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    cut: int = 0
    """Series that were longer than is allowed."""
    longest: int = 0
    """Steps of the longest, before it was cut."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What is asked of each row."""

    values: np.ndarray
    """(rows,) classes, or (rows, 1) numbers."""
    strata: np.ndarray
    """(rows,), what is kept in proportion when rows are drawn."""
    classes: tuple[str, ...] = ()
    """Names, in the order of their ids; empty where the targets are numbers."""


def prepare(
    name: str,
    options: Any,
    open_rows: Callable[[], Rows],
    how: Options,
    *,
    stream: Sequence[str],
    source: str,
    content: str,
    progress: Progress,
) -> Path:
    """Read all rows and write the task's data.

    Args:
        name: of the task.
        options: its `Config`.
        open_rows: gives the rows.
        how: what is to become of them.
        stream: names of the random stream that draws splits.
        source: where they come from, in words.
        content: of the files that are read.
        progress: told how far it is.

    Raises:
        BadConfig: options that cannot be meant, or name what is not there.
        BadData: a row that cannot be used, with file, row and column.
    """
    how.refuse_impossible()
    folder = store.data_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with Spool(folder) as spool:
        rows = open_rows()
        found = _gather(rows, spool, how, progress)

        def where(row: int) -> str:
            return rows.where(found.places[row])

        targets = _targets(found, where, how, source)
        parts = _parts(found, targets, where, how, stream, source)
        scale = Scale.of(spool, parts["train"]) if spool.trailing else None
        spec = _spec(spool, targets, how)
        notes = dict(rows.notes) | _notes(found, targets, scale, how)
        twice = _twice(spool, parts, scale)
        if twice and how.duplicates == "refuse":
            raise BadData(_told_twice(twice[0], where))
        layout = Layout(dtype="float32" if scale else "uint8", duplicates=how.duplicates)
        splits = {
            split: Incoming(len(part), _chunks(spool, part, targets.values, spec, scale))
            for split, part in parts.items()
        }
        return store.write(
            name, options, spec, layout, splits, source=source, notes=notes, content=content, progress=progress
        )


def _gather(rows: Rows, spool: Spool, how: Options, progress: Progress) -> Gathered:
    found = Gathered()
    for example in rows.examples:
        where = rows.where(example.place)
        if not spool.fits(example.series):
            raise BadData(f"{where}: {_shape(example)}; like the examples before, {_shape_of(spool)} was expected")
        found.longest = max(found.longest, len(example.series))
        found.cut += bool(how.max_length) and len(example.series) > how.max_length
        spool.append(_cut(example.series, where, how))
        found.places.append(example.place)
        found.labels.append(example.label)
        found.splits.append(example.split)
        if len(found.labels) % TOLD_EVERY == 0:
            progress("reading", min(rows.done(), rows.total - 1), rows.total)
    progress("reading", rows.total, rows.total)
    return found


def _cut(series: np.ndarray, where: str, how: Options) -> np.ndarray:
    if not how.max_length or len(series) <= how.max_length:
        return series
    if how.cut == "refuse":
        raise BadData(f"{where}: {len(series)} steps; at most max_length = {how.max_length} were expected")
    return series[: how.max_length] if how.cut == "end" else series[-how.max_length :]


def _targets(found: Gathered, where: Callable[[int], str], how: Options, source: str) -> Targets:
    if not found.labels:
        raise BadData(f"{source}: no examples")
    if how.target == "number":
        values = np.array([_number(label, where(row), how) for row, label in enumerate(found.labels)])
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        return Targets(values[:, None].astype(np.float32), ranks * TENTHS // len(values))
    names = sorted(set(found.labels), key=_natural)
    if len(names) < 2:
        raise BadData(f"{source}: every label is '{names[0]}'; two classes or more were expected")
    if len(names) > len(found.labels) / 2:
        raise BadData(
            f"{source}: {len(names)} different labels in {len(found.labels)} examples, such as '{names[0]}' and "
            f"'{names[1]}'; names of classes were expected. For numbers to be predicted: --set task.target=number"
        )
    ids = {name: at for at, name in enumerate(names)}
    values = np.array([ids[label] for label in found.labels])
    return Targets(values, values, tuple(names))


def _number(label: str, where: str, how: Options) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(np.float32(value)):
        raise BadData(f"{where}, column '{how.label}': {label!r} was found; a finite number was expected")
    return value


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers by value, before names."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def _parts(
    found: Gathered, targets: Targets, where: Callable[[int], str], how: Options, stream: Sequence[str], source: str
) -> dict[str, np.ndarray]:
    """Rows of each split, ascending: as given, or drawn."""
    given = np.array(found.splits)
    rng = numpy_stream(how.split_seed, *stream, "split")
    if not any(found.splits):
        parts = _drawn(np.arange(len(given)), targets.strata, ["train", "validation", "test"], how, rng, source)
    else:
        parts = {split: np.flatnonzero(given == split) for split in SPLITS}
        for split in ("train", "test"):
            if not len(parts[split]):
                raise BadData(f"{source}: splits are given, but no example is of the {split} split")
        if not len(parts["validation"]):
            parts |= _drawn(parts["train"], targets.strata, ["train", "validation"], how, rng, source)
    if how.examples and how.examples < len(parts["train"]):
        rng = numpy_stream(how.split_seed, *stream, "examples")
        [kept] = stratified_parts(targets.strata[parts["train"]], [how.examples], rng)
        parts["train"] = parts["train"][kept]
    _refuse_unlearnable(parts, targets, where)
    return parts


def _drawn(
    rows: np.ndarray, strata: np.ndarray, splits: list[str], how: Options, rng: np.random.Generator, source: str
) -> dict[str, np.ndarray]:
    shares = {"validation": how.validation, "test": how.test}
    sizes = {split: max(1, round(shares[split] * len(rows))) for split in splits[1:]}
    rest = len(rows) - sum(sizes.values())
    if rest < 1:
        raise BadData(f"{source}: {len(rows)} examples are too few for {', '.join(splits)}")
    drawn = stratified_parts(strata[rows], [rest, *sizes.values()], rng)
    return {split: rows[part] for split, part in zip(splits, drawn, strict=True)}


def _refuse_unlearnable(parts: dict[str, np.ndarray], targets: Targets, where: Callable[[int], str]) -> None:
    """A class that is not in the training split cannot be learned."""
    if not targets.classes:
        return
    known = set(targets.values[parts["train"]].tolist())
    for at, name in enumerate(targets.classes):
        if at not in known:
            row = int(np.flatnonzero(targets.values == at)[0])
            raise BadData(f"{where(row)}: class '{name}' has no example in the training split")


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and deviation of each feature: (features,)."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, spool: Spool, rows: np.ndarray) -> Scale:
        """Over the steps of these rows; a feature that never changes is left in its unit."""
        first = spool[rows[0]][0]  # sums of differences from it lose no digits to a large mean
        sums, squares, steps = np.zeros_like(first), np.zeros_like(first), 0
        for row in rows:
            moved = spool[row] - first
            sums, squares, steps = sums + moved.sum(axis=0), squares + np.square(moved).sum(axis=0), steps + len(moved)
        deviation = np.sqrt(np.maximum(squares / steps - np.square(sums / steps), 0))
        return cls(first + sums / steps, np.where(deviation > 0, deviation, 1.0))

    def __call__(self, series: np.ndarray) -> np.ndarray:
        """(L, features) as it is stored."""
        return ((series - self.mean) / self.deviation).astype(np.float32)


def _spec(spool: Spool, targets: Targets, how: Options) -> TaskSpec:
    length = int(spool.lengths.max())
    spec = TaskSpec(kind="token", length=length, classes=max(len(targets.classes), 1), vocabulary=256)
    if spool.trailing:
        spec = replace(spec, kind="continuous", features=spool.trailing[0], vocabulary=0)
    return spec if targets.classes else replace(spec, answer="values", unit=how.unit)


def _notes(found: Gathered, targets: Targets, scale: Scale | None, how: Options) -> dict[str, Any]:
    notes: dict[str, Any] = {"classes": list(targets.classes)} if targets.classes else {}
    notes["splits"] = "as given" if any(found.splits) else f"drawn with seed {how.split_seed}"
    if any(found.splits) and "validation" not in found.splits:
        notes["splits"] = f"train and test as given, validation drawn from train with seed {how.split_seed}"
    if found.cut:
        some = f"{found.cut:,} of {len(found.labels):,} series ({found.cut / len(found.labels):.1%})"
        notes["cut"] = f"{some} at their {how.cut}, to {how.max_length:,} steps; the longest had {found.longest:,}"
    if scale is not None and len(scale.mean) <= MOST_FEATURES:
        notes["scaled by the training split"] = {"mean": scale.mean.tolist(), "deviation": scale.deviation.tolist()}
    return notes


def _twice(spool: Spool, parts: dict[str, np.ndarray], scale: Scale | None) -> list[tuple[int, str, int, str]]:
    """Rows that are stored alike in two splits: row, split, the earlier row, its split."""
    first: dict[bytes, tuple[int, str]] = {}
    twice = []
    for split, rows in parts.items():
        for row in rows.tolist():
            series = spool[row] if scale is None else scale(spool[row])
            digest = hashlib.blake2b(series.tobytes(), digest_size=16).digest()
            before = first.setdefault(digest, (row, split))
            if before[1] != split:
                twice.append((row, split, *before))
    return twice


def _told_twice(one: tuple[int, str, int, str], where: Callable[[int], str]) -> str:
    row, split, before, other = one
    return (
        f"{where(row)} ({split}) holds the same series as {where(before)} ({other}); nothing may be both trained on "
        "and tested. Take repeats out, or count them: --set task.duplicates=report"
    )


def _chunks(
    spool: Spool, rows: np.ndarray, targets: np.ndarray, spec: TaskSpec, scale: Scale | None
) -> Iterator[Chunk]:
    """The rows' examples, padded with zeros to the longest of each chunk."""
    step = max(1, BLOCK // (spec.length * spec.features))
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        lengths = spool.lengths[some]
        inputs = np.zeros((len(some), int(lengths.max()), *spool.trailing), np.uint8 if scale is None else np.float32)
        for at, row in enumerate(some):
            inputs[at, : lengths[at]] = spool[row] if scale is None else scale(spool[row])
        yield Chunk(inputs, lengths, targets[some])


def _shape(example: Example) -> str:
    return "a text" if example.series.ndim == 1 else f"{example.series.shape[1]} features a step"


def _shape_of(spool: Spool) -> str:
    return f"{spool.trailing[0]} features a step" if spool.trailing else "a text"
