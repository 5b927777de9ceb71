"""`ucr:NAME`: real time series that the package aeon ships, read from its .ts files without importing it.

    @classLabel true 1 2          header: classes, or @targetLabel true where a number is to be predicted
    @data
    0.1,0.2,0.3:5,6,7:1           features, each the numbers of its steps, and the label

The train and test files are the official split; validation is drawn from train, every class in proportion, from a named
seed. Each feature is scaled by its mean and deviation over the training split, after validation was taken out of it.
Source: Dau et al. 2019, arXiv 1810.07758; Bagnall et al. 2018, arXiv 1811.00075; package aeon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Interval

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadConfig, BadData, NotReady, UnknownName
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.rows import Example, Rows
from ssm_priors.tasks.rows.assemble import prepare
from ssm_priors.tasks.rows.cells import ABSENT, finite, refuse_underscores
from ssm_priors.tasks.rows.content import sha256_of_all
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.task import Progress, Task

MISSING = "task 'ucr' needs the package aeon, whose files are read: pip install 'ssm-priors[ucr]'"
FILES = {"train": "_TRAIN.ts", "test": "_TEST.ts"}


@TASKS.register("ucr")
@dataclass(frozen=True, slots=True)
class Ucr:
    """Real time series of the UCR, UEA and TSER archives, as many as the package aeon ships.

    Source: Dau et al. 2019, arXiv 1810.07758; Bagnall et al. 2018, arXiv 1811.00075; as shipped in aeon.
    """

    argument: ClassVar[str] = "NAME"
    origin: ClassVar[str] = "ships with aeon"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the archives' series."""

        validation: Annotated[float, Interval(gt=0, lt=1)] = 0.2
        """Share of the official training split that is drawn for validation."""
        split_seed: Annotated[int, Ge(0)] = 0
        """Decides which examples are drawn; the same in every run, whatever the run's own seed."""

    data_set: str

    @classmethod
    @cache
    def member(cls, argument: str) -> Ucr:
        """The task of one data set; raises BadConfig for what cannot be the name of one."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", argument):
            raise BadConfig(f"task 'ucr:{argument}': the name of a data set was expected, such as ucr:ACSF1")
        return cls(argument)

    @staticmethod
    def spelled(argument: str) -> str:
        """As it was given."""
        return argument

    @staticmethod
    def ready() -> str:
        """The data sets that are here."""
        return f"yes: {', '.join(known)}" if (known := data_sets()) else f"no: {MISSING}"

    @property
    def name(self) -> str:
        """As the task is called."""
        return f"ucr:{self.data_set}"

    def missing(self, options: Config) -> str:
        """Whether aeon is, or ships no such data set."""
        known = data_sets()
        if not known:
            return MISSING
        return "" if self.data_set in known else str(UnknownName("ucr data set", self.data_set, known))

    def content(self, options: Config) -> str:
        """SHA-256 of both files."""
        files = data_sets().get(self.data_set)
        return sha256_of_all(files["train"].parent, files.values()) if files else ""

    def spec(self, options: Config) -> TaskSpec:
        """As it was prepared; raises NotReady before."""
        return store.spec_of(self.name, options)

    def load(self, options: Config) -> Task:
        """The three splits, prepared first if they are not current."""
        return store.load(self.name, options)

    def prepare(self, source: Path | None, options: Config, progress: Progress) -> Path:
        """Read both files and write them into the store; raises NotReady where they are not here."""
        if lacking := self.missing(options):
            raise NotReady(lacking)
        files = data_sets()[self.data_set]
        parts = {split: TimeSeries(path) for split, path in files.items()}
        answers = {part.is_number for part in parts.values()}
        if len(answers) > 1:
            raise BadData(f"{files['test']}: classes in one file, numbers in the other")
        how = Options(
            label="the label",
            target="number" if answers.pop() else "class",
            validation=options.validation,
            split_seed=options.split_seed,
            duplicates="report",  # the official splits are kept as they are
        )
        return prepare(
            self.name,
            options,
            lambda: _rows(parts),
            how,
            stream=("ucr",),
            source=f"{', '.join(path.name for path in files.values())} of aeon",
            content=self.content(options),
            progress=progress,
        )


def data_sets() -> dict[str, dict[str, Path]]:
    """Name -> its train and test file, of all that the installed aeon ships; empty without it."""
    found = find_spec("aeon")
    places = found.submodule_search_locations if found else None
    if not places:
        return {}
    sets = {}
    for train in sorted(Path(places[0]).glob(f"datasets/data/*/*{FILES['train']}")):
        name = train.name.removesuffix(FILES["train"])
        test = train.with_name(name + FILES["test"])
        if test.is_file():
            sets[name] = {"train": train, "test": test}
    return sets


@dataclass(slots=True)
class TimeSeries:
    """One .ts file: its header, and its examples line by line.

    Raises:
        BadData: a header that says less or other than is needed.
    """

    path: Path
    header: dict[str, list[str]] = field(default_factory=dict)
    """Words after each @tag, tags in small letters."""
    first: int = 0
    """Number of the line @data."""

    def __post_init__(self) -> None:
        for number, line in self._lines():
            tag, *words = line.split()
            if tag.lower() == "@data":
                self.first = number
                break
            if not tag.startswith("@"):
                raise BadData(f"{self.path}, row {number}: a line of the header, such as @data, was expected")
            self.header[tag.lower()] = words
        if not self.first:
            raise BadData(f"{self.path}: no line @data")
        if self._says("@timestamps"):
            raise BadData(f"{self.path}: its steps have time stamps; evenly spaced ones without were expected")
        if self.is_number == self._says("@classlabel"):
            raise BadData(f"{self.path}: its header must say either '@classLabel true ..' or '@targetLabel true'")

    @property
    def is_number(self) -> bool:
        """Whether a number is to be predicted."""
        return self._says("@targetlabel")

    def examples(self, split: str) -> Iterator[tuple[int, np.ndarray, str]]:
        """Row, (L, features), label; raises BadData with the row and the feature that cannot be used."""
        for number, line in self._lines():
            if number > self.first:
                *features, label = line.split(":")
                where = f"{self.path}, row {number}"
                series = self._series(features, where)
                label = label.strip()
                if not self.is_number and label not in self.header["@classlabel"][1:]:
                    known = ", ".join(self.header["@classlabel"][1:])
                    raise BadData(f"{where}: label '{label}' was found; one of {known} was expected")
                yield number, series, label

    def _series(self, features: list[str], where: str) -> np.ndarray:
        expected = self._whole("@dimensions") or int(self._says("@univariate"))
        if not features or (expected and len(features) != expected):
            raise BadData(f"{where}: {len(features)} features; {expected or 'at least 1'} and a label were expected")
        parsed = [_parsed(feature, f"{where}, feature {at}") for at, feature in enumerate(features, 1)]
        if len({len(feature) for feature in parsed}) > 1:
            raise BadData(f"{where}: its features have different numbers of steps, {[len(one) for one in parsed]}")
        wanted = self._whole("@serieslength") if self._says("@equallength") else 0
        if wanted and len(parsed[0]) != wanted:
            raise BadData(f"{where}: {len(parsed[0])} steps; {wanted} were expected")
        return np.stack(parsed, axis=1)

    def _says(self, tag: str) -> bool:
        return [word.lower() for word in self.header.get(tag, [])[:1]] == ["true"]

    def _whole(self, tag: str) -> int:
        """The number after a tag; 0 where there is none."""
        words = self.header.get(tag, ["0"])
        if len(words) != 1 or not words[0].isdecimal():
            raise BadData(f"{self.path}: {tag} {' '.join(words)}: a whole number was expected")
        return int(words[0])

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line that is neither blank nor a comment."""
        try:
            with open(self.path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if line.strip() and not line.lstrip().startswith(("#", "%")):
                        yield number, line.strip()
        except UnicodeDecodeError as error:
            raise BadData(f"{self.path}: not UTF-8 text ({error.reason})") from error


def _rows(parts: dict[str, TimeSeries]) -> Rows:
    """Both files' examples; a place is a row, of the test file if it is negative."""
    sign = {"train": 1, "test": -1}
    state = {"rows": 0}
    totals = {split: sum(1 for number, _ in part._lines() if number > part.first) for split, part in parts.items()}

    def where(place: int) -> str:
        return f"{parts['train' if place > 0 else 'test'].path}, row {abs(place)}"

    def examples() -> Iterator[Example]:
        for split, part in parts.items():
            for number, series, label in part.examples(split):
                state["rows"] += 1
                yield Example(sign[split] * number, series, label, split)

    return Rows(examples(), where, sum(totals.values()), lambda: state["rows"], {})


def _parsed(feature: str, where: str) -> np.ndarray:
    """(L,) numbers; absent ones at the end are no steps."""
    words = [word.strip() for word in feature.split(",")]
    while words and words[-1].lower() in ABSENT:
        words.pop()
    try:
        refuse_underscores(words)
        series = np.array(words, dtype=np.float64)
    except ValueError as error:
        raise BadData(f"{where}: {error}; numbers were expected") from error
    if not len(series):
        raise BadData(f"{where}: no steps")
    return finite(series, where, "its series")
