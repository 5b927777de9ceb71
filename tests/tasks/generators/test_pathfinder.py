from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ssm_priors.errors import BadConfig
from ssm_priors.tasks.generators import pathfinder
from ssm_priors.tasks.generators.pathfinder import (
    GEOMETRY,
    LEVELS,
    Options,
    Scene,
    draw,
    label_of,
    options,
    rows,
    scene,
)

EASY = replace(options(32, "easy"), distractors=2)
MANY = 400


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return pathfinder.scenes(EASY, "train", range(MANY))


def distance(one: np.ndarray, two: np.ndarray) -> float:
    """Of two dashes, by many points on each."""
    share = np.linspace(0, 1, 41)
    points = [dash[0] + share * (dash[1] - dash[0]) for dash in (one, two)]
    return float(np.abs(points[0][:, None] - points[1]).min())


def joined(asked: Options, dashes: np.ndarray, dots: np.ndarray) -> bool:
    """Whether the dots lie on one contour, from where ink is alone: step over gaps, never over a clearance."""
    step = (asked.gap + asked.clearance) / 2 + asked.thickness
    reached, waiting = set(), [int(np.abs(dashes - dots[0]).min(axis=1).argmin())]
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += [other for other in range(len(dashes)) if distance(dashes[here], dashes[other]) < step]
    return int(np.abs(dashes - dots[1]).min(axis=1).argmin()) in reached


def joined_in_the_picture(asked: Options, drawn: Scene, zoom: int) -> bool:
    """The same from pixels: grow all ink by less than half a clearance, and see whether the dots meet."""
    ink = draw(asked, drawn, zoom) > 64
    grown = ndimage.distance_transform_edt(~ink) <= zoom * (asked.gap + asked.clearance) / 4
    parts, _ = ndimage.label(grown, np.ones((3, 3)))
    one, two = (parts[int(zoom * dot.imag), int(zoom * dot.real)] for dot in drawn.dots)
    return bool(one == two)


SIZES = [(32, "easy"), (32, "hard"), (128, "hard"), (256, "intermediate")]


