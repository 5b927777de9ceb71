"""Speech Commands: one spoken word, as raw sound of one second.

    input = (sample - mean) / deviation,   both over the training clips that are taken, at the full rate

A lower rate keeps every second, fourth or eighth sample, without a filter, as the published tests of models at a rate
that they were not trained on do; mean and deviation stay those of the full rate, so that one model can read both.
Clips shorter than a second keep their own length and are not filled up with silence.
"""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.tasks import parts, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.members import Members, members
from ssm_priors.tasks.task import SPLITS, Archive, Progress, Task, silent

# fmt: off
WORDS = [
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy",
    "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop",
    "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
]
# fmt: on
COMMANDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
OFFICIAL = {"train": 84_843, "validation": 9_981, "test": 11_005}
"""Clips of all 35 words."""
FULL_RATE = 16_000
CLIP = re.compile(r"[a-z]+/[^/.][^/]*\.wav")
MOST_BYTES = 2**24
"""Of one file; a clip has 32 kB, a list 350 kB."""
TOGETHER = 64


@TASKS.register("speech")
class Speech:
    """Speech Commands: which of 35 words, or of 10 of them, is spoken, as raw sound.

    Source: Warden 2018, arXiv 1804.03209.
    """

    origin = "speech_commands_v0.02.tar.gz, from Google"
    archive = Archive(
        "speech_commands_v0.02.tar.gz",
        "offered by Google as 'Speech Commands version 0.02'; its folder will do too",
    )

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """The defaults are the whole set."""

        classes: Literal[35, 10] = 35
        """All words, or yes, no, up, down, left, right, on, off, stop and go; splits are the official ones in both."""
        rate: Literal[16000, 8000, 4000, 2000] = 16000
        """Samples a second: each one, or every 2nd, 4th or 8th; steps of one second."""
        examples: Annotated[int, Ge(0)] = 0
        """Clips of training; 0 means all, fewer are drawn from all, every word in proportion."""
        held_out: Annotated[int, Ge(0)] = 0
        """Clips of validation, and as many of test; 0 means all, or the part of them that `examples` is."""
        max_length: Annotated[int, Ge(1)] = 16000
        """Steps of a clip that are kept, from its beginning; a second at most."""

    @staticmethod
    def key(options: Config) -> dict[str, Any]:
        """A length beyond a second is a second."""
        return {
            "classes": options.classes,
            "rate": options.rate,
            "examples": options.examples,
            "held_out": options.held_out,
            "length": _length(options),
        }

    @staticmethod
    def spec(options: Config) -> TaskSpec:
        """One number a sample."""
        return TaskSpec(kind="continuous", length=_length(options), classes=options.classes)

    @staticmethod
    def load(options: Config) -> Task:
        """The three splits; raises NotReady."""
        return store.load("speech", options)

    @staticmethod
    def prepare(source: Path, options: Config, progress: Progress = silent) -> Path:
        """Read the archive or folder at `source`; raises BadData."""
        with members(source, _wanted, MOST_BYTES, progress) as found:
            words = sorted(COMMANDS) if options.classes == len(COMMANDS) else WORDS
            chosen = _chosen(found, words, options)
            mean, deviation = _statistics(found, chosen["train"].names, progress)
            splits = {
                split: Incoming(len(clips.names), _chunks(found, clips, options)) for split, clips in chosen.items()
            }
            return store.write(
                "speech",
                options,
                Speech.spec(options),
                Layout(dtype="int16", scale=(1 / deviation,), offset=(-mean / deviation,), duplicates="report"),
                splits,
                source=Speech.archive.name,
                notes={"words": " ".join(words), "mean": mean, "deviation": deviation},
                progress=progress,
            )


class _Clips(NamedTuple):
    """Clips of one split."""

    names: list[str]
    classes: np.ndarray
    """(clips,)."""


def _length(options: Speech.Config) -> int:
    return min(options.max_length, options.rate)


def _wanted(path: PurePosixPath) -> str | None:
    """The two lists, and clips as WORD/FILE, of the words alone."""
    name = "/".join(path.parts[-2:])
    if CLIP.fullmatch(name) and path.parts[-2] in WORDS:
        return name
    return path.name if path.name in LISTS.values() else None


