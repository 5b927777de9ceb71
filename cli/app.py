"""The command `ssmp`: a function a command, which imports its work when it runs, so that `--help` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ssm_priors.cli import (
    options,
    study_commands,  # noqa: F401 (its commands are there once it is imported)
)
from ssm_priors.cli.commands import app, command, data
from ssm_priors.cli.output import Output


@command("ablate", resumes=True)
def ablate(
    init: Annotated[
        list[str] | None, typer.Option(help="Init to hold against the model's own. Repeat for more.")
    ] = None,
    pretrain: Annotated[
        list[str] | None, typer.Option(help="Objective to hold against training from scratch. Repeat for more.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Model.", show_default="s4d")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Task.", show_default="mnist")] = None,
    fraction: Annotated[
        list[str] | None,
        typer.Option(help="Share of the training split, for both phases.", show_default="the preset's"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each cell; a claim needs 3 or more.")] = 1,
    preset: options.Preset = "quick",
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Run the baselines besides what is named.")
    ] = True,
    budget: options.Budget = None,
    spt_share: options.SptShare = None,
    match_params: options.MatchParams = 0,
    causal: options.Causal = None,
    precision: options.Precision = None,
    examples: options.Examples = None,
    max_length: options.MaxLength = None,
    set_: options.Set = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        str | None, typer.Option(help=f"Study folder, {options.PLACE}", show_default="ssmp-runs/ablate-FINGERPRINT")
    ] = None,
    engine: options.Engine = "local",
    address: options.Address = "",
    device: options.Device = "auto",
    jobs: options.Jobs = None,
    threads: options.Threads = 1,
    save_every: options.SaveEvery = 20.0,
    malloc_tuning: options.MallocTuning = True,
    logger: options.Logger = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Vary init, pretraining, model or data; report the gaps.

    What is named is held against its baseline: --init random --pretrain masked runs the 2 x 2 of {the model's own
    init, random} x {from scratch, masked}. The same command again keeps finished runs and goes on with the others.
    """
    from ssm_priors.cli.ablate import Request, ablate
    from ssm_priors.cli.conduct import Means

    options.use_data_dir(data_dir)
    tasks = options.split_tasks(task) or ("mnist",)
    changes = options.parse_changes(set_, causal, precision)
    request = Request(
        inits=options.split_names(init),
        pretrains=options.split_objectives(pretrain),
        models=options.split_names(model) or ("s4d",),
        tasks=tasks,
        fractions=options.split_numbers(fraction, "--fraction"),
        budgets=options.parse_budgets(budget),
        variants=options.parse_shares(spt_share),
        match_params=match_params,
        seeds=seeds,
        preset=preset,
        baseline=baseline,
        changes=options.sized(changes, tasks, examples=examples, max_length=max_length),
    )
    means = Means(
        device=device,
        jobs=jobs,
        threads=threads,
        save_every=save_every,
        malloc_tuning=malloc_tuning,
        loggers=options.split_names(logger),
        engine=engine,
        address=address,
        dry_run=dry_run,
    )
    return ablate(request, out, means, Output(as_json=json, quiet=quiet))


