"""A study at a URL: at the store as soon as it is done, whole whatever fails, one runner at a time, nothing mixed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners import OneByOne, fail
from stores import Failing
from study_folders import write_done, write_metrics

from ssm_priors import atomic
from ssm_priors.errors import BadConfig, BadData, RunFailed
from ssm_priors.studies import tuning, turn
from ssm_priors.studies.engines.engine import Message
from ssm_priors.studies.grid import Study
from ssm_priors.studies.remote import Courier, sight, sitting
from ssm_priors.studies.report.files import write_all
from ssm_priors.studies.runner import execute, plan
from ssm_priors.studies.store import Store
from ssm_priors.training.run import examine

URL = "failing://bucket/study"
STUDY = Study.from_dict({"tasks": ["digits"], "fractions": [0.5], "seeds": 2})


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Another machine: its own folder for what lies at stores. The first is there from the beginning."""
    Failing.reset()

    def go(name: str) -> Path:
        monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path / name))
        return tmp_path / name

    go("first")
    return go


def finish(job, accuracy: float = 0.5) -> Message:
    """As a worker would, but for the training."""
    job.folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(job.folder / "run.toml", job.config.to_toml())
    write_metrics(job.folder, job.config, 4)
    write_done(job.folder, job.config, accuracy, 20)
    return Message(job.name, "finished")


def products(folder: Path, names=("report.md", "figures/a.svg")) -> None:
    write_all(folder, {name: name.encode() for name in names})
    for name in (".zgroup", ".zmetadata", "score/0"):
        (folder / "results.zarr" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "results.zarr" / name).write_text(name)


def run(study: Study = STUDY, do=finish, url: str = URL, said: list[str] | None = None) -> tuple[list[str], str]:
    """A runner's sitting; gives what happened, and what could not be brought at the end."""
    with sitting(url, (said if said is not None else []).append) as depot:
        depot.begin(study)
        kinds = [event.kind for event in execute(study, depot.folder, Courier(OneByOne(do), depot))]
        products(depot.folder)
        return kinds, depot.deliver()


def test_a_run_is_at_the_store_when_its_end_is_told(tmp_path):
    with sitting(URL, print) as depot:
        depot.begin(STUDY)
        for event in execute(STUDY, depot.folder, Courier(OneByOne(finish), depot)):
            if event.kind == "finished":
                assert "ckpt.pt" in Store(URL).runs()[event.run.name]
        assert Store(URL).read("study.toml").decode() == STUDY.to_toml()
        assert Store(URL).names() == {"study.toml", "runs", "runner.json"}
    assert Store(URL).names() == {"study.toml", "runs"}


def test_another_machine_keeps_what_is_at_the_store_and_goes_on(machine):
    assert run() == (["finished"] * 2, "")
    home = machine("second")
    more = Study.from_dict(STUDY.to_dict() | {"seeds": 3})
    assert run(more) == (["note", "kept", "kept", "finished"], "")
    assert len(Store(URL).runs()) == 3
    assert Study.from_toml(Store(URL).read("study.toml").decode()).seeds == 3
    machine("first")
    assert run(more, do=fail) == (["kept"] * 3, "")
    with sight(URL, print) as depot:
        assert depot.folder != home
        assert depot.study() == more


def test_results_and_report_replace_those_of_the_last_time():
    with sitting(URL, print) as depot:
        depot.begin(STUDY)
        products(depot.folder, ("report.md", "figures/old.svg"))
        depot.store.write("figures/mine.svg", b"somebody's")
        assert depot.deliver() == ""
        products(depot.folder, ("report.md", "figures/new.svg"))
        assert depot.deliver() == ""
        assert set(depot.store.files("figures")) == {"new.svg", "mine.svg"}
        assert set(depot.store.files("results.zarr")) == {".zgroup", ".zmetadata", "score/0"}


@given(start=st.integers(0, 90), length=st.sampled_from([1, 2, 1000]))
def test_whenever_a_store_fails_nothing_is_lost_and_the_next_time_it_is_whole(tmp_path_factory, start, length):
    Failing.reset()
    Failing.obey(lambda number: start <= number < start + length)
    done, said, fault = [], [], ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSMP_SCRATCH_DIR", str(tmp_path_factory.mktemp("machine")))
        try:
            kinds, fault = run(do=lambda job: done.append(job.name) or finish(job), said=said)
            assert kinds == ["finished"] * 2
            assert fault == "" or ("No space left on device" in fault and "the same command brings them" in fault)
        except BadConfig:
            assert not done  # or an error of the beginning came after work
        Failing.obey(lambda number: False)
        kinds, fault = run(do=finish if not done else fail)
        assert sorted(set(kinds) - {"note"}) == (["kept"] if done else ["finished"])
        assert fault == ""
        patch.setenv("SSMP_SCRATCH_DIR", str(tmp_path_factory.mktemp("another")))
        assert run(do=fail)[0] == ["note", "kept", "kept"]
    for one in plan(STUDY, tmp_path_factory.mktemp("nowhere")):
        assert {"ckpt.pt", "test.npz"} <= set(Store(URL).runs()[one.name])
    assert set(Store(URL).files("results.zarr")) == {".zgroup", ".zmetadata", "score/0"}


