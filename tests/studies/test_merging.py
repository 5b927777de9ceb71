"""Several study folders become one, and nothing in them changes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import xarray as xr
from study_folders import study_folder

from ssm_priors.errors import BadConfig
from ssm_priors.studies import ledger
from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import State
from ssm_priors.studies.merging import unite
from ssm_priors.studies.results import Status, collect
from ssm_priors.studies.runner import plan

BASE = Study(inits=("random",), fractions=(0.5,), seeds=2)


def accuracy(cell, seed):
    return 0.5 + 0.1 * seed + 0.05 * (cell.init == "random") + 0.1 * cell.fraction


def folders(tmp_path, *studies, outcome=accuracy):
    return {study_folder(tmp_path / f"{at}", study, outcome): study for at, study in enumerate(studies)}


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_other_values_and_seeds_make_the_results_of_the_whole_study(tmp_path):
    parts = folders(tmp_path, BASE, replace(BASE, fractions=(1.0,), seeds=3), replace(BASE, inits=(), seeds=3))
    before = {folder: snapshot(folder) for folder in parts}
    whole, notes = unite(parts, tmp_path / "out")
    assert (whole.fractions, whole.seeds, whole.inits) == ((0.5, 1.0), 3, ("random",))
    found = collect(whole, tmp_path / "out")
    assert notes == [f"1 of 12 runs are not done; to do them: ssmp study resume {tmp_path / 'out'}"]
    assert (found.status == Status.DONE).sum() == 11
    direct = collect(whole, study_folder(tmp_path / "direct", whole, accuracy))
    lacking = {"init": "random", "fraction": 0.5, "seed": 2}
    xr.testing.assert_identical(found.sel(fraction=1.0).drop_attrs(), direct.sel(fraction=1.0).drop_attrs())
    assert found.status.sel(lacking).item() == Status.MISSING
    assert {folder: snapshot(folder) for folder in parts} == before
    states = [entry.state for entry in ledger.read(tmp_path / "out").values()]
    assert sorted(states) == [State.DONE] * 11 + [State.PLANNED]


def test_the_same_merge_again_changes_nothing(tmp_path):
    parts = folders(tmp_path, BASE, replace(BASE, seeds=3))
    unite(parts, tmp_path / "out")
    before = snapshot(tmp_path / "out" / "runs")
    assert unite(parts, tmp_path / "out")[1] == []
    assert snapshot(tmp_path / "out" / "runs") == before


def test_one_who_did_not_name_a_fraction_meant_the_presets(tmp_path):
    parts = folders(tmp_path, replace(BASE, fractions=()), BASE)
    assert unite(parts, tmp_path / "out")[0].fractions == (0.15, 0.5)


def test_a_study_without_baselines_takes_them_from_the_other(tmp_path):
    parts = folders(tmp_path, replace(BASE, baseline=False), replace(BASE, inits=(), baseline=False))
    whole, notes = unite(parts, tmp_path / "out")
    assert whole.baseline
    assert notes == []


@pytest.mark.parametrize("change", [{"changes": {"finetune": {"epochs": 3}}}, {"preset": "small", "settings": {}}])
def test_other_settings_are_refused_and_nothing_is_written(tmp_path, change):
    parts = folders(tmp_path, BASE, replace(BASE, **change))
    with pytest.raises(BadConfig, match="other settings"):
        unite(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_study_is_not_merged(tmp_path):
    with pytest.raises(BadConfig, match="two or more"):
        unite(folders(tmp_path, BASE), tmp_path / "out")


def test_a_folder_of_another_study_is_refused(tmp_path):
    parts = folders(tmp_path, BASE, replace(BASE, seeds=3))
    out = study_folder(tmp_path / "out", replace(BASE, seeds=1), accuracy)
    with pytest.raises(BadConfig, match="holds another study"):
        unite(parts, out)


def test_a_damaged_run_is_passed_over_and_a_begun_one_can_be_gone_on_with(tmp_path):
    parts = folders(tmp_path, BASE, replace(BASE, seeds=3))
    first, second = parts
    [damaged, begun, *_] = plan(BASE, first)
    (damaged.folder / "test.npz").write_bytes(b"torn")
    for folder in parts:
        for name in ("ckpt.pt", "test.npz"):
            (folder / "runs" / begun.name / name).unlink()
        (folder / "runs" / begun.name / ".lock").touch()
    _, [note] = unite(parts, tmp_path / "out")
    assert note.startswith("1 of 6 runs are not done")
    taken = tmp_path / "out" / "runs" / damaged.name / "ckpt.pt"
    assert os.path.samefile(taken, second / "runs" / damaged.name / "ckpt.pt")
    copied = tmp_path / "out" / "runs" / begun.name
    assert {path.name for path in copied.iterdir()} == {"run.toml", "metrics.csv"}
    assert not os.path.samefile(copied / "metrics.csv", first / "runs" / begun.name / "metrics.csv")


def test_two_results_for_one_run_are_told(tmp_path):
    from ssm_priors.checkpoints.checkpoint import Checkpoint

    parts = folders(tmp_path, BASE, BASE)
    run = plan(BASE, list(parts)[1])[0]
    checkpoint = Checkpoint.read(run.folder / "ckpt.pt")
    replace(checkpoint, tensors={"weight": checkpoint.tensors["weight"] + 1}).write(run.folder / "ckpt.pt")
    _, notes = unite(parts, tmp_path / "out")
    assert len(notes) == 1
    assert "different weights; the first are taken" in notes[0]
