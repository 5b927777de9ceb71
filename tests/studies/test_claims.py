from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_folders import ABLATION, study_folder

from ssm_priors.studies.bootstrap import holm
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import NONE, Claim
from ssm_priors.studies.results import collect
from ssm_priors.studies.statistics import TaskResults

GAIN = Claim(text="SPT helps", plus=({"pretrain": "masked"},), minus=({"pretrain": NONE},))
SHRINKS = Claim(
    text="the gap of the inits shrinks",
    plus=({"pretrain": NONE}, {"pretrain": "masked", "init": "random"}),
    minus=({"pretrain": NONE, "init": "random"}, {"pretrain": "masked"}),
)
LEVEL = {("s4d-lin", NONE): 0.6, ("s4d-lin", "masked"): 0.8, ("random", NONE): 0.3, ("random", "masked"): 0.75}


def answered(tmp_path, *claims, wobble=0.0, missing=(), seeds=3):
    """A study of four cells whose seeds lie `wobble` apart."""
    study = replace(ABLATION, claims=claims, seeds=seeds)

    def outcome(cell, seed):
        at = (cell.init, cell.pretrain)
        return None if (*at, seed) in missing else LEVEL[at] + wobble * (seed - 1) * (1 if at[1] == NONE else -1)

    return find(study, collect(study, study_folder(tmp_path / "study", study, outcome))).answers


def test_what_is_surely_so_is_supported_and_its_opposite_contradicted(tmp_path):
    opposite = Claim(text="SPT hurts", plus=GAIN.minus, minus=GAIN.plus)
    gain, shrinks, hurts = answered(tmp_path, GAIN, SHRINKS, opposite)
    assert [each.verdict for each in (gain, shrinks, hurts)] == ["supported", "supported", "contradicted"]
    assert gain.interval.estimate == pytest.approx(0.2)
    assert shrinks.interval.estimate == pytest.approx(0.25)
    assert gain.sentence.startswith("SPT helps: supported. +20.0 points [")


def test_what_seeds_disagree_about_is_undecided(tmp_path):
    [gain] = answered(tmp_path, GAIN, wobble=0.1)
    assert gain.verdict == "undecided"
    assert gain.interval.low < 0 < gain.interval.high
    assert gain.p_value > 0.05


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (replace(GAIN, above=10.0), "supported"),
        (replace(GAIN, above=30.0), "contradicted"),
        (replace(GAIN, above=20.0), "undecided"),
        (replace(GAIN, within=30.0), "supported"),
        (replace(GAIN, within=10.0), "contradicted"),
    ],
)
def test_borders_are_in_points(tmp_path, claim, verdict):
    [answer] = answered(tmp_path, claim)
    assert answer.verdict == verdict


def test_a_missing_run_or_too_few_seeds_decide_nothing(tmp_path):
    [missing] = answered(tmp_path / "a", GAIN, missing={("s4d-lin", "masked", 2)})
    assert missing.verdict == "undecided"
    assert "seed 2 missing" in missing.why
    [few] = answered(tmp_path / "b", GAIN, seeds=2)
    assert (few.verdict, few.p_value) == ("undecided", 1.0)
    assert "needs at least 3" in few.why
    nothing = {("s4d-lin", "masked", seed) for seed in range(3)}
    [none] = answered(tmp_path / "c", GAIN, missing=nothing)
    assert (none.verdict, none.interval, none.numbers) == ("undecided", None, "")


def test_more_claims_ask_for_more(tmp_path):
    """A claim that stands alone falls among others that show nothing."""
    wobble = 0.028
    [alone] = answered(tmp_path / "a", GAIN, wobble=wobble)
    unclear = [replace(GAIN, text=f"unclear {k}", above=20.0) for k in range(30)]
    among = answered(tmp_path / "b", GAIN, *unclear, wobble=wobble)[0]
    assert alone.p_value == among.p_value < 0.05
    assert alone.verdict == "supported"
    assert among.adjusted == pytest.approx(min(1, 31 * among.p_value))
    assert among.verdict == "undecided"


def test_a_p_value_is_where_the_interval_just_touches(tmp_path):
    folder = study_folder(
        tmp_path, ABLATION, lambda cell, seed: LEVEL[cell.init, cell.pretrain] + 0.02 * seed * (cell.pretrain == NONE)
    )
    results = TaskResults(collect(ABLATION, folder), "mnist")
    lin = [cell for cell in results.cells if cell.init == "s4d-lin"]
    compared = results.compare(lin[1:], lin[:1])
    for null in (0.0, 0.1, 0.15, 0.17):
        p = compared.p_value(null)
        inside, outside = compared.interval(1 - p / 1.05), compared.interval(1 - min(p * 1.05, 0.999))
        assert inside.low <= null <= inside.high
        assert p > 0.99 or not outside.low <= null <= outside.high


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_raises_keeps_the_order_and_stops_at_one(p_values):
    adjusted = np.array(holm(p_values))
    assert (adjusted >= np.array(p_values)).all()
    assert adjusted.max() <= 1
    assert (adjusted <= np.minimum(np.array(p_values) * len(p_values), 1) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(p_values, kind="stable")]) >= 0).all()
