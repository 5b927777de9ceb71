from __future__ import annotations

import numpy as np
import pytest
import torch

from ssm_priors.batch import TaskSpec
from ssm_priors.registry import TASKS
from ssm_priors.tasks.audit import audit
from ssm_priors.tasks.letters import VOCABULARY, encode
from ssm_priors.tasks.task import Split, Task

TEXTS = TaskSpec(kind="token", length=2000, classes=2, vocabulary=VOCABULARY)
SERIES = TaskSpec(kind="continuous", length=8, classes=2)


def prose(seed: int, words: int = 120) -> str:
    """Words of no meaning, different for every seed."""
    return " ".join(f"w{number}" for number in np.random.default_rng(seed).integers(10_000, size=words))


def texts(*given: str) -> Split:
    ids, lengths = encode([text.encode() for text in given], 2000)
    return Split(torch.from_numpy(ids), torch.from_numpy(lengths), torch.arange(len(given)) % 2)


def series(*seeds: int, lengths: int = 8) -> Split:
    rows = np.stack([np.random.default_rng(seed).standard_normal((8, 1)) for seed in seeds]).astype(np.float32)
    return Split(torch.from_numpy(rows), torch.full((len(rows),), lengths), torch.arange(len(rows)) % 2)


def test_nothing_is_found_where_splits_are_disjoint():
    found = audit(Task(SERIES, series(1, 2, 3), series(4), series(5, 6), "ab"))
    assert found.is_clean
    assert found.near is None
    assert found.examples == {"train": 3, "validation": 1, "test": 2}
    assert set(found.exact.values()) == {0}


def test_an_example_that_is_trained_on_and_tested_is_found_however_it_is_padded():
    train = series(1, 2, 3)
    inputs = train.inputs.clone()
    inputs[1, 5:] = 7.0  # beyond its length
    planted = Split(inputs, torch.tensor([8, 5, 8]), train.targets)
    cut = Split(series(2).inputs, torch.tensor([5]), torch.tensor([1]))
    found = audit(Task(SERIES, planted, series(4), cut, "ab"))
    assert not found.is_clean
    assert found.exact == {"validation in train": 0, "test in train": 1, "test in validation": 0}


def test_what_stands_in_both_held_splits_is_counted_but_was_not_trained_on():
    found = audit(Task(SERIES, series(1), series(4), series(4, 5), "ab"))
    assert found.exact["test in validation"] == 1
    assert found.is_clean


def test_a_text_with_a_few_other_words_is_nearly_the_same():
    original = prose(1).split()
    near = " ".join([*original[:60], "another", *original[61:]])
    far = " ".join([*original[:30], *prose(9, 90).split()])
    found = audit(Task(TEXTS, texts(prose(1), prose(2)), texts(far), texts(near, prose(3), prose(2)), "ab"))
    assert found.exact == {"validation in train": 0, "test in train": 1, "test in validation": 0}
    assert found.near == {"validation in train": 0, "test in train": 2}


def test_the_same_every_time():
    task = Task(TEXTS, texts(*map(prose, range(20))), texts(prose(50)), texts(prose(3), prose(60)), "ab")
    assert audit(task) == audit(task)


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_a_real_task(name):
    kind = TASKS[name]
    task = kind.load(kind.Config())
    found = audit(task)
    assert found.sha256 == task.sha256
    assert sum(found.examples.values()) > 1000
