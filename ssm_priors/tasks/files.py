"""A user's own data: `files:PATH` is a task made of a CSV, Parquet or NPZ file, a Zarr group, or a folder.

Rows are read by `rows`, which says what each kind looks like. Numbers are scaled by mean and deviation of each feature
over the training split alone; a text is read as its bytes. The content of the files decides whether what was prepared
from them is still current: an edited file is noticed and prepared anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.tasks import store
from ssm_priors.tasks.letters import WORDS
from ssm_priors.tasks.rows import Rows
from ssm_priors.tasks.rows.arrays import npz_rows, zarr_rows
from ssm_priors.tasks.rows.assemble import prepare
from ssm_priors.tasks.rows.content import sha256_of
from ssm_priors.tasks.rows.folders import folder_rows
from ssm_priors.tasks.rows.options import Options
from ssm_priors.tasks.rows.tables import csv_rows, parquet_rows
from ssm_priors.tasks.task import Progress, Task

READERS: dict[str, Callable[[Path, Options], Rows]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), csv_rows),
    **dict.fromkeys((".parquet", ".pq"), parquet_rows),
    ".npz": npz_rows,
}
ZARR = ("zarr.json", ".zgroup")
"""Files that make a folder a Zarr group."""


@TASKS.register("files")
@dataclass(frozen=True, slots=True)
class Files:
    """Your own series or texts with a class or a number each: CSV, Parquet, NPZ, Zarr, or a folder.

    Source: the files at PATH; see docs/tasks.md for what they may look like.
    """

    argument: ClassVar[str] = "PATH"
    origin: ClassVar[str] = "your own files"
    Config: ClassVar[type[Options]] = Options

    path: Path

    @classmethod
    @cache
    def member(cls, argument: str) -> Files:
        """The task at a full path; raises BadConfig for one that means something else elsewhere."""
        full = cls.spelled(argument)
        if full != argument:
            raise BadConfig(
                f"task 'files:{argument}': a full path was expected, which means the same everywhere: files:{full}"
            )
        return cls(Path(argument))

    @staticmethod
    def spelled(argument: str) -> str:
        """A full path without detours."""
        return os.path.abspath(os.path.expanduser(argument))

    @staticmethod
    def ready() -> str:
        """Anything can be named."""
        return "yes: any file or folder of yours"

    @property
    def name(self) -> str:
        """As the task is called."""
        return f"files:{self.path}"

    def missing(self, options: Options) -> str:
        """Whether anything is at the path."""
        return "" if self.path.exists() else f"task '{self.name}': {self.path}: no such file or folder"

    def content(self, options: Options) -> str:
        """SHA-256 of the file, or of all files of the folder."""
        return sha256_of(self.path)

    def spec(self, options: Options) -> TaskSpec:
        """As it was prepared; raises NotReady before."""
        return store.spec_of(self.name, options)

    def words(self, options: Options) -> tuple[str, ...]:
        """A byte an id, where the files hold texts."""
        return WORDS

    def load(self, options: Options) -> Task:
        """The three splits, prepared first if they are not current."""
        return store.load(self.name, options)

    def prepare(self, source: Path | None, options: Options, progress: Progress) -> Path:
        """Read everything and write it into the store; raises NotReady where nothing is there."""
        if lacking := self.missing(options):
            raise NotReady(lacking)
        return prepare(
            self.name,
            options,
            lambda: self._rows(options),
            options,
            stream=("files",),
            source=str(self.path),
            content=self.content(options),
            progress=progress,
        )

    def _rows(self, options: Options) -> Rows:
        if self.path.is_dir():
            is_zarr = any((self.path / name).is_file() for name in ZARR)
            return (zarr_rows if is_zarr else folder_rows)(self.path, options)
        read = READERS.get(self.path.suffix.lower())
        if read is None:
            raise BadData(f"{self.path}: {', '.join(READERS)}, a Zarr group or a folder was expected")
        return read(self.path, options)