def _chosen(found: Members, words: list[str], options: Speech.Config) -> dict[str, _Clips]:
    """The clips that each split takes."""
    there = _official(found)
    if options.examples == 0:
        for split in SPLITS:
            parts.require(str(found.source), split, len(there[split]), OFFICIAL[split], OFFICIAL[split])
    clips = {split: [name for name in there[split] if name.partition("/")[0] in words] for split in SPLITS}
    sizes = {split: len(clips[split]) for split in SPLITS}
    if not all(sizes.values()):
        raise BadData(f"{found.source} has {sizes} clips of {', '.join(words)}; each split needs some")
    wanted = parts.sizes(options.examples or sizes["train"], options.held_out, sizes)
    return {split: _drawn(found, split, clips[split], words, wanted[split]) for split in SPLITS}


def _drawn(found: Members, split: str, names: list[str], words: list[str], wanted: int) -> _Clips:
    parts.require(str(found.source), split, len(names), wanted, OFFICIAL[split])
    classes = np.array([words.index(name.partition("/")[0]) for name in names])
    rows = parts.drawn(classes, wanted, "speech", split)
    return _Clips([names[row] for row in rows], classes[rows])


def _official(found: Members) -> dict[str, list[str]]:
    """All clips by split: two are listed, the rest is for training; raises BadData."""
    listed = {split: _listed(found, name) for split, name in LISTS.items()}
    for name in sorted(listed["validation"] & listed["test"]):
        raise BadData(f"{found.source}: {name} stands in both lists, {' and '.join(LISTS.values())}")
    clips = [name for name in found.names() if name not in LISTS.values()]
    for name in sorted(set.union(*listed.values()) - set(clips)):
        raise BadData(f"{found.source}: {name} is listed and not there")
    rest = [name for name in clips if name not in set.union(*listed.values())]
    return {"train": rest} | {split: sorted(names) for split, names in listed.items()}


def _listed(found: Members, name: str) -> set[str]:
    if name not in found.sizes:
        raise BadData(f"{found.source} has no {name}; expected {Speech.archive.name}, or its folder")
    return set(found.read(name).decode("utf-8", errors="replace").split())


def _statistics(found: Members, names: list[str], progress: Progress) -> tuple[float, float]:
    """Mean and deviation of all samples; every clip is read, so that a damaged one is found before any is written."""
    count, total, squares = 0, 0, 0
    for done, name in enumerate(names, 1):
        samples = _samples(found, name).astype(np.int64)
        count, total, squares = count + len(samples), total + int(samples.sum()), squares + int(samples @ samples)
        if done % TOGETHER == 0 or done == len(names):
            progress("training clips looked through", done, len(names))
    mean = total / count
    deviation = (squares / count - mean**2) ** 0.5
    if deviation == 0:
        raise BadData(f"{found.source}: all training clips are silent")
    return mean, deviation


def _chunks(found: Members, clips: _Clips, options: Speech.Config) -> Iterator[Chunk]:
    step, length = FULL_RATE // options.rate, _length(options)
    for start in range(0, len(clips.names), TOGETHER):
        some = slice(start, start + TOGETHER)
        samples = [_samples(found, name)[::step][:length] for name in clips.names[some]]
        lengths = np.array([len(one) for one in samples])
        inputs = np.zeros((len(samples), lengths.max(), 1), np.int16)
        for row, one in zip(inputs, samples, strict=True):
            row[: len(one), 0] = one
        yield Chunk(inputs, lengths, clips.classes[some])


def _samples(found: Members, name: str) -> np.ndarray:
    """(samples,) int16 of a clip; raises BadData if it is not one second or less of plain sound at the full rate."""
    try:
        with wave.open(io.BytesIO(found.read(name)), "rb") as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            stated, content = file.getnframes(), file.readframes(FULL_RATE + 1)
    except (wave.Error, EOFError) as error:
        raise BadData(
            f"{found.where(name)} is no sound file that can be read: {str(error) or 'it ends early'}"
        ) from error
    if form != (1, 2, FULL_RATE):
        raise BadData(
            f"{found.where(name)} has {form} channels, bytes a sample, samples a second; (1, 2, 16000) expected"
        )
    if not len(content) == 2 * stated or not 1 <= stated <= FULL_RATE:
        raise BadData(f"{found.where(name)} holds {len(content) // 2} samples and says {stated}; 1 to 16,000 expected")
    return np.frombuffer(content, "<i2")
