"""Which examples of an official set are taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadData
from ssm_priors.tasks import letters, parts

OFFICIAL = {"train": 45_000, "validation": 5_000, "test": 10_000}


def test_the_whole_set_is_the_official_one_and_a_part_of_it_is_in_proportion():
    assert parts.sizes(45_000, 0, OFFICIAL) == OFFICIAL
    assert parts.sizes(450, 0, OFFICIAL) == {"train": 450, "validation": 50, "test": 100}
    assert parts.sizes(1, 0, OFFICIAL) == {"train": 1, "validation": 1, "test": 1}
    assert parts.sizes(450, 7, OFFICIAL) == {"train": 450, "validation": 7, "test": 7}


@given(
    classes=st.lists(st.integers(0, 3), min_size=40, max_size=120),
    copies=st.lists(st.integers(0, 19), max_size=15),
    train=st.integers(1, 15),
    validation=st.integers(1, 6),
)
def test_what_is_held_out_is_never_trained_on_at_any_size(classes, copies, train, validation):
    contents = [*range(len(classes) - len(copies)), *copies]
    classes = np.array(classes)
    wanted = {"train": train, "validation": validation}
    small = parts.held_out(classes, contents, wanted, 0.2, "made")
    again = parts.held_out(classes, contents, wanted, 0.2, "made")
    share = round(0.2 * len(classes))
    large = parts.held_out(
        classes, contents, {"train": len(classes) - share, "validation": max(share, validation)}, 0.2, "made"
    )
    for split, rows in small.items():
        np.testing.assert_array_equal(rows, again[split])
        assert len(rows) == wanted[split]
        assert set(rows) <= set(large[split])
    seen = {contents[row] for row in large["train"]}
    assert not seen & {contents[row] for row in large["validation"]}


def test_classes_stay_in_proportion():
    classes = np.repeat(np.arange(5), 100)
    found = parts.held_out(classes, range(500), {"train": 100, "validation": 50}, 0.1, "made")
    assert np.bincount(classes[found["validation"]]).tolist() == [10] * 5
    assert np.bincount(classes[found["train"]]).tolist() == [20] * 5
    assert np.bincount(classes[parts.drawn(classes, 25, "made")]).tolist() == [5] * 5


def test_too_little_is_told():
    with pytest.raises(BadData, match="3 examples stand there only once, 4 are needed"):
        parts.held_out(np.zeros(9, int), [0, 0, 1, 1, 2, 2, 3, 4, 5], {"train": 1, "validation": 4}, 0.1, "made")
    with pytest.raises(BadData, match="6 examples are left to train on, 7 are wanted"):
        parts.held_out(np.zeros(9, int), range(9), {"train": 7, "validation": 3}, 0.1, "made")
    with pytest.raises(BadData, match="has 11 training examples; the official one has 10"):
        parts.require("a file", "training", 11, 5, 10)
    with pytest.raises(BadData, match="4 training examples, 5 were expected"):
        parts.require("a file", "training", 4, 5, 10)
    parts.require("a file", "training", 5, 5, 10)
    with pytest.raises(BadData, match=r"\[3, 5\]; 4 were expected"):
        parts.require_balance("a file", "test", np.array([0] * 3 + [1] * 5), 2)
    with pytest.raises(BadData, match=r"\[4, 4, 1\]; 3 were expected"):
        parts.require_balance("a file", "test", np.array([0] * 4 + [1] * 4 + [2]), 3)


@given(texts=st.lists(st.binary(max_size=20).map(lambda text: text.replace(b"\0", b"")), min_size=1, max_size=6))
def test_texts_come_back_from_their_ids_and_long_ones_keep_their_beginning(texts):
    for length in (2, 9, 30):
        ids, lengths = letters.encode(texts, length)
        assert ids.shape == (len(texts), max(lengths))
        for row, size, text in zip(ids, lengths, texts, strict=True):
            assert letters.decode(row) == letters.decode(row[:size]) == text[: length - 1]
            assert row[size - 1] == letters.END
            assert size == min(len(text), length - 1) + 1


def test_the_share_that_is_cut_is_told():
    assert letters.cut_share(np.array([3, 9, 10, 11]), 10) == "2 of 4 texts (50.0%) cut to their first 9 bytes"
    with pytest.raises(BadData, match="a file, row 3 has a byte of value 0"):
        letters.require_text(b"a\0b", "a file, row 3")
