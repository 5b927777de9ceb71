"""Vital signs from PPG and ECG, from the official series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import official_files as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadData
from ssm_priors.metrics import metric_of
from ssm_priors.tasks import bidmc, store
from ssm_priors.tasks.bidmc import Bidmc, anchors

ALL = Bidmc.Config(examples=10, held_out=3)
SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return official.bidmc(tmp_path_factory.mktemp("bidmc"))


@pytest.fixture
def folder(shared, tmp_path) -> Path:
    for path in shared.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def given_windows(folder: Path, part: str) -> dict[bytes, float]:
    """Value of each window, by its samples."""
    found = {}
    for line in (folder / f"BIDMC32HR_{part}.ts").read_text().partition("@data\n")[2].split("\n")[:-1]:
        *channels, value = line.split(":")
        signals = np.array([channel.split(",") for channel in channels], dtype=np.float32).T
        found[signals.tobytes()] = float(value)
    return found


def patients(folder: Path) -> dict[bytes, int]:
    """The recording of each window of the module's files, known from how they were made."""
    rng, known = np.random.default_rng(0), {}
    for sizes in ((6, 6, 5, 5), (4, 4)):
        windows = [official.recording(rng, size) for size in sizes]
        for windows_of_one in windows:
            number = len(set(known.values()))
            known |= {window.astype(np.float32).tobytes(): number for window in windows_of_one}
        count = sum(sizes)
        rng.permutation(count)
        rng.uniform(60, 99, count)
    return known


def stored(options: Bidmc.Config = ALL) -> dict[str, list[tuple[bytes, float]]]:
    task = Bidmc.load(options)
    batches = {split: official.whole(getattr(task, split)) for split in SPLITS}
    return {
        split: [(row.numpy().tobytes(), value) for row, value in zip(batch.inputs, batch.targets.tolist(), strict=True)]
        for split, batch in batches.items()
    }


def test_the_official_files_are_read_by_a_real_process_and_trained_on(folder, tmp_path):
    said = official.prepared("bidmc", folder, examples=16, held_out=3, max_length=200)
    assert [said["splits"][split]["examples"] for split in SPLITS] == [16, 3, 3]
    official.train(tmp_path, "bidmc", examples=16, held_out=3, max_length=200)
    assert metric_of(Bidmc.load(Bidmc.Config(examples=16, held_out=3, max_length=200)).spec).label == "RMSE, bpm"


def test_every_window_is_of_the_files_with_its_value(folder):
    Bidmc.prepare(folder, ALL)
    train, test = given_windows(folder, "TRAIN"), given_windows(folder, "TEST")
    for split, rows in stored().items():
        for window, [value] in rows:
            assert (test if split == "test" else train)[window] == pytest.approx(value, rel=1e-6)


def test_no_recording_is_in_two_splits_and_validation_has_about_its_share(folder, monkeypatch):
    monkeypatch.setitem(bidmc.OFFICIAL, "HR", (22, 8))
    place = Bidmc.prepare(folder, Bidmc.Config())
    known = patients(folder)
    found = {split: {known[window] for window, _ in rows} for split, rows in stored(Bidmc.Config()).items()}
    assert found["test"] == {4, 5}
    assert found["train"] | found["validation"] == {0, 1, 2, 3}
    assert not found["train"] & found["validation"]
    notes = store.manifest(place)["notes"]
    assert notes["recordings"] == {split: len(numbers) for split, numbers in found.items()}
    sizes = {split: len(rows) for split, rows in stored(Bidmc.Config()).items()}
    assert sizes["test"] == 8
    assert sizes["train"] + sizes["validation"] == 22
    assert 4 <= sizes["validation"] <= 6  # one recording: 15% of 22 is 3.3


def test_a_recording_in_both_files_is_refused_and_may_be_dealt_out(folder):
    windows = official.recording(np.random.default_rng(9), 5)
    rng = np.random.default_rng(1)
    own = [official.recording(rng, 8) for _ in range(3)]
    official.series(folder / "BIDMC32HR_TRAIN.ts", own[0] + own[1] + windows[:2], [80.0] * 18)
    official.series(folder / "BIDMC32HR_TEST.ts", own[2] + windows[3:], [80.0] * 10)
    with pytest.raises(BadData, match="2 windows of the test file share samples with 2 of the training file"):
        Bidmc.prepare(folder, ALL)
    dealt = Bidmc.Config(examples=20, held_out=4, split="random")
    Bidmc.prepare(folder, dealt)
    rows = [window for rows in stored(dealt).values() for window, _ in rows]
    assert len(set(rows)) == 28


