from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
import xarray as xr
from study_folders import ABLATION, study_folder

from ssm_priors.studies import bootstrap as resampling
from ssm_priors.studies.bootstrap import bootstrap, resample_examples, wilson
from ssm_priors.studies.contrasts import contrasts
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.results import collect
from ssm_priors.studies.statistics import CellScore, Effect


def scores(results: xr.Dataset) -> tuple[CellScore, ...]:
    return find(Study.from_toml(results.study), results).scores


def effects(results: xr.Dataset) -> tuple[Effect, ...]:
    return find(Study.from_toml(results.study), results).effects


def _bernoulli(rng: np.random.Generator, share: np.ndarray | float, *shape: int) -> np.ndarray:
    return (rng.random(shape) < share).astype(np.int8)


# --- the interval ---------------------------------------------------------------------------------------------------


def test_the_estimate_is_the_mean_and_a_contrast_the_difference_of_means():
    correct = np.array([[[1, 1, 0, 0]], [[1, 0, 0, 0]]])
    assert bootstrap(correct[:1]).estimate == 0.5
    assert bootstrap(correct, (1, -1)).estimate == 0.25


def test_one_seed_gives_the_binomial_interval():
    """The percentile interval of a share has the closed form Binomial(E, p) / E."""
    correct = np.repeat([1, 0], [140, 60])[None, None]
    _, low, high = bootstrap(correct)
    expected = scipy.stats.binom(200, 0.7).ppf([0.025, 0.975]) / 200
    np.testing.assert_allclose([low, high], expected, atol=0.011)  # two of the 200 examples


def test_it_agrees_with_scipy_on_a_paired_difference():
    rng = np.random.default_rng(5)
    correct = _bernoulli(rng, 0.6, 2, 1, 300)
    ours = bootstrap(correct, (1, -1))
    difference = correct[0, 0].astype(float) - correct[1, 0]
    theirs = scipy.stats.bootstrap((difference,), np.mean, method="percentile", rng=rng, n_resamples=5000)
    np.testing.assert_allclose([ours.low, ours.high], list(theirs.confidence_interval), atol=0.008)


def test_it_is_the_same_every_time():
    correct = _bernoulli(np.random.default_rng(0), 0.5, 2, 3, 50)
    assert bootstrap(correct, (1, -1)) == bootstrap(correct, (1, -1))


def test_blocks_change_nothing_but_memory(monkeypatch):
    correct = _bernoulli(np.random.default_rng(0), 0.5, 2, 3, 50)
    whole = resample_examples(correct, 500)
    monkeypatch.setattr(resampling, "BLOCK", 50 * 33)
    np.testing.assert_array_equal(resample_examples(correct, 500), whole)


def test_perfectly_correlated_cells_differ_by_a_constant():
    """Pairing: what two cells share cancels, whatever is drawn."""
    shared = _bernoulli(np.random.default_rng(1), 0.7, 3, 100)
    assert bootstrap(np.stack([shared, shared]), (1, -1)) == (0, 0, 0)


def test_a_paired_difference_is_surer_than_its_parts():
    rng = np.random.default_rng(2)
    easy = _bernoulli(rng, 0.5, 1, 400)
    better = easy | _bernoulli(rng, 0.05, 1, 400)
    both = np.stack([better, easy])
    paired = bootstrap(both, (1, -1))
    apart = bootstrap(both[:1])
    assert paired.high - paired.low < (apart.high - apart.low) / 1.5


@pytest.mark.parametrize("share", [0, 1])
def test_at_the_border_wilsons_interval_is_used(share: int):
    interval = bootstrap(np.full((1, 3, 100), share))
    assert interval == wilson(100 * share, 100)
    assert 0.03 < interval.high - interval.low < 0.04
    assert interval.low >= 0
    assert interval.high <= 1


def test_wilson_agrees_with_scipy():
    expected = scipy.stats.binomtest(7, 40).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(7, 40)[1:], [expected.low, expected.high])


