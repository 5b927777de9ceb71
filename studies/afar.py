"""One run on a node that shares no disk with its study: trained in a folder of the node, and brought to the store.

Its state goes to the store whenever it is saved, so that another node can go on with it. What could not be brought
stays on the node, where the next try finds it.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ssm_priors.errors import SsmPriorsError, StoreFailed
from ssm_priors.studies.engines.engine import Job, Message, Workers, perform
from ssm_priors.studies.store import BEGUN, RUNS, STATE, Store, scratch
from ssm_priors.training.run import CHECKPOINT, examine

PAUSES = (1.0, 5.0, 20.0)
"""Seconds between tries to reach a store."""
Answer = TypeVar("Answer")


def perform_afar(job: Job, workers: Workers, tell: Callable[[Message], Any]) -> Message:
    """Execute a job whose folder this machine may not see, as `engine.perform` does; its end is at the store.

    Args:
        job: of whose folder the name alone counts.
        workers: with the URL of the store.
        tell: where it stands, on the way.
    """
    here = f"on {socket.gethostname()}"
    try:
        store = _patiently(lambda: Store(workers.store))
        folder = scratch() / "tasks" / store.key / job.name
        is_new = _begin(job, folder, store)
        message = perform(replace(job, folder=folder), workers, _Keeper(store, folder, tell).tell)
        if message.kind == "finished" and is_new:
            _patiently(lambda: store.put_run(folder))
    except StoreFailed as error:
        return Message(job.name, "failed", f"{error} ({here}; what the run has is kept there)")
    if message.kind == "no room":
        return replace(message, content=f"{message.content} ({here}, in {folder})")
    shutil.rmtree(folder, ignore_errors=True)
    return message


def _begin(job: Job, folder: Path, store: Store) -> bool:
    """Have on this node what there is of a run; False if it is finished and at the store."""
    if _is_sound(job, folder) and (folder / CHECKPOINT).exists():
        return True  # an earlier try could not bring it
    there = _patiently(lambda: store.files(f"{RUNS}/{job.name}"))
    if CHECKPOINT in there or STATE in there:
        _patiently(lambda: store.fetch_run(job.name, folder))
    if not _is_sound(job, folder):
        shutil.rmtree(folder)  # a copy; the run begins anew, and replaces what is damaged at the store
    return not (folder / CHECKPOINT).exists()


def _is_sound(job: Job, folder: Path) -> bool:
    try:
        examine(folder, job.config)
    except SsmPriorsError:
        return False
    return True


class _Keeper:
    """Passes on what a run tells, and brings its state to the store whenever there is a new one."""

    def __init__(self, store: Store, folder: Path, tell: Callable[[Message], Any]):
        self.store, self.folder, self._tell = store, folder, tell
        self.brought = self._changed()
        self.tried = self.brought.get(STATE)

    def tell(self, message: Message) -> None:
        self._tell(message)
        now = self._changed()
        if now.get(STATE) == self.tried:
            return
        self.tried = now.get(STATE)
        with suppress(StoreFailed):  # the next state is brought again; at the run's end the store must answer
            self.store.put_some(self.folder, [name for name in now if now[name] != self.brought.get(name)])
            self.brought = now

    def _changed(self) -> dict[str, int]:
        """When each file that a state needs was last written."""
        return {name: (self.folder / name).stat().st_mtime_ns for name in BEGUN if (self.folder / name).exists()}


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask a store that may be out of reach for a moment; raises StoreFailed."""
    for pause in PAUSES:
        try:
            return ask()
        except StoreFailed:
            time.sleep(pause)
    return ask()
