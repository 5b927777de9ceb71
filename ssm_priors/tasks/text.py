"""IMDB reviews, a byte a step: whether a review praises the film.

The official set has no validation split, and the comparison's public code then chooses its weights on the test split.
Here a tenth of the training reviews is held out instead, and the test split is read once. The 50,000 reviews, cut to
the longest length, are some 65 MB: they are held in memory while they are prepared.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import parts, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.letters import VOCABULARY, WORDS, cut_share, encode, require_text
from ssm_priors.tasks.members import Members, members
from ssm_priors.tasks.task import Archive, Progress, Task, silent

OFFICIAL = {"train": 22_500, "validation": 2_500, "test": 25_000}
LABELS = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}
REVIEW = re.compile(r"(train|test)/(neg|pos)/\d+_(\d+)\.txt")
"""Split, class, and the stars that the reviewer gave."""
STARS = {"neg": range(1, 5), "pos": range(7, 11)}
TABLES = (".csv", ".parquet")
MOST_BYTES = 2**31
"""Of one file."""
TOGETHER = 256


@TASKS.register("text")
class Text:
    """IMDB film reviews, a byte a step: praise or not.

    Source: Maas et al. 2011 (Large Movie Review Dataset); Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    origin = "aclImdb_v1.tar.gz, from Stanford"
    archive = Archive(
        "aclImdb_v1.tar.gz",
        "offered by Andrew Maas at Stanford as 'Large Movie Review Dataset v1.0'; its folder will do too, and so will "
        "Parquet or CSV files train*, test* with columns text and label",
    )

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The defaults are the whole set, as long as the Long Range Arena reads it."""

        examples: Annotated[int, Ge(1)] = OFFICIAL["train"]
        """Reviews of training; fewer are drawn from all, both classes alike."""
        held_out: Annotated[int, Ge(0)] = 0
        """Reviews of validation, and as many of test; 0 means 2,500 and 25,000, or the part of them `examples` is."""
        max_length: Annotated[int, Ge(2)] = 4096
        """Bytes of a review that are kept, from its beginning, its end sign included."""

    @staticmethod
    def benchmark(options: Config) -> str:
        """The benchmark whose published numbers may stand beside a score: only for its own files, whole."""
        return "Text" if options == Text.Config() else ""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """An id a byte, and 0 for the end."""
        return TaskSpec(kind="token", length=options.max_length, classes=2, vocabulary=VOCABULARY)

    @staticmethod
    def words(options: Config) -> tuple[str, ...]:
        """A byte an id."""
        return WORDS

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; raises NotReady."""
        return store.load("text", options)

    @staticmethod
    def prepare(source: Path, options: Config, progress: Progress = silent) -> Path:
        """Read the archive, folder or table at `source`; raises BadData."""
        with members(source, _wanted, MOST_BYTES, progress) as found:
            reviews = _reviews(found, options.max_length, progress)
        rows = _rows(str(source), reviews, options)
        splits = {split: Incoming(len(some), _chunks(some, options.max_length)) for split, some in rows.items()}
        sizes = np.array([review.size for some in rows.values() for review in some])
        return store.write(
            "text",
            options,
            Text.spec(options),
            Layout(dtype="uint8", duplicates="report"),
            splits,
            source=Text.archive.name if source.suffix not in TABLES else source.name,
            notes={"cut": cut_share(sizes, options.max_length)},
            progress=progress,
        )


class _Review(NamedTuple):
    text: bytes
    """Its beginning, as far as it is kept."""
    size: int
    """Bytes of the whole."""
    digest: bytes
    """Of the whole."""
    label: int


Reviews = dict[str, list[_Review]]
"""By official split: train and test."""


def _wanted(path: PurePosixPath) -> str | None:
    """Reviews by split, class and file; tables by their name."""
    name = "/".join(path.parts[-3:])
    if REVIEW.fullmatch(name):
        return name
    is_table = path.suffix in TABLES and not path.name.startswith((".", "unsupervised"))
    return path.name if is_table else None


