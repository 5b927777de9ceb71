"""Dashed contours grown side by side, for many images at once.

    direction of the gap: d exp(i turn / 2),  of the next dash: d exp(i turn)

A herd is some contours of one image; one that gets stuck goes on as a copy of another. The herds of many images take
each step together, which is several times faster than one after the other. Every image draws from its own stream, and
all arithmetic is elementwise on real numbers, so that no herd depends on which others grow beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ssm_priors.tasks.generators import ink

TURNS = 4
"""Angles that a contour tries before it is stuck."""
CELLS = 128
"""Least side of the map of free places."""
SHARES = np.linspace(0, 1, 3)
"""Where along a dash that map is asked."""


class Free:
    """A map of where the middle line of new ink may run; coarse, so what it allows is measured afterwards."""

    def __init__(self, side: int, border: float):
        self.zoom = max(1, CELLS // side)
        self.cells = np.zeros((self.zoom * side,) * 2, bool)
        edge = int(np.ceil(self.zoom * border))
        self.cells[edge:-edge, edge:-edge] = True

    def close(self, dashes: np.ndarray, distance: float) -> None:
        """Close what is nearer than that to dashes (dashes, 2), which may be single points."""
        y, x, _ = ink.near(len(self.cells), self.zoom * dashes, self.zoom * distance)
        self.cells[y, x] = False

    def anywhere(self, rng: np.random.Generator, many: int) -> np.ndarray:
        """Points drawn uniformly from what is free: (many,), or none if nothing is."""
        free = np.flatnonzero(self.cells)
        if len(free) == 0:
            return np.zeros(0, complex)
        y, x = np.divmod(free[rng.integers(len(free), size=many)], len(self.cells))
        return (x + 1j * y + rng.random((many, 2)) @ [1, 1j]) / self.zoom


@dataclass(frozen=True, slots=True)
class Growth:
    """How contours grow; lengths of middle lines, in pixels."""

    line: float
    """Of a dash."""
    step: float
    """From the end of a dash to the start of the next."""
    least: float
    """Between the middles of two dashes that are not neighbours."""
    max_turn: float
    """Radians."""


class Wish(NamedTuple):
    """A herd that an image asks for."""

    rng: np.random.Generator
    free: Free
    dashes: int
    starts: np.ndarray
    """(contours,) where each begins; none may be there."""


def grow(growth: Growth, wishes: list[Wish]) -> list[np.ndarray]:
    """The herd of each wish, all having equally many contours and dashes: (contours, dashes, 2) complex, or none."""
    many, dashes = len(wishes[0].starts), wishes[0].dashes
    herds = [np.zeros((0, dashes, 2), complex)] * len(wishes)
    herd = _Herds(growth, wishes)
    while many and len(herd.images) and herd.number < dashes:
        herd.step()
    walks = herd.ends[0] + 1j * herd.ends[1]
    for image, walk in zip(herd.images, walks, strict=True):
        herds[image] = walk if many else herds[image]
    return herds


class _Herds:
    """What has grown so far. Axes: x or y, image, contour, then turn tried, dash, or end of a dash."""

    def __init__(self, growth: Growth, wishes: list[Wish]):
        starts = np.stack([wish.starts for wish in wishes])
        self.growth = growth
        self.number = 0
        """Dashes that each contour has."""
        self.images = np.arange(len(wishes))
        self.rngs = [wish.rng for wish in wishes]
        self.maps = np.stack([wish.free.cells for wish in wishes])
        self.zoom = wishes[0].free.zoom
        self.tip = np.stack([starts.real, starts.imag])
        self.heading = np.stack([np.ones(starts.shape), np.zeros(starts.shape)])
        self.ends = np.zeros((*self.tip.shape, wishes[0].dashes, 2))

    def step(self) -> None:
        """Give every contour one dash more; leave out images all of whose contours are stuck."""
        start, end, heading = self._tries()
        fits = self._is_free(start, end) & self._is_apart((start + end) / 2)
        self._leave_out(fits.any(axis=(1, 2)))
        start, end, heading, fits = (part[..., self._kept, :, :] for part in (start, end, heading, fits))
        contours = self._survivors(np.any(fits, axis=2))
        images = np.arange(len(self.images))[:, None]
        turns = fits.argmax(axis=2)[images, contours]
        self.ends = self.ends[:, images, contours]
        self.ends[..., self.number, 0] = start[:, images, contours, turns]
        self.ends[..., self.number, 1] = self.tip = end[:, images, contours, turns]
        self.heading = heading[:, images, contours, turns]
        self.number += 1

    def _tries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start, end and direction of the next dash at each of a few turns."""
        widest, shape = self.growth.max_turn if self.number else np.pi, (self.tip.shape[2], TURNS)
        turns = 2 * np.stack([rng.random(shape) for rng in self.rngs]) - 1
        half = np.exp(0.5j * widest * turns)
        half = np.stack([half.real, half.imag])
        gap = _turned(self.heading[..., None], half)
        heading = _turned(gap, half)
        start = self.tip[..., None] + (self.growth.step * gap if self.number else 0 * gap)
        return start, start + self.growth.line * heading, heading

    def _is_free(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether dashes lie where their image's map is free; nothing outside the image is."""
        side, fits = self.maps.shape[1], np.ones(start.shape[1:], bool)
        first, cells = np.arange(len(self.images))[:, None, None] * side**2, self.maps.reshape(-1)
        for share in SHARES:
            x, y = (self.zoom * (start + share * (end - start))).astype(np.intp)
            for place in (x, y):  # the border is never free, so what lies outside may count as border
                np.minimum(np.maximum(place, 0, out=place), side - 1, out=place)
            fits &= cells[first + y * side + x]
        return fits

    def _is_apart(self, middle: np.ndarray) -> np.ndarray:
        """Whether middles of new dashes keep their distance from those of all dashes but the last."""
        apart = np.ones(middle.shape[1:], bool)
        for dash in range(self.number - 1):  # one after the other: a reduction over so few costs more
            x, y = middle - (self.ends[..., dash, :].sum(axis=-1) / 2)[..., None]
            apart &= x * x + y * y >= self.growth.least**2
        return apart

    def _leave_out(self, alive: np.ndarray) -> None:
        self._kept = kept = np.flatnonzero(alive)
        if len(kept) < len(alive):
            self.images, self.maps, self.ends = self.images[kept], self.maps[kept], self.ends[:, kept]
            self.rngs = [self.rngs[image] for image in kept]

    def _survivors(self, alive: np.ndarray) -> np.ndarray:
        """For each place in a herd the contour that goes on there: those that can, then copies of some of them."""
        contours = np.argsort(~alive, axis=1, kind="stable")
        for row, rng, count in zip(contours, self.rngs, alive.sum(axis=1), strict=True):
            if count < len(row):
                row[count:] = row[rng.integers(count, size=len(row) - count)]
        return contours


def _turned(direction: np.ndarray, by: np.ndarray) -> np.ndarray:
    """The product of complex numbers of length 1 in parts, real and imaginary first."""
    return np.stack([direction[0] * by[0] - direction[1] * by[1], direction[0] * by[1] + direction[1] * by[0]])
