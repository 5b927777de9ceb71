"""The catalogue: studies as TOML files beside this one, each with the question it asks.

A file has a `title`, a `question`, and the fields of `studies.grid.Study`: the axes `models`, `inits`, `pretrains`,
`tasks`, `fractions`, `budgets` and `variants`, the number of `seeds`, `baseline`, `preset`, `changes` to the preset,
the trials to `tune` by, cells to `exclude`, and its `claims`. A table `presets.NAME` holds fields that are others with
that preset: the axes of the study at paper size. A file anywhere else is read in the same way; there, title and
question may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from ssm_priors.config import parse_toml, read_toml
from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.presets import merge
from ssm_priors.registry import OBJECTIVES, TASKS
from ssm_priors.studies.grid import Study

SPELLED: dict[str, Callable[[str], str]] = {
    "tasks": TASKS.spelled,
    "pretrains": OBJECTIVES.spelled,
}
"""How a name that a person gave is recorded: a relative path becomes a full one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A study as a file describes it."""

    name: str
    raw: dict[str, Any]
    """The fields of `Study`."""
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that are others with a preset."""

    def study(self, given: Mapping[str, Any] | None = None) -> Study:
        """The study, with what a user asked for in place of what the file says.

        Args:
            given: fields of `Study` (an axis as a list, as comma-separated text, or as one value); any other key is a
                setting of every run, laid over the `changes` of the file.

        Raises:
            UnknownName, BadConfig
        """
        own = {field.name: field.default for field in fields(Study) if field.name not in ("settings", "changes")}
        given = dict(given or {})
        axes = {key: _as_axis(key, given.pop(key), own[key]) for key in list(given) if key in own}
        preset = axes.get("preset", self.raw.get("preset", own["preset"]))
        raw = self.raw | self.presets.get(preset, {}) | axes
        if "tune" in axes:
            raw["tune"] = _tuned_anew(self.raw | self.presets.get(preset, {}), axes["tune"])
        if "preset" in axes:
            raw.pop("settings", None)  # those of the preset that the file was made with
        return Study.from_dict(raw | {"changes": merge(raw.get("changes", {}), given)})


def names() -> list[str]:
    """The studies that ship with the package."""
    return sorted(entry.name[:-5] for entry in files(__name__).iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Entry:
    """A study by its name, or by the path of its file.

    Raises:
        UnknownName: neither a name nor a file.
        BadConfig: the file cannot be read.
    """
    if name in names():
        raw = parse_toml(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    elif Path(name).is_file():
        raw = read_toml(Path(name))
    else:
        raise UnknownName("study", name, names())
    presets = raw.pop("presets", {})
    if not isinstance(presets, dict) or not all(isinstance(table, dict) for table in presets.values()):
        raise BadConfig(f"{name}: presets: tables presets.NAME were expected, {presets!r} was given")
    return Entry(Path(name).stem, raw, presets)


def _tuned_anew(raw: Mapping[str, Any], given: Any) -> Any:
    """A study's table `tune` with what was given laid over it; its points are drawn again."""
    own = raw.get("tune", {})
    if not isinstance(own, Mapping) or not isinstance(given, Mapping):
        return given
    return merge({key: value for key, value in own.items() if key != "points"}, given)


def _as_axis(key: str, value: Any, default: Any) -> Any:
    """What was given for a field; for one that takes several values, a list of them. Raises BadConfig."""
    if not isinstance(default, tuple):
        return value
    values = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if key in SPELLED:
        return [SPELLED[key](value) if isinstance(value, str) else value for value in values]
    if key != "fractions":
        return values
    try:
        return [float(part) for part in values]
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{key}: numbers were expected: {error}") from error
