from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent
COLLECTED = pytest.StashKey[set[str]]()
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember what was collected, before -k and -m take anything away."""
    config.stash[COLLECTED] = {item.nodeid.partition("[")[0] for item in items}


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> set[str]:
    """Every test that was collected, without parameters; only where the whole suite was asked for."""
    if not any(Path(argument).resolve() in (HERE, HERE.parent) for argument in request.config.args):
        pytest.skip("only a part of the suite was collected")
    return request.config.stash[COLLECTED]
