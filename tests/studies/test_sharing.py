"""Real processes at one study folder share the work, survive kills, and end with the results of one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import xarray as xr
from runners import runner, told, wait_for

from ssm_priors.studies import ledger, results
from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import State
from ssm_priors.studies.runner import plan
from ssm_priors.training.run import run

TINY = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}}
SPENT = ["finetune_seconds", "pretrain_seconds", "process_peak_memory", "device_peak_memory"]
"""What differs between two runs of the same: how long they took, and in what process."""
pytestmark = pytest.mark.xdist_group("sharing")


def study_of(seeds: int, epochs: int, **axes) -> Study:
    changes = TINY | {"finetune": {"epochs": epochs}}
    return Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "seeds": seeds, "changes": changes, **axes})


def undisturbed(study: Study, out: Path) -> xr.Dataset:
    for one in plan(study, out):
        run(one.config, one.folder, device="cpu")
    return found(study, out)


def found(study: Study, out: Path) -> xr.Dataset:
    return results.collect(study, out).drop_vars(SPENT).drop_attrs()


def test_two_runners_share_twenty_four_cells_and_do_none_twice(tmp_path):
    study = Study.from_dict(
        {"tasks": ["digits"], "models": ["s4d"], "inits": ["random", "s4d-inv"], "pretrains": ["masked"]}
        | {
            "fractions": [0.1, 0.12, 0.15, 0.2],
            "changes": TINY | {"finetune": {"epochs": 1}, "pretrain": {"epochs": 1}},
        }
    )
    assert len(study.cells()) == 24
    both = [runner(study, tmp_path / "out") for _ in range(2)]
    events = [event for process in both for event in told(process)]
    names = {one.name for one in plan(study, tmp_path / "out")}
    ended = Counter((kind, name) for kind, name, _ in events)
    assert {name: ended["started", name] for name in names} == dict.fromkeys(names, 1)
    assert {name: ended["finished", name] for name in names} == dict.fromkeys(names, 1)
    assert all(ended["elsewhere", name] + ended["kept", name] == 1 for name in names), "each saw the other's"
    assert {entry.state for entry in ledger.read(tmp_path / "out").values()} == {State.DONE}
    assert len({entry.pid for entry in ledger.read(tmp_path / "out").values()}) == 2, "both had a part in it"
    xr.testing.assert_identical(found(study, tmp_path / "out"), undisturbed(study, tmp_path / "alone"))


def test_a_runner_that_is_killed_is_followed_by_one_that_ends_with_the_same_results(tmp_path):
    study, out = study_of(3, 12), tmp_path / "out"
    killed = runner(study, out, workers=2)
    wait_for(lambda: list(out.glob("runs/*/state.pt")))
    killed.send_signal(signal.SIGKILL)
    begun = [entry for entry in ledger.read(out).values() if entry.state == State.RUNNING]
    assert begun
    events = told(runner(study, out, workers=2))
    assert not any(kind in ("failed", "error") for kind, *_ in events), events
    killed.communicate()
    xr.testing.assert_identical(found(study, out), undisturbed(study, tmp_path / "alone"))


def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path):
    study, out = study_of(2, 12), tmp_path / "out"
    process = runner(study, out, workers=2)
    wait_for(lambda: list(out.glob("runs/*/state.pt")))
    os.kill(_children(process.pid)[0], signal.SIGKILL)
    events = told(process)
    assert [kind for kind, *_ in events].count("again") == 1
    assert sorted(kind for kind, *_ in events if kind in ("finished", "failed")) == ["finished"] * 2
    xr.testing.assert_identical(found(study, out), undisturbed(study, tmp_path / "alone"))


def _children(pid: int) -> list[int]:
    """Workers of a runner: its children that do train, not the one that keeps resources in order."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


@contextmanager
def mounted(place: Path, *arguments: str):
    place.mkdir(exist_ok=True)
    made = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_clear_error_and_what_was_finished_is_kept(tmp_path):
    study, disk = study_of(6, 2), tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=180k", "tmpfs"):
        out = disk / "out"
        *events, error = told(runner(study, out))
        assert error[0] == "error"
        assert "No space left on device" in error[2]
        assert "make room" in error[2]
        done = [name for kind, name, _ in events if kind == "finished"]
        assert 0 < len(done) < 6
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        after = told(runner(study, out))
        assert {name for kind, name, _ in after if kind == "kept"} == set(done)
        assert not any(kind in ("failed", "error") for kind, *_ in after)
        xr.testing.assert_identical(found(study, out), undisturbed(study, tmp_path / "alone"))


def test_a_read_only_folder_is_one_clear_error_and_can_still_be_asked_where_it_stands(tmp_path):
    study, place = study_of(1, 1), tmp_path / "place"
    out = place / "out"
    [*_, end] = told(runner(study, out))
    with mounted(place, "--bind", str(place)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        [error] = told(runner(study, out))
        assert error[0] == "error"
        assert error[2] == f"{out} cannot be written: Read-only file system"
        assert [entry.state for entry in ledger.read(out).values()] == [State.DONE]
    assert end[0] == "finished"
