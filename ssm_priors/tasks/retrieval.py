"""Pairs of papers from the ACL Anthology, a byte a step: whether one cites the other (Long Range Arena's Retrieval).

    a line of a file:  label TAB id TAB id TAB text TAB text

Nothing in these files is quoted: a quotation mark is a letter like any other, and one row is one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.tasks import parts, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.letters import VOCABULARY, WORDS, cut_share, encode, require_text
from ssm_priors.tasks.members import Members, members
from ssm_priors.tasks.task import SPLITS, Archive, Progress, Task, silent

FILES = {split: f"new_aan_pairs.{part}.tsv" for split, part in zip(SPLITS, ("train", "eval", "test"), strict=True)}
OFFICIAL = {"train": 147_086, "validation": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
FIELDS = 5
MOST_BYTES = 2**34
"""Of one file."""
LONGEST_LINE = 2**25
TOGETHER = 64


@TASKS.register("retrieval")
class Retrieval:
    """Pairs of papers of the ACL Anthology Network, a byte a step: does one cite the other.

    Source: Radev et al. 2013; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    origin = "lra_release.gz, from the Long Range Arena"
    archive = Archive(
        "lra_release.gz, or the folder with " + ", ".join(FILES.values()),
        "part of the Long Range Arena release, in its folder tsv_data, which its authors at Google Research offer",
    )

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The defaults are the whole set, as long as the comparison reads it."""

        examples: Annotated[int, Ge(1)] = OFFICIAL["train"]
        """Pairs of training; fewer are drawn from all, both classes alike."""
        held_out: Annotated[int, Ge(0)] = 0
        """Pairs of validation, and as many of test; 0 means 18,090 and 17,437, or the part of them `examples` is."""
        max_length: Annotated[int, Ge(2)] = 4000
        """Bytes of a paper that are kept, from its beginning, its end sign included."""

    @staticmethod
    def benchmark(options: Config) -> str:
        """The benchmark whose published numbers may stand beside a score: only for its own files, whole."""
        return "Retrieval" if options == Retrieval.Config() else ""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Two documents; an id a byte, and 0 for the end."""
        return TaskSpec(kind="token", length=options.max_length, classes=2, vocabulary=VOCABULARY, documents=2)

    @staticmethod
    def words(options: Config) -> tuple[str, ...]:
        """A byte an id."""
        return WORDS

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; raises NotReady."""
        return store.load("retrieval", options)

    @staticmethod
    def prepare(source: Path, options: Config, progress: Progress = silent) -> Path:
        """Read the files in the archive or folder `source`; raises BadData."""
        wanted = parts.sizes(options.examples, options.held_out, OFFICIAL)
        with members(source, _wanted, MOST_BYTES, progress) as found:
            lines = {split: _lines(found, split, wanted[split], progress) for split in SPLITS}
            sizes = np.concatenate([some.sizes for some in lines.values()]).ravel()
            splits = {
                split: Incoming(len(some.starts), _chunks(found, split, some, options.max_length))
                for split, some in lines.items()
            }
            return store.write(
                "retrieval",
                options,
                Retrieval.spec(options),
                Layout(dtype="uint8", duplicates="report"),
                splits,
                source=", ".join(FILES.values()),
                notes={"cut": cut_share(sizes, options.max_length), "empty texts": int((sizes == 0).sum())},
                progress=progress,
            )


class _Lines(NamedTuple):
    """The lines of a file that are taken."""

    starts: np.ndarray
    """(pairs,), where in the file."""
    labels: np.ndarray
    """(pairs,)."""
    sizes: np.ndarray
    """(pairs, 2), bytes of both texts."""


def _wanted(path: PurePosixPath) -> str | None:
    return path.name if path.name in FILES.values() else None


def _lines(found: Members, split: str, wanted: int, progress: Progress) -> _Lines:
    """Read a file through once, and choose; raises BadData with its row."""
    name = FILES[split]
    starts, labels, sizes = [], [], []
    with found.open(name) as file:
        for number, (start, line) in enumerate(_each_line(file, found.where(name)), 1):
            where = f"{found.where(name)}, row {number}"
            label, first, second = _parsed(line, where)
            for text in (first, second):
                require_text(text, where)
            starts.append(start)
            labels.append(label)
            sizes.append((len(first), len(second)))
            if number % 1000 == 0:
                progress(f"bytes of {name}", start, found.sizes[name])
    progress(f"bytes of {name}", found.sizes[name], found.sizes[name])
    parts.require(found.where(name), split, len(starts), wanted, OFFICIAL[split])
    rows = parts.drawn(np.array(labels), wanted, "retrieval", split)
    return _Lines(*(np.array(part)[rows] for part in (starts, labels, sizes)))


def _each_line(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Where each line starts, and what it holds, without its end."""
    start = 0
    for number in count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise BadData(f"{where}, row {number} has more than {LONGEST_LINE:,} bytes; it is damaged")
        yield start, line.rstrip(b"\r\n")
        start += len(line)


def _parsed(line: bytes, where: str) -> tuple[int, bytes, bytes]:
    """Label and both texts of a line."""
    fields = line.split(b"\t")
    if len(fields) != FIELDS:
        raise BadData(f"{where} has {len(fields)} fields between tabs, {FIELDS} were expected: label, ids, texts")
    if fields[0] not in LABELS:
        raise BadData(f"{where}: label {fields[0][:20]!r}, 0 or 1 was expected")
    return LABELS[fields[0]], fields[3], fields[4]


def _chunks(found: Members, split: str, lines: _Lines, length: int) -> Iterator[Chunk]:
    name = FILES[split]
    with found.open(name) as file:
        for start in range(0, len(lines.starts), TOGETHER):
            texts: list[bytes] = []
            for at in lines.starts[start : start + TOGETHER]:
                file.seek(at)
                texts += _parsed(file.readline().rstrip(b"\r\n"), found.where(name))[1:]
            yield Chunk(*encode(texts, length), lines.labels[start : start + TOGETHER])
