"""A study at a URL: done in a folder of this machine, and brought to the store as it is done.

    begin:  what the store has of the study -> the folder, each run held against its configuration
    Courier: a run is finished -> the store, or from there where its worker has brought it
    deliver: what could not be brought before; failures; results and report

The folder may be removed whenever nothing runs: what was brought is fetched again. One runner at a time (`turn`): the
ledger, by which several share the work, is SQLite and needs a file system.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ssm_priors import atomic
from ssm_priors.errors import BadConfig, BadData, SsmPriorsError, StoreFailed
from ssm_priors.folder import held, is_held
from ssm_priors.studies import audits, results, tuning
from ssm_priors.studies.engines.engine import Engine, Job, Message
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import FAILURE, STUDY, Run, plan, refuse_other
from ssm_priors.studies.store import BEGUN, FAILED, RUNS, STATE, Store, scratch
from ssm_priors.studies.turn import MARKER, Turn, before_work, described
from ssm_priors.training.run import CHECKPOINT, examine

BROUGHT = "brought.json"
"""Run -> the token of its checkpoint at the store, where that is known to be this folder's."""
FINGERPRINT = re.compile(r"[0-9a-f]{12}")

Tell = Callable[[str], None]


@contextmanager
def sitting(url: str, tell: Tell) -> Iterator[Depot]:
    """One runner's time at a URL, which no other has meanwhile.

    Args:
        url: of the study.
        tell: told what a user should know.

    Raises:
        BadConfig: it holds something else, another runner is at it, or it cannot be reached or written.
    """
    with before_work():
        store = Store(url)
        names = store.names()
    if names - {MARKER} and STUDY not in names:
        raise BadConfig(f"{store.name} holds {min(names - {MARKER})} but no {STUDY}; choose an empty or a new place")
    home = _home(store)
    with _alone(home, store.name), Turn(store, _identity(home)) as turn:
        yield Depot(store, home / "study", tell, turn)


@contextmanager
def sight(url: str, tell: Tell, must_be: bool = True) -> Iterator[Depot]:
    """A look at the study at a URL, beside whoever is at it; nothing changes there.

    Args:
        url: of the study.
        tell: told what a user should know.
        must_be: whether a place without a study is an error.

    Raises:
        BadConfig, BadData: it cannot be reached, or holds no study.
    """
    with before_work():
        store = Store(url)
        known = store.read(MARKER)
        home = _home(store)
        depot = Depot(store, home / "study", tell)
        if known:
            tell(f"{described(store, known)} is at {store.name}")
        if (must_be or store.read(STUDY)) and not is_held(home):  # a runner of this machine has it all in its folder
            with _alone(home, store.name):
                depot.fetch(depot.study())
    yield depot


