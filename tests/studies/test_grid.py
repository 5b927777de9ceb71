from __future__ import annotations

import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.studies.grid import NONE, Cell, Study

RATIOS = {"30%": {"pretrain": {"objective": {"ratio": 0.3}}}, "50%": {"pretrain": {"objective": {"ratio": 0.5}}}}


def study(**changes):
    return Study.from_dict({"pretrains": ["masked"], **changes})


def test_a_variant_is_an_axis_and_changes_what_it_says():
    found = study(variants=RATIOS)
    masked = {cell.variant: found.config(cell, 0) for cell in found.cells() if cell.pretrain == "masked"}
    assert {name: config.pretrain.objective.options.ratio for name, config in masked.items()} == {
        "30%": 0.3,
        "50%": 0.5,
    }


def test_what_a_variant_cannot_change_is_one_run_in_all_its_cells():
    found = study(variants=RATIOS)
    scratch = [found.config(cell, 0) for cell in found.cells() if cell.pretrain == NONE]
    assert len(scratch) == 2
    assert scratch[0].fingerprint == scratch[1].fingerprint
    assert len({config.fingerprint for *_, config in found.runs()}) == 3


def test_a_budget_names_a_place_and_its_share_means_nothing_from_scratch():
    shares = {name: {"budget": {"pretrain_share": share}} for name, share in (("a quarter", 0.25), ("half", 0.5))}
    found = study(budgets={"small": {"steps": 100}, "large": {"steps": 400}}, variants=shares)
    assert {cell.budget for cell in found.cells()} == {"small", "large"}
    configs = {cell: found.config(cell, 0) for cell in found.cells()}
    at = Cell("s4d", "s4d-lin", "masked", "mnist", 0.15, "large", "a quarter")
    assert (configs[at].budget.steps, configs[at].budget.pretrain_share) == (400, 0.25)
    scratch = {configs[cell].fingerprint for cell in configs if cell.pretrain == NONE}
    assert len(scratch) == 2


@pytest.mark.parametrize("budget", [{}, {"steps": 10, "flops": 1e9}, {"steps": 0}, {"pretrain_share": 0.5}])
def test_a_budget_is_steps_or_flops(budget):
    with pytest.raises(BadConfig, match="budget"):
        study(budgets={"any": budget})


def test_cells_that_are_excluded_are_not_there():
    found = study(models=["s4d", "dss"], exclude=[{"model": "dss", "pretrain": "masked"}])
    assert {(cell.model, cell.pretrain) for cell in found.cells()} == {("s4d", NONE), ("s4d", "masked"), ("dss", NONE)}


@pytest.mark.parametrize(
    ("exclude", "says"),
    [([{"modle": "s4d"}], "Did you mean model"), ([{"task": "mnist"}], "no cell is left")],
)
def test_what_cannot_be_excluded_is_refused(exclude, says):
    with pytest.raises(BadConfig, match=says):
        study(exclude=exclude)


CLAIM = {
    "text": "SPT closes the gap",
    "plus": [{"pretrain": "masked", "init": "random"}],
    "minus": [{"pretrain": "masked"}],
    "within": 2.0,
}


def test_a_claim_names_cells_by_what_the_study_varies():
    found = study(inits=["random"], claims=[CLAIM])
    [(plus, minus)] = found.sides(found.claims[0])
    assert [(cell.init, cell.pretrain) for cell in plus + minus] == [("random", "masked"), ("s4d-lin", "masked")]


def test_a_claim_without_a_task_is_made_for_every_task():
    found = study(inits=["random"], claims=[CLAIM], tasks=["mnist", "pmnist"])
    assert [plus[0].task for plus, _ in found.sides(found.claims[0])] == ["mnist", "pmnist"]


@pytest.mark.parametrize(
    ("plus", "says"),
    [
        ([{"init": "random"}], "names 2 cells"),
        ([{"pretrain": "causal"}], "names no cell"),
        ([{"objective": "masked"}], "no axis 'objective'"),
    ],
)
def test_a_claim_about_no_cell_or_several_is_refused(plus, says):
    with pytest.raises(BadConfig, match=says):
        study(inits=["random"], claims=[{"text": "x", "plus": plus}])


def test_a_claim_may_not_hold_tasks_against_each_other():
    sides = {"plus": [{"task": "mnist", "pretrain": "masked"}], "minus": [{"task": "pmnist", "pretrain": "masked"}]}
    with pytest.raises(BadConfig, match="one was expected"):
        study(tasks=["mnist", "pmnist"], claims=[{"text": "x", **sides}])


def test_a_study_with_everything_survives_its_file():
    found = study(
        inits=["random"],
        claims=[{"text": "x", "plus": [{"pretrain": "masked", "variant": "30%"}], "above": 1.5}],
        budgets={"small": {"steps": 100}},
        variants=RATIOS,
        exclude=[{"init": "random", "variant": "30%", "pretrain": NONE}],
    )
    assert Study.from_toml(found.to_toml()) == found
