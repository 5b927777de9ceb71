"""How commands are made: what a user can cause becomes one line and an exit code, everything else stays a traceback."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from ssm_priors.cli.output import Output
from ssm_priors.errors import BadConfig, SsmPriorsError

INTERRUPTED = 130
"""What shells expect of a command that Ctrl-C ended."""


def group(help: str, epilog: str | None = None) -> typer.Typer:
    """A command of commands."""
    return typer.Typer(
        help=help,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


app = group(
    "Does a gap between long-sequence models come from the architecture, or from where its training began?",
    "Start with: ssmp ablate --init random --pretrain masked",
)
data = group("Prepare, verify and count the data of tasks: list, prepare, verify, balance.")
study = group("Run studies from files, alone or together: list, show, run, status, resume, merge.")
app.add_typer(data, name="data")
app.add_typer(study, name="study")


def command(name: str, resumes: bool = False, group: typer.Typer = app) -> Callable:
    """Register a command in a group.

    Args:
        name: what the user types.
        resumes: whether the same command goes on from where it was interrupted.
        group: `app` for a command of its own.
    """

    def register(function: Callable) -> Callable:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does, workers and all
            try:
                _refuse_urls(kwargs)
                code = function(*args, **kwargs)
            except SsmPriorsError as error:
                Output().error(str(error))
                raise typer.Exit(error.exit_code) from None
            except KeyboardInterrupt:
                Output().error("interrupted" + ("; the same command goes on from the last saved states" * resumes))
                raise typer.Exit(INTERRUPTED) from None
            except OSError as error:
                if error.filename is None:  # not about a file that the user named
                    raise
                Output().error(f"{error.filename}: {error.strerror}")
                raise typer.Exit(SsmPriorsError.exit_code) from None
            raise typer.Exit(code or 0)

        return group.command(name)(guarded)

    return register


def _refuse_urls(given: Mapping[str, Any]) -> None:
    """Raise BadConfig for a URL where a path is taken, which would become a folder called `s3:`."""
    for value in given.values():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]", str(path)):
                raise BadConfig(
                    f"{path} looks like a URL; a path of this machine was expected. URLs are taken by ssmp study run, "
                    "ablate (both --out), study resume, study status and report, which tell the folder they work in"
                )
