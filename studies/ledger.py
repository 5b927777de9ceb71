"""Who does what in a study: a row a run in SQLite, by which several runners share one study folder.

    planned -> running -> done | failed;  a claim is one UPDATE, which only one of several runners can win

What a run found stands in its own folder; here stands only who is at work. The file may be removed at any time: it is
made again from the run folders. A claim ends with its owner: on the same system when the process is gone (told by its
number and the moment it began, because numbers come again), elsewhere when nothing was heard of it for `SILENCE`
seconds.

The file is in WAL mode, where readers and writers do not wait for each other. That mode shares memory, so it cannot
work between hosts: on a network file system the ledger uses SQLite's rollback journal, which is as good as that file
system's locks, and hosts must agree about the time to within a minute.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

FILE = "ledger.sqlite"
SILENCE = 120.0
"""Seconds without a sign of life after which the claim of a process on another system is free."""
BEAT = 10.0
"""Seconds between signs of life."""
PATIENCE = 30.0
"""Seconds that a write waits for other writers."""
FULL = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_CANTOPEN": errno.EACCES}
"""What SQLite says of a disk that takes nothing more, as the system says it."""
SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "9p", "fuse.sshfs", "fuse.glusterfs", "afs")
"""How the names of file systems begin that several hosts mount at once."""


class State(StrEnum):
    """Where a run stands."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: a run, and whose it is while it is running."""

    fingerprint: str
    state: State
    host: str = ""
    system: str = ""
    """The boot and the process namespace in which `pid` means something; empty where the system does not tell."""
    pid: int = 0
    born: str = ""
    """When that process began, in ticks since the boot: a later one of the same number is another."""
    sitting: str = ""
    """Names one runner's time at work."""
    since: float = 0.0
    """Seconds since 1970, when it was claimed."""
    heartbeat: float = 0.0
    """When its owner was last heard of."""
    share: float = 0.0
    """How much of it was done then, 0 to 1."""
    error: str = ""

    @property
    def is_free(self) -> bool:
        """Whether it may be claimed: planned, or running for an owner who is gone."""
        if self.state != State.RUNNING:
            return self.state == State.PLANNED
        if self.system and (self.host, self.system) == (socket.gethostname(), _system()):
            return _born(self.pid) != self.born
        return time.time() - self.heartbeat > SILENCE


COLUMNS = tuple(field.name for field in fields(Entry))
MAKE = f"""
CREATE TABLE IF NOT EXISTS runs (
    fingerprint TEXT PRIMARY KEY, state TEXT NOT NULL, host TEXT NOT NULL, system TEXT NOT NULL, pid INTEGER NOT NULL,
    born TEXT NOT NULL, sitting TEXT NOT NULL, since REAL NOT NULL, heartbeat REAL NOT NULL, share REAL NOT NULL,
    error TEXT NOT NULL, CHECK (state IN ({", ".join(repr(str(state)) for state in State)}))
)
"""