def test_a_store_that_is_full_is_told_at_once_and_at_the_end():
    said: list[str] = []
    with sitting(URL, said.append) as depot:
        depot.begin(STUDY)
        Failing.obey(lambda number: Failing.calls[number][0] == "put_file")
        kinds = [event.kind for event in execute(STUDY, depot.folder, Courier(OneByOne(finish), depot))]
        fault = depot.deliver()
    assert kinds == ["finished"] * 2
    assert len(said) == 2
    assert all("No space left on device; tried again at the end" in line for line in said)
    assert f"2 finished runs, results and report. They are in {depot.folder}" in fault


def test_a_store_of_something_else_is_refused_and_left_alone():
    Store(URL).write("thesis.tex", b"mine")
    with pytest.raises(BadConfig, match=r"holds thesis\.tex but no study\.toml"):
        run()
    assert Store(URL).names() == {"thesis.tex"}


def test_another_study_is_refused_and_the_first_left_as_it_was(machine):
    run()
    before = dict(Failing.store)
    for name in ("first", "second"):
        machine(name)
        with pytest.raises(BadConfig, match="failing://bucket/study holds another study: 2 of its runs"):
            run(Study.from_dict(STUDY.to_dict() | {"fractions": [0.25]}))
    assert {path: file.getvalue() for path, file in Failing.store.items()} == {
        path: file.getvalue() for path, file in before.items()
    }


def test_a_folder_left_over_from_a_study_that_was_removed_is_not_mixed_with_another():
    run()
    Failing.reset()
    with pytest.raises(BadConfig, match="or move the folder away"):
        run(Study.from_dict(STUDY.to_dict() | {"fractions": [0.25]}))
    assert run(do=fail) == (["kept"] * 2, "")
    assert len(Store(URL).runs()) == 2


def test_a_place_without_a_study_cannot_be_looked_at():
    with pytest.raises(BadData, match=r"holds no study\.toml"), sight(URL, print):
        pass


def marker(**changes) -> bytes:
    known = {
        "host": "elsewhere",
        "pid": 7,
        "identity": "another",
        "sitting": "s",
        "since": 1.0,
        "heartbeat": time.time(),
    }
    return json.dumps(known | changes).encode()


def test_a_second_runner_is_refused_with_what_to_do():
    Store(URL).write("study.toml", STUDY.to_toml().encode())
    Store(URL).write("runner.json", marker())
    with pytest.raises(
        BadConfig, match=r"process 7 on elsewhere, heard of \d+ s ago\) is at failing.*or once runner\.json"
    ):
        run()
    assert Store(URL).read("runner.json") is not None
    said: list[str] = []
    with sight(URL, said.append):
        assert "process 7 on elsewhere" in said[0]
    with pytest.raises(BadConfig, match="another runner of this machine"), sitting("failing://free", print):
        run(url="failing://free")


def test_the_turn_of_a_runner_that_is_gone_is_taken(machine):
    Store(URL).write("study.toml", STUDY.to_toml().encode())
    Store(URL).write("runner.json", marker(heartbeat=time.time() - 1000))
    assert run()[0] == ["finished"] * 2
    with sitting(URL, print):
        killed = Store(URL).read("runner.json")
    Store(URL).write("runner.json", killed)
    assert run(do=fail)[0] == ["kept"] * 2, "it was this machine's own"
    machine("second")
    Store(URL).write("runner.json", killed)
    with pytest.raises(BadConfig, match="Wait for its end"):
        run()


@pytest.mark.parametrize("text", [b"", b"[]", b'{"host": "a"}', b"\xff", marker(heartbeat="now")])
def test_a_marker_that_is_none_is_told(text):
    Store(URL).write("runner.json", text)
    with pytest.raises(BadData, match=r"runner\.json is no runner's"):
        run()


def test_a_runner_whose_turn_was_taken_ends(monkeypatch):
    monkeypatch.setattr(turn, "BEAT", 0.01)

    def taken(job):
        Store(URL).write("runner.json", marker())
        time.sleep(0.2)
        return finish(job)

    with pytest.raises(RunFailed, match=r"process 7 on elsewhere.* has taken over .*this runner ends"):
        run(do=taken)
    assert json.loads(Store(URL).read("runner.json"))["host"] == "elsewhere", "its marker stays"


def test_a_runner_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(turn, "BEAT", 0.01)
    beats = set()
    with sitting(URL, print):
        limit = time.monotonic() + 30
        while len(beats) < 3 and time.monotonic() < limit:
            beats.add(json.loads(Store(URL).read("runner.json"))["heartbeat"])
    assert len(beats) == 3


