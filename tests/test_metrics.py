from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.batch import TaskSpec
from ssm_priors.metrics import ACCURACY, METRICS, metric_for, metric_of
from ssm_priors.studies.bootstrap import bootstrap

RMSE = metric_for("values", "bpm")
TOKENS = metric_for("tokens")


def test_an_accuracy_is_the_share_that_is_right():
    score = ACCURACY.score(np.array([1, 2, 3, 3]), np.array([1, 2, 0, 0]))
    assert score.tolist() == [1, 1, 0, 0]
    assert ACCURACY.value(score) == 0.5


def test_an_rmse_is_the_root_of_the_mean_square_in_the_units_of_the_target():
    prediction, target = np.array([[1.0, 5.0], [2.0, 2.0]]), np.array([[4.0, 5.0], [2.0, 6.0]], dtype=np.float32)
    assert RMSE.score(prediction, target).tolist() == [4.5, 8.0]
    assert RMSE.value(RMSE.score(prediction, target)) == pytest.approx(np.sqrt(np.mean((prediction - target) ** 2)))


def test_tokens_count_where_something_is_asked_and_nowhere_else():
    target = np.array([[3, -1, 2], [-1, -1, 5]])
    assert TOKENS.score(np.array([[3, -1, 0], [4, 4, 5]]), target).tolist() == [0.5, 1.0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_chance_is_the_best_answer_that_is_the_same_for_all(classes):
    target = np.array(classes)
    constants = {
        "class": [np.full_like(target, answer) for answer in range(5)],
        "tokens": [np.full((len(target), 1), answer) for answer in range(5)],
        "values": [np.full((len(target), 1), answer) for answer in np.linspace(0, 4, 41)],
    }
    for answer, guesses in constants.items():
        metric, asked = METRICS[answer], target if answer == "class" else target[:, None]
        chance = metric.value(metric.guess(asked))
        for guess in guesses:
            assert not metric.is_better(
                metric.value(metric.score(guess, asked)), chance + (-1e-9 if metric.rooted else 0)
            )


def test_better_has_a_direction_and_equals_are_not_better():
    assert ACCURACY.is_better(0.6, 0.5)
    assert not ACCURACY.is_better(0.5, 0.5)
    assert RMSE.is_better(4.0, 5.0)
    assert not RMSE.is_better(5.0, 4.0)


@pytest.mark.parametrize(
    ("metric", "value", "full", "label"),
    [
        (ACCURACY, 0.9314, "93.1%", "accuracy, %"),
        (TOKENS, 1.0, "100.0%", "token accuracy, %"),
        (RMSE, 4.2149, "4.21 bpm", "RMSE, bpm"),
        (RMSE, 1234.5, "1234 bpm", "RMSE, bpm"),
        (RMSE, 0.00123456, "0.00123 bpm", "RMSE, bpm"),
        (RMSE, 0.0, "0.00 bpm", "RMSE, bpm"),
        (metric_for("values"), 2.0, "2.00", "RMSE"),
        (ACCURACY, None, "", "accuracy, %"),
        (RMSE, float("nan"), "", "RMSE, bpm"),
    ],
)
def test_numbers_are_said_with_their_unit(metric, value, full, label):
    assert (metric.full(value), metric.label) == (full, label)


@pytest.mark.parametrize(
    ("metric", "difference", "said"),
    [
        (ACCURACY, -0.113, "-11.3"),
        (ACCURACY, 0.0002, "+0.02"),
        (ACCURACY, -1e-9, "+0.0"),
        (RMSE, -0.314, "-0.31"),
        (RMSE, 12.7, "+13"),
        (RMSE, 0.0, "+0.0"),
    ],
)
def test_a_difference_has_a_sign(metric, difference, said):
    assert metric.gap(difference) == said


def test_where_lower_is_better_a_change_says_which_way_it_is():
    assert ACCURACY.change(0.1) == "raises accuracy"
    assert RMSE.change(-0.1) == "lowers RMSE, which is better"
    assert RMSE.change(0.1) == "raises RMSE, which is worse"


def test_a_tasks_metric_follows_from_what_is_asked():
    assert metric_of(TaskSpec(kind="token", length=3, classes=2, vocabulary=4)) == ACCURACY
    spec = TaskSpec(kind="continuous", length=3, classes=1, answer="values", unit="bpm")
    assert metric_of(spec) == RMSE


def test_the_root_is_taken_of_each_runs_mean_and_before_seeds_are_averaged():
    score = np.abs(np.random.default_rng(0).normal(size=(2, 3, 50)))
    runs = np.sqrt(score.mean(axis=2))
    assert bootstrap(score[:1], metric=RMSE).estimate == pytest.approx(runs[0].mean())
    assert bootstrap(score, (1, -1), metric=RMSE).estimate == pytest.approx(runs[0].mean() - runs[1].mean())


def test_the_interval_of_an_rmse_covers_the_truth_and_no_impossible_value():
    rng, covered = np.random.default_rng(1), 0
    for _ in range(200):
        error = rng.normal(scale=3.0, size=(1, 1, 200))
        _, low, high = bootstrap(np.square(error), resamples=400, metric=RMSE)
        covered += 0 <= low <= 3.0 <= high
    assert covered >= 0.9 * 200
    wild = np.array([[[1.0, 1.0]], [[1.0, 1.0]], [[400.0, 400.0]]]).transpose(1, 0, 2)
    assert bootstrap(wild, metric=RMSE).low == 0


def test_an_rmse_of_exactly_one_is_no_perfect_share():
    assert bootstrap(np.ones((1, 1, 20)), metric=RMSE) == (1, 1, 1)
