"""Less to draw, with nothing extreme lost: bins of lags that keep their extremes, and clouds that keep their rim."""

from __future__ import annotations

import numpy as np


def lag_bins(length: int, most: int) -> np.ndarray:
    """The first lag of each bin, ascending from 0: single lags first, then bins that grow with the lag.

    Args:
        length: number of lags L.
        most: how many bins there may be, at least 1.

    Returns:
        At most `most` integers; all lags where L is no more than that.
    """
    if length <= most:
        return np.arange(length)
    starts = np.geomspace(1, length + 1, most + 1)[:-1] - 1
    starts = np.maximum(np.round(starts), np.arange(most)).astype(int)  # where bins would be narrower than one lag
    return starts[starts < length]


def bin_extremes(values: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of each bin.

    Args:
        values: (..., L).
        starts: (bins,), the first index of each bin, ascending from 0.

    Returns:
        Two arrays (..., bins).
    """
    return np.minimum.reduceat(values, starts, axis=-1), np.maximum.reduceat(values, starts, axis=-1)


def cloud(x: np.ndarray, y: np.ndarray, most: int) -> np.ndarray:
    """Which points of a cloud to draw: an even choice in the order of x, and the extremes of both coordinates.

    Args:
        x, y: (points,); a point that is not finite is never chosen.
        most: how many may be drawn, at least 4.

    Returns:
        Indices of the points to draw, ascending.
    """
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(finite) <= most:
        return finite
    order = finite[np.lexsort((y[finite], x[finite]))]
    even = order[np.linspace(0, len(order) - 1, most - 4).round().astype(int)]
    rim = [finite[choose(values[finite])] for values in (x, y) for choose in (np.argmin, np.argmax)]
    return np.unique(np.concatenate([even, rim]))
