"""Files at an fsspec URL: where the runs of a study go whose workers share no disk.

    URL/study.toml, URL/tuned.json, .., URL/runs/FINGERPRINT/{run.toml, metrics.csv, .., ckpt.pt}

A run's `ckpt.pt` is brought last and removed first, because that file says that the run is done. Names of files that
are written here are never taken from what a store lists, so that no listing can lead out of a folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import split_protocol, url_to_fs
from fsspec.registry import get_filesystem_class, known_implementations
from fsspec.utils import tokenize
from platformdirs import user_cache_path

from ssm_priors import atomic
from ssm_priors.checkpoints.checkpoint import PRETRAINED
from ssm_priors.errors import BadConfig, NotReady, StoreFailed, UnknownName
from ssm_priors.folder import LEFTOVER, LOCK
from ssm_priors.studies.runner import FAILURE
from ssm_priors.training.run import CHECKPOINT, CONFIG, TEST

ENVIRONMENT = "SSMP_SCRATCH_DIR"
"""Names the folder in which a store's files lie on this machine."""
RUNS = "runs"
STATE = "state.pt"
METRICS = "metrics.csv"
BEGUN = (CONFIG, METRICS, PRETRAINED, STATE)
"""What an interrupted run needs to go on; the state last, which counts on the others."""
ENDED = (CONFIG, METRICS, PRETRAINED, TEST, CHECKPOINT)
FAILED = (CONFIG, METRICS, FAILURE)


def is_url(place: str | Path) -> bool:
    """Whether a place is no folder of this machine's, but `protocol://..`."""
    return "://" in str(place) and split_protocol(str(place))[0] is not None


def scratch() -> Path:
    """Where the files of stores lie on this machine: what the environment says, or the platform's cache folder."""
    given = os.environ.get(ENVIRONMENT)
    return Path(given).absolute() if given else user_cache_path("ssm-priors")


