"""A study from plan to results: claim what is not done, run it, tell what happens, here and elsewhere.

Where a study is tuned, the trials of its cells come first, all of them; then the runs, with what they have chosen.

Several runners may be at work in one study folder, started at any time on any system that sees it. Each claims a run in
the ledger when a worker is free for it, the largest first; what another has claimed, it waits for. A run is done when
its checkpoint is there; one that is damaged is set aside under another name and run again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ssm_priors import atomic
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint, BadConfig, BadData, RunFailed, SsmPriorsError
from ssm_priors.folder import claimed, held, is_held, needing_room, out_of_room
from ssm_priors.metrics import metric_of
from ssm_priors.studies import audits, tuning
from ssm_priors.studies.engines.engine import Engine, Job, Message
from ssm_priors.studies.grid import TUNING_SEED, Cell, Study
from ssm_priors.studies.ledger import Entry, Ledger, State
from ssm_priors.training.loop import StepReport
from ssm_priors.training.run import CHECKPOINT, CONFIG, examine, read_trial
from ssm_priors.training.stages import spt_share

STUDY = "study.toml"
FAILURE = "failed.txt"
POLL = 0.5
"""Seconds between looks at what other runners do."""
PATIENCE = 600.0
"""Seconds to wait while another process writes the study's files; the report of a large study takes minutes."""
SECOND_TRIES = 1
"""How often a run is begun again after its worker died; it then goes on from its last saved state."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a study, or one of its trials, and where it lives."""

    cell: Cell
    seed: int
    config: RunConfig
    folder: Path
    trial: int | None = None
    """Which of its cell's trials it is; None for a run that is tested."""
    hindrance: str = ""
    """Why it cannot be begun."""

    @property
    def name(self) -> str:
        """Its fingerprint."""
        return self.folder.name

    @property
    def label(self) -> str:
        """What people read."""
        return f"{self.cell.label} ({f'seed {self.seed}' if self.trial is None else f'trial {self.trial + 1}'})"

    @property
    def is_done(self) -> bool:
        """Whether its checkpoint is there; a finished run is never done again."""
        return (self.folder / CHECKPOINT).exists()

    @property
    def state(self) -> State:
        """What its folder says."""
        if self.is_done:
            return State.DONE
        return State.FAILED if (self.folder / FAILURE).exists() else State.PLANNED

    def damage(self) -> str:
        """What is wrong with what lies in its folder; empty if nothing is."""
        try:
            examine(self.folder, self.config)
        except SsmPriorsError as error:
            return str(error)
        return ""

    def found(self) -> tuning.Found:
        """Of a trial: its validation metric and what it cost, or why it has none."""
        if self.is_done:
            try:
                checkpoint = read_trial(self.folder, self.config)
            except (BadCheckpoint, BadData) as error:
                return tuning.Found(error=str(error).replace(str(self.folder), self.name))
            value = checkpoint.record["metrics"][f"validation_{metric_of(checkpoint.spec).name}"]
            flops = checkpoint.record.get("cost", {}).get("flops", {})
            return tuning.Found(value=value, flops=sum(flops.values()) or None)
        path = self.folder / FAILURE
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "it did not end"
        return tuning.Found(error=text)

    def set_aside(self) -> Path:
        """Give what lies in its folder another name; gives the new place."""
        places = (self.folder.with_name(f"{self.name}.damaged-{number}") for number in range(1, 10_000))
        place = next(place for place in places if not place.exists())
        os.rename(self.folder, place)
        return place

    def note_failure(self, reason: str) -> None:
        """Leave the reason in the run's folder; with the configuration, without which a later try may not claim it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / CONFIG).exists():
            atomic.write_text(self.folder / CONFIG, self.config.to_toml())
        atomic.write_text(self.folder / FAILURE, reason)

    @property
    def size(self) -> float:
        """Relative cost: epochs times fraction, or what a budget allows."""
        if self.config.budget:
            return self.config.budget.flops or self.config.budget.steps or 0
        return sum(_weights(self.config)) * self.config.fraction


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run."""

    kind: Literal["note", "kept", "started", "step", "again", "finished", "elsewhere", "failed", "decided"]
    """Again: its worker died, and it will be begun again. Elsewhere: another runner has finished it. Decided: the
    trials have, so that the runs are now known."""
    run: Run | None = None
    """None where it happened to the study as a whole."""
    report: StepReport | None = None
    reason: str = ""
    runs: tuple[Run, ...] = ()
    """Those that the trials have decided on."""


