"""Measuring in fresh processes: time with all variants interleaved, peak memory one variant at a time, the floor.

A process has one allocator setting for good, so the two settings are two processes; within one, the variants take
turns, so that whatever else the machine does falls on all of them alike. With one thread the clock is the process's
CPU time, which leaves out time given to others (not what they do to caches); with more it is the wall's.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ssm_priors.ops import backend
from ssm_priors.studies.bench.problems import Problem, Variant, ready
from ssm_priors.training.allocator import keep_freed_memory

T = TypeVar("T")
MOST_ROUNDS, FEWEST_ROUNDS = 15, 3
MOST_TRIES, ENOUGH = 8, 0.5
"""Of a peak: as many tries, or fewer if they have taken so many seconds."""
FLOOR_PASSES = 24
"""Reads or writes of a (B, L, H) tensor in a layer, forward and backward, that no fusion of the parts avoids."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one variant, in ms."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    rounds: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine does best, found in the same process as the times it is held against."""

    matmul: float
    """Flop/s of a float32 matrix product."""
    matmul_half: float
    """The same in bfloat16."""
    copy: float
    """Bytes/s of a copy, read and written."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A problem under one allocator setting."""

    problem: Problem
    malloc: str
    """on or off, as provenance has it."""
    threads: int
    load: float
    """Load average of the last minute, when it ended."""
    backend: str
    """What "auto" chooses here: the path of the variant `fused`."""
    times: dict[Variant, Spread]
    floor: float | None
    """ms: matrix product, pruned FFTs and memory passes at their peaks, summed; of a layer only."""
    peaks: Peaks


def timed(problem: Problem, variants: list[Variant], *, tuned: bool, threads: int, seconds: float) -> Timed:
    """Time the variants in turns, in a process of its own, for about so many seconds."""
    return _elsewhere(_time, problem, variants, tuned, threads, seconds)


def peak_memory(problem: Problem, variant: Variant, threads: int) -> int | None:
    """Most bytes held while doing it once, over what was held before; in a process of its own. None where unknown."""
    return _elsewhere(_remember, problem, variant, threads)


def _elsewhere(function: Callable[..., T], *arguments: Any) -> T:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload([__name__])
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def _time(problem: Problem, variants: list[Variant], tuned: bool, threads: int, seconds: float) -> Timed:
    torch.set_num_threads(threads)
    malloc = keep_freed_memory() if tuned else "off"
    clock = time.process_time if threads == 1 else time.perf_counter
    works = {variant: ready(problem, variant) for variant in variants}
    first = sum(_once(work, time.perf_counter) for work in works.values())  # also warms up
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / first)))
    taken: dict[Variant, list[float]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, work in works.items():
            taken[variant].append(1e3 * _once(work, clock))
    peaks = _peaks(clock)
    with backend.using("auto") as best:
        kernels = str(best)
    return Timed(
        problem,
        malloc,
        threads,
        os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan,
        kernels,
        {variant: _spread(times) for variant, times in taken.items()},
        floor(problem, peaks) if problem.kind == "layer" else None,
        peaks,
    )


def _once(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    return clock() - begun


def _spread(times: list[float]) -> Spread:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Spread(median, low, high, len(times))


def _peaks(clock: Callable[[], float]) -> Peaks:
    square, numbers = torch.randn(1024, 1024), torch.randn(1 << 23)
    half, into = torch.randn(512, 512).bfloat16(), torch.empty_like(numbers)
    tries = {"matmul": lambda: square @ square, "matmul_half": lambda: half @ half, "copy": lambda: into.copy_(numbers)}
    work = {"matmul": 2 * 1024**3, "matmul_half": 2 * 512**3, "copy": 8 * len(numbers)}
    return Peaks(**{name: work[name] / _quickest(each, clock) for name, each in tries.items()})


def _quickest(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """The best of a few tries, since a peak is what was reached once; of one where bfloat16 is only emulated."""
    taken = [_once(work, clock)]
    while len(taken) < MOST_TRIES and sum(taken) < ENOUGH:
        taken.append(_once(work, clock))
    return min(taken)


def half_pays() -> bool:
    """Whether products are faster in bfloat16 than in float32 here; where not, the processor only emulates them."""
    square = torch.randn(256, 256)
    half = square.bfloat16()
    in_half = _quickest(lambda: half @ half, time.process_time)
    return in_half < _quickest(lambda: square @ square, time.process_time)


def floor(problem: Problem, peaks: Peaks) -> float:
    """ms that a layer's parts take at the machine's peaks, one after the other; an estimate, not a bound.

    The H -> 2H product and its two gradients; five FFTs of 2L points a pair of rows, two forward and three backward,
    radix 4 with half of the first or last pass pruned, at half of the product's peak, because adding is not multiplying
    and adding; and the memory passes.
    """
    B, H, L = problem.batch, problem.channels, problem.length
    product = 12 * B * L * H**2 / (peaks.matmul_half if problem.precision == "bf16-mixed" else peaks.matmul)
    points = 2 * L
    flops = 4.25 * points * (math.log2(points) - 1)
    transforms = 5 * -(-B // 2) * H * flops / (peaks.matmul / 2)
    return 1e3 * (product + transforms + FLOOR_PASSES * problem.input_bytes / peaks.copy)


def _remember(problem: Problem, variant: Variant, threads: int) -> int | None:
    torch.set_num_threads(threads)
    small = Problem(problem.kind, 2, 8, 4, 16, 1, problem.precision)
    ready(small, variant)()  # libraries are loaded before the count begins
    work = ready(problem, variant)
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None
    reset.write_text("5")  # the peak begins anew: proc(5)
    before = _held(status, "VmRSS")
    work()
    return _held(status, "VmHWM") - before


def _held(status: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", status.read_text(), re.MULTILINE)
    assert found is not None  # proc(5) promises it
    return 1024 * int(found[1])
