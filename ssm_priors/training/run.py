"""RunConfig -> Checkpoint: the two phases of self-pretraining, in the order in which they happen.

1. pretraining, if asked for: the training split's inputs only; no labels, no other split; the last weights are kept
2. the head is dropped, a fresh one put on, everything finetuned on the labels with a fresh optimiser
3. the weights with the best value of the validation metric are tested, once; those of a trial never are

Source: Amos, Berant, Gupta 2023, arXiv 2310.02980, section 2.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ssm_priors import atomic
from ssm_priors.checkpoints.checkpoint import FINISHED, PRETRAINED, Checkpoint, load_exactly
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.folder import claimed, refuse_foreign, remove_leftovers
from ssm_priors.metrics import metric_of
from ssm_priors.models.build import Model, parameter_count
from ssm_priors.registry import TASKS
from ssm_priors.tasks.task import Task
from ssm_priors.training.allocator import keep_freed_memory
from ssm_priors.training.compute import phase_flops
from ssm_priors.training.evaluate import Evaluation, evaluate
from ssm_priors.training.journal import Journal, Progress, Saved
from ssm_priors.training.loggers.logger import Loggers, refuse_missing
from ssm_priors.training.loop import Phase, Watch, train
from ssm_priors.training.provenance import device_peak_memory, process_peak_memory, provenance
from ssm_priors.training.stages import begun, phases_of, prepare, step_cost, trains
from ssm_priors.training.team import Team, assembled, refuse_devices

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CONFIG = "run.toml"
CHECKPOINT = FINISHED
TEST = "test.npz"


def run(
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    devices: int = 1,
    threads: int = 1,
    save_every: float = 20.0,
    malloc_tuning: bool = True,
    loggers: Sequence[str] = (),
    watch: Watch = lambda report: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Checkpoint:
    """Train and test one run, or go on with it, or just read it if it is done.

    Leaves `run.toml`, `metrics.csv`, `pretrained.pt` (after a pretraining), `test.npz` (but not of a trial) and
    `ckpt.pt` in the folder.

    Args:
        config: everything that decides the result.
        folder: made if it is not there; belongs to this configuration alone.
        device: "auto", "cpu" or "cuda".
        devices: how many of them share the batches (see `training.team`), on the CPU as processes. An interrupted run
            may go on with another number; its record names all.
        threads: CPU threads of each device's process; another number rounds differently. An interrupted run goes on
            with what it began with.
        save_every: seconds between saved states.
        malloc_tuning: whether this process keeps freed memory for its next tensors (see `training.allocator`).
        loggers: where the rows of `metrics.csv` go besides, of `registry.LOGGERS`; they decide nothing.
        watch: told after every step.
        stopping: asked after every step whether to save the state and leave.

    Raises:
        KeyboardInterrupt: `stopping` said so.
        BadConfig, BadData: the run cannot work; nothing was trained.
        RunFailed: it began and broke down.
    """
    where = pick_device(device)
    refuse_devices(config, devices, where.type)
    refuse_missing(loggers)
    if malloc_tuning:
        keep_freed_memory()
    with claimed(folder, CONFIG, config.to_toml(), lambda path: _refuse_other(path, config)):
        journal = Journal(folder, save_every, Loggers(loggers, folder, config), stopping)
        is_old = (folder / CHECKPOINT).exists()
        if not is_old:
            remove_leftovers(folder, {CHECKPOINT, PRETRAINED, TEST, journal.state.name})
            saved = journal.read()
            threads = saved.threads if saved else threads
            others = partial(_follow, config.to_dict(), folder, where.type, threads, malloc_tuning)
            with _deterministic(threads), assembled(devices, where.type, others) as team:
                _train_and_test(config, folder, where, journal, saved, watch, team)
        journal.discard_state()
        checkpoint = _read_ended(folder, config)
        if is_old:
            trained_on = checkpoint.record.get("provenance", {}).get("data_sha256")
            _refuse_other_data(folder, trained_on, TASKS[config.task.name].load(config.task.options).sha256)
        return checkpoint


def read_finished(folder: Path, config: RunConfig | None = None) -> tuple[Checkpoint, np.ndarray, np.ndarray]:
    """What a finished run left, held against itself: checkpoint, prediction and target of every test example.

    Args:
        folder: of the run.
        config: the configuration it must have been trained with; None takes the checkpoint's word.

    Raises:
        BadCheckpoint, BadData: damaged, or not of this run, or a trial.
    """
    checkpoint = _read_own(folder, config)
    if not checkpoint.config.test:
        raise BadData(f"{folder} holds a trial, which was never tested: its configuration has test = false")
    prediction, target = _read_test(folder / TEST)
    metric = metric_of(checkpoint.spec)
    if target.ndim != (1 if checkpoint.spec.answer == "class" else 2):
        raise BadData(f"{folder / TEST}: targets of shape {target.shape} do not answer for {checkpoint.spec.answer}")
    recorded = checkpoint.record.get("metrics", {}).get(f"test_{metric.name}")
    found = metric.value(metric.score(prediction, target))
    if not isinstance(recorded, float) or not math.isclose(found, recorded, abs_tol=1e-9):
        raise BadData(f"{folder}: {CHECKPOINT} and {TEST} disagree about the test {metric.title}")
    return checkpoint, prediction, target


def read_trial(folder: Path, config: RunConfig) -> Checkpoint:
    """What a trial left, whose record has the validation metric and nothing of the test split.

    Raises:
        BadCheckpoint, BadData: damaged, or not of this run, or tested.
    """
    checkpoint = _read_own(folder, config)
    if checkpoint.config.test or (folder / TEST).exists():
        raise BadData(f"{folder} was tested; a trial was expected, which never is")
    value = checkpoint.record.get("metrics", {}).get(f"validation_{metric_of(checkpoint.spec).name}")
    if not isinstance(value, float) or not math.isfinite(value):
        raise BadData(f"{folder / CHECKPOINT} has no validation {metric_of(checkpoint.spec).title}")
    return checkpoint


def _read_own(folder: Path, config: RunConfig | None) -> Checkpoint:
    checkpoint = Checkpoint.read(folder / CHECKPOINT)
    if config is not None and checkpoint.config != config:
        raise BadData(f"{folder / CHECKPOINT} is of another run, {checkpoint.config.fingerprint}")
    return checkpoint


def _read_ended(folder: Path, config: RunConfig) -> Checkpoint:
    """As `read_finished` or `read_trial` does, whichever it is."""
    return read_finished(folder, config)[0] if config.test else read_trial(folder, config)


def examine(folder: Path, config: RunConfig) -> None:
    """Find out whether a run can be kept, or gone on with, or begun, with what lies in its folder; trains nothing.

    Raises:
        BadCheckpoint, BadConfig, BadData: damaged, or not of this run.
    """
    if (folder / CHECKPOINT).exists():
        _read_ended(folder, config)
    elif folder.exists():
        _examine_unfinished(folder, config)


def _examine_unfinished(folder: Path, config: RunConfig) -> None:
    refuse_foreign(folder, CONFIG)
    if (folder / CONFIG).exists():
        _refuse_other(folder / CONFIG, config)
    journal = Journal(folder, math.inf)
    if saved := journal.read():
        journal.refuse_short(saved.metrics_bytes)
        if config.pretrain and saved.progress.phase == "finetune":
            Checkpoint.read(folder / PRETRAINED)


def _train_and_test(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    journal: Journal,
    saved: Saved | None,
    watch: Watch,
    team: Team,
) -> None:
    task = prepare(config)
    journal.data_sha256 = task.sha256
    if saved:
        _refuse_other_data(folder, saved.data_sha256, task.sha256)
    journal.devices = _extended(saved.devices if saved else [], team.size)
    phases = phases_of(config, task)
    metric = metric_of(task.spec)
    journal.open(saved.metrics_bytes if saved else 0, metric)
    try:
        fabric = _fabric(device.type, config.precision, team.rank)
        model, weights, progress = _train_phases(config, folder, phases, fabric, journal, saved, watch, team)
    finally:
        journal.close()
    load_exactly(model, weights)
    metrics = {f"validation_{metric.name}": progress.best_metric}
    if config.test:
        metrics |= _test(model.to(device), task, config, folder, device)
    memory = {
        "process_peak_memory_bytes": process_peak_memory(),
        "device_peak_memory_bytes": device_peak_memory(device),
    }
    cost = {"parameters": parameter_count(model), **_compute(config, task, phases, progress), **memory}
    record = {"step": progress.best_step, "metrics": metrics, "cost": cost, "provenance": _origin(journal, device)}
    checkpoint = Checkpoint(config=config, spec=task.spec, phase="finetune", tensors=weights, record=record)
    checkpoint.write(folder / CHECKPOINT)  # last: this file is what says that the run is done


def _train_phases(
    config: RunConfig,
    folder: Path,
    phases: list[Phase],
    fabric: Fabric,
    journal: Journal,
    saved: Saved | None,
    watch: Watch,
    team: Team,
) -> tuple[Model, dict[str, Tensor], Progress]:
    """The last phase's model, the weights that are to be tested, and what was spent."""
    progress = saved.progress if saved else Progress(phases[0].name)
    carried: dict[str, Tensor] | None = None
    for phase in phases:
        if phase.name == "pretrain" and progress.phase == "finetune":
            carried = Checkpoint.read(folder / PRETRAINED).tensors
            continue
        if progress.phase != phase.name:
            progress, saved = progress.next(phase.name), None
        model = begun(config, phase.spec, phase.objective)
        if carried is not None:
            load_exactly(model, carried, fresh="head.")
        weights: dict[str, Tensor] = model.state_dict()
        if trains(phase):
            weights = train(phase, model, fabric, journal, progress, saved.tensors if saved else None, watch, team)
        if phase.name == "pretrain":
            carried = weights
            if team.is_first:
                record = {"step": progress.step, "provenance": _origin(journal, fabric.device)}
                made = Checkpoint(config=config, spec=phase.spec, phase="pretrain", tensors=weights, record=record)
                made.write(folder / PRETRAINED)
    return model, weights, progress


