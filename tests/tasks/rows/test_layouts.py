"""Every layout of a user's files is read as the same data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_files import Own, examples, is_same, load, own, rows, unscaled

from ssm_priors.tasks.task import SPLITS


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def needs_pyarrow(write: Callable) -> None:
    if write in own_files.OF_PARQUET:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed, so Parquet is not tested")


@pytest.mark.parametrize("write", [*own_files.SINGLE, *own_files.OF_PARQUET], ids=lambda write: write.__name__)
def test_every_layout_of_one_feature_gives_the_same_data(write, tmp_path):
    needs_pyarrow(write)
    data = own()
    task, expected = load(write(tmp_path, data)), load(own_files.wide(tmp_path, data, "expected.csv"))
    assert task.sha256 == expected.sha256
    assert task.spec == expected.spec
    assert (task.spec.length, task.spec.features, task.spec.classes) == (max(map(len, data.series)), 1, 3)


@pytest.mark.parametrize("write", [*own_files.SEVERAL, own_files.parquet], ids=lambda write: write.__name__)
def test_every_layout_of_several_features_gives_the_same_data(write, tmp_path):
    needs_pyarrow(write)
    data = own(features=3)
    path = write(tmp_path, data)
    task = load(path, series="x*") if write is own_files.npz_with_lengths else load(path)
    assert task.spec.features == 3
    assert task.sha256 == load(own_files.nested(tmp_path, data)).sha256


@given(
    lengths=st.lists(st.integers(1, 6), min_size=12, max_size=30),
    features=st.integers(1, 3),
    offset=st.sampled_from([0.0, -5.0, 1e6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_stored_is_what_stands_in_the_file(lengths, features, offset, seed, tmp_path):
    rng = np.random.default_rng(seed)
    series = [np.round(rng.normal(size=(length, features)) + offset, 4) for length in lengths]
    labels = ["ab"[row % 2] for row in range(len(lengths))]
    path = own_files.nested(tmp_path, Own(series, labels))
    found = unscaled(path, load(path, duplicates="report"), duplicates="report")
    expected = [(one, "ab".index(label)) for one, label in zip(series, labels, strict=True)]
    assert len(found) == len(expected)
    for some, others in ((found, expected), (expected, found)):
        assert all(any(is_same(one, other) for other in others) for one in some)


def test_the_order_of_columns_and_a_choice_of_them_are_up_to_the_user(tmp_path):
    data = own(30)
    lines = [
        [7, *series[:3, 0].tolist(), label, "note"] for series, label in zip(data.series, data.labels, strict=True)
    ]
    path = rows(tmp_path / "some.csv", [["id", "t0", "t1", "t2", "kind", "remark"], *lines])
    by_pattern = load(path, label="kind", series="t*")
    assert by_pattern.spec.length == 3
    assert load(path, label="kind", series=("t0", "t1", "t2")).sha256 == by_pattern.sha256
    reverse = load(path, label="kind", series=("t2", "t1", "t0"))
    first, flipped = (examples(task, "train")[0][0] for task in (by_pattern, reverse))
    np.testing.assert_allclose(flipped, first[::-1], atol=0.5)  # each is scaled as a whole, so by the same numbers
    np.testing.assert_array_equal(flipped, first[::-1])


def test_text_is_read_as_its_bytes(tmp_path):
    texts = [f"The {word}, Grüße {number}" for number in range(12) for word in ("cat", "dog")]
    lines = [[text, text[4:7]] for text in texts]
    path = rows(tmp_path / "text.csv", [["review", "label"], *lines])
    task = load(path)
    assert (task.spec.kind, task.spec.vocabulary) == ("token", 256)
    found = [(bytes(ids.tolist()).decode(), target) for split in SPLITS for ids, target in examples(task, split)]
    assert sorted(found) == sorted((text, ["cat", "dog"].index(text[4:7])) for text in texts)
    for number, text in enumerate(texts):
        place = tmp_path / "folder" / text[4:7]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.txt").write_text(text)
    assert load(tmp_path / "folder").spec == task.spec


def test_sounds_are_read_sample_by_sample(tmp_path):
    rng = np.random.default_rng(0)
    sounds = rng.integers(-30000, 30000, (20, 50, 2))
    for number, samples in enumerate(sounds):
        own_files.sound(tmp_path / "wav" / "ab"[number % 2] / f"{number}.wav", samples)
    found = unscaled(tmp_path / "wav", load(tmp_path / "wav"))
    expected = [(samples.astype(float), number % 2) for number, samples in enumerate(sounds)]
    assert {(np.rint(series).astype(int).tobytes(), target) for series, target in found} == {
        (series.astype(int).tobytes(), target) for series, target in expected
    }


def test_numbers_may_be_what_is_asked(tmp_path):
    rng = np.random.default_rng(0)
    values = np.round(60 + 10 * rng.normal(size=200), 2)
    lines = [[value, *np.round(rng.normal(size=4) + value, 3)] for value in values]
    path = rows(tmp_path / "rate.csv", [["bpm", "a", "b", "c", "d"], *lines])
    task = load(path, label="bpm", target="number", unit="bpm")
    assert (task.spec.answer, task.spec.classes, task.spec.unit) == ("values", 1, "bpm")
    found = [target[0] for split in SPLITS for _, target in examples(task, split)]
    np.testing.assert_allclose(sorted(found), sorted(values), rtol=1e-6)
    means = [np.mean([target[0] for _, target in examples(task, split)]) for split in SPLITS]
    assert max(means) - min(means) < 2  # drawn by tenths of the targets, so no split is of one end
