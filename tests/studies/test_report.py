from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pandas as pd
import pytest
from study_folders import ABLATION, reported, study_folder, write_done

from ssm_priors.analyses.charts import page as pages
from ssm_priors.analyses.charts import theme
from ssm_priors.analyses.charts.curves import curves
from ssm_priors.analyses.charts.gap import gap
from ssm_priors.analyses.charts.theme import spec
from ssm_priors.config import Part
from ssm_priors.registry import TASKS
from ssm_priors.studies import results
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import Cell, Study
from ssm_priors.studies.report import content, labels, published, report, words

HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & {{ 7 * 7 }}'
ESCAPED = "&lt;/script&gt;&lt;script&gt;alert("


def _mixed(cell: Cell, seed: int) -> float | str | None:
    """Done, failed, missing, and at chance."""
    if cell.init == "random" and cell.pretrain == "none":
        return HOSTILE if seed == 0 else None
    return 0.1 if (cell.init, seed) == ("random", 2) else 0.9


VOID = {"meta", "link", "br", "img", "hr", "input"}


class _Text(HTMLParser):
    """A page's elements with their attributes, its text, and whether every element is closed where it should be."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)
        self.attributes.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The folder of a study in which everything that can happen has happened."""
    out = study_folder(tmp_path_factory.mktemp("report"), ABLATION, _mixed)
    reported(ABLATION, out)
    return out


@pytest.fixture(scope="module")
def page(out) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


def _pictures(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def _elements(picture: str) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}


def test_the_files_are_where_it_says(out):
    files = reported(ABLATION, out)
    names = {"report": "report.html", "markdown": "report.md", "table": "results.csv"}
    assert files == {what: out / name for what, name in (names | {"tables": "tables", "figures": "figures"}).items()}
    assert all(path.exists() for path in files.values())
    listed = json.loads((out / "report.json").read_text())["files"]
    assert sorted(listed) == listed
    assert set(listed) == {
        *names.values(),
        *(f"tables/{path.name}" for path in (out / "tables").iterdir()),
        *(f"figures/{path.name}" for path in (out / "figures").iterdir()),
    }


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
        "In short: none of 5 comparisons is a difference",
        "GFLOP",
        "196,000",
        "Energy: not measured.",
        "3 of 12 runs",
        "pretrained with the objective masked (ratio 0.5) for 80 epochs in batches of 25",
        "Everything was run with ssm-priors 0.1.0 and torch 2.6.",
    ):
        assert expected in words


def test_the_page_needs_no_network_and_runs_no_script(page):
    assert "script" not in _Text(page).elements
    assert not re.findall(r"(?:src|href)\s*=\s*\"(?!data:|#)", page)
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "default-src 'none'" in page
    assert len(page) < 6e6


def test_the_page_can_be_walked_without_eyes_or_a_mouse(page):
    text = _Text(page)
    headings = [int(tag[1]) for tag in text.elements if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))
    with_id = {attrs["id"] for _, attrs in text.attributes if "id" in attrs}
    links = [attrs["href"] for tag, attrs in text.attributes if tag == "a"]
    assert links[0] == "#content"
    assert {link.removeprefix("#") for link in links} <= with_id
    assert text.elements.count("caption") == text.elements.count("table")
    assert {attrs.get("scope") for tag, attrs in text.attributes if tag == "th"} == {"row", "col"}
    assert all(attrs.get("tabindex") == "0" for _, attrs in text.attributes if "scroll" in (attrs.get("class") or ""))
    assert ("html", {"lang": "en"}) in text.attributes
    assert ":focus-visible" in page


def test_no_two_elements_have_the_same_name(page):
    names = [attrs["id"] for _, attrs in _Text(page).attributes if "id" in attrs]
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(names)


def test_every_picture_is_told_in_numbers(page):
    told = [attrs["aria-label"] for tag, attrs in _Text(page).attributes if tag == "svg"]
    assert len(told) == 2
    assert "s4d, s4d-lin, masked pretraining: 90.0 [" in told[0]
    assert "Chance is 10.0" in told[0]
    assert re.search(r"finetuning loss from 1\.\d to 0\.\d", told[1])
    assert "best validation accuracy" in told[1]


def test_a_mark_tells_its_numbers_to_a_pointer(page):
    titles = re.findall(r"<title>(.*?)</title>", _pictures(page)[0])
    assert any("test accuracy: 90" in title and "cell: s4d, s4d-lin, from scratch" in title for title in titles)


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
    assert words.count("failed") == 2  # among the runs without a result, and among all
    assert words.count("missing") == 4
    assert "no result" in words
    assert "seed 0 failed" in _pictures(page)[0]


