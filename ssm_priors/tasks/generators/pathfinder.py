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

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ssm_priors.errors import BadConfig
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.generators import Block, ink, require_range
from ssm_priors.tasks.generators.herd import Free, Growth, Wish, grow

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
ABREAST = 128
"""Images that are arranged at the same time."""


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
    for first in range(start, stop, ABREAST):
        for row, drawn in enumerate(scenes(options, split, range(first, min(first + ABREAST, stop))), first - start):
            inputs[row], targets[row] = draw(options, drawn), drawn.label
    return Block(inputs, np.full(stop - start, options.side**2, np.int32), targets)


def label_of(options: Options, split: str, row: int) -> int:
    """The label of a row: one of each in every pair."""
    flip = int(numpy_stream(options.seed, "pathfinder", split, "label", row // 2).integers(2))
    return (row + flip) % 2


def scene(options: Options, split: str, row: int) -> Scene:
    """What row `row` shows; raises BadConfig as `scenes` does."""
    return scenes(options, split, [row])[0]


def scenes(options: Options, split: str, rows: Sequence[int]) -> list[Scene]:
    """What each of some rows shows; none depends on which others are asked for.

    Raises:
        BadConfig: no arrangement was found in very many tries.
    """
    line, step = options.dash - options.thickness, options.gap + options.thickness
    growth = Growth(line, step, options.clearance + options.thickness, options.max_turn)
    arranging = [_arranged(options, split, row) for row in rows]
    wishes = {place: next(one) for place, one in enumerate(arranging)}
    found: dict[int, Scene] = {}
    while wishes:
        for places in _alike(wishes):
            for place, walks in zip(places, grow(growth, [wishes[place] for place in places]), strict=True):
                try:
                    wishes[place] = arranging[place].send(walks)
                except StopIteration as done:
                    found[place] = done.value
                    del wishes[place]
    return [found[place] for place in range(len(rows))]


def _alike(wishes: Mapping[int, Wish]) -> list[list[int]]:
    """Those that can be fulfilled together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, wish in wishes.items():
        groups.setdefault((wish.dashes, len(wish.starts)), []).append(place)
    return list(groups.values())


def _arranged(options: Options, split: str, row: int) -> Generator[Wish, np.ndarray, Scene]:
    """One scene, asking for a herd of contours whenever it needs one."""
    rng = numpy_stream(options.seed, "pathfinder", split, row)
    for _ in range(MOST_SCENES):
        contours = yield from _contours(rng, options)
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


def _contours(rng: np.random.Generator, options: Options) -> Generator[Wish, np.ndarray, list[np.ndarray] | None]:
    """Two long contours, then the distractors; None where there is no room."""
    free = Free(options.side, options.padding + options.thickness / 2)
    apart = options.clearance + options.thickness
    from_dots = options.radius + options.clearance + options.thickness / 2
    first = yield from _place(rng, options, options.contour, free, partial(_first_fits, options))
    if first is None:
        return None
    free.close(first, apart)
    free.close(_dots(first[-1, 1:]), from_dots)
    start = _mirrored_start(options, _ends(first))
    second = yield from _place(
        rng, options, options.contour, free, partial(_second_fits, options, first), complex(start)
    )
    if second is None:
        return None
    free.close(second, apart)
    free.close(_dots(np.array([first[0, 0], *_ends(second)])), from_dots)
    placed = [first, second]
    for _ in range(options.distractors):
        walk = yield from _place(rng, options, options.distractor, free, partial(_is_apart, options, placed))
        if walk is None:
            return None
        free.close(walk, apart)
        placed.append(walk)
    return placed


def _place(
    rng: np.random.Generator,
    options: Options,
    dashes: int,
    free: Free,
    fits: Callable[[np.ndarray], np.ndarray],
    start: complex | None = None,
) -> Generator[Wish, np.ndarray, np.ndarray | None]:
    """The first contour (dashes, 2) of a few herds that fits and keeps clear of itself; `start` is where it begins."""
    many = 24 if dashes == options.contour else 8
    for _ in range(HERDS):
        starts = free.anywhere(rng, many) if start is None else np.full(many, start)
        walks = yield Wish(rng, free, dashes, starts)
        for walk in walks[fits(walks)]:
            if _is_clear_of_itself(options, walk):
                return walk
    return None


def _is_clear_of_itself(options: Options, walk: np.ndarray) -> bool:
    one, two = np.triu_indices(len(walk), 2)
    return bool((ink.between_dashes(walk[one], walk[two]) >= options.clearance + options.thickness).all())


def _ends(walks: np.ndarray) -> np.ndarray:
    """The two ends of contours (..., dashes, 2): (..., 2)."""
    return walks[..., [0, -1], [0, 1]]


def _dots(points: np.ndarray) -> np.ndarray:
    """Points (dots,) as dashes without length: (dots, 2)."""
    return np.stack([points, points], axis=1)


def _mirrored_start(options: Options, ends: np.ndarray) -> np.ndarray:
    """Where contours with these ends (..., 2) begin, mirrored in the line through their last end and the centre."""
    centre = options.side / 2 * (1 + 1j)
    start, anchor = (ends - centre)[..., 0], (ends - centre)[..., 1]
    return centre + (anchor / np.abs(anchor)) ** 2 * start.conj()


# Each of these takes contours (contours, dashes, 2) and gives a truth value a contour


def _narrowed(fits: np.ndarray, walks: np.ndarray, *also: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Of contours that fit so far, those that fit in further ways too, which take longer to tell."""
    for further in also:
        fits[fits] = further(walks[fits])
    return fits


def _first_fits(options: Options, walks: np.ndarray) -> np.ndarray:
    """Whether dots have room at a contour's ends and at its mirrored start."""
    ends = _ends(walks)
    start, last, mirrored = ends[:, 0], ends[:, 1], _mirrored_start(options, ends)
    apart = np.minimum(np.abs(start - last), np.abs(start - mirrored)) >= 2 * options.radius + options.clearance
    return _narrowed(
        apart & _inside(options, start) & _inside(options, last) & _inside(options, mirrored),
        walks,
        partial(_may_end, options),
        lambda left: _dots_are_free(options, _mirrored_start(options, _ends(left))[:, None], left),
    )


def _second_fits(options: Options, first: np.ndarray, walks: np.ndarray) -> np.ndarray:
    """Whether a second contour and dots at its ends are apart from the first and from dots at the first's ends."""
    last, others = walks[:, -1, 1], _ends(first)
    away = np.minimum(np.abs(last[:, None] - others).min(axis=1), np.abs(last - walks[:, 0, 0]))
    return _narrowed(
        (away >= 2 * options.radius + options.clearance) & _inside(options, last),
        walks,
        lambda left: _dots_are_free(options, left[:, -1, 1:], first[None]),
        partial(_may_end, options),
        partial(_is_apart, options, [first]),
    )


def _inside(options: Options, dots: np.ndarray) -> np.ndarray:
    away = dots - options.side / 2 * (1 + 1j)
    furthest = np.maximum(np.abs(away.real), np.abs(away.imag))
    return furthest <= options.side / 2 - options.padding - options.radius


def _may_end(options: Options, walks: np.ndarray) -> np.ndarray:
    """Whether dots at both ends of a contour keep clear of its own other dashes."""
    first, last = walks[:, 0, :1], walks[:, -1, 1:]
    return _dots_are_free(options, first, walks[:, 2:]) & _dots_are_free(options, last, walks[:, :-2])


def _is_apart(options: Options, placed: list[np.ndarray], walks: np.ndarray) -> np.ndarray:
    """Whether a contour keeps its distance from those that are there, and from dots at the ends of the first two."""
    dashes, least = np.concatenate(placed), options.clearance + options.thickness
    between = np.abs(walks.sum(axis=2)[:, :, None] - dashes.sum(axis=1)) / 2
    walk, one, two = np.nonzero(between < least + options.dash - options.thickness)
    fits = np.ones(len(walks), bool)
    fits[walk[ink.between_dashes(dashes[two], walks[walk, one]) < least]] = False
    dots = _ends(np.stack(placed[:2])).ravel()
    return fits & _dots_are_free(options, dots, walks)


def _dots_are_free(options: Options, dots: np.ndarray, walks: np.ndarray) -> np.ndarray:
    """Whether dots (dots,), or (contours, dots) of each contour's own, keep clear of all its dashes."""
    least = options.radius + options.clearance + options.thickness / 2
    return np.all(ink.to_dashes(dots[..., None], walks[:, None]) >= least, axis=(1, 2))


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