def plan(study: Study, out: Path) -> list[Run]:
    """Every run of a study, with its folder under `out`; one that several cells share is there once.

    Before them the trials that are still to decide something; until they have, the runs that depend on them are those
    of the settings before any choice, and stand for what is not known yet.
    """
    study = tuning.settled(study, out)
    return [*_trials(study, out), *_runs(study, out)]


def _trials(study: Study, out: Path) -> list[Run]:
    """Of the cells of a settled study that have no settings yet."""
    every = tuning.trials(study, tuning.undecided(study))
    return _once(Run(cell, TUNING_SEED, config, _place(config, out), trial) for cell, trial, config in every)


def _runs(study: Study, out: Path) -> list[Run]:
    """Those of a settled study that are tested."""
    return _once(Run(cell, seed, config, _place(config, out)) for cell, seed, config in study.runs())


def _place(config: RunConfig, out: Path) -> Path:
    return out / "runs" / config.fingerprint


def _once(runs: Iterable[Run]) -> list[Run]:
    """Each folder once, as the first run that lives there."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.name, run)
    return list(first.values())


def execute(study: Study, out: Path, engine: Engine) -> Iterator[Event]:
    """Run what is not done yet, and yield what happens; a failed run does not stop the others.

    Args:
        study: the grid.
        out: the study's folder; made if it is not there.
        engine: where the runs go; closed at the end.

    Raises:
        BadConfig: the folder belongs to another study, or cannot be written.
        RunFailed: the disk is full.
    """
    with closing(engine), needing_room(out):
        runs = plan(study, out)
        with claimed(out, STUDY, study.to_toml(), lambda path: _refuse_other(study, path), PATIENCE):
            ledger = Ledger(out)
            leaks = audits.warnings(audits.examine(study, out))
        with closing(ledger):
            yield from _announce(ledger, runs, out)
            yield from (Event("note", reason=leak) for leak in leaks)
            if trials := [run for run in runs if run.trial is not None]:
                yield from _Sitting(trials, ledger, engine).events()
                runs = _decided(study, out, trials)
                yield Event("decided", reason="the trials have decided on settings", runs=tuple(runs))
            yield from _Sitting(runs, ledger, engine).events()


def _decided(study: Study, out: Path, trials: list[Run]) -> list[Run]:
    """The runs of a study whose trials have ended; those of a cell where all of them failed are hindered."""
    with held(out, PATIENCE):
        tried = tuning.decide(study, out, {run.name: run.found() for run in trials})
    runs = _runs(tuning.settled(study, out), out)
    failed = {cell: one.reason for cell, one in tried.items() if one.best is None}
    return [replace(run, hindrance=failed.get(run.cell, "")) for run in runs]


class _Sitting:
    """One runner's time at work: what it has not seen the end of, what the ledger last said, what runs here."""

    def __init__(self, runs: list[Run], ledger: Ledger, engine: Engine):
        ledger.plan({run.name: run.state for run in runs})
        self.ledger, self.engine = ledger, engine
        self.open = {run.name: run for run in sorted(runs, key=lambda run: -run.size)}
        self.rows: dict[str, Entry] = ledger.entries()
        self.looked = time.monotonic()
        self.here: dict[str, float] = {}
        """How much of each run that runs here is done."""
        self.deaths: Counter[str] = Counter()

    def events(self) -> Iterator[Event]:
        for run in list(self.open.values()):
            yield from self._begin(run)
        self.rows = self.ledger.entries()
        while self.open:
            yield from self._hand_out()
            for message in self.engine.wait(POLL):
                yield from self._take(message)
            yield from self._look_around()

    def _begin(self, run: Run) -> Iterator[Event]:
        """Keep what is done; what failed before, or is damaged, or was taken away, may be done again."""
        if run.is_done and not run.damage():
            self.ledger.settle(run.name, State.DONE)
            yield self._end("kept", run)
        elif self.rows[run.name].state in (State.DONE, State.FAILED):
            self.ledger.replan(self.rows[run.name])

    def _hand_out(self) -> Iterator[Event]:
        """Claim runs while workers are free. A row that has become stale is forgotten until the next look around."""
        for name, run in list(self.open.items()):
            if not self.engine.free:
                return
            row = self.rows.get(name)
            if row is None or name in self.here or not row.is_free:
                continue
            del self.rows[name]
            if self.ledger.claim(row):
                yield from self._start(run)

    def _start(self, run: Run) -> Iterator[Event]:
        """Begin a run that was claimed, unless its folder says that it is done, or that a process is still in it."""
        if is_held(run.folder):
            self.ledger.release(run.name)
            return
        if damage := run.damage():
            place = run.set_aside()
            yield Event("note", run, reason=f"damaged and set aside as {place.name}, to be run again: {damage}")
        if run.is_done:
            self.ledger.settle(run.name, State.DONE)
            yield self._end("elsewhere", run)
            return
        self.here[run.name] = 0.0
        if run.hindrance:
            yield from self._take(Message(run.name, "failed", run.hindrance))
            return
        self.engine.start(Job(run.config, run.folder))

    def _take(self, message: Message) -> Iterator[Event]:
        run = self.open[message.job]
        if message.kind == "no room":
            raise RunFailed(out_of_room(run.folder, message.content))
        if message.kind == "started":
            yield Event("started", run)
        elif message.kind == "step":
            self.here[run.name] = share_of(run.config, message.content)
            yield Event("step", run, report=message.content)
        elif message.kind == "finished":
            (run.folder / FAILURE).unlink(missing_ok=True)
            self.ledger.settle(run.name, State.DONE)
            yield self._end("finished", run)
        elif message.kind == "died" and self.deaths[run.name] < SECOND_TRIES:
            self.deaths[run.name] += 1
            del self.here[run.name]
            self.ledger.release(run.name)
            yield Event("again", run, reason=message.content)
        else:
            run.note_failure(message.content)
            self.ledger.settle(run.name, State.FAILED, message.content)
            yield self._end("failed", run, message.content)

    def _look_around(self) -> Iterator[Event]:
        """Give a sign of life, and see what other runners have ended."""
        if time.monotonic() - self.looked < POLL:
            return
        self.looked = time.monotonic()
        self.ledger.beat(self.here)
        self.rows = self.ledger.entries()
        for run in [run for run in self.open.values() if run.name not in self.here]:
            row = self.rows[run.name]
            if row.state == State.DONE:
                yield self._end("elsewhere", run)
            elif row.state == State.FAILED:
                yield self._end("failed", run, row.error)

    def _end(self, kind: Literal["kept", "finished", "elsewhere", "failed"], run: Run, reason: str = "") -> Event:
        self.here.pop(run.name, None)
        del self.open[run.name]
        return Event(kind, run, reason=reason)


