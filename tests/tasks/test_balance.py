from __future__ import annotations

import numpy as np
import pytest
import torch
from made_tasks import Double, Large, Rate, Same

from ssm_priors.batch import TaskSpec
from ssm_priors.tasks.balance import balance
from ssm_priors.tasks.task import Split


def split_of(lengths, labels, **more):
    lengths = torch.tensor(lengths)
    return Split(torch.zeros(len(lengths), 200, dtype=torch.uint8), lengths, torch.tensor(labels), **more)


SPEC = TaskSpec(kind="token", length=200, classes=4, vocabulary=2)


def test_classes_and_lengths_are_counted():
    found = balance(SPEC, split_of([1, 1, 11, 101, 101], [0, 2, 2, 2, 1]))
    assert found.classes == (1, 1, 3, 0)
    assert found.lengths == (1, 1, 11, 101, 101)
    assert found.histogram == (2, 1, 0, 0, 0, 0, 0, 0, 0, 2)


def test_equal_lengths_make_one_bin():
    assert balance(SPEC, split_of([7, 7, 7], [0, 1, 2])).histogram == (3,)


@pytest.mark.parametrize("documents", [1, 2])
def test_a_part_of_a_split_is_counted_without_the_rest(documents):
    lengths = list(range(1, 1 + 6 * documents))
    part = split_of(lengths, [0, 1, 2, 3, 0, 1], documents=documents).part(torch.tensor([1, 4]))
    found = balance(SPEC, part)
    assert (found.examples, found.classes) == (2, (1, 1, 0, 0))
    assert found.lengths[0] == 1 + documents
    assert found.lengths[-1] == 5 * documents
    assert sum(found.histogram) == 2 * documents


@pytest.mark.parametrize("kind", [Large, Rate, Same, Double])
def test_every_kind_of_answer_is_counted_once(kind):
    task = kind.load(kind.Config())
    found, labels = balance(task.spec, task.train), task.train.labels.numpy()
    assert sum(found.histogram) == len(task.train.lengths)
    if kind is Rate:
        assert found.classes == ()
        assert found.numbers == pytest.approx((labels.min(), labels.mean(), labels.max(), labels.std()))
    else:
        assert sum(found.classes) == np.count_nonzero(labels >= 0)
