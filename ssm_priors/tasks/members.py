"""What a user brings: files out of a folder, a tar, a tar.gz, a zip, or one file by itself, all read alike.

Nothing is unpacked to a place that an archive names: a file is known by the name that the task has for it, and read as
a stream. What is compressed can only be read forwards, and no archive has the order that a task needs; so the files
that are wanted are copied, in one pass, into one nameless file beside the prepared data, and read from there.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from ssm_priors.errors import BadData
from ssm_priors.tasks import store
from ssm_priors.tasks.task import Progress, silent

Wanted = Callable[[PurePosixPath], str | None]
"""A file's path, as it stands in the archive, to the task's own name for it; None for what is of no use."""

MOST_TOGETHER = 2**35
"""Bytes that all wanted files may have together."""
MOST_AT_ONCE = 2**24
"""Bytes that are read at once: a tar can ask for more only to tell a name that is no name."""
STEP = 2**20
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, NotImplementedError)
"""What the readers of the standard library raise when an archive is damaged."""


@dataclass(frozen=True, slots=True)
class Members:
    """Files under the names that a task has for them."""

    source: Path
    sizes: Mapping[str, int]
    """Bytes of each."""
    reader: Callable[[str], BinaryIO]

    def names(self) -> list[str]:
        """All, sorted, so that an archive and its unpacked folder give the same order."""
        return sorted(self.sizes)

    def open(self, name: str) -> BinaryIO:
        """A file as a stream that can be wound back; raises BadData."""
        if name not in self.sizes:
            raise BadData(f"{self.source}: {name} is not there")
        try:
            return self.reader(name)
        except OSError as error:
            raise BadData(f"{self.where(name)} cannot be read: {error}") from error

    def read(self, name: str) -> bytes:
        """The whole of a file; raises BadData."""
        with self.open(name) as file:
            return file.read()

    def where(self, name: str) -> str:
        """For people: which file of what."""
        return f"{self.source}: {name}"


@contextmanager
def members(source: Path, wanted: Wanted, most: int, progress: Progress = silent) -> Iterator[Members]:
    """The wanted files of an archive, a folder, or a single file.

    Args:
        source: what the user brought.
        wanted: the task's name for a path, or None.
        most: bytes that one file may have.
        progress: told how much of an archive was read.

    Raises:
        BadData: it is damaged, larger than it can be, or has two files for one name.
    """
    if source.is_dir():
        yield _beside(source, wanted, most, sorted(path for path in source.rglob("*") if path.is_file()))
    elif not _is_archive(source):
        yield _beside(source.parent, wanted, most, [source])
    else:
        store.data_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.data_dir()) as spool:
            yield _copied(source, wanted, most, cast(BinaryIO, spool), progress)


class _Found(NamedTuple):
    """A file of an archive, before anything of it is read."""

    path: str
    size: int
    open: Callable[[], Any]
    is_plain: bool = True
    """Whether it is what a file should be: no link, no device, not encrypted."""


class _Slice(io.RawIOBase):
    """A part of a file, as if it were one."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        super().__init__()
        self.file, self.start, self.size, self.at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence])
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.start + self.at)
        content = self.file.read(min(len(buffer), max(self.size - self.at, 0)))
        buffer[: len(content)] = content
        self.at += len(content)
        return len(content)


class _Careful:
    """A stream that never hands out more at once than a true archive needs."""

    def __init__(self, file: BinaryIO):
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int) -> bytes:
        if size > MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._read(size)


class _Names:
    """Files by the names that a task has for them, each once, and none larger than it can be."""

    def __init__(self, source: Path, wanted: Wanted, most: int):
        self.source, self.wanted, self.most = source, wanted, most
        self.paths: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def take(self, found: _Found) -> str | None:
        """The task's name for a file, if it is wanted; raises BadData."""
        name = self.wanted(PurePosixPath(found.path))
        if name is None:
            return None
        if name in self.paths:
            raise BadData(f"{self.source} has {name} twice: {self.paths[name]} and {found.path}; leave one of them")
        if not found.is_plain:
            raise BadData(f"{self.source}: {found.path} is a link, a device or encrypted; a plain file was expected")
        self.paths[name], self.sizes[name] = found.path, found.size
        if found.size > self.most or sum(self.sizes.values()) > MOST_TOGETHER:
            raise BadData(f"{self.source}: {found.path} has {found.size:,} bytes, {self.most:,} at most were expected")
        return name


