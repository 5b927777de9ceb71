"""BIDMC: heart rate, breathing rate or oxygen saturation from 32 seconds of a pulse oximeter and an ECG.

A window of 4,000 steps at 125 Hz has two channels, in the files' order, and one number that the monitor showed. Inputs
are stored as they are in the files.

Windows of one patient follow each other by a few seconds, so they share most of their samples. Two windows that share a
stretch of samples are of one recording; recordings are found so, for the files name no patient:

    a stretch of 32 steps is an anchor if a hash of it is 0 modulo 64;  windows with a common anchor are joined

and validation takes whole recordings from the official training file. The official test file is left as it is, and
refused if a recording stands in both. The comparison's public code instead pools all windows and deals them out at
random, whereby nearly every test window has its neighbour in training: `split=random` does so too, for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import parts, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.members import Members, members
from ssm_priors.tasks.task import SPLITS, Archive, Progress, Task, silent

STEPS, CHANNELS = 4000, 2
FILES = ("TRAIN", "TEST")
UNITS = {"HR": "bpm", "RR": "breaths/min", "SpO2": "%"}
RANGES = {"HR": (0.0, 300.0), "RR": (0.0, 100.0), "SpO2": (0.0, 100.0)}
"""What a monitor can show, in those units."""
OFFICIAL = {"HR": (5550, 2399), "RR": (5471, 2399), "SpO2": (5550, 2399)}
"""Windows of the two files."""
HELD_OUT = 0.15
"""Share of validation: of the official training windows, or, as is the share of test, of all that are dealt out."""
STRETCH, EVERY = 32, 64
"""Steps that must agree for two windows to be of one recording; one stretch in so many is looked at."""
MOST_BYTES = 2**33
LONGEST_LINE = 2**20
TOGETHER = 64


@TASKS.register("bidmc")
class Bidmc:
    """BIDMC: heart rate, breathing rate or oxygen saturation from 32 seconds of PPG and ECG.

    Source: Pimentel et al. 2016; Tan et al. 2020 (time series extrinsic regression), arXiv 2006.10996.
    """

    origin = "BIDMC32*.ts, from the Monash, UEA and UCR archive"
    archive = Archive(
        "BIDMC32HR_TRAIN.ts and BIDMC32HR_TEST.ts, or those of RR or SpO2, in one folder or zip",
        "offered on Zenodo by the Monash, UEA and UCR archive of time series extrinsic regression",
    )

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The defaults are the whole set."""

        target: Literal["HR", "RR", "SpO2"] = "HR"
        """Heart rate in bpm, breathing rate in breaths/min, or oxygen saturation in %."""
        split: Literal["recording", "random"] = "recording"
        """No recording in two splits, and the official test; or all windows dealt out 70 / 15 / 15, which leaks."""
        examples: Annotated[int, Ge(0)] = 0
        """Windows of training; 0 means all, fewer are drawn from all."""
        held_out: Annotated[int, Ge(0)] = 0
        """Windows of validation, and as many of test; 0 means all, or the part of them that `examples` is."""
        max_length: Annotated[int, Ge(1)] = STEPS
        """Steps of a window that are kept, from its beginning."""

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """Two numbers a step, one number asked for."""
        return TaskSpec(
            kind="continuous",
            length=min(options.max_length, STEPS),
            classes=1,
            features=CHANNELS,
            answer="values",
            unit=UNITS[options.target],
        )

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; raises NotReady."""
        return store.load("bidmc", options)

    @staticmethod
    def prepare(source: Path, options: Config, progress: Progress = silent) -> Path:
        """Read the two files in `source`; raises BadData."""
        names = {f"BIDMC32{options.target}_{part}.ts" for part in FILES}
        with members(source, lambda path: _wanted(path, names), MOST_BYTES, progress) as found:
            windows = _windows(found, options, progress)
            rows = _rows(str(found.source), windows, options)
            notes = {"recordings": {split: len(np.unique(windows.recordings[part])) for split, part in rows.items()}}
            splits = {
                split: Incoming(len(part), _chunks(found, windows, part, options)) for split, part in rows.items()
            }
            return store.write(
                "bidmc",
                options,
                Bidmc.spec(options),
                Layout(dtype="float32", duplicates="report"),
                splits,
                source=", ".join(sorted(names)),
                notes=notes,
                progress=progress,
            )


class _Windows(NamedTuple):
    """Where the windows of both files are, and which are of one recording."""

    names: list[str]
    """Of each, its file."""
    starts: np.ndarray
    """(windows,), where its line starts there."""
    is_test: np.ndarray
    """(windows,), whether it stands in the official test file."""
    recordings: np.ndarray
    """(windows,), a number for each."""


def _wanted(path: PurePosixPath, names: set[str]) -> str | None:
    return path.name if path.name in names else None


# -- files


def _windows(found: Members, options: Bidmc.Config, progress: Progress) -> _Windows:
    """Read both files through once."""
    names: list[str] = []
    starts: list[int] = []
    is_test: list[bool] = []
    joined = _Joined()
    for part, official in zip(FILES, OFFICIAL[options.target], strict=True):
        name = f"BIDMC32{options.target}_{part}.ts"
        first = len(names)
        with found.open(name) as file:
            for row, (start, line) in enumerate(_data(file, found.where(name)), 1):
                signals, _ = _parsed(line, options.target, f"{found.where(name)}, row {row}")
                joined.add(anchors(signals))
                names.append(name)
                starts.append(start)
                is_test.append(part == "TEST")
                if row % TOGETHER == 0:
                    progress(f"windows of {name} looked through", row, max(official, row))
        there = len(names) - first
        progress(f"windows of {name} looked through", there, there)
        whole = (1, there) if options.examples else (official, official)
        parts.require(found.where(name), part.lower(), there, *whole)
    return _Windows(names, np.array(starts), np.array(is_test), joined.groups())


def _data(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Where each line of data starts, and what it holds: those after '@data' that are neither empty nor a comment."""
    start, is_data = 0, False
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise BadData(f"{where}: a line of more than {LONGEST_LINE:,} bytes; it is damaged")
        content = line.strip()
        if is_data and content and not content.startswith(b"#"):
            yield start, content
        is_data = is_data or content.lower() == b"@data"
        start += len(line)
    if not is_data:
        raise BadData(f"{where} has no line '@data'; a file of the form .ts was expected")


