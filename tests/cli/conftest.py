"""The command line as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FROM_SCRATCH = [
    *("--task", "digits", "--set", "model.d_model=8", "--set", "model.layers=1", "--set", "model.mixer.d_state=4"),
    *("--set", "finetune.epochs=2"),
]
"""Seconds of training, through every part of a run."""
TINY = [*FROM_SCRATCH, "--set", "pretrain.epochs=1"]
"""The same where something is pretrained."""

Command = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def ssmp() -> Command:
    """Run `ssmp ARGUMENTS`, in a folder, on a pipe 80 columns wide."""

    def run(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "ssm_priors.cli", *map(str, arguments)],
            cwd=cwd,
            capture_output=True,
            text=True,
            env=os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"} | environment,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def study(ssmp, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """The 2 x 2 on a tiny configuration: its folder, and what the command said."""
    folder = tmp_path_factory.mktemp("study") / "out"
    said = ssmp("ablate", "--init", "random", "--pretrain", "masked", *TINY, "--out", folder)
    assert said.returncode == 0, said.stderr
    return folder, said