class Ledger:
    """The ledger of a study folder, for one runner; make it while the folder is held.

    Args:
        folder: of the study.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE
        self.sitting = secrets.token_hex(8)
        self.damage = ""
        """What was wrong with the file that was there, and where it is now; empty if nothing was."""
        self.is_new = not self.path.exists()
        self._beaten = 0.0
        try:
            self._database = self._open()
        except sqlite3.DatabaseError as error:
            self._raise_if_full(error)
            self.damage = f"{self.path} is damaged ({error}) and was set aside as {_set_aside(self.path).name}"
            self.is_new = True
            self._database = self._open()

    def close(self) -> None:
        """Give back what this runner has claimed and not finished, and close the file."""
        with closing(self._database), suppress(OSError):  # on a full disk; the claims end with this process anyway
            self.release()

    def entries(self) -> dict[str, Entry]:
        """Every row, by fingerprint."""
        return {row[0]: _entry(row) for row in self._run(f"SELECT {', '.join(COLUMNS)} FROM runs").fetchall()}

    def plan(self, runs: Mapping[str, State]) -> None:
        """Add the runs that are not there yet, in the states that their folders say."""
        self._run("BEGIN IMMEDIATE")
        for fingerprint, state in runs.items():
            self._put(Entry(fingerprint, state))
        self._run("COMMIT")

    def claim(self, seen: Entry) -> bool:
        """Make a free run this runner's; False if its row is not what was seen, because another was faster."""
        if not seen.is_free:
            return False
        pid, now = os.getpid(), time.time()
        mine = [socket.gethostname(), _system(), pid, _born(pid)]
        change = "state = ?, host = ?, system = ?, pid = ?, born = ?, sitting = ?, since = ?, heartbeat = ?, share = 0"
        return self._swap(seen, change, [State.RUNNING, *mine, self.sitting, now, now])

    def replan(self, seen: Entry) -> bool:
        """Let a run that was done or had failed be done again; False if its row is not what was seen."""
        return self._swap(seen, "state = ?, error = ''", [State.PLANNED])

    def settle(self, fingerprint: str, state: State, error: str = "") -> None:
        """A run has ended, done or failed. A failure counts only for whose run it is; what is done is done."""
        mine = " AND sitting = ?" if state == State.FAILED else ""
        values = [state, error, fingerprint, *([self.sitting] if mine else [])]
        self._run(f"UPDATE runs SET state = ?, error = ? WHERE fingerprint = ?{mine}", values)

    def release(self, fingerprint: str = "") -> None:
        """Give back one claim of this runner, or all of them."""
        one = " AND fingerprint = ?" if fingerprint else ""
        values = [State.PLANNED, State.RUNNING, self.sitting, *([fingerprint] if fingerprint else [])]
        self._run(f"UPDATE runs SET state = ? WHERE state = ? AND sitting = ?{one}", values)

    def beat(self, shares: Mapping[str, float]) -> None:
        """Give a sign of life, and say how far the runs at work here are, if it is time for it."""
        if time.monotonic() - self._beaten < BEAT:
            return
        for fingerprint, share in shares.items():
            values = [time.time(), share, fingerprint, self.sitting]
            self._run("UPDATE runs SET heartbeat = ?, share = ? WHERE fingerprint = ? AND sitting = ?", values)
        self._beaten = time.monotonic()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        try:
            database.execute(f"PRAGMA journal_mode = {'DELETE' if is_shared(self.path.parent) else 'WAL'}")
            database.execute("PRAGMA synchronous = NORMAL")  # a power cut may undo rows, which the run folders correct
            database.execute(MAKE)
            database.execute(f"SELECT {', '.join(COLUMNS)} FROM runs").fetchall()
            if (fault := database.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(fault)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _put(self, entry: Entry) -> None:
        places = ", ".join("?" * len(COLUMNS))
        self._run(f"INSERT OR IGNORE INTO runs ({', '.join(COLUMNS)}) VALUES ({places})", astuple(entry))

    def _swap(self, seen: Entry, change: str, values: Iterable[Any]) -> bool:
        where = "fingerprint = ? AND state = ? AND sitting = ? AND since = ?"
        found = [seen.fingerprint, seen.state, seen.sitting, seen.since]
        return self._run(f"UPDATE runs SET {change} WHERE {where}", [*values, *found]).rowcount == 1

    def _run(self, statement: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, tuple(values))
        except sqlite3.OperationalError as error:
            self._raise_if_full(error)
            raise

    def _raise_if_full(self, error: sqlite3.Error) -> None:
        name = getattr(error, "sqlite_errorname", "")
        number = next((number for full, number in FULL.items() if name.startswith(full)), None)
        if name.startswith("SQLITE_IOERR"):
            number = errno.ENOSPC if _is_full(self.path.parent) else errno.EIO
        if number is not None:
            raise OSError(number, os.strerror(number), str(self.path)) from error


def read(folder: Path) -> dict[str, Entry]:
    """The rows of a study folder's ledger, without changing anything; nothing where there is none that can be read."""
    path = folder / FILE
    if not path.exists():
        return {}
    for mode in ("mode=ro", "immutable=1"):  # the second where the folder cannot be written, as WAL needs
        with suppress(sqlite3.DatabaseError):
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=PATIENCE)) as database:
                rows = database.execute(f"SELECT {', '.join(COLUMNS)} FROM runs").fetchall()
            return {row[0]: _entry(row) for row in rows}
    return {}


def is_shared(folder: Path) -> bool:
    """Whether a folder lies on a file system that several hosts mount at once, as far as the system tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    places = {Path(mount.split()[1].replace("\\040", " ")): mount.split()[2] for mount in mounts}
    here = folder.resolve()
    kind = next((places[place] for place in (here, *here.parents) if place in places), "")
    return kind.startswith(SHARED)


def _set_aside(path: Path) -> Path:
    """Rename a file, and what SQLite keeps beside it, to a name that is free; nothing is deleted."""
    number = next(n for n in range(1, 10_000) if not path.with_name(f"{path.name}.damaged-{n}").exists())
    for part in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{path}.damaged-{number}{part}")
    return path.with_name(f"{path.name}.damaged-{number}")


def _entry(row: tuple) -> Entry:
    fingerprint, state, *rest = row
    return Entry(fingerprint, State(state), *rest)


def _is_full(folder: Path) -> bool:
    return hasattr(os, "statvfs") and os.statvfs(folder).f_bavail == 0


@cache
def _system() -> str:
    """The boot and the process namespace of this process, where there is a /proc; else nothing."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}" if _born(os.getpid()) else ""
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process began; empty if there is none of this number, or none that can still do anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *numbers = text.rpartition(")")[2].split()  # its name stands in parentheses and may hold anything
    return "" if state in "ZX" else numbers[18]