def _follow(raw: dict[str, Any], folder: Path, kind: str, threads: int, malloc_tuning: bool, team: Team) -> None:
    """What every device but the first does: the same steps, and no more."""
    if malloc_tuning:
        keep_freed_memory()
    config, journal = RunConfig.from_dict(raw), Journal(folder, math.inf)
    with _deterministic(threads):
        phases = phases_of(config, prepare(config))
        fabric = _fabric(kind, config.precision, team.rank)
        _train_phases(config, folder, phases, fabric, journal, journal.read(), lambda report: None, team)


@cache
def _fabric(kind: str, precision: Literal["32", "bf16-mixed"], rank: int) -> Fabric:
    """Device and precision; it keeps nothing of a run."""
    from lightning_fabric import Fabric  # 2 s that refusing a wrong configuration must not cost

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells what the configuration says
    return Fabric(accelerator=kind, devices=[rank] if kind == "cuda" else 1, precision=precision)


def _origin(journal: Journal, device: torch.device) -> dict[str, Any]:
    return provenance(device=device, devices=journal.devices, data_sha256=journal.data_sha256)


def _extended(before: list[int], devices: int) -> list[int]:
    """The numbers of devices that a run was trained on, one after the other."""
    return before if before[-1:] == [devices] else [*before, devices]


