"""What a report may write over, and what it may remove."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ssm_priors.errors import BadConfig
from ssm_priors.studies.report.files import write_all

PAGE = b'<!doctype html><meta name="generator" content="ssm-priors 0.1.0">'
REPORT = {
    "results.csv": b"model,init,pretrain,task,fraction\n",
    "report.html": PAGE,
    "report.md": b"# Title",
    "tables/effects.csv": b"a,b",
    "figures/gap.png": b"png",
}


def contents(out: Path) -> dict[str, bytes]:
    files = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if name != "report.json"}


def test_files_are_written_and_listed(tmp_path):
    assert write_all(tmp_path, REPORT) == [tmp_path / name for name in REPORT]
    assert contents(tmp_path) == REPORT
    manifest = json.loads((tmp_path / "report.json").read_text())
    assert manifest["files"] == sorted(REPORT)


@pytest.mark.parametrize("name", REPORT)
def test_what_somebody_else_wrote_stays_and_then_nothing_is_written(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine, about ssm-priors 0.1.0")
    with pytest.raises(BadConfig, match="not written by ssm-priors"):
        write_all(tmp_path, REPORT)
    assert contents(tmp_path) == {name: b"mine, about ssm-priors 0.1.0"}
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize("name", ["report.html", "tables/effects.csv"])
def test_a_folder_where_a_file_should_be_stays(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(BadConfig):
        write_all(tmp_path, REPORT)
    assert contents(tmp_path) == {}


def test_a_file_or_a_link_where_a_folder_should_be_stays(tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "tables").write_text("mine")
    with pytest.raises(BadConfig):
        write_all(out, REPORT)
    (out / "tables").unlink()
    os.symlink(elsewhere, out / "tables")
    with pytest.raises(BadConfig):
        write_all(out, REPORT)
    assert list(elsewhere.iterdir()) == []


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "mine.html").write_bytes(PAGE)
    os.symlink(tmp_path / "mine.html", tmp_path / "report.html")
    with pytest.raises(BadConfig):
        write_all(tmp_path, REPORT)


def test_files_beside_the_reports_own_stay(tmp_path):
    write_all(tmp_path, REPORT)
    (tmp_path / "tables" / "notes.csv").write_text("mine")
    write_all(tmp_path, REPORT)
    assert contents(tmp_path) == {**REPORT, "tables/notes.csv": b"mine"}


def test_a_report_again_replaces_its_files_and_removes_those_it_no_longer_has(tmp_path):
    write_all(tmp_path, {**REPORT, "figures/kernels.svg": b"svg"})
    fresh = {**REPORT, "report.md": b"# Other"}
    write_all(tmp_path, fresh)
    assert contents(tmp_path) == fresh


def test_the_page_and_table_of_a_version_without_a_manifest_are_replaced(tmp_path):
    old = {name: REPORT[name] for name in ("report.html", "results.csv")}
    write_all(tmp_path, old)
    (tmp_path / "report.json").unlink()
    write_all(tmp_path, REPORT)
    assert contents(tmp_path) == REPORT


def test_a_manifest_cannot_have_other_files_removed(tmp_path):
    (tmp_path / "study.toml").write_text("study")
    (tmp_path / "tables").mkdir()
    names = ["study.toml", "../outside.txt", "tables/../study.toml", "runs/x", "/etc/passwd"]
    (tmp_path / "report.json").write_text(json.dumps({"made_by": "ssm-priors 0", "files": names}))
    write_all(tmp_path, REPORT)
    assert (tmp_path / "study.toml").read_text() == "study"
    assert json.loads((tmp_path / "report.json").read_text())["files"] == sorted(REPORT)


@pytest.mark.parametrize("text", ["mine", "[]", '{"made_by": 3, "files": []}', '{"made_by": "other", "files": []}'])
def test_a_foreign_manifest_stays(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BadConfig):
        write_all(tmp_path, REPORT)
    assert (tmp_path / "report.json").read_text() == text
    assert contents(tmp_path) == {}


def test_a_report_cut_short_is_known_as_one(tmp_path):
    """A failure in the middle leaves whole files, all listed, so that the next report may replace them."""

    with pytest.raises(TypeError):
        write_all(tmp_path, {**REPORT, "figures/last.svg": None})
    assert contents(tmp_path) == REPORT
    write_all(tmp_path, REPORT)
    assert contents(tmp_path) == REPORT
