"""What a user can say about their own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from ssm_priors.errors import BadConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of a user's own data."""

    label: str = "label"
    """Column, or array, of what is to be predicted."""
    series: str | tuple[str, ...] = ()
    """Columns, or arrays, of the series; a * in a name stands for anything. None named: all but label and split."""
    kind: Literal["auto", "numbers", "text"] = "auto"
    """What a series is made of; text is read as its UTF-8 bytes. auto: what the first example is."""
    target: Literal["class", "number"] = "class"
    """Whether a label is the name of a class, or a number that is to be predicted."""
    unit: str = ""
    """Of the number that is to be predicted, such as "bpm"."""
    split: str = ""
    """Column, or array, that says train, validation or test. None named: `split`, if there is one."""
    validation: Annotated[float, Interval(gt=0, lt=1)] = 0.15
    """Share of all examples, or where train and test are given, of the training ones, drawn for validation."""
    test: Annotated[float, Interval(gt=0, lt=1)] = 0.15
    """Share of all examples drawn for the test, where the data do not say which."""
    split_seed: Annotated[int, Ge(0)] = 0
    """Decides which examples are drawn; the same in every run, whatever the run's own seed."""
    examples: Annotated[int, Ge(0)] = 0
    """Most examples of the training split, every class in proportion; 0 means all."""
    max_length: Annotated[int, Ge(0)] = 0
    """Most steps of a series; 0 means all."""
    cut: Literal["end", "start", "refuse"] = "end"
    """Where a longer series is cut, or that it is refused; how many were is told."""
    duplicates: Literal["refuse", "report"] = "refuse"
    """What becomes of a series that stands in two splits: refused with its rows, or counted."""
    delimiter: str = ""
    """Between the columns of a CSV; empty: a tab for .tsv, else a comma."""

    @property
    def columns(self) -> tuple[str, ...]:
        """`series` as names."""
        return (self.series,) if isinstance(self.series, str) and self.series else tuple(self.series)

    def refuse_impossible(self) -> None:
        """Raises BadConfig for what cannot be meant."""
        if self.validation + self.test >= 1:
            raise BadConfig(f"validation {self.validation} and test {self.test} leave nothing to train on")
        if len(self.delimiter) > 1:
            raise BadConfig(f"delimiter: one character was expected, {self.delimiter!r} was given")
        if self.unit and self.target != "number":
            raise BadConfig(f"unit {self.unit!r} is of numbers that are predicted; set target = number")