class Store:
    """What lies below a URL.

    Args:
        url: of a folder that belongs to one study.

    Raises:
        BadConfig: no URL that anything can be kept at.
        UnknownName: a protocol that fsspec does not know.
        NotReady: one that needs a package which is not installed.
        StoreFailed: nobody answers, or not to us.
    """

    def __init__(self, url: str):
        self.name = re.sub(r"//[^/@]+@", "//", url.rstrip("/"))
        """The URL without a password."""
        self.url = url.rstrip("/")
        protocol, path = split_protocol(url)
        if "::" in url or not protocol or not path.strip("/"):
            raise BadConfig(f"{self.name}: PROTOCOL://FOLDER was expected, such as s3://bucket/folder, without '::'")
        _refuse_missing(protocol, self.name)
        with self._asked("cannot be opened"):
            _, root = url_to_fs(self.url)
        self._root = root.rstrip("/")
        self._is_tree = Path(root).is_absolute() or root.startswith("/")
        """Whether its folders must be made before files; else it is a bucket, which must be there, and has none."""

    @property
    def _fs(self) -> AbstractFileSystem:
        """A thread's own connection, which fsspec keeps: some drivers cannot serve two threads at once."""
        return url_to_fs(self.url)[0]

    @property
    def key(self) -> str:
        """12 hex digits that tell this place from others."""
        return hashlib.sha256(f"{self.url}\n{self._root}".encode()).hexdigest()[:12]

    def names(self) -> set[str]:
        """What stands directly below the URL."""
        with self._asked("cannot be listed"):
            self._fs.invalidate_cache()
            try:
                listed = [str(path).rstrip("/") for path in self._fs.ls(self._root, detail=False)]
            except FileNotFoundError:
                return set()
        return {path.rpartition("/")[2] for path in listed if path != self._root}

    def files(self, below: str) -> dict[str, str]:
        """Every file below a name -> a token, which is another once the file has been replaced."""
        top = f"{self._root}/{below}"
        raising = {"on_error": "raise"} if self._is_tree else {}  # else fsspec leaves out what it cannot read
        with self._asked(f"{below} cannot be listed"):
            self._fs.invalidate_cache()
            try:
                found: dict[str, Any] = self._fs.find(top, detail=True, **raising)
            except FileNotFoundError:
                return {}
        below_top = {name[len(top) + 1 :]: info for name, info in found.items() if name.startswith(f"{top}/")}
        return {name: tokenize(info) for name, info in below_top.items() if ".." not in name.split("/")}

    def runs(self) -> dict[str, dict[str, str]]:
        """Every run that has something here -> its files, as `files` gives them."""
        runs: dict[str, dict[str, str]] = {}
        for name, token in self.files(RUNS).items():
            run, _, file = name.partition("/")
            runs.setdefault(run, {})[file] = token
        return runs

    def read(self, name: str) -> bytes | None:
        """A small file; None where it is not there."""
        with self._asked(f"{name} cannot be read"):
            try:
                content: bytes = self._fs.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file."""
        with self._asked(f"{name} cannot be written"):
            self._fs.pipe_file(self._room_for(name), content)

    def put(self, path: Path, name: str) -> None:
        """Replace a file by one of this machine."""
        with self._asked(f"{name} cannot be written"):
            self._fs.put_file(str(path), self._room_for(name))

    def get(self, name: str, path: Path) -> None:
        """Replace a file of this machine, whole or not at all."""
        with self._asked(f"{name} cannot be brought to {path}"), self._fs.open(f"{self._root}/{name}", "rb") as theirs:
            atomic.write(path, lambda file: shutil.copyfileobj(theirs, file))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._asked(f"{name} cannot be removed"):
            try:
                self._fs.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return

    def fetch_run(self, name: str, folder: Path) -> None:
        """Replace a run's folder here by what there is of it there, finished, failed or begun."""
        there = self.files(f"{RUNS}/{name}")
        names = ENDED if CHECKPOINT in there else dict.fromkeys((*FAILED, *BEGUN))

        def fill(fresh: Path) -> None:
            fresh.mkdir()
            for file in names:
                if file in there:
                    self.get(f"{RUNS}/{name}/{file}", fresh / file)

        folder.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_folder(folder, fill)

    def put_run(self, folder: Path) -> str:
        """Bring a finished run; gives the token of its checkpoint."""
        place = f"{RUNS}/{folder.name}"
        self.remove(f"{place}/{CHECKPOINT}")
        names = [name for name in _files(folder) if name not in (STATE, CHECKPOINT)]
        for name in (*names, CHECKPOINT):
            self.put(folder / name, f"{place}/{name}")
        for name in (STATE, FAILURE):
            self.remove(f"{place}/{name}")
        return self.files(place).get(CHECKPOINT, "")

    def put_some(self, folder: Path, names: Iterable[str]) -> None:
        """Bring those files of a run that it has, in this order."""
        for name in names:
            if (folder / name).exists():
                self.put(folder / name, f"{RUNS}/{folder.name}/{name}")

    def put_folder(self, folder: Path, name: str) -> None:
        """Replace a folder; files at its top are removed first and brought last, so that half of it opens nowhere."""
        before = sorted(self.files(name), key=lambda file: file.count("/"))
        for file in before:
            self.remove(f"{name}/{file}")
        for file in sorted(_files(folder), key=lambda file: -file.count("/")):
            self.put(folder / file, f"{name}/{file}")

    def _room_for(self, name: str) -> str:
        """The full path of a file, whose folder is made if that is needed."""
        path = f"{self._root}/{name}"
        if self._is_tree:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Give one name to whatever goes wrong on the way: every driver has kinds of errors of its own."""
        try:
            yield
        except Exception as error:
            raise StoreFailed(f"{self.name}: {what}: {_reason(error)}") from error


def _refuse_missing(protocol: str, name: str) -> None:
    try:
        get_filesystem_class(protocol)
    except ImportError as missing:
        needs = known_implementations.get(protocol, {}).get("err", missing)
        raise NotReady(f"{name}: {protocol}:// needs a package that is not installed: {needs}") from missing
    except ValueError:
        raise UnknownName("protocol", protocol, known_implementations) from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}"


def _files(folder: Path) -> list[str]:
    """Every file below a folder that belongs to what was done there, and not to a process."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    own = (path for path in files if path.name != LOCK and not LEFTOVER.fullmatch(path.name))
    return [path.relative_to(folder).as_posix() for path in own]