def test_seeds_that_agree_do_not_widen_the_interval():
    one = _bernoulli(np.random.default_rng(3), 0.8, 1, 1, 500)
    alone, three = bootstrap(one), bootstrap(np.repeat(one, 3, axis=1))
    np.testing.assert_allclose(alone, three)


def test_one_stuck_seed_of_three_leaves_the_sign_of_a_difference_open():
    """The paired differences -0.38, -0.83, -0.38 have a Student's interval that covers zero; so must this one."""
    shares = np.array([[0.55, 0.10, 0.55], [0.93, 0.93, 0.93]])
    correct = (np.arange(1000) < 1000 * shares[:, :, None]).astype(np.int8)
    estimate, low, high = bootstrap(correct, (1, -1))
    assert low < estimate < 0 < high


def test_an_interval_of_few_seeds_is_as_wide_as_students():
    """With endless examples only the seeds' spread is left: Student's interval of their accuracies."""
    accuracies = np.array([0.70, 0.75, 0.80, 0.77, 0.73])
    correct = (np.arange(20_000) < 20_000 * accuracies[:, None])[None].astype(np.int8)
    _, low, high = bootstrap(correct)
    sem = scipy.stats.sem(accuracies)
    expected = scipy.stats.t.interval(0.95, 4, loc=accuracies.mean(), scale=sem)
    assert high - low == pytest.approx(expected[1] - expected[0], rel=0.12)


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (3, 0.0), (3, 0.05), (5, 0.05)])
@pytest.mark.parametrize("examples", [60, 200])
def test_the_interval_of_an_accuracy_covers_the_truth(seeds: int, spread: float, examples: int):
    """Known truth: a seed has its own accuracy around 0.8, an example its own difficulty shared by all seeds."""
    rng, truth, covered = np.random.default_rng(7), 0.8, 0
    for _ in range(300):
        quality = rng.uniform(-2, 2, (1, seeds, 1)) * spread
        difficulty = rng.uniform(-0.15, 0.15, (1, 1, examples))
        _, low, high = bootstrap(_bernoulli(rng, truth + quality + difficulty, 1, seeds, examples), resamples=500)
        covered += low <= truth <= high
    assert covered >= 0.9 * 300


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (3, 0.04), (5, 0.04)])
def test_the_interval_of_a_difference_covers_the_truth(seeds: int, spread: float):
    rng, truth, covered = np.random.default_rng(11), np.array([0.8, 0.7])[:, None, None], 0
    for _ in range(300):
        share = truth + spread * rng.uniform(-2, 2, (2, seeds, 1)) + rng.uniform(-0.1, 0.1, (1, 1, 200))
        _, low, high = bootstrap(_bernoulli(rng, share, 2, seeds, 200), (1, -1), resamples=500)
        covered += low <= 0.1 <= high
    assert covered >= 0.9 * 300


# --- what is asked --------------------------------------------------------------------------------------------------


def _cells(study: Study) -> list[Cell]:
    return study.cells()


def test_an_ablation_asks_for_both_effects_each_way_and_their_interaction():
    asked = [(one.kind, one.text) for one in contrasts(_cells(ABLATION))]
    assert asked == [
        ("init", "s4d, random instead of s4d-lin, from scratch"),
        ("init", "s4d, random instead of s4d-lin, after masked pretraining"),
        ("interaction", "s4d, random instead of s4d-lin, after masked pretraining minus from scratch (interaction)"),
        ("pretrain", "s4d, s4d-lin, masked pretraining instead of none"),
        ("pretrain", "s4d, random, masked pretraining instead of none"),
    ]


