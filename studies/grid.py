"""A study as data: its axes, and the cells and runs they span.

Every init and objective named is paired with its baseline (the model's own structured init; no pretraining) unless the
study says otherwise. A model without a state space has no init, so that axis collapses for it instead of running twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from annotated_types import Ge, Gt, Interval, MinLen

from ssm_priors import presets
from ssm_priors.config import Part, RunConfig, fingerprint, parse_toml, read_toml, validate
from ssm_priors.errors import BadConfig, suggest
from ssm_priors.models.sizing import matched
from ssm_priors.registry import INITS, MIXERS, OBJECTIVES, TASKS
from ssm_priors.studies.space import Tune, nested, sets

NEWER = ("title", "question", "budgets", "variants", "exclude", "match_params", "claims", "tune", "chosen")
"""Fields of a study that came after the first ones: where they say nothing its record leaves them out, as it did."""
NONE = "none"
"""The value of an axis that does not apply (init of a Transformer) or that is off (pretraining from scratch)."""

TUNING_SEED = 1_000_000
"""Seed of every trial, so that trials differ in their settings alone; no run that is tested has it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of the grid, all its seeds: the coordinates of a result."""

    model: str
    init: str
    pretrain: str
    task: str
    fraction: float
    budget: str
    variant: str = NONE

    @property
    def place(self) -> Cell:
        """Where it stands: a cell of the same task, fraction, budget and variant has the same place."""
        return replace(self, model=NONE, init=NONE, pretrain=NONE)

    @property
    def label(self) -> str:
        """What people read: what differs between most cells, in the order of the axes."""
        parts = [self.model] + [value for value in (self.init, self.pretrain) if value != NONE]
        if self.pretrain == NONE:
            parts.append("from scratch")
        if self.fraction != 1:
            parts.append(f"{self.fraction:.3g} of the data")
        if self.variant != NONE:
            parts.append(self.variant)
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a study was made to test, as data: cells whose values are added, and cells whose values are subtracted.

    A cell is given by those of its coordinates that the study varies; where init is left out, it is the model's own,
    where task is, the claim is made for every task.
    """

    text: str
    """The claim in words."""
    plus: Annotated[tuple[dict[str, Any], ...], MinLen(1)]
    minus: tuple[dict[str, Any], ...] = ()
    above: float = 0.0
    """The sum is better than this, in points of a share, else in the metric's unit."""
    within: Annotated[float, Gt(0)] | None = None
    """Instead: the sum is nearer to 0 than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the trials of a cell have decided."""

    cell: Cell
    settings: dict[str, Any]
    """Path of a setting -> its value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """The axes of a grid and what is the same in all its runs."""

    title: str = ""
    question: str = ""
    """What it asks, in words."""
    models: Annotated[tuple[str, ...], MinLen(1)] = ("s4d",)
    inits: tuple[str, ...] = ()
    """Inits besides the baseline; none named means the baseline alone."""
    pretrains: tuple[str, ...] = ()
    """Objectives besides none."""
    tasks: Annotated[tuple[str, ...], MinLen(1)] = ("mnist",)
    fractions: tuple[Annotated[float, Interval(gt=0, le=1)], ...] = ()
    """Shares of the training split; none named means the preset's."""
    budgets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> what training may take, as the table `budget` of a run; none named means the preset's epochs."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> settings laid over everything else, as in a run's TOML, or `match_params`: whatever else a study varies.
    Where settings mean nothing to a cell (those of pretraining, from scratch), variants are one run."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Coordinates of cells that are left out: those that have all of them."""
    match_params: Annotated[int, Ge(0)] = 0
    """Parameters that every model is sized to; 0 leaves sizes to the settings."""
    claims: tuple[Claim, ...] = ()
    seeds: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Seeds 0 .. seeds - 1, the same in every cell."""
    baseline: bool = True
    """Whether the model's own init and no pretraining are run besides what is named."""
    preset: str = "quick"
    settings: dict[str, Any] = field(default_factory=dict)
    """The preset's content when the study was made: what a later version's preset says changes nothing about it."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings laid over the preset in every run, as in a run's TOML."""
    tune: Tune | None = None
    """Trials that every cell has before its runs, to choose settings by the validation metric; absent means none."""
    chosen: tuple[Choice, ...] = ()
    """What the trials have decided so far: laid over all else in the runs of its cell."""

    def __post_init__(self) -> None:
        if not self.settings:
            object.__setattr__(self, "settings", presets.load(self.preset))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Study:
        """Check a plain mapping: every name must exist, every run must be possible.

        Raises:
            UnknownName, BadConfig
        """
        if isinstance(raw.get("tune"), Mapping):
            raw = {**raw, "tune": validate(Tune, raw["tune"], "tune")}
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
        study._refuse_unknown_coordinates()
        if not study.cells():
            raise BadConfig("exclude: no cell is left")
        for cell in study.cells():
            study.config(cell, seed=0)
        study._refuse_wrong_space()
        for claim in study.claims:
            study.sides(claim)
        return study

    @classmethod
    def from_toml(cls, text: str) -> Study:
        """Read what `to_toml` wrote, or a person did."""
        return cls.from_dict(parse_toml(text))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values; what is absent (None) is left out."""
        plain = asdict(self)
        claims = [{key: value for key, value in claim.items() if value is not None} for claim in plain["claims"]]
        absent = [name for name in NEWER if not plain[name]]
        return {name: value for name, value in (plain | {"claims": claims}).items() if name not in absent}

    def to_toml(self) -> str:
        """The study as TOML text."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def read(cls, path: Path) -> Study:
        """The study in a file; raises BadConfig where it cannot be read."""
        return cls.from_dict(read_toml(path))

    @property
    def fingerprint(self) -> str:
        """12 hex digits that name the study."""
        return fingerprint(self.to_dict())

    def cells(self) -> list[Cell]:
        """Every grid point once, baselines first."""
        every = (
            Cell(model, init, pretrain, task, fraction, budget, variant)
            for task in _unique(self.tasks)
            for fraction in _unique(self.fractions or (presets.fraction(self.settings, task),))
            for budget in self.budgets or (self.preset,)
            for variant in self.variants or (NONE,)
            for model in _unique(self.models)
            for init in self._inits(model)
            for pretrain in self._pretrains()
        )
        return [cell for cell in every if not any(_has(cell, left_out) for left_out in self.exclude)]

    def names(self) -> dict[Cell, str]:
        """What each cell is called among all others: its label, with task and budget where there are several."""
        cells = self.cells()
        several = [axis for axis in ("task", "budget") if len({getattr(cell, axis) for cell in cells}) > 1]
        return {cell: ", ".join([cell.label, *(getattr(cell, axis) for axis in several)]) for cell in cells}

    def config(self, cell: Cell, seed: int) -> RunConfig:
        """The configuration of one run; the same seed means the same data order, subset and masks in every cell.

        Where the study is tuned, the settings that were chosen for the cell are in it as soon as there are any.

        Raises:
            BadConfig: it cannot work, or `changes` set what an axis sets, so that the cell's name would not be true.
        """
        chosen = next((choice.settings for choice in self.chosen if choice.cell == cell), {})
        return self._config(cell, seed, nested(chosen), is_tested=True)

    def trial(self, cell: Cell, number: int) -> RunConfig:
        """The configuration of one trial: a run with the settings of a point, which is never tested."""
        assert self.tune is not None  # others have no trials
        return self._config(cell, TUNING_SEED, nested(self.tune.points[number]), is_tested=False)

    def searched(self, cell: Cell) -> list[str]:
        """Paths of the settings that the trials of a cell search; those of pretraining mean nothing from scratch."""
        paths = sorted(self.tune.space) if self.tune else []
        return [path for path in paths if cell.pretrain != NONE or not path.startswith("pretrain.")]

    def _config(self, cell: Cell, seed: int, settings: Mapping[str, Any], *, is_tested: bool) -> RunConfig:
        raw = presets.compose(
            self.settings,
            model=cell.model,
            task=cell.task,
            pretrain=cell.pretrain,
            init=None if cell.init == NONE else cell.init,
            changes=presets.merge(self._changes(cell, seed), settings),
        )
        if "test" in raw:
            raise BadConfig("test: a study tests its runs, and its trials never; leave this setting out")
        raw["test"] = is_tested
        try:
            config = self._sized(RunConfig.from_dict(raw), cell)
        except BadConfig as error:
            raise BadConfig(f"cell '{cell.label}': {error}") from error
        if (cell, seed) != (self._cell_of(config, cell), config.seed):
            raise BadConfig(
                f"the changed settings turn the cell '{cell.label}' into another; model, init, pretrain, task, "
                "fraction and seeds have options of their own"
            )
        return config

    def _sized(self, config: RunConfig, cell: Cell) -> RunConfig:
        """With the widths that give the model as many parameters as every other."""
        target = self.variants.get(cell.variant, {}).get("match_params", self.match_params)
        if not target:
            return config
        spec = TASKS[config.task.name].spec(config.task.options)
        return replace(config, model=matched(config.model, spec, target))

    def sides(self, claim: Claim) -> list[tuple[list[Cell], list[Cell]]]:
        """The cells that a claim adds, and those that it subtracts: for its task, or for every task.

        Raises:
            BadConfig: what it names is no cell, or several; or its tasks are, whose test examples cannot be paired.
        """
        named = {place["task"] for place in claim.plus + claim.minus if "task" in place}
        if len(named) > 1:
            raise BadConfig(f"claim '{claim.text}': it names the tasks {', '.join(sorted(named))}; one was expected")
        return [
            (
                [self._named(place, task, claim) for place in claim.plus],
                [self._named(place, task, claim) for place in claim.minus],
            )
            for task in named or _unique(self.tasks)
        ]

    def _named(self, place: Mapping[str, Any], task: str, claim: Claim) -> Cell:
        found = [cell for cell in self.cells() if _has(cell, {"task": task, **place})]
        if "init" not in place:
            found = [cell for cell in found if cell.init == baseline_init(cell.model)] or found
        if len(found) != 1:
            what = f"{len(found)} cells, such as '{found[0].label}' and '{found[1].label}'" if found else "no cell"
            raise BadConfig(f"claim '{claim.text}': {dict(place)} names {what}; one was expected")
        return found[0]

    def _changes(self, cell: Cell, seed: int) -> dict[str, Any]:
        """All that is laid over the preset's settings in one run."""
        own: dict[str, Any] = {"fraction": cell.fraction, "seed": seed}
        budget = {"budget": self.budgets[cell.budget]} if self.budgets else {}
        for more in (self.changes, budget, self.variants.get(cell.variant, {})):
            own = presets.merge(own, more)
        return {key: value for key, value in own.items() if key != "match_params"}

    def _refuse_wrong_space(self) -> None:
        """Every trial must be possible, and search what nothing else says."""
        if self.tune is None:
            return
        presets.refuse_idle(nested(self.tune.points[0]), self._pretrains())
        fixed = {"changes": self.changes} | {f"variant '{name}'": table for name, table in self.variants.items()}
        for path, (where, table) in product(self.tune.space, fixed.items()):
            if sets(table, path):
                raise BadConfig(f"tune.space: {path} is searched, but {where} sets it; leave it out of one of them")
        for cell, (number, point) in product(self.cells(), enumerate(self.tune.points)):
            try:
                config = self.trial(cell, number)
            except BadConfig as error:
                raise BadConfig(f"tune.space: trial {number + 1} cannot work: {error}") from error
            for path in self.searched(cell):
                if _setting(config, path) != point[path]:
                    raise BadConfig(f"tune.space: cell '{cell.label}': something else decides {path}; leave it out")

    def _refuse_unknown_coordinates(self) -> None:
        known = {axis.name for axis in fields(Cell)}
        places = [("exclude", place) for place in self.exclude]
        places += [(f"claim '{claim.text}'", place) for claim in self.claims for place in claim.plus + claim.minus]
        for where, place in places:
            for axis in set(place) - known:
                raise BadConfig(f"{where}: no axis '{axis}'. {suggest(axis, known)}".rstrip())

    def runs(self) -> list[tuple[Cell, int, RunConfig]]:
        """Every run of the grid: its cell, its seed, its configuration."""
        return [(cell, seed, self.config(cell, seed)) for seed in range(self.seeds) for cell in self.cells()]

    def _cell_of(self, config: RunConfig, cell: Cell) -> Cell:
        """The cell whose name a configuration deserves; budget and variant are names that no configuration bears."""
        mixer, objective = config.model.mixer, config.pretrain and config.pretrain.objective
        return Cell(
            mixer.name,
            getattr(mixer.options, "init", NONE),
            objective.name if objective else NONE,
            config.task.name,
            config.fraction,
            cell.budget,
            cell.variant,
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


def _setting(config: RunConfig, path: str) -> Any:
    """What a configuration says at a path."""
    value: Any = config
    for step in path.split("."):
        value = getattr(value.options if isinstance(value, Part) and step != "name" else value, step)
    return value


def _has(cell: Cell, coordinates: Mapping[str, Any]) -> bool:
    return all(getattr(cell, axis) == value for axis, value in coordinates.items())


def _unique(values: tuple) -> list:
    return list(dict.fromkeys(values))
