"""ListOps as a task: generated, and from files as the benchmark's authors released them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from task_runs import prepared, refused, ssmp, trains

from ssm_priors.errors import BadConfig, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.crew import crew
from ssm_priors.tasks.generators import listops
from ssm_priors.tasks.task import SPLITS

SHORT = Path(__file__).parents[1] / "data" / "listops_short.tsv"
ListOps = TASKS["listops"]
TINY = ListOps.Config(examples=40, max_length=40, max_depth=5, max_args=4)
CROWDED = ListOps.Config(examples=150, held_out=75, max_length=8, max_depth=2, max_args=4)
ROWS = {"basic_train.tsv": slice(0, 20), "basic_val.tsv": slice(20, 30), "basic_test.tsv": slice(30, 40)}
OF_THE_FILES = ["--set", "examples=20", "--set", "held_out=10"]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def release(tmp_path) -> Path:
    header, *rows = SHORT.read_text().splitlines()
    folder = tmp_path / "release" / "listops-1000"
    folder.mkdir(parents=True)
    for name, part in ROWS.items():
        (folder / name).write_text("\n".join([header, *rows[part]]) + "\n")
    return folder


def lines(split) -> list[bytes]:
    batch = split.take(torch.arange(len(split)))
    return [bytes(ids[:length].tolist()) for ids, length in zip(batch.inputs, batch.lengths, strict=True)]


# -- generated


def test_the_defaults_are_the_benchmarks():
    spec = ListOps.spec(ListOps.Config())
    assert (spec.length, spec.classes, spec.vocabulary) == (1999, 10, 16)
    assert ListOps.Config().examples == 96_000


def test_rows_evaluate_to_their_answers_and_none_occurs_twice():
    task = ListOps.load(CROWDED)
    assert [len(getattr(task, split)) for split in SPLITS] == [150, 75, 75]
    every = [line for split in SPLITS for line in lines(getattr(task, split))]
    assert len(set(every)) == 300
    for split in SPLITS:
        part = getattr(task, split)
        answers = [listops.evaluate(np.frombuffer(line, np.uint8)) for line in lines(part)]
        assert answers == part.labels.tolist()
    drawn = listops.Options(train=150, validation=75, test=75, min_length=2, max_length=8, max_depth=2, max_args=4)
    alone = [listops.digests(listops.rows(drawn, split, 0, getattr(drawn, split))) for split in SPLITS]
    assert len(np.unique(np.concatenate(alone))) < 300  # so some rows had to be drawn again


def test_it_does_not_matter_how_many_processes_draw(tmp_path, monkeypatch):
    monkeypatch.setattr("ssm_priors.tasks.listops.TOGETHER", 10)
    alone = ListOps.load(TINY).sha256
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "other"))
    with crew(2):
        assert ListOps.load(TINY).sha256 == alone


def test_a_small_version_through_the_command_trains(tmp_path):
    small = ["examples=40", "max_length=40", "max_depth=5", "max_args=4"]
    found = prepared("listops", *(part for one in small for part in ("--set", one)))
    assert {split: counts["examples"] for split, counts in found["splits"].items()} == {
        "train": 40,
        "validation": 20,
        "test": 20,
    }
    assert all(10 < counts["shortest"] <= counts["longest"] < 40 for counts in found["splits"].values())
    assert found["folder"] == str(store.folder_of("listops", TINY))
    sizes = ["--examples", "40", "--max-length", "40", "--set", "task.max_depth=5", "--set", "task.max_args=4"]
    trains(tmp_path, "listops", 40, *sizes)
    assert len([entry for entry in store.data_dir().iterdir() if entry.is_dir()]) == 1  # the same were used


def test_nothing_is_left_beside_the_data():
    ListOps.load(TINY)
    name = store.folder_of("listops", TINY).name
    assert sorted(entry.name for entry in store.data_dir().iterdir()) == [f".{name}.lock", name]


def test_lengths_that_leave_no_tree_are_refused():
    with pytest.raises(BadConfig, match="different rows lie between 500 and 2000"):
        ListOps.load(ListOps.Config(max_depth=2))


# -- official


def test_official_rows_are_those_of_the_files_in_their_order(release):
    found = prepared("listops", "--source", release.parent, *OF_THE_FILES)
    assert found["notes"] == {}
    task = ListOps.load(ListOps.Config(data="official", examples=20, held_out=10))
    for split, name in zip(SPLITS, ROWS, strict=True):
        expected = list(listops.read_tsv(release / name))
        assert lines(getattr(task, split)) == [tokens.tobytes() for tokens, _ in expected]
        assert getattr(task, split).labels.tolist() == [answer for _, answer in expected]


def test_official_rows_are_no_generated_ones(release, tmp_path):
    said = ssmp("data", "prepare", "listops", "--source", release, *OF_THE_FILES)
    assert said.exit_code == 0
    assert "--set task.data=official" in said.stdout
    assert not store.is_here("listops", ListOps.Config(examples=20, held_out=10))
    assert ssmp("data", "verify", "listops", "--set", "data=official", *OF_THE_FILES).exit_code == 0
    same = ["--examples", "20", "--set", "task.held_out=10", "--set", "task.data=official"]
    trains(tmp_path, "listops", 20, *same)


def test_fewer_rows_may_be_asked_for_and_the_rest_is_told(release):
    said = ssmp("data", "prepare", "listops", "--source", release, "--set", "examples=8", "--set", "held_out=10")
    assert "basic_train.tsv: the first 8 of 20 rows" in said.stdout
    assert len(ListOps.load(ListOps.Config(data="official", examples=8, held_out=10)).train) == 8


def test_official_files_that_are_not_here_are_named_with_the_command():
    with pytest.raises(NotReady, match=r"listops-1000.*prepare listops --source PATH.*--set data=official"):
        ListOps.load(ListOps.Config(data="official"))
    said = ssmp("train", "--task", "listops", "--set", "task.data=official")
    assert said.exit_code == 2
    assert "ssmp data prepare listops --source PATH" in said.stderr


def edit(path: Path, change) -> None:
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *change(rows)]) + "\n")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("basic_val.tsv", lambda rows: [*rows[:3], rows[3][:-1] + "12", *rows[4:]], "basic_val.tsv, row 4: "),
        ("basic_test.tsv", lambda rows: [*rows[:9], rows[9].replace("[M", "[X", 1)], "row 10: unknown token '[X"),
        ("basic_test.tsv", lambda rows: ["é" + rows[0], *rows[1:]], "row 1: unknown token"),
        ("basic_train.tsv", lambda rows: rows[:12], "has 12 rows, 20 were expected"),
        ("basic_val.tsv", lambda rows: rows[:9], "has 9 rows, 10 were expected"),
    ],
)
def test_a_broken_copy_is_refused_with_file_and_row(release, name, change, words):
    edit(release / name, change)
    assert words in refused("listops", "--source", release, *OF_THE_FILES)
    assert not store.is_here("listops", ListOps.Config(data="official", examples=20, held_out=10))


def test_a_row_in_two_files_is_refused(release):
    first = (release / "basic_train.tsv").read_text().splitlines()[5]
    edit(release / "basic_test.tsv", lambda rows: [*rows[:4], first, *rows[5:]])
    assert "test example 4 is also train example 4" in refused("listops", "--source", release, *OF_THE_FILES)


def test_a_row_that_is_too_long_is_not_cut(release):
    words = refused("listops", "--source", release, *OF_THE_FILES, "--set", "max_length=30")
    assert ".tsv, row " in words
    assert "at most 29 are expected; no row is cut" in words


def test_a_missing_file_or_folder_is_named(release):
    (release / "basic_test.tsv").unlink()
    assert "basic_test.tsv cannot be read" in refused("listops", "--source", release, *OF_THE_FILES)
    shutil.rmtree(release)
    assert "has no basic_train.tsv" in refused("listops", "--source", release.parent, *OF_THE_FILES)
