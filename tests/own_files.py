"""The same examples in every layout that `files:PATH` reads, written by the tests that read them."""

from __future__ import annotations

import csv
import json
import wave
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.task import SPLITS, Task


class Own(NamedTuple):
    """Examples in order: (L, features) each, and their labels."""

    series: list[np.ndarray]
    labels: list[str]


def own(examples: int = 60, features: int = 1, shortest: int = 5, longest: int = 12, seed: int = 0) -> Own:
    """Noise around a level that the class decides, sorted by class; floats that text holds exactly."""
    rng = np.random.default_rng(seed)
    labels = sorted(["cat", "dog", "eel"][row % 3] for row in range(examples))
    series = []
    for label in labels:
        steps = rng.integers(shortest, longest + 1)
        series.append(np.round(rng.normal(size=(steps, features)) + "cde".index(label[0]), 4))
    return Own(series, labels)


def rows(path: Path, table: Iterable[Sequence[object]], delimiter: str = ",") -> Path:
    """A CSV with these rows."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(table)
    return path


def wide(folder: Path, data: Own, name: str = "wide.csv", delimiter: str = ",") -> Path:
    longest = max(map(len, data.series))
    lines = [
        [label, *map(repr, series[:, 0].tolist()), *[""] * (longest - len(series))]
        for series, label in zip(data.series, data.labels, strict=True)
    ]
    return rows(folder / name, [["label", *(f"t{step}" for step in range(longest))], *lines], delimiter)


def tabs(folder: Path, data: Own) -> Path:
    return wide(folder, data, "wide.tsv", "\t")


def lists(folder: Path, data: Own) -> Path:
    """A column a feature, a list a cell."""
    names = [f"f{feature}" for feature in range(data.series[0].shape[1])]
    lines = [
        [*(" ".join(map(repr, feature)) for feature in series.T.tolist()), label]
        for series, label in zip(data.series, data.labels, strict=True)
    ]
    return rows(folder / "lists.csv", [[*names, "label"], *lines])


def nested(folder: Path, data: Own) -> Path:
    """One column of JSON: a list of steps."""
    lines = [[json.dumps(series.tolist()), label] for series, label in zip(data.series, data.labels, strict=True)]
    return rows(folder / "nested.csv", [["series", "label"], *lines])


def padded(data: Own, fill: float) -> np.ndarray:
    longest = max(map(len, data.series))
    whole = np.full((len(data.series), longest, data.series[0].shape[1]), fill)
    for row, series in enumerate(data.series):
        whole[row, : len(series)] = series
    return whole


def npz(folder: Path, data: Own) -> Path:
    np.savez_compressed(folder / "nan.npz", x=padded(data, np.nan), label=np.array(data.labels))
    return folder / "nan.npz"


def npz_with_lengths(folder: Path, data: Own) -> Path:
    """An array a feature, whose columns come first in the file, and texts as bytes."""
    whole = np.asfortranarray(padded(data, 7.0))
    parts = {f"x{feature}": np.asfortranarray(whole[:, :, feature]) for feature in range(whole.shape[2])}
    lengths = [len(series) for series in data.series]
    np.savez(folder / "lengths.npz", **parts, lengths=lengths, label=np.array(data.labels, dtype="S"))
    return folder / "lengths.npz"


def zarr(folder: Path, data: Own, zarr_format: int = 3) -> Path:
    import zarr

    ids = sorted(set(data.labels))
    group = zarr.open_group(folder / "group", mode="w", zarr_format=zarr_format)
    group.create_array("x", data=padded(data, np.nan), chunks=(7, 5, 1))
    group.create_array("lengths", data=np.array([len(series) for series in data.series]))
    group.create_array("label", data=np.array([float(ids.index(label)) for label in data.labels]))
    return folder / "group"


def parquet(folder: Path, data: Own) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {
        f"f{feature}": [series[:, feature].tolist() for series in data.series]
        for feature in range(data.series[0].shape[1])
    }
    write_table(pyarrow.table(columns | {"label": data.labels}), folder / "lists.parquet", row_group_size=11)
    return folder / "lists.parquet"


def wide_parquet(folder: Path, data: Own) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    longest = max(map(len, data.series))
    cells = [[*series[:, 0].tolist(), *[None] * (longest - len(series))] for series in data.series]
    columns = {f"t{step}": [row[step] for row in cells] for step in range(longest)}
    write_table(pyarrow.table({"label": data.labels} | columns), folder / "wide.parquet")
    return folder / "wide.parquet"


def _folder(name: str, suffix: str, save: Callable[[Path, np.ndarray], object], folder: Path, data: Own) -> Path:
    for row, (series, label) in enumerate(zip(data.series, data.labels, strict=True)):
        place = folder / name / label
        place.mkdir(parents=True, exist_ok=True)
        save(place / f"{row:03}{suffix}", series)
    return folder / name


def folder_of_arrays(folder: Path, data: Own) -> Path:
    return _folder("arrays", ".npy", np.save, folder, data)


def folder_of_tables(folder: Path, data: Own) -> Path:
    def save(path: Path, series: np.ndarray) -> None:
        rows(path, [[f"f{at}" for at in range(series.shape[1])], *series.tolist()])

    return _folder("tables", ".csv", save, folder, data)


def listed_folder(folder: Path, data: Own) -> Path:
    """Files beside labels.csv, named so that only the list has the right order."""
    place = folder / "listed"
    (place / "x").mkdir(parents=True)
    names = [f"x/{len(data.series) - row:03}.npy" for row in range(len(data.series))]
    for name, series in zip(names, data.series, strict=True):
        np.save(place / name, series)
    rows(place / "labels.csv", [["file", "label"], *zip(names, data.labels, strict=True)])
    return place


def sound(path: Path, samples: np.ndarray, rate: int = 8000) -> Path:
    """A WAV of 16-bit samples (L,) or (L, channels)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return path


SINGLE = [wide, tabs, lists, nested, npz, npz_with_lengths, zarr, folder_of_arrays, folder_of_tables, listed_folder]
SEVERAL = [lists, nested, npz, npz_with_lengths, zarr, folder_of_arrays, folder_of_tables, listed_folder]
OF_PARQUET = [parquet, wide_parquet]


# -- what became of them


def load(path: Path, **options: Any) -> Task:
    kind = TASKS[f"files:{path}"]
    return kind.load(kind.Config(**options))


def manifest(path: Path, **options: Any) -> dict[str, Any]:
    return store.manifest(store.folder_of(f"files:{path}", Options(**options)))


def examples(task: Task, split: str) -> list[tuple[np.ndarray, Any]]:
    """Series without padding, and target."""
    part = getattr(task, split)
    batch = part.take(torch.arange(len(part)))
    return [(batch.inputs[row, : batch.lengths[row]].numpy(), batch.targets[row].tolist()) for row in range(len(part))]


def is_same(one: tuple[np.ndarray, Any], other: tuple[np.ndarray, Any]) -> bool:
    """Whether two examples are alike but for rounding."""
    return one[1] == other[1] and one[0].shape == other[0].shape and bool(np.abs(one[0] - other[0]).max() < 1e-5)


def unscaled(path: Path, task: Task, **options: Any) -> list[tuple[np.ndarray, Any]]:
    """Every example of all splits, in the unit of the file."""
    scale = manifest(path, **options)["notes"]["scaled by the training split"]
    every = [example for split in SPLITS for example in examples(task, split)]
    return [(series * scale["deviation"] + scale["mean"], target) for series, target in every]
