"""Pathfinder: are the two dots joined by one dashed contour? Square grey images, read pixel by pixel.

Images are drawn here from a seed (`generators.pathfinder` says how), or read from the folders that the Long Range Arena
released; scores on the one are no scores on the other, so a run's options say which. Pixels become -1 .. 1 by a fixed
rule. The release has no files that say what is trained and what is tested on: 80, 10 and 10 % of its images that can be
read are chosen by a named seed. Images that cannot be read are left out before that, counted and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks import png, store
from ssm_priors.tasks.chunks import Chunk, Incoming, Layout
from ssm_priors.tasks.crew import in_order, ranges
from ssm_priors.tasks.generators import Block, pathfinder, sizes
from ssm_priors.tasks.task import SPLITS, Archive, Progress, Task, silent

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
"""What the release calls each difficulty."""
HELD_OUT = 20_000
"""Images of validation and of test in the benchmark."""
PIXELS = 2**21
"""Of the images that are read at a time."""
TOGETHER = pathfinder.ABREAST
"""Images that are drawn at a time."""
MOST_NAMED = 20
"""Images left out that are named one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The defaults are the benchmark's."""

    data: Literal["generated", "official"] = "generated"
    """Images drawn here, or those that the benchmark's authors released."""
    level: Literal["easy", "intermediate", "hard"] = "hard"
    """Contours of 6, 9 or 14 dashes; published scores are of the hard ones unless they say otherwise."""
    examples: Annotated[int, Ge(2)] = 160_000
    """Images of training; of the official ones, at most so many."""
    held_out: Annotated[int, Ge(0)] = 0
    """Images of validation, and as many of test; 0 means 20,000, but at most half of `examples`."""
    seed: Annotated[int, Ge(0)] = 0
    """Of what is drawn; of the official ones, of the split."""


class Contours:
    """What the three sizes have in common; each is registered under a name of its own."""

    Config = Options
    origin = "generated from a seed"
    side: Literal[32, 128, 256]
    name: str
    title: str
    """What published tables call it."""
    official: Archive

    @classmethod
    def benchmark(cls, options: Options) -> str:
        """The benchmark whose published numbers may stand beside a score: only for its own files, whole."""
        return cls.title if options == Options(data="official", seed=options.seed) else ""

    @classmethod
    def spec(cls, options: Options) -> TaskSpec:
        """Square images, row by row; class 1 where the dots are joined."""
        return TaskSpec(kind="continuous", length=cls.side**2, classes=2, width=cls.side)

    @classmethod
    def load(cls, options: Options) -> Task:
        """The three splits, drawn first if they are not there; raises NotReady for official ones."""
        return store.load(cls.name, options)

    @classmethod
    def prepare(cls, source: Path | None, options: Options, progress: Progress = silent) -> Path:
        """Draw all images, or read the official folders in `source`; raises BadData."""
        wanted = sizes(options.examples, options.held_out, HELD_OUT)
        if source:
            splits, notes = _official(source, cls.side, options, wanted, progress)
        else:
            splits, notes = _generated(cls.side, options, wanted), {}
        return store.write(
            cls.name,
            options,
            cls.spec(options),
            Layout(dtype="uint8", scale=(1 / 127.5,), offset=(-1.0,), duplicates="report" if source else "refuse"),
            splits,
            source=cls.official.name if source else cls.origin,
            notes=notes,
            progress=progress,
        )


def _archive(side: int) -> Archive:
    return Archive(
        f"the folder pathfinder{side} with {', '.join(FOLDERS.values())}",
        "part of the Long Range Arena release, which its authors offer as lra_release.gz; unpack it first",
    )


@TASKS.register("pathfinder")
class Pathfinder32(Contours):
    """Are two dots joined by a dashed contour? Images of 32 x 32 pixels, pixel by pixel.

    Source: Linsley et al. 2018, arXiv 1805.08315; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    side, name, title, official = 32, "pathfinder", "Path", _archive(32)


@TASKS.register("pathx")
class PathX(Contours):
    """Are two dots joined by a dashed contour? Images of 128 x 128 pixels, pixel by pixel.

    Source: Linsley et al. 2018, arXiv 1805.08315; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    side, name, title, official = 128, "pathx", "Path-X", _archive(128)


@TASKS.register("pathx256")
class PathX256(Contours):
    """Are two dots joined by a dashed contour? Images of 256 x 256 pixels, pixel by pixel.

    Source: Linsley et al. 2018, arXiv 1805.08315; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
    """

    side, name, title, official = 256, "pathx256", "PathX-256", _archive(256)


# -- drawn here