def share_of(config: RunConfig, report: StepReport) -> float:
    """How much of a run is done, 0 to 1, its phases weighted by their epochs or their shares of a budget."""
    pretrain, finetune = _weights(config)
    share = report.step / report.steps
    done = share * pretrain if report.phase == "pretrain" else pretrain + share * finetune
    return done / (pretrain + finetune)


def _weights(config: RunConfig) -> tuple[float, float]:
    """Of pretraining, and of finetuning."""
    if config.budget:
        return spt_share(config), 1 - spt_share(config)
    return config.pretrain.epochs if config.pretrain else 0, config.finetune.epochs


def workers_for(runs: int, threads: int) -> int:
    """As many runs at a time as there are runs, or as the cores allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(runs, cores // threads))


def _announce(ledger: Ledger, runs: list[Run], out: Path) -> Iterator[Event]:
    """Say once that the ledger was made again, where there was something to make it from."""
    if ledger.damage:
        yield Event("note", reason=f"{ledger.damage}; it was made again from the run folders")
    elif ledger.is_new and any(run.folder.exists() for run in runs):
        yield Event("note", reason=f"{out} had no ledger; it was made from the run folders")


def _refuse_other(study: Study, path: Path) -> None:
    refuse_other(study, Study.read(path), path.parent)


def refuse_other(study: Study, before: Study, place: Path | str) -> None:
    """A place's study may be run again or extended (more seeds, more values), never replaced by another: BadConfig."""
    if before.tune != study.tune:
        raise BadConfig(f"{place} holds a study with other trials (table tune). Choose another --out")
    lost = {config.fingerprint for *_, config in before.runs()} - {config.fingerprint for *_, config in study.runs()}
    if lost:
        raise BadConfig(
            f"{place} holds another study: {len(lost)} of its runs are not in this one. Choose another --out"
        )
