"""IMDB reviews, from folders, archives and tables."""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import numpy as np
import official_files as official
import pytest

from ssm_priors.errors import BadData, NotReady
from ssm_priors.tasks import letters, store
from ssm_priors.tasks.text import Text

FEW = Text.Config(examples=16, held_out=4, max_length=64)


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return official.reviews(tmp_path / "aclImdb")


def reviews(folder: Path) -> dict[bytes, tuple[str, int]]:
    """Split and class of each text."""
    files = folder.glob("t*/[np]*/*.txt")
    return {path.read_bytes(): (path.parent.parent.name, int(path.parent.name == "pos")) for path in files}


def tables(folder: Path, place: Path, write) -> Path:
    """The same reviews as one table a split, in another order."""
    place.mkdir()
    given = list(reviews(folder).items())
    random.Random(0).shuffle(given)
    for split in ("train", "test"):
        rows = [{"label": label, "text": text.decode()} for text, (of, label) in given if of == split]
        write(place / f"{split}-00000-of-00001", rows)
    return place


def as_csv(path: Path, rows: list[dict]) -> None:
    with open(path.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: list[dict]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))


def texts(options: Text.Config = FEW) -> dict[str, list[tuple[bytes, int]]]:
    """What a model is given, back as text, with its class."""
    found, task = {}, Text.load(options)
    for split in ("train", "validation", "test"):
        batch = official.whole(getattr(task, split))
        rows = [row[:length].tolist() for row, length in zip(batch.inputs, batch.lengths, strict=True)]
        assert all(row[-1] == letters.END for row in rows)
        found[split] = [(letters.decode(row), label) for row, label in zip(rows, batch.targets.tolist(), strict=True)]
    return found


def test_the_official_archive_is_read_by_a_real_process_and_trained_on(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "aclImdb_v1.tar.gz")
    said = official.prepared("text", archive, examples=16, held_out=4, max_length=64)
    assert [said["splits"][split]["examples"] for split in ("train", "validation", "test")] == [16, 4, 4]
    assert said["splits"]["validation"]["labels"]["counts"] == [2, 2]
    assert (said["splits"]["train"]["longest"], said["duplicates"]) == (64, 0)
    official.train(tmp_path, "text", examples=16, held_out=4, max_length=64)


def test_every_text_is_one_of_its_split_with_its_class_and_starts_like_it(folder):
    Text.prepare(folder, FEW)
    known = {text[:63]: about for text, about in reviews(folder).items()}
    for split, rows in texts().items():
        for text, label in rows:
            assert known[text] == ("test" if split == "test" else "train", label)


def test_validation_is_cut_from_training_and_test_is_the_official_one(folder):
    options = Text.Config(examples=20, held_out=24, max_length=300)
    with pytest.raises(BadData, match="24 training examples, 44 were expected"):
        Text.prepare(folder, options)
    options = Text.Config(examples=20, held_out=4, max_length=300)
    Text.prepare(folder, options)
    found = {split: {text for text, _ in rows} for split, rows in texts(options).items()}
    assert not found["train"] & found["validation"]
    assert found["train"] | found["validation"] == {text for text, (of, _) in reviews(folder).items() if of == "train"}


def test_a_longer_cut_changes_no_split(folder):
    Text.prepare(folder, FEW)
    long = Text.Config(examples=16, held_out=4, max_length=500)
    Text.prepare(folder, long)
    for split, rows in texts().items():
        assert rows == [(text[:63], label) for text, label in texts(long)[split]]


def test_what_was_cut_is_counted(folder):
    found = store.manifest(Text.prepare(folder, FEW))
    cut = sum(row["longest"] == 64 for row in found["splits"].values())
    assert cut
    sizes = [len(text) for rows in texts(FEW).values() for text, _ in rows]
    assert found["notes"]["cut"].startswith(f"{sum(size == 63 for size in sizes)} of 24 texts")


def test_folder_archive_and_zip_give_the_same_data(folder, tmp_path):
    sources = [
        folder,
        official.tar(folder, tmp_path / "a.tar.gz"),
        official.zipped(folder, tmp_path / "a.zip"),
        tmp_path,
    ]
    hashes = {store.manifest(Text.prepare(source, FEW))["sha256"] for source in sources}
    assert len(hashes) == 1


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_tables_hold_the_same_reviews(write, folder, tmp_path):
    place = tables(folder, tmp_path / "tables", write)
    everything = Text.Config(examples=20, held_out=4, max_length=300)
    Text.prepare(place, everything)
    given = {text: label for text, (_, label) in reviews(folder).items()}
    for rows in texts(everything).values():
        assert all(given[text] == label for text, label in rows)