def test_models_are_compared_and_a_model_without_init_has_no_init_effect():
    asked = list(contrasts(_cells(Study(models=("s4d", "transformer"), inits=("random",), pretrains=("masked",)))))
    assert asked[0].text == "transformer instead of s4d, from scratch"
    assert asked[0].plus[0].init == "none"
    assert "transformer, masked pretraining instead of none" in [one.text for one in asked]
    assert not [one for one in asked if one.kind == "init" and one.plus[0].model == "transformer"]


TRUTH = {("s4d-lin", "none"): 0.8, ("random", "none"): 0.6, ("s4d-lin", "masked"): 0.9, ("random", "masked"): 0.85}


def test_effects_are_differences_and_differences_of_differences(tmp_path):
    results = collect(ABLATION, study_folder(tmp_path, ABLATION, lambda cell, _: TRUTH[cell.init, cell.pretrain]))
    found = {effect.text: effect.estimate for effect in effects(results)}
    expected = [0.6 - 0.8, 0.85 - 0.9, (0.85 - 0.9) - (0.6 - 0.8), 0.9 - 0.8, 0.85 - 0.6]
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-12)


def test_several_tasks_and_fractions_are_told_apart(tmp_path):
    study = Study(pretrains=("masked",), tasks=("mnist", "digits"), fractions=(1.0, 0.25))
    texts = [one.text for one in effects(collect(study, study_folder(tmp_path, study, lambda *_: 0.5)))]
    assert len(set(texts)) == 4
    assert texts[1].endswith(", mnist, 0.25 of the data")


def test_a_comparison_of_the_same_runs_in_several_places_is_one_effect(tmp_path):
    """From scratch, variants of the pretraining are the same runs."""
    variants = {"short": {"pretrain": {"epochs": 1}}, "long": {"pretrain": {"epochs": 2}}}
    study = Study(inits=("random",), pretrains=("masked",), fractions=(1.0,), variants=variants)
    found = effects(collect(study, study_folder(tmp_path, study, lambda cell, _: TRUTH[cell.init, cell.pretrain])))
    texts = [effect.text for effect in found]
    assert len(texts) == len(set(texts)) == 1 + 2 * 4
    assert texts.count("s4d, random instead of s4d-lin, from scratch") == 1
    assert "s4d, random instead of s4d-lin, after masked pretraining, short" in texts
    assert "s4d, s4d-lin, masked pretraining instead of none, long" in texts


# --- what may be said -----------------------------------------------------------------------------------------------


def _effect(low: float, high: float, **changes) -> Effect:
    values = {"model": "s4d", "task": "mnist", "fraction": 1.0, "kind": "init", "text": "random instead of s4d-lin"}
    values |= {"estimate": (low + high) / 2, "low": low, "high": high, "seeds": 5, "examples": 100}
    return Effect(**(values | {"available": True, "reason": ""} | changes))


def test_a_sentence_has_words_numbers_and_verdict():
    assert _effect(-0.134, -0.092).sentence == (
        "random instead of s4d-lin: -11.3 points [-13.4, -9.2]; lowers accuracy: the interval excludes zero"
    )


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.1), (0.0, 0.2), (-0.2, 0.0), (0.0, 0.0)])
def test_a_difference_whose_interval_covers_zero_is_never_real(low: float, high: float):
    effect = _effect(low, high)
    assert effect.verdict == "no difference shown: the interval covers zero"
    assert not effect.is_claim


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_make_no_claim(seeds: int):
    effect = _effect(0.5, 0.6, seeds=seeds)
    assert not effect.is_claim
    assert "no claim" in effect.verdict
    assert "a claim needs at least 3 seeds" in effect.verdict
    assert ("the interval covers test examples only" in effect.verdict) == (seeds == 1)


def test_numbers_never_show_a_negative_zero():
    assert _effect(-0.000001, 0.000001).numbers == "+0.0 points [+0.0, +0.0]"


def test_a_bound_beside_zero_shows_its_sign():
    assert _effect(0.0002, 0.02).numbers.endswith("[+0.02, +2.0]")


