"""What a manifest records of a stored array, and whether a file is still what was recorded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssm_priors.tasks.task import Progress


def described(path: Path) -> dict[str, Any]:
    """Size, shape, type and hash of a file, which is on the disk when this returns."""
    array = np.load(path, mmap_mode="r")
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": sha256, "bytes": path.stat().st_size, "shape": list(array.shape), "dtype": str(array.dtype)}


def wrong_shape(path: Path, recorded: Mapping[str, Any]) -> str:
    """What differs from the record, as far as the file's head and size tell; empty if nothing does."""
    if not path.is_file():
        return "the file is missing"
    if path.stat().st_size != recorded.get("bytes"):
        return f"{path.stat().st_size} bytes, {recorded.get('bytes')} were written"
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        return f"not an array: {error}"
    found = [list(array.shape), str(array.dtype)]
    expected = [recorded["shape"], recorded["dtype"]]
    return "" if found == expected else f"an array of {found}, {expected} was written"


def wrong_file(path: Path, recorded: Mapping[str, Any], progress: Progress) -> str:
    """What differs from the record, the content included; empty if nothing does."""
    fault = wrong_shape(path, recorded)
    if fault:
        return f"{path.name}: {fault}"
    progress(path.name, 0, 1)
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    progress(path.name, 1, 1)
    return (
        "" if found == recorded["sha256"] else f"{path.name}: its SHA-256 is {found}, {recorded['sha256']} was written"
    )