def test_windows_of_one_recording_alone_cannot_be_split(folder):
    windows = official.recording(np.random.default_rng(9), 12)
    official.series(folder / "BIDMC32HR_TRAIN.ts", windows, [80.0] * 12)
    with pytest.raises(BadData, match="all training windows are of one recording"):
        Bidmc.prepare(folder, Bidmc.Config(examples=4, held_out=2))


@given(shift=st.integers(0, 3000), seed=st.integers(0, 99))
def test_windows_share_anchors_where_they_share_samples_and_nowhere_else(shift, seed):
    rng = np.random.default_rng(seed)
    long = np.round(np.cumsum(rng.normal(size=(7000, 2)), axis=0), 3)
    first, second = anchors(long[:4000]), anchors(long[shift : shift + 4000])
    assert 20 < len(first) < 130  # about one in 64 of 3,969
    common = np.intersect1d(first, second)
    inside = anchors(long[shift:4000])
    np.testing.assert_array_equal(common, inside)
    other = np.round(np.cumsum(rng.normal(size=(4000, 2)), axis=0), 3)
    assert len(np.intersect1d(first, anchors(other))) == 0


def test_signals_that_stand_still_join_nothing():
    flat = np.zeros((4000, 2))
    assert len(anchors(flat)) == 0
    flat[::4] = 1.0  # moves half of the time
    flat[2000:] = 3.0
    assert len(anchors(flat[2000:])) == 0
    assert len(anchors(np.zeros((10, 2)))) == 0


def test_the_targets_have_their_units_and_files(folder):
    for path in list(folder.glob("BIDMC32HR*")):
        path.rename(path.with_name(path.name.replace("HR", "SpO2")))
    options = Bidmc.Config(target="SpO2", examples=10, held_out=3)
    Bidmc.prepare(folder, options)
    assert Bidmc.load(options).spec.unit == "%"
    with pytest.raises(BadData, match=r"BIDMC32RR_TRAIN\.ts is not there"):
        Bidmc.prepare(folder, Bidmc.Config(target="RR"))


def test_a_zip_gives_what_its_folder_gives(tmp_path, shared):
    sources = [shared, official.zipped(shared, tmp_path / "bidmc.zip")]
    assert len({store.manifest(Bidmc.prepare(source, ALL))["sha256"] for source in sources}) == 1


def lines(folder: Path, change) -> None:
    path = folder / "BIDMC32HR_TRAIN.ts"
    head, mark, data = path.read_text().partition("@data\n")
    rows = data.split("\n")
    rows[2] = change(rows[2])
    path.write_text(head + mark + "\n".join(rows))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda row: row.rpartition(":")[0] + ":301", r"TRAIN\.ts, row 3: HR of 301\.0 bpm; 0\.0 to 300\.0 expected"),
        (lambda row: row.rpartition(":")[0] + ":-1", "HR of -1"),
        (lambda row: row.rpartition(":")[0], r"row 3 has fields of \[4000, 4000\] numbers"),
        (lambda row: row.partition(",")[2], r"row 3 has fields of \[3999, 4000, 1\] numbers"),
        (lambda row: "?," + row.partition(",")[2], "row 3: could not convert"),
        (lambda row: "NaN," + row.partition(",")[2], "row 3 has a number that is missing or not finite, the 1th"),
        (lambda row: row.rpartition(":")[0] + ":inf", "row 3 has a number that is missing"),
        (lambda row: row[:50000], "row 3 has fields of"),
    ],
)
def test_damage_is_told_with_file_and_row(harm, words, folder):
    lines(folder, harm)
    with pytest.raises(BadData, match=words):
        Bidmc.prepare(folder, ALL)
    assert not store.is_here("bidmc", ALL)


def test_a_file_of_another_form_is_told(folder, monkeypatch):
    (folder / "BIDMC32HR_TEST.ts").write_text("1,2,3\n")
    with pytest.raises(BadData, match=r"TEST\.ts has no line '@data'"):
        Bidmc.prepare(folder, ALL)
    monkeypatch.setattr(bidmc, "LONGEST_LINE", 1000)
    with pytest.raises(BadData, match=r"TRAIN\.ts: a line of more than 1,000 bytes"):
        Bidmc.prepare(folder, ALL)


def test_wrong_counts_are_told_on_the_command_line(folder):
    assert "has 22 train examples, 5,550 were expected" in official.refused("bidmc", folder)
    assert "BIDMC32RR_TRAIN.ts is not there" in official.refused("bidmc", folder, target='"RR"')
