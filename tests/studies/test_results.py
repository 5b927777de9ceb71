from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from study_folders import ABLATION, PROVENANCE, study_folder, write_done

from ssm_priors.errors import BadData
from ssm_priors.studies import results
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.results import Status, at, cells, collect, read, write

MIXED = Study(models=("s4d", "transformer"), inits=("random",), pretrains=("masked",), seeds=2)


def _accuracy(cell: Cell, seed: int) -> float:
    return 0.5 + 0.1 * seed + 0.2 * (cell.pretrain == "masked") + 0.05 * (cell.init == "random")


def _folder(out: Path, study: Study, cell: Cell, seed: int) -> Path:
    return out / "runs" / study.config(cell, seed).fingerprint


def test_every_run_lies_at_its_coordinates(tmp_path):
    dataset = collect(MIXED, study_folder(tmp_path, MIXED, _accuracy))
    assert set(dataset.score.dims) == {*results.AXES, "seed", "example"}
    for cell in MIXED.cells():
        found = at(dataset, cell)
        np.testing.assert_allclose(found.test_metric, [_accuracy(cell, 0), _accuracy(cell, 1)])
        np.testing.assert_allclose(found.score.mean("example"), found.test_metric)
        np.testing.assert_array_equal(found.status, Status.DONE)
        assert np.isnan(found.pretrain_seconds).all() == (cell.pretrain == "none")
    assert float(dataset.parameters.max()) == 21
    assert float(dataset.chance.sel(task="mnist")) == 0.1


def test_a_transformer_has_no_init_and_the_rest_of_the_grid_is_no_cell(tmp_path):
    dataset = collect(MIXED, study_folder(tmp_path, MIXED, _accuracy))
    assert dataset.init.values.tolist() == ["s4d-lin", "random", "none"]
    nowhere = dataset.sel(model="transformer", init="random")
    assert (nowhere.status == Status.NOT_A_CELL).all()
    assert nowhere.score.isnull().all()
    assert cells(dataset) == MIXED.cells()


def test_units_and_flags_stand_in_the_attributes(tmp_path):
    dataset = collect(ABLATION, study_folder(tmp_path, ABLATION, _accuracy))
    assert dataset.finetune_seconds.attrs["units"] == "s"
    assert dataset.status.attrs["flag_meanings"].split()[Status.FAILED] == "failed"
    assert json.loads(dataset.attrs["provenance"]) == {"mnist": [PROVENANCE]}
    assert Study.from_toml(dataset.attrs["study"]) == ABLATION


def test_failed_and_missing_runs_are_kept_apart_with_their_reasons(tmp_path):
    study = Study(inits=("random",), seeds=3)
    outcomes = {0: 0.9, 1: "learning rate too large: loss inf", 2: None}
    dataset = collect(study, study_folder(tmp_path, study, lambda _, seed: outcomes[seed]))
    found = at(dataset, study.cells()[1])
    assert found.status.values.tolist() == [Status.DONE, Status.FAILED, Status.MISSING]
    assert found.reason.values.tolist() == ["", "learning rate too large: loss inf", ""]
    assert np.isnan(found.test_metric.values).tolist() == [False, True, True]
    assert np.isnan(found.score.values[1:]).all()


def test_a_run_that_succeeded_after_a_failure_is_done(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: "no memory")
    write_done(_folder(out, study, study.cells()[0], 0), study.config(study.cells()[0], 0), 0.7, 50)
    assert int(collect(study, out).status.item()) == Status.DONE