def test_of_two_finished_runs_with_different_weights_the_stores_counts(machine):
    Failing.obey(lambda number: Failing.calls[number][0] == "put_file")
    assert run(do=lambda job: finish(job, 0.4))[1]
    Failing.obey(lambda number: False)
    machine("second")
    run()
    machine("first")
    said: list[str] = []
    with sitting(URL, said.append) as depot:
        depot.begin(STUDY)
        assert len(said) == 2
        assert all("has it with other weights; those count" in line for line in said)
        for one in plan(STUDY, depot.folder):
            there = depot.store.read(f"runs/{one.name}/ckpt.pt")
            assert (one.folder / "ckpt.pt").read_bytes() == there
            assert (one.folder.with_name(f"{one.name}.damaged-1") / "ckpt.pt").read_bytes() != there
        said.clear()
        depot.begin(STUDY)
        assert said == [], "compared once"


@pytest.mark.parametrize("where", ["there", "here", "both"])
def test_a_damaged_run_is_replaced_by_the_other_or_run_again(where):
    run()
    with sight(URL, print) as depot:
        [one, _] = plan(STUDY, depot.folder)
    if where != "here":
        Store(URL).write(f"runs/{one.name}/ckpt.pt", b"damaged")
    if where != "there":
        (one.folder / "test.npz").write_bytes(b"damaged")
    said: list[str] = []
    kinds, fault = run(do=finish if where == "both" else fail, said=said)
    assert fault == ""
    assert (sorted(set(kinds) - {"note"})) == (["finished", "kept"] if where == "both" else ["kept"])
    assert any("damaged" in line for line in said)
    shutil.rmtree(one.folder)
    Store(URL).fetch_run(one.name, one.folder)
    examine(one.folder, one.config)


def test_an_interrupted_run_goes_on_elsewhere_from_the_state_it_left(machine):
    def begun(job) -> Message:
        finish(job)
        (job.folder / "ckpt.pt").unlink()
        (job.folder / "state.pt").write_bytes(b"step 7")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(do=begun)
    first = max(Store(URL).runs().items(), key=lambda item: len(item[1]))
    assert "state.pt" in first[1]
    assert "ckpt.pt" not in first[1]
    machine("second")
    with sitting(URL, print) as depot:
        depot.begin(STUDY)
        assert (depot.folder / "runs" / first[0] / "state.pt").read_bytes() == b"step 7"


def test_a_run_whose_worker_says_that_it_brought_it_is_fetched_or_counts_as_failed():
    def elsewhere(job) -> Message:
        """A worker that shares no disk with the runner, and loses every second run on the way."""
        finish(job)
        if not Store(URL).runs():
            Store(URL).put_run(job.folder)
        shutil.rmtree(job.folder)
        return Message(job.name, "finished")

    with sitting(URL, print) as depot:
        depot.begin(STUDY)
        events = list(execute(STUDY, depot.folder, Courier(OneByOne(elsewhere), depot)))
        assert [event.kind for event in events] == ["finished", "failed"]
        assert "its worker has finished it, but failing://bucket/study, as seen from here, holds no" in events[1].reason
        examine(events[0].run.folder, events[0].run.config)
        assert [run.is_done for run in plan(STUDY, depot.folder)].count(True) == 1


def test_a_failure_is_told_at_the_store_and_gone_once_the_run_is_done(machine):
    assert run(do=fail)[0] == ["failed"] * 2
    assert all("failed.txt" in files for files in Store(URL).runs().values())
    machine("second")
    with sight(URL, print) as depot:
        assert [one.state for one in plan(STUDY, depot.folder)] == ["failed"] * 2
    assert run()[0] == ["note", "finished", "finished"]
    assert not any("failed.txt" in files for files in Store(URL).runs().values())


TUNED = Study.from_dict(
    STUDY.to_dict() | {"seeds": 1, "tune": {"trials": 2, "space": {"model.dropout": {"values": [0.0, 0.1, 0.2, 0.3]}}}}
)


def test_what_trials_chose_is_at_the_store_before_the_runs_begin_and_holds_elsewhere(machine):
    pytest.importorskip("optuna")
    seen = []

    def do(job) -> Message:
        seen.append((job.config.test, Store(URL).read("tuned.json")))
        if job.config.test:
            return finish(job)
        job.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(job.folder / "run.toml", job.config.to_toml())
        return Message(job.name, "failed", "too hot") if len(seen) == 1 else trial(job)

    assert run(TUNED, do=do)[1] == ""
    assert [(test, text is not None) for test, text in seen] == [(False, False), (False, False), (True, True)]
    chosen = Store(URL).read("tuned.json")
    home = machine("second")
    with sitting(URL, print) as depot:
        depot.begin(TUNED)
        assert (depot.folder / "tuned.json").read_bytes() == chosen
        assert home in depot.folder.parents
        [choice] = tuning.settled(TUNED, depot.folder).chosen
        assert choice.settings == TUNED.tune.points[1]
    assert run(TUNED, do=fail)[0] == ["note", "kept"]
    Store(URL).write("tuned.json", b"{")
    with pytest.raises(BadData, match=r"tuned\.json is damaged"):
        run(TUNED)


def trial(job) -> Message:
    write_done(job.folder, job.config, 0.5, 20)
    (job.folder / "test.npz").unlink()
    return Message(job.name, "finished")