def test_labels_of_the_data_are_escaped_too(out):
    dataset = results.collect(ABLATION, out).assign_coords(pretrain=["none", HOSTILE])
    document = content.assemble(ABLATION, dataset, find(ABLATION, dataset), pd.DataFrame())
    text = report.contents(document)["report.html"].decode()
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
    reported(ABLATION, out)
    text = (out / "report.html").read_text()
    assert "No run is done yet." in text
    assert text.count("not available") == 5


def test_a_transformer_alone_and_several_tasks_have_a_report(tmp_path):
    study = Study(
        models=("transformer",), pretrains=("masked",), tasks=("mnist", "digits"), fractions=(1.0, 0.5), seeds=2
    )
    out = study_folder(tmp_path, study, lambda *_: 0.8)
    reported(study, out)
    words = _Text((out / "report.html").read_text()).words
    assert "digits, 0.5 of the training data" in words
    assert "no claim: 2 seeds; a claim needs at least 3 seeds" in words


def test_metrics_that_are_not_finite_break_nothing(tmp_path):
    study = Study(seeds=2)
    out = study_folder(tmp_path, study, lambda _, seed: "diverged" if seed else 0.8)
    for path in (out / "runs").glob("*/metrics.csv"):
        path.write_text(path.read_text() + "finetune,41,4,inf,0.001,nan,,\n")
    reported(study, out)
    assert len(_pictures((out / "report.html").read_text())) == 2


def test_runs_that_have_just_begun_have_no_curves_yet(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: "diverged", steps=0)
    reported(study, out)
    assert len(_pictures((out / "report.html").read_text())) == 1


# --- numbers ---------------------------------------------------------------------------------------------------------


def _rows(out: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "tables" / f"{name}.csv").read_text(encoding="utf-8"))))


def test_compute_stands_by_cell_and_phase(out):
    rows = {(each["init"], each["pretraining"], each["phase"]): each for each in _rows(out, "compute")}
    assert len(rows) == 6
    both = rows["s4d-lin", "masked", "pretraining"]
    assert [both[name] for name in ("GFLOP", "steps", "examples", "tokens", "seconds", "peak memory, MiB")] == [
        *("3.40", "80", "2,000", "392,000", "20.2", "300")
    ]
    assert rows["s4d-lin", "none", "finetuning"]["GFLOP"] == "1.20"
    assert rows["random", "none", "finetuning"]["GFLOP"] == ""


def test_runs_of_a_version_that_did_not_count_have_a_report(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    write_done(next((out / "runs").iterdir()), study.config(study.cells()[0], 0), 0.5, 20, cost={"parameters": 21})
    reported(study, out)
    [only] = _rows(out, "compute")
    assert [only[name] for name in ("FLOP", "steps", "seconds", "peak memory, MiB")] == [""] * 4


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (0, "0"), (np.nan, "")],
)
def test_numbers_have_three_digits(number, shown):
    assert labels.significant(number) == shown


# --- published numbers -----------------------------------------------------------------------------------------------


READ_ONLY = {"image": "Image", "text": "Text", "retrieval": "Retrieval"}
"""Tasks that read nothing but a benchmark's own files."""


def benchmark(name: str, **options) -> str:
    return published.benchmark_of(Part(name=name, options=TASKS[name].Config(**options)))


@pytest.mark.parametrize("name", TASKS)
def test_nothing_published_stands_beside_a_stand_in(name):
    assert benchmark(name) == READ_ONLY.get(name, "")


def test_a_benchmark_counts_as_one_whole_and_from_its_own_files_only():
    for name in READ_ONLY:
        assert benchmark(name, examples=500) == ""
    names = {"listops": "ListOps", "pathfinder": "Path", "pathx": "Path-X", "pathx256": "PathX-256"}
    for name, title in names.items():
        assert benchmark(name, data="official") == title
        assert published.published(title)
        assert benchmark(name, data="official", examples=500) == ""
    assert benchmark("pathfinder", data="official", level="easy") == ""


class _Benchmark:
    """ListOps, if its options say that the benchmark's own files are read."""

    Config = TASKS["mnist"].Config

    @staticmethod
    def benchmark(options) -> str:
        return "ListOps" if options.pool == 2 else ""


