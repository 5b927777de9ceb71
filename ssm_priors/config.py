"""A run's configuration: everything that decides its result, and nothing else (no paths, workers, log levels).

    RunConfig.from_dict(raw)  <->  config.to_dict(),  RunConfig.from_toml(text)  <->  config.to_toml()

`from_dict` is the one door: it refuses unknown keys and wrong types with their path, fills every default in (so a later
change of default cannot change what an old run meant), and refuses combinations that cannot work. A setting that came
after the first runs is `newer`: it is left out where it says what all runs did before it. A part chosen by name
(task, mixer, objective) owns its options as a nested frozen `Config`; they stand in the same table as the name:

    [model.mixer]
    name = "s4d"
    d_state = 64
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import tomli_w
from annotated_types import Ge, Gt, Interval
from pydantic import TypeAdapter, ValidationError

from ssm_priors.errors import BadConfig, suggest
from ssm_priors.registry import MIXERS, OBJECTIVES, TASKS, Registry

D = TypeVar("D")


def newer(default: Any) -> Any:
    """A field that came after the first runs; `default` is what they did, and can never become another.

    Where a configuration has that value, its record leaves it out: an old run keeps its fingerprint, and so its folder.
    """
    return field(default=default, metadata={"newer": True})


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
    feed_forward: Annotated[int, Ge(1)] | None = None
    """The same in channels, for a width between two multiples; absent leaves it to expand."""
    norm: Literal["layer", "batch"] = "layer"
    """Normalisation of each mixer and each feed-forward."""
    norm_position: Literal["pre", "post"] = newer("pre")
    """Before each mixer and feed-forward, and once after the last; or after each residual sum."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Probability, after each mixer's activation and before each residual sum."""
    tied_dropout: bool = newer(False)
    """Drop a channel at all positions of an example, instead of each number on its own; attention weights are dropped
    one by one either way."""
    positions: Literal["none", "learned", "sinusoidal"] = "none"
    """Positions added to the embedding: a table up to the task's length, or sines and cosines at any length. A mixer
    may have its own besides (rotary)."""
    causal: bool = False
    """One-sided: no output sees a later input. Holds in both phases."""
    pooling: Literal["mean", "max", "last"] = newer("mean")
    """What makes one vector of an example's valid positions, where there is one answer an example."""
    head: Literal["linear", "mlp"] = newer("linear")
    """What reads that vector: a linear map, or one hidden layer of d_model units with ReLU before it. A pair of
    documents has its own head."""

    @property
    def feed_forward_width(self) -> int:
        """Channels inside the feed-forward; 0 where there is none."""
        return self.expand * self.d_model if self.feed_forward is None else self.feed_forward


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
    dt_learning_rate: Annotated[float, Ge(0)] | None = None
    """Peak rate of dt alone, where a mixer has one; absent means ssm_learning_rate."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """AdamW decay of matrices; biases, norms and SSM parameters have none."""
    decay_vectors: bool = newer(False)
    """Decay biases, norms and D too; SSM parameters have none even then."""
    beta2: Annotated[float, Interval(ge=0, lt=1)] = newer(0.999)
    """AdamW's memory of squared gradients."""
    warmup: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """Share of the steps in which the rate rises linearly to its peak."""
    warmup_steps: Annotated[int, Ge(0)] = newer(0)
    """The same as a number of steps; 0 leaves it to the share."""
    schedule: Literal["cosine", "constant", "multistep"] = newer("cosine")
    """The rate after the warm-up: to 0 along a half cosine, at its peak, or times `step_factor` every `step_epochs`."""
    step_epochs: Annotated[int, Ge(1)] = newer(100)
    """Epochs from one fall of a multistep schedule to the next, counted from the start of the phase."""
    step_factor: Annotated[float, Interval(gt=0, le=1)] = newer(0.5)
    """What a multistep schedule multiplies the rate by."""
    clip: Annotated[float, Ge(0)] = 1.0
    """Largest norm of the gradient of all parameters together; 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What the training of a run may take, both phases together; it replaces their epochs."""

    steps: Annotated[int, Ge(1)] | None = None
    """Batches."""
    flops: Annotated[float, Gt(0)] | None = None
    """Floating-point operations, as `training.compute` counts them."""
    pretrain_share: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    """Of it, what pretraining is given; from scratch, finetuning has it all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run: a task, a model, an optional pretraining phase, the finetuning phase, a seed."""

    task: Part
    model: ModelConfig
    finetune: PhaseConfig
    pretrain: PhaseConfig | None = None
    """Absent means from scratch."""
    budget: Budget | None = None
    """Absent means the epochs of each phase."""
    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Share of the training split, stratified by class, that both phases see."""
    precision: Literal["32", "bf16-mixed"] = "32"
    seed: Annotated[int, Ge(0)] = 0
    test: bool = newer(True)
    """Whether the test split is answered at the end. False makes it a trial, of which validation alone is known."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Resolve and check a nested mapping.

        Raises:
            UnknownName: a task, model or objective that does not exist.
            BadConfig: an unknown key, a wrong type or value, or a combination that cannot work.
        """
        raw = _table(raw, "the configuration")
        tables: dict[str, Callable[[Any], Any]] = {
            "task": lambda table: _part(TASKS, table, "task"),
            "model": _model,
            "pretrain": lambda table: _phase(table, "pretrain"),
            "finetune": lambda table: _phase(table, "finetune"),
            "budget": lambda table: validate(Budget, _table(table, "budget"), "budget"),
        }
        faults = _unknown_keys(cls, raw, "") + _wrong_scalars(cls, raw, "")
        for name, resolve in tables.items():
            if name in raw or name not in ("pretrain", "budget"):
                try:
                    raw[name] = resolve(raw.get(name))
                except BadConfig as fault:
                    faults.append(str(fault))
        if faults:
            raise BadConfig("\n".join(faults))
        config = validate(cls, raw, "")
        _refuse_impossible(config)
        return config

    @classmethod
    def from_toml(cls, text: str) -> RunConfig:
        """Read what `to_toml` wrote, or a person did."""
        return cls.from_dict(parse_toml(text))

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """The configuration in a file; raises BadConfig where it cannot be read."""
        return cls.from_dict(read_toml(path))

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


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a mapping; raises BadConfig naming the file, and the line where there is one."""
    if not path.is_file():
        raise BadConfig(f"{path}: no such file; a TOML file was expected")
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, BadConfig) as error:
        raise BadConfig(f"{path}: {error}") from error