@pytest.mark.parametrize(("side", "level"), SIZES)
def test_the_label_follows_from_the_drawing_alone(side, level):
    asked = options(side, level)
    labels = []
    for row in range(8):
        drawn = scene(asked, "test", row)
        order = np.random.default_rng(row).permutation(len(drawn.dashes))
        assert joined(asked, drawn.dashes[order], drawn.dots) == drawn.label
        assert joined_in_the_picture(asked, drawn, max(1, 256 // side)) == drawn.label
        labels.append(drawn.label)
    assert sum(labels) == 4


@pytest.mark.parametrize(("side", "level"), SIZES)
def test_contours_are_dashed_smooth_apart_and_inside(side, level):
    asked = options(side, level)
    for row in range(3):
        drawn = scene(asked, "train", row)
        contours = [drawn.dashes[drawn.contours == number] for number in range(asked.distractors + 2)]
        assert [len(contour) for contour in contours] == [asked.contour] * 2 + [asked.distractor] * asked.distractors
        for contour in contours:
            along = contour[:, 1] - contour[:, 0]
            np.testing.assert_allclose(np.abs(along), asked.dash - asked.thickness)
            np.testing.assert_allclose(np.abs(contour[1:, 0] - contour[:-1, 1]), asked.gap + asked.thickness)
            assert (np.abs(np.angle(along[1:] / along[:-1])) <= asked.max_turn + 1e-9).all()
            coordinates = np.stack([contour.real, contour.imag])
            edge = asked.padding + asked.thickness / 2
            assert edge <= coordinates.min()
            assert coordinates.max() <= side - edge
        least = asked.clearance + asked.thickness
        for number, contour in enumerate(contours):
            for other in contours[:number]:
                assert min(distance(one, two) for one in contour for two in other) >= least - 1e-9


@pytest.mark.parametrize(("side", "level"), SIZES)
def test_there_is_room_for_a_dot_at_all_four_long_ends(side, level):
    asked = options(side, level)
    drawn = scene(asked, "train", 0)
    for number in (0, 1):
        contour, others = drawn.dashes[drawn.contours == number], drawn.dashes[drawn.contours != number]
        for end in (contour[0, 0], contour[-1, 1]):
            clear = asked.radius + asked.clearance + asked.thickness / 2
            assert min(distance(np.array([end, end]), dash) for dash in others) >= clear - 1e-9
            assert asked.padding + asked.radius <= min(end.real, end.imag)
            assert max(end.real, end.imag) <= side - asked.padding - asked.radius


def test_the_second_dot_stands_on_one_of_two_mirrored_places(scenes):
    centre = EASY.side / 2 * (1 + 1j)
    for drawn in scenes:
        first, second = (drawn.dashes[drawn.contours == number] for number in (0, 1))
        starts = first[0, 0], second[0, 0]
        assert drawn.dots.tolist() == [first[-1, 1], starts[1 - drawn.label]]
        axis = (drawn.dots[0] - centre) / abs(drawn.dots[0] - centre)
        one, two = ((start - centre) / axis for start in starts)
        assert one.conjugate() == pytest.approx(two)


# -- nothing but the connection tells the label


def statistics(asked: Options, drawn: Scene) -> list[float]:
    image, centre = draw(asked, drawn).astype(float), asked.side / 2 * (1 + 1j)
    one, two = drawn.dots
    edges = sorted(min(dot.real, dot.imag, asked.side - dot.real, asked.side - dot.imag) for dot in drawn.dots)
    middle = (one + two) / 2
    return [
        abs(one - two),
        *sorted(np.abs(drawn.dots - centre)),
        *edges,
        middle.real,
        middle.imag,
        abs(middle - centre),
        image.sum(),
        (image**2).sum(),
        (image > 0).sum(),
        *image.reshape(2, asked.side // 2, 2, asked.side // 2).sum(axis=(1, 3)).ravel(),
    ]


def test_ink_dots_and_distances_have_one_law_under_both_labels(scenes):
    table = np.array([statistics(EASY, drawn) for drawn in scenes])
    labels = np.array([drawn.label for drawn in scenes])
    for column in table.T:
        assert stats.ks_2samp(column[labels == 1], column[labels == 0]).pvalue > 1e-3
    guess = make_pipeline(StandardScaler(), LogisticRegression())
    score = cross_val_score(guess, table, labels, cv=5).mean()
    assert abs(score - 0.5) < 4 * 0.5 / np.sqrt(MANY)


def test_the_test_above_would_notice_a_leak(scenes):
    labels = np.array([drawn.label for drawn in scenes])
    leak = np.array([abs(drawn.dots[0] - drawn.dots[1]) for drawn in scenes]) + 2 * labels
    assert stats.ks_2samp(leak[labels == 1], leak[labels == 0]).pvalue < 1e-3


@given(seed=st.integers(0, 2**40), pair=st.integers(0, 10**6), split=st.sampled_from(["train", "validation", "test"]))
def test_every_pair_of_rows_has_both_labels(seed, pair, split):
    asked = replace(EASY, seed=seed)
    assert {label_of(asked, split, 2 * pair), label_of(asked, split, 2 * pair + 1)} == {0, 1}


def test_the_order_within_pairs_is_random():
    first = np.array([label_of(EASY, "train", 2 * pair) for pair in range(1000)])
    assert abs(first.mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)


# -- drawing


def lonely(dashes: list[list[complex]], dots: list[complex]) -> Scene:
    return Scene(np.array(dashes, complex).reshape(-1, 2), np.zeros(len(dashes), int), np.array(dots, complex), 0)


@settings(max_examples=20)
@given(x=st.floats(10, 20), y=st.floats(10, 20), angle=st.floats(0, 6.3), length=st.floats(2, 8), width=st.floats(1, 3))
def test_ink_is_length_times_width(x, y, angle, length, width):
    asked = replace(EASY, dash=4.0, thickness=width, clearance=4.5, padding=0.0)
    line = [x + 1j * y, x + 1j * y + length * np.exp(1j * angle)]
    image = draw(asked, lonely([line], [])) / 255
    assert image.sum() == pytest.approx(length * width + np.pi / 4 * width**2, rel=0.15, abs=0.5)
    row, column = np.indices(image.shape) + 0.5
    centre = np.array(line).mean()
    assert (image * column).sum() / image.sum() == pytest.approx(centre.real, abs=0.25)
    assert (image * row).sum() / image.sum() == pytest.approx(centre.imag, abs=0.25)


def test_a_dot_is_a_disc_and_brighter_than_a_dash():
    asked = replace(EASY, contrast=0.5, radius=3.0, thickness=1.0)
    dot = draw(asked, lonely([], [16 + 16j])) / 255
    assert dot.sum() == pytest.approx(np.pi * 9, rel=0.03)
    np.testing.assert_array_equal(dot, dot.T)
    np.testing.assert_array_equal(dot, dot[::-1])
    assert draw(asked, lonely([[4 + 8.5j, 12 + 8.5j]], [])).max() == round(255 * 0.5)


def test_ink_at_the_edge_is_cut_not_wrapped():
    image = draw(EASY, lonely([[0, 0]], [0, 32 + 32j]))
    assert image[0, 0] == image[-1, -1] == 255
    assert not image[4:28].any()
    assert not image[0, 4:].any()


def test_a_line_along_the_grid_covers_its_share_of_each_pixel():
    asked = replace(EASY, thickness=1.0)
    image = draw(asked, lonely([[4 + 8.5j, 12 + 8.5j]], []))
    assert image[8, 4:12].tolist() == [255] * 8
    assert draw(asked, lonely([[4 + 8j, 12 + 8j]], []))[7:9, 4:12].tolist() == [[128] * 8] * 2


# -- rows and options


def test_rows_are_the_same_however_they_are_cut():
    whole = rows(EASY, "train", 0, 6)
    again = pickle.loads(pickle.dumps(EASY))
    parts = [rows(again, "train", start, start + 2) for start in (0, 2, 4)]
    for index in range(3):
        assert np.array_equal(whole[index], np.concatenate([part[index] for part in parts]))
    assert whole.inputs.shape == (6, 32, 32)
    assert whole.inputs.dtype == np.uint8
    assert whole.lengths.tolist() == [1024] * 6
    for split, seed in (("test", 0), ("train", 1)):
        assert not np.array_equal(whole.inputs, rows(replace(EASY, seed=seed), split, 0, 6).inputs)


def test_a_scene_does_not_depend_on_those_arranged_beside_it(scenes):
    for row in (0, 7, MANY - 1):
        alone = scene(EASY, "train", row)
        assert all(np.array_equal(one, two) for one, two in zip(alone, scenes[row], strict=True))
    few = pathfinder.scenes(EASY, "train", [7, 3, 11])
    assert [drawn.dots.tolist() for drawn in few] == [scenes[row].dots.tolist() for row in (7, 3, 11)]


@pytest.mark.parametrize("side", GEOMETRY)
@pytest.mark.parametrize("level", LEVELS)
def test_every_size_and_level_can_be_drawn(side, level):
    block = rows(options(side, level), "validation", 0, 2)
    assert block.inputs.shape == (2, side, side)
    assert sorted(block.targets) == [0, 1]
    assert block.inputs.max() == 255


@pytest.mark.parametrize(
    "wrong",
    [
        {"contour": 1},
        {"distractor": 0},
        {"distractors": -1},
        {"thickness": 2.0},
        {"dash": 3.1},
        {"gap": 1.5},
        {"gap": 0.0},
        {"max_turn": 1.6},
        {"contrast": 0.0},
        {"contrast": 1.1},
        {"radius": 0.0},
        {"padding": -1.0},
    ],
)
def test_options_without_sense_are_refused(wrong):
    with pytest.raises(BadConfig, match=r"expected|smaller than clearance"):
        replace(EASY, **wrong)


@pytest.mark.parametrize(("side", "level"), [(64, "hard"), (32, "harder")])
def test_an_unknown_size_or_level_is_refused(side, level):
    with pytest.raises(BadConfig, match=r"sides are \[32, 128, 256\], levels are"):
        options(side, level)


def test_contours_that_find_no_room_end_in_a_refusal(monkeypatch):
    monkeypatch.setattr(pathfinder, "MOST_SCENES", 3)
    with pytest.raises(BadConfig, match="two contours of 40 dashes and 2 distractors found no room on 32 x 32"):
        rows(replace(EASY, contour=40), "train", 0, 1)
