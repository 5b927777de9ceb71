from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from study_folders import ABLATION, study_folder

from ssm_priors.analyses.charts.curves import curves
from ssm_priors.analyses.charts.gap import gap
from ssm_priors.analyses.charts.theme import spec
from ssm_priors.studies import results
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.report import report

HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & {{ 7 * 7 }}'
ESCAPED = "&lt;/script&gt;&lt;script&gt;alert("


def _mixed(cell: Cell, seed: int) -> float | str | None:
    """Done, failed, missing, and at chance."""
    if cell.init == "random" and cell.pretrain == "none":
        return HOSTILE if seed == 0 else None
    return 0.1 if (cell.init, seed) == ("random", 2) else 0.9


class _Text(HTMLParser):
    """Names of a page's elements, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The folder of a study in which everything that can happen has happened."""
    out = study_folder(tmp_path_factory.mktemp("report"), ABLATION, _mixed)
    report.write(ABLATION, results.collect(ABLATION, out), out)
    return out


@pytest.fixture(scope="module")
def page(out) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


def _pictures(page: str) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [base64.b64decode(picture).decode() for picture in found]


def _elements(picture: str) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}


def test_the_files_are_where_it_says(out):
    files = report.write(ABLATION, results.collect(ABLATION, out), out)
    assert files == {"report": out / "report.html", "table": out / "results.csv"}
    assert all(path.is_file() for path in files.values())


def test_the_page_says_what_was_asked_found_and_done(page):
    words = " ".join(_Text(page).words)
    for expected in (
        "s4d on mnist: does it matter where training starts?",
        "s4d-lin and random",
        "from scratch and masked pretraining",
        "s4d, s4d-lin, masked pretraining instead of none",
        "no difference shown: the interval covers zero",
        "seed 2 is at chance (10.0%)",
        "no labels, no",
        "MNIST-5k",
        "arXiv 2310.02980",
        "data sha256 (mnist)",
        "ab" * 32,
        "4,000",
    ):
        assert expected in words


def test_the_page_needs_no_network_and_runs_no_script(page):
    assert "script" not in _Text(page).elements
    assert not re.findall(r"(?:src|href)\s*=\s*\"(?!data:)", page)
    assert "url(" not in page


def test_hostile_text_stays_text(page):
    assert ESCAPED in page
    assert HOSTILE not in page
    assert "49" not in "".join(word for word in _Text(page).words if "7 * 7" in word)
    assert "onerror" not in " ".join(re.findall(r"<[^>]*>", page))


def test_charts_are_pictures_in_which_hostile_text_stays_text(page):
    pictures = _pictures(page)
    assert len(pictures) == 2
    for picture in pictures:
        assert not _elements(picture) & {"script", "foreignObject", "image"}
    assert "alert" in pictures[0]


def test_failed_and_missing_runs_are_visible_everywhere(page):
    words = _Text(page).words
    assert words.count("failed") == 1
    assert words.count("missing") == 2
    assert "no result" in words
    assert "seed 0 failed" in _pictures(page)[0]


def test_labels_of_the_data_are_escaped_too(out):
    dataset = results.collect(ABLATION, out).assign_coords(pretrain=["none", HOSTILE])
    text = report.render(ABLATION, dataset, pd.DataFrame())
    assert HOSTILE not in text
    assert HOSTILE in " ".join(_Text(text).words)
    assert "script" not in _elements(_pictures(text)[0])


def test_the_table_has_a_row_a_run_and_reads_back(out):
    frame = pd.read_csv(out / "results.csv", keep_default_na=False, na_values=[""])
    assert len(frame) == 12
    assert sorted(set(frame.status)) == ["done", "failed", "missing"]
    assert frame.init.iloc[0] == "s4d-lin"
    assert set(frame.pretrain) == {"none", "masked"}
    assert frame.loc[frame.status != "done", "test_metric"].isna().all()
    assert frame.reason.dropna().tolist() == [HOSTILE]


def test_a_study_without_any_run_has_a_report(tmp_path):
    out = study_folder(tmp_path, ABLATION, lambda *_: None)
    report.write(ABLATION, results.collect(ABLATION, out), out)
    text = (out / "report.html").read_text()
    assert "No run is done yet." in text
    assert text.count("not available") == 5