def _reviews(found: Members, length: int, progress: Progress) -> Reviews:
    """All that are there, by official split; raises BadData with file and row."""
    reviews: Reviews = {"train": [], "test": []}
    names = found.names()
    tables = [name for name in names if name.endswith(TABLES)]
    files = [name for name in names if name not in tables]
    labelled = (_from_file(found, name) for name in files) if files else _from_tables(found, tables)
    for count, (split, label, text, where) in enumerate(labelled, 1):
        require_text(text, where)
        if not text.strip():
            raise BadData(f"{where} is empty; a review was expected")
        digest = hashlib.blake2b(text, digest_size=16).digest()
        reviews[split].append(_Review(text[: length - 1], len(text), digest, label))
        if count % 500 == 0:
            progress("reviews read", count, max(sum(OFFICIAL.values()), count + 1))
    there = sum(map(len, reviews.values()))
    progress("reviews read", there, there)
    return reviews


def _rows(where: str, reviews: Reviews, options: Text.Config) -> Reviews:
    """The reviews of each split."""
    wanted = parts.sizes(options.examples, options.held_out, OFFICIAL)
    whole = OFFICIAL["train"] + OFFICIAL["validation"]
    parts.require(where, "training", len(reviews["train"]), wanted["train"] + wanted["validation"], whole)
    parts.require(where, "test", len(reviews["test"]), wanted["test"], OFFICIAL["test"])
    labels = {split: np.array([review.label for review in some]) for split, some in reviews.items()}
    if wanted == OFFICIAL:
        for split in reviews:
            parts.require_balance(where, split, labels[split], 2)
    digests = [review.digest for review in reviews["train"]]
    rows = parts.held_out(labels["train"], digests, wanted, OFFICIAL["validation"] / whole, "text")
    rows["test"] = parts.drawn(labels["test"], wanted["test"], "text", "test")
    of = {"train": "train", "validation": "train", "test": "test"}
    return {split: [reviews[of[split]][row] for row in some] for split, some in rows.items()}


def _chunks(reviews: list[_Review], length: int) -> Iterator[Chunk]:
    for start in range(0, len(reviews), TOGETHER):
        some = reviews[start : start + TOGETHER]
        yield Chunk(*encode([review.text for review in some], length), np.array([review.label for review in some]))


# -- sources: (split, label, text, where) of one review


def _from_file(found: Members, name: str) -> tuple[str, int, bytes, str]:
    """A review of the official archive, whose name has to agree with itself."""
    match = REVIEW.fullmatch(name)
    assert match is not None
    split, label, stars = match.groups()
    if int(stars) not in STARS[label]:
        raise BadData(f"{found.where(name)}: {stars} stars among those of class '{label}'; its label is in doubt")
    return split, LABELS[label], found.read(name), found.where(name)


def _from_tables(found: Members, names: list[str]) -> Iterator[tuple[str, int, bytes, str]]:
    """The rows of tables: of the split in a column `split`, or that with which a file's name begins."""
    if not names:
        raise BadData(f"{found.source} has no review; expected {Text.archive.name}, or tables train* and test*")
    for name in names:
        rows = _csv(found, name) if name.endswith(".csv") else _parquet(found, name)
        for number, row in enumerate(rows, 1):
            where = f"{found.where(name)}, row {number}"
            text, label = row.get("text"), LABELS.get(str(row.get("label")).lower())
            if not isinstance(text, str) or label is None:
                raise BadData(
                    f"{where}: label {row.get('label')!r}; a text and one of {', '.join(LABELS)} were expected"
                )
            yield _split_of(row, name, where), label, text.encode(), where


def _split_of(row: dict[str, Any], name: str, where: str) -> str:
    split = row.get("split") or name
    official = next((known for known in ("train", "test") if str(split).startswith(known)), None)
    if official is None:
        raise BadData(f"{where}: neither its column 'split' nor the file's name says whether it is of train or test")
    return official


def _csv(found: Members, name: str) -> Iterator[dict[str, Any]]:
    with io.TextIOWrapper(found.open(name), encoding="utf-8-sig", newline="") as file:
        try:
            yield from csv.DictReader(file, strict=True)
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadData(f"{found.where(name)} cannot be read as CSV in UTF-8: {error}") from error


def _parquet(found: Members, name: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as missing:
        raise NotReady(f"{found.where(name)}: Parquet needs pyarrow; pip install 'ssm-priors[parquet]'") from missing
    try:
        with found.open(name) as file:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=TOGETHER):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{found.where(name)} cannot be read as Parquet: {error}") from error
