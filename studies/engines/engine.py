"""What every engine is: it takes jobs while it has room for them, and tells what becomes of them.

    with closing(ENGINES["local"](Workers(count=2))) as engine:
        engine.start(job)               # at most `engine.free` of them
        for message in engine.wait(0.5):
            ...

A job is given when it can begin, not before, so that of several runners on one study each takes what is left. An engine
never tries a job again: it says that its worker died, and whoever gave the job decides.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ssm_priors.config import RunConfig
from ssm_priors.errors import SsmPriorsError
from ssm_priors.folder import no_room

LEAST_BETWEEN_REPORTS = 0.2
"""Seconds; more often is not seen by anybody."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to execute."""

    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        """What messages call it: the run's fingerprint."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Message:
    """What became of a job, or where it stands."""

    job: str
    kind: Literal["started", "step", "finished", "failed", "died", "no room"]
    """Failed: by the run's own fault. Died: its worker did. No room: the disk takes nothing more."""
    content: Any = None
    """A StepReport, or the reason why it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """What an engine works with."""

    count: int
    """Runs at a time."""
    threads: int = 1
    """CPU threads of each run."""
    device: str = "auto"
    save_every: float = 20.0
    """Seconds between saved states."""
    malloc_tuning: bool = True
    """Whether workers keep freed memory for their next tensors."""
    loggers: tuple[str, ...] = ()
    """Where runs log to, besides their own files."""
    address: str = ""
    """Of a cluster; empty: this machine. Refused by an engine that has no cluster."""
    store: str = ""
    """URL that workers bring their runs to which do not see the study's folder; empty: all of them see it."""


class Engine(Protocol):
    """Where runs are executed; made from `Workers`."""

    @property
    def free(self) -> int:
        """How many jobs it would begin at once."""
        ...

    def start(self, job: Job) -> None:
        """Begin a job."""
        ...

    def wait(self, seconds: float) -> list[Message]:
        """What has happened; waits up to so many seconds for something to happen."""
        ...

    def close(self) -> None:
        """End what is running, leaving its saved state, and let all workers go."""
        ...


def perform(
    job: Job, workers: Workers, tell: Callable[[Message], Any], stopping: Callable[[], bool] = lambda: False
) -> Message:
    """Execute a job in this process; gives how it ended, and tells on the way where it stands.

    Raises:
        KeyboardInterrupt: `stopping` said so; the state was saved.
    """
    from ssm_priors.training.run import run

    tell(Message(job.name, "started"))
    try:
        run(
            job.config,
            job.folder,
            device=workers.device,
            threads=workers.threads,
            save_every=workers.save_every,
            malloc_tuning=workers.malloc_tuning,
            loggers=workers.loggers,
            watch=_throttled(tell, job.name),
            stopping=stopping,
        )
    except (BrokenPipeError, ConnectionResetError):
        raise  # nobody listens any more
    except Exception as error:  # a bug in one run must not end the study; the whole traceback becomes its reason
        if reason := no_room(error):
            return Message(job.name, "no room", reason)
        reason = str(error) if isinstance(error, SsmPriorsError) else traceback.format_exc()
        return Message(job.name, "failed", reason)
    return Message(job.name, "finished")


def _throttled(tell: Callable[[Message], Any], job: str) -> Callable[[Any], None]:
    last = 0.0

    def watch(report: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if not report.ends_epoch and now - last < LEAST_BETWEEN_REPORTS:
            return
        last = now
        tell(Message(job, "step", report))

    return watch
