"""Draws a study's events: a moving table at a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ssm_priors.cli.output import Output
from ssm_priors.studies.runner import Event, Run, share_of
from ssm_priors.training.loop import StepReport

SHOWN_FIRST = ("running", "failed", "waiting", "done", "elsewhere", "kept")
STATES = {
    "kept": "kept",
    "started": "running",
    "again": "waiting",
    "finished": "done",
    "elsewhere": "elsewhere",
    "failed": "failed",
}
"""Event -> where its run stands then."""
SAID = {"kept": "finished before, kept", "elsewhere": "finished by another runner"}
"""Events whose own name is not what is said."""
MOST_ROWS = 12
"""Runs drawn at a time: with more, what runs could slip off a small screen."""


def watch(events: Iterable[Event], runs: list[Run], output: Output) -> int:
    """Follow a study to its end; gives the number of runs that failed."""
    board = Board(runs)
    if output.is_live:
        with Live(get_renderable=board.table, console=output.notes, refresh_per_second=4, transient=True):
            for event in events:
                line = board.take(event)
                if line and event.kind in ("note", "again"):  # said above the table, because it does not show them
                    output.note(line)
    else:
        for event in events:
            line = board.take(event)
            if line:
                output.note(line)
    for run, reason in board.failures:
        lines = reason.strip().splitlines() or ["no reason was given"]
        output.error(f"{_name(run)} failed: {'; '.join(lines) if len(lines) < 4 else lines[-1]}")
    return len(board.failures)


@dataclass(slots=True)
class Standing:
    """Where one run stands, as far as this sitting has seen."""

    state: str = "waiting"
    report: StepReport | None = None
    metric: float | None = None
    since: float = 0.0
    first: int = 0
    """Examples of this phase that were seen at `since`."""
    done: float = 0.0
    """Share of the whole run, 0 to 1."""
    begun_at: float = 0.0
    """Share that was done when this sitting first heard of the run."""


@dataclass(slots=True)
class Board:
    """All runs of a study."""

    runs: list[Run]
    standings: dict[str, Standing] = field(init=False)
    failures: list[tuple[Run, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.standings = {run.config.fingerprint: Standing() for run in self.runs}

    def take(self, event: Event) -> str:
        """Note an event; gives the line that says it, or nothing if it is not worth one."""
        if event.kind == "note" or event.run is None:
            return f"{_name(event.run)}: {event.reason}" if event.run else event.reason
        standing = self.standings[event.run.config.fingerprint]
        if event.kind == "step" and event.report:
            return self._step(event.run, standing, event.report)
        standing.state = STATES[event.kind]
        if event.kind in ("kept", "elsewhere", "finished"):
            standing.done = 1.0
            standing.begun_at = standing.begun_at if event.kind == "finished" else 1.0
        if event.kind == "again":
            return f"{_name(event.run)}: {event.reason}; it will go on from its last saved state"
        if event.kind == "failed":
            standing.begun_at, standing.done = 0.0, 1.0
            self.failures.append((event.run, event.reason))
            return ""
        return f"{_name(event.run)}: {SAID.get(event.kind, event.kind)}"

    def table(self) -> Table:
        """The moving picture."""
        table = Table(box=None, pad_edge=False, title=Text(self._eta()), title_justify="left")
        for name in ("run", "phase", "epoch", "loss", "validation", "examples/s"):
            table.add_column(name, justify="left" if name in ("run", "phase") else "right", overflow="fold")
        order = sorted(self.runs, key=lambda run: SHOWN_FIRST.index(self.standings[run.config.fingerprint].state))
        for run in order[:MOST_ROWS]:
            standing = self.standings[run.config.fingerprint]
            table.add_row(Text(_name(run)), *_cells(standing), style="dim" if standing.state != "running" else "")
        if len(order) > MOST_ROWS:
            table.add_row(f".. and {len(order) - MOST_ROWS} more")
        return table

    def _step(self, run: Run, standing: Standing, report: StepReport) -> str:
        if standing.report is None or standing.report.phase != report.phase:
            standing.since, standing.first = time.monotonic(), report.examples
        first = standing.report is None
        standing.report = report
        standing.done = share_of(run.config, report)
        standing.begun_at = standing.done if first else standing.begun_at
        standing.metric = report.metric if report.metric is not None else standing.metric
        steps_per_epoch = report.steps // report.epochs
        if report.step % steps_per_epoch:
            return ""
        phase, epoch, loss, metric, rate = _cells(standing)
        value = f", {report.measure.title} {metric}" if report.metric is not None else ""
        speed = f", {rate} examples/s" if rate else ""
        return f"{_name(run)}: {phase} epoch {epoch}, loss {loss}{value}{speed}; {self._eta()}"

    def _eta(self) -> str:
        standings = [self.standings[run.config.fingerprint] for run in self.runs]
        sizes = [run.size for run in self.runs]
        here = sum(size * (at.done - at.begun_at) for size, at in zip(sizes, standings, strict=True))
        left = sum(size * (1 - at.done) for size, at in zip(sizes, standings, strict=True))
        elapsed = time.monotonic() - self.started
        ended = sum(at.state in ("done", "elsewhere", "kept", "failed") for at in standings)
        remaining = f"about {_clock(elapsed * left / here)} left" if here > 0.02 * sum(sizes) else "estimating"
        return f"{ended} of {len(self.runs)} runs done, {_clock(elapsed)} gone, {remaining if left else 'none left'}"


def _cells(standing: Standing) -> tuple[str, str, str, str, str]:
    """phase, epoch, loss, validation metric, examples/s."""
    report = standing.report
    if report is None:
        return standing.state, "", "", "", ""
    metric = report.measure.full(standing.metric)
    elapsed = time.monotonic() - standing.since
    seen = report.examples - standing.first
    rate = f"{seen / elapsed:.0f}" if seen and elapsed > 0 else ""
    phase = report.phase if standing.state == "running" else standing.state
    return phase, f"{report.epoch + 1}/{report.epochs}", f"{report.loss:.3f}", metric, rate


def _name(run: Run) -> str:
    return f"{run.cell.label} (seed {run.seed})"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
