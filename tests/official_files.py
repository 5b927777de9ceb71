"""Small files in the layouts of official archives, and what every task that reads them is put through."""

from __future__ import annotations

import csv
import struct
import tarfile
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import task_runs
import torch

from ssm_priors.tasks.task import Split

# -- what is done with them


def changes(options: dict[str, Any], prefix: str = "") -> list[str]:
    return [part for key, value in options.items() for part in ("--set", f"{prefix}{key}={value}")]


def prepared(task: str, source: Path, **options: Any) -> dict[str, Any]:
    """What `ssmp data prepare`, a process of its own, says of itself in JSON."""
    return task_runs.prepared(task, "--source", source, *changes(options))


def refused(task: str, source: Path, **options: Any) -> str:
    """What `ssmp data prepare` says on standard error, where it must not succeed, in one line."""
    return " ".join(task_runs.refused(task, "--source", source, *changes(options)).split())


def train(folder: Path, task: str, **options: Any) -> None:
    """Two steps from scratch, and two after two of masked pretraining; every loss is finite."""
    task_runs.trains(folder, task, options["examples"], *changes(options, "task."))
    for pretrain, steps in (("none", 2), ("masked", 4)):
        with open(folder / pretrain / "metrics.csv", newline="") as file:
            losses = [float(row["loss"]) for row in csv.DictReader(file)]
        assert len(losses) == steps
        assert np.isfinite(losses).all()


def whole(split: Split) -> Any:
    """All examples of a split as one batch."""
    return split.take(torch.arange(len(split)))


def flip(path: Path, share: float) -> Path:
    """Change a byte."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0xFF
    path.write_bytes(content)
    return path


def cut(path: Path, share: float) -> Path:
    """Keep only the beginning."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def tar(folder: Path, path: Path) -> Path:
    """A folder as a tar, with gzip if the name ends so; files in no useful order."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as file:
        for member in sorted(folder.rglob("*"), key=lambda member: str(member)[::-1]):
            file.add(member, Path(folder.name) / member.relative_to(folder), recursive=False)
    return path


def zipped(folder: Path, path: Path) -> Path:
    """A folder as a zip."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for member in sorted(folder.rglob("*")):
            file.write(member, Path(folder.name) / member.relative_to(folder))
    return path


# -- CIFAR-10


def _text(content: bytes) -> bytes:
    short = len(content) < 256
    return (b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + content


def python2_batch(planes: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled it: text for bytes, numpy.core for the array."""
    kind = b"cnumpy\ndtype\n" + _text(b"u1") + b"K\x00K\x01\x87R(K\x03" + _text(b"|")
    kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text(b"b") + b"\x87R(K\x01"
    array += b"".join(b"M" + struct.pack("<H", size) for size in planes.shape) + b"\x86" + kind + b"\x89"
    array += _text(planes.tobytes()) + b"tb"
    classes = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = _text(b"batch_label") + _text(b"training batch") + _text(b"labels") + classes + _text(b"data") + array
    return b"\x80\x02}(" + entries + b"u."


def planes(rng: np.random.Generator, images: int) -> np.ndarray:
    return rng.integers(0, 256, (images, 3072), dtype=np.uint8)


def cifar(folder: Path, each: int = 20, binary: bool = False) -> Path:
    """Six batches of `each` images, every class alike."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        images, labels = planes(rng, each), [row % 10 for row in range(each)]
        if binary:
            (folder / f"{name}.bin").write_bytes(np.insert(images, 0, labels, axis=1).tobytes())
        else:
            (folder / name).write_bytes(python2_batch(images, labels))
    return folder


# -- texts


def reviews(folder: Path, each: int = 12) -> Path:
    """The folders of the Large Movie Review Dataset, `each` reviews in each of them."""
    for split in ("train", "test"):
        for label, stars in (("neg", 2), ("pos", 9)):
            place = folder / split / label
            place.mkdir(parents=True)
            for number in range(each):
                words = f"{split} {label} number {number} " + "éa ok " * number
                (place / f"{number}_{stars}.txt").write_text(words, encoding="utf-8")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("of no class")
    (folder / "README").write_text("about")
    return folder


def pairs(folder: Path, sizes: tuple[int, int, int] = (24, 6, 6), label: str = "{}.0") -> Path:
    """The three TSVs; one text in three has a quotation mark that none closes."""
    folder.mkdir(parents=True)
    for part, size in zip(("train", "eval", "test"), sizes, strict=True):
        rows = []
        for row in range(size):
            mark = '"' if row % 3 == 1 else ""
            texts = (f"{mark}paper {part} {row} on parsing", f"other {part} {row} " + "tags " * (row % 9))
            rows.append("\t".join([label.format(row % 2), f"P{row}", f"Q{row}", *texts]))
        (folder / f"new_aan_pairs.{part}.tsv").write_bytes(("\n".join(rows) + "\n").encode())
    return folder


# -- sound and signals


def sound(path: Path, samples: np.ndarray, rate: int = 16000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def speech(folder: Path, words: tuple[str, ...] = ("yes", "no", "tree"), each: int = 12) -> Path:
    """`each` clips a word, the last two of them listed for validation and for test; some shorter than a second."""
    rng = np.random.default_rng(0)
    listed: dict[str, list[str]] = {"validation": [], "testing": []}
    for at, word in enumerate(words):
        for number in range(each):
            size = 16000 if number % 4 else 12001
            wavy = 4000 * np.sin(np.arange(size) * (0.01 + 0.02 * at)) + rng.normal(100, 500, size)
            name = f"{word}/{number:08x}_nohash_0.wav"
            sound(folder / name, wavy)
            if number >= each - 4:
                listed["validation" if number % 2 else "testing"].append(name)
    sound(folder / "_background_noise_" / "hum.wav", rng.normal(0, 50, 40000))
    for split, names in listed.items():
        (folder / f"{split}_list.txt").write_text("\n".join(names) + "\n")
    return folder


def recording(rng: np.random.Generator, windows: int) -> list[np.ndarray]:
    """Windows of one patient: 4,000 steps of two channels, three seconds apart."""
    steps = 4000 + 375 * (windows - 1)
    signals = np.round(np.cumsum(rng.normal(size=(steps, 2)), axis=0) * 0.01, 4)
    return [signals[375 * at : 375 * at + 4000] for at in range(windows)]


def series(path: Path, windows: list[np.ndarray], values: list[float]) -> Path:
    """A file of the form .ts."""
    head = "# made by a test\n@problemName BIDMC32\n@timestamps false\n@missing false\n@univariate false\n"
    head += "@dimensions 2\n@equalLength true\n@seriesLength 4000\n@targetlabel true\n@data\n"
    lines = [
        ":".join([*(",".join(map(str, channel)) for channel in window.T), str(value)])
        for window, value in zip(windows, values, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "\n".join(lines) + "\n")
    return path


def bidmc(folder: Path, train: tuple[int, ...] = (6, 6, 5, 5), test: tuple[int, ...] = (4, 4), target="HR") -> Path:
    """Both files; a number a recording says how many windows it has."""
    rng = np.random.default_rng(0)
    for part, sizes in (("TRAIN", train), ("TEST", test)):
        windows = [window for size in sizes for window in recording(rng, size)]
        order = rng.permutation(len(windows))
        values = np.round(rng.uniform(60, 99, len(windows)), 2)
        series(folder / f"BIDMC32{target}_{part}.ts", [windows[at] for at in order], values.tolist())
    return folder
