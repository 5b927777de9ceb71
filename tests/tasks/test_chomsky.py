"""Formal languages as a task."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from task_runs import prepared, refused, ssmp, trains

from ssm_priors.errors import UnknownName
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.crew import crew
from ssm_priors.tasks.generators.chomsky import LANGUAGES
from ssm_priors.tasks.task import SPLITS

Chomsky = TASKS["chomsky"]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


def small(language: str, **changed: int):
    return Chomsky.Config(**({"language": language, "examples": 30, "train_length": 9, "test_length": 20} | changed))


def valid(batch) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(batch.inputs, batch.lengths, strict=True)]


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_language_makes_a_task_that_is_checked(language):
    task = Chomsky.load(small(language))
    assert [len(getattr(task, split)) for split in SPLITS] == [30, 15, 15]
    assert task.spec.answer == ("class" if LANGUAGES[language].single else "tokens")
    assert task.spec.classes == len(LANGUAGES[language].answers)
    folder = store.folder_of("chomsky", small(language))
    assert store.verify(folder).faults == []


def test_the_answer_stands_where_the_string_has_its_placeholders():
    task = Chomsky.load(small("reverse_string"))
    for split, (low, high) in {"train": (1, 9), "validation": (1, 9), "test": (10, 20)}.items():
        part = getattr(task, split)
        batch = part.take(torch.arange(len(part)))
        for ids, targets in zip(valid(batch), batch.targets, strict=True):
            half = len(ids) // 2
            assert low <= half <= high
            assert ids[half:] == [3] * half
            assert targets[: 2 * half].tolist() == [-1] * half + [one - 1 for one in reversed(ids[:half])]
            assert (targets[2 * half :] == -1).all()


def test_one_class_is_asked_where_the_answer_is_one():
    task = Chomsky.load(small("parity_check"))
    for split in SPLITS:
        batch = getattr(task, split).take(torch.arange(15))
        assert [ids[:-1].count(2) % 2 for ids in valid(batch)] == batch.targets.tolist()


def test_repeated_short_strings_are_counted_and_no_test_string_is_one():
    options = small("parity_check", examples=200)
    task = Chomsky.load(options)
    folder = store.folder_of("chomsky", options)
    lines = {split: valid(getattr(task, split).take(torch.arange(100))) for split in ("validation", "test")}
    train = valid(task.train.take(torch.arange(200)))
    again = sum(line in train for line in lines["validation"])
    assert store.manifest(folder)["duplicates"] == again > 0
    assert not any(line in train for line in lines["test"])
    verdict = store.verify(folder)
    assert verdict.faults == []
    assert verdict.notes


def test_it_does_not_matter_how_many_processes_draw(tmp_path, monkeypatch):
    monkeypatch.setattr("ssm_priors.tasks.chomsky.TOGETHER", 4)
    alone = Chomsky.load(small("bucket_sort")).sha256
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "other"))
    with crew(2):
        assert Chomsky.load(small("bucket_sort")).sha256 == alone


def test_a_language_with_one_answer_and_one_with_many_train(tmp_path):
    found = prepared("chomsky", "--set", "examples=30", "--set", "train_length=9", "--set", "test_length=20")
    assert found["splits"]["test"]["shortest"] >= 11  # the placeholder counted
    sizes = ["--examples", "30", "--set", "task.train_length=9", "--set", "task.test_length=20"]
    trains(tmp_path / "one", "chomsky", 30, *sizes)
    trains(tmp_path / "many", "chomsky", 30, *sizes, "--set", "task.language=stack_manipulation")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["language=parity_chek"], "Did you mean parity_check?"),
        (["train_length=40", "test_length=40"], "expected 1 <= train_length < test_start <= test_length"),
        (["language=solve_equation", "train_length=2"], "solve_equation has no string of 1 to 2 symbols"),
    ],
)
def test_options_that_cannot_be_are_refused(changes, words):
    assert words in refused("chomsky", *(part for one in changes for part in ("--set", one)))


def test_an_unknown_language_is_refused_when_a_run_is_asked_for():
    with pytest.raises(UnknownName):
        Chomsky.Config(language="none")
    said = ssmp("train", "--task", "chomsky", "--set", "task.language=none")
    assert said.exit_code == 2
    assert "unknown language 'none'" in said.stderr


def test_lengths_are_spread_over_all_that_there_are():
    task = Chomsky.load(small("parity_check", examples=300))
    lengths = task.train.lengths.numpy() - 1
    counts = np.bincount(lengths, minlength=10)[1:]
    assert ((counts - 300 / 9) ** 2 / (300 / 9)).sum() < 30
