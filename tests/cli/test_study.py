"""`ssmp study`: what it tells before, while and after a study runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from study_folders import study_folder
from task_runs import TINY_STUDY, ssmp

from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import Ledger, State
from ssm_priors.studies.runner import plan

pytestmark = pytest.mark.xdist_group("study")


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY_STUDY)
    return tmp_path / "tiny.toml"


def document(*arguments) -> dict:
    said = ssmp(*arguments, "--json")
    assert said.exit_code == 0, said.stderr
    return json.loads(said.stdout)


def test_the_catalogue_is_listed_and_shown(file):
    assert "explicit-priors" in ssmp("study", "list").stdout
    shown = ssmp("study", "show", "explicit-priors").stdout
    assert "still needed" in shown
    assert "s4d, random, masked" in shown
    told = document("study", "show", file, "--set", "seeds=3", "--set", "pretrains=masked", "--preset", "small")
    assert (told["title"], told["seeds"], told["preset"], told["pretrains"]) == ("A tiny study", 3, "small", ["masked"])
    assert (len(told["cells"]), told["runs"]) == (4, 12)


def test_wrong_names_are_refused():
    said = ssmp("study", "run", "explicit-prior")
    assert said.exit_code == 2
    assert "Did you mean explicit-priors" in said.stderr
    said = ssmp("study", "run", "explicit-priors", "--engine", "rai", "--set", "tasks=digits")
    assert said.exit_code == 2
    assert "Did you mean ray" in said.stderr


def test_a_dry_run_tells_what_it_would_take_and_writes_nothing(file, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    told = document("study", "run", file, "--set", "seeds=2", "--dry-run", "--out", tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before
    assert [(row["init"], row["runs"], row["to_do"], row["parameters"]) for row in told["cells"]] == [
        ("s4d-lin", 2, 2, 394),
        ("random", 2, 2, 394),
    ]
    assert all(row["flops"] > 1e6 and row["seconds"] > 0 and not row["from_finished"] for row in told["cells"])
    assert told["total"]["to_do"] == 4
    assert told["total"]["flops"] == pytest.approx(4 * told["cells"][0]["flops"])
    said = ssmp("study", "run", file, "--dry-run")
    assert "2 runs in 2 cells, 2 to do" in said.stdout
    assert not Path("ssmp-runs").exists()


def test_a_study_is_run_asked_about_gone_on_with_and_merged(file, tmp_path):
    """The longest of these, because its workers are real."""
    out = tmp_path / "out"
    said = ssmp("study", "run", file, "--out", out, "--jobs", "2")
    assert said.exit_code == 0, said.stderr
    assert (out / "report.html").exists()
    told = document("study", "status", out)
    assert [(row["done"], row["planned"], row["failed"]) for row in told["cells"]] == [(1, 0, 0)] * 2
    assert told["ledger"]
    assert told["running"] == []
    dry = document("study", "resume", out, "--dry-run")
    assert all(row["from_finished"] for row in dry["cells"])
    assert dry["total"]["to_do"] == 0
    again = ssmp("study", "resume", out)
    assert again.exit_code == 0
    assert again.stderr.count("finished before, kept") == 2
    assert again.stdout == said.stdout


def test_merging_makes_one_study_with_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr("ssm_priors.cli.report.sections", lambda *_: [])  # these runs have no weights to look into
    study = Study(inits=("random",), fractions=(0.5,), seeds=1)
    parts = [
        study_folder(tmp_path / name, Study(inits=("random",), fractions=(share,), seeds=1), lambda *_: 0.5)
        for name, share in (("a", 0.5), ("b", 1.0))
    ]
    told = document("study", "merge", *parts, "--out", tmp_path / "whole")
    assert sorted(cell["fraction"] for cell in told["cells"]) == [0.5, 0.5, 1.0, 1.0]
    assert (tmp_path / "whole" / "results.zarr").exists()
    assert len(Study.read(tmp_path / "whole" / "study.toml").runs()) == 2 * len(study.runs())


def test_status_tells_who_runs_what_and_what_is_lost(tmp_path):
    study = Study(seeds=4, fractions=(0.5,))
    out = study_folder(tmp_path / "out", study, lambda cell, seed: [0.5, "boom: too hot", None, None][seed])
    runs = plan(study, out)
    without = ssmp("study", "status", out)
    assert "1 of 4 runs done; no ledger can be read here" in without.stdout
    book = Ledger(out)
    book.plan({run.name: run.state for run in runs})
    assert book.claim(book.entries()[runs[2].name])
    book.beat({runs[2].name: 0.5})
    [row] = document("study", "status", out)["cells"]
    assert {state: row[state] for state in (*State, "lost")} == {
        "planned": 1,
        "running": 1,
        "done": 1,
        "failed": 1,
        "lost": 0,
    }
    told = document("study", "status", out)
    [work] = told["running"]
    assert (work["run"][-8:], work["share"]) == ("(seed 2)", 0.5)
    assert told["seconds_left"] == pytest.approx(1.5 * 12.5)
    book._run("UPDATE runs SET born = 'another'")
    said = ssmp("study", "status", out).stdout
    assert re.search(r"process \d+ on \S+, which is gone", said)
    assert document("study", "status", out)["cells"][0]["lost"] == 1
    book.close()


def test_a_folder_without_a_study_is_refused(tmp_path):
    for name in ("status", "resume"):
        said = ssmp("study", name, tmp_path)
        assert said.exit_code == 2
        assert "holds no study.toml" in said.stderr
    said = ssmp("study", "merge", tmp_path, "--out", tmp_path / "out")
    assert said.exit_code == 2
