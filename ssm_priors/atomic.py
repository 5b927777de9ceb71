"""Files that are either whole or not there: written beside their place, flushed to disk, renamed over it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Replace `path` by what `fill` writes; a kill at any moment leaves the old file or the new one."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by UTF-8 text."""
    write(path, lambda file: file.write(text.encode()))


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Replace the folder `path` by what `fill` writes at the place it is given.

    A folder with files in it cannot be renamed over, so the old one is moved aside first; it is put back if the new one
    cannot take its place.
    """
    path = Path(path)
    fresh, old = (path.with_name(f".{path.name}.{os.getpid()}.{state}") for state in ("tmp", "old"))
    try:
        fill(fresh)
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    if os.name == "nt":  # Windows cannot open a folder for this
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
