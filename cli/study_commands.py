"""The commands `ssmp study ...`; imported by `ssm_priors.cli.app`, so that they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ssm_priors.cli import options
from ssm_priors.cli.commands import command, study
from ssm_priors.cli.output import Output

Name = Annotated[str, typer.Argument(help="A study of the catalogue, or a TOML file.", show_default=False)]


@command("list", group=study)
def study_list(json: options.Json = False) -> int:
    """Show the studies that ship with the package."""
    from ssm_priors.cli.study import list_studies

    return list_studies(Output(as_json=json))


@command("show", group=study)
def study_show(
    name: Name,
    preset: options.StudyPreset = None,
    set_: options.StudySet = None,
    json: options.Json = False,
) -> int:
    """Show what a study asks, its axes and its cells."""
    from ssm_priors.cli.study import show

    return show(name, options.parse_study(set_, preset), Output(as_json=json))


@command("run", resumes=True, group=study)
def study_run(
    name: Name,
    preset: options.StudyPreset = None,
    set_: options.StudySet = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        str | None, typer.Option(help=f"Study folder, {options.PLACE}", show_default="ssmp-runs/NAME-FINGERPRINT")
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
    """Run a study and report on it.

    The same command again, or in a second terminal, or on another machine that sees the folder, shares the work: no run
    is done twice, what is finished is kept, what was interrupted goes on.
    At a URL there is one runner at a time.
    """
    from ssm_priors.cli.conduct import Means
    from ssm_priors.cli.study_folders import run

    options.use_data_dir(data_dir)
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
    return run(name, options.parse_study(set_, preset), out, means, Output(as_json=json, quiet=quiet))


@command("status", group=study)
def study_status(folder: options.StudyPlace, json: options.Json = False) -> int:
    """Show where a study stands: its cells, who runs what since when, and how long it will take.

    Reads the folder and changes nothing, so it can be asked while runners are at work.
    """
    from ssm_priors.cli.study_folders import status

    return status(folder, Output(as_json=json))


@command("resume", resumes=True, group=study)
def study_resume(
    folder: options.StudyPlace,
    data_dir: options.DataDir = None,
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
    """Go on with the study in a folder or at a URL; in a folder, help the runners that are at it.

    Finished runs are kept, interrupted ones go on from their saved states, failed ones are tried again.
    """
    from ssm_priors.cli.conduct import Means
    from ssm_priors.cli.study_folders import resume

    options.use_data_dir(data_dir)
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
    return resume(folder, means, Output(as_json=json, quiet=quiet))


@command("merge", group=study)
def study_merge(
    folders: Annotated[list[Path], typer.Argument(help="Study folders.", show_default=False)],
    out: Annotated[Path, typer.Option(help="A new folder for the whole study.", show_default=False)],
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> int:
    """Unite studies that were made with the same settings and differ in seeds or values.

    Finished runs are linked where the file system can, else copied; interrupted ones are copied and can be gone on
    with. The folders are left as they are.
    """
    from ssm_priors.cli.study_folders import merge

    return merge(folders, out, Output(as_json=json, quiet=quiet))
