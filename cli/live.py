"""Draws a study's events: a moving table at a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ssm_priors.cli.output import Output
from ssm_priors.studies.forecast import Pace
from ssm_priors.studies.runner import Event, Run
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


def watch(events: Iterable[Event], runs: list[Run], pace: Pace, workers: int, output: Output) -> int:
    """Follow a study to its end; gives the number of runs that failed, trials aside."""
    board = Board(runs, pace, workers)
    if output.is_live:
        with Live(get_renderable=board.table, console=output.notes, refresh_per_second=4, transient=True):
            for event in events:
                line = board.take(event)
                # said above the table, which does not show them
                if line and event.kind in (
                    "note",
                    "again",
                    "decided",
                    "failed",
                ):
                    output.note(line)
    else:
        for event in events:
            line = board.take(event)
            if line:
                output.note(line)
    for run, reason in board.failures:
        output.error(f"{run.label} failed: {_short(reason)}")
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

    @property
    def has_ended(self) -> bool:
        """Whether it is done or has failed, here or elsewhere."""
        return self.state in ("done", "elsewhere", "kept", "failed")


@dataclass(slots=True)
class Board:
    """All runs of a study."""

    runs: list[Run]
    pace: Pace
    workers: int
    """Runs at a time."""
    standings: dict[str, Standing] = field(init=False)
    failures: list[tuple[Run, str]] = field(default_factory=list)
    started: float = field(default_factory=lambda: time.monotonic())

    def __post_init__(self) -> None:
        self.standings = {run.name: Standing() for run in self.runs}

    def expect(self, runs: Iterable[Run]) -> None:
        """Take the runs that trials have decided on in place of those that stood for them."""
        self.runs = [run for run in self.runs if run.trial is not None] + list(runs)
        self.standings = {run.name: self.standings.get(run.name, Standing()) for run in self.runs}

    def take(self, event: Event) -> str:
        """Note an event; gives the line that says it, or nothing if it is not worth one."""
        if event.kind == "decided":
            self.expect(event.runs)
        if event.kind == "note" or event.run is None:
            return f"{event.run.label}: {event.reason}" if event.run else event.reason
        standing = self.standings[event.run.name]
        if event.kind == "step" and event.report:
            return self._step(event.run, standing, event.report)
        standing.state = STATES[event.kind]
        self.pace.forget(event.run.name)
        if event.kind == "again":
            return f"{event.run.label}: {event.reason}; it will go on from its last saved state"
        if event.kind == "failed" and event.run.trial is not None:
            return f"{event.run.label}: failed, and counts as the worst: {_short(event.reason)}"
        if event.kind == "failed":
            self.failures.append((event.run, event.reason))
            return ""
        return f"{event.run.label}: {SAID.get(event.kind, event.kind)}"

    def table(self) -> Table:
        """The moving picture."""
        table = Table(box=None, pad_edge=False, title=Text(self._eta()), title_justify="left")
        for name in ("run", "phase", "epoch", "loss", "validation", "examples/s"):
            table.add_column(name, justify="left" if name in ("run", "phase") else "right", overflow="fold")
        order = sorted(self.runs, key=lambda run: SHOWN_FIRST.index(self.standings[run.name].state))
        for run in order[:MOST_ROWS]:
            standing = self.standings[run.name]
            table.add_row(Text(run.label), *_cells(standing), style="dim" if standing.state != "running" else "")
        if len(order) > MOST_ROWS:
            table.add_row(f".. and {len(order) - MOST_ROWS} more")
        return table

    def _step(self, run: Run, standing: Standing, report: StepReport) -> str:
        if standing.report is None or standing.report.phase != report.phase:
            standing.since, standing.first = time.monotonic(), report.examples
        standing.report = report
        self.pace.take(run.name, run.cell, report)
        self.pace.look_ahead(time.monotonic() - self.started)
        standing.metric = report.metric if report.metric is not None else standing.metric
        if not report.ends_epoch:
            return ""
        phase, epoch, loss, metric, rate = _cells(standing)
        value = f", {report.measure.title} {metric}" if report.metric is not None else ""
        speed = f", {rate} examples/s" if rate else ""
        return f"{run.label}: {phase} epoch {epoch}, loss {loss}{value}{speed}; {self._eta()}"

    def _eta(self) -> str:
        standings = [(run, self.standings[run.name]) for run in self.runs]
        ended = sum(at.has_ended for _, at in standings)
        elapsed = time.monotonic() - self.started
        left = [self.pace.left(run.cell, at.report) for run, at in standings if not at.has_ended]
        known = [seconds for seconds in left if seconds is not None]
        # no study ends before its longest run does
        remaining = max(sum(known) / min(self.workers, len(left)), *known) if known else 0.0
        words = "none left" if not left else f"about {clock(remaining)} left"
        if len(known) < len(left):
            words = "estimating"
        return f"{ended} of {len(self.runs)} runs done, {clock(elapsed)} gone, {words}"


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


def _short(reason: str) -> str:
    """A reason in one line: of a traceback, what it ends with."""
    lines = reason.strip().splitlines() or ["no reason was given"]
    return "; ".join(lines) if len(lines) < 4 else lines[-1]


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
