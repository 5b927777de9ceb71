"""Run folders -> one labelled dataset, `results.zarr`: what every run of a study scored, example by example.

A run is one of four things, and none is ever left out: done, failed (with the reason it gave), missing (not finished
yet), or no cell of this study (the grid is dense, a study need not be). A model without a state space has init "none".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors import atomic
from ssm_priors.batch import TaskSpec
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint, BadData
from ssm_priors.metrics import Metric, metric_for, metric_of
from ssm_priors.registry import TASKS
from ssm_priors.studies import audits, tuning
from ssm_priors.studies.grid import NONE, Cell, Study
from ssm_priors.studies.runner import FAILURE
from ssm_priors.training.journal import columns
from ssm_priors.training.run import CHECKPOINT, read_finished

AXES = tuple(axis.name for axis in fields(Cell))
X = TypeVar("X", xr.Dataset, xr.DataArray)
FILE = "results.zarr"
TEXTS = ("reason", "fingerprint", "answer", "unit")


class Status(IntEnum):
    """What became of a run."""

    NOT_A_CELL = 0
    MISSING = 1
    FAILED = 2
    DONE = 3

    @property
    def word(self) -> str:
        """What people read."""
        return self.name.lower().replace("_", " ")


PHASES = {"pretrain": "pretraining", "finetune": "finetuning"}
COSTS = {
    "flops": ("1", "floating-point operations of {}, forward and backward; see ssm_priors.training.compute"),
    "steps": ("1", "steps of {}"),
    "examples": ("1", "examples seen {}, repeats counted"),
    "tokens": ("1", "valid positions seen {}, repeats counted"),
    "seconds": ("s", "time spent {}"),
}
"""What a phase costs: unit, meaning."""
NUMBERS = {
    "test_metric": ("", "the task's metric over the test examples, at the best validation step"),
    "validation_metric": ("", "best value of the task's metric over the validation examples"),
    "best_step": ("step", "step of finetuning whose weights were tested"),
    "parameters": ("1", "numbers the tested model holds"),
    **{
        f"{phase}_{cost}": (unit, meaning.format(words))
        for phase, words in PHASES.items()
        for cost, (unit, meaning) in COSTS.items()
    },
    "process_peak_memory": ("B", "most memory its process had held, earlier runs in the same process included"),
    "device_peak_memory": ("B", "most memory tensors had held on its CUDA device, as process_peak_memory"),
}
"""Variables of a run: unit (empty: the task's own), meaning. NaN where a run has none or did not record it."""
WHOLE = (
    "best_step",
    "parameters",
    *(f"{phase}_{cost}" for phase in PHASES for cost in ("steps", "examples", "tokens")),
)
"""Those that count something."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run's folder says."""

    status: Status
    reason: str = ""
    """Why it failed."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Values of `NUMBERS`."""
    score: np.ndarray = field(default_factory=lambda: np.empty(0))
    """(example,), what its metric is the mean of: 1 or 0 for a class."""
    target: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """A row an example, what was asked."""
    spec: TaskSpec | None = None
    provenance: dict[str, Any] = field(default_factory=dict)


def collect(study: Study, out: Path) -> xr.Dataset:
    """Read every run of a study.

    Args:
        study: its grid.
        out: the study's folder, with `runs/FINGERPRINT/` in it.

    Returns:
        Dims model, init, pretrain, task, fraction, budget, variant, seed: the variables of `NUMBERS`, `status` (flags
        of `Status`), `reason`, `fingerprint`; with example besides: `score` (NaN = no such run or example); with task
        alone: `answer` and `unit`, which say what its metric is, and `chance`, the metric of the best constant answer.
        Attributes: the study with what its trials have chosen; audits; provenance; where it was tuned, all trials.

    Raises:
        BadData: runs of one task were tested on different examples, so that they cannot be compared.
    """
    study = tuning.settled(study, out)
    runs = study.runs()
    results = {(cell, seed): read_run(Path(out) / "runs" / config.fingerprint, config) for cell, seed, config in runs}
    coordinates = {axis: list(dict.fromkeys(getattr(cell, axis) for cell, _, _ in runs)) for axis in AXES}
    targets = {task: _common_target(task, results) for task in coordinates["task"]}
    dataset = _empty(coordinates | {"seed": list(range(study.seeds))}, max(len(one) for one in targets.values()))
    for cell, seed, config in runs:
        at_seed = asdict(cell) | {"seed": seed}
        place = tuple(dataset.get_index(name).get_loc(value) for name, value in at_seed.items())
        _fill(dataset, place, results[cell, seed], config.fingerprint)
    specs = [_spec(task, runs, results) for task in coordinates["task"]]
    dataset["answer"] = ("task", [spec.answer for spec in specs], {"long_name": "what is asked; decides the metric"})
    dataset["unit"] = ("task", [spec.unit for spec in specs], {"long_name": "unit of the metric; empty for a share"})
    chances = [_chance(metric_of(spec), one) for spec, one in zip(specs, targets.values(), strict=True)]
    dataset["chance"] = (
        "task",
        chances,
        {"long_name": "the task's metric if all test examples get the best one answer"},
    )
    dataset.attrs = {"study": study.to_toml(), "provenance": json.dumps(_provenance(results), sort_keys=True)}
    dataset.attrs["audits"] = json.dumps({name: asdict(found) for name, found in audits.read(Path(out)).items()})
    if study.tune:
        dataset.attrs["tuned"] = json.dumps(tuning.document(tuning.read(out)))
    return dataset.assign({name: dataset[name].astype(str) for name in TEXTS})


def metric(results: xr.Dataset, task: str) -> Metric:
    """What the results of a task are values of."""
    return metric_for(results.answer.sel(task=task).item(), results.unit.sel(task=task).item())


def tried(results: xr.Dataset) -> list[tuning.Tried]:
    """The trials of every cell that has had them; none where nothing was tuned."""
    return list(tuning.parsed(results.attrs.get("tuned", "[]")).values())


def read_run(folder: Path, config: RunConfig) -> RunResult:
    """One run's folder. A damaged run counts as failed: it has no result that can be trusted."""
    if (folder / CHECKPOINT).exists():
        try:
            return _read_done(folder, config)
        except (BadCheckpoint, BadData) as error:
            return RunResult(Status.FAILED, str(error).replace(str(folder), folder.name))
    if (folder / FAILURE).exists():
        return RunResult(Status.FAILED, (folder / FAILURE).read_text(encoding="utf-8", errors="replace").strip())
    return RunResult(Status.MISSING)


def write(dataset: xr.Dataset, out: Path) -> Path:
    """Replace `results.zarr` in `out`: written whole beside its place, then renamed; gives its path."""
    place = Path(out) / FILE
    # Format 2: format 3 has no stable encoding of strings yet, and warns
    atomic.write_folder(place, lambda fresh: dataset.to_zarr(fresh, mode="w", zarr_format=2))
    return place


def read(out: Path) -> xr.Dataset:
    """The dataset that `write` left in `out`, in memory; raises BadData where there is none."""
    place = Path(out) / FILE
    if not place.is_dir():
        raise BadData(f"{place}: no such results; run the study first")
    with xr.open_zarr(place) as dataset:
        return dataset.load()


def cells(results: xr.Dataset) -> list[Cell]:
    """The study's cells, in the order of its axes."""
    order = ("task", "fraction", "budget", "variant", "model", "init", "pretrain")
    points = product(*(results[axis].values.tolist() for axis in order))
    every = [Cell(**dict(zip(order, point, strict=True))) for point in points]
    return [cell for cell in every if is_cell(results, cell)]


def is_cell(results: xr.Dataset, cell: Cell) -> bool:
    """Whether the study has this cell."""
    try:
        return bool((at(results.status, cell) != Status.NOT_A_CELL).any())
    except KeyError:  # a value that none of its axes has
        return False


def at(results: X, cell: Cell) -> X:
    """All seeds of one cell, of all variables or, sooner, of one: dims seed, example."""
    return results.sel(asdict(cell))


def phases(cell: Cell) -> list[str]:
    """Those that its runs have."""
    return [phase for phase in PHASES if phase != "pretrain" or cell.pretrain != NONE]


def mean(results: xr.Dataset, cell: Cell, name: str) -> float:
    """Of a number of `NUMBERS`, over the seeds that have it; NaN where none does."""
    return float(at(results[name], cell).mean())


def table(results: xr.Dataset) -> pd.DataFrame:
    """One row a run, cell by cell: axes, seed, metric, status in words, reason, fingerprint, `NUMBERS` (NaN = none)."""
    names = ["status", "reason", "fingerprint", *NUMBERS]
    rows = []
    for cell in cells(results):
        runs, measure = at(results, cell), metric(results, cell.task)
        for index, seed in enumerate(runs.seed.values.tolist()):
            row = asdict(cell) | {"seed": seed, "metric": measure.name, "unit": measure.unit}
            rows.append(row | {name: runs[name].values[index] for name in names})
    frame = pd.DataFrame(rows)
    words = [Status(code).word for code in frame.status]
    return frame.assign(status=words).astype(dict.fromkeys(WHOLE, "Int64"))


def curves(results: xr.Dataset, out: Path) -> pd.DataFrame:
    """Learning curves of every run that has begun: axes, seed, and the columns of `metrics.csv`.

    What the last column is called depends on the metric; here it is `validation_metric`. Values that are not finite are
    missing (NaN), as are those a step does not have. Raises BadData for a damaged file.
    """
    frames = []
    for run in table(results).itertuples():
        path = Path(out) / "runs" / run.fingerprint / "metrics.csv"
        if path.is_file() and path.stat().st_size:
            axes = {name: getattr(run, name) for name in (*AXES, "seed")}
            frame = _read_metrics(path, metric(results, run.task))
            frames.append(frame.replace([math.inf, -math.inf], math.nan).assign(**axes))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _read_metrics(path: Path, measure: Metric) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (ValueError, pd.errors.ParserError) as error:
        raise BadData(f"{path} is damaged; move it away to report without its curve: {error}") from error
    if tuple(frame.columns) != columns(measure):
        raise BadData(f"{path} is damaged: its columns are not those that training writes; move it away")
    return frame.rename(columns={frame.columns[-1]: "validation_metric"})


def _read_done(folder: Path, config: RunConfig) -> RunResult:
    checkpoint, prediction, target = read_finished(folder, config)  # one run's weights at a time, dropped on return
    record, measure = checkpoint.record, metric_of(checkpoint.spec)
    score = measure.score(prediction, target)
    metrics, cost = record.get("metrics", {}), record.get("cost", {})
    numbers = {
        "test_metric": measure.value(score),
        "validation_metric": metrics.get(f"validation_{measure.name}"),
        "best_step": record.get("step"),
        "parameters": cost.get("parameters"),
        **{f"{phase}_{name}": cost.get(name, {}).get(phase) for phase in PHASES for name in COSTS},
        **{name: cost.get(f"{name}_bytes") for name in ("process_peak_memory", "device_peak_memory")},
    }
    known = {name: float(value) for name, value in numbers.items() if value is not None}
    return RunResult(Status.DONE, "", known, score, target, checkpoint.spec, record.get("provenance", {}))


def _common_target(task: str, results: dict[tuple[Cell, int], RunResult]) -> np.ndarray:
    """The targets that all runs of a task were held against; empty if no run is done."""
    done = [run for (cell, _), run in results.items() if cell.task == task and run.status == Status.DONE]
    if any(not np.array_equal(run.target, done[0].target) for run in done):
        raise BadData(f"task '{task}': its runs were tested on different examples; run the study in a new folder")
    return done[0].target if done else np.empty(0, dtype=np.int64)


def _spec(task: str, runs: list[tuple[Cell, int, RunConfig]], results: dict[tuple[Cell, int], RunResult]) -> TaskSpec:
    """As the task's runs recorded it, or where none is done, as the task itself says."""
    own = [(cell, seed, config.task) for cell, seed, config in runs if cell.task == task]
    recorded = (results[cell, seed].spec for cell, seed, _ in own)
    return next((spec for spec in recorded if spec), None) or TASKS[task].spec(own[0][2].options)


def _chance(measure: Metric, target: np.ndarray) -> float:
    return measure.value(measure.guess(target)) if len(target) else math.nan


def _empty(coordinates: dict[str, list], examples: int) -> xr.Dataset:
    """Every variable over the dense grid, with nothing in it."""
    dims, shape = list(coordinates), [len(values) for values in coordinates.values()]
    status = {
        "long_name": "what became of the run",
        "flag_values": [int(status) for status in Status],
        "flag_meanings": " ".join(status.name.lower() for status in Status),
    }
    score = {"long_name": "1 right, 0 wrong, or the squared error; NaN: no such run or example"}
    variables: dict[str, Any] = {
        name: (dims, np.full(shape, np.nan), {"long_name": meaning} | ({"units": units} if units else {}))
        for name, (units, meaning) in NUMBERS.items()
    }
    variables["status"] = (dims, np.full(shape, Status.NOT_A_CELL, dtype=np.int8), status)
    variables["reason"] = (dims, np.full(shape, "", dtype=object), {"long_name": "why the run failed"})
    variables["fingerprint"] = (dims, np.full(shape, "", dtype=object), {"long_name": "name of the run's folder"})
    variables["score"] = ([*dims, "example"], np.full([*shape, examples], np.nan), score)
    return xr.Dataset(variables, coordinates)


def _fill(dataset: xr.Dataset, place: tuple[int, ...], run: RunResult, fingerprint: str) -> None:
    """Write a run into the arrays themselves: xarray's own assignment takes 1 ms a number."""
    found = {"status": run.status, "reason": run.reason, "fingerprint": fingerprint, **run.numbers}
    for name, value in found.items():
        dataset[name].values[place] = value
    dataset["score"].values[place][: len(run.score)] = run.score


def _provenance(results: dict[tuple[Cell, int], RunResult]) -> dict[str, list[dict[str, Any]]]:
    """Task -> the distinct origins of its runs."""
    distinct: dict[str, list[dict[str, Any]]] = {}
    for (cell, _), run in results.items():
        known = distinct.setdefault(cell.task, [])
        if run.provenance and run.provenance not in known:
            known.append(run.provenance)
    return distinct
