"""Dashes: how far they are from points and from each other, and how they are drawn without jagged edges.

A dash is the pair of complex numbers x + iy where its middle line ends; its ink has round ends.
"""

from __future__ import annotations

import numpy as np


def to_dashes(points: np.ndarray, dashes: np.ndarray) -> np.ndarray:
    """Distance of points (...) from dashes (..., 2), broadcast; a dash may be a single point."""
    start, along = dashes[..., 0], dashes[..., 1] - dashes[..., 0]
    right, down = points.real - start.real, points.imag - start.imag
    length = along.real**2 + along.imag**2
    share = (right * along.real + down * along.imag) / np.where(length > 0, length, 1)
    share = np.minimum(np.maximum(share, 0), 1)
    return np.hypot(right - share * along.real, down - share * along.imag)


def between_dashes(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Distance of dashes (..., 2); of crossing ones at most half a dash, which is below any clearance."""
    to_two = to_dashes(one, two[..., None, :]).min(axis=-1)
    return np.minimum(to_two, to_dashes(two, one[..., None, :]).min(axis=-1))


def paint(image: np.ndarray, dashes: np.ndarray, width: float, brightness: float) -> None:
    """Draw dashes (dashes, 2) with round ends into an image, the brightest ink winning."""
    y, x, away = near(len(image), dashes, (width + 1) / 2)
    np.maximum.at(image, (y, x), brightness * np.clip((width + 1) / 2 - away, 0, 1))


def near(side: int, dashes: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column, and distance from the dash of all pixels whose centres lie within `reach` of a dash."""
    start, along = dashes[:, :1, None], (dashes[:, 1:] - dashes[:, :1])[..., None]  # (dashes, 1, 1)
    window = np.arange(int(max(np.abs(along.real).max(initial=0), np.abs(along.imag).max(initial=0)) + 2 * reach) + 2)
    x = np.floor(dashes.real.min(axis=1) - reach).astype(int)[:, None, None] + window  # (dashes, 1, columns)
    y = np.floor(dashes.imag.min(axis=1) - reach).astype(int)[:, None, None] + window[:, None]  # (dashes, rows, 1)
    right, down = x + 0.5 - start.real, y + 0.5 - start.imag
    length = along.real**2 + along.imag**2
    length[length == 0] = 1
    share = np.minimum(np.maximum(right * (along.real / length) + down * (along.imag / length), 0), 1)
    away = (right - share * along.real) ** 2 + (down - share * along.imag) ** 2
    dash, row, column = np.nonzero((away < reach**2) & (x >= 0) & (x < side) & (y >= 0) & (y < side))
    return y[dash, row, 0], x[dash, 0, column], np.sqrt(away[dash, row, column])
