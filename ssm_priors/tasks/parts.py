"""How many examples of an official set are taken, and which: whole as it is, or a smaller one of the same kind.

A smaller set lies inside the whole one, split by split, and so do all validation rows: what was seen in training at one
size is never what another size is validated on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ssm_priors.errors import BadData
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.task import SPLITS, stratified_parts


def sizes(examples: int, held_out: int, official: Mapping[str, int]) -> dict[str, int]:
    """Examples of each split that are wanted.

    Args:
        examples: of training.
        held_out: of validation, and as many of test; 0 means as many for each training example as in the whole set.
        official: examples of each split of the whole set.
    """
    share = examples / official["train"]
    wanted = {split: held_out or max(1, round(share * official[split])) for split in SPLITS}
    return wanted | {"train": examples}


def require(where: str, what: str, there: int, wanted: int, official: int) -> None:
    """Refuse a set with fewer examples than are wanted, or with more than the official one has.

    Args:
        where: the source, for people.
        what: which of its examples: "training".
        there: how many were found.
        wanted: how many are to be taken.
        official: how many the whole set has.

    Raises:
        BadData: with what to do.
    """
    if there > official:
        raise BadData(f"{where} has {there:,} {what} examples; the official one has {official:,}, so it is another")
    if there < wanted:
        raise BadData(
            f"{where} has {there:,} {what} examples, {wanted:,} were expected; if it is meant to be only a part: "
            f"--set examples=N --set held_out=M, with N to train on, M to validate and M to test on"
        )


def require_balance(where: str, what: str, classes: np.ndarray, number: int) -> None:
    """Refuse a whole set whose classes are not all of one size, as the official ones are; raises BadData."""
    counts, each = np.bincount(classes, minlength=number), len(classes) // number
    if (counts != each).any():
        raise BadData(f"{where}: {what} examples of each class: {counts.tolist()}; {each:,} were expected")


def drawn(classes: np.ndarray, wanted: int, *names: str) -> np.ndarray:
    """Rows that are taken, every class in proportion, in ascending order; all of them if as many are wanted.

    Args:
        classes: (examples,); all alike where there are none.
        wanted: how many.
        names: of the stream that decides which.
    """
    if wanted == len(classes):
        return np.arange(wanted)
    return stratified_parts(classes, [wanted], numpy_stream(0, *names))[0]


def held_out(
    classes: np.ndarray, contents: Sequence[Hashable], wanted: Mapping[str, int], share: float, name: str
) -> dict[str, np.ndarray]:
    """Cut a validation split from training examples, where an official set has none; gives the rows of both.

    Examples that stand there twice stay in training, so that none is both trained and validated on.

    Args:
        classes: (examples,) of all that are there.
        contents: of each, or a hash of it.
        wanted: how many to train and validate on.
        share: of the whole set that is held out.
        name: of the task; the split is a function of it, and of how many examples there are.

    Raises:
        BadData: too few stand there once.
    """
    often = Counter(contents)
    once = np.array([row for row, content in enumerate(contents) if often[content] == 1], dtype=np.int64)
    size = max(wanted["validation"], round(share * len(classes)))
    if size > len(once):
        raise BadData(f"{len(once):,} examples stand there only once, {size:,} are needed to validate on")
    validation = once[stratified_parts(classes[once], [size], numpy_stream(0, name, "split"))[0]]
    rest = np.setdiff1d(np.arange(len(classes)), validation)
    if len(rest) < wanted["train"]:
        raise BadData(f"{len(rest):,} examples are left to train on, {wanted['train']:,} are wanted")
    parts = {"train": rest, "validation": validation}
    return {split: rows[drawn(classes[rows], wanted[split], name, split)] for split, rows in parts.items()}
