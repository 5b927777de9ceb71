"""Whatever cannot be used is refused with its file, row and column, and nothing is left behind."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_files
import pytest
from own_files import load, manifest, own, rows
from task_runs import refused, ssmp

from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.tasks import store


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def broken(tmp_path: Path, change: Callable[[list[list[Any]]], None]) -> Path:
    """A table of 20 rows after its header, changed."""
    table: list[list[Any]] = [["label", "a", "b", "c"]]
    table += [["xy"[row % 2], row, row + 0.5, -row] for row in range(20)]
    change(table)
    return rows(tmp_path / "broken.csv", table)


def split_by(table: list[list[Any]], names: list[str]) -> None:
    """Add a column `split` that goes through these names again and again."""
    for row, line in enumerate(table):
        line.append(names[(row - 1) % len(names)] if row else "split")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table[5].__setitem__(2, "high"), "row 6, column 'b': 'high' was found; a finite number"),
        (lambda table: table[5].__setitem__(2, "nan"), "row 6, column 'b': empty; only the last cells"),
        (lambda table: table[5].__setitem__(2, "inf"), "row 6, column 'b': 'inf' was found"),
        (lambda table: table[5].__setitem__(2, "1_0"), "row 6, column 'b': '1_0' was found"),
        (lambda table: table[5].__setitem__(0, ""), "row 6, column 'label': '' is no label"),
        (lambda table: table[5].__setitem__(slice(1, 4), ["", "", ""]), "row 6: the series is empty"),
        (lambda table: table[5].append(9), "row 6: 5 cells, but the header has 4 columns"),
        (lambda table: table[5].pop(), "row 6: 3 cells"),
        (lambda table: table[0].__setitem__(0, "lable"), "no column 'label'. Did you mean lable?"),
        (lambda table: table[0].__setitem__(2, "a"), "row 1: two columns are called 'a'"),
        (lambda table: table.pop(0), "row 1: two columns are called '0'"),
        (lambda table: table.__delitem__(slice(0, None)), "the file is empty"),
        (lambda table: table.__delitem__(slice(1, None)), "no examples"),
        (lambda table: table.__delitem__(slice(3, None)), "2 different labels in 2 examples"),
        (lambda table: [line.__setitem__(0, "x") for line in table[1:]], "every label is 'x'"),
        (lambda table: [line.__setitem__(0, at / 7) for at, line in enumerate(table[1:])], "task.target=number"),
        (
            lambda table: [line.append("split" if at == 0 else "no") for at, line in enumerate(table)],
            "'no' is no split",
        ),
        (
            lambda table: [line.append("split" if at == 0 else "train") for at, line in enumerate(table)],
            "no example is of the test split",
        ),
        (
            lambda table: [
                line.append("split" if at == 0 else ["train", "test"][at % 2]) for at, line in enumerate(table)
            ],
            "row 2: class 'x' has no example in the training split",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_row_and_column(change, words, tmp_path):
    path = broken(tmp_path, change)
    said = " ".join(refused(f"files:{path}", "--set", "split_seed=0").split())
    assert words in said
    assert str(path) in said
    assert not list(store.data_dir().glob("files*/manifest.json"))


def test_a_repeat_within_a_split_is_no_leak_and_one_across_may_be_counted(tmp_path):
    path = broken(tmp_path, lambda table: [line.__setitem__(slice(1, 4), [1, 2, 3]) for line in table[1:]])
    with pytest.raises(BadData, match=r"row \d+ \(validation\) holds the same series as .* row \d+ \(train\)"):
        load(path)
    load(path, duplicates="report")
    assert manifest(path, duplicates="report")["duplicates"] > 0


def test_a_header_of_numbers_is_no_header(tmp_path):
    path = rows(tmp_path / "none.csv", [[1, 0.5, 0.25], [2, 0.5, 0.75]])
    with pytest.raises(BadData, match="the first row must name the columns"):
        load(path)


def test_another_delimiter_is_asked_for(tmp_path):
    path = own_files.wide(tmp_path, own(), "semicolons.csv", ";")
    with pytest.raises(BadConfig, match="no column 'label'"):
        load(path)
    assert load(path, delimiter=";").sha256 == load(own_files.wide(tmp_path, own())).sha256


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'label,a,b\nx,1,"2\n', "not a CSV"),
        (b"label,a,b\nx,1,2\ny,\xff,3\n", "not UTF-8 text"),
        (b"label,a,b\n" + b"x,1 2,3\n", "must have the same number of steps"),
        (b"label,a,b\n" + b'x,"[1,2]","[1,z]"\n', "row 2, column 'b'"),
        (b"label,a\n" + b'x,"[[1,2],[3]]"\n', "row 2, column 'a': '[[1,2],[3]]' is no list of numbers"),
        (b"label,a\nx,1 2\ny,\n", "row 3, column 'a': the series is empty"),
        (b"label,a\nx,1 2\ny,some words\n", "row 3, column 'a': 'some words' is no list of numbers"),
        (b"label,a,b\nx,words,here\n", "row 2, column 'a': 'words' was found; a finite number"),
        (b"label,a\nx,1 nan\n", "step 1 is [nan]"),
    ],
)
def test_damaged_tables_are_refused(content, words, tmp_path):
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    said = " ".join(refused(f"files:{path}").split())
    assert words in said
    assert "damaged.csv" in said


def damage_npz(tmp_path: Path, **arrays: Any) -> Path:
    np.savez(tmp_path / "damaged.npz", **arrays)
    return tmp_path / "damaged.npz"


class Trap:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["SSMP_TRAP"],))


X, LABEL = np.arange(80.0).reshape(20, 4), np.arange(20) % 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X, "label": LABEL[:9]}, "array 'x': (20, 4) for 9 labels"),
        ({"x": X, "y": LABEL}, "no array 'label'. Its arrays: x (20, 4), y (20,)"),
        ({"x": X, "z": X, "label": LABEL}, "which array is the series?"),
        ({"x": X[:, 0], "label": LABEL}, "numbers (N, L) or (N, L, features)"),
        ({"x": X, "label": X}, "array 'label': of shape (20, 4)"),
        ({"x": X, "label": LABEL, "lengths": np.full(20, 5)}, "example 0: 5 valid steps; 1 to 4 were expected"),
        ({"x": X, "label": LABEL, "lengths": np.full(20, 2.5)}, "2.5 was found; a whole number"),
        ({"x": np.where(X == 41, np.nan, X), "label": LABEL}, "example 10, array 'x': step 1 is [nan]"),
        ({"x": np.where(X >= 40, np.nan, X), "label": LABEL}, "example 10: 0 valid steps"),
    ],
)
def test_damaged_arrays_are_refused(arrays, words, tmp_path):
    said = " ".join(refused(f"files:{damage_npz(tmp_path, **arrays)}").split())
    assert words in said
    assert "damaged.npz" in said


def test_pickled_objects_are_never_read(tmp_path, monkeypatch):
    trap = tmp_path / "sprung"
    monkeypatch.setenv("SSMP_TRAP", str(trap))
    bad = np.empty(20, dtype=object)
    bad[:] = [Trap() for _ in range(20)]
    np.savez(tmp_path / "objects.npz", x=bad, label=LABEL, allow_pickle=True)
    for name in ("plain", "npy"):
        (tmp_path / name / "a").mkdir(parents=True)
    (tmp_path / "npy" / "a" / "0.npy").write_bytes(pickle.dumps(Trap()))
    assert "Python objects" in refused(f"files:{tmp_path / 'objects.npz'}")
    assert "cannot be read as an array" in refused(f"files:{tmp_path / 'npy'}")
    assert not trap.exists()


def test_a_cut_off_archive_is_refused(tmp_path):
    path = own_files.npz(tmp_path, own())
    path.write_bytes(path.read_bytes()[:-40])
    assert "nan.npz cannot be read as NPZ" in refused(f"files:{path}")
    path = own_files.npz_with_lengths(tmp_path, own())
    content = bytearray(path.read_bytes())
    at = content.index(np.float64(7.0).tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert "damaged: Bad CRC" in refused(f"files:{path}", "--set", 'series=["x0"]')


def test_a_damaged_zarr_group_is_refused(tmp_path):
    path = own_files.zarr(tmp_path, own())
    chunk = next(entry for entry in sorted((path / "x").rglob("*")) if entry.is_file() and entry.name != "zarr.json")
    chunk.write_bytes(b"\0\1\2 damaged")
    said = refused(f"files:{path}")
    assert "array 'x', from example 0 on: damaged" in said
    (path / "x" / "zarr.json").write_text("{")
    assert str(path) in refused(f"files:{path}")


def test_a_damaged_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed, so Parquet is not tested")
    path = own_files.parquet(tmp_path, own())
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert "lists.parquet cannot be read as Parquet" in refused(f"files:{path}")
    path.write_bytes(content[:40] + bytes(60) + content[100:])
    assert "lists.parquet" in refused(f"files:{path}")


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(NotReady, match=r"pip install 'ssm-priors\[parquet\]'"):
        load(tmp_path / "a.parquet")


def listed(folder: Path, name: str) -> Path:
    """A labels.csv that names one file."""
    return rows(folder / "labels.csv", [["file", "label"], [name, "a"]])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "README").write_text("hello"), "README: lies beside the folders of classes"),
        (lambda folder: (folder / "cat" / "a.jpg").write_bytes(b"1"), "a.jpg: .npy, .csv, .tsv, .wav or .txt"),
        (lambda folder: (folder / "cat" / "a.csv").write_text("1,2\n3,x\n"), "a.csv, row 2, column 2: 'x'"),
        (lambda folder: (folder / "cat" / "a.csv").write_text("1,2\n3\n"), "a.csv, row 2: 1 columns, 2 in"),
        (lambda folder: (folder / "cat" / "a.csv").write_text("1,2\n3,4\n"), "2 features a step; like the examples"),
        (lambda folder: (folder / "cat" / "a.csv").write_text(""), "a.csv: no numbers"),
        (lambda folder: (folder / "cat" / "a.txt").write_text("words"), "a.txt: a text; like the examples before"),
        (lambda folder: (folder / "cat" / "a.wav").write_bytes(b"RIFFnot"), "a.wav cannot be read as WAV"),
        (lambda folder: np.save(folder / "cat" / "a.npy", np.ones((2, 2, 2))), "a.npy: float64 of shape (2, 2, 2)"),
        (lambda folder: np.save(folder / "cat" / "a.npy", np.array([1, np.inf])), "a.npy, its series: step 1"),
        (lambda folder: rows(folder / "labels.csv", [["file", "label"], ["../x", "a"]]), "row 2, column 'file'"),
        (
            lambda folder: rows(folder / "labels.csv", [["file", "label"], ["no.npy", "a"]]),
            "row 2, column 'file': no such",
        ),
    ],
)
def test_folders_that_cannot_be_used_are_refused(harm, words, tmp_path):
    folder = own_files.folder_of_arrays(tmp_path, own(12))
    harm(folder)
    assert words in " ".join(refused(f"files:{folder}").split())


def test_sounds_of_two_rates_are_refused(tmp_path):
    for number, rate in enumerate([8000, 8000, 16000, 8000]):
        own_files.sound(tmp_path / "wav" / "ab"[number % 2] / f"{number}.wav", np.arange(50) * number, rate)
    assert "16000 samples a second, 8000 in the files before" in refused(f"files:{tmp_path / 'wav'}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["validation=0.6", "test=0.5"], "leave nothing to train on"),
        (["validation=0"], "greater than 0"),
        (["unit=bpm"], "set target = number"),
        (["delimiter=ab"], "one character was expected"),
        (["series=zz*"], "no column 'zz*'"),
        (["lable=label"], "Did you mean label?"),
        (["kind=text"], "a text stands in one column"),
        (["target=number"], "row 2, column 'label': 'cat' was found; a finite number was expected"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(changes, words, tmp_path):
    path = own_files.wide(tmp_path, own())
    assert words in " ".join(refused(f"files:{path}", *(part for one in changes for part in ("--set", one))).split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("files", "is one of many: files:PATH was expected"),
        ("files:", "is one of many"),
        ("file:/a/b.csv", "Did you mean files:/a/b.csv?"),
        ("files:/no/such/data.csv", "/no/such/data.csv: no such file or folder"),
    ],
)
def test_names_that_lead_nowhere_are_told_in_a_line(name, words):
    for said in (ssmp("data", "prepare", name), ssmp("train", "--task", name), ssmp("data", "verify", name)):
        assert said.exit_code == 2
        assert words in " ".join(said.stderr.split())


def test_a_file_of_no_known_kind_is_refused(tmp_path):
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    assert ".csv, .tsv, .tab, .parquet, .pq, .npz, a Zarr group or a folder" in refused(
        f"files:{tmp_path / 'data.xlsx'}"
    )