@pytest.mark.parametrize("pool", [2, 1])
def test_published_numbers_stand_beside_ours_for_the_benchmark_alone(tmp_path, monkeypatch, pool):
    study = Study(fractions=(1.0,), changes={"task": {"pool": pool}})
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    monkeypatch.setitem(TASKS._parts, "mnist", _Benchmark)
    reported(study, out)
    if pool != 2:
        assert not (out / "tables" / "published-mnist.csv").exists()
        return
    rows = _rows(out, "published-mnist")
    assert [each["where from"] for each in rows[:1]] == ["measured here"]
    assert all(each["where from"].startswith("published: ") for each in rows[1:])
    assert {"59.5", "36.37"} <= {each["accuracy, %"] for each in rows[1:]}
    assert "were not measured here" in (out / "report.html").read_text(encoding="utf-8")


def test_published_numbers_are_those_that_were_read():
    """As many as the sources have; the leaderboard's means are those of its rows, but for one that it prints wrong."""
    assert {name: len(published.published(name)) for name in ("PathX-256", "Long Range Arena, mean", "ListOps")} == {
        "PathX-256": 2,
        "Long Range Arena, mean": 17,
        "ListOps": 14,
    }
    columns = ("ListOps", "Text", "Retrieval", "Image", "Path")
    ours = {name: [each for each in published.published(name) if "README" in each.source] for name in columns}
    means = [each for each in published.published("Long Range Arena, mean") if "README" in each.source]
    for index, mean in enumerate(means):
        values = [ours[name][index].accuracy for name in columns]
        assert {ours[name][index].model for name in columns} == {mean.model}
        assert mean.model == "Sinkhorn Trans." or mean.accuracy == pytest.approx(np.mean(values), abs=0.0051)


# --- sections of others ----------------------------------------------------------------------------------------------


def _extra(text: str) -> content.Extra:
    chart = alt.Chart(pd.DataFrame({"lag": [1, 2], "kernel": [0.5, -0.5]})).mark_point().encode(x="lag:Q", y="kernel:Q")
    figures = [theme.Figure(text, chart, text), theme.Figure(text, chart, text)]
    return text, figures, [pages.Table(text, ["layer", text], [["0", "1.5"], ["1", text]], text)]


