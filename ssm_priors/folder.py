"""A folder that belongs to one thing: claimed before anything is written, so that nothing of a user's is lost.

A folder may be claimed if it is not there, is empty, or bears the marker of the thing that claims it; leftovers of a
kill in the middle of a write are no content. While it is claimed, a lock keeps other processes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ssm_priors import atomic
from ssm_priors.errors import BadConfig

LOCK = ".lock"
LEFTOVER = re.compile(r"\.(.+)\.\d+\.(tmp|old)")
"""How `ssm_priors.atomic` names what it has not finished."""


@contextmanager
def claimed(folder: Path, marker: str, text: str, refuse_other: Callable[[Path], None]) -> Iterator[None]:
    """Hold a folder while something is done in it.

    Args:
        folder: made if it is not there.
        marker: name of the file that says whose folder it is.
        text: what the marker says.
        refuse_other: raises BadConfig if the marker that is there says something else.

    Raises:
        BadConfig: the folder cannot be made, holds something else, or is held by another process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"{folder} cannot be made: {error.strerror}") from error
    _refuse_foreign(folder, marker)
    with held(folder):
        path = folder / marker
        if path.exists():
            refuse_other(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            atomic.write_text(path, text)
        yield


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, or be refused; raises BadConfig."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadConfig(f"{folder}: another process is at work here") from None
    except OSError as error:
        raise BadConfig(f"{folder} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def remove_leftovers(folder: Path, names: set[str]) -> None:
    """Remove what a kill left of writing the files `names`. For whoever holds the folder."""
    for entry in folder.iterdir():
        leftover = LEFTOVER.fullmatch(entry.name)
        if leftover and leftover[1] in names and entry.is_file():
            entry.unlink()


def _refuse_foreign(folder: Path, marker: str) -> None:
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(name for name in names - {LOCK, marker} if not LEFTOVER.fullmatch(name))
    if marker not in names and foreign:
        raise BadConfig(f"{folder} holds {foreign[0]} but no {marker}; choose an empty or a new folder")
