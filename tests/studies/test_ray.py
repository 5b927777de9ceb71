"""A study by Ray whose worker is killed ends with the results of a local one that is left alone, bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import xarray as xr
from runners import OneByOne, at_work, train, wait_for

from ssm_priors.registry import ENGINES
from ssm_priors.studies import results
from ssm_priors.studies.engines.engine import Workers
from ssm_priors.studies.grid import Study
from ssm_priors.studies.remote import Courier, sitting
from ssm_priors.studies.runner import Event, execute, plan

pytestmark = pytest.mark.xdist_group("engines")
SMALL = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}}
GRID = {"tasks": ["digits"], "fractions": [0.1], "inits": ["random"], "pretrains": ["masked"], "baseline": False}
CHANGES = SMALL | {"finetune": {"epochs": 30}, "pretrain": {"epochs": 2}}
STUDY = Study.from_dict(GRID | {"seeds": 2, "changes": CHANGES})
SPENT = ["finetune_seconds", "pretrain_seconds", "process_peak_memory", "device_peak_memory"]


def written(out: Path) -> xr.Dataset:
    """What stands in `results.zarr`, without what differs between two runs of the same."""
    results.write(results.collect(STUDY, out), out)
    found = results.read(out).drop_vars(SPENT)
    del found.attrs["provenance"]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> xr.Dataset:
    out = tmp_path_factory.mktemp("alone")
    assert [event.kind for event in execute(STUDY, out, OneByOne(train))] == ["finished"] * 2
    return written(out)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[Path]:
    """The folder of Ray's workers, which are there for all tests, because starting them takes longer than these do."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSMP_SCRATCH_DIR", str(folder))
        engine = ENGINES["ray"](Workers(count=2, device="cpu"))
    with closing(engine):
        yield folder


def kill_one(events, folders: Path) -> list[Event]:
    """Follow a study, and once a run has begun, kill the worker of the first that has saved a state below `folders`."""
    seen, victim = [], None
    for event in events:
        seen.append(event)
        if victim is None and event.kind == "started":
            wait_for(lambda: list(folders.glob("**/state.pt")))
            victim = at_work(next(folders.glob("**/state.pt")).parent)
            os.kill(victim, signal.SIGKILL)
    return seen


@pytest.mark.parametrize("shares_a_disk", [True, False])
def test_a_killed_ray_worker_changes_no_result(alone, nodes, shares_a_disk, tmp_path, monkeypatch):
    url = "" if shares_a_disk else f"file://{tmp_path}/store"
    engine = ENGINES["ray"](Workers(count=2, device="cpu", save_every=0.0, store=url))
    if shares_a_disk:
        out = tmp_path / "out"
        events = kill_one(execute(STUDY, out, engine), out)
    else:
        monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / "runner"))
        with sitting(url, print) as depot:
            depot.begin(STUDY)
            out = depot.folder
            events = kill_one(execute(STUDY, out, Courier(engine, depot)), nodes)
            assert depot.deliver() == ""
    kinds = [event.kind for event in events]
    assert (kinds.count("again"), kinds.count("finished"), kinds.count("failed")) == (1, 2, 0)
    assert all(run.is_done for run in plan(STUDY, out))
    found = written(out)
    xr.testing.assert_identical(found, alone)
    numbers = [name for name in found if found[name].dtype.kind in "iuf"]
    assert "score" in numbers
    for name in numbers:
        assert found[name].values.tobytes() == alone[name].values.tobytes(), name