def test_sections_of_others_stand_in_every_format(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    reported(study, out, [_extra("Learned kernels"), _extra("Compute")])
    text = (out / "report.html").read_text(encoding="utf-8")
    assert 'id="learned-kernels"' in text
    assert len(_pictures(text)) == 6
    ids = [attrs["id"] for _, attrs in _Text(text).attributes if "id" in attrs]
    assert len(ids) == len(set(ids))
    names = [f"learned-kernels-learned-kernels{number}" for number in ("", "-2", "-3")]
    assert all((out / "figures" / f"{name}.pdf").exists() for name in names[:2])
    assert (out / "tables" / f"{names[2]}.tex").exists()
    assert "## Learned kernels" in (out / "report.md").read_text(encoding="utf-8")


def test_hostile_sections_stay_text_in_every_format(tmp_path):
    study = Study()
    out = study_folder(tmp_path, study, lambda *_: HOSTILE)
    reported(study, out, [_extra(HOSTILE)])
    text = (out / "report.html").read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert not {"script", "img"} & set(_Text(text).elements)
    for path in (out / "figures").glob("*.svg"):
        assert not _elements(path.read_text(encoding="utf-8")) & {"script", "foreignObject"}
        assert re.fullmatch(r"[a-z0-9-]+\.svg", path.name)
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert not re.findall(r"<(?!!--)", markdown)


# --- in other formats ---------------------------------------------------------------------------------------------


def test_markdown_is_the_page_in_other_clothes(out, page):
    markdown = (out / "report.md").read_text(encoding="utf-8")
    found = results.collect(ABLATION, out)
    document = content.assemble(ABLATION, found, find(ABLATION, found), results.curves(found, out))
    for section in document.sections:
        assert f"\n## {section.title}\n" in markdown
    for target in re.findall(r"\]\(([^)]+)\)", markdown):
        assert (out / target).is_file()
    assert markdown.count("](figures/") == len(_pictures(page))


def test_pictures_are_what_their_names_say(out):
    for name in ("gap-mnist", "curves-mnist"):
        assert ElementTree.parse(out / "figures" / f"{name}.svg").getroot().tag.endswith("svg")
        assert (out / "figures" / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (out / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"


# --- words -----------------------------------------------------------------------------------------------------------


def test_the_methods_paragraph_says_all_that_decides_a_result(out):
    text = words.methods(ABLATION, results.collect(ABLATION, out))
    assert "\n" not in text
    for expected in (
        "mnist (data shipped, pool 2), the whole training split (25 examples)",
        "200 test examples of mnist",
        "s4d had 2 layers of 32 channels, d_state 32",
        "21 parameters",
        "began from s4d-lin and random",
        "40 epochs in batches of 25 by AdamW, with a peak learning rate of 0.02 (0.01 for A, dt and their like)",
        "3 seeds (0 to 2)",
        "torch 2.6",
        "References: Amos, Berant, Gupta 2023, arXiv 2310.02980",
        "arXiv 2206.11893",
        "Owen 2007",
    ):
        assert expected in text


def test_models_with_other_settings_are_told_apart(tmp_path):
    study = Study(models=("s4d", "transformer"), pretrains=("masked",))
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    text = dict(words.protocol(study, results.collect(study, out)))
    assert "s4d was pretrained with the objective masked (ratio 0.5) for 80 epochs" in text["Pretraining"]
    assert "peak learning rate of 0.02" in text["Finetuning"]
    assert "transformer was finetuned on the cross-entropy of the labels" in text["Finetuning"]
    assert "peak learning rate of 0.005, weight decay" in text["Finetuning"]  # it trains nothing apart
    assert "feed-forward of 64 channels" in text["Models"]


def test_tasks_are_told_apart_where_settings_may_differ_by_them(tmp_path):
    study = Study(tasks=("mnist", "digits"))
    out = study_folder(tmp_path, study, lambda *_: 0.5)
    text = dict(words.protocol(study, results.collect(study, out)))
    assert text["Finetuning"].startswith("s4d on mnist and s4d on digits were finetuned")
    assert "Pretraining" not in text
    assert "From scratch is" not in text["Selection"]


def test_without_a_result_the_protocol_claims_no_number(tmp_path):
    out = study_folder(tmp_path, ABLATION, lambda *_: None)
    told = dict(words.protocol(ABLATION, results.collect(ABLATION, out)))
    assert "Software" not in told
    assert "example" not in told["Tasks"]
    assert "parameters" not in told["Models"]


# --- in a browser ----------------------------------------------------------------------------------------------------


PROBE = """
<iframe id="page" style="border:0;width:%dpx;height:30000px"></iframe><pre id="found"></pre>
<script>
const frame = document.getElementById("page");
frame.onload = () => {
  const root = frame.contentDocument, all = (what) => [...root.querySelectorAll(what)];
  const box = (each) => each.getBoundingClientRect(), seen = (each) => box(each).width + box(each).height > 0;
  document.getElementById("found").textContent = JSON.stringify({
    page: [root.documentElement.scrollWidth, root.documentElement.clientWidth],
    charts: all("figure svg").map((svg) => ({
      size: [box(svg).width, box(svg).height],
      marks: [...svg.querySelectorAll("path,line,text")].filter(seen).length,
      least: Math.min(...[...svg.querySelectorAll("text")].map((each) => parseFloat(getComputedStyle(each).fontSize))),
    })),
    overflowing: all("table").filter((each) => box(each).width > box(each.parentElement).width + 1).length,
    hidden: all("td,th").filter((each) => each.textContent && box(each).height === 0).length,
  });
};
frame.src = %s;
</script>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_chart_and_complains_of_nothing(out, tmp_path, width):
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % (width, json.dumps((out / "report.html").as_uri())))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--allow-file-access-from-files", "--proxy-server=127.0.0.1:9", "--enable-logging=stderr"]
    command += ["--window-size=1400,900", "--virtual-time-budget=8000", "--dump-dom", probe.as_uri()]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert opened.returncode == 0
    assert "CONSOLE" not in opened.stderr
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', opened.stdout).group(1))
    assert found["page"][0] <= found["page"][1] == width
    assert len(found["charts"]) == 2
    for chart in found["charts"]:
        assert min(chart["size"]) > 80
        assert chart["marks"] > 40
        assert chart["least"] >= 10
    assert found["overflowing"] == 0
    assert found["hidden"] == 0


# --- charts ---------------------------------------------------------------------------------------------------------


def _rows_drawn(document: dict) -> int:
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
    assert 1000 < _rows_drawn(document) <= 5000
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