def test_a_transformer_alone_and_several_tasks_have_a_report(tmp_path):
    study = Study(
        models=("transformer",), pretrains=("masked",), tasks=("mnist", "digits"), fractions=(1.0, 0.5), seeds=2
    )
    out = study_folder(tmp_path, study, lambda *_: 0.8)
    report.write(study, results.collect(study, out), out)
    words = _Text((out / "report.html").read_text()).words
    assert "digits, 0.5 of the training data" in words
    assert "no claim: 2 seeds; a claim needs at least 3 seeds" in words


def test_metrics_that_are_not_finite_break_nothing(tmp_path):
    study = Study(seeds=2)
    out = study_folder(tmp_path, study, lambda _, seed: "diverged" if seed else 0.8)
    for path in (out / "runs").glob("*/metrics.csv"):
        path.write_text(path.read_text() + "finetune,41,4,inf,0.001,nan,,\n")
    report.write(study, results.collect(study, out), out)
    assert len(_pictures((out / "report.html").read_text())) == 2


def test_runs_that_have_just_begun_have_no_curves_yet(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: "diverged", steps=0)
    report.write(study, results.collect(study, out), out)
    assert len(_pictures((out / "report.html").read_text())) == 1


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_opens_it_without_complaint(out, tmp_path):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", (out / "report.html").as_uri()]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert opened.returncode == 0
    assert "CONSOLE" not in opened.stderr
    assert "What was found" in opened.stdout


# --- charts ---------------------------------------------------------------------------------------------------------


def _rows(document: dict) -> int:
    return sum(len(rows) for rows in document["datasets"].values())


def test_long_runs_of_many_cells_are_thinned_and_the_caption_says_so():
    step = np.arange(1, 3001)
    names = itertools.product("abcdef", ("from scratch", "masked"), (0, 1))
    frames = [
        pd.DataFrame({"step": step, "loss": 1 / step, "validation_metric": np.nan}).assign(
            phase="finetune", start=start, pretrain=pretrain, seed=seed
        )
        for start, pretrain, seed in names
    ]
    figure = curves(pd.concat(frames))
    document = spec(figure.chart)
    assert 1000 < _rows(document) <= 5000
    assert "Thinned to at most 100 points a curve" in figure.caption
    last = max(row["step"] for rows in document["datasets"].values() for row in rows)
    assert last == 3000


def test_curves_show_the_mean_and_both_ends_over_seeds():
    steps = pd.DataFrame({"step": [1, 1, 1], "loss": [1.0, 2.0, 6.0], "seed": [0, 1, 2]}).assign(
        phase="finetune", start="s4d", pretrain="from scratch", validation_metric=np.nan
    )
    (row,) = next(iter(spec(curves(steps).chart)["datasets"].values()))
    assert (row["mean"], row["low"], row["high"]) == (3, 1, 6)


def test_charts_are_strict_json_whatever_the_numbers():
    cells = pd.DataFrame({"cell": ["a", "b"], "model": "s4d", "from_scratch": [True, False]})
    cells = cells.assign(value=[0.5, np.nan], low=[0.4, np.nan], high=[0.6, np.nan], note=["", "failed"])
    seeds = pd.DataFrame({"cell": ["a"], "model": ["s4d"], "value": [0.5]})
    for chance in (0.1, np.nan):
        json.dumps(spec(gap(cells, seeds, chance).chart), allow_nan=False)


def test_from_scratch_is_hollow_and_pretrained_solid():
    cells = pd.DataFrame({"cell": ["a", "b"], "model": "s4d", "from_scratch": [True, False]})
    cells = cells.assign(value=0.5, low=0.4, high=0.6, note="")
    layers = spec(gap(cells, pd.DataFrame(columns=["cell", "model", "value"]), 0.1).chart)["layer"]
    points = [layer for layer in layers if layer["mark"]["type"] == "point"]
    assert [layer["mark"].get("filled", False) for layer in points] == [False, True]
    assert ["true" in json.dumps(layer["transform"]) for layer in points] == [True, False]