@command("train", resumes=True)
def train(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="A run.toml; replaces the options below that choose.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help="Model. See: ssmp list models")] = "s4d",
    init: Annotated[
        str | None, typer.Option(help="How SSM parameters start. See: ssmp list inits", show_default="the model's own")
    ] = None,
    pretrain: Annotated[str, typer.Option(help="Objective, or none. See: ssmp list objectives")] = "none",
    task: options.Task = "mnist",
    fraction: Annotated[
        float | None, typer.Option(help="Share of the training split, for both phases.", show_default="the preset's")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides subset, data order, masks, init, dropout.")] = 0,
    preset: options.Preset = "quick",
    causal: options.Causal = None,
    precision: options.Precision = None,
    examples: options.Examples = None,
    max_length: options.MaxLength = None,
    set_: options.Set = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="ssmp-runs/train-FINGERPRINT")] = None,
    device: options.Device = "auto",
    devices: options.Devices = 1,
    threads: options.Threads = 1,
    save_every: options.SaveEvery = 20.0,
    malloc_tuning: options.MallocTuning = True,
    logger: options.Logger = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Train one model on a task and test it once.

    From scratch, or after self-pretraining on the task's own training inputs (--pretrain). The run folder keeps
    everything needed to go on after an interruption: give the same command again.
    """
    from ssm_priors.cli.train import compose, train

    options.use_data_dir(data_dir)
    choosing = ("model", "init", "pretrain", "task", "fraction", "seed", "preset", "causal", "precision")
    smaller = ("examples", "max_length", "set_")
    options.refuse_both(config, [name for name in (*choosing, *smaller) if options.was_given(context, name)])
    task = options.full_name(task)
    changes = options.parse_changes(set_, causal, precision)
    changes = options.sized(changes, [task], examples=examples, max_length=max_length)
    run_config = compose(
        config,
        model=model,
        init=init,
        pretrain=options.full_objective(pretrain),
        task=task,
        preset=preset,
        changes=changes | {"seed": seed} | ({} if fraction is None else {"fraction": fraction}),
    )
    output = Output(as_json=json, quiet=quiet)
    return train(
        run_config,
        out=out,
        device=device,
        devices=devices,
        threads=threads,
        save_every=save_every,
        malloc_tuning=malloc_tuning,
        loggers=options.split_names(logger),
        output=output,
    )


@command("evaluate")
def evaluate(
    checkpoint: options.CheckpointFile,
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> int:
    """Test a finished checkpoint once more.

    On its task's test split, and hold the result against the one recorded in it.
    """
    from ssm_priors.cli.evaluate import evaluate

    options.use_data_dir(data_dir)
    return evaluate(checkpoint, device=device, output=Output(as_json=json))


@command("inspect-kernels")
def inspect_kernels(
    checkpoint: options.AnyCheckpoint,
    against: options.Against = None,
    compare: Annotated[
        Path | None, typer.Option(help="A second checkpoint to show beside it.", show_default=False)
    ] = None,
    length: options.Lags = None,
    layers: options.Layers = None,
    out: options.InspectOut = None,
    format: options.Format = "nc",
    json: options.Json = False,
) -> int:
    """Show a checkpoint's learned kernels and spectra.

    Beside those of its own init: the prior it began with. Writes them as labelled data and as a page of charts. Opens
    files of other public code too; see: ssmp list formats.
    """
    from ssm_priors.cli.inspect_kernels import Look, inspect_kernels

    look = Look(length, options.split_names(layers), options.split_names(against), compare)
    return inspect_kernels(checkpoint, look, out=out, format=format, output=Output(as_json=json))


@command("compare-priors")
def compare_priors(
    checkpoints: Annotated[list[Path], typer.Argument(help=options.ANY_CHECKPOINT, show_default=False)],
    against: options.Against = None,
    length: options.Lags = None,
    layers: options.Layers = None,
    out: options.InspectOut = None,
    format: options.Format = "nc",
    json: options.Json = False,
) -> int:
    """Say how far checkpoints are from what theory prescribes.

    Layer by layer, with the same numbers for the model's own init (how far training moved it) and for a random one.
    Priors: hippo-legs, s4d-lin and s4d-inv, unless others are named.
    """
    from ssm_priors.cli.compare_priors import compare_priors

    return compare_priors(
        checkpoints,
        against=options.split_names(against),
        length=length,
        layers=options.split_names(layers),
        out=out,
        format=format,
        output=Output(as_json=json),
    )


@command("inspect-attention")
def inspect_attention(
    checkpoint: options.CheckpointFile,
    examples: Annotated[int, typer.Option(min=1, help="Validation examples to look at.")] = 32,
    near: Annotated[int, typer.Option(min=1, help="Steps that count as near.")] = 16,
    layers: options.Layers = None,
    out: options.InspectOut = None,
    format: options.Format = "nc",
    json: options.Json = False,
) -> int:
    """Show where a checkpoint's attention looks.

    On validation inputs: before training, after pretraining where the run folder has it, and at the end. Writes the
    numbers as labelled data, and a page of charts with the maps of one example.
    """
    from ssm_priors.cli.inspect_attention import inspect_attention

    return inspect_attention(
        checkpoint,
        examples=examples,
        near=near,
        layers=options.split_names(layers),
        out=out,
        format=format,
        output=Output(as_json=json),
    )


@command("inspect-pretraining")
def inspect_pretraining(
    checkpoint: Annotated[Path, typer.Argument(help="A run's pretrained.pt or ckpt.pt.", show_default=False)],
    examples: Annotated[int, typer.Option(min=1, help="Validation examples to look at, evenly spaced.")] = 32,
    out: options.InspectOut = None,
    format: options.Format = "nc",
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> int:
    """Show what a pretrained model reconstructs.

    On validation inputs: what it was given, what was asked, what it answered; and its loss beside that of the model
    before training and of trivial guesses. Writes labelled data, and a page with images, lines or text.
    """
    from ssm_priors.cli.inspect_pretraining import inspect_pretraining

    options.use_data_dir(data_dir)
    return inspect_pretraining(checkpoint, examples=examples, out=out, format=format, output=Output(as_json=json))


@command("report")
def report(
    paths: Annotated[list[str], typer.Argument(help="Studies (folders or URLs), or checkpoints.", show_default=False)],
    json: options.Json = False,
) -> int:
    """Write a study's report again, or a checkpoint's page.

    Of a study: collects the runs that are there, prints the table and the effects, and writes into its folder:
    results.zarr, results.csv, report.html, report.md, tables/ (CSV and LaTeX) and figures/ (SVG, PNG and PDF); --json
    lists them all. Of a checkpoint: as inspect-kernels against priors, or inspect-attention.
    """
    from ssm_priors.cli.report import report

    return report(paths, output=Output(as_json=json))


@command("bench")
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads: with one, CPU time is told, else wall time.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("ssmp-bench"),
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Show what a layer costs on this machine.

    Time and peak memory of the compiled kernels and of torch's, beside a naive layer under the same allocator setting
    and beside the sum of what the machine could do at best; and a chart of both against length, with attention.
    """
    from ssm_priors.cli.bench import bench

    return bench(quick=quick, threads=threads, out=out, output=Output(as_json=json, quiet=quiet))


