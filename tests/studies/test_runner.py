"""What a study does with runs that end badly, and with other runners: told, remembered, and free to be tried again."""

from __future__ import annotations

import errno

import pytest
from runners import OneByOne, die, fail, fill_the_disk, train

from ssm_priors.errors import RunFailed
from ssm_priors.studies import ledger
from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import Ledger, State
from ssm_priors.studies.runner import FAILURE, SECOND_TRIES, execute, plan
from ssm_priors.training.run import run

TINY = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}, "finetune": {"epochs": 1}}


@pytest.fixture
def study():
    return Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "changes": TINY})


def kinds(study, out, do):
    return [event.kind for event in execute(study, out, OneByOne(do))]


def test_a_run_whose_worker_dies_is_begun_again_and_then_fails_and_can_be_tried_later(study, tmp_path):
    [planned] = plan(study, tmp_path)
    assert kinds(study, tmp_path, die) == ["again"] * SECOND_TRIES + ["failed"]
    assert "SIGKILL" in (planned.folder / FAILURE).read_text()
    assert ledger.read(tmp_path)[planned.name].error == "the worker process was ended by SIGKILL"
    assert kinds(study, tmp_path, train) == ["finished"]
    assert planned.is_done
    assert not (planned.folder / FAILURE).exists()
    assert ledger.read(tmp_path)[planned.name].state == State.DONE


def test_a_run_whose_worker_dies_once_ends_well(study, tmp_path):
    ways = [die, train]
    assert kinds(study, tmp_path, lambda job: ways.pop(0)(job)) == ["again", "finished"]


@pytest.mark.parametrize("harm", [lambda file: file.write_bytes(b"damaged"), lambda file: file.unlink()])
def test_a_finished_run_is_kept_and_a_damaged_one_is_set_aside_and_run_again(study, tmp_path, harm):
    [planned] = plan(study, tmp_path)
    kinds(study, tmp_path, train)
    was = (planned.folder / "test.npz").read_bytes()
    assert kinds(study, tmp_path, fail) == ["kept"]
    harm(planned.folder / "test.npz")
    note, end = execute(study, tmp_path, OneByOne(train))
    assert (note.kind, end.kind) == ("note", "finished")
    assert "set aside as" in note.reason
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {planned.name, f"{planned.name}.damaged-1"}
    assert (planned.folder / "test.npz").read_bytes() == was
    harm(planned.folder / "test.npz")
    assert kinds(study, tmp_path, train) == ["note", "finished"]
    assert (tmp_path / "runs" / f"{planned.name}.damaged-2" / "ckpt.pt").exists()


def test_a_damaged_saved_state_is_set_aside_and_the_run_begun_again(study, tmp_path):
    [planned] = plan(study, tmp_path)
    kinds(study, tmp_path, fail)
    (planned.folder / "state.pt").write_bytes(b"torn")
    assert kinds(study, tmp_path, train) == ["note", "finished"]
    assert (tmp_path / "runs" / f"{planned.name}.damaged-1" / "state.pt").read_bytes() == b"torn"


def test_a_finished_run_that_was_taken_away_is_done_again(study, tmp_path):
    [planned] = plan(study, tmp_path)
    kinds(study, tmp_path, train)
    (planned.folder / "ckpt.pt").unlink()
    assert kinds(study, tmp_path, train) == ["finished"]


def test_a_full_disk_ends_the_study_with_one_error_and_gives_its_claims_back(study, tmp_path):
    with pytest.raises(RunFailed, match="No space left on device"):
        kinds(study, tmp_path, fill_the_disk)
    [entry] = ledger.read(tmp_path).values()
    assert entry.state == State.PLANNED


def test_a_run_that_fails_for_want_of_room_is_not_the_runs_fault(study, tmp_path, monkeypatch):
    def full(*_, **__):
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError:
            raise RuntimeError("what torch says then")  # noqa: B904 (as torch does)

    monkeypatch.setattr("ssm_priors.atomic.write", full)
    [planned] = plan(study, tmp_path)
    assert train(planned).kind == "no room"


def test_what_another_runner_does_is_waited_for_and_told(study, tmp_path):
    study = Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "seeds": 3, "changes": TINY})
    first, second, third = plan(study, tmp_path)
    engine = OneByOne(train)
    events = execute(study, tmp_path, engine)
    other = None
    seen = []

    def meanwhile(job):
        """While the first run is at work, another runner claims the others and ends them."""
        nonlocal other
        if other is None:
            other = Ledger(tmp_path)
            entries = other.entries()
            assert all(other.claim(entries[run.name]) for run in (second, third))
            run(second.config, second.folder, device="cpu")
            other.settle(second.name, State.DONE)
            other.settle(third.name, State.FAILED, "too hot")
        return train(job)

    engine.do = meanwhile
    seen = [(event.kind, event.run.seed, event.reason) for event in events]
    assert engine.begun == [first.name]
    assert sorted(seen) == [("elsewhere", 1, ""), ("failed", 2, "too hot"), ("finished", 0, "")]


def test_a_study_that_is_left_in_the_middle_gives_its_claims_back(tmp_path):
    study = Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "seeds": 2, "changes": TINY})
    events = execute(study, tmp_path, OneByOne(fail))
    next(events)
    events.close()
    assert sorted(entry.state for entry in ledger.read(tmp_path).values()) == [State.FAILED, State.PLANNED]


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(b"no database" * 1000)])
def test_a_ledger_that_is_missing_or_damaged_is_made_again_from_the_run_folders(tmp_path, harm):
    study = Study.from_dict({"tasks": ["digits"], "fractions": [0.1], "seeds": 2, "changes": TINY})
    ways = [train, fail]
    kinds(study, tmp_path, lambda job: ways.pop(0)(job))
    before = {name: entry.state for name, entry in ledger.read(tmp_path).items()}
    harm(tmp_path / ledger.FILE)
    assert kinds(study, tmp_path, fail) == ["note", "kept", "failed"]
    assert {name: entry.state for name, entry in ledger.read(tmp_path).items()} == before
    assert kinds(study, tmp_path, fail) == ["kept", "failed"]


def test_a_run_that_a_process_is_still_at_is_not_begun(study, tmp_path):
    from ssm_priors.folder import held

    [planned] = plan(study, tmp_path)
    kinds(study, tmp_path, fail)
    engine = OneByOne(train)
    with held(planned.folder):
        events = execute(study, tmp_path, engine)
        looks = iter(range(3))
        engine.wait = lambda seconds: [] if next(looks, None) is not None else events.close()
        with pytest.raises(ValueError, match="already executing"):
            next(events)
    assert engine.begun == []


def test_a_run_that_two_cells_share_is_done_and_kept_once(tmp_path):
    variants = {name: {"pretrain": {"epochs": epochs}} for name, epochs in (("short", 1), ("long", 2))}
    study = Study.from_dict(
        {"tasks": ["digits"], "fractions": [0.1], "pretrains": ["masked"], "variants": variants, "changes": TINY}
    )
    names = [run.name for run in plan(study, tmp_path)]
    assert (len(study.runs()), len(names), len(set(names))) == (4, 3, 3)
    assert kinds(study, tmp_path, train) == ["finished"] * 3
    assert kinds(study, tmp_path, fail) == ["kept"] * 3
