"""Pathfinder as a task: drawn here, and from folders as the benchmark's authors released them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from png_files import png
from task_runs import prepared, refused, ssmp, trains

from ssm_priors.errors import NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.crew import crew
from ssm_priors.tasks.generators import pathfinder
from ssm_priors.tasks.task import SPLITS

Pathfinder = TASKS["pathfinder"]
TINY = Pathfinder.Config(examples=8, level="easy")
OFFICIAL = Pathfinder.Config(data="official")
NAMES = {"pathfinder": 32, "pathx": 128, "pathx256": 256}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


def image(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (32, 32)).astype(np.uint8)


def label(number: int) -> int:
    return number % 3 % 2


def release_of(folder: Path, images: int = 20, ends: str = "\n") -> Path:
    """`images` files in two folders, as metadata of two files list them."""
    level = folder / "pathfinder32" / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    for half in range(2):
        (level / "imgs" / str(half)).mkdir(parents=True)
        numbers = range(half * images // 2, (half + 1) * images // 2)
        for number in numbers:
            (level / "imgs" / str(half) / f"sample_{number}.png").write_bytes(png(image(number), [4] * 32))
        rows = [f"imgs/{half} sample_{number}.png {number} {label(number)} 1.0 14 0.5" for number in numbers]
        (level / "metadata" / f"{half}.npy").write_bytes((ends.join(rows) + ends).encode())
    return level


@pytest.fixture
def release(tmp_path) -> Path:
    return release_of(tmp_path / "release")


def known(split) -> list[tuple[int, int]]:
    """Number and label of each image of a split of the release."""
    numbers = {image(number).tobytes(): number for number in range(40)}
    stored = split.inputs.numpy().reshape(-1, 1024)
    return [(numbers[pixels.tobytes()], int(one)) for pixels, one in zip(stored, split.labels, strict=True)]


# -- drawn here


@pytest.mark.parametrize(("name", "side"), NAMES.items())
def test_images_are_read_row_by_row(name, side):
    spec = TASKS[name].spec(TASKS[name].Config())
    assert (spec.length, spec.width, spec.classes, spec.kind) == (side**2, side, 2, "continuous")
    options = TASKS[name].Config(examples=2, held_out=2)
    task = TASKS[name].load(options)
    drawn = pathfinder.rows(pathfinder.options(side, "hard"), "train", 0, 2)
    taken = task.train.take(torch.arange(2))
    np.testing.assert_allclose(taken.inputs.reshape(2, side, side), drawn.inputs / 127.5 - 1, atol=1e-6)
    assert sorted(taken.targets.tolist()) == [0, 1]
    assert taken.targets.tolist() == drawn.targets.tolist()


def test_it_does_not_matter_how_many_processes_draw(tmp_path, monkeypatch):
    monkeypatch.setattr("ssm_priors.tasks.pathfinder.TOGETHER", 2)
    alone = Pathfinder.load(TINY).sha256
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "other"))
    with crew(2):
        assert Pathfinder.load(TINY).sha256 == alone


def test_levels_are_different_data():
    assert len({store.folder_of("pathfinder", Pathfinder.Config(level=level)) for level in pathfinder.LEVELS}) == 3


def test_a_small_version_through_the_command_trains(tmp_path):
    found = prepared("pathfinder", "--set", "examples=8", "--set", "level=easy")
    assert [found["splits"][split]["labels"]["counts"] for split in SPLITS] == [[4, 4], [2, 2], [2, 2]]
    trains(tmp_path, "pathfinder", 8, "--examples", "8", "--set", "task.level=easy")
    assert 'level = "easy"' in (tmp_path / "masked" / "run.toml").read_text()


# -- official


def test_every_image_is_used_once_with_its_label(release):
    found = prepared("pathfinder", "--source", release.parents[1])
    assert found["notes"] == {"images listed": 20, "images left out": 0, "left out": []}
    task = Pathfinder.load(OFFICIAL)
    parts = [known(getattr(task, split)) for split in SPLITS]
    assert [len(part) for part in parts] == [16, 2, 2]
    assert sorted(one for part in parts for one in part) == [(number, label(number)) for number in range(20)]


@pytest.mark.parametrize("above", [0, 1, 2])
def test_any_of_the_folders_may_be_given(release, above):
    place = [release, *release.parents][above]
    assert ssmp("data", "prepare", "pathfinder", "--source", place).exit_code == 0


def test_windows_line_ends_change_nothing(tmp_path, release):
    store.prepare("pathfinder", OFFICIAL, release)
    before = Pathfinder.load(OFFICIAL).sha256
    store.prepare("pathfinder", OFFICIAL, release_of(tmp_path / "other", ends="\r\n"))
    assert Pathfinder.load(OFFICIAL).sha256 == before


def test_an_empty_a_cut_and_a_missing_image_are_left_out_and_named(release):
    (release / "imgs/0/sample_3.png").write_bytes(b"")
    whole = (release / "imgs/0/sample_7.png").read_bytes()
    (release / "imgs/0/sample_7.png").write_bytes(whole[:200])
    (release / "imgs/1/sample_15.png").unlink()
    said = ssmp("data", "prepare", "pathfinder", "--source", release)
    assert said.exit_code == 0
    assert "images left out: 3" in said.stdout
    found = store.manifest(store.folder_of("pathfinder", OFFICIAL))
    for name, fault in zip(("sample_3", "sample_7", "sample_15"), found["notes"]["left out"], strict=True):
        assert name in fault
    task = Pathfinder.load(OFFICIAL)
    left = sorted(one for split in SPLITS for one in known(getattr(task, split)))
    assert [number for number, _ in left] == [number for number in range(20) if number not in (3, 7, 15)]
    assert all(one == label(number) for number, one in left)


def test_fewer_images_may_be_asked_for_and_the_split_stays(release, tmp_path):
    store.prepare("pathfinder", OFFICIAL, release)
    whole = Pathfinder.load(OFFICIAL)
    few = Pathfinder.Config(data="official", examples=6, held_out=1)
    store.prepare("pathfinder", few, release)
    task = Pathfinder.load(few)
    assert [len(getattr(task, split)) for split in SPLITS] == [6, 1, 1]
    for split in SPLITS:
        assert set(known(getattr(task, split))) <= set(known(getattr(whole, split)))
    small = ["--examples", "6", "--set", "task.held_out=1", "--set", "task.data=official"]
    trains(tmp_path, "pathfinder", 6, *small)


def test_what_stands_in_two_splits_is_counted(release):
    for number in range(1, 18):
        (release / f"imgs/{number // 10}/sample_{number}.png").write_bytes(png(image(0)))
    said = ssmp("data", "prepare", "pathfinder", "--source", release)
    assert "examples stand in two splits" in said.stdout
    assert ssmp("data", "verify", "pathfinder", "--set", "data=official").exit_code == 0


def rewrite(path: Path, row: int, line: str) -> None:
    rows = path.read_text().splitlines()
    rows[row - 1] = line
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("imgs/1 sample_13.png 13 2", "1.npy, row 4: 'imgs/1 sample_13.png 13 2' is not"),
        ("imgs/1 sample_13.png", "1.npy, row 4: "),
        ("../../imgs/1 sample_13.png 13 1", "lies outside"),
        ("/etc passwd 13 1", "1.npy, row 4: '/etc/passwd' lies outside"),
        ("imgs/1 sämple_13.png 13 1", "cannot be read as text"),
    ],
)
def test_metadata_that_are_wrong_are_refused_with_file_and_row(release, line, words):
    rewrite(release / "metadata/1.npy", 4, line)
    assert words in refused("pathfinder", "--source", release)
    assert not store.is_here("pathfinder", OFFICIAL)


def test_folders_that_are_not_there_are_named(release, tmp_path):
    assert "pathfinder32/curv_baseline" in refused("pathfinder", "--source", release.parents[1], "--set", "level=easy")
    assert "pathfinder128" in refused("pathx", "--source", release.parents[1])
    for path in (release / "metadata").iterdir():
        path.unlink()
    assert "has no .npy files" in refused("pathfinder", "--source", release)


def test_images_of_another_size_are_all_left_out_and_that_is_refused(tmp_path):
    level = release_of(tmp_path / "release")
    level.parent.rename(level.parents[1] / "pathfinder128")
    assert "0 images that can be read" in refused("pathx", "--source", tmp_path / "release")


def test_official_images_that_are_not_here_are_named_with_the_command():
    with pytest.raises(NotReady, match=r"pathfinder32.*--set data=official"):
        Pathfinder.load(OFFICIAL)
