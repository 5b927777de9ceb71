"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from ssm_priors.errors import BadConfig
from ssm_priors.registry import OBJECTIVES, TASKS

Task = Annotated[str, typer.Option(help="Task to train on. See: ssmp list tasks")]
Preset = Annotated[str, typer.Option(help="Named settings of model and training: quick, small or paper.")]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--bidirectional",
        help="One-sided models, or models that see both sides.",
        show_default="as the preset says; one-sided if --pretrain causal",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="32, or bf16-mixed: matrix products in bfloat16, all else in float32.", show_default="the preset's, 32"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, such as finetune.epochs=20. Repeat for more."),
]
Budget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="steps=N|flops=N",
        help="What training may take, both phases together, in place of their epochs. Repeat for more.",
        show_default="the preset's epochs",
    ),
]
SptShare = Annotated[
    list[str] | None,
    typer.Option(
        "--spt-share", help="Share of the budget that pretraining is given. Repeat for more.", show_default="0.5"
    ),
]
MatchParams = Annotated[
    int,
    typer.Option(min=0, help="Parameters that every model is sized to, by its width; 0: as the preset says."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="One of the task's options. Repeat for more."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: CUDA where it works.")]
Devices = Annotated[
    int,
    typer.Option(min=1, help="Of these, how many share each batch; on the CPU processes. Others round differently."),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run; another number rounds differently.")]
MallocTuning = Annotated[
    bool,
    typer.Option("--malloc-tuning/--no-malloc-tuning", help="Keep freed memory for later tensors: faster, glibc only."),
]
Logger = Annotated[
    list[str] | None,
    typer.Option(
        help="Where metrics go besides metrics.csv: tensorboard, wandb. Repeat for more.", show_default="none"
    ),
]
SaveEvery = Annotated[float, typer.Option(min=0, help="Seconds between saved states.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time.", show_default="as many as cores")]
Engine = Annotated[str, typer.Option(help="Where runs go: local, or ray (extra [ray]).")]
Address = Annotated[
    str,
    typer.Option(
        help="Of a Ray cluster; its nodes see the study folder, or --out is a URL.",
        show_default="RAY_ADDRESS, or one started here",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only tell what it would take: parameters, FLOPs, time, disk. Trains nothing.")
]
PLACE = "or a URL that fsspec knows, such as s3://bucket/study."
StudyPlace = Annotated[str, typer.Argument(help=f"A study folder, {PLACE}", show_default=False)]
StudyPreset = Annotated[str | None, typer.Option("--preset", help="Instead of the study's own.", show_default=False)]
StudySet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An axis of the study, such as seeds=5 or models=s4d,dss, or a setting of every run, such as "
        "finetune.epochs=20. Repeat for more.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder of prepared data.", show_default="SSMP_DATA_DIR, or the user's cache folder"
    ),
]
Examples = Annotated[
    int | None,
    typer.Option(
        "--examples", min=1, help="The task's option of that name: a smaller task.", show_default="the task's"
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length", min=1, help="The task's option of that name: shorter sequences.", show_default="the task's"
    ),
]
CheckpointFile = Annotated[Path, typer.Argument(help="A ckpt.pt.", show_default=False)]
ANY_CHECKPOINT = "A ckpt.pt, or a file of other public code (.ckpt, .pth, .safetensors)."
AnyCheckpoint = Annotated[Path, typer.Argument(help=ANY_CHECKPOINT, show_default=False)]
Against = Annotated[
    list[str] | None,
    typer.Option(help="Prior to hold it against: an init, hippo-legs, hippo-legt, ... Repeat for more."),
]
Lags = Annotated[
    int | None,
    typer.Option(min=1, max=1_048_576, help="Lags of each kernel.", show_default="the length it was made for"),
]
Layers = Annotated[list[str] | None, typer.Option(help="Layers to show, from 0. Repeat for more.", show_default="all")]
InspectOut = Annotated[
    Path | None, typer.Option(help="Folder for the data and the page.", show_default="beside the checkpoint")
]
Format = Annotated[str, typer.Option(help="nc (NetCDF) or zarr.")]


def split_names(values: list[str] | None) -> tuple[str, ...]:
    """`--model s4d --model transformer` and `--model s4d,transformer` mean the same."""
    return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())


def parse_budgets(values: list[str] | None) -> dict[str, dict[str, Any]]:
    """`flops=5e11` -> {"5e+11 FLOP": {"flops": 5e11}}; raises BadConfig."""
    budgets: dict[str, dict[str, Any]] = {}
    for value in split_names(values):
        kind, _, amount = value.partition("=")
        try:
            number = float(amount)
            assert kind == "flops" or (kind == "steps" and number.is_integer())
        except (ValueError, AssertionError):
            raise BadConfig(f"--budget {value}: steps=N or flops=N was expected, such as flops=5e11") from None
        label = f"{number:,.0f} steps" if kind == "steps" else f"{number:.4g} FLOP"
        budgets[label] = {kind: int(number) if kind == "steps" else number}
    return budgets


def parse_shares(values: list[str] | None) -> dict[str, dict[str, Any]]:
    """`0.25` -> {"25% on SPT": {"budget": {"pretrain_share": 0.25}}}; raises BadConfig."""
    shares = split_numbers(values, "--spt-share")
    return {f"{100 * share:.3g}% on SPT": {"budget": {"pretrain_share": share}} for share in shares}


def full_name(task: str) -> str:
    """A task's name as it is recorded: `files:data.csv` becomes `files:/full/path/data.csv`."""
    return TASKS.spelled(task)


def full_objective(name: str) -> str:
    """An objective's name as it is recorded: `hf:pythia` becomes `hf:/full/path/pythia#HASH`."""
    return OBJECTIVES.spelled(name)


def split_objectives(values: list[str] | None) -> tuple[str, ...]:
    """As `split_names`, with full names."""
    return tuple(full_objective(name) for name in split_names(values))


def split_tasks(values: list[str] | None) -> tuple[str, ...]:
    """As `split_names`, with full names."""
    return tuple(full_name(task) for task in split_names(values))


def split_numbers(values: list[str] | None, option: str) -> tuple[float, ...]:
    """As `split_names`, for numbers; raises BadConfig."""
    try:
        return tuple(float(name) for name in split_names(values))
    except ValueError as error:
        raise BadConfig(f"{option}: numbers were expected: {error}") from error


def parse_changes(
    assignments: list[str] | None, causal: bool | None = None, precision: str | None = None
) -> dict[str, Any]:
    """`KEY=VALUE` pairs as a nested mapping, values read as TOML, or as plain text where they are none.

    What has an option of its own comes first, so that a pair may take its place.

    Raises:
        BadConfig: no '=', or a key that is no dotted name.
    """
    changes: dict[str, Any] = {} if causal is None else {"model": {"causal": causal}}
    changes |= {} if precision is None else {"precision": precision}
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


def parse_options(assignments: list[str] | None) -> dict[str, Any]:
    """`OPTION=VALUE` pairs of one part; raises BadConfig."""
    return parse_changes(assignments)


def parse_study(assignments: list[str] | None, preset: str | None) -> dict[str, Any]:
    """What is laid over a study: `KEY=VALUE` pairs, and another preset; raises BadConfig."""
    return parse_changes(assignments) | ({} if preset is None else {"preset": preset})


def sized(changes: dict[str, Any], tasks: Iterable[str], **sizes: int | None) -> dict[str, Any]:
    """Lay a task's sizes over the changes: `examples=2000` is `task.examples=2000`.

    Raises:
        UnknownName: a task that does not exist.
        BadConfig: a task without an option of that name, or with one that `--set` sets too.
    """
    given = {name: value for name, value in sizes.items() if value is not None}
    table = changes.get("task", {})
    for (name, value), task in product(given.items(), tasks):
        known = [field.name for field in fields(TASKS[task].Config)]
        flag = f"--{name.replace('_', '-')} {value}"
        if name not in known:
            raise BadConfig(f"{flag}: task '{task}' has no option {name}; its options: {', '.join(known) or 'none'}")
        if not isinstance(table, dict) or name in table:
            raise BadConfig(f"{flag}: --set task.{name} says it too; leave one of them out")
    return changes | {"task": table | given} if given else changes


def use_data_dir(folder: Path | None) -> None:
    """Let this process and its workers find prepared data in `folder`; the store reads the environment."""
    if folder is not None:
        os.environ["SSMP_DATA_DIR"] = str(folder.absolute())


def was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line, rather than having its default."""
    origin = context.get_parameter_source(name)
    return origin is not None and origin.name == "COMMANDLINE"


def refuse_both(config: Path | None, given: list[str]) -> None:
    """A file says everything about a run: options that choose would be ignored beside it, so they are refused."""
    if config and given:
        flags = ", ".join(f"--{name.rstrip('_').replace('_', '-')}" for name in given)
        raise BadConfig(
            f"{config} decides the whole run, so {flags} cannot stand beside it; edit the file or leave it out"
        )


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