def _parsed(line: bytes, target: str, where: str) -> tuple[np.ndarray, float]:
    """(4000, 2) signals and the number asked for, of one line; raises BadData."""
    fields = line.split(b":")
    numbers = [_numbers(field, where) for field in fields]
    shape = [len(part) for part in numbers]
    if shape != [STEPS] * CHANNELS + [1]:
        raise BadData(f"{where} has fields of {shape[:9]} numbers; [4000, 4000, 1] expected")
    low, high = RANGES[target]
    value = float(numbers[-1][0])
    if not low <= value <= high:
        raise BadData(f"{where}: {target} of {value} {UNITS[target]}; {low} to {high} expected")
    return np.stack(numbers[:-1], axis=1), value


def _numbers(field: bytes, where: str) -> np.ndarray:
    try:
        numbers = np.array(field.split(b","), dtype=np.float64)
    except ValueError as error:
        raise BadData(f"{where}: {error}; numbers between commas were expected") from error
    if not np.isfinite(numbers).all():
        raise BadData(f"{where} has a number that is missing or not finite, the {_first_bad(numbers)}th of its field")
    return numbers


def _first_bad(numbers: np.ndarray) -> int:
    return int(np.flatnonzero(~np.isfinite(numbers))[0]) + 1


def _chunks(found: Members, windows: _Windows, rows: np.ndarray, options: Bidmc.Config) -> Iterator[Chunk]:
    length = min(options.max_length, STEPS)
    for first in range(0, len(rows), TOGETHER):
        some = [_again(found, windows, row, options.target) for row in rows[first : first + TOGETHER]]
        inputs = np.stack([signals[:length] for signals, _ in some])
        yield Chunk(inputs, np.full(len(some), length), np.array([[value] for _, value in some], dtype=np.float32))


def _again(found: Members, windows: _Windows, row: int, target: str) -> tuple[np.ndarray, float]:
    """A window that was looked through before."""
    name = windows.names[row]
    with found.open(name) as file:
        file.seek(windows.starts[row])
        return _parsed(file.readline().strip(), target, found.where(name))


# -- splits


