"""CIFAR-10, in grey and in colour, from either version of its archive."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import official_files as official
import pytest
import torch

from ssm_priors.errors import BadData
from ssm_priors.tasks import image, store
from ssm_priors.tasks.image import Cifar, Image

FEW = image.Options(examples=16, held_out=10)


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return official.cifar(tmp_path / "cifar-10-batches-py")


def batch(folder: Path, name: str) -> dict:
    return pickle.loads((folder / name).read_bytes(), encoding="latin1")


def stored(kind, folder: Path, options=FEW) -> dict[str, np.ndarray]:
    """Stored bytes of every split, after it was prepared."""
    kind.prepare(folder, options)
    task = kind.load(options)
    return {split: getattr(task, split).inputs.numpy() for split in ("train", "validation", "test")}


def test_the_official_archive_is_read_by_a_real_process_and_trained_on(folder, tmp_path):
    archive = official.tar(folder, tmp_path / "cifar-10-python.tar.gz")
    said = official.prepared("image", archive, examples=16, held_out=10)
    assert [said["splits"][split]["examples"] for split in ("train", "validation", "test")] == [16, 10, 10]
    assert said["splits"]["test"]["labels"]["counts"] == [1] * 10
    assert said["duplicates"] == 0
    Cifar.prepare(archive, FEW)
    for task in ("image", "cifar"):
        official.train(tmp_path / task, task, examples=16, held_out=10)


def test_the_written_files_are_what_pickle_reads(folder):
    table = batch(folder, "data_batch_1")
    assert table["data"].shape == (20, 3072)
    assert table["labels"] == [row % 10 for row in range(20)]


def test_every_stored_image_is_one_of_its_split_with_its_label(folder):
    task_inputs = stored(Cifar, folder, image.Options(examples=90, held_out=10))
    task = Cifar.load(image.Options(examples=90, held_out=10))
    given = {}
    for name in ("train", "test"):
        files = [f"data_batch_{number}" for number in range(1, 6)] if name == "train" else ["test_batch"]
        for table in (batch(folder, file) for file in files):
            for row, label in zip(table["data"], table["labels"], strict=True):
                given[row.reshape(3, 1024).T.tobytes()] = (name, label)
    found = []
    for split, inputs in task_inputs.items():
        for row, label in zip(inputs, getattr(task, split).targets.tolist(), strict=True):
            assert given[row.tobytes()] == ("test" if split == "test" else "train", label)
            found.append(row.tobytes())
    assert len(set(found)) == len(found) == 110


def test_pixels_become_what_the_public_code_gives_the_model(folder):
    inputs = stored(Cifar, folder)["train"]
    given = official.whole(Cifar.load(FEW).train).inputs
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.243, 0.261])
    torch.testing.assert_close(given, (torch.from_numpy(inputs) / 255 - mean) / deviation, atol=1e-5, rtol=0)
    inputs = stored(Image, folder)["train"]
    given = official.whole(Image.load(FEW).train).inputs
    expected = (torch.from_numpy(inputs) / 255 - 122.6 / 255) / (61.0 / 255)
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)


def test_grey_is_the_weighted_mean_rounded_to_the_nearest():
    colours = np.random.default_rng(0).integers(0, 256, (40, 3, 1024))
    expected = np.tensordot(colours, [0.299, 0.587, 0.114], axes=(1, 0))
    found = image.grey(colours.reshape(40, 3072).astype(np.uint8))[..., 0]
    assert found.dtype == np.uint8
    assert np.abs(found - expected).max() < 0.503
    one = np.repeat(np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8), 1024, axis=1)
    assert image.grey(one)[:, 0, 0].tolist() == [76, 150, 29, 255]


def test_grey_is_what_pillow_makes_of_it():
    images = pytest.importorskip("PIL.Image")
    given = official.planes(np.random.default_rng(0), 8)
    for row, grey in zip(given, image.grey(given)[..., 0], strict=True):
        picture = images.fromarray(np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0)))
        np.testing.assert_array_equal(np.asarray(picture.convert("L")).ravel(), grey)


def test_folder_archive_and_binary_version_give_the_same_data(folder, tmp_path):
    binary = official.cifar(tmp_path / "cifar-10-batches-bin", binary=True)
    archives = [official.tar(folder, tmp_path / name) for name in ("a.tar.gz", "a.tar")]
    sources = [folder, *archives, official.zipped(binary, tmp_path / "b.zip"), binary]
    assert len({store.manifest(Image.prepare(source, FEW))["sha256"] for source in sources}) == 1


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_batch_that_a_newer_python_pickled_is_read_too(protocol, folder):
    before = stored(Cifar, folder)
    for path in folder.iterdir():
        table = batch(folder, path.name)
        path.write_bytes(pickle.dumps({"data": table["data"], "labels": table["labels"]}, protocol=protocol))
    for split, inputs in stored(Cifar, folder).items():
        np.testing.assert_array_equal(inputs, before[split])


def test_both_tasks_hold_out_the_same_images_and_every_size_holds_out_some_of_them(folder):
    many = image.Options(examples=80, held_out=10)
    whole = stored(Cifar, folder, many)
    grey = stored(Image, folder, many)
    part = stored(Cifar, folder, image.Options(examples=16, held_out=4))
    for split, inputs in whole.items():
        np.testing.assert_array_equal(image.grey(inputs.transpose(0, 2, 1).reshape(-1, 3072)), grey[split])
        assert {row.tobytes() for row in part[split]} <= {row.tobytes() for row in inputs}


def test_an_image_that_stands_twice_is_never_validated_on_and_one_of_test_is_counted(folder):
    first, test = batch(folder, "data_batch_1")["data"].copy(), batch(folder, "test_batch")["data"]
    first[:8] = first[8:16]  # eight pairs within training
    first[16] = test[3]
    (folder / "data_batch_1").write_bytes(official.python2_batch(first, [row % 10 for row in range(20)]))
    options = image.Options(examples=80, held_out=20)
    stored(Cifar, folder, options)
    verdict = store.verify(store.folder_of("cifar", options))
    validation = {row.tobytes() for row in Cifar.load(options).validation.inputs.numpy()}
    assert not validation & {row.tobytes() for row in image.pixels(first[:16])}
    assert verdict.faults == []
    held = {row.tobytes() for row in Cifar.load(options).test.inputs.numpy()}
    trained = {row.tobytes() for row in Cifar.load(options).train.inputs.numpy()}
    copied = image.pixels(test[3:4])[0].tobytes()
    assert len(verdict.notes) == int(copied in held and copied in trained)


class Hostile:
    def __reduce__(self):
        return open, ("made-by-a-pickle", "w")


def test_a_pickle_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {"data": Hostile(), "labels": [0], "also": Hostile()}
    (folder / "data_batch_2").write_bytes(pickle.dumps(table, protocol=2))
    with pytest.raises(BadData, match="data_batch_2: its data are not an array"):
        Image.prepare(folder, FEW)
    assert not (tmp_path / "made-by-a-pickle").exists()


def change(name: str, **changes):
    def harm(folder: Path) -> None:
        table = batch(folder, name)
        data, labels = changes.get("data", lambda data: data)(table["data"]), changes.get("labels", table["labels"])
        (folder / name).write_bytes(official.python2_batch(data, labels))

    return harm


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (change("data_batch_3", labels=[0] * 7 + [11] + [0] * 12), r"data_batch_3, row 7: label 11, one of 0 \.\. 9"),
        (change("data_batch_3", data=lambda data: data[:-1]), r"data_batch_3: 58,368 bytes .* beside 20 labels"),
        (change("test_batch", data=lambda data: data[:, :-3]), r"test_batch: .* 3,072 bytes a label"),
        (lambda folder: (folder / "data_batch_4").unlink(), "has no data_batch_4; expected cifar-10-python.tar.gz"),
        (lambda folder: (folder / "data_batch_4").write_bytes(b""), "data_batch_4 cannot be read"),
        (lambda folder: official.cut(folder / "data_batch_5", 0.5), "data_batch_5 cannot be read"),
        (lambda folder: (folder / "test_batch").write_bytes(pickle.dumps([1, 2])), "test_batch is not a table"),
        (lambda folder: (folder / "test_batch").write_bytes(b"}."), "test_batch is not a table"),
        (lambda folder: (folder / "data_batch_1.bin").write_bytes(bytes(3073)), None),
    ],
)
def test_damage_is_told_with_file_and_row(harm, words, folder):
    harm(folder)
    if words is None:  # the Python version is preferred
        Image.prepare(folder, FEW)
        return
    with pytest.raises(BadData, match=words):
        Image.prepare(folder, FEW)
    assert not store.is_here("image", FEW)


def test_damage_of_the_binary_version_is_told_too(tmp_path):
    folder = official.cifar(tmp_path / "bin", binary=True)
    content = bytearray((folder / "data_batch_2.bin").read_bytes())
    content[5 * 3073] = 200
    (folder / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(BadData, match=r"data_batch_2\.bin, row 5: label 200"):
        Image.prepare(folder, FEW)
    (folder / "data_batch_2.bin").write_bytes(content[:-1])
    with pytest.raises(BadData, match=r"data_batch_2\.bin has 61,459 bytes; a multiple of 3,073"):
        Image.prepare(folder, FEW)


def test_counts_that_are_not_the_official_ones_are_told_on_the_command_line(folder):
    said = official.refused("image", folder)
    assert "has 100 training examples, 50,000 were expected" in said
    assert "--set examples=N --set held_out=M" in said
