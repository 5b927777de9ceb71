"""`ssmp bench`: what the state-space layers cost on this machine, beside a naive layer and the machine's floor."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from ssm_priors.analyses.charts import page
from ssm_priors.analyses.charts.cost import cost
from ssm_priors.checkpoints.container import plain
from ssm_priors.cli.output import Output
from ssm_priors.ops import backend
from ssm_priors.studies.bench.measure import Timed, half_pays, peak_memory, timed
from ssm_priors.studies.bench.problems import Problem, Variant

LAYERS = [
    Problem("layer", 32, 128, 64, 1024),
    Problem("layer", 8, 128, 64, 4096),
    Problem("layer", 8, 128, 64, 16_384),
]
STEP = Problem("step", 32, 128, 64, 1024, layers=4)
FULL = [*LAYERS, STEP]
HALF = replace(STEP, precision="bf16-mixed")
QUICK = [Problem("layer", 8, 64, 64, 1024), Problem("step", 8, 64, 64, 1024, layers=2)]
LENGTHS = {False: [256, 512, 1024, 2048, 4096, 8192], True: [256, 1024]}
"""Of the chart, whether or not --quick."""
SECONDS = {False: 20.0, True: 1.0}
"""Of one problem under one setting, at least three rounds."""
COLUMNS = (
    "what",
    "malloc",
    "variant",
    "ms",
    "quartiles",
    "n",
    "load",
    "x naive",
    "floor ms",
    "x floor",
    "peak MB",
    "% naive",
)


def bench(*, quick: bool, threads: int, out: Path, output: Output) -> int:
    """Measure, print the table, write the page with its chart."""
    with backend.using("auto") as best:
        output.note(f"kernels: {best}")
    variants: list[Variant] = ["naive", "torch", *_fused(best)]
    memory: dict[Problem, dict[Variant, int | None]] = {}
    found = []
    for problem in _problems(quick, output):
        output.note(problem.label)
        memory[problem] = {variant: peak_memory(problem, variant, threads) for variant in variants}
        for tuned in (True, False):
            found.append(timed(problem, variants, tuned=tuned, threads=threads, seconds=SECONDS[quick]))
    curve = _against_length(variants, quick, threads, output)
    rows = [row for each in found for row in _rows(each, memory[each.problem])]
    said = _conditions(found)
    path = out / "bench.html"
    out.mkdir(parents=True, exist_ok=True)
    page.write(path, "What a layer costs", [said], [cost(curve, _caption(quick, threads))], [_table(rows)])
    output.json(
        {
            "rows": [plain(asdict(each)) for each in found],
            "peak_bytes": [
                {"problem": asdict(problem), "variant": variant, "bytes": size}
                for problem, sizes in memory.items()
                for variant, size in sizes.items()
            ],
            "against_length": plain(curve.to_dict("records")),
            "page": str(path),
        }
    )
    output.table(COLUMNS, rows)
    output.text(said)
    output.wrote({"page": path})
    return 0


def _problems(quick: bool, output: Output) -> list[Problem]:
    if quick:
        return QUICK
    if half_pays():
        return [*FULL, HALF]
    output.note("left out: mixed precision, since this processor only emulates products in bfloat16")
    return FULL


def _fused(best: backend.Backend) -> list[Variant]:
    """Measured wherever it would run, not only where it was asked for."""
    return ["fused"] if best.name == "fused" else []


def _against_length(variants: list[Variant], quick: bool, threads: int, output: Output) -> pd.DataFrame:
    """Columns variant, length, ms, MB: one layer at growing lengths, attention beside it."""
    rows = []
    for length in LENGTHS[quick]:
        problem = Problem("layer", 4, 64, 64, length)
        output.note(f"chart: {problem.label}")
        every: list[Variant] = [*variants, "attention"]
        times = timed(problem, every, tuned=True, threads=threads, seconds=SECONDS[quick] / 4).times
        for variant in every:
            size = peak_memory(problem, variant, threads)
            megabytes = math.nan if size is None else size / 2**20
            rows.append({"variant": variant, "length": length, "ms": times[variant].median, "MB": megabytes})
    return pd.DataFrame(rows)


def _rows(found: Timed, memory: dict[Variant, int | None]) -> list[list[str]]:
    naive, naive_size = found.times["naive"], memory["naive"]
    rows = []
    for variant, spread in found.times.items():
        size = memory[variant]
        rows.append(
            [
                found.problem.label,
                found.malloc,
                variant,
                f"{spread.median:.1f}",
                f"[{spread.low:.1f}, {spread.high:.1f}]",
                str(spread.rounds),
                f"{found.load:.1f}",
                f"{naive.median / spread.median:.2f}",
                "" if found.floor is None else f"{found.floor:.1f}",
                "" if found.floor is None else f"{spread.median / found.floor:.2f}",
                "" if size is None else f"{size / 2**20:.0f}",
                "" if not size or not naive_size else f"{100 * size / naive_size:.0f}",
            ]
        )
    return rows


def _table(rows: list[list[str]]) -> page.Table:
    caption = (
        "A layer forward and backward, or a training step with AdamW; malloc: whether freed memory is kept. Variants "
        "took n turns in one process; ms: median over the turns, with its quartiles; load: average of the last minute "
        "when they ended. x naive: how many times faster than the naive layer under the same setting. floor: the sum "
        "of matrix product, pruned FFTs and memory passes, each at the peak this machine reached in the same process. "
        "peak MB: over what was held before, in a process of its own. torch and fused are the two paths of this "
        "package's layer (SSM_PRIORS_BACKEND)."
    )
    return page.Table("Time and memory", COLUMNS, rows, caption)


def _conditions(found: list[Timed]) -> str:
    loads, peaks = [each.load for each in found], [each.peaks for each in found]
    clock = "CPU time of one thread" if found[0].threads == 1 else f"wall time of {found[0].threads} threads"
    return (
        f"{clock}; load average {min(loads):.1f} to {max(loads):.1f}; kernels: {found[0].backend}; at best "
        f"{max(each.matmul for each in peaks) / 1e9:.0f} Gflop/s in float32, "
        f"{max(each.matmul_half for each in peaks) / 1e9:.0f} in bfloat16, "
        f"{max(each.copy for each in peaks) / 1e9:.0f} GB/s copied"
    )


def _caption(quick: bool, threads: int) -> str:
    few = " Few rounds each (--quick)." if quick else ""
    return (
        f"One layer, forward and backward, batch 4, 64 channels, state size 64, {threads} thread(s), freed memory "
        f"kept. Attention: causal, with 4 heads, through torch's scaled_dot_product_attention.{few}"
    )
