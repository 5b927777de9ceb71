"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ssm_priors.errors import BadConfig

Task = Annotated[str, typer.Option(help="Task to train on. See: ssmp list tasks")]
Preset = Annotated[str, typer.Option(help="Named settings of model and training: quick or small.")]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--bidirectional",
        help="One-sided models, or models that see both sides.",
        show_default="as the preset says; one-sided if --pretrain causal",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, such as finetune.epochs=20. Repeat for more."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: CUDA where it works.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run; another number rounds differently.")]
MallocTuning = Annotated[
    bool,
    typer.Option("--malloc-tuning/--no-malloc-tuning", help="Keep freed memory for later tensors: faster, glibc only."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")]
CheckpointFile = Annotated[Path, typer.Argument(help="A ckpt.pt.", show_default=False)]


def split_names(values: list[str] | None) -> tuple[str, ...]:
    """`--model s4d --model transformer` and `--model s4d,transformer` mean the same."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def split_numbers(values: list[str] | None, option: str) -> tuple[float, ...]:
    """As `split_names`, for numbers; raises BadConfig."""
    try:
        return tuple(float(name) for name in split_names(values))
    except ValueError as error:
        raise BadConfig(f"{option}: numbers were expected: {error}") from error


def parse_changes(assignments: list[str] | None, causal: bool | None) -> dict[str, Any]:
    """`KEY=VALUE` pairs as a nested mapping, values read as TOML, or as plain text where they are none.

    Raises:
        BadConfig: no '=', or a key that is no dotted name.
    """
    changes: dict[str, Any] = {} if causal is None else {"model": {"causal": causal}}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        steps = [step.strip() for step in key.split(".")]
        if not equals or not all(steps):
            raise BadConfig(f"--set {assignment}: KEY=VALUE was expected, such as finetune.epochs=20")
        table = changes
        for step in steps[:-1]:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise BadConfig(f"--set {assignment}: {step} was already set to a value")
        table[steps[-1]] = _value(value.strip())
    return changes


def was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line, rather than having its default."""
    origin = context.get_parameter_source(name)
    return origin is not None and origin.name == "COMMANDLINE"


def refuse_both(config: Path | None, given: list[str]) -> None:
    """A file says everything about a run: options that choose would be ignored beside it, so they are refused."""
    if config and given:
        flags = ", ".join(f"--{name.rstrip('_')}" for name in given)
        raise BadConfig(
            f"{config} decides the whole run, so {flags} cannot stand beside it; edit the file or leave it out"
        )


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