@command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="models, inits, objectives, tasks, presets or formats.", show_default=False)
    ],
    json: options.Json = False,
) -> int:
    """Show what can be named: models, inits, ...

    models, inits, objectives, tasks, presets or formats, each with what it is and where it comes from.
    """
    from ssm_priors.cli.listing import show

    return show(kind, Output(as_json=json))


@command("list", group=data)
def data_list(
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> int:
    """Show every task, where its data come from, and whether they are here."""
    from ssm_priors.cli.data import list_data

    options.use_data_dir(data_dir)
    return list_data(Output(as_json=json))


@command("prepare", group=data)
def data_prepare(
    task: Annotated[str, typer.Argument(help="Task. See: ssmp data list", show_default=False)],
    source: Annotated[
        Path | None, typer.Option(help="The archive or folder you brought.", show_default="none: data are generated")
    ] = None,
    set_: options.TaskOptions = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Convert or generate a task's data, once; never downloads.

    Checks every example, writes arrays with their hashes into the data folder, and says how many examples and labels
    there are.
    """
    from ssm_priors.cli.data import prepare

    options.use_data_dir(data_dir)
    return prepare(task, source, options.parse_options(set_), Output(as_json=json, quiet=quiet))


@command("verify", group=data)
def data_verify(
    task: Annotated[str, typer.Argument(help="Task. See: ssmp data list", show_default=False)],
    set_: options.TaskOptions = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Read a task's prepared data again and check them.

    Hashes, ranges, lengths, values that are not finite, examples that stand in two splits. Exit code 1 if any is wrong.
    """
    from ssm_priors.cli.data import verify

    options.use_data_dir(data_dir)
    return verify(task, options.parse_options(set_), Output(as_json=json, quiet=quiet))


@command("balance", group=data)
def data_balance(
    task: Annotated[str, typer.Argument(help="Task. See: ssmp data list", show_default=False)],
    set_: options.TaskOptions = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Count how often each answer occurs, and how long examples are.

    In every split: what a constant answer would score, and how much of a batch is padding.
    """
    from ssm_priors.cli.balance import show

    options.use_data_dir(data_dir)
    return show(task, options.parse_options(set_), Output(as_json=json, quiet=quiet))


def _version(wanted: bool) -> None:
    if wanted:
        from ssm_priors import __version__

        typer.echo(f"ssm-priors {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Does a gap between long-sequence models come from the architecture, or from where its training began?"""


def main() -> None:
    """The scripts' entry point."""
    try:
        app()
    except BrokenPipeError:  # the reader of a pipe left early; that is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