def _beside(folder: Path, wanted: Wanted, most: int, paths: list[Path]) -> Members:
    """Files that lie on the disk, opened where they are."""
    names = _Names(folder, wanted, most)
    for path in paths:
        names.take(_Found(path.relative_to(folder).as_posix(), path.stat().st_size, lambda: io.BytesIO()))
    return Members(folder, names.sizes, lambda name: open(folder / names.paths[name], "rb"))


def _copied(source: Path, wanted: Wanted, most: int, spool: BinaryIO, progress: Progress) -> Members:
    """The wanted files of an archive, one after the other in `spool`."""
    names, starts = _Names(source, wanted, most), {}
    for found in _damage_told(source, _walk(source, progress)):
        name = names.take(found)
        if name is not None:
            starts[name] = spool.tell()
            for content in _damage_told(source, _content(found)):
                spool.write(content)
    return Members(
        source, names.sizes, lambda name: io.BufferedReader(_Slice(spool, starts[name], names.sizes[name]), STEP)
    )


def _content(found: _Found) -> Iterator[bytes]:
    """What a file holds, in pieces; raises EOFError where that is not as much as the archive said."""
    left = found.size
    with found.open() as file:
        while content := file.read(min(STEP, left)):
            left -= len(content)
            yield content
    if left:
        raise EOFError(f"{found.path} ends {left:,} bytes early")


def _damage_told(source: Path, found: Iterator[Any]) -> Iterator[Any]:
    """The same, with damage in words."""
    try:
        yield from found
    except DAMAGE as error:
        raise BadData(f"{source} cannot be read to its end ({error}); it is damaged or incomplete") from error


def _is_archive(source: Path) -> bool:
    return zipfile.is_zipfile(source) or _starts(source, 0, b"\x1f\x8b") or _starts(source, 257, b"ustar")


def _starts(source: Path, at: int, mark: bytes) -> bool:
    try:
        with open(source, "rb") as file:
            file.seek(at)
            return file.read(len(mark)) == mark
    except OSError as error:
        raise BadData(f"{source} cannot be read: {error.strerror}") from error


def _walk(source: Path, progress: Progress) -> Iterator[_Found]:
    """Every file of an archive, in its order; each must be read before the next is asked for."""
    yield from _zip(source, progress) if zipfile.is_zipfile(source) else _tar(source, progress)


def _zip(source: Path, progress: Progress) -> Iterator[_Found]:
    with zipfile.ZipFile(source) as file:
        entries = [entry for entry in file.infolist() if not entry.is_dir()]
        for done, entry in enumerate(entries, 1):
            yield _Found(entry.filename, entry.file_size, partial(file.open, entry), not entry.flag_bits & 1)
            progress(f"files of {source.name}", done, len(entries))


def _tar(source: Path, progress: Progress) -> Iterator[_Found]:
    """Goes on to the end of the stream, where a gzip has its checksum."""
    size, told = source.stat().st_size, 0
    is_packed = _starts(source, 0, b"\x1f\x8b")
    with open(source, "rb") as raw, gzip.GzipFile(fileobj=raw) if is_packed else nullcontext(raw) as plain:
        with tarfile.open(fileobj=cast(Any, _Careful(cast(BinaryIO, plain))), mode="r:") as tar:
            while (entry := tar.next()) is not None:
                if not entry.isdir():
                    yield _Found(entry.name, entry.size, partial(tar.extractfile, entry), entry.isfile())
                cast(Any, tar).members.clear()  # or it remembers every file
                if told + size / 200 < raw.tell() < size:
                    told = raw.tell()
                    progress(f"bytes of {source.name}", told, size)
            while plain.read(STEP):
                pass
        progress(f"bytes of {source.name}", size, size)
