"""MNIST from its official files, and with its pixels in another order."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from task_runs import prepared, refused, ssmp, trains

from ssm_priors.errors import BadData, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import idx, mnist, store
from ssm_priors.tasks.pmnist import permutation
from ssm_priors.tasks.task import SPLITS

Mnist, Permuted = TASKS["mnist"], TASKS["pmnist"]
OFFICIAL = mnist.Options(data="official", pool=4)
FIRST = [145, 395, 139, 453, 327, 532, 222, 706]
"""The pixels of the first steps: another order would make other scores under the same name."""
SIZES = {"train": 55_000, "validation": 5_000, "test": 10_000}


def numbered(first: int, many: int) -> np.ndarray:
    """Images that tell their number in their first four pixels, and are noise below their first rows."""
    images = np.zeros((many, 28, 28), np.uint8)
    images[:, 0, :4] = (np.arange(first, first + many)[:, None] >> [24, 16, 8, 0]) & 255
    images[:, 8:10] = np.random.default_rng(first).integers(0, 256, (many, 2, 28))
    return images


def idx_bytes(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(axis.to_bytes(4, "big") for axis in values.shape)
    return head + values.tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Files of the official sizes; the label of image n is n % 10."""
    folder = tmp_path_factory.mktemp("official")
    for half, first, many in (("train", 0, 60_000), ("t10k", 60_000, 10_000)):
        images, labels = numbered(first, many), (np.arange(first, first + many) % 10).astype(np.uint8)
        (folder / f"{half}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{half}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), 1))
    return folder


@pytest.fixture
def files(whole, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "files", copy_function=os.link))


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))


def numbers(split) -> np.ndarray:
    """The numbers of a split's images, which have one pixel a step."""
    return (split.inputs.numpy()[:, :4, 0].astype(int) << [24, 16, 8, 0]).sum(axis=1)


def test_the_official_splits_hold_every_image_once_with_its_label(whole):
    found = prepared("mnist", "--source", whole)
    assert {split: counts["examples"] for split, counts in found["splits"].items()} == SIZES
    task = Mnist.load(mnist.Options(data="official"))
    parts = {split: numbers(getattr(task, split)) for split in SPLITS}
    assert sorted(np.concatenate([parts["train"], parts["validation"]])) == list(range(60_000))
    assert parts["test"].tolist() == list(range(60_000, 70_000))
    for split in SPLITS:
        assert ((parts[split] % 10) == getattr(task, split).labels.numpy()).all()
        assert getattr(task, split).labels.bincount().tolist() == [SIZES[split] // 10] * 10
    taken = task.test.take(torch.tensor([17]))
    np.testing.assert_allclose(taken.inputs.reshape(28, 28), numbered(60_000, 10_000)[17] / 127.5 - 1, atol=1e-6)


def test_pooled_pixels_are_means_and_permuted_ones_are_in_another_order(files, tmp_path):
    assert ssmp("data", "prepare", "mnist", "--source", files, "--set", "pool=4").exit_code == 0
    assert ssmp("data", "prepare", "pmnist", "--source", files, "--set", "pool=4").exit_code == 0
    plain, permuted = (TASKS[name].load(OFFICIAL) for name in ("mnist", "pmnist"))
    rows = torch.tensor([0, 7, 9_999])
    images = numbered(60_000, 10_000)[rows.numpy()]
    means = images.reshape(3, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(3, 49) / 127.5 - 1
    np.testing.assert_allclose(plain.test.take(rows).inputs[..., 0], means, atol=1e-6)
    np.testing.assert_allclose(permuted.test.take(rows).inputs[..., 0], means[:, permutation(OFFICIAL)], atol=1e-6)
    small = ["--set", "task.data=official", "--set", "task.pool=4", "--fraction", "0.001"]
    said = ssmp("train", "--task", "pmnist", *small, "--set", "finetune.epochs=1", "--out", tmp_path / "run")
    assert said.exit_code == 0, said.stderr


@pytest.mark.parametrize("name", ["mnist", "pmnist"])
def test_official_files_that_are_not_here_are_named_with_the_command(name):
    with pytest.raises(NotReady, match=r"train-images-idx3-ubyte.*--source PATH.*--set data=official --set pool=4"):
        TASKS[name].load(OFFICIAL)


def damage(path: Path, change) -> None:
    content = path.read_bytes()
    path.unlink()  # other copies are links to the same file
    path.write_bytes(change(content))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (IMAGES, lambda content: content[:-1], "ends within the entries 58000 to 59999 of 60000"),
        (IMAGES, lambda content: content + b"\0", "goes on behind its 60000 entries"),
        (IMAGES, lambda content: content[:4] + bytes(4) + content[8:], "array of bytes, 0 x 28 x 28; expected"),
        (IMAGES, lambda content: b"\0\0\x0d" + content[3:], "begins with the bytes 00 00 0d"),
        (LABELS, lambda content: content[: len(content) // 2], "cannot be read"),
        (LABELS, lambda content: content[:40] + b"????" + content[44:], "cannot be read"),
        (LABELS, lambda content: b"none", "cannot be read"),
        (LABELS, lambda content: gzip.compress(idx_bytes(np.zeros(50_000, np.uint8))), "50000; expected"),
        (LABELS, lambda content: gzip.compress(idx_bytes(np.full(60_000, 10, np.uint8))), "a class outside 0 .. 9"),
    ],
)
def test_a_broken_copy_is_refused(files, name, change, words):
    damage(files / name, change)
    assert words in refused("mnist", "--source", files, "--set", "pool=4")
    assert not store.is_here("mnist", OFFICIAL)


def test_a_missing_file_is_named(files):
    (files / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "neither t10k-labels-idx1-ubyte nor" in refused("mnist", "--source", files)


def test_names_and_packing_may_be_either(tmp_path):
    values = np.arange(6, dtype=np.uint8).reshape(3, 2)
    for name in ("a-idx2-ubyte", "b.idx2-ubyte"):
        (tmp_path / name).write_bytes(idx_bytes(values))
    (tmp_path / "c-idx2-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values)))
    for name in "abc":
        path = idx.find(tmp_path, f"{name}-idx2-ubyte")
        np.testing.assert_array_equal(np.concatenate(list(idx.blocks(path, (3, 2), 2))), values)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4]) + bytes(2**26)))
    with pytest.raises(BadData, match="goes on behind its 4 entries"):
        idx.read(path, (4,))


# -- shipped digits in another order


def test_the_order_is_one_permutation_for_all_images_and_never_changes():
    order = permutation(mnist.Options())
    assert sorted(order) == list(range(784))
    assert order[:8].tolist() == FIRST
    plain, permuted = Mnist.load(mnist.Options()), Permuted.load(mnist.Options())
    for split in SPLITS:
        inputs = getattr(plain, split).inputs
        torch.testing.assert_close(getattr(permuted, split).inputs, inputs[:, torch.from_numpy(order)])
        assert torch.equal(getattr(permuted, split).labels, getattr(plain, split).labels)
    assert (permuted.spec.length, permuted.spec.width) == (784, 0)


def test_the_permuted_digits_train(tmp_path):
    trains(tmp_path, "pmnist", 3500, "--set", "task.pool=4")
