"""The identity of files: a SHA-256 of their bytes, read once as long as size and time of change stay the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Of a file's bytes, or of a folder's files with their names; empty where nothing is there."""
    if path.is_file():
        return _sha256_of_file(path)
    return sha256_of_all(path, path.rglob("*")) if path.is_dir() else ""


def sha256_of_all(folder: Path, paths: Iterable[Path]) -> str:
    """Of the files among `paths`, each with its name inside `folder`."""
    named = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(f"{len(name)}:{name}{_sha256_of_file(named[name])}".encode())
    return digest.hexdigest()


def _sha256_of_file(path: Path) -> str:
    found = path.stat()
    return _read(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@lru_cache(maxsize=100_000)
def _read(path: Path, *state: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
