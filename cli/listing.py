"""`ssmp list`: what can be named, read off the registries."""

from __future__ import annotations

from typing import Any

from ssm_priors import presets
from ssm_priors.cli.data import describe, describe_families
from ssm_priors.cli.output import Output
from ssm_priors.config import RunConfig
from ssm_priors.errors import UnknownName
from ssm_priors.registry import FORMATS, INITS, MIXERS, OBJECTIVES, TASKS, source, summary


def show(kind: str, output: Output) -> int:
    """Print one registry as a table; raises UnknownName."""
    kinds = {
        "models": _models,
        "inits": _inits,
        "objectives": _objectives,
        "tasks": _tasks,
        "presets": _presets,
        "formats": _formats,
    }
    if kind not in kinds:
        raise UnknownName("kind of thing to list", kind, kinds)
    rows = kinds[kind]()
    output.json(rows)
    columns = list(rows[0])
    output.table(columns, [[str(row[column]) for column in columns] for row in rows])
    return 0


def _models() -> list[dict[str, Any]]:
    """Every mixer, small as in the preset `quick`: what it can be asked for (see `models.protocols`), and its size."""
    from ssm_priors.models.build import build, parameter_count
    from ssm_priors.models.protocols import HasKernel, HasSpectrum, HasStep

    rows = []
    for name in MIXERS:
        config = RunConfig.from_dict(presets.compose("quick", model=name, task="mnist"))
        spec = TASKS["mnist"].spec(config.task.options)
        model = build(config.model, spec, config.seed, outputs=spec.classes, pooled=True)
        skills = {"kernel": HasKernel, "spectrum": HasSpectrum, "step": HasStep}
        can = {skill: "yes" if isinstance(model.mixers[0], protocol) else "-" for skill, protocol in skills.items()}
        init = getattr(config.model.mixer.options, "init", "-")
        row = {"name": name, "parameters": f"{parameter_count(model):,}", **can, "init": init}
        rows.append(row | {"what": summary(MIXERS[name]), "source": source(MIXERS[name])})
    return rows


def _inits() -> list[dict[str, Any]]:
    return [{"name": name, "what": summary(INITS[name]), "source": source(INITS[name])} for name in INITS]


def _objectives() -> list[dict[str, Any]]:
    parts = {name: OBJECTIVES[name] for name in OBJECTIVES} | OBJECTIVES.families
    return [
        {
            "name": name,
            "models": "one-sided only" if part.requires_causal else "any",
            "inputs": ", ".join(part.kinds),
            "what": summary(part),
            "source": source(part),
        }
        for name, part in parts.items()
    ]


def _tasks() -> list[dict[str, Any]]:
    """Every task as its default options make it, without reading its data; then the families of tasks."""
    rows = [describe(name, TASKS[name].Config()) | {"what": summary(TASKS[name])} for name in TASKS]
    return rows + [row | {"what": summary(TASKS.families[row["name"]])} for row in describe_families()]


def _presets() -> list[dict[str, Any]]:
    tables = {name: presets.load(name) for name in presets.names()}
    return [{"name": name, "tasks": _tasks_of(table), "what": table["description"]} for name, table in tables.items()]


def _tasks_of(preset: dict[str, Any]) -> str:
    return ", ".join(preset["tasks"]) if preset.get("named_only") else "any"


def _formats() -> list[dict[str, Any]]:
    """Families of foreign checkpoints that can be opened."""
    return [{"name": name, "what": summary(FORMATS[name]), "source": source(FORMATS[name])} for name in FORMATS]
