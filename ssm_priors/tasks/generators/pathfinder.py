"""Pathfinder: are the two dots joined by one dashed contour? Grey images, read pixel by pixel.

An image shows two long contours of equally many dashes, shorter distractors, and two dots. A contour grows dash by
dash from a free place in a uniform direction; each dash turns from the one before by an angle uniform in +- max_turn,
among those that lead where nothing is, and the gap lies in the mean direction. Several grow side by side, one that gets
stuck going on as a copy of another, and the first that fits is taken. The ink of different contours (and of distant
parts of one) is at least `clearance` apart, more than the `gap` between two dashes: the drawing alone decides.

Nothing but the connection tells the label. The scene, with room for a dot at each of the four long ends, is drawn
without knowing it. The last end of the first contour is the anchor and gets a dot; the second dot marks the place where
this contour began (label 1) or where the other one did (label 0). The other began where the first did, mirrored in the
line through the anchor and the image's centre, so the dots are as far from each other and from the centre under both
labels. Rows 2k and 2k + 1 have one label each, in random order. What remains is what the question is about: between
two ends of one contour there tend to be its dashes.

This is the task of the papers, drawn by this package's own rules. Dash sizes, contour lengths (6, 9, 14 dashes) and
numbers of distractors follow the Long Range Arena's description; scores on it are not scores on its released images.

Source: Houtkamp and Roelfsema 2010, J. Exp. Psychol. HPP 36; Linsley et al. 2018, arXiv 1805.08315; Tay et al. 2021
(Long Range Arena), arXiv 2011.04006.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ssm_priors.errors import BadConfig
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.generators import Block, ink, require_range

LEVELS = {"easy": 6, "intermediate": 9, "hard": 14}
"""Dashes of each long contour; distractors have a third of them."""
GEOMETRY = {
    32: {"dash": 2.0, "gap": 1.0, "thickness": 0.5, "radius": 1.5, "clearance": 1.5},
    128: {"dash": 5.0, "gap": 2.5, "thickness": 1.5, "radius": 3.0, "clearance": 4.5},
    256: {"dash": 5.0, "gap": 3.0, "thickness": 2.0, "radius": 5.0, "clearance": 5.0},
}
DISTRACTOR_DASHES = {32: 20, 128: 35, 256: 30}
"""Dashes of all distractors together, shared out among them."""
MOST_SCENES = 2_000
HERDS = 6
"""Times that a herd of contours is grown before its place in the scene is given up."""
TURNS = 4
"""Angles that a contour tries before it is stuck."""
CELLS = 128
"""Least side of the map of free places."""
SHARES = np.linspace(0, 1, 3)
"""Where along a dash that map is asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an image is drawn; lengths in pixels, of visible ink. `options` fills in what fits a size and level."""

    seed: int = 0
    """Of the whole data set."""
    side: int
    """Height and width."""
    contour: int
    """Dashes of each of the two long contours."""
    distractors: int
    """Number of short contours."""
    distractor: int
    """Dashes of each of them."""
    dash: float
    """Length of a dash."""
    gap: float
    """Distance between two dashes of a contour."""
    thickness: float
    """Width of a dash."""
    radius: float
    """Radius of the dots."""
    clearance: float
    """Least distance between two contours; more than `gap`."""
    max_turn: float = 0.6
    """Largest angle between two dashes, radians."""
    contrast: float = 1.0
    """Brightness of a dash, the dots having 1."""
    padding: float = 1.0
    """Pixels at the border without ink."""

    def __post_init__(self) -> None:
        if not (self.contour >= 2 and self.distractors >= 0 and self.distractor >= 1):
            raise BadConfig(
                f"{self.contour} dashes a contour and {self.distractors} distractors of {self.distractor}; "
                "expected at least 2, 0 and 1"
            )
        if not 0 < self.thickness < self.dash <= 2 * self.clearance:
            raise BadConfig(
                f"dash {self.dash}, thickness {self.thickness}, clearance {self.clearance}; "
                "expected 0 < thickness < dash <= 2 clearance"
            )
        if not 0 < self.gap < self.clearance:
            raise BadConfig(f"gap {self.gap} must be positive and smaller than clearance {self.clearance}")
        if not (0 <= self.max_turn < np.pi / 2 and 0 < self.contrast <= 1 and self.padding >= 0 < self.radius):
            raise BadConfig(
                f"max_turn {self.max_turn}, contrast {self.contrast}, padding {self.padding}, radius {self.radius}; "
                "expected 0 <= max_turn < pi / 2, 0 < contrast <= 1, padding >= 0, radius > 0"
            )


def options(
    side: Literal[32, 128, 256], level: Literal["easy", "intermediate", "hard"] = "hard", seed: int = 0
) -> Options:
    """The options of an image size and a difficulty.

    Raises:
        BadConfig: there is no such size or level.
    """
    if side not in GEOMETRY or level not in LEVELS:
        raise BadConfig(f"side {side}, level '{level}'; sides are {list(GEOMETRY)}, levels are {list(LEVELS)}")
    distractor = LEVELS[level] // 3
    many = DISTRACTOR_DASHES[side] // distractor
    return Options(
        seed=seed, side=side, contour=LEVELS[level], distractors=many, distractor=distractor, **GEOMETRY[side]
    )


class Scene(NamedTuple):
    """What an image shows; a point is a complex number x + iy, in pixels from the upper left corner."""

    dashes: np.ndarray
    """(dashes, 2) complex, the two ends of each dash's middle line."""
    contours: np.ndarray
    """(dashes,) the contour of each dash: 0 and 1 are the long ones."""
    dots: np.ndarray
    """(2,) complex, the dots; the anchor comes first."""
    label: int
    """1 if the dots mark the two ends of one contour."""


