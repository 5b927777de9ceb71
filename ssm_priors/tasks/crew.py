"""Work on examples shared out among processes, its results in order: what they are does not depend on how many work.

Only whoever opens a `crew` gets processes (the command line does, before any run begins); everywhere else, so in a
study's workers, which may have no processes of their own, the same calls are made one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from ssm_priors.errors import RunFailed

R = TypeVar("R")


class Crew(NamedTuple):
    """Processes that wait for work; none is started before there is some."""

    pool: ProcessPoolExecutor
    size: int


_CREW: ContextVar[Crew | None] = ContextVar("crew", default=None)


@contextmanager
def crew(size: int = 0) -> Iterator[None]:
    """Let `in_order` use `size` processes until the end of the block; 0 means one a core."""
    size = size or _cores()
    pool = ProcessPoolExecutor(
        size,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is for whoever opened the crew, and ends it
    )
    token = _CREW.set(Crew(pool, size))
    try:
        yield
    finally:
        _CREW.reset(token)
        pool.shutdown(cancel_futures=True)


def in_order(function: Callable[..., R], calls: Sequence[tuple[Any, ...]]) -> Iterator[R]:
    """What `function` gives for each tuple of arguments; few results wait at any time, so memory stays small.

    Args:
        function: of a module, so that another process finds it.
        calls: its arguments, call by call.

    Raises:
        RunFailed: a process of the crew was killed.
    """
    at_work = _CREW.get()
    if at_work is None or at_work.size < 2 or len(calls) < 2:
        yield from (function(*call) for call in calls)
        return
    waiting: deque[Any] = deque()
    try:
        for call in calls:
            waiting.append(at_work.pool.submit(function, *call))
            if len(waiting) > 2 * at_work.size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RunFailed("a process that prepared data was killed, perhaps for want of memory; try again") from error


def ranges(stop: int, step: int) -> list[tuple[int, int]]:
    """0 .. `stop` cut into pieces of `step`."""
    return [(start, min(start + step, stop)) for start in range(0, stop, step)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