class Depot:
    """A study's place at a store, and its folder on this machine.

    Args:
        store: what lies at the URL.
        folder: made if it is not there.
        tell: told what a user should know.
        turn: of the runner whose place it is; None for one who only looks.
    """

    def __init__(self, store: Store, folder: Path, tell: Tell, turn: Turn | None = None):
        self.store, self.folder, self.tell, self.turn = store, folder, tell, turn
        folder.mkdir(parents=True, exist_ok=True)
        self.brought = _tokens(folder.parent / BROUGHT)
        self._choices = b""

    def study(self) -> Study:
        """The study that is at the store; raises BadData if there is none."""
        text = self.store.read(STUDY)
        if text is None:
            raise BadData(f"{self.store.name} holds no {STUDY}; the --out of ssmp study or ssmp ablate was expected")
        return Study.from_toml(text.decode())

    def begin(self, study: Study) -> None:
        """Make the store this study's, and fetch what it has of it; raises BadConfig for another study's."""
        with before_work():
            text = study.to_toml().encode()
            before = self.store.read(STUDY)
            if before is not None:
                refuse_other(study, Study.from_toml(before.decode()), self.store.name)
            elif (self.folder / STUDY).exists():
                self._refuse_left_over(study)
            if before != text:
                self.store.write(STUDY, text)
            self.fetch(study)

    def fetch(self, study: Study) -> None:
        """Bring here what the store has and this folder has not."""
        if (text := self.store.read(STUDY)) is not None:
            atomic.write(self.folder / STUDY, lambda file: file.write(text))
        self._fetch_choices()
        if not (self.folder / audits.FILE).exists() and self.store.read(audits.FILE) is not None:
            self.store.get(audits.FILE, self.folder / audits.FILE)
        there = self.store.runs()
        self.brought = {name: token for name, token in self.brought.items() if CHECKPOINT in there.get(name, {})}
        for run in plan(study, self.folder):
            self._fetch_run(run, there.get(run.name, {}))

    def put_run(self, folder: Path) -> None:
        """Bring a finished run to the store."""
        self._note(folder.name, self.store.put_run(folder))

    def fetch_finished(self, folder: Path) -> None:
        """Bring here a run that its worker has brought to the store; raises StoreFailed if it is not there."""
        self.store.fetch_run(folder.name, folder)
        if not (folder / CHECKPOINT).exists():
            raise StoreFailed(f"{self.store.name}, as seen from here, holds no {RUNS}/{folder.name}/{CHECKPOINT}")
        self._note(folder.name, self.store.files(f"{RUNS}/{folder.name}").get(CHECKPOINT, ""))

    def put_choices(self) -> None:
        """Bring what trials have decided, before any run that depends on it begins."""
        path = self.folder / tuning.FILE
        if path.exists() and (text := path.read_bytes()) != self._choices:
            self.store.write(tuning.FILE, text)
            self._choices = text

    def deliver(self) -> str:
        """Bring all that is not at the store yet, results and report included; gives why not, if it could not."""
        try:
            for folder in self._pending():
                self.put_run(folder)
            for folder in self._runs():
                if (folder / FAILURE).exists():
                    self.store.put_some(folder, FAILED)
            self.put_choices()
            self._put_products()
        except StoreFailed as error:
            left = len(self._pending())
            runs = f"{left} finished run{'s' * (left != 1)}, results and report" if left else "results and report"
            return f"{error}. Not there yet: {runs}. They are in {self.folder}, and the same command brings them"
        return ""

    def _refuse_left_over(self, study: Study) -> None:
        """The store is empty, and what this folder holds was brought there once."""
        try:
            refuse_other(study, Study.read(self.folder / STUDY), self.folder)
        except BadConfig as error:
            raise BadConfig(f"{error}, or move the folder away: {self.store.name} holds no study any more") from error

    def _fetch_choices(self) -> None:
        """Once made, a choice holds: the store's first, then this folder's."""
        text = self.store.read(tuning.FILE)
        if text is None:
            return
        try:
            there = tuning.parsed(text.decode())
        except (ValueError, TypeError, AttributeError, BadConfig) as error:
            raise BadData(f"{self.store.name}/{tuning.FILE} is damaged; move it away to choose again") from error
        if (both := tuning.read(self.folder) | there) != tuning.read(self.folder):
            tuning.write(both, self.folder)

    def _fetch_run(self, run: Run, there: dict[str, str]) -> None:
        """A run that is finished there, or that was begun there and never here."""
        if CHECKPOINT in there and run.is_done and (damage := run.damage()):
            self.tell(f"{run.label}: damaged and set aside as {run.set_aside().name}; the store's is taken: {damage}")
        if CHECKPOINT in there and not run.is_done:
            self.store.fetch_run(run.name, run.folder)
            self._note(run.name, there[CHECKPOINT])
        elif CHECKPOINT in there and self.brought.get(run.name) != there[CHECKPOINT]:
            self._compare(run, there[CHECKPOINT])
        elif not run.folder.exists() and {STATE, FAILURE} & set(there):
            self.store.fetch_run(run.name, run.folder)

    def _compare(self, run: Run, token: str) -> None:
        """A run was finished here and there: what is at the store counts, unless it is damaged."""
        with TemporaryDirectory(dir=self.folder.parent) as place:
            other = Path(place) / run.name
            self.store.fetch_run(run.name, other)
            try:
                examine(other, run.config)
            except SsmPriorsError as error:
                self.tell(f"{run.label}: damaged at {self.store.name}, to be replaced by this folder's: {error}")
                self.brought.pop(run.name, None)
                return
            if not filecmp.cmp(other / CHECKPOINT, run.folder / CHECKPOINT, shallow=False):
                aside = run.set_aside().name
                self.tell(
                    f"{run.label}: {self.store.name} has it with other weights; those count, and ours are in {aside}"
                )
                os.rename(other, run.folder)
        self._note(run.name, token)

    def _note(self, name: str, token: str) -> None:
        self.brought[name] = token
        atomic.write_text(self.folder.parent / BROUGHT, json.dumps(self.brought, indent=1))

    def _runs(self) -> list[Path]:
        return [folder for folder in sorted((self.folder / RUNS).glob("*")) if FINGERPRINT.fullmatch(folder.name)]

    def _pending(self) -> list[Path]:
        return [one for one in self._runs() if (one / CHECKPOINT).exists() and one.name not in self.brought]

    def _put_products(self) -> None:
        """Results and report in place of those of the last time."""
        from ssm_priors.studies.report.files import MANIFEST, listed

        names = listed(self.folder)
        with TemporaryDirectory(dir=self.folder.parent) as place:
            if (text := self.store.read(MANIFEST)) is not None:
                (Path(place) / MANIFEST).write_bytes(text)
            stale = listed(Path(place)) - names
        if (self.folder / results.FILE).exists():
            self.store.put_folder(self.folder / results.FILE, results.FILE)
        for name in (*sorted(names), MANIFEST, audits.FILE):
            if (self.folder / name).exists():
                self.store.put(self.folder / name, name)
        for name in sorted(stale):
            self.store.remove(name)


