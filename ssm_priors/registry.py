"""Registries: a part registers itself by a decorator in its own file, and is found by scanning its package.

    @MIXERS.register("s4d")
    class S4D(nn.Module): ...

Packages are named by string and imported on first look-up, so a registry adds no import edge and costs nothing at
start-up. Other distributions add parts through the entry-point group named in `Registry.group`.

A part may be a `Family` of parts that differ in one argument: it is registered as "ucr", and looked up as "ucr:ACSF1".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar, runtime_checkable

from ssm_priors.errors import BadConfig, SsmPriorsError, UnknownName

P = TypeVar("P")
SEPARATOR = ":"
"""Between a family's name and the argument of one of its members."""


@runtime_checkable
class Family(Protocol):
    """What is registered where one name stands for many parts."""

    argument: str
    """What people read in the argument's place: "NAME" in `ucr:NAME`."""

    def member(self, argument: str) -> Any:
        """The part for an argument, the same object for the same one.

        A name is good whether or not its data are here, so that what was made with it can be read anywhere; raises
        BadConfig for an argument that can never be one.
        """
        ...

    def spelled(self, argument: str) -> str:
        """An argument that a person gave, as it is recorded: a relative path becomes a full one."""
        ...

    def ready(self) -> str:
        """'yes: ' and what there is to name here, or 'no: ' and what to do."""
        ...


def family_of(name: str) -> str:
    """'ucr' for 'ucr:ACSF1'; any other name is its own family."""
    return name.partition(SEPARATOR)[0]


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
        family, separator, argument = name.partition(SEPARATOR)
        part = self._parts.get(family)
        if isinstance(part, Family):
            if not argument:
                raise BadConfig(
                    f"{self.kind} '{name}' is one of many: {_shown(family, part)} was expected ({part.ready()})"
                )
            return part.member(argument)
        if part is None or separator:
            families = (f"{family_of(shown)}{SEPARATOR}{argument}" if argument else shown for shown in self.families)
            raise UnknownName(self.kind, name, [*self, *families])
        return part

    def __contains__(self, name: object) -> bool:
        """Whether a part has this name; for a member of a family, whether the family has."""
        self._scan()
        family, separator, argument = str(name).partition(SEPARATOR)
        is_one = not separator and not isinstance(self._parts.get(family), Family)
        return family in self._parts and (is_one or (bool(argument) and isinstance(self._parts[family], Family)))

    def __iter__(self) -> Iterator[str]:
        """The names that stand for one part each."""
        self._scan()
        return iter(sorted(name for name, part in self._parts.items() if not isinstance(part, Family)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def families(self) -> dict[str, Any]:
        """'ucr:NAME' -> the family of all that are called so."""
        self._scan()
        return {_shown(name, part): part for name, part in sorted(self._parts.items()) if isinstance(part, Family)}

    def spelled(self, name: str) -> str:
        """A name that a person gave, as it is recorded; any name that needs no change is its own."""
        self._scan()
        family, _, argument = name.partition(SEPARATOR)
        part = self._parts.get(family)
        return f"{family}{SEPARATOR}{part.spelled(argument)}" if argument and isinstance(part, Family) else name

    def _scan(self) -> None:
        if self._scanned:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, f"{self.package}."):
            importlib.import_module(module.name)
        for plugin in entry_points(group=self.group):
            plugin.load()
        self._scanned = True


def _shown(name: str, family: Family) -> str:
    return f"{name}{SEPARATOR}{family.argument}"


ENGINES = Registry("engine", "ssm_priors.studies.engines")
FORMATS = Registry("format", "ssm_priors.checkpoints.formats")
INITS = Registry("init", "ssm_priors.priors")
LOGGERS = Registry("logger", "ssm_priors.training.loggers")
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
