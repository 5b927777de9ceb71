"""Prepared data: written whole or not at all, read by mapping, and checked again on demand."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import made_tasks
import numpy as np
import pytest
import torch
from made_tasks import Brought, Waves

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.tasks import store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.records import described
from ssm_priors.tasks.task import SPLITS

WAVES = Waves.Config()
TOKENS = TaskSpec(kind="token", length=4, classes=3, vocabulary=9)


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    with made_tasks.registered():
        yield


@pytest.fixture
def numbers(tmp_path) -> Path:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(f"{number:04}" for number in range(100, 160)))
    return path


def chunk(first: int, rows: int = 4) -> Chunk:
    ids = np.array([[int(digit) for digit in f"{number:04}"] for number in range(first, first + rows)])
    return Chunk(ids % 9, np.full(rows, 4), np.arange(rows) % 3)


def write(spec: TaskSpec = TOKENS, dtype: str = "uint8", duplicates="refuse", **changed: list[Chunk]) -> Path:
    parts = {name: [chunk(1000 * at)] for at, name in enumerate(SPLITS, 1)} | changed
    splits = {name: Incoming(sum(len(one.targets) for one in part), part) for name, part in parts.items()}
    layout = Layout(dtype=dtype, duplicates=duplicates)
    return store.write("brought", Brought.Config(), spec, layout, splits, source="a test")


def test_what_is_stored_is_what_was_given_and_is_mapped_from_the_disk():
    task = Waves.load(WAVES)
    for split, size in zip(SPLITS, (60, 20, 30), strict=True):
        stored = getattr(task, split)
        given = list(Waves.chunks(split, size, made_tasks.LENGTH))
        inputs, lengths, targets = (np.concatenate(parts) for parts in zip(*given, strict=True))
        assert stored.inputs.dtype == torch.uint8
        np.testing.assert_array_equal(stored.inputs, inputs)
        batch = stored.take(torch.arange(size))
        np.testing.assert_array_equal(batch.lengths, lengths)
        np.testing.assert_array_equal(batch.targets, targets)
        np.testing.assert_allclose(batch.inputs, inputs[:, : lengths.max()] / 127 - 1, atol=1e-6)
    path = store.folder_of("waves", WAVES) / "train.inputs.npy"
    with open("/proc/self/maps" if os.path.exists("/proc/self/maps") else path, "rb") as maps:
        assert not os.path.exists("/proc/self/maps") or str(path).encode() in maps.read()


def test_generated_data_are_made_once_and_keyed_by_the_options_that_decide_them():
    first = Waves.load(WAVES)
    folder = store.folder_of("waves", WAVES)
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert Waves.load(replace(WAVES, told=False)).sha256 == first.sha256
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert store.prepare("waves", WAVES) == Waves.prepare(None, WAVES, store.silent) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert Waves.load(replace(WAVES, examples=90)).sha256 != first.sha256
    assert len([entry for entry in store.data_dir().iterdir() if entry.is_dir()]) == 2


def test_the_manifest_says_what_a_person_wants_to_know():
    found = store.manifest(store.prepare("waves", WAVES))
    train = found["splits"]["train"]
    assert train["examples"] == sum(train["labels"]["counts"]) == 60
    assert 6 <= train["shortest"] <= train["mean_length"] <= train["longest"] <= 12
    assert (found["task"], found["source"], found["duplicates"]) == ("waves", "generated from a seed", 0)
    assert found["options"] == {"examples": 60, "max_length": 12, "told": True}
    assert set(found["files"]) == {f"{split}.{part}.npy" for split in SPLITS for part in store.PARTS}
    assert store.stored_spec(found) == Waves.spec(WAVES)


def test_the_data_folder_changes_no_result(monkeypatch, tmp_path):
    here = Waves.load(WAVES).sha256
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "elsewhere"))
    assert Waves.load(WAVES).sha256 == here


def test_without_a_folder_given_it_is_the_platforms_cache(monkeypatch):
    monkeypatch.delenv("SSMP_DATA_DIR")
    assert "ssm-priors" in str(store.data_dir())
    assert store.data_dir().is_absolute()


def test_what_a_user_must_bring_is_named_with_the_command(numbers):
    options = Brought.Config(lowest=3)
    with pytest.raises(NotReady) as refusal:
        Brought.load(options)
    text = str(refusal.value)
    assert "numbers.txt" in text
    assert "Institute of Numbers" in text
    assert f"ssmp data prepare brought --source PATH --data-dir {store.data_dir()} --set lowest=3" in text
    assert text == store.missing("brought", options)
    store.prepare("brought", options, numbers)
    assert store.missing("brought", options) == ""
    assert len(Brought.load(options).train) == 20


def test_a_source_that_is_not_asked_for_or_not_there_is_refused(numbers):
    with pytest.raises(BadConfig, match="takes no --source"):
        store.prepare("waves", WAVES, numbers)
    with pytest.raises(BadConfig, match=r"no such file.*numbers\.txt was expected"):
        store.prepare("brought", Brought.Config(), numbers.with_name("other.txt"))
    with pytest.raises(BadConfig, match="nothing to prepare"):
        store.prepare("large", None)


def test_a_source_given_again_replaces_what_was_there(numbers):
    store.prepare("brought", Brought.Config(), numbers)
    before = Brought.load(Brought.Config())
    numbers.write_text("\n".join(f"{number:04}" for number in range(300, 390)))
    store.prepare("brought", Brought.Config(), numbers)
    assert len(Brought.load(Brought.Config()).train) == 30
    assert before.train.take(torch.tensor([0])).inputs.tolist() == [
        [0, 1, 0, 0]
    ]  # the old map still reads the old file


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"test": [chunk(3000), chunk(5000)._replace(targets=np.array([0, 1, 3, 0]))]}, "test example 6 has a class"),
        ({"train": [chunk(1000)._replace(inputs=np.full((4, 4), 9))]}, "train example 0 has a token id"),
        ({"train": [chunk(1000)._replace(lengths=np.array([4, 4, 0, 4]))]}, "train example 2 has 0 valid positions"),
        ({"train": [chunk(1000)._replace(inputs=np.zeros((4, 5), int))]}, "at most \\(4,\\) expected"),
        ({"train": [chunk(1000)._replace(lengths=np.array([4]))]}, "4 rows, 1 lengths"),
        ({"validation": [chunk(2000), chunk(1002)]}, "validation example 4 is also train example 2"),
        ({"train": []}, "the train split is empty"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_its_row_and_leaves_nothing(changed, words):
    with pytest.raises(BadData, match=words):
        write(**changed)
    assert not store.is_here("brought", Brought.Config())
    assert [entry.name for entry in store.data_dir().iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize("announced", [3, 5])
def test_counts_that_are_not_those_announced_are_refused(announced):
    splits = {name: Incoming(announced, [chunk(1000 * at)]) for at, name in enumerate(SPLITS, 1)}
    with pytest.raises(BadData, match=str(announced)):
        store.write("waves", WAVES, TOKENS, Layout(dtype="uint8"), splits, source="a test")


def test_bytes_that_cannot_hold_the_values_are_refused():
    wide = replace(TOKENS, vocabulary=1000)
    with pytest.raises(BadData, match="cannot be stored as uint8"):
        write(wide, train=[chunk(1000)._replace(inputs=np.full((4, 4), 999))])
    write(wide, "int16", train=[chunk(1000)._replace(inputs=np.full((4, 4), 999))])


def test_allowed_duplicates_are_counted_and_known_to_verify():
    folder = write(duplicates="report", test=[chunk(1001)])
    assert store.manifest(folder)["duplicates"] == 3
    verdict = store.verify(folder)
    assert verdict.faults == []
    assert verdict.notes[0] == "test example 0 is also train example 1"


def test_a_pair_is_a_duplicate_only_as_a_whole():
    spec = replace(TOKENS, documents=2)

    def pairs(*firsts: int) -> list[Chunk]:
        ids = np.concatenate([chunk(first, 1).inputs for first in firsts])
        return [Chunk(ids, np.full(len(ids), 4), np.zeros(len(ids) // 2, int))]

    write(spec, train=pairs(11, 12), validation=pairs(12, 11), test=pairs(11, 13))
    with pytest.raises(BadData, match="test example 0 is also train example 0"):
        write(spec, train=pairs(11, 12), validation=pairs(12, 11), test=pairs(11, 12))


def test_short_chunks_are_filled_up_and_asked_nothing_there():
    spec = replace(TOKENS, answer="tokens")

    def short(first: int) -> list[Chunk]:
        one = chunk(first)
        return [one._replace(inputs=one.inputs[:, :3], lengths=np.full(4, 3), targets=one.inputs[:, :3] % 3)]

    folder = write(spec, train=short(1000), validation=short(2000), test=short(3000))
    targets = np.load(folder / "train.targets.npy")
    assert (targets[:, 3] == -1).all()
    assert (np.load(folder / "train.inputs.npy")[:, 3] == 0).all()
    assert store.verify(folder) == store.Verdict([], [])


# -- verify


def damage_manifest(folder: Path, change) -> None:
    found = json.loads((folder / "manifest.json").read_text())
    change(found)
    (folder / "manifest.json").write_text(json.dumps(found))


def flip(path: Path, value: int = 255) -> None:
    content = bytearray(path.read_bytes())
    content[-1] = value
    path.write_bytes(content)


def test_all_is_well_with_what_was_just_written():
    assert store.verify(store.prepare("waves", WAVES)) == store.Verdict([], [])


@pytest.mark.parametrize("part", store.PARTS)
def test_a_changed_byte_is_found(part):
    folder = store.prepare("waves", WAVES)
    flip(folder / f"validation.{part}.npy")
    [fault] = store.verify(folder).faults
    assert fault.startswith(f"validation.{part}.npy: its SHA-256 is")


def test_values_out_of_range_are_found_with_file_and_row_even_if_the_hash_says_otherwise():
    folder = write()
    flip(folder / "train.inputs.npy", 200)

    def accept(found):
        found["files"]["train.inputs.npy"] |= described(folder / "train.inputs.npy")

    damage_manifest(folder, accept)
    assert store.verify(folder).faults == ["train.inputs.npy, example 3: a token id outside 0 .. 8"]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "test.targets.npy").unlink(), "missing"),
        (lambda folder: (folder / "test.targets.npy").write_bytes(b"short"), "5 bytes"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read"),
        (lambda folder: damage_manifest(folder, lambda found: found.update(format=99)), "format 99"),
        (lambda folder: damage_manifest(folder, lambda found: found.pop("sha256")), "cannot be read"),
    ],
)
def test_a_damaged_folder_is_never_trained_on(harm, words):
    folder = store.prepare("waves", WAVES)
    harm(folder)
    with pytest.raises(BadData, match=words) as refusal:
        Waves.load(WAVES)
    assert "prepare the task again" in str(refusal.value)


def test_blocks_change_nothing_but_memory(monkeypatch):
    folder = store.prepare("waves", WAVES)
    monkeypatch.setattr(store, "BLOCK", 30)
    assert store.verify(folder) == store.Verdict([], [])


# -- processes


def test_two_processes_that_prepare_the_same_do_it_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    go, ready, made = context.Event(), context.Queue(), context.Queue()
    arguments = (str(tmp_path / "data"), go, ready, made)
    processes = [context.Process(target=made_tasks.prepare_watched, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.get(timeout=120)
    go.set()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(made.get(timeout=5) for _ in range(3)) == sorted(SPLITS)
    assert made.empty()
    assert store.verify(store.folder_of("waves", WAVES)) == store.Verdict([], [])


def test_what_a_killed_process_left_is_cleared_away():
    folder = store.folder_of("waves", WAVES)
    left = folder.with_name(f".{folder.name}.123.tmp")
    left.mkdir(parents=True)
    (left / "train.inputs.npy").write_bytes(b"half")
    store.prepare("waves", WAVES)
    assert not left.exists()