def _rows(where: str, windows: _Windows, options: Bidmc.Config) -> dict[str, np.ndarray]:
    """The windows of each split."""
    whole = _dealt_out(len(windows.starts)) if options.split == "random" else _by_recording(where, windows)
    sizes = {split: len(rows) for split, rows in whole.items()}
    wanted = parts.sizes(options.examples or sizes["train"], options.held_out, sizes)
    for split in SPLITS:
        parts.require(where, split, sizes[split], wanted[split], sizes[split])
    return {
        split: rows[parts.drawn(np.zeros(len(rows), int), wanted[split], "bidmc", split)]
        for split, rows in whole.items()
    }


def _dealt_out(windows: int) -> dict[str, np.ndarray]:
    """All windows at random, 70 / 15 / 15."""
    order = numpy_stream(0, "bidmc", "random").permutation(windows)
    held_out = round(HELD_OUT * windows)
    cut = {"train": order[2 * held_out :], "validation": order[held_out : 2 * held_out], "test": order[:held_out]}
    return {split: np.sort(rows) for split, rows in cut.items()}


def _by_recording(where: str, windows: _Windows) -> dict[str, np.ndarray]:
    """The official test, and whole recordings of the rest until validation has its share; raises BadData."""
    both = np.intersect1d(windows.recordings[windows.is_test], windows.recordings[~windows.is_test])
    if len(both):
        of_both = np.isin(windows.recordings, both)
        raise BadData(
            f"{where}: {(of_both & windows.is_test).sum():,} windows of the test file share samples with "
            f"{(of_both & ~windows.is_test).sum():,} of the training file, so the official split is none by recording; "
            f"--set split=random deals all windows out, as published results do, and leaks"
        )
    rest = windows.recordings[~windows.is_test]
    recordings = numpy_stream(0, "bidmc", "recordings").permutation(np.unique(rest))
    if len(recordings) < 2:
        raise BadData(f"{where}: all training windows are of one recording, so none can be held out to validate on")
    so_far = np.cumsum([(rest == recording).sum() for recording in recordings])
    taken = min(int(np.searchsorted(so_far, HELD_OUT * len(rest))) + 1, len(recordings) - 1)
    is_held_out = np.isin(windows.recordings, recordings[:taken])
    return {
        "train": np.flatnonzero(~windows.is_test & ~is_held_out),
        "validation": np.flatnonzero(is_held_out),
        "test": np.flatnonzero(windows.is_test),
    }


def anchors(signals: np.ndarray) -> np.ndarray:
    """Hashes of some stretches of a window, the same stretches wherever they stand in it.

    Args:
        signals: (steps, channels) float64. A stretch in which both signals stand still half of the time says
            nothing about where it is from, and is left out.

    Returns:
        (anchors,) uint64.
    """
    bits = np.ascontiguousarray(signals).view(np.uint64)
    step = _mixed(_mixed(bits[:, 0]) + bits[:, 1])
    power = np.uint64(0x9E3779B97F4A7C15)
    hashes = np.zeros(max(len(step) - STRETCH + 1, 0), np.uint64)
    for at in range(STRETCH):
        hashes = hashes * power + step[at : at + len(hashes)]
    moves = np.cumsum(np.concatenate([[0, 0], (np.diff(signals, axis=0) != 0).any(axis=1)]))
    is_lively = moves[STRETCH:] - moves[:-STRETCH] > STRETCH // 2
    hashes = _mixed(hashes)
    return np.unique(hashes[is_lively & (hashes % np.uint64(EVERY) == 0)])


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit given (the end of MurmurHash3)."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        values = (values ^ (values >> np.uint64(33))) * factor
    return values ^ (values >> np.uint64(33))


class _Joined:
    """Groups of windows with common anchors, one window after the other."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.first: dict[int, int] = {}
        """The first window with an anchor."""

    def add(self, anchors: np.ndarray) -> None:
        """One more window."""
        window = len(self.parents)
        self.parents.append(window)
        for anchor in anchors.tolist():
            other = self._root(self.first.setdefault(anchor, window))
            self.parents[other] = self._root(window)

    def groups(self) -> np.ndarray:
        """(windows,), the number of its group."""
        roots = [self._root(window) for window in range(len(self.parents))]
        return np.unique(roots, return_inverse=True)[1]

    def _root(self, window: int) -> int:
        while self.parents[window] != window:
            self.parents[window] = self.parents[self.parents[window]]
            window = self.parents[window]
        return window
