"""What every prepared task is put through: the command in a process of its own, and two steps of training."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from ssm_priors.cli.app import app

TINY_STUDY = """
title = "A tiny study"
question = "Does it run?"
tasks = ["digits"]
inits = ["random"]
fractions = [0.1]
[changes.model]
d_model = 8
layers = 1
[changes.model.mixer]
d_state = 4
[changes.finetune]
epochs = 1
"""
"""Two runs of a second each, as a file of a study."""

SMALL = ["--set", "model.d_model=8", "--set", "model.layers=1", "--set", "model.mixer.d_state=8", "--fraction", "1"]


def in_a_process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`ssmp` with these arguments; no traceback, whatever becomes of it."""
    command = [sys.executable, "-m", "ssm_priors.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def ssmp(*arguments: str | Path) -> Result:
    """The same in this process, which is faster."""
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    signal.signal(signal.SIGTERM, before)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def prepared(*arguments: str | Path) -> dict[str, Any]:
    """What `ssmp data prepare` says of the data that it has made, in a process of its own."""
    done = in_a_process("data", "prepare", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(*arguments: str | Path) -> str:
    """What `ssmp data prepare` says where it refuses."""
    said = ssmp("data", "prepare", *arguments)
    assert said.exit_code == 2, said.stdout
    assert said.stdout == ""
    return said.stderr


def trains(folder: Path, task: str, examples: int, *arguments: str) -> None:
    """Two steps from scratch, and two after two of masked pretraining; the run says which task it was."""
    for pretrain in ("none", "masked"):
        phases = ["finetune"] if pretrain == "none" else ["finetune", "pretrain"]
        steps = [("epochs", 1), ("batch_size", (examples + 1) // 2)]
        sizes = [part for phase in phases for key, value in steps for part in ("--set", f"{phase}.{key}={value}")]
        out = folder / pretrain
        said = ssmp("train", "--task", task, "--pretrain", pretrain, *SMALL, *sizes, *arguments, "--out", out)
        assert said.exit_code == 0, said.stderr
        assert tomllib.loads((out / "run.toml").read_text())["task"]["name"] == task