def test_what_failed_is_said_and_spoils_the_claim(tmp_path):
    def outcome(cell: Cell, seed: int) -> float | str:
        return "loss nan" if (cell.init, cell.pretrain, seed) == ("random", "none", 1) else 0.5 + 0.4 * (seed != 9)

    study = Study(inits=("random",), pretrains=("masked",), fractions=(1.0,), seeds=4)
    scratch, pretrained, *_ = effects(collect(study, study_folder(tmp_path, study, outcome)))
    assert (scratch.seeds, scratch.available, scratch.is_claim) == (3, True, False)
    assert scratch.reason == "s4d, random, from scratch: seed 1 failed (loss nan)"
    assert "seed 1 failed (loss nan)" in scratch.verdict
    assert (pretrained.seeds, pretrained.reason) == (4, "")


def test_an_effect_without_runs_is_listed_as_not_available(tmp_path):
    out = study_folder(tmp_path, ABLATION, lambda cell, _: None if cell.init == "random" else 0.9)
    listed = effects(collect(ABLATION, out))
    assert len(listed) == 5
    gap = listed[0]
    assert (gap.available, gap.estimate, gap.numbers) == (False, None, "")
    assert "s4d, random, from scratch: seeds 0, 1, 2 missing" in gap.sentence
    assert listed[3].available


def test_without_baselines_only_what_was_named_is_compared(tmp_path):
    alone = Study(inits=("random",), pretrains=("masked",), baseline=False)
    assert effects(collect(alone, study_folder(tmp_path / "alone", alone, lambda *_: 0.9))) == ()
    two = Study(inits=("random", "s4d-inv"), pretrains=("masked",), baseline=False)
    [effect] = effects(collect(two, study_folder(tmp_path / "two", two, lambda *_: 0.9)))
    assert effect.text == "s4d, s4d-inv instead of random, after masked pretraining"


def test_an_empty_study_has_scores_and_effects_without_numbers(tmp_path):
    results = collect(ABLATION, study_folder(tmp_path, ABLATION, lambda *_: None))
    assert [score.interval for score in scores(results)] == [None] * 4
    assert not any(effect.available for effect in effects(results))


# --- cells ----------------------------------------------------------------------------------------------------------


def test_a_seed_at_chance_is_visible_and_does_not_hide_in_a_median(tmp_path):
    out = study_folder(tmp_path, ABLATION, lambda _, seed: 0.1 if seed == 2 else 0.9)
    score = scores(collect(ABLATION, out))[0]
    assert score.at_chance == (2,)
    assert score.median == 0.9
    assert score.interval is not None
    assert score.interval.low < 0.4  # one of three seeds failed to learn: hardly anything is known
    assert "seed 2 is at chance (10.0%)" in score.sentence


def test_a_cell_that_failed_says_why(tmp_path):
    study = Study(inits=("random",), fractions=(1.0,))
    out = study_folder(tmp_path, study, lambda cell, _: "loss inf" if cell.init == "random" else 0.9)
    good, bad = scores(collect(study, out))
    assert good.sentence.startswith("s4d, s4d-lin, from scratch: 90.0% [")
    assert bad.sentence == "s4d, random, from scratch: not available: seed 0 failed (loss inf)"


def test_many_examples_and_cells_stay_quick_and_small():
    correct = _bernoulli(np.random.default_rng(0), 0.9, 40, 5, 10_000)
    assert resample_examples(correct, 400).shape == (400, 40, 5)


def test_weights_of_seeds_sum_to_one():
    for seeds in (1, 2, 3, 7):
        np.testing.assert_allclose(resampling._seed_weights(100, seeds, 0.95).sum(axis=1), 1)


def test_no_two_effects_of_a_grid_are_the_same():
    study = Study(models=("s4d", "transformer"), inits=("random", "s4d-inv"), pretrains=("masked",))
    asked = list(contrasts(study.cells()))
    assert all(one != other for one, other in itertools.combinations(asked, 2))
