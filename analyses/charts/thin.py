"""Less to draw, with nothing extreme lost: bins that keep their extremes, clouds that keep their rim, blocks."""

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


def evenly(count: int, most: int) -> np.ndarray:
    """Which of `count` things in a row to draw: at most `most`, at least 1, evenly spaced, both ends among them."""
    if most == 1:
        return np.arange(min(count, 1))
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def bin_peaks(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each bin, with its sign; arguments as `bin_extremes`."""
    low, high = bin_extremes(values, starts)
    return np.where(-low > high, low, high)


def blocks(shape: tuple[int, int], most: int) -> int:
    """The least side of square blocks that cover an image in at most `most` cells, 1 or more."""
    side = 1
    while -(-shape[0] // side) * -(-shape[1] // side) > most:
        side += 1
    return side


def block_means(image: np.ndarray, side: int) -> np.ndarray:
    """(R, C) -> (R / side, C / side), rounded up: the mean of what is not NaN in each block; NaN where nothing is."""
    known = ~np.isnan(image)
    counts, sums = _sums(known.astype(np.float64), side), _sums(np.where(known, image, 0), side)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def block_peaks(image: np.ndarray, side: int) -> np.ndarray:
    """As `block_means`, but of each block the value of largest magnitude."""
    starts = [np.arange(0, size, side) for size in image.shape]
    known = ~np.isnan(image)
    low, high = (
        extreme.reduceat(extreme.reduceat(np.where(known, image, hidden), starts[0], axis=0), starts[1], axis=1)
        for extreme, hidden in ((np.minimum, np.inf), (np.maximum, -np.inf))
    )
    return np.where(low > high, np.nan, np.where(-low > high, low, high))


def _sums(image: np.ndarray, side: int) -> np.ndarray:
    rows, columns = (np.arange(0, size, side) for size in image.shape)
    return np.add.reduceat(np.add.reduceat(image, rows, axis=0), columns, axis=1)
