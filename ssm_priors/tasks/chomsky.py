"""Formal languages of the Chomsky hierarchy, trained on short strings and tested on longer ones than any of training.

Which strings there are, and what is asked of them, is told in `generators.chomsky`. Validation strings are as short as
those of training. There are few short strings, so they repeat, within a split and between training and validation; this
is counted when the data are made, and cannot be otherwise. No test string occurs anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.crew import in_order, ranges
from ssm_priors.tasks.generators import chomsky, sizes
from ssm_priors.tasks.task import Progress, Task, silent

HELD_OUT = 2_000
"""Rows of validation and of test; the paper draws its batches without end, so this is ours."""
TOGETHER = 1024
"""Rows that are made at a time."""


@TASKS.register("chomsky")
class Chomsky:
    """A formal language, from regular to context-sensitive: trained on short strings, tested on longer ones.

    Source: Deletang et al. 2022 (Neural Networks and the Chomsky Hierarchy), arXiv 2207.02098.
    """

    origin = "generated from a seed"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Lengths are those of strings; places that are read for the answer come behind."""

        language: str = "parity_check"
        """One of the fifteen of the paper: parity_check, reverse_string, bucket_sort, .."""
        examples: Annotated[int, Ge(1)] = 20_000
        """Rows of training."""
        held_out: Annotated[int, Ge(0)] = 0
        """Rows of validation, and as many of test; 0 means 2,000, but at most half of `examples`."""
        train_length: Annotated[int, Ge(1)] = 40
        """Longest string of training and validation."""
        test_length: Annotated[int, Ge(2)] = 500
        """Longest string of the test split, the shortest being one longer than `train_length`."""
        seed: Annotated[int, Ge(0)] = 0
        """Of the whole data set."""

        def __post_init__(self) -> None:
            _drawn(self)  # which refuses what cannot be

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Symbols of the language, padded with 0; one class, or one at each place that is read."""
        drawn = _drawn(options)
        language = chomsky.LANGUAGES[options.language]
        return TaskSpec(
            kind="token",
            length=max(drawn.columns("train"), drawn.columns("test")),
            classes=len(language.answers),
            vocabulary=language.vocabulary,
            answer="class" if language.single else "tokens",
        )

    @staticmethod
    def words(options: Config) -> tuple[str, ...]:
        """The symbols of the language, and the placeholder that is read for an answer."""
        return "", *chomsky.LANGUAGES[options.language].symbols, "?"

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits, generated first if they are not there."""
        return store.load("chomsky", options)

    @staticmethod
    def prepare(source: Path | None, options: Config, progress: Progress = silent) -> Path:
        """Generate all rows."""
        wanted = sizes(options.examples, options.held_out, HELD_OUT)
        splits = {split: Incoming(rows, _chunks(_drawn(options), split, rows)) for split, rows in wanted.items()}
        layout = Layout(dtype="uint8", duplicates="report")
        spec = Chomsky.spec(options)
        return store.write("chomsky", options, spec, layout, splits, source=Chomsky.origin, progress=progress)


def _drawn(options: Chomsky.Config) -> chomsky.Options:
    return chomsky.Options(
        language=options.language,
        seed=options.seed,
        train_length=options.train_length,
        test_start=options.train_length + 1,
        test_length=options.test_length,
    )


def _chunks(drawn: chomsky.Options, split: str, rows: int) -> Iterator[Chunk]:
    for block in in_order(chomsky.rows, [(drawn, split, *piece) for piece in ranges(rows, TOGETHER)]):
        yield Chunk(*block)
