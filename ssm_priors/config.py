"""A run's configuration: everything that decides its result, and nothing else (no paths, workers, log levels).

    RunConfig.from_dict(raw)  <->  config.to_dict(),  RunConfig.from_toml(text)  <->  config.to_toml()

`from_dict` is the one door: it refuses unknown keys and wrong types with their path, fills every default in (so a later
change of default cannot change what an old run meant), and refuses combinations that cannot work. A part chosen by name
(task, mixer, objective) owns its options as a nested frozen `Config`; they stand in the same table as the name:

    [model.mixer]
    name = "s4d"
    d_state = 64
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from annotated_types import Ge, Gt, Interval
from pydantic import TypeAdapter, ValidationError

from ssm_priors.errors import BadConfig, suggest
from ssm_priors.registry import MIXERS, OBJECTIVES, TASKS, Registry

D = TypeVar("D")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part chosen by name from a registry, with its own options resolved."""

    name: str
    options: Any
    """An instance of the part's own `Config`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The residual backbone and the mixer inside it."""

    mixer: Part
    d_model: Annotated[int, Ge(1)] = 64
    """Channels H."""
    layers: Annotated[int, Ge(1)] = 4
    """Blocks of norm, mixer and residual."""
    expand: Annotated[int, Ge(0)] = 0
    """Width of the feed-forward block after each mixer, in multiples of d_model; 0 means none."""
    norm: Literal["layer", "batch"] = "layer"
    """Normalisation before each mixer."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability, after each mixer's activation and before each residual sum."""
    positions: Literal["none", "learned"] = "none"
    """Positions added to the embedding; a mixer may have its own besides (rotary)."""
    causal: bool = False
    """One-sided: no output sees a later input. Holds in both phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseConfig:
    """One phase of training: its objective, length and optimiser."""

    objective: Part | None = None
    """What is learned; absent means the task's own labels."""
    epochs: Annotated[int, Ge(1)] = 10
    batch_size: Annotated[int, Ge(1)] = 50
    learning_rate: Annotated[float, Gt(0)] = 4e-3
    """Peak rate of all parameters but the SSM's."""
    ssm_learning_rate: Annotated[float, Ge(0)] = 1e-3
    """Peak rate of the SSM parameters (A and dt), which are never decayed; 0 freezes them."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """AdamW decay of matrices; biases, norms and SSM parameters have none."""
    warmup: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """Share of the steps in which the rate rises linearly; it then falls to 0 along a half cosine."""
    clip: Annotated[float, Gt(0)] = 1.0
    """Largest norm of the gradient of all parameters together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run: a task, a model, an optional pretraining phase, the finetuning phase, a seed."""

    task: Part
    model: ModelConfig
    finetune: PhaseConfig
    pretrain: PhaseConfig | None = None
    """Absent means from scratch."""
    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Share of the training split, stratified by class, that both phases see."""
    precision: Literal["32", "bf16-mixed"] = "32"
    seed: Annotated[int, Ge(0)] = 0

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Resolve and check a nested mapping.

        Raises:
            UnknownName: a task, model or objective that does not exist.
            BadConfig: an unknown key, a wrong type or value, or a combination that cannot work.
        """
        raw = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
        _require_tables(raw, ("task", "model", "finetune"))
        raw["task"] = _part(TASKS, raw["task"], "task")
        _require_tables(raw["model"], ("mixer",), "model")
        raw["model"]["mixer"] = _part(MIXERS, raw["model"]["mixer"], "model.mixer")
        for phase in ("pretrain", "finetune"):
            if raw.get(phase, {}).get("objective") is not None:
                raw[phase]["objective"] = _part(OBJECTIVES, raw[phase]["objective"], f"{phase}.objective")
        config = validate(cls, raw, "")
        _refuse_impossible(config)
        return config

    @classmethod
    def from_toml(cls, text: str) -> RunConfig:
        """Read what `to_toml` wrote, or a person did."""
        return cls.from_dict(parse_toml(text))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, every default filled in; what is absent (None) is left out."""
        return _plain(self)

    def to_toml(self) -> str:
        """The configuration as TOML text."""
        return tomli_w.dumps(self.to_dict())

    @property
    def fingerprint(self) -> str:
        """12 hex digits of the SHA-256 of the canonical JSON: the name of the run's folder."""
        return fingerprint(self.to_dict())


def fingerprint(plain: Mapping[str, Any]) -> str:
    """12 hex digits of the SHA-256 of a plain mapping's canonical JSON."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def parse_toml(text: str) -> dict[str, Any]:
    """TOML text as a mapping; raises BadConfig naming the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"not valid TOML: {error}") from error


def validate(cls: type[D], raw: Mapping[str, Any], path: str) -> D:
    """`cls(**raw)` for a dataclass, with every key, type and range checked.

    Raises:
        BadConfig: one line a fault, each with the path of its key.
    """
    faults = list(_unknown_keys(cls, raw, path))
    if not faults:
        try:
            return TypeAdapter(cls).validate_python(raw)
        except ValidationError as error:
            faults = [_fault(path, detail) for detail in error.errors()]
    raise BadConfig("\n".join(faults))


def _unknown_keys(cls: type, raw: Mapping[str, Any], path: str) -> list[str]:
    known = {field.name for field in fields(cls)}
    faults = [f"{_join(path, key)}: no such setting. {suggest(key, known)}".rstrip() for key in raw if key not in known]
    for name, nested in (("model", ModelConfig), ("pretrain", PhaseConfig), ("finetune", PhaseConfig)):
        if name in known and isinstance(raw.get(name), Mapping):
            faults += _unknown_keys(nested, raw[name], _join(path, name))
    return faults


def _fault(path: str, detail: Any) -> str:
    where = _join(path, ".".join(str(step) for step in detail["loc"]))
    return f"{where}: {detail['input']!r} was given; {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _require_tables(raw: Mapping[str, Any], names: tuple[str, ...], path: str = "") -> None:
    for name in names:
        if not isinstance(raw.get(name), Mapping):
            raise BadConfig(f"{_join(path, name)}: a table was expected, {raw.get(name)!r} was given")


def _part(registry: Registry, table: Mapping[str, Any], path: str) -> Part:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise BadConfig(f"{path}: a table with a name was expected, {table!r} was given")
    options = {key: value for key, value in table.items() if key != "name"}
    return Part(name=table["name"], options=validate(registry[table["name"]].Config, options, path))


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return {"name": value.name, **asdict(value.options)}
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {key: item for key, item in plain.items() if item is not None}
    return value


def _refuse_impossible(config: RunConfig) -> None:
    objective = config.pretrain and config.pretrain.objective
    if config.pretrain and not objective:
        raise BadConfig("pretrain.objective: absent, but pretraining needs one. See: ssmp list objectives")
    if config.finetune.objective:
        raise BadConfig("finetune.objective: finetuning always learns the task's labels; remove this table")
    if objective and OBJECTIVES[objective.name].requires_causal and not config.model.causal:
        raise BadConfig(
            f"objective '{objective.name}' predicts later positions, but the model sees both sides and would read the "
            "answer off its input. Set model.causal = true (on the command line: --causal)"
        )
