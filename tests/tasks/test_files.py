"""`files:PATH`: splits, scale, what is current, names, commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import own_files
import pytest
from own_files import examples, load, manifest, own, rows
from task_runs import prepared, ssmp, trains

from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.rows import assemble
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.task import SPLITS, Task


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


# -- splits


def test_splits_are_drawn_in_proportion_and_belong_to_the_data_alone(tmp_path):
    data = own(100)
    path = own_files.wide(tmp_path, data)
    task = load(path)
    assert [len(getattr(task, split)) for split in SPLITS] == [70, 15, 15]
    for split in SPLITS:
        counts = getattr(task, split).labels.bincount(minlength=3)
        assert (counts - len(getattr(task, split)) / 3).abs().max() < 2
    (tmp_path / "elsewhere").mkdir()
    assert load(own_files.wide(tmp_path / "elsewhere", data)).sha256 == task.sha256
    assert load(path, split_seed=1).sha256 != task.sha256
    assert [len(getattr(load(path, validation=0.3, test=0.2), split)) for split in SPLITS] == [50, 30, 20]


@pytest.mark.parametrize("has_validation", [True, False])
def test_splits_that_are_given_are_kept(has_validation, tmp_path):
    data = own(60, shortest=4, longest=4)
    names = ["train", "val" if has_validation else "Train", "TEST"]
    lines = [
        [*series[:, 0].tolist(), label, names[row % 3]]
        for row, (series, label) in enumerate(zip(data.series, data.labels, strict=True))
    ]
    path = rows(tmp_path / "given.csv", [["a", "b", "c", "d", "label", "split"], *lines])
    task = load(path)
    sizes = [20, 20, 20] if has_validation else [34, 6, 20]
    assert [len(getattr(task, split)) for split in SPLITS] == sizes
    scale = manifest(path)["notes"]["scaled by the training split"]
    for (found, _), expected in zip(examples(task, "test"), data.series[2::3], strict=True):
        np.testing.assert_allclose(found * scale["deviation"] + scale["mean"], expected, atol=1e-6)
    told = manifest(path)["notes"]["splits"]
    assert "as given" in told
    assert ("drawn" in told) != has_validation
    folder = tmp_path / "folder"
    for row, series in enumerate(data.series):
        place = folder / ["train", "valid", "test"][row % 3] / data.labels[row]
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{row:03}.npy", series)
    assert [len(getattr(load(folder), split)) for split in SPLITS] == [20, 20, 20]


def test_only_the_training_split_decides_the_scale(tmp_path):
    data = own(60, features=2, shortest=4, longest=8)
    splits = [["train", "validation", "test"][row % 3] for row in range(60)]

    def write(factor: float) -> Task:
        lines = [
            [json.dumps((series * (1 if split == "train" else factor)).tolist()), label, split]
            for series, label, split in zip(data.series, data.labels, splits, strict=True)
        ]
        return load(rows(tmp_path / "scaled.csv", [["x", "label", "split"], *lines]))

    plain, loud = write(1), write(1000)
    steps = np.concatenate([series for series, _ in examples(plain, "train")])
    np.testing.assert_allclose(steps.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(steps.std(axis=0), 1, atol=1e-6)
    for one, other in zip(examples(plain, "train"), examples(loud, "train"), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    assert max(np.abs(series).max() for series, _ in examples(loud, "test")) > 100


def test_a_feature_that_never_changes_is_only_moved(tmp_path):
    data = own(30, features=2)
    for series in data.series:
        series[:, 1] = 5
    task = load(own_files.nested(tmp_path, data))
    assert all((series[:, 1] == 0).all() for series, _ in examples(task, "train"))


def test_a_smaller_task_says_what_was_cut(tmp_path):
    path = own_files.wide(tmp_path, own(100, shortest=4, longest=12))
    task = load(path, max_length=6, examples=30)
    assert task.spec.length == 6
    assert len(task.train) == 30
    assert task.train.labels.bincount().tolist() == [10, 10, 10]
    notes = manifest(path, max_length=6, examples=30)["notes"]
    assert "of 100 series" in notes["cut"]
    assert "to 6 steps; the longest had 12" in notes["cut"]
    ends = [load(path, max_length=6, cut=cut) for cut in ("end", "start")]
    assert ends[0].sha256 != ends[1].sha256
    with pytest.raises(BadData, match=r"wide.csv, row \d+: \d+ steps; at most max_length = 6"):
        load(path, max_length=6, cut="refuse")


def test_classes_are_ordered_as_numbers_where_they_are_numbers(tmp_path):
    lines = [[label, row, row + 1] for row, label in enumerate([10, 9, 1] * 10)]
    path = rows(tmp_path / "order.csv", [["label", "a", "b"], *lines])
    load(path)
    assert manifest(path)["notes"]["classes"] == ["1", "9", "10"]


# -- what is current


def test_an_edited_file_is_noticed_and_prepared_anew(tmp_path):
    path = own_files.wide(tmp_path, own(60, seed=0))
    before = load(path)
    folder = store.folder_of(f"files:{path}", Options())
    written = (folder / "manifest.json").stat().st_mtime_ns
    assert load(path).sha256 == before.sha256
    assert (folder / "manifest.json").stat().st_mtime_ns == written
    own_files.wide(tmp_path, own(60, seed=1))
    assert not store.is_here(f"files:{path}", Options())
    with pytest.raises(NotReady, match="ssmp data prepare"):
        TASKS[f"files:{path}"].spec(Options())
    assert load(path).sha256 != before.sha256
    assert TASKS[f"files:{path}"].spec(Options()) == load(path).spec
    assert len(list(store.data_dir().glob("files*"))) == 1


def test_an_edit_that_keeps_size_and_time_is_noticed_too(tmp_path):
    path = own_files.wide(tmp_path, own())
    load(path)
    found = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"cat", b"cow"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_size == found.st_size
    load(path)
    assert manifest(path)["notes"]["classes"] == ["cow", "dog", "eel"]


def test_a_file_in_a_folder_counts_too(tmp_path):
    folder = own_files.folder_of_arrays(tmp_path, own())
    before = load(folder).sha256
    np.save(folder / "cat" / "000.npy", np.ones(7))
    assert load(folder).sha256 != before


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = own_files.wide(tmp_path, own())
    real = assemble._gather

    def meanwhile(*arguments):
        found = real(*arguments)
        own_files.wide(tmp_path, own(seed=3))
        return found

    monkeypatch.setattr(assemble, "_gather", meanwhile)
    with pytest.raises(BadData, match="changed while they were read"):
        load(path)
    assert not store.is_here(f"files:{path}", Options())


# -- names


def test_a_name_means_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadConfig, match=f"files:{tmp_path}/my data.csv"):
        TASKS["files:my data.csv"]
    assert TASKS.spelled("files:my data.csv") == f"files:{tmp_path}/my data.csv"
    assert TASKS.spelled("files:sub/../a.csv") == f"files:{tmp_path}/a.csv"
    assert TASKS[f"files:{tmp_path}/a.csv"] is TASKS[f"files:{tmp_path}/a.csv"]
    config = {"task": {"name": f"files:{tmp_path}/a.csv"}, "model": {"mixer": {"name": "s4d"}}, "finetune": {}}
    made = RunConfig.from_dict(config)
    assert RunConfig.from_toml(made.to_toml()) == made


@pytest.mark.parametrize("name", ["a b:c.csv", "é ü.csv", "x" * 200 + ".csv"])
def test_colons_spaces_and_long_names_are_safe_where_they_become_folders(name, tmp_path):
    path = own_files.wide(tmp_path, own(), name)
    load(path)
    [folder] = store.data_dir().glob("files*")
    assert folder.name.isascii()
    assert not set(folder.name) & set(' :/\\"')
    assert len(folder.name) < 100


def test_options_survive_the_record_of_a_run(tmp_path):
    task = {"name": f"files:{tmp_path}/a.csv", "series": ["a", "b*"], "label": "c"}
    made = RunConfig.from_dict({"task": task, "model": {"mixer": {"name": "s4d"}}, "finetune": {}})
    assert made.task.options.columns == ("a", "b*")
    assert RunConfig.from_toml(made.to_toml()).fingerprint == made.fingerprint


# -- the commands


def test_it_is_prepared_in_a_process_of_its_own(tmp_path):
    path = own_files.wide(tmp_path, own())
    document = prepared(f"files:{path}")
    assert document["splits"]["train"]["examples"] == 42
    assert document["notes"]["classes"] == ["cat", "dog", "eel"]
    assert ssmp("data", "verify", f"files:{path}").exit_code == 0


@pytest.mark.parametrize("write", [own_files.wide, own_files.folder_of_arrays])
def test_it_trains_from_scratch_and_after_pretraining(write, tmp_path):
    trains(tmp_path / "runs", f"files:{write(tmp_path, own(30))}", 20)


def test_does_pretraining_help_on_my_data_takes_one_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_files.wide(tmp_path, own(60), "my data.csv")
    small = ["model.d_model=4", "model.layers=1", "model.mixer.d_state=4", "pretrain.epochs=1", "finetune.epochs=1"]
    changes = [part for one in small for part in ("--set", one)]
    said = ssmp(
        "ablate", "--task", "files:my data.csv", "--pretrain", "masked", *changes, "--jobs", "1", "--out", "study"
    )
    assert said.exit_code == 0, said.stderr
    page = (tmp_path / "study" / "report.html").read_text()
    assert f"files:{tmp_path}/my data.csv" in page
    assert "Your own series or texts" in page
    [*_, row] = (tmp_path / "study" / "results.csv").read_text().splitlines()
    assert f"files:{tmp_path}/my data.csv" in row
    assert ssmp("report", "study").exit_code == 0
    (tmp_path / "my data.csv").unlink()
    assert ssmp("report", "study").exit_code == 0  # results outlive the data


def test_lists_show_the_family_and_what_was_prepared(tmp_path):
    listed = {row["name"]: row for row in json.loads(ssmp("list", "tasks", "--json").stdout)}
    assert listed["files:PATH"]["ready"] == "yes: any file or folder of yours"
    path = own_files.wide(tmp_path, own())
    load(path, label="label", split_seed=3)
    listed = {row["name"]: row for row in json.loads(ssmp("data", "list", "--json").stdout)}
    assert listed["files:PATH"]["size"] is None
    assert (listed[f"files:{path}"]["options"], listed[f"files:{path}"]["length"]) == ("split_seed=3", 12)
    path.unlink()
    listed = {row["name"]: row for row in json.loads(ssmp("data", "list", "--json").stdout)}
    assert "no such file" in listed[f"files:{path}"]["ready"] or listed[f"files:{path}"]["size"] is None
