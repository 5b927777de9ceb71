"""Who does what: a claim is won by one, and ends with its owner."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from ssm_priors.studies import ledger
from ssm_priors.studies.ledger import SILENCE, Entry, Ledger, State


@pytest.fixture
def book(tmp_path):
    book = Ledger(tmp_path)
    book.plan(dict.fromkeys("abc", State.PLANNED))
    yield book
    book.close()


def test_a_claim_is_won_once_and_given_back(book, tmp_path):
    other = Ledger(tmp_path)
    seen = other.entries()["a"]
    assert book.claim(book.entries()["a"])
    assert not other.claim(seen)
    assert not other.entries()["a"].is_free
    book.release("a")
    assert other.entries()["a"].is_free
    assert other.claim(other.entries()["a"])
    other.close()
    assert book.entries()["a"].state == State.PLANNED


def test_closing_gives_back_what_is_running_and_keeps_what_has_ended(tmp_path):
    book = Ledger(tmp_path)
    book.plan(dict.fromkeys("abc", State.PLANNED))
    entries = book.entries()
    assert all(book.claim(entries[name]) for name in "abc")
    book.settle("a", State.DONE)
    book.settle("b", State.FAILED, "boom")
    book.close()
    found = ledger.read(tmp_path)
    assert [found[name].state for name in "abc"] == [State.DONE, State.FAILED, State.PLANNED]
    assert found["b"].error == "boom"


def test_only_its_owner_can_say_that_a_run_failed(book, tmp_path):
    other = Ledger(tmp_path)
    assert other.claim(other.entries()["a"])
    book.settle("a", State.FAILED, "not mine")
    assert book.entries()["a"].state == State.RUNNING
    other.close()


def test_many_threads_claim_every_run_exactly_once(tmp_path):
    names = [f"{number:03}" for number in range(60)]
    book = Ledger(tmp_path)
    book.plan(dict.fromkeys(names, State.PLANNED))
    book.close()
    won: list[str] = []

    def claim_all():
        book = Ledger(tmp_path)
        for name in names:
            if book.claim(book.entries()[name]):
                won.append(name)
                book.settle(name, State.DONE)
        book.close()

    threads = [threading.Thread(target=claim_all) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == names
    assert {entry.state for entry in ledger.read(tmp_path).values()} == {State.DONE}


CHILD = """
import sys, time
from pathlib import Path
from ssm_priors.studies.ledger import Ledger
book = Ledger(Path(sys.argv[1]))
assert book.claim(book.entries()["a"])
print("claimed", flush=True)
time.sleep(60)
"""


def test_the_claim_of_a_process_that_was_killed_is_free_even_before_it_was_waited_for(book, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "claimed\n"
    assert not book.entries()["a"].is_free
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but its number is still taken
    assert book.entries()["a"].is_free
    assert book.claim(book.entries()["a"])
    child.communicate()


def test_a_number_that_came_again_is_another_process(book):
    assert book.claim(book.entries()["a"])
    mine = book.entries()["a"]
    assert (mine.host, mine.pid) == (socket.gethostname(), os.getpid())
    assert not mine.is_free
    assert not replace(mine, heartbeat=0.0).is_free, "on this system its process is asked, not the clock"
    assert replace(mine, born=str(int(mine.born) - 1)).is_free
    assert replace(mine, pid=2**22 + 1).is_free


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"system": "another boot"}, {"system": ""}])
def test_an_owner_elsewhere_is_believed_until_it_is_silent(book, elsewhere):
    assert book.claim(book.entries()["a"])
    entry = replace(book.entries()["a"], pid=2**22 + 1, **elsewhere)
    assert not entry.is_free
    assert replace(entry, heartbeat=entry.heartbeat - SILENCE - 1).is_free


def test_a_sign_of_life_is_given_at_intervals_with_the_share_that_is_done(book, monkeypatch):
    assert book.claim(book.entries()["a"])
    before = book.entries()["a"].heartbeat
    book.beat({"a": 0.25})
    book.beat({"a": 0.5})
    assert book.entries()["a"].share == 0.25
    assert book.entries()["a"].heartbeat >= before
    monkeypatch.setattr(ledger, "BEAT", 0.0)
    book.beat({"a": 0.75})
    assert book.entries()["a"].share == 0.75


def test_what_is_there_is_not_planned_again(book):
    assert book.claim(book.entries()["a"])
    book.plan({"a": State.PLANNED, "d": State.DONE})
    assert book.entries()["a"].state == State.RUNNING
    assert book.entries()["d"].state == State.DONE


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"not a database, and long enough to be read as one" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: sqlite3.connect(path).executescript("DROP TABLE runs; CREATE TABLE runs (other)"),
    ],
)
def test_a_damaged_file_is_set_aside_and_made_again(tmp_path, harm):
    book = Ledger(tmp_path)
    book.plan({f"{number}": State.DONE for number in range(500)})
    book.close()
    harm(tmp_path / ledger.FILE)
    again = Ledger(tmp_path)
    assert "damaged-1" in again.damage
    assert again.is_new
    assert again.entries() == {}
    assert (tmp_path / f"{ledger.FILE}.damaged-1").exists()
    again.close()


def test_reading_makes_nothing_and_a_folder_without_a_ledger_has_no_rows(tmp_path):
    assert ledger.read(tmp_path) == {}
    (tmp_path / ledger.FILE).write_bytes(b"no database" * 1000)
    assert ledger.read(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [ledger.FILE]


def test_a_network_file_system_is_told_by_the_longest_mount_that_holds_the_folder(tmp_path, monkeypatch):
    kinds = {"/": "ext4", str(tmp_path): "nfs4", str(tmp_path / "local"): "xfs"}
    lines = "".join(f"device {place} {kind} rw 0 0\n" for place, kind in kinds.items())
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: lines)
    assert ledger.is_shared(tmp_path / "below" / "deep")
    assert not ledger.is_shared(tmp_path / "local" / "below")
    assert not ledger.is_shared(tmp_path.parent)


def test_on_a_network_file_system_the_ledger_keeps_no_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "is_shared", lambda folder: True)
    book = Ledger(tmp_path)
    book.plan({"a": State.PLANNED})
    assert {path.name for path in tmp_path.iterdir()} == {ledger.FILE}
    book.close()


def test_rows_hold_what_entries_do():
    assert ledger._entry(("a", "failed", "h", "s", 1, "b", "t", 2.0, 3.0, 0.5, "boom")) == Entry(
        "a", State.FAILED, "h", "s", 1, "b", "t", 2.0, 3.0, 0.5, "boom"
    )