class Courier:
    """An engine whose finished runs are at the store when their end is told.

    Args:
        engine: whose workers write into the study's folder, or bring their runs to the store themselves.
        depot: of the study.
    """

    def __init__(self, engine: Engine, depot: Depot):
        self.engine, self.depot = engine, depot
        self._jobs: dict[str, Job] = {}

    @property
    def free(self) -> int:
        """As many as the engine's."""
        return self.engine.free

    def start(self, job: Job) -> None:
        """Begin a job."""
        self._try(self.depot.put_choices)
        self._jobs[job.name] = job
        self.engine.start(job)

    def wait(self, seconds: float) -> list[Message]:
        """What has happened; raises RunFailed if another runner has taken over."""
        if self.depot.turn:
            self.depot.turn.refuse_if_lost()
        return [self._settled(message) for message in self.engine.wait(seconds)]

    def close(self) -> None:
        """End what is running; the states that it leaves here go to the store."""
        self.engine.close()
        for job in self._jobs.values():
            if (job.folder / STATE).exists():
                self._try(lambda job=job: self.depot.store.put_some(job.folder, BEGUN))  # type: ignore[misc]
        self._jobs = {}

    def _settled(self, message: Message) -> Message:
        if message.kind in ("started", "step"):
            return message
        folder = self._jobs.pop(message.job).folder
        if message.kind != "finished":
            return message
        if (folder / CHECKPOINT).exists():
            self._try(lambda: self.depot.put_run(folder))
            return message
        try:
            self.depot.fetch_finished(folder)
        except StoreFailed as error:
            return Message(message.job, "failed", f"its worker has finished it, but {error}")
        return message

    def _try(self, bring: Callable[[], None]) -> None:
        """What cannot be brought now is tried again at the end."""
        try:
            bring()
        except StoreFailed as error:
            self.depot.tell(f"{error}; tried again at the end")


def _home(store: Store) -> Path:
    home = scratch() / "studies" / store.key
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"{home} cannot be made: {error.strerror}") from error
    return home


@contextmanager
def _alone(home: Path, name: str) -> Iterator[None]:
    """Keep other processes of this machine out; raises BadConfig."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(home))
        except BadConfig as error:
            raise BadConfig(f"{name}: is another runner of this machine at it? {error}") from error
        yield


def _identity(home: Path) -> str:
    """Of this folder, made up when it is; for who holds it."""
    path = home / "identity"
    if not path.exists():
        atomic.write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="utf-8")


def _tokens(path: Path) -> dict[str, str]:
    """What `Depot` has noted; nothing where that is damaged: then runs are compared with the store's."""
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(token) for name, token in noted.items()} if isinstance(noted, dict) else {}
