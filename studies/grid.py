"""A study as data: its axes, and the cells and runs they span.

Every init and objective named is paired with its baseline (the model's own structured init; no pretraining) unless the
study says otherwise. A model without a state space has no init, so that axis collapses for it instead of running twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from annotated_types import Interval, MinLen

from ssm_priors import presets
from ssm_priors.config import RunConfig, fingerprint, parse_toml, read_toml, validate
from ssm_priors.errors import BadConfig
from ssm_priors.registry import INITS, MIXERS, OBJECTIVES, TASKS

NONE = "none"
"""The value of an axis that does not apply (init of a Transformer) or that is off (pretraining from scratch)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of the grid, all its seeds: the coordinates of a result."""

    model: str
    init: str
    pretrain: str
    task: str
    fraction: float
    budget: str

    @property
    def label(self) -> str:
        """What people read: what differs between most cells, in the order of the axes."""
        parts = [self.model] + [value for value in (self.init, self.pretrain) if value != NONE]
        if self.pretrain == NONE:
            parts.append("from scratch")
        if self.fraction != 1:
            parts.append(f"{self.fraction:.3g} of the data")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """The axes of a grid and what is the same in all its runs."""

    models: Annotated[tuple[str, ...], MinLen(1)] = ("s4d",)
    inits: tuple[str, ...] = ()
    """Inits besides the baseline; none named means the baseline alone."""
    pretrains: tuple[str, ...] = ()
    """Objectives besides none."""
    tasks: Annotated[tuple[str, ...], MinLen(1)] = ("mnist",)
    fractions: tuple[Annotated[float, Interval(gt=0, le=1)], ...] = ()
    """Shares of the training split; none named means the preset's."""
    seeds: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Seeds 0 .. seeds - 1, the same in every cell."""
    baseline: bool = True
    """Whether the model's own init and no pretraining are run besides what is named."""
    preset: str = "quick"
    settings: dict[str, Any] = field(default_factory=dict)
    """The preset's content when the study was made: what a later version's preset says changes nothing about it."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings laid over the preset in every run, as in a run's TOML."""

    def __post_init__(self) -> None:
        if not self.settings:
            object.__setattr__(self, "settings", presets.load(self.preset))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Study:
        """Check a plain mapping: every name must exist, every run must be possible.

        Raises:
            UnknownName, BadConfig
        """
        study = validate(cls, raw, "")
        for registry, named in ((MIXERS, study.models), (INITS, study.inits), (TASKS, study.tasks)):
            for name in named:
                _ = registry[name]
        for name in study.pretrains:
            _ = name == NONE or OBJECTIVES[name]
        if study.inits and not any(baseline_init(model) != NONE for model in study.models):
            raise BadConfig(
                f"inits were named, but {', '.join(study.models)} has no option init. See: ssmp list models"
            )
        presets.refuse_idle(study.changes, study._pretrains())
        for cell in study.cells():
            study.config(cell, seed=0)
        return study

    @classmethod
    def from_toml(cls, text: str) -> Study:
        """Read what `to_toml` wrote, or a person did."""
        return cls.from_dict(parse_toml(text))

    def to_toml(self) -> str:
        """The study as TOML text."""
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Study:
        """The study in a file; raises BadConfig where it cannot be read."""
        return cls.from_dict(read_toml(path))

    @property
    def fingerprint(self) -> str:
        """12 hex digits that name the study."""
        return fingerprint(asdict(self))

    def cells(self) -> list[Cell]:
        """Every grid point once, baselines first."""
        return [
            Cell(model, init, pretrain, task, fraction, self.preset)
            for task in _unique(self.tasks)
            for fraction in _unique(self.fractions or (presets.fraction(self.settings, task),))
            for model in _unique(self.models)
            for init in self._inits(model)
            for pretrain in self._pretrains()
        ]

    def config(self, cell: Cell, seed: int) -> RunConfig:
        """The configuration of one run; the same seed means the same data order, subset and masks in every cell.

        Raises:
            BadConfig: it cannot work, or `changes` set what an axis sets, so that the cell's name would not be true.
        """
        raw = presets.compose(
            self.settings,
            model=cell.model,
            task=cell.task,
            pretrain=cell.pretrain,
            init=None if cell.init == NONE else cell.init,
            changes=presets.merge({"fraction": cell.fraction, "seed": seed}, self.changes),
        )
        try:
            config = RunConfig.from_dict(raw)
        except BadConfig as error:
            raise BadConfig(f"cell '{cell.label}': {error}") from error
        if (cell, seed) != (self._cell_of(config), config.seed):
            raise BadConfig(
                f"the changed settings turn the cell '{cell.label}' into another; model, init, pretrain, task, "
                "fraction and seeds have options of their own"
            )
        return config

    def runs(self) -> list[tuple[Cell, int, RunConfig]]:
        """Every run of the grid: its cell, its seed, its configuration."""
        return [(cell, seed, self.config(cell, seed)) for seed in range(self.seeds) for cell in self.cells()]

    def _cell_of(self, config: RunConfig) -> Cell:
        mixer, objective = config.model.mixer, config.pretrain and config.pretrain.objective
        return Cell(
            mixer.name,
            getattr(mixer.options, "init", NONE),
            objective.name if objective else NONE,
            config.task.name,
            config.fraction,
            self.preset,
        )

    def _inits(self, model: str) -> list[str]:
        own = baseline_init(model)
        if own == NONE:
            return [NONE]
        return _unique(((own,) if self.baseline or not self.inits else ()) + self.inits)

    def _pretrains(self) -> list[str]:
        return _unique(((NONE,) if self.baseline or not self.pretrains else ()) + self.pretrains)


def baseline_init(model: str) -> str:
    """The structured init a model has by default, or NONE where it has no state space."""
    return getattr(MIXERS[model].Config(), "init", NONE)


def _unique(values: tuple) -> list:
    return list(dict.fromkeys(values))
