"""fsspec file systems in this process's memory: one that fails when it is told, one that lists what is not its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


def _counted(name: str) -> Callable:
    original = getattr(MemoryFileSystem, name)

    def call(self, path, *args, **kwargs):
        Failing.calls.append((name, str(args[0]) if name == "put_file" else str(path)))
        if Failing.fails(len(Failing.calls) - 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(self, path, *args, **kwargs)

    return call


class Failing(MemoryFileSystem):
    """Memory whose calls fail when `fails` says so of their number; remembers all of them."""

    protocol = "failing"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[list[tuple[str, str]]] = []
    fails: Callable[[int], bool] = staticmethod(lambda number: False)

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("failing://", "memory://"))

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.obey(lambda number: False)

    @classmethod
    def obey(cls, fails: Callable[[int], bool]) -> None:
        """Count calls from 0 again."""
        cls.calls.clear()
        cls.fails = staticmethod(fails)

    put_file = _counted("put_file")
    pipe_file = _counted("pipe_file")
    cat_file = _counted("cat_file")
    open = _counted("open")
    find = _counted("find")
    ls = _counted("ls")
    rm_file = _counted("rm_file")


class Hostile(Failing):
    """Lists beside every file others of its content whose names lead elsewhere."""

    protocol = "hostile"

    @classmethod
    def _strip_protocol(cls, path):
        return Failing._strip_protocol(str(path).replace("hostile://", "memory://"))

    def find(self, path, *args, **kwargs):
        found = super().find(path, *args, **kwargs | {"detail": True})
        top = self._strip_protocol(path)
        lies = {f"{top}/{lie}": info for info in found.values() for lie in LIES}
        return found | lies


LIES = (
    "../../../evil.txt",
    "..",
    "0123456789ab/../../../../evil.txt",
    "/etc/evil.txt",
    "a\\..\\evil.txt",
    "C:\\evil.txt",
)

for kind in (Failing, Hostile):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
fsspec.register_implementation(
    "absent", "no_such_module.FileSystem", clobber=True, errtxt="Install absentfs to access it"
)
