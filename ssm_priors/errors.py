"""Every error a user can cause: says what was given, what was expected, and what to do.

The library raises only children of `SsmPriorsError`; the command line catches only those. Anything else is a bug
and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SsmPriorsError(Exception):
    """Wrong use, or a run that failed; `exit_code` is the process's."""

    exit_code = 2


class UnknownName(SsmPriorsError):
    """A name that no registry knows, with the nearest one that exists."""

    def __init__(self, kind: str, given: str, known: Iterable[str]):
        known = sorted(known)
        near = suggest(given, known)
        listing = f"Known: {', '.join(known)}." if known else f"No {kind} is registered."
        super().__init__(f"unknown {kind} '{given}'. {near or listing}")


class BadConfig(SsmPriorsError):
    """A configuration that does not parse, or that cannot work."""


class BadCheckpoint(SsmPriorsError):
    """A checkpoint that is missing, damaged, unsafe, or of another tool."""


class BadData(SsmPriorsError):
    """Data that are missing, damaged, or do not fit what is asked of them."""


class NotReady(BadData):
    """Data that a user must bring or install first; the text says what, from where, and the command to run then."""


class NotThere(SsmPriorsError):
    """A model without the thing that was to be looked at."""


class RunFailed(SsmPriorsError):
    """A run that started and could not end well."""

    exit_code = 1


class StoreFailed(SsmPriorsError):
    """A store that did not take or give what was asked of it: no permission, no network, no room."""

    exit_code = 1


def suggest(given: str, known: Iterable[str]) -> str:
    """'Did you mean s4d?' when something known is near, else an empty string."""
    near = get_close_matches(given, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else ""