# -- rows


def rows(options: Options, split: str, start: int, stop: int) -> Block:
    """Images `start` to `stop` (exclusive) of a split.

    Args:
        options: how they are drawn.
        split: train, validation or test.
        start: first row.
        stop: one behind the last row.

    Returns:
        inputs (rows, side, side), lengths (side * side) and targets (rows,), 1 where the dots are joined.

    Raises:
        BadConfig: the contours find no room, or the range is none.
    """
    require_range(split, start, stop)
    inputs = np.zeros((stop - start, options.side, options.side), np.uint8)
    targets = np.zeros(stop - start, np.uint8)
    for index, row in enumerate(range(start, stop)):
        drawn = scene(options, split, row)
        inputs[index], targets[index] = draw(options, drawn), drawn.label
    return Block(inputs, np.full(stop - start, options.side**2, np.int32), targets)


def label_of(options: Options, split: str, row: int) -> int:
    """The label of a row: one of each in every pair."""
    flip = int(numpy_stream(options.seed, "pathfinder", split, "label", row // 2).integers(2))
    return (row + flip) % 2


def scene(options: Options, split: str, row: int) -> Scene:
    """What row `row` shows.

    Raises:
        BadConfig: no arrangement was found in very many tries.
    """
    rng = numpy_stream(options.seed, "pathfinder", split, row)
    for _ in range(MOST_SCENES):
        contours = _contours(rng, options)
        if contours is None:
            continue
        label = label_of(options, split, row)
        numbers = np.repeat(np.arange(len(contours)), [len(contour) for contour in contours])
        dots = np.array([contours[0][-1, 1], contours[0 if label else 1][0, 0]])
        return Scene(np.concatenate(contours), numbers, dots, label)
    raise BadConfig(
        f"two contours of {options.contour} dashes and {options.distractors} distractors found no room on "
        f"{options.side} x {options.side} pixels in {MOST_SCENES} tries; use fewer or shorter ones"
    )


# -- the arrangement


def _contours(rng: np.random.Generator, options: Options) -> list[np.ndarray] | None:
    """Two long contours, then the distractors; None where there is no room."""
    free = _Free(options)
    first = _place(rng, options, options.contour, free, partial(_first_fits, options))
    if first is None:
        return None
    free.take(first)
    free.take_dots(first[-1, 1:])
    start = _mirrored_start(options, first)
    second = _place(rng, options, options.contour, free, partial(_second_fits, options, first), start)
    if second is None:
        return None
    free.take(second)
    free.take_dots(np.array([first[0, 0], *_ends(second)]))
    placed = [first, second]
    for _ in range(options.distractors):
        walk = _place(rng, options, options.distractor, free, partial(_is_apart, options, placed))
        if walk is None:
            return None
        free.take(walk)
        placed.append(walk)
    return placed


def _place(
    rng: np.random.Generator,
    options: Options,
    dashes: int,
    free: _Free,
    fits: Callable[[np.ndarray], bool],
    start: complex | None = None,
) -> np.ndarray | None:
    """The first contour (dashes, 2) of a few herds that fits and keeps clear of itself; `start` is where it begins."""
    one, two = np.triu_indices(dashes, 2)
    many = 24 if dashes == options.contour else 8
    for _ in range(HERDS):
        starts = free.anywhere(rng, many) if start is None else np.full(many, start)
        for walk in _herd(rng, options, dashes, free, starts):
            if fits(walk) and (ink.between_dashes(walk[one], walk[two]) >= options.clearance + options.thickness).all():
                return walk
    return None


class _Free:
    """A map of where the middle line of new ink may run; coarse, so what it allows is measured afterwards."""

    def __init__(self, options: Options):
        self.options = options
        self.zoom = max(1, CELLS // options.side)
        self.cells = np.zeros((self.zoom * options.side,) * 2, bool)
        border = int(np.ceil(self.zoom * (options.padding + options.thickness / 2)))
        self.cells[border:-border, border:-border] = True

    def take(self, walk: np.ndarray) -> None:
        """Close what is too near to a contour."""
        self._close(walk, self.options.clearance + self.options.thickness)

    def take_dots(self, dots: np.ndarray) -> None:
        """Close what is too near to a dot."""
        distance = self.options.radius + self.options.clearance + self.options.thickness / 2
        self._close(np.stack([dots, dots], axis=1), distance)

    def _close(self, dashes: np.ndarray, distance: float) -> None:
        y, x, _ = ink.near(len(self.cells), self.zoom * dashes, self.zoom * distance)
        self.cells[y, x] = False

    def anywhere(self, rng: np.random.Generator, many: int) -> np.ndarray:
        """Points drawn uniformly from what is free: (many,), or none if nothing is."""
        y, x = np.nonzero(self.cells)
        if len(y) == 0:
            return np.zeros(0, complex)
        cells = rng.integers(len(y), size=many)
        return (x[cells] + 1j * y[cells] + rng.random((many, 2)) @ [1, 1j]) / self.zoom

    def at(self, points: np.ndarray) -> np.ndarray:
        """Whether points are free; nothing outside the image is."""
        x, y = (self.zoom * points.real).astype(int), (self.zoom * points.imag).astype(int)
        for place in (x, y):  # the border is never free, so what lies outside may count as border
            np.minimum(np.maximum(place, 0, out=place), len(self.cells) - 1, out=place)
        return self.cells[y, x]


def _herd(rng: np.random.Generator, options: Options, dashes: int, free: _Free, starts: np.ndarray) -> np.ndarray:
    """Contours grown side by side, a stuck one replaced by a copy of another: (starts, dashes, 2), or none."""
    line, step = options.dash - options.thickness, options.gap + options.thickness
    least = options.clearance + options.thickness
    tip, heading, grown = starts, np.zeros(len(starts)), np.zeros((len(starts), 0, 2), complex)
    for number in range(dashes):
        widest = options.max_turn if number else np.pi
        turns = rng.uniform(-widest, widest, (len(tip), TURNS))
        start = tip[:, None] + (number > 0) * step * np.exp(1j * (heading[:, None] + turns / 2))
        along = line * np.exp(1j * (heading[:, None] + turns))
        middles = grown[:, None, :-1].sum(axis=3) / 2
        fits = free.at(start[..., None] + SHARES * along[..., None]).all(axis=-1)
        fits &= (np.abs((start + along / 2)[..., None] - middles) >= least).all(axis=-1)
        alive = np.flatnonzero(fits.any(axis=1))
        if len(alive) == 0:
            return np.zeros((0, dashes, 2), complex)
        alive = np.concatenate([alive, rng.choice(alive, len(starts) - len(alive))])
        chosen = fits.argmax(axis=1)[alive]
        start, along = start[alive, chosen], along[alive, chosen]
        heading, tip = heading[alive] + turns[alive, chosen], start + along
        grown = np.concatenate([grown[alive], np.stack([start, tip], axis=1)[:, None]], axis=1)
    return grown


def _ends(walks: np.ndarray) -> np.ndarray:
    """The two ends of contours (..., dashes, 2): (..., 2)."""
    return np.stack([walks[..., 0, 0], walks[..., -1, 1]], axis=-1)


def _mirrored_start(options: Options, walk: np.ndarray) -> complex:
    """Where a contour begins, mirrored in the line through its last end and the centre of the image."""
    centre = options.side / 2 * (1 + 1j)
    start, anchor = _ends(walk) - centre
    return complex(centre + (anchor / abs(anchor)) ** 2 * start.conj())


def _first_fits(options: Options, walk: np.ndarray) -> bool:
    """Whether dots have room at a contour's ends and at its mirrored start."""
    start, last = _ends(walk)
    mirrored = np.array([_mirrored_start(options, walk)])
    apart = min(abs(start - last), abs(start - mirrored[0])) >= 2 * options.radius + options.clearance
    return (
        bool(apart)
        and _inside(options, np.array([start, last, mirrored[0]]))
        and _may_end(options, walk)
        and _dots_are_free(options, mirrored, walk)
    )


def _second_fits(options: Options, first: np.ndarray, walk: np.ndarray) -> bool:
    """Whether a second contour and dots at its ends are apart from the first and from dots at the first's ends."""
    last = walk[-1, 1:]
    apart = np.abs(last - [*_ends(first), walk[0, 0]]).min() >= 2 * options.radius + options.clearance
    return (
        bool(apart)
        and _inside(options, last)
        and _dots_are_free(options, last, first)
        and _may_end(options, walk)
        and _is_apart(options, [first], walk)
    )


def _inside(options: Options, dots: np.ndarray) -> bool:
    away = dots - options.side / 2 * (1 + 1j)
    furthest = max(np.abs(away.real).max(), np.abs(away.imag).max())
    return bool(furthest <= options.side / 2 - options.padding - options.radius)


def _may_end(options: Options, walk: np.ndarray) -> bool:
    """Whether dots at both ends of a contour keep clear of its own other dashes."""
    first, last = _ends(walk)[:, None]
    return _dots_are_free(options, first, walk[2:]) and _dots_are_free(options, last, walk[:-2])


def _is_apart(options: Options, placed: list[np.ndarray], walk: np.ndarray) -> bool:
    """Whether a contour keeps its distance from those that are there, and from dots at the ends of the first two."""
    dashes, least = np.concatenate(placed), options.clearance + options.thickness
    one, two = np.nonzero(np.abs(dashes.sum(axis=1)[:, None] - walk.sum(axis=1)) / 2 < least + options.dash)
    dots = _ends(np.stack(placed[:2])).ravel()
    return bool((ink.between_dashes(dashes[one], walk[two]) >= least).all()) and _dots_are_free(options, dots, walk)


def _dots_are_free(options: Options, dots: np.ndarray, dashes: np.ndarray) -> bool:
    least = options.radius + options.clearance + options.thickness / 2
    return bool((ink.to_dashes(dots[:, None], dashes) >= least).all())


def draw(options: Options, scene: Scene, zoom: int = 1) -> np.ndarray:
    """The anti-aliased image, white on black: (side, side) uint8.

    A pixel at distance d from the middle line of ink of width w has brightness clip((w + 1) / 2 - d, 0, 1), the share
    of a pixel that ink at least a pixel wide covers where its edge is straight and runs along the grid.

    Args:
        options: sizes and contrast.
        scene: what is drawn.
        zoom: pixels of the image per pixel of the options, for a look at more detail.
    """
    image = np.zeros((zoom * options.side, zoom * options.side))
    ink.paint(image, zoom * scene.dashes, zoom * options.thickness, options.contrast)
    ink.paint(image, zoom * np.stack([scene.dots, scene.dots], axis=1), 2 * zoom * options.radius, 1.0)
    return np.rint(255 * image).astype(np.uint8)
