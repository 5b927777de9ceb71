"""What a split gives, whatever form it is stored in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.tasks.task import Split, Task, fraction_of

SEQUENCES = TaskSpec(kind="token", length=6, classes=5, vocabulary=9, answer="tokens")


def images(rows: int = 10) -> Split:
    pixels = torch.arange(rows * 6 * 3, dtype=torch.uint8).reshape(rows, 6, 3)
    return Split(pixels, torch.full((rows,), 6), torch.arange(rows) % 2, scale=(0.5, 1.0, 2.0), offset=(-1.0, 0.0, 1.0))


def tokens(rows: int = 12, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, rows)
    ids, targets = rng.integers(0, 9, (rows, 6)).astype(np.uint8), rng.integers(0, 5, (rows, 6)).astype(np.int16)
    targets[np.arange(6) >= lengths[:, None]] = -1
    return Split(*map(torch.from_numpy, (ids, lengths.astype(np.int32), targets)))


def test_stored_bytes_become_float32_by_the_rule_of_each_feature():
    batch = images().take(torch.tensor([3, 1]))
    assert batch.inputs.dtype == torch.float32
    expected = images().inputs[[3, 1]].double() * torch.tensor([0.5, 1, 2]) + torch.tensor([-1, 0, 1])
    torch.testing.assert_close(batch.inputs.double(), expected, rtol=0, atol=0)


@given(rows=st.lists(st.integers(0, 11), min_size=1, max_size=8))
def test_a_batch_is_cut_to_its_longest_and_no_valid_position_is_lost(rows):
    split = tokens()
    batch = split.take(torch.tensor(rows))
    assert batch.inputs.shape == batch.targets.shape == (len(rows), int(split.lengths[rows].max()))
    assert batch.inputs.dtype == batch.targets.dtype == batch.lengths.dtype == torch.int64
    for at, row in enumerate(rows):
        length = int(split.lengths[row])
        assert batch.inputs[at, :length].tolist() == split.inputs[row, :length].tolist()
        assert batch.targets[at, :length].tolist() == split.targets[row, :length].tolist()
        assert (batch.targets[at, length:] == -1).all()


def test_float16_is_widened_and_float32_left_alone():
    values = torch.randn(4, 5, 1)
    for stored in (values, values.half()):
        batch = Split(stored, torch.full((4,), 5), torch.zeros(4)).take(torch.arange(4))
        assert torch.equal(batch.inputs, stored.float())


def pairs() -> Split:
    ids = torch.arange(40).reshape(20, 2)
    return Split(ids, torch.full((20,), 2), torch.arange(10) % 2, documents=2)


def test_the_two_documents_of_a_pair_stay_side_by_side():
    batch = pairs().take(torch.tensor([7, 2]))
    assert batch.inputs[:, 0].tolist() == [28, 30, 8, 10]
    assert len(pairs()) == 10
    assert (len(batch), len(batch.to(torch.device("cpu")))) == (2, 2)


@pytest.mark.parametrize("make", [images, tokens, pairs])
@given(outer=st.permutations(range(10)), inner=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_part_of_a_part_holds_the_right_examples(make, outer, inner):
    split = make()
    rows = torch.tensor(outer[:5])
    part = split.part(rows).part(torch.tensor(inner))
    one, other = part.take(torch.arange(len(inner))), split.take(rows[inner])
    assert len(part) == len(inner)
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.targets, other.targets)
    assert torch.equal(part.labels, split.targets[rows[inner]])
    assert part.inputs.data_ptr() == split.inputs.data_ptr()


def test_a_fraction_of_pairs_takes_its_share_of_every_class():
    part = fraction_of(pairs(), 0.4, 2, 0)
    assert part.labels.bincount().tolist() == [2, 2]


@pytest.mark.parametrize(
    "targets", [torch.randn(50, 1), torch.zeros(50, 3, dtype=torch.long)], ids=["values", "tokens"]
)
def test_without_classes_a_fraction_is_drawn_from_all_alike_and_nested(targets):
    split = Split(torch.zeros(50, 3, dtype=torch.long), torch.full((50,), 3), targets)
    small, large = (fraction_of(split, fraction, 1, 0).chosen.tolist() for fraction in (0.2, 0.6))
    assert (len(small), len(large)) == (10, 30)
    assert set(small) < set(large)
    assert fraction_of(split, 0.2, 1, 1).chosen.tolist() != small
    with pytest.raises(BadConfig, match="leaves none"):
        fraction_of(split, 0.001, 1, 0)


def test_the_inputs_of_a_pretraining_hold_no_label_whatever_the_answer():
    for split in (images(), tokens(), pairs()):
        assert split.without_labels().take(torch.arange(3)).targets is None
        with pytest.raises(BadData, match="without labels"):
            _ = split.without_labels().labels


# -- checks


def made(spec: TaskSpec, **changes) -> Task:
    return Task(spec, *(Split(**(vars_of(tokens(seed=seed)) | changes)) for seed in range(3)), "")


def vars_of(split: Split) -> dict:
    return {name: getattr(split, name) for name in Split.__dataclass_fields__}


def test_sequences_of_answers_are_accepted():
    assert len(made(SEQUENCES).train) == 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": torch.full((12, 6), 7)}, "train example 0 has a class outside 0 .. 4, or -1"),
        ({"targets": torch.full((12, 6), -1)}, "train example 0 has no position where anything is asked"),
        ({"lengths": torch.full((12,), 1), "targets": torch.zeros(12, 6, dtype=torch.long)}, "a target in its padding"),
        ({"targets": torch.zeros(11, 6, dtype=torch.long)}, "12 rows of inputs, 12 lengths and 11 targets"),
        ({"documents": 2}, "2 documents an example, 1 expected"),
        ({"targets": None}, "the train split has no labels"),
    ],
)
def test_answers_that_cannot_be_learned_are_refused(changes, words):
    with pytest.raises(BadData, match=words):
        made(SEQUENCES, **changes)


def test_a_real_target_that_is_not_finite_is_refused_with_its_row():
    spec = TaskSpec(kind="token", length=6, classes=1, vocabulary=9, answer="values")
    targets = torch.zeros(12, 1)
    targets[4] = float("nan")
    with pytest.raises(BadData, match="train example 4 has a target that is not finite"):
        made(spec, targets=targets)


def test_answers_at_every_position_of_two_documents_are_no_task():
    with pytest.raises(BadData, match="two documents"):
        made(TaskSpec(kind="token", length=6, classes=5, vocabulary=9, answer="tokens", documents=2))


def test_a_row_of_a_pair_is_told_as_its_example():
    ids = torch.zeros(8, 2, dtype=torch.long)
    ids[5, 1] = 99
    split = Split(ids, torch.full((8,), 2), torch.zeros(4, dtype=torch.long), documents=2)
    with pytest.raises(BadData, match="train example 2 has a token id"):
        Task(TaskSpec(kind="token", length=2, classes=1, vocabulary=9, documents=2), split, split, split, "")
