"""What lies at a URL: brought whole, done last, and never led astray by names that a store lists."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest
from stores import Failing, Hostile
from study_folders import study_folder

from ssm_priors.errors import BadConfig, NotReady, StoreFailed, UnknownName
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import plan
from ssm_priors.studies.store import Store, is_url, scratch

STUDY = Study(tasks=("digits",), fractions=(0.5,), seeds=1)


@pytest.fixture(autouse=True)
def empty():
    Failing.reset()


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a finished run, with what belongs to a process beside it."""
    [one] = plan(STUDY, study_folder(tmp_path / "here", STUDY, lambda *_: 0.5))
    for name in (".lock", ".ckpt.pt.77.tmp", "state.pt"):
        (one.folder / name).write_text("not of the run")
    (one.folder / "inspect").mkdir()
    (one.folder / "inspect" / "page.html").write_text("looked at")
    (one.folder / "link").symlink_to("/etc/passwd")
    return one.folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("url", ["failing://bucket/study", "file", "memory://a/b/"])
def test_a_run_comes_back_as_it_was_without_what_belongs_to_a_process(run, url, tmp_path):
    store = Store(url if "://" in url else f"file://{tmp_path}/there/deep")
    store.put_run(run)
    names = set(store.runs()[run.name])
    assert names == {"run.toml", "metrics.csv", "test.npz", "ckpt.pt", "inspect/page.html"}
    back = tmp_path / "back" / run.name
    store.fetch_run(run.name, back)
    assert contents(back) == {name: (run / name).read_bytes() for name in names if "/" not in name}


def test_the_file_that_says_that_a_run_is_done_goes_first_and_comes_last(run):
    Failing.obey(lambda number: False)
    Store("failing://study").put_run(run)
    changes = [path.rpartition("/")[2] for what, path in Failing.calls if what in ("put_file", "rm_file")]
    assert (changes[0], changes.index("ckpt.pt", 1)) == ("ckpt.pt", len(changes) - 3)
    assert changes[-2:] == ["state.pt", "failed.txt"]


def test_a_token_is_another_once_a_file_was_replaced(tmp_path):
    store, file = Store(f"file://{tmp_path}/there"), tmp_path / "file"
    file.write_text("a")
    store.put(file, "runs/0/ckpt.pt")
    first = store.files("runs/0")
    assert store.files("runs/0") == first
    file.write_text("b")
    store.put(file, "runs/0/ckpt.pt")
    assert store.files("runs/0") != first


def test_half_of_a_folder_opens_nowhere(tmp_path):
    """Wherever the bringing of an array store ends, the files at its top are all of one kind, or one is missing."""
    for version in ("old", "new"):
        for name in (".zgroup", ".zmetadata", "score/0.0", "score/0.1", "reason/0"):
            (tmp_path / version / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / version / name).write_text(version)
    ended = False
    for end in range(60):
        Failing.reset()
        store = Store("failing://study")
        store.put_folder(tmp_path / "old", "results.zarr")
        Failing.obey(lambda number, end=end: number >= end)
        try:
            store.put_folder(tmp_path / "new", "results.zarr")
            ended = True
        except StoreFailed:
            pass
        Failing.obey(lambda number: False)
        there = {name: store.read(f"results.zarr/{name}") for name in store.files("results.zarr")}
        if {".zgroup", ".zmetadata"} <= set(there):
            assert len(there) == 5
            assert len(set(there.values())) == 1, f"a mixture after {end} calls: {there}"
    assert ended


def test_names_that_a_store_lists_lead_nowhere(run, tmp_path):
    store = Store("hostile://study")
    store.put_run(run)
    before = contents(tmp_path)
    place = tmp_path / "deep" / "down" / "runs" / run.name
    for name in list(store.runs()):
        if name == run.name:
            store.fetch_run(name, place)
    fresh = {name for name in contents(tmp_path) if name not in before}
    assert fresh == {f"deep/down/runs/{run.name}/{name}" for name in ("run.toml", "metrics.csv", "test.npz", "ckpt.pt")}
    assert not any(".." in name for files in store.runs().values() for name in files)
    assert any("evil" in str(path) for path in Hostile().find("/study")), "the listing was hostile"


def test_what_cannot_be_a_place_is_refused(tmp_path):
    with pytest.raises(UnknownName, match=r"unknown protocol 'memry'.*Did you mean memory"):
        Store("memry://study")
    with pytest.raises(NotReady, match="Install absentfs"):
        Store("absent://study")
    for url in ("simplecache::memory://study", "memory://", "study"):
        with pytest.raises(BadConfig, match="PROTOCOL://FOLDER was expected"):
            Store(url)


def test_a_failure_says_where_and_what_and_no_password():
    store = Store("failing://user:secret@host/study")
    Failing.obey(lambda number: True)
    with pytest.raises(StoreFailed, match="No space left on device") as caught:
        store.write("study.toml", b"")
    assert "failing://host/study: study.toml cannot be written" in str(caught.value)
    assert caught.value.exit_code == 1


def test_folders_and_urls_are_told_apart(tmp_path, monkeypatch):
    assert [is_url(place) for place in ("s3://b/x", "file:///x", tmp_path, "out", "C:\\out", "a:b", "ssmp-runs/a")] == [
        True,
        True,
        *[False] * 5,
    ]
    assert Store("memory://a").key != Store("memory://b").key
    monkeypatch.setenv("SSMP_SCRATCH_DIR", str(tmp_path))
    assert scratch() == tmp_path


def test_every_thread_has_a_connection_of_its_own():
    store, found, both = Store("failing://study"), [], Barrier(2)

    def take() -> None:
        found.append(store._fs)
        both.wait(30)  # a thread that has ended may give its number to the next

    threads = [Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store._fs is store._fs
    assert len({id(each) for each in (*found, store._fs)}) == 3
