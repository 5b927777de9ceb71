"""Spoken words, from the folders of Speech Commands."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import official_files as official
import pytest
import torch

from ssm_priors.errors import BadData
from ssm_priors.tasks import store
from ssm_priors.tasks.speech import COMMANDS, WORDS, Speech

ALL = Speech.Config(examples=24, held_out=6)


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return official.speech(tmp_path / "speech_commands_v0.02")


def samples(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(16000), "<i2")


def names(folder: Path) -> dict[str, list[str]]:
    """Clips of each split, in the order of their names."""
    listed = {
        split: (folder / f"{part}_list.txt").read_text().split()
        for split, part in (("validation", "validation"), ("test", "testing"))
    }
    clips = [f"{path.parent.name}/{path.name}" for path in folder.glob("[a-z]*/*.wav")]
    rest = set(clips) - set(listed["validation"]) - set(listed["test"])
    return {split: sorted(found) for split, found in (listed | {"train": rest}).items()}


def test_there_are_35_words_and_10_of_them_are_commands():
    assert len(set(WORDS)) == 35
    assert sorted(WORDS) == WORDS
    assert len(set(COMMANDS) & set(WORDS)) == 10
    assert Speech.spec(Speech.Config()).length == 16000
    assert Speech.spec(Speech.Config(rate=4000, max_length=8000)).length == 4000


def test_the_official_archive_is_read_by_a_real_process_and_trained_on(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "speech_commands_v0.02.tar.gz")
    options = {"examples": 16, "held_out": 6, "max_length": 500}
    said = official.prepared("speech", archive, **options)
    assert [said["splits"][split]["examples"] for split in ("train", "validation", "test")] == [16, 6, 6]
    assert said["splits"]["validation"]["longest"] == 500
    official.train(tmp_path, "speech", **options)


def test_every_clip_is_in_its_official_split_sample_by_sample(folder):
    place = Speech.prepare(folder, ALL)
    assert np.load(place / "train.inputs.npy").dtype == np.int16
    task, listed = Speech.load(ALL), names(folder)
    everything = np.concatenate([samples(folder / name) for name in listed["train"]]).astype(float)
    for split in ("train", "validation", "test"):
        batch = official.whole(getattr(task, split))
        assert batch.targets.tolist() == [WORDS.index(name.split("/")[0]) for name in listed[split]]
        for given, length, name in zip(batch.inputs, batch.lengths.tolist(), listed[split], strict=True):
            expected = (samples(folder / name) - everything.mean()) / everything.std()
            assert length == len(expected)
            torch.testing.assert_close(given[:length, 0].double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
    assert {12001, 16000} == set(task.train.lengths.tolist())


@pytest.mark.parametrize("rate", [8000, 4000, 2000])
def test_a_lower_rate_keeps_every_so_many_samples_of_the_same_numbers(rate, folder):
    lower = Speech.Config(examples=24, held_out=6, rate=rate)
    for options in (ALL, lower):
        Speech.prepare(folder, options)
    full, slow = Speech.load(ALL), Speech.load(lower)
    assert slow.spec.length == rate
    step = 16000 // rate
    for split in ("train", "validation", "test"):
        before, after = (official.whole(getattr(task, split)) for task in (full, slow))
        for row in range(len(before)):
            expected = before.inputs[row, : before.lengths[row] : step]
            assert int(after.lengths[row]) == len(expected)
            torch.testing.assert_close(after.inputs[row, : len(expected)], expected, atol=0, rtol=0)


def test_ten_classes_keep_the_splits_of_all(folder):
    few = Speech.Config(classes=10, examples=16, held_out=4)
    Speech.prepare(folder, few)
    task, listed = Speech.load(few), names(folder)
    commands = sorted(COMMANDS)
    for split in ("train", "validation", "test"):
        expected = [name for name in listed[split] if not name.startswith("tree")]
        given = getattr(task, split)
        assert given.labels.tolist() == [commands.index(name.split("/")[0]) for name in expected]
        for row, name in zip(given.inputs, expected, strict=True):
            known = samples(folder / name)
            np.testing.assert_array_equal(row[: len(known), 0], known)


def test_a_length_beyond_a_second_is_a_second():
    keys = [Speech.key(Speech.Config(rate=8000, max_length=length)) for length in (8000, 16000, 7999)]
    assert keys[0] == keys[1] != keys[2]


def test_folder_and_archive_give_the_same_data(folder, tmp_path):
    sources = [folder, official.tar(folder, tmp_path / "a.tar.gz"), official.zipped(folder, tmp_path / "a.zip")]
    assert len({store.manifest(Speech.prepare(source, ALL))["sha256"] for source in sources}) == 1


def test_a_clip_that_stands_in_two_splits_is_counted_and_told(folder):
    listed = names(folder)
    (folder / listed["test"][1]).write_bytes((folder / listed["train"][0]).read_bytes())
    place = Speech.prepare(folder, ALL)
    assert store.manifest(place)["duplicates"] == 1
    assert store.verify(place).notes == ["test example 1 is also train example 0"]


def rewrite(folder: Path, **form) -> None:
    official.sound(folder / "no" / "00000001_nohash_0.wav", np.arange(form.pop("size", 16000)), **form)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: rewrite(folder, rate=8000), r"no/00000001_nohash_0\.wav has \(1, 2, 8000\) channels"),
        (lambda folder: rewrite(folder, channels=2), r"has \(2, 2, 16000\) channels"),
        (lambda folder: rewrite(folder, size=16001), "holds 16001 samples and says 16001; 1 to 16,000"),
        (lambda folder: rewrite(folder, size=0), "holds 0 samples and says 0"),
        (lambda folder: official.cut(folder / "no/00000001_nohash_0.wav", 0.5), "says 16000; 1 to 16,000 expected"),
        (lambda folder: official.cut(folder / "no/00000001_nohash_0.wav", 0.0), "is no sound file .* it ends early"),
        (lambda folder: (folder / "no/00000001_nohash_0.wav").write_bytes(b"MP3 " * 99), "is no sound file"),
        (lambda folder: (folder / names(folder)["test"][0]).unlink(), r"no/.*\.wav is listed and not there"),
        (lambda folder: (folder / "testing_list.txt").unlink(), r"has no testing_list\.txt; expected speech_commands"),
        (
            lambda folder: (folder / "testing_list.txt").write_text(" ".join(names(folder)["validation"])),
            r"stands in both lists, validation_list\.txt and testing_list\.txt",
        ),
        (lambda folder: (folder / "validation_list.txt").write_text(""), "each split needs some"),
    ],
)
def test_damage_is_told_with_its_file(harm, words, folder):
    harm(folder)
    with pytest.raises(BadData, match=words):
        Speech.prepare(folder, ALL)
    assert not store.is_here("speech", ALL)


def test_nothing_but_silence_is_refused(folder):
    for path in folder.glob("[a-z]*/*.wav"):
        official.sound(path, np.full(100, 7))
    with pytest.raises(BadData, match="all training clips are silent"):
        Speech.prepare(folder, ALL)


def test_wrong_counts_and_a_cut_archive_are_told_on_the_command_line(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "speech_commands_v0.02.tar.gz")
    assert "has 24 train examples, 84,843 were expected" in official.refused("speech", archive)
    official.cut(archive, 0.7)
    assert "damaged or incomplete" in official.refused("speech", archive, examples=16, held_out=6)
