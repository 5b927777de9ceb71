"""A folder that belongs to one thing: claimed before anything is written, so that nothing of a user's is lost.

A folder may be claimed if it is not there, is empty, or bears the marker of the thing that claims it; leftovers of a
kill in the middle of a write are no content. While it is claimed, a lock keeps other processes out.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ssm_priors import atomic
from ssm_priors.errors import BadConfig, RunFailed

LOCK = ".lock"
LEFTOVER = re.compile(r"\.(.+)\.\d+\.(tmp|old)")
"""How `ssm_priors.atomic` names what it has not finished."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""What the system says when a disk takes nothing more, whatever is written."""


@contextmanager
def claimed(
    folder: Path, marker: str, text: str, refuse_other: Callable[[Path], None], patience: float = 0.0
) -> Iterator[None]:
    """Hold a folder while something is done in it.

    Args:
        folder: made if it is not there.
        marker: name of the file that says whose folder it is.
        text: what the marker says.
        refuse_other: raises BadConfig if the marker that is there says something else.
        patience: seconds to wait while another process holds it.

    Raises:
        BadConfig: the folder cannot be made, holds something else, or is held by another process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"{folder} cannot be made: {error.strerror}") from error
    refuse_foreign(folder, marker)
    with held(folder, patience):
        path = folder / marker
        if path.exists():
            refuse_other(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            atomic.write_text(path, text)
        yield


@contextmanager
def held(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder, or be refused after `patience` seconds; raises BadConfig."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise BadConfig(f"{folder}: another process is at work here") from None
    except OSError as error:
        raise BadConfig(f"{folder} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process is at work in a folder; it must not be about to begin, for it could be refused by this look."""
    if not (folder / LOCK).exists():
        return False
    try:
        with held(folder):
            return False
    except BadConfig:
        return True


def no_room(error: BaseException | None) -> str:
    """What the system said of a disk that takes nothing more, if that is behind an error; else nothing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return os.strerror(error.errno)
        error = error.__cause__ or error.__context__
    return ""


@contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """Tell a disk that takes nothing more from any other fault; raises RunFailed."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # the second: what torch makes of an error in a file it is given
        if reason := no_room(error):
            raise RunFailed(out_of_room(folder, reason)) from error
        raise


def out_of_room(folder: Path, reason: str) -> str:
    """What is said where work in a folder ends because the disk takes nothing more."""
    return f"{folder} cannot be written: {reason}. What was finished is kept; make room, and the same command goes on"


def remove_leftovers(folder: Path, names: set[str]) -> None:
    """Remove what a kill left of writing the files `names`. For whoever holds the folder."""
    for entry in folder.iterdir():
        leftover = LEFTOVER.fullmatch(entry.name)
        if leftover and leftover[1] in names and entry.is_file():
            entry.unlink()


def refuse_foreign(folder: Path, marker: str) -> None:
    """Raise BadConfig if a folder holds something, but not the marker of the thing that would claim it."""
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(name for name in names - {LOCK, marker} if not LEFTOVER.fullmatch(name))
    if marker not in names and foreign and not (folder / marker).exists():  # as one who claims it just now writes it
        raise BadConfig(f"{folder} holds {foreign[0]} but no {marker}; choose an empty or a new folder")
