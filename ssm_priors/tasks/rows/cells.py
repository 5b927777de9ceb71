"""Cells of a table: what is a number, a list of numbers, the end of a series, the name of a class or of a split."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ssm_priors.errors import BadData

ABSENT = {"", "na", "nan", "null", "none", "?"}
"""What stands, in any case, where a series has ended before its last column."""
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def is_absent(cell: Any) -> bool:
    """Whether nothing stands in a cell."""
    if isinstance(cell, str):
        return cell.strip().lower() in ABSENT
    return cell is None or (isinstance(cell, (float, np.floating)) and math.isnan(cell))


def is_list(cell: Any) -> bool:
    """Whether a cell holds a series of its own."""
    if isinstance(cell, str):
        return cell.strip().startswith("[") or len(_words(cell)) > 1
    return isinstance(cell, (list, tuple, np.ndarray))


def is_text(cell: Any) -> bool:
    """Whether a cell holds words: neither a number nor a list of them, nor what begins as one."""
    try:
        return isinstance(cell, str) and not cell.strip().startswith("[") and numbers(cell).size == 0
    except ValueError:
        return True


def numbers(cell: Any) -> np.ndarray:
    """(L,) float64, or (L, features) of a list of lists: '1.5', '1 2 3', '[1, 2]', '[[1, 2], [3, 4]]'.

    Raises:
        ValueError: it is none of these, in words.
    """
    if isinstance(cell, str) and cell.strip().startswith("[["):
        cell = json.loads(cell)
    if isinstance(cell, (list, tuple, np.ndarray)) and len(cell) and isinstance(cell[0], (list, tuple, np.ndarray)):
        return _rectangle([np.asarray(step, dtype=np.float64) for step in cell])
    if isinstance(cell, str):
        words = _words(cell)
        refuse_underscores(words)
        return np.array(words, dtype=np.float64)
    return np.array(cell, dtype=np.float64, ndmin=1)


def refuse_underscores(words: Sequence[Any]) -> None:
    """Raises ValueError for '1_000', which Python takes for a number."""
    for word in words:
        if isinstance(word, str) and "_" in word:
            raise ValueError(f"{word!r} is no number")


def finite(series: np.ndarray, where: str, column: str) -> np.ndarray:
    """The same series; raises BadData naming the first step that is no finite number."""
    bad = ~np.isfinite(series).reshape(len(series), -1).all(axis=1) if series.size else np.empty(0, bool)
    if bad.any():
        step = int(bad.argmax())
        raise BadData(f"{where}, {column}: step {step} is {series[step].tolist()}; a finite number was expected")
    return series


def split_name(cell: Any, where: str, column: str) -> str:
    """One of `task.SPLITS`; raises BadData."""
    found = SPLIT_NAMES.get(str(cell).strip().lower())
    if found is None:
        raise BadData(f"{where}, column '{column}': {cell!r} is no split; train, validation or test was expected")
    return found


def label_name(cell: Any, where: str, column: str) -> str:
    """A label as text, 1.0 as '1'; raises BadData where there is none."""
    text = "" if cell is None else str(cell).strip()
    if text.lower() in ABSENT - {"none"}:
        raise BadData(f"{where}, column '{column}': {text!r} is no label; a class of that name needs another one")
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text)


def shortened(cell: Any) -> str:
    """A cell as it can be shown in a line."""
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}.."


def _words(cell: str) -> list[str]:
    return cell.strip().strip("[]()").replace(",", " ").replace(";", " ").split()


def _rectangle(steps: list[np.ndarray]) -> np.ndarray:
    if len({step.shape for step in steps}) > 1:
        raise ValueError("its steps have different numbers of features")
    return np.stack(steps)