def validate(cls: type[D], raw: Mapping[str, Any], path: str) -> D:
    """`cls(**raw)` for a dataclass, with every key, type and range checked; nothing is converted but 1 to 1.0.

    Raises:
        BadConfig: one line a fault, each with the path of its key.
    """
    faults = _unknown_keys(cls, raw, path) or _wrong_scalars(cls, raw, path)
    if not faults:
        try:
            return _adapter(cls).validate_python(raw)  # type: ignore[arg-type]  # a class is hashable
        except ValidationError as error:
            faults = [_fault(path, detail) for detail in error.errors()]
    raise BadConfig("\n".join(faults))


@cache
def _adapter(cls: type) -> TypeAdapter:
    """Made once: it takes ten times as long as what it is made for."""
    return TypeAdapter(cls)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Evaluated once, since a study validates hundreds of configurations."""
    return get_type_hints(cls)


SCALARS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a finite number",
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
    ),
    str: ("text", lambda value: isinstance(value, str)),
}
"""What a setting of each type takes. Stricter than pydantic, which reads "no" as False and "7" as 7."""


def _unknown_keys(cls: type, raw: Mapping[str, Any], path: str) -> list[str]:
    known = {each.name for each in fields(cls)}
    return [f"{_join(path, key)}: no such setting. {suggest(key, known)}".rstrip() for key in raw if key not in known]


def _wrong_scalars(cls: type, raw: Mapping[str, Any], path: str) -> list[str]:
    hints = {key: _present(hint) for key, hint in _hints(cls).items() if raw.get(key) is not None}
    types = {key: hint for key, hint in hints.items() if hint in SCALARS}
    return [
        f"{_join(path, key)}: {raw[key]!r} was given; {SCALARS[hint][0]} was expected"
        for key, hint in types.items()
        if not SCALARS[hint][1](raw[key])
    ]


def _present(hint: Any) -> Any:
    """X of `X | None`; any other type as it is."""
    options = [option for option in get_args(hint) if option is not NoneType]
    return options[0] if len(options) == 1 and NoneType in get_args(hint) else hint


def _fault(path: str, detail: Any) -> str:
    where = _join(path, ".".join(str(step) for step in detail["loc"]))
    return f"{where}: {detail['input']!r} was given; {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _table(raw: Any, path: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise BadConfig(f"{path}: a table was expected, {raw!r} was given")
    return dict(raw)


def _part(registry: Registry, raw: Any, path: str) -> Part:
    options = _table(raw, path)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise BadConfig(f"{path}.name: the name of a {registry.kind} was expected, {name!r} was given")
    return Part(name=name, options=validate(registry[name].Config, options, path))


def _model(raw: Any) -> ModelConfig:
    model = _table(raw, "model")
    mixer = _part(MIXERS, model.get("mixer"), "model.mixer")
    return validate(ModelConfig, model | {"mixer": mixer}, "model")


def _phase(raw: Any, path: str) -> PhaseConfig:
    phase = _table(raw, path)
    if "objective" in phase:
        phase["objective"] = _part(OBJECTIVES, phase["objective"], f"{path}.objective")
    return validate(PhaseConfig, phase, path)


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return {"name": value.name, **_plain(value.options)}
    if is_dataclass(value):
        told = {each.name: getattr(value, each.name) for each in fields(value) if not _is_as_before(each, value)}
        return {name: _plain(item) for name, item in told.items() if item is not None}
    return value + 0.0 if isinstance(value, float) else value  # -0.0 equals 0.0 and must not hash apart


def _is_as_before(setting: Field[Any], owner: Any) -> bool:
    return bool(setting.metadata.get("newer")) and getattr(owner, setting.name) == setting.default


def _refuse_impossible(config: RunConfig) -> None:
    if config.budget and (config.budget.steps is None) == (config.budget.flops is None):
        raise BadConfig("budget: steps or flops was expected, one of the two")
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