def test_a_task_with_fewer_examples_is_filled_up_with_none(tmp_path):
    study = Study(tasks=("mnist", "digits"))
    out = study_folder(tmp_path, study, lambda *_: None)
    for cell, size in zip(study.cells(), (30, 20), strict=True):
        folder = _folder(out, study, cell, 0)
        folder.mkdir(parents=True)
        write_done(folder, study.config(cell, 0), 0.5, size)
    dataset = collect(study, out)
    assert np.isnan(dataset.score.sel(task="digits").values.ravel()[20:]).all()
    assert dataset.score.sel(task="mnist").isin([0, 1]).all()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "ckpt.pt").write_bytes(b"torn"), "damaged"),
        (lambda folder: (folder / "test.npz").unlink(), "no predictions"),
        (lambda folder: (folder / "test.npz").write_bytes(b""), "no predictions"),
        (lambda folder: np.savez(folder / "test.npz", prediction=np.zeros(9), target=np.zeros(8)), "predictions for"),
        (lambda folder: np.savez(folder / "test.npz", prediction=np.ones(8), target=np.ones(8)), "disagree"),
    ],
)
def test_a_damaged_run_counts_as_failed(tmp_path, harm, words: str):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    harm(_folder(out, study, study.cells()[0], 0))
    dataset = collect(study, out)
    assert dataset.status.item() == Status.FAILED
    assert words in dataset.reason.item()
    assert str(tmp_path) not in dataset.reason.item()


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    study = Study(seeds=2)
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    first, second = (_folder(out, study, study.cells()[0], seed) for seed in (0, 1))
    (first / "ckpt.pt").write_bytes((second / "ckpt.pt").read_bytes())
    dataset = collect(study, out)
    assert dataset.status.values.ravel().tolist() == [Status.FAILED, Status.DONE]
    assert "of another run" in dataset.reason.values.ravel()[0]


def test_an_accuracy_of_zero_is_a_result(tmp_path):
    study = Study()
    assert collect(study, study_folder(tmp_path, study, lambda *_: 0.0)).test_metric.item() == 0


def test_runs_tested_on_different_examples_are_not_compared(tmp_path):
    study = Study(seeds=2)
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    write_done(_folder(out, study, study.cells()[0], 1), study.config(study.cells()[0], 1), 0.5, 100)
    with pytest.raises(BadData, match="different examples"):
        collect(study, out)


def test_results_read_back_the_same_in_a_fresh_process(tmp_path):
    study = Study(models=("s4d", "transformer"), inits=("random",), fractions=(1.0, 0.1), seeds=2)
    dataset = collect(study, study_folder(tmp_path, study, lambda cell, seed: "b\u00f6se" if seed else 0.5))
    place = write(dataset, tmp_path)
    xr.testing.assert_identical(read(tmp_path), dataset)
    code = (
        "import sys, xarray; data = xarray.open_zarr(sys.argv[1]).load();"
        "print(data.score.dtype, data.status.dtype, data.sizes['seed'], data.score.sum().item())"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(place)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert printed == ["float64", "int8", "2", str(float(dataset.score.sum()))]


def test_writing_again_replaces_and_leaves_nothing_beside(tmp_path):
    out = study_folder(tmp_path, ABLATION, _accuracy)
    dataset = collect(ABLATION, out)
    write(dataset, out)
    write(dataset.isel(seed=[0]), out)
    assert read(out).sizes["seed"] == 1
    assert sorted(path.name for path in out.iterdir()) == ["results.zarr", "runs", "study.toml"]


def test_a_write_that_breaks_off_leaves_the_old_results(tmp_path, monkeypatch):
    out = study_folder(tmp_path, ABLATION, _accuracy)
    dataset = collect(ABLATION, out)
    write(dataset, out)
    monkeypatch.setattr(xr.Dataset, "to_zarr", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(dataset, out)
    xr.testing.assert_identical(read(out), dataset)


def test_results_that_are_not_there_say_so(tmp_path):
    with pytest.raises(BadData, match="no such results"):
        read(tmp_path)


def test_the_table_has_a_row_a_run_and_words_for_status(tmp_path):
    frame = results.table(collect(MIXED, study_folder(tmp_path, MIXED, _accuracy)))
    assert len(frame) == len(MIXED.runs())
    assert set(frame.status) == {"done"}
    assert frame.best_step.tolist() == [30] * len(frame)


def test_learning_curves_of_all_runs_without_values_that_are_not_finite(tmp_path):
    out = study_folder(tmp_path, ABLATION, lambda cell, seed: "diverged" if seed else 0.9)
    path = next((out / "runs").iterdir()) / "metrics.csv"
    path.write_text(path.read_text() + "finetune,41,4,inf,0.001,nan,,\n")
    frame = results.curves(collect(ABLATION, out), out)
    assert len(frame) == 12 * 40 + 6 * 40 + 1
    assert not np.isinf(frame.loss).any()
    assert frame.loss.isna().sum() == 1
