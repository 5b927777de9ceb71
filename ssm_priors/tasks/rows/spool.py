"""Arrays of different lengths, written one after the other into a nameless file and mapped when they are read again."""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np


class Spool:
    """Series of one kind, in the order in which they came; the file is gone when this is closed.

    Args:
        folder: where there is room for them.
    """

    def __init__(self, folder: Path):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by __exit__
        self._starts = array("q", [0])
        self._mapped: np.ndarray | None = None
        self.dtype = np.dtype(np.float64)
        self.trailing: tuple[int, ...] = ()
        """Shape of one step: (features,), or () for bytes."""

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._mapped = None
        self._file.close()

    def __len__(self) -> int:
        """Series."""
        return len(self._starts) - 1

    def fits(self, series: np.ndarray) -> bool:
        """Whether a series is like those before it."""
        return len(self) == 0 or (series.dtype, series.shape[1:]) == (self.dtype, self.trailing)

    def append(self, series: np.ndarray) -> None:
        """Add one that fits."""
        if len(self) == 0:
            self.dtype, self.trailing = series.dtype, series.shape[1:]
        self._file.write(np.ascontiguousarray(series).tobytes())
        self._starts.append(self._starts[-1] + series.size)

    def __getitem__(self, row: int) -> np.ndarray:
        """(L, ...), read-only; after the last was added."""
        if self._mapped is None:
            self._file.flush()
            self._mapped = np.memmap(self._file, dtype=self.dtype, mode="r")
        return self._mapped[self._starts[row] : self._starts[row + 1]].reshape(-1, *self.trailing)

    @property
    def lengths(self) -> np.ndarray:
        """(series,), in steps."""
        return np.diff(np.frombuffer(self._starts, dtype=np.int64)) // int(np.prod(self.trailing))
