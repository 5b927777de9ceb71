from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # so that a test finds `strategies`, `builders` and `golden`

torch.set_num_threads(1)
settings.register_profile("suite", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The full golden arrays of public implementations, which lie beside a checkout and in no clone."""
    folder = HERE.parent.parent / "shared" / "golden"
    if not folder.is_dir():
        pytest.skip(f"the full golden arrays are not here ({folder}); the part in tests/data is tested anyway")
    return folder