def _test(model: Model, task: Task, config: RunConfig, folder: Path, device: torch.device) -> dict[str, float]:
    """Answer the test split, once; leaves every prediction, gives the metrics."""
    tested = evaluate(model, task.test, config.finetune.batch_size, device, task.spec)
    _write_test(folder / TEST, tested)
    name = f"test_{metric_of(task.spec).name}"
    return {name: tested.value, "test_loss": tested.loss, "test_examples": len(task.test)}


def pick_device(name: str) -> torch.device:
    """ "cpu", "cuda", or for "auto" CUDA if it is there and does a complex FFT and float64; raises BadConfig."""
    if name not in ("auto", "cpu", "cuda"):
        raise BadConfig(f"device '{name}' was given; auto, cpu or cuda was expected")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadConfig("device 'cuda' was given, but torch sees no CUDA device here; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda") if name == "cuda" or _works("cuda") else torch.device("cpu")


def _works(device: str) -> bool:
    """Whether a device does what the models need."""
    try:
        numbers = torch.arange(12, dtype=torch.float64, device=device)
        return bool(torch.fft.irfft(torch.fft.rfft(numbers), 12).sub(numbers).abs().max() < 1e-9)
    except RuntimeError:  # what torch raises for an operation or a dtype that the device lacks
        return False


def _compute(config: RunConfig, task: Task, phases: list[Phase], progress: Progress) -> dict[str, Mapping[str, float]]:
    """What training took, by phase; FLOPs are counted on models of their own, after all training is done."""
    shapes = progress.shapes
    # a run that an older version began has not counted its first steps
    whole = [phase for phase in phases if sum(shapes.get(phase.name, {}).values()) == phase.steps and trains(phase)]
    flops = {}
    for phase in whole:
        flops[phase.name] = phase_flops(step_cost(config, task.spec, phase), shapes[phase.name])
    return {
        "flops": {name: count.training for name, count in flops.items()},
        "forward_flops": {name: count.forward for name, count in flops.items()},
        "steps": {phase.name: phase.steps if trains(phase) else 0 for phase in phases},
        "examples": progress.examples,
        "tokens": {name: progress.tokens[name] for name in flops},
        "seconds": progress.seconds,
    }


def _write_test(path: Path, tested: Evaluation) -> None:
    prediction, target = tested.predictions.numpy(), tested.targets.numpy()
    atomic.write(path, lambda file: np.savez_compressed(file, prediction=prediction, target=target))


def _read_test(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            prediction, target = arrays["prediction"], arrays["target"]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise BadData(f"{path}: no predictions can be read from it") from error
    if prediction.ndim not in (1, 2) or prediction.shape != target.shape or len(target) == 0:
        raise BadData(f"{path}: {prediction.shape} predictions for {target.shape} targets")
    return prediction, target


def _refuse_other_data(folder: Path, trained_on: str | None, found: str) -> None:
    """A run's numbers belong to the data it was trained on; raises BadData where the task's are others by now."""
    if trained_on != found:
        raise BadData(
            f"{folder} was trained on other data than the task has now (SHA-256 {str(trained_on)[:12]}, now "
            f"{found[:12]}); choose another --out, or move the folder away"
        )


def _refuse_other(path: Path, config: RunConfig) -> None:
    if RunConfig.read(path) != config:
        raise BadConfig(f"{path.parent} holds a run with another configuration; choose another folder")


@contextmanager
def _deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms and a fixed number of threads; all but the CUDA workspace is put back afterwards."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    settings = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for on CUDA
    try:
        with torch.random.fork_rng():
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(True)
            settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # all is written first
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        settings.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
