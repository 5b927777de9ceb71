"""Presets: named settings of a whole run, as TOML files beside this one.

A preset has a `description`, a table `run` with the settings shared by all, and tables that say what is different:

    tasks.NAME                    for one task; tasks.ucr for all tasks ucr:NAME
    models.NAME                   for one model
    tasks.NAME.models.NAME        for one model on one task
    objectives.NAME               options of one objective, and tasks.NAME.objectives.NAME on one task

Each is laid over those before it, run < task < model < model on a task, and what a user changes over all. Two keys are
no settings: `source` says in words where a table's numbers come from; `like = "s4"` in a model's table, or in that of a
model on a task, begins with everything that holds for that other model, its mixer's own options left out, where there
would otherwise be run < task. A preset with `named_only = true` refuses tasks and models that it has no table for.

`compose` merges them into the mapping that `RunConfig.from_dict` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

from ssm_priors.config import parse_toml
from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.registry import MIXERS, TASKS, family_of


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

    Raises:
        UnknownName, BadConfig: the preset holds for named tasks and models only, and this is none of them.
    """
    table = load(preset) if isinstance(preset, str) else preset
    _refuse_unnamed(table, model, task)
    raw = merge(_of_model(table, model, task), {"task": {"name": task}, "model": {"mixer": {"name": model}}})
    if init is not None:
        raw = merge(raw, {"model": {"mixer": {"init": init}}})
    objective = family_of(pretrain)
    options = merge(*(part.get("objectives", {}).get(objective, {}) for part in (table, _of_task(table, task))))
    raw = merge(raw, {"pretrain": {"objective": {"name": pretrain, **options}}})
    raw = merge(raw, changes or {})
    if pretrain == "none":  # so that what only pretraining knows of makes no two runs of one
        del raw["pretrain"]
        if isinstance(raw.get("budget"), dict):
            raw["budget"].pop("pretrain_share", None)
    return raw


def source(preset: Mapping[str, Any], model: str, task: str) -> str:
    """Where a preset says that its numbers for a model on a task come from: "" where it says nothing."""
    general, special = _tables(preset, model, task)
    return str(special.get("source", general.get("source", "")))


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


def _tables(table: Mapping[str, Any], model: str, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is different for a model, and for this model on this task."""
    return table.get("models", {}).get(model, {}), _of_task(table, task).get("models", {}).get(model, {})


def _of_model(table: Mapping[str, Any], model: str, task: str) -> dict[str, Any]:
    """The settings for a model on a task; objectives are not among them yet."""
    general, special = _tables(table, model, task)
    like = special.get("like", general.get("like"))
    if like is None:
        base = merge(table["run"], _settings(_of_task(table, task)))
    else:
        base = _of_model(table, like, task)
        base["model"] = {key: value for key, value in base.get("model", {}).items() if key != "mixer"}
    return merge(merge(base, _settings(general)), _settings(special))


def _settings(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("like", "source", "models", "objectives")}


def _refuse_unnamed(table: Mapping[str, Any], model: str, task: str) -> None:
    if not table.get("named_only"):
        return
    for registry, name, named in ((TASKS, task, table["tasks"]), (MIXERS, model, table["models"])):
        _ = registry[name]  # a name that nobody has is another fault
        if not {name, family_of(name)} & set(named):
            raise BadConfig(
                f"the preset says nothing of {registry.kind} '{name}', only of {', '.join(sorted(named))}; choose "
                "another --preset. See: ssmp list presets"
            )
