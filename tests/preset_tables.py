"""The tables of docs/presets.md, made from the preset: run this file to print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ssm_priors import presets
from ssm_priors.config import PhaseConfig, RunConfig
from ssm_priors.models.protocols import HasSsmParameters
from ssm_priors.registry import MIXERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "presets.md"
SHOWN = ("s4", "s4d", "dlr", "mega", "transformer")
OPTIONS = ("d_state", "n_ssm", "dt_min", "heads", "window", "rotary", "chunk", "attention")
"""Options of mixers that are told, where they are not the mixer's default."""


def pairs(preset: Mapping[str, Any]) -> Iterator[tuple[str, str, RunConfig]]:
    """Every task with the models that have a table of their own there."""
    for task, settings in preset["tasks"].items():
        for model in SHOWN:
            if "source" in settings["models"].get(model, {}):
                raw = presets.compose(preset, model=model, task=task, pretrain="masked")
                yield task, model, RunConfig.from_dict(raw)


def architecture(preset: Mapping[str, Any]) -> list[str]:
    """A row a pair: the model, and where all its numbers come from."""
    rows = [
        "| task | model | layers x width | feed-forward | norm | dropout | positions | pooling, head | mixer | files |"
    ]
    for task, model, config in pairs(preset):
        chosen = config.model
        defaults = MIXERS[model].Config()
        options = {name: getattr(chosen.mixer.options, name) for name in OPTIONS if hasattr(defaults, name)}
        told = ", ".join(f"{name} {value}" for name, value in options.items() if value != getattr(defaults, name))
        cells = (
            f"`{task}`",
            model,
            f"{chosen.layers} x {chosen.d_model}",
            chosen.expand or "-",
            f"{chosen.norm}, {chosen.norm_position}",
            f"{chosen.dropout:g}{' tied' if chosen.tied_dropout else ''}",
            chosen.positions,
            f"{chosen.pooling}, {'pair' if task == 'retrieval' else chosen.head}",
            told or "-",
            presets.source(preset, model, task),
        )
        rows.append(_row(cells))
    return rows


def training(preset: Mapping[str, Any]) -> list[str]:
    """A row a pair: pretraining / finetuning, or one value where both are the same."""
    rows = [
        "| task | model | mask ratio | epochs | batch | rate | rate of A | rate of dt | decay | warm-up, steps | then |"
    ]
    for task, model, config in pairs(preset):
        assert config.pretrain is not None
        assert config.pretrain.objective is not None
        phases = (config.pretrain, config.finetune)
        has_ssm = issubclass(MIXERS[model], HasSsmParameters)
        has_dt = hasattr(MIXERS[model].Config(), "dt_min")
        cells = (
            f"`{task}`",
            model,
            f"{config.pretrain.objective.options.ratio:g}",
            _both(f"{phase.epochs}" for phase in phases),
            _both(f"{phase.batch_size}" for phase in phases),
            _both(f"{phase.learning_rate:g}" for phase in phases),
            _both(f"{phase.ssm_learning_rate:g}" for phase in phases) if has_ssm else "-",
            _both(f"{_dt_rate(phase):g}" for phase in phases) if has_dt else "-",
            _both(f"{phase.weight_decay:g}" for phase in phases),
            _both(f"{phase.warmup_steps:,}" for phase in phases),
            _both(phase.schedule for phase in phases),
        )
        rows.append(_row(cells))
    return rows


def _dt_rate(phase: PhaseConfig) -> float:
    return phase.ssm_learning_rate if phase.dt_learning_rate is None else phase.dt_learning_rate


def _both(texts: Iterator[str]) -> str:
    return " / ".join(dict.fromkeys(texts))


def _row(cells: tuple[object, ...]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    for table in (architecture, training):
        header, *rows = table(presets.load("paper"))
        print(header, "|" + " --- |" * (header.count("|") - 1), *rows, "", sep="\n")
