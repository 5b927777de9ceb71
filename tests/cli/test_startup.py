"""`ssmp --help` answers at once: it imports nothing heavy. Every command explains itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "xarray", "altair", "pandas", "numpy", "scipy", "lightning_fabric")
INSPECT = ("inspect-kernels", "inspect-attention", "compare-priors")
COMMANDS = ("ablate", "train", "evaluate", *INSPECT, "report", "bench", "list", "data")
ALL = (*COMMANDS, "data list", "data prepare", "data verify")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([*name.split(), "--help"] for name in ALL)])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom ssm_priors.cli.app import app\n"
        f"try:\n    app({arguments!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in ran.stdout


def test_every_command_is_listed_with_a_sentence():
    ran = subprocess.run([sys.executable, "-m", "ssm_priors.cli", "--help"], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        line = next(line for line in ran.stdout.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 3


def test_no_arguments_show_the_help():
    ran = subprocess.run([sys.executable, "-m", "ssm_priors.cli"], capture_output=True, text=True)
    assert "ablate" in ran.stdout + ran.stderr
