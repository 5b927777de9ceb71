"""`ssmp train`: one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from ssm_priors import presets
from ssm_priors.cli.data import make_ready
from ssm_priors.cli.evaluate import describe
from ssm_priors.cli.output import Output
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig
from ssm_priors.training.loggers.logger import refuse_missing
from ssm_priors.training.loop import StepReport
from ssm_priors.training.provenance import kernels
from ssm_priors.training.run import CHECKPOINT, pick_device, read_finished, run
from ssm_priors.training.stages import preflight
from ssm_priors.training.team import refuse_devices


def compose(
    path: Path | None, *, model: str, init: str | None, pretrain: str, task: str, preset: str, changes: dict[str, Any]
) -> RunConfig:
    """The configuration that a file or the options describe.

    Raises:
        BadConfig: the file is missing or not valid; a combination that cannot work.
        UnknownName: a name that does not exist.
    """
    if path is None:
        presets.refuse_idle(changes, [pretrain])
        raw = presets.compose(preset, model=model, task=task, pretrain=pretrain, init=init, changes=changes)
        return RunConfig.from_dict(raw)
    return RunConfig.read(path)


def train(
    config: RunConfig,
    *,
    out: Path | None,
    device: str,
    devices: int,
    threads: int,
    save_every: float,
    malloc_tuning: bool,
    loggers: tuple[str, ...],
    output: Output,
) -> int:
    """Train and test; prints the metric with its interval and where the files are.

    Raises:
        SsmPriorsError: wrong use, found before any training; or the run broke down.
    """
    if not config.test:
        raise BadConfig("test = false makes a run a trial of a study with a table tune; remove it to train and test")
    refuse_devices(config, devices, pick_device(device).type)
    refuse_missing(loggers)
    make_ready([config.task], output)
    preflight(config)
    folder = out or Path("ssmp-runs") / f"train-{config.fingerprint}"
    done = (folder / CHECKPOINT).exists()
    output.note(f"{folder}: {'finished before, kept' if done else config.model.mixer.name + ' on ' + config.task.name}")
    output.note(f"kernels: {kernels(pick_device(device))}")
    with Watch(output) as watch:
        checkpoint = run(
            config,
            folder,
            device=device,
            devices=devices,
            threads=threads,
            save_every=save_every,
            malloc_tuning=malloc_tuning,
            loggers=loggers,
            watch=watch,
        )
    score = describe(checkpoint, *read_finished(folder)[1:])
    output.json(score | {"folder": str(folder), "record": checkpoint.record})
    output.text(score["text"])
    output.wrote({"checkpoint": folder / CHECKPOINT, "metrics": folder / "metrics.csv"})
    return 0


class Watch:
    """Shows a run's steps: one moving line at a terminal, a line an epoch elsewhere."""

    def __init__(self, output: Output):
        self.output = output
        self.live = Live(console=output.notes, refresh_per_second=4, transient=True) if output.is_live else None
        self.started = time.monotonic()

    def __enter__(self) -> Watch:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, report: StepReport) -> None:
        """Take one step's report."""
        if not (self.live or report.ends_epoch):
            return
        metric = "" if report.metric is None else f", {report.measure.title} {report.measure.full(report.metric)}"
        elapsed = time.monotonic() - self.started
        line = (
            f"{report.phase} epoch {report.epoch + 1}/{report.epochs}, step {report.step}/{report.steps}, "
            f"loss {report.loss:.3f}{metric}, {elapsed:.0f} s"
        )
        if self.live:
            self.live.update(Text(line))
        if report.ends_epoch:
            self.output.note(line)
