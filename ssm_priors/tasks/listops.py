"""ListOps of the Long Range Arena: nested MIN, MAX, median and sum modulo 10 over digits; a token a step.

Rows are generated from a seed by the benchmark's own rule, or read from its released files. A bracket is a token of its
own, round parentheses are none, and no row is ever cut: a row beyond the longest length is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.crew import in_order, ranges
from ssm_priors.tasks.generators import Block, listops, sizes
from ssm_priors.tasks.task import SPLITS, Archive, Progress, Task, silent

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
HELD_OUT = 2_000
"""Rows of validation and of test in the benchmark."""
TOGETHER = 256
"""Rows that are made, or read, at a time."""


@TASKS.register("listops")
class ListOps:
    """Nested list operations over digits: the answer, 0 .. 9, of an expression of 500 to 2,000 tokens.

    Source: Nangia and Bowman 2018, arXiv 1804.06028; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    origin = "generated from a seed"
    official = Archive(
        "the folder listops-1000 with basic_train.tsv, basic_val.tsv and basic_test.tsv",
        "part of the Long Range Arena release, which its authors offer as lra_release.gz; unpack it first",
    )

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The defaults are the benchmark's."""

        data: Literal["generated", "official"] = "generated"
        """Rows drawn here by the benchmark's rule, or those that its authors released."""
        examples: Annotated[int, Ge(1)] = 96_000
        """Rows of training; of the official ones, the first so many."""
        held_out: Annotated[int, Ge(0)] = 0
        """Rows of validation, and as many of test; 0 means 2,000, but at most half of `examples`."""
        max_length: Annotated[int, Ge(8)] = 2_000
        """Tokens that a row must stay below; generated ones exceed a quarter of it."""
        max_depth: Annotated[int, Ge(2)] = 10
        """Deepest node of what is generated, the root having depth 1."""
        max_args: Annotated[int, Ge(2)] = 10
        """Most arguments of an operator of what is generated."""
        seed: Annotated[int, Ge(0)] = 0
        """Of what is generated."""

    @staticmethod
    def benchmark(options: Config) -> str:
        """The benchmark whose published numbers may stand beside a score: only for its own files, whole."""
        return "ListOps" if options == ListOps.Config(data="official") else ""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Tokens of `generators.listops.VOCABULARY`, padded with 0."""
        vocabulary = len(listops.VOCABULARY)
        return TaskSpec(kind="token", length=options.max_length - 1, classes=10, vocabulary=vocabulary)

    @staticmethod
    def words(options: Config) -> tuple[str, ...]:
        """Digits, operators and the closing bracket."""
        return "", *listops.VOCABULARY[1:]

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits, generated first if they are not there; raises NotReady for official ones."""
        return store.load("listops", options)

    @staticmethod
    def prepare(source: Path | None, options: Config, progress: Progress = silent) -> Path:
        """Generate all rows, or read the official files in the folder `source`; raises BadData."""
        wanted = sizes(options.examples, options.held_out, HELD_OUT)
        splits, notes = _official(source, options, wanted) if source else (_generated(options, wanted, progress), {})
        return store.write(
            "listops",
            options,
            ListOps.spec(options),
            Layout(dtype="uint8"),
            splits,
            source=ListOps.official.name if source else ListOps.origin,
            notes=notes,
            progress=progress,
        )


# -- generated


def _generated(options: ListOps.Config, wanted: dict[str, int], progress: Progress) -> dict[str, Incoming]:
    drawn = _Drawn(
        listops.Options(
            seed=options.seed,
            **wanted,
            min_length=options.max_length // 4,
            max_length=options.max_length,
            max_depth=options.max_depth,
            max_args=options.max_args,
        ),
        progress,
    )
    return {split: Incoming(wanted[split], drawn.chunks(split)) for split in SPLITS}


class _Drawn:
    """All rows of all splits, in a file without a name: which tree a row shows is known once all have been drawn."""

    def __init__(self, options: listops.Options, progress: Progress):
        listops.require_possible(options)
        self.options = options
        self.progress = progress
        self.blocks: dict[str, Block] = {}

    def chunks(self, split: str) -> Iterator[Chunk]:
        """A split's rows, no tree of which occurs in any other row."""
        if not self.blocks:
            self._draw()
        for start, stop in ranges(getattr(self.options, split), TOGETHER):
            inputs, lengths, targets = (part[start:stop] for part in self.blocks[split])
            yield Chunk(inputs, lengths, targets)

    def _draw(self) -> None:
        found = {split: self._draw_split(split) for split in SPLITS}
        for (split, row), block in listops.redraws(self.options, found).items():
            for part, one in zip(self.blocks[split], block, strict=True):
                part[row] = one[0]

    def _draw_split(self, split: str) -> np.ndarray:
        """Draw the rows of a split and give their digests."""
        rows = getattr(self.options, split)
        with tempfile.TemporaryFile(dir=store.data_dir()) as file:  # mapped, it stays until it is used no more
            inputs = np.memmap(file, np.uint8, "w+", shape=(rows, self.options.columns))
        whole = Block(inputs, np.zeros(rows, np.int32), np.zeros(rows, np.uint8))
        self.blocks[split] = whole
        digests = []
        pieces = ranges(rows, TOGETHER)
        made = in_order(listops.rows, [(self.options, split, *piece) for piece in pieces])
        for (start, stop), block in zip(pieces, made, strict=True):
            for part, some in zip(whole, block, strict=True):
                part[start:stop] = some
            digests.append(listops.digests(block))
            self.progress(f"{split} trees", stop, rows)
        return np.concatenate(digests)


# -- official


def _official(
    source: Path, options: ListOps.Config, wanted: dict[str, int]
) -> tuple[dict[str, Incoming], dict[str, str]]:
    """The first rows of each file, and which files have more of them."""
    folder = next((place for place in (source, source / "listops-1000") if (place / FILES["train"]).is_file()), None)
    if folder is None:
        raise BadData(f"{source} has no {FILES['train']}; expected {ListOps.official.name}")
    there = {split: _count(folder / name) for split, name in FILES.items()}
    for split, name in FILES.items():
        if there[split] < wanted[split]:
            option = "examples" if split == "train" else "held_out"
            raise BadData(
                f"{folder / name} has {there[split]} rows, {wanted[split]} were expected; if the file is meant to be "
                f"so: --set {option}={there[split]}"
            )
    splits = {
        split: Incoming(wanted[split], _read(folder / name, wanted[split], options.max_length - 1))
        for split, name in FILES.items()
    }
    more = {
        FILES[split]: f"the first {wanted[split]:,} of {there[split]:,} rows"
        for split in SPLITS
        if there[split] > wanted[split]
    }
    return splits, more


def _count(path: Path) -> int:
    """Rows below the header."""
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file) - 1
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, rows: int, columns: int) -> Iterator[Chunk]:
    numbered = islice(enumerate(listops.read_tsv(path), 1), rows)
    while some := list(islice(numbered, TOGETHER)):
        inputs = np.zeros((len(some), columns), np.uint8)
        for line, (row, (tokens, _)) in zip(inputs, some, strict=True):
            if len(tokens) > columns:
                raise BadData(f"{path}, row {row}: {len(tokens)} tokens, at most {columns} are expected; no row is cut")
            line[: len(tokens)] = tokens
        lengths, answers = zip(*((len(tokens), answer) for _, (tokens, answer) in some), strict=True)
        yield Chunk(inputs, np.array(lengths), np.array(answers))