def test_one_table_may_say_the_split_in_a_column(folder, tmp_path):
    rows = [
        {"text": text.decode(), "label": ("negative", "pos")[label], "split": of}
        for text, (of, label) in reviews(folder).items()
    ]
    as_csv(tmp_path / "imdb", rows)
    Text.prepare(tmp_path / "imdb.csv", FEW)
    without = [{"text": row["text"], "label": row["label"]} for row in rows]
    as_csv(tmp_path / "imdb", without)
    with pytest.raises(BadData, match=r"imdb\.csv, row 1: neither its column 'split' nor the file's name says"):
        Text.prepare(tmp_path / "imdb.csv", FEW)


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotReady, match=r"pip install 'ssm-priors\[parquet\]'"):
        Text.prepare(tmp_path, FEW)


def test_reviews_that_stand_twice_stay_in_training_and_those_of_test_are_counted(folder):
    for number in range(6):
        text = (folder / "train" / "pos" / f"{number}_9.txt").read_bytes()
        (folder / "train" / "pos" / f"{number + 6}_9.txt").write_bytes(text)
    copied = (folder / "train" / "neg" / "5_2.txt").read_bytes()
    (folder / "test" / "pos" / "3_9.txt").write_bytes(copied)
    options = Text.Config(examples=20, held_out=4, max_length=300)
    Text.prepare(folder, options)
    found = texts(options)
    twice = {(folder / "train" / "pos" / f"{number}_9.txt").read_bytes() for number in range(6)}
    assert not twice & {text for text, _ in found["validation"]}
    in_test = copied in {text for text, _ in found["test"]}
    assert store.manifest(store.folder_of("text", options))["duplicates"] == int(in_test)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train/pos/3_2.txt", b"liked it", r"train/pos/3_2\.txt: 2 stars among those of class 'pos'"),
        ("train/neg/3_10.txt", b"hated it", r"train/neg/3_10\.txt: 10 stars among those of class 'neg'"),
        ("test/pos/40_9.txt", b" \n", r"test/pos/40_9\.txt is empty"),
        ("test/pos/40_9.txt", b"a\0b", r"test/pos/40_9\.txt has a byte of value 0"),
    ],
)
def test_a_review_that_cannot_be_trusted_is_told_with_its_file(name, content, words, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(BadData, match=words):
        Text.prepare(folder, FEW)
    assert not store.is_here("text", FEW)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"text,label\ngood,1\nbad,2\n", r"train\.csv, row 2: label '2'"),
        (b"text,label\ngood,1\nbad\n", r"train\.csv, row 2: label None"),
        (b"review,sentiment\ngood,positive\n", r"train\.csv, row 1: label None"),
        (b"text,label\n\xff\xfe,1\n", "cannot be read as CSV in UTF-8"),
        (b'text,label\n"good,1\n', "cannot be read as CSV"),
        (b"text,label\n,1\n", r"train\.csv, row 1 is empty"),
    ],
)
def test_a_damaged_table_is_told_with_its_row(content, words, tmp_path):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(BadData, match=words):
        Text.prepare(tmp_path, FEW)


def test_a_damaged_parquet_file_is_told(folder, tmp_path):
    place = tables(folder, tmp_path / "tables", as_parquet)
    path = next(place.glob("train*"))
    official.cut(path, 0.7)
    with pytest.raises(BadData, match="cannot be read as Parquet"):
        Text.prepare(place, FEW)


def test_a_cut_archive_wrong_counts_and_a_wrong_folder_are_told_on_the_command_line(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "aclImdb_v1.tar.gz")
    assert "has 24 training examples, 25,000 were expected" in official.refused("text", archive)
    official.cut(archive, 0.8)
    assert "damaged or incomplete" in official.refused("text", archive, examples=16, held_out=4)
    assert "has no review; expected aclImdb_v1.tar.gz" in official.refused("text", folder / "train" / "unsup")


def test_classes_that_are_not_alike_are_refused_in_the_whole_set(folder, monkeypatch):
    monkeypatch.setattr("ssm_priors.tasks.text.OFFICIAL", {"train": 20, "validation": 4, "test": 24})
    whole = Text.Config(examples=20)
    Text.prepare(folder, whole)
    assert np.bincount(Text.load(whole).validation.labels.numpy()).tolist() == [2, 2]
    (folder / "test" / "pos" / "0_9.txt").rename(folder / "test" / "neg" / "90_1.txt")
    with pytest.raises(BadData, match=r"test examples of each class: \[13, 11\]; 12 were expected"):
        Text.prepare(folder, whole)
