from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def frugal():
    """What the test reads takes no gigabyte; the unit of macOS is a byte, everywhere else it is 1024."""
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 2**29


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "model.ckpt"
