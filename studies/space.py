"""The settings that a study searches before its runs: ranges as data, and the same few points of them for every cell.

    [tune]
    trials = 8
    [tune.space]
    "finetune.learning_rate" = { low = 1e-3, high = 1e-1, log = true }
    "model.layers" = { low = 1, high = 4, whole = true }
    "model.dropout" = { values = [0.0, 0.1, 0.2] }

The points are those of a scrambled Sobol sequence, as Optuna's QMC sampler gives them. A sampler that learns from
earlier trials (TPE, a Gaussian process) needs them one after the other, and gives others in every cell and with every
order in which workers end. These are known before the first trial: all trials of all cells can run at once, on any
number of runners; each cell is tried with the very same points; and a few of them cover a space more evenly than random
ones do. More trials begin with the points of fewer.

Source: Sobol 1967; Akiba et al. 2019, arXiv 1907.10902.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from ssm_priors.errors import BadConfig, NotReady, suggest
from ssm_priors.seeds import derive

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

TUNABLE = ("model", "pretrain", "finetune")
"""Tables of a run that may be searched; the others say what is compared, on which data, and at what cost."""
KEYS = ("low", "high", "log", "whole", "values")
DIGITS = 3
"""Significant digits of a sampled number, so that a report shows exactly what was tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tune:
    """How many trials every cell has, and of what."""

    trials: Annotated[int, Interval(ge=1, le=10_000)]
    """The same for every cell."""
    space: dict[str, dict[str, Any]]
    """Path of a setting -> its range: `low` and `high`, perhaps `log`, perhaps `whole`; or `values`."""
    points: tuple[dict[str, Any], ...] = ()
    """Setting -> value, of each trial. Drawn once, when the study is made: what a later version of the sampler would
    draw changes nothing about it."""

    def __post_init__(self) -> None:
        """Raises BadConfig, NotReady."""
        if not self.points:
            object.__setattr__(self, "points", draw(self.space, self.trials))
        if len(self.points) != self.trials or any(set(point) != set(self.space) for point in self.points):
            raise BadConfig(f"tune.points: they are not {self.trials} points of tune.space; leave them out")


def draw(space: Mapping[str, Mapping[str, Any]], trials: int) -> tuple[dict[str, Any], ...]:
    """The points of a space: a pure function of the arguments.

    Args:
        space: path of a setting -> its range.
        trials: how many.

    Raises:
        BadConfig: no setting, or a range that is none.
        NotReady: Optuna is not installed.
    """
    if not space:
        raise BadConfig('tune.space: no setting is named; name one, such as "finetune.learning_rate"')
    ranges = {path: _checked(path, given) for path, given in sorted(space.items())}
    try:
        import optuna
    except ModuleNotFoundError as missing:
        text = "a study with trials needs Optuna, which is not installed: pip install 'ssm-priors[tune]'"
        raise NotReady(text) from missing
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of every study and trial
    distributions = {path: _distribution(given) for path, given in ranges.items()}
    seed = derive(0, "tuning") % 2**32  # as large as Optuna takes
    with warnings.catch_warnings():  # that its interface may change; its points are kept with the study
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
    study = optuna.create_study(sampler=sampler)
    first = {path: distribution.to_external_repr(_least(distribution)) for path, distribution in distributions.items()}
    # The sampler learns from a finished trial what there is to sample; without one its first point would be random
    study.add_trial(optuna.trial.create_trial(params=first, distributions=distributions, value=0.0))
    asked = [study.ask(distributions).params for _ in range(trials)]
    return tuple({path: _value(ranges[path], point[path]) for path in ranges} for point in asked)


def nested(point: Mapping[str, Any]) -> dict[str, Any]:
    """{"model.dropout": 0.1} -> {"model": {"dropout": 0.1}}."""
    tables: dict[str, Any] = {}
    for path, value in point.items():
        *steps, name = path.split(".")
        table = tables
        for step in steps:
            table = table.setdefault(step, {})
        table[name] = value
    return tables


def sets(changes: Mapping[str, Any], path: str) -> bool:
    """Whether a nested mapping says something about the setting at a path."""
    value: Any = changes
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True


def _checked(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A range that can be sampled; raises BadConfig."""
    where = f'tune.space."{path}"'
    if path.split(".")[0] not in TUNABLE or "." not in path:
        raise BadConfig(
            f"{where}: the path of a setting of {', '.join(TUNABLE)} was expected, in quotes, such as "
            '"finetune.learning_rate"'
        )
    for key in given.keys() - set(KEYS):
        raise BadConfig(f"{where}: a range has no '{key}'. {suggest(key, KEYS)}".rstrip())
    if "values" in given:
        return _checked_values(where, given)
    low: Any = given.get("low")
    high: Any = given.get("high")
    is_log, is_whole = given.get("log", False), given.get("whole", False)
    if not all(isinstance(flag, bool) for flag in (is_log, is_whole)):
        raise BadConfig(f"{where}: log and whole are true or false")
    if not (_is_number(low, is_whole) and _is_number(high, is_whole) and low < high and (low > 0 or not is_log)):
        wanted = f"{'whole numbers' if is_whole else 'numbers'} low < high{', both above 0' if is_log else ''}"
        raise BadConfig(f"{where}: low {low!r} and high {high!r} were given; {wanted} were expected")
    return dict(given)


def _checked_values(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    values = given["values"]
    is_list = isinstance(values, (list, tuple)) and all(isinstance(one, (bool, int, float, str)) for one in values)
    if set(given) != {"values"} or not is_list or len(values) < 2 or len(set(map(repr, values))) < len(values):
        raise BadConfig(f"{where}: {dict(given)} was given; a list of two or more different values was expected, alone")
    return dict(given)


def _is_number(value: Any, is_whole: bool) -> bool:
    kinds = (int,) if is_whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)


def _distribution(given: Mapping[str, Any]) -> BaseDistribution:
    """What Optuna samples: of values, their places."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "values" in given:
        return CategoricalDistribution(range(len(given["values"])))
    log = given.get("log", False)
    if given.get("whole", False):
        return IntDistribution(given["low"], given["high"], log=log)
    return FloatDistribution(given["low"], given["high"], log=log)


def _least(distribution: Any) -> float:
    """Any value of a distribution, as Optuna keeps it."""
    return float(getattr(distribution, "low", 0.0))


def _value(given: Mapping[str, Any], sampled: Any) -> Any:
    if "values" in given:
        return given["values"][sampled]
    if given.get("whole", False):
        return sampled
    return min(max(float(f"{sampled:.{DIGITS}g}"), float(given["low"])), float(given["high"]))
