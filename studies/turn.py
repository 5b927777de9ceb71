"""One runner at a time at a store: `runner.json` says there whose turn it is.

A turn ends with its runner, or `SILENCE` seconds after the last sign of life, so clocks must agree to within a minute.
Stores know no locks: of two who begin in the same moment, the one who wrote last has it, and the other notices before
it trains or, at the latest, when it next gives a sign of life.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from ssm_priors.errors import BadConfig, BadData, RunFailed, StoreFailed
from ssm_priors.studies.ledger import BEAT, SILENCE
from ssm_priors.studies.store import Store

MARKER = "runner.json"


class Turn:
    """Says at the store, in `runner.json`, who is at work there, again and again.

    Args:
        store: where.
        identity: of this machine's folder. A runner with the same one, which holds the folder, was here before and is
            gone.
    """

    def __init__(self, store: Store, identity: str):
        self.store, self.identity, self.sitting = store, identity, secrets.token_hex(8)
        self.since = time.time()
        self.lost = ""
        """What is said to whoever works on, although another runner has taken over."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        with before_work():
            self._refuse_other()
            self._say()
            self._refuse_other()  # who began in the same moment
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(StoreFailed, BadData):  # then it ends by silence
            if not self._other():
                self.store.remove(MARKER)

    def refuse_if_lost(self) -> None:
        """Raise RunFailed if another runner has taken over."""
        if self.lost:
            raise RunFailed(self.lost)

    def _refuse_other(self) -> None:
        if other := self._other():
            raise BadConfig(
                f"{described(self.store, other)} is at {self.store.name}. Wait for its end, or end it; if it is gone "
                f"for good, its turn ends {SILENCE:.0f} s after its last sign of life, or once {MARKER} is removed"
            )

    def _other(self) -> bytes | None:
        """The marker of another runner that may be alive."""
        text = self.store.read(MARKER)
        if text is None:
            return None
        marker = _marker(self.store, text)
        is_mine = marker["sitting"] == self.sitting or marker["identity"] == self.identity
        return None if is_mine or time.time() - marker["heartbeat"] > SILENCE else text

    def _say(self) -> None:
        marker = {"host": socket.gethostname(), "pid": os.getpid(), "identity": self.identity, "sitting": self.sitting}
        self.store.write(MARKER, json.dumps(marker | {"since": self.since, "heartbeat": time.time()}).encode())

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT):
            with suppress(StoreFailed, BadData):  # a store out of reach is told by what is brought there
                if other := self._other():
                    self.lost = f"{described(self.store, other)} has taken over {self.store.name}, so this runner ends"
                    return
                self._say()


def _marker(store: Store, text: bytes) -> dict[str, Any]:
    try:
        marker = json.loads(text)
        kinds = {"host": str, "pid": int, "identity": str, "sitting": str, "since": float, "heartbeat": float}
        assert all(isinstance(marker[name], kind) for name, kind in kinds.items())
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadData(f"{store.name}/{MARKER} is no runner's; if no runner is at work there, remove it") from error
    return dict(marker)


def described(store: Store, text: bytes) -> str:
    """A marker in words; raises BadData."""
    marker = _marker(store, text)
    silent = time.time() - marker["heartbeat"]
    return f"a runner (process {marker['pid']} on {marker['host']}, heard of {max(0, silent):.0f} s ago)"


@contextmanager
def before_work() -> Iterator[None]:
    """Before anything is trained, a store that fails is the wrong one: BadConfig."""
    try:
        yield
    except StoreFailed as error:
        raise BadConfig(str(error)) from error
