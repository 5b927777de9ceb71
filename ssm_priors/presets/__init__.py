"""Presets: named settings of a whole run, as TOML files beside this one.

A preset has a `description`, a table `run` with the settings shared by all, and tables `models.NAME`, `tasks.NAME` and
`objectives.NAME` that say what is different for one model, task or objective; `tasks.ucr` for all tasks `ucr:NAME`.
`compose` merges them into the mapping that `RunConfig.from_dict` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

from ssm_priors.config import parse_toml
from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.registry import family_of


def names() -> list[str]:
    """The presets that ship with the package."""
    return sorted(entry.name[:-5] for entry in files(__name__).iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> dict[str, Any]:
    """A preset as its raw mapping; raises UnknownName."""
    if name not in names():
        raise UnknownName("preset", name, names())
    return parse_toml(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def fraction(settings: Mapping[str, Any], task: str) -> float:
    """The share of a task's training split that a preset uses where nothing else is asked for."""
    return float(merge(settings["run"], _of_task(settings, task)).get("fraction", 1.0))


def refuse_idle(changes: Mapping[str, Any], pretrains: Iterable[str]) -> None:
    """Refuse changes to pretraining where nothing pretrains: they would be passed over; raises BadConfig."""
    if "pretrain" in changes and set(pretrains) <= {"none"}:
        raise BadConfig("settings of pretrain are changed, but nothing pretrains; name an objective: --pretrain masked")


def compose(
    preset: str | Mapping[str, Any],
    *,
    model: str,
    task: str,
    pretrain: str = "none",
    init: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The raw configuration of one run: the preset's settings for this model, task and objective.

    Args:
        preset: a name from `names()`, or what `load` gave for one.
        model: a mixer's name.
        task: a task's name.
        pretrain: an objective's name, or "none" for training from scratch.
        init: how the SSM parameters start; None keeps the mixer's own default.
        changes: a nested mapping laid over the result, from the command line.
    """
    table = load(preset) if isinstance(preset, str) else preset
    raw = merge(table["run"], _of_task(table, task))
    raw = merge(raw, table.get("models", {}).get(model, {}))
    raw = merge(raw, {"task": {"name": task}, "model": {"mixer": {"name": model}}})
    if init is not None:
        raw = merge(raw, {"model": {"mixer": {"init": init}}})
    options = table.get("objectives", {}).get(pretrain, {})
    raw = merge(raw, {"pretrain": {"objective": {"name": pretrain, **options}}})
    raw = merge(raw, changes or {})
    if pretrain == "none":  # so that what only pretraining knows of makes no two runs of one
        del raw["pretrain"]
        if isinstance(raw.get("budget"), dict):
            raw["budget"].pop("pretrain_share", None)
    return raw


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it, table by table; neither is changed."""
    merged = deepcopy(dict(base))
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = deepcopy(value)
    return merged


def _of_task(table: Mapping[str, Any], task: str) -> dict[str, Any]:
    """What is different for a task: its family's table, and its own laid over it."""
    tables = table.get("tasks", {})
    return merge(tables.get(family_of(task), {}), tables.get(task, {}))
