"""glibc's malloc told to keep what is freed, so that a large tensor does not fault in fresh pages every time.

By default a block above a threshold (32 MB at most) is mapped anew on every allocation and unmapped when it is freed,
and each of its pages costs a fault: a third to a half of the time of a training step on long sequences. Raising both
thresholds keeps those pages for the next tensor of any model; the process holds on to its peak memory in exchange.

The setting belongs to the whole process and cannot be taken back.
"""

from __future__ import annotations

import ctypes
import os
from typing import Literal

Tuning = Literal["on", "off", "refused", "not glibc"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of mallopt(3)."""
LARGEST = 1 << 30
"""Bytes of a block that still comes from the heap."""

_tuning: Tuning = "off"


def keep_freed_memory() -> Tuning:
    """Raise the thresholds where malloc is glibc's, once a process; anywhere else do nothing. Gives what holds now."""
    global _tuning
    if _tuning != "on":
        _tuning = _raise_thresholds() if _is_glibc() else "not glibc"
    return _tuning


def malloc_tuning() -> Tuning:
    """What holds in this process: "off" as long as nobody asked."""
    return _tuning


def _raise_thresholds() -> Tuning:
    mallopt = ctypes.CDLL(None).mallopt
    accepted = mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    return "on" if accepted else "refused"


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # no such function (Windows), no such name (another C library)
        return False