def _generated(side: Literal[32, 128, 256], options: Options, wanted: dict[str, int]) -> dict[str, Incoming]:
    drawn = pathfinder.options(side, options.level, options.seed)
    return {split: Incoming(rows, _drawn(drawn, split, rows)) for split, rows in wanted.items()}


def _drawn(drawn: pathfinder.Options, split: str, rows: int) -> Iterator[Chunk]:
    for block in in_order(pathfinder.rows, [(drawn, split, *piece) for piece in ranges(rows, TOGETHER)]):
        yield _chunk(block.inputs, block.targets)


def _chunk(images: np.ndarray, labels: np.ndarray) -> Chunk:
    pixels = images.reshape(len(images), -1, 1)
    return Chunk(pixels, np.full(len(images), pixels.shape[1]), labels)


# -- official


class Listed(NamedTuple):
    """An image that the release lists."""

    path: Path
    label: int


def _official(
    source: Path, side: int, options: Options, wanted: dict[str, int], progress: Progress
) -> tuple[dict[str, Incoming], dict[str, Any]]:
    """The splits of all images that can be read, and what was left out."""
    folder = _folder(source, side, options.level)
    listed = [image for path in _in_order(folder / "metadata") for image in _metadata(folder, path)]
    faults = _faults(listed, side, progress)
    usable = [image for image, fault in zip(listed, faults, strict=True) if not fault]
    bad = [fault for fault in faults if fault]
    if len(usable) < 10:
        raise BadData(f"{folder} has {len(usable)} images that can be read; at least 10 are needed. {''.join(bad[:1])}")
    tenth = len(usable) // 10
    order = numpy_stream(options.seed, "pathfinder", "official split").permutation(len(usable))
    parts = np.split(order, [len(usable) - 2 * tenth, len(usable) - tenth])
    chosen = {split: np.sort(part[: wanted[split]]) for split, part in zip(SPLITS, parts, strict=True)}
    splits = {
        split: Incoming(len(rows), _images([usable[row] for row in rows], side)) for split, rows in chosen.items()
    }
    notes = {"images listed": len(listed), "images left out": len(bad), "left out": bad[:MOST_NAMED]}
    return splits, notes


def _folder(source: Path, side: int, level: str) -> Path:
    """Where images and metadata of a difficulty lie, at or below what the user named."""
    name = FOLDERS[level]
    for place in (source / f"pathfinder{side}" / name, source / name, source):
        if (place / "metadata").is_dir() and place.resolve().name == name:
            return place
    raise BadData(f"{source} has no pathfinder{side}/{name} with folders imgs and metadata; give the folder above it")


def _in_order(metadata: Path) -> list[Path]:
    """The files of the metadata, by number."""
    files = sorted(metadata.glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise BadData(f"{metadata} has no .npy files, which list the images")
    return files


def _metadata(folder: Path, path: Path) -> Iterator[Listed]:
    """What a file lists, in text in spite of its name: folder, file, a number, the label, and more that is not needed.

    Raises:
        BadData: with file and row, where that is not so, or where an image would lie outside the release.
    """
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read as text: {error}") from error
    for row, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 4 or words[3] not in ("0", "1"):
            raise BadData(f"{path}, row {row}: '{line[:60]}' is not folder, file, number and a label of 0 or 1")
        place = Path(words[0], words[1])
        if place.is_absolute() or ".." in place.parts:
            raise BadData(f"{path}, row {row}: '{place}' lies outside {folder}")
        yield Listed(folder / place, int(words[3]))


def _together(side: int) -> int:
    return PIXELS // side**2


def _faults(listed: list[Listed], side: int, progress: Progress) -> list[str]:
    """Why each image cannot be used; empty where it can."""
    faults: list[str] = []
    pieces = ranges(len(listed), _together(side))
    for some in in_order(_check, [([image.path for image in listed[slice(*piece)]], side) for piece in pieces]):
        faults += some
        progress("images checked", len(faults), len(listed))
    return faults


def _check(paths: list[Path], side: int) -> list[str]:
    return [png.check(path, side) for path in paths]


def _images(images: list[Listed], side: int) -> Iterator[Chunk]:
    pieces = ranges(len(images), _together(side))
    for block in in_order(_read, [(images[slice(*piece)], side) for piece in pieces]):
        yield _chunk(block.inputs, block.targets)


def _read(images: list[Listed], side: int) -> Block:
    pixels = np.stack([png.read(path, side) for path, _ in images])
    labels = np.array([label for _, label in images], np.uint8)
    return Block(pixels, np.full(len(images), side**2, np.int32), labels)
