"""The Triton kernels' numerics in the interpreter, chosen when they are imported: so in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install 'ssm-priors[triton]'")
def test_in_the_interpreter_they_compute_what_their_definitions_do():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / "test_numerics.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) > 30
    assert "skipped" not in ran.stdout


def test_nothing_imports_triton_that_does_not_launch_its_kernels():
    code = "import sys, ssm_priors.ops.dispatch, ssm_priors.models.statespace; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[2], check=True)
