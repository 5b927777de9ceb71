"""Checkpoints without training: a model whose parameters were moved, with its configuration."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
import torch

from ssm_priors.checkpoints.checkpoint import Checkpoint


def make_checkpoint(mixer: str = "s4d", **model: Any) -> Checkpoint:
    config = builders.config(mixer, model=model)
    moved = builders.model(mixer, **model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    tensors = {name: tensor.clone() for name, tensor in moved.state_dict().items()}
    return Checkpoint(config=config, spec=builders.CONTINUOUS, phase="finetune", tensors=tensors, record={})


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    """Two layers, two directions."""
    return make_checkpoint(layers=2)


@pytest.fixture(scope="session")
def browse() -> Callable[[Path], tuple[str, list[str]]]:
    """Open a page in a browser without network: the document as drawn, and what its console said."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium is installed, so that no page can be opened")

    def opened(page: Path) -> tuple[str, list[str]]:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
        ]
        flags += [f"--user-data-dir={page.parent / 'profile'}", "--proxy-server=127.0.0.1:9", "--dump-dom"]
        said = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=240)
        return said.stdout, [line for line in said.stderr.splitlines() if "CONSOLE" in line]

    return opened


def strict_json(text: str) -> Any:
    """Parse JSON, refusing NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
