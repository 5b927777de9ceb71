"""`ssmp data balance`: how often each answer occurs, and how long examples are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ssm_priors.cli.data import make_ready, options_of
from ssm_priors.cli.output import Output
from ssm_priors.config import Part
from ssm_priors.registry import TASKS
from ssm_priors.tasks.balance import Balance, balance
from ssm_priors.tasks.task import SPLITS

COLUMNS = ("split", "examples", "answers", "steps", "histogram")
BARS = "▁▂▃▄▅▆▇█"
MOST_CLASSES = 20
"""That are told one by one."""


def show(name: str, changes: dict[str, Any], output: Output) -> int:
    """Print a row a split: examples, answers, lengths.

    Raises:
        NotReady: the data are not here.
    """
    name = TASKS.spelled(name)
    options = options_of(name, changes)
    make_ready([Part(name=name, options=options)], output)
    task = TASKS[name].load(options)
    found = {split: balance(task.spec, getattr(task, split)) for split in SPLITS}
    output.json({"task": name, "unit": task.spec.unit} | {split: asdict(each) for split, each in found.items()})
    output.table(COLUMNS, [row(split, each, task.spec.unit) for split, each in found.items()], title=name)
    output.text(
        "answers: share of each class in %, from the first; or least, mean and most of a number, and its deviation. "
        "steps: least, 25%, median, 75%, most; histogram: documents by steps, in ten bins of equal width, from none to "
        "the fullest"
    )
    return 0


def row(split: str, of: Balance, unit: str) -> tuple[str, ...]:
    """A split as the table shows it."""
    quantiles = of.lengths if len(of.histogram) > 1 else of.lengths[:1]
    steps = " ".join(f"{each:,}" for each in quantiles)
    return split, f"{of.examples:,}", _answers(of, unit), steps, bars(of.histogram)


def _answers(of: Balance, unit: str) -> str:
    if of.numbers:
        least, mean, most, deviation = of.numbers
        return f"{least:.4g} .. {mean:.4g} .. {most:.4g}, deviation {deviation:.4g} {unit}".rstrip()
    shares = [100 * count / sum(of.classes) for count in of.classes]
    if len(shares) > MOST_CLASSES:
        return f"{len(shares)} classes, {min(shares):.1f} to {max(shares):.1f}"
    return " ".join(f"{share:.1f}" for share in shares)


def bars(counts: tuple[int, ...]) -> str:
    """A histogram as text, a bar a bin; a blank for a bin that is empty."""
    most = max(counts)
    return "".join(BARS[-(-count * len(BARS) // most) - 1] if count else " " for count in counts)
