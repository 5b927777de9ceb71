"""Weights & Biases: offline in the run's folder under `wandb/`, unless WANDB_MODE says otherwise.

Nothing leaves the machine unless it is asked for: `wandb sync` sends an offline run, WANDB_MODE=online one at work. The
run is called by its fingerprint, so that what is sent later is the same run. Offline, an interrupted run is written
anew from its first row; online, rows that are there already are not sent again.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssm_priors.config import RunConfig
from ssm_priors.errors import NotReady
from ssm_priors.registry import LOGGERS
from ssm_priors.training.loggers.logger import Row, numbers

FOLDER, PROJECT = "wandb", "ssm-priors"
PATIENCE = {"init_timeout": 30.0, "finish_timeout": 60.0, "finish_timeout_raises": True}
"""Seconds: a network that does not answer must not hold a run up."""
DISCREET = {"console": "off", "silent": True, "save_code": False, "disable_git": True, "symlink": False}


@LOGGERS.register("wandb")
class WeightsAndBiases:
    """Weights & Biases, offline unless WANDB_MODE says otherwise; needs the extra [wandb]."""

    def __init__(self, folder: Path, config: RunConfig):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        is_online = mode == "online"
        if is_online and not wandb.login(prompt=False, verify=False):
            raise NotReady("WANDB_MODE is online, but nobody is logged in: wandb login, or unset WANDB_MODE")
        if not is_online:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
        self._run: Any = wandb.init(
            dir=str(folder),
            id=config.fingerprint,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            config=config.to_dict(),
            mode=mode,
            resume="allow" if is_online else None,
            settings=wandb.Settings(**PATIENCE, **DISCREET),
        )
        self._first = self._run.step if is_online else 0

    @staticmethod
    def refuse_missing() -> None:
        """Raise NotReady if wandb is not installed."""
        if find_spec("wandb") is None:
            raise NotReady("--logger wandb needs wandb, which is not installed: pip install 'ssm-priors[wandb]'")

    def row(self, number: int, values: Row) -> None:
        """A point on each curve, at the number of the step over all phases."""
        if number >= self._first:
            self._run.log(numbers(values) | {f"{values['phase']}/step": int(values["step"])}, step=number)

    def close(self) -> None:
        """Write what is left, and send it where the run is online."""
        self._run.finish()
