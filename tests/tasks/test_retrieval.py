"""Pairs of papers, from the official tables."""

from __future__ import annotations

from pathlib import Path

import official_files as official
import pytest

from ssm_priors.errors import BadData
from ssm_priors.tasks import letters, retrieval, store
from ssm_priors.tasks.retrieval import Retrieval

ALL = Retrieval.Config(examples=24, held_out=6, max_length=40)
LINE = "0.0\tP\tQ\tfirst\tsecond\n"


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return official.pairs(tmp_path / "lra_release" / "lra_release" / "tsv_data")


def lines(folder: Path, part: str) -> list[list[str]]:
    return [line.split("\t") for line in (folder / f"new_aan_pairs.{part}.tsv").read_text().split("\n")[:-1]]


def test_the_official_archive_is_read_by_a_real_process_and_trained_on(folder, tmp_path):
    archive = official.tar(tmp_path / "lra_release", tmp_path / "lra_release.gz")
    said = official.prepared("retrieval", archive, examples=16, held_out=6, max_length=40)
    assert [said["splits"][split]["examples"] for split in ("train", "validation", "test")] == [16, 6, 6]
    assert said["splits"]["train"]["labels"]["counts"] == [8, 8]
    official.train(tmp_path, "retrieval", examples=16, held_out=6, max_length=40)


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_every_line_is_one_pair_whatever_marks_stand_in_it(ends, folder, tmp_path):
    expected = {
        split: lines(folder, part) for split, part in (("train", "train"), ("validation", "eval"), ("test", "test"))
    }
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", ends))
    Retrieval.prepare(tmp_path / "lra_release", ALL)
    task = Retrieval.load(ALL)
    for split, rows in expected.items():
        batch = official.whole(getattr(task, split))
        assert batch.documents == 2
        texts = [letters.decode(row.tolist()) for row in batch.inputs]
        assert texts == [text.encode()[:39] for row in rows for text in row[3:]]
        assert batch.targets.tolist() == [int(float(row[0])) for row in rows]
        assert batch.lengths.tolist() == [len(text) + 1 for text in texts]


def test_a_smaller_set_lies_inside_the_whole_one(folder):
    few = Retrieval.Config(examples=8, held_out=4, max_length=40)
    for options in (ALL, few):
        Retrieval.prepare(folder, options)
    for split in ("train", "validation", "test"):
        pairs = [
            {tuple(row) for row in official.whole(getattr(Retrieval.load(options), split)).inputs[::2].tolist()}
            for options in (few, ALL)
        ]
        assert len(pairs[0]) == (8 if split == "train" else 4)
        assert {row[:20] for row in pairs[0]} <= {row[:20] for row in pairs[1]}


def test_cut_and_empty_texts_are_counted(folder):
    with open(folder / "new_aan_pairs.train.tsv", "ab") as file:
        file.write(b"1\tP\tQ\t\t" + b"x" * 50 + b"\n")
    options = Retrieval.Config(examples=25, held_out=6, max_length=40)
    notes = store.manifest(Retrieval.prepare(folder, options))["notes"]
    long = sum(len(text) > 39 for part in ("train", "eval", "test") for row in lines(folder, part) for text in row[3:])
    assert notes["cut"].startswith(f"{long} of 74 texts")
    assert notes["empty texts"] == 1


def test_a_pair_that_stands_in_two_splits_is_counted_and_told(folder):
    copied = (folder / "new_aan_pairs.train.tsv").read_text().split("\n")[3]
    rows = (folder / "new_aan_pairs.test.tsv").read_text().split("\n")
    (folder / "new_aan_pairs.test.tsv").write_text("\n".join([*rows[:2], copied, *rows[3:]]))
    place = Retrieval.prepare(folder, ALL)
    assert store.manifest(place)["duplicates"] == 1
    assert store.verify(place).notes == ["test example 2 is also train example 3"]


@pytest.mark.parametrize("label", ["{}", "{}.0"])
def test_labels_may_be_whole_or_with_a_point(label, tmp_path):
    Retrieval.prepare(official.pairs(tmp_path / "pairs", label=label), ALL)
    assert Retrieval.load(ALL).test.labels.tolist() == [0, 1] * 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LINE + "1.0\tP\tQ\tfirst\n", r"train\.tsv, row 2 has 4 fields between tabs, 5 were expected"),
        (LINE + "1.0\tP\tQ\tfirst\tsecond\tthird\n", "row 2 has 6 fields"),
        (LINE * 2 + "2.0\tP\tQ\tfirst\tsecond\n", r"train\.tsv, row 3: label b'2\.0', 0 or 1"),
        (LINE + "\n" + LINE, "row 2 has 1 fields"),
        (LINE.replace("second", "sec\0nd"), "row 1 has a byte of value 0"),
        ("", r"has 0 train examples, 24 were expected"),
        (LINE * 23, r"train\.tsv has 23 train examples, 24 were expected"),
    ],
)
def test_damage_is_told_with_file_and_row(content, words, folder):
    (folder / "new_aan_pairs.train.tsv").write_text(content)
    with pytest.raises(BadData, match=words):
        Retrieval.prepare(folder, ALL)
    assert not store.is_here("retrieval", ALL)


def test_a_line_without_end_is_refused(folder, monkeypatch):
    monkeypatch.setattr(retrieval, "LONGEST_LINE", 500)
    with open(folder / "new_aan_pairs.eval.tsv", "ab") as file:
        file.write(b"1\tP\tQ\tx\t" + b"x" * 600)
    with pytest.raises(BadData, match=r"eval\.tsv, row 7 has more than 500 bytes"):
        Retrieval.prepare(folder, ALL)


def test_a_missing_file_and_a_cut_archive_are_told_on_the_command_line(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "lra_release.gz")
    assert "has 24 train examples, 147,086 were expected" in official.refused("retrieval", archive)
    official.cut(archive, 0.6)
    assert "damaged or incomplete" in official.refused("retrieval", archive, examples=16, held_out=6)
    (folder / "new_aan_pairs.eval.tsv").unlink()
    assert "new_aan_pairs.eval.tsv is not there" in official.refused("retrieval", folder, examples=16, held_out=6)
