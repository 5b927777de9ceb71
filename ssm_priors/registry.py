"""Registries: a part registers itself by a decorator in its own file, and is found by scanning its package.

    @MIXERS.register("s4d")
    class S4D(nn.Module): ...

Packages are named by string and imported on first look-up, so a registry adds no import edge and costs nothing at
start-up. Other distributions add parts through the entry-point group named in `Registry.group`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, TypeVar

from ssm_priors.errors import SsmPriorsError, UnknownName

P = TypeVar("P")


class Registry:
    """Names of one kind of part; scanned on first look-up.

    Args:
        kind: what the user calls it, in the singular: "model", "init".
        package: the dotted package whose modules register their parts when imported.
    """

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self.package = package
        self.group = f"ssm_priors.{kind}s"
        self._parts: dict[str, Any] = {}
        self._scanned = False

    def register(self, name: str) -> Callable[[P], P]:
        """Decorator that files a part under `name`; a second part of the same name is refused."""

        def file(part: P) -> P:
            if name in self._parts:
                raise SsmPriorsError(f"two {self.kind}s are called '{name}': {self._parts[name]!r} and {part!r}")
            self._parts[name] = part
            return part

        return file

    def __getitem__(self, name: str) -> Any:
        self._scan()
        if name not in self._parts:
            raise UnknownName(self.kind, name, self._parts)
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._parts))

    def __len__(self) -> int:
        self._scan()
        return len(self._parts)

    def _scan(self) -> None:
        if self._scanned:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, f"{self.package}."):
            importlib.import_module(module.name)
        for plugin in entry_points(group=self.group):
            plugin.load()
        self._scanned = True


FORMATS = Registry("format", "ssm_priors.checkpoints.formats")
INITS = Registry("init", "ssm_priors.priors")
MIXERS = Registry("model", "ssm_priors.models.mixers")
OBJECTIVES = Registry("objective", "ssm_priors.objectives")
TASKS = Registry("task", "ssm_priors.tasks")


def summary(part: Any) -> str:
    """First line of a part's docstring."""
    return (part.__doc__ or "").strip().split("\n")[0].rstrip()


def source(part: Any) -> str:
    """What the part's docstring names after `Source:`, up to the end of that paragraph."""
    _, found, rest = (part.__doc__ or "").partition("Source:")
    return " ".join(rest.split("\n\n")[0].split()) if found else ""
