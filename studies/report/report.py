"""A study's results as a page for people (`report.html`) and a table for programs (`results.csv`).

Charts are drawn here, once, and stand in the page as pictures: it opens anywhere, prints, and runs no code.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined

from ssm_priors import atomic
from ssm_priors.analyses.charts.curves import curves as curves_chart
from ssm_priors.analyses.charts.gap import gap as gap_chart
from ssm_priors.analyses.charts.theme import FONT, Figure, spec
from ssm_priors.analyses.schema import MADE_BY
from ssm_priors.metrics import Metric
from ssm_priors.registry import INITS, MIXERS, OBJECTIVES, TASKS, source, summary
from ssm_priors.studies import results as runs
from ssm_priors.studies import statistics
from ssm_priors.studies.grid import NONE, Cell, Study
from ssm_priors.studies.statistics import CellScore
from ssm_priors.training import run as method

PICTURE_FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""Fonts of the same widths: what is measured here must fit where the page is read."""


@dataclass(frozen=True, slots=True)
class Section:
    """What there is to see of one task and fraction."""

    title: str
    about: str
    """What the task is."""
    figures: list[dict[str, str]]
    """Title, caption, picture (a data URI)."""


def write(study: Study, results: xr.Dataset, out: Path) -> dict[str, Path]:
    """Write `report.html` and `results.csv` into a study's folder.

    Args:
        study: what was asked.
        results: what `results.collect` gives.
        out: the study's folder, whose runs' learning curves are read.

    Returns:
        What each file is -> its path.
    """
    files = {"report": Path(out) / "report.html", "table": Path(out) / "results.csv"}
    atomic.write_text(files["table"], runs.table(results).to_csv(index=False, lineterminator="\n"))
    atomic.write_text(files["report"], render(study, results, runs.curves(results, out)))
    return files


def render(study: Study, results: xr.Dataset, steps: pd.DataFrame) -> str:
    """The page as HTML; every text in it is escaped.

    Args:
        study: what was asked.
        results: of `results.collect`.
        steps: of `results.curves`.
    """
    scores, effects = statistics.scores(results), statistics.effects(results)
    environment = Environment(
        loader=PackageLoader("ssm_priors.studies.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html").render(
        title=title(study),
        asked=asked(study),
        scores=scores,
        effects=effects,
        several_places=results.sizes["task"] * results.sizes["fraction"] > 1,
        sections=list(_sections(scores, results, steps)),
        runs=list(runs.table(results).itertuples()),
        parts=parts(study),
        method=source(method),
        origins=origins(results),
        configuration=study.config(study.cells()[-1], 0).to_toml(),  # the last cell pretrains, if any does
        resamples=statistics.RESAMPLES,
        claim_seeds=statistics.CLAIM_SEEDS,
        **_said(results),
        whole=_whole,
        made_by=MADE_BY,
        font=FONT,
    )


def _said(results: xr.Dataset) -> dict[str, Any]:
    """What the tables' columns are called: after the metric, or where tasks have several, each row says its own."""
    measures = {task: runs.metric(results, task) for task in results.task.values.tolist()}
    labels, gaps = ({getattr(one, name): one for one in measures.values()} for name in ("label", "gap_unit"))
    [first, *others] = labels.values()
    unit = "" if others else first.label.removeprefix(first.title)
    return {
        "measures": measures,
        "several_metrics": bool(others),
        "several_gaps": len(gaps) > 1,
        "gap_label": "difference" if len(gaps) > 1 else first.gap_unit or "difference",
        "gap_note": " ".join(_about_gaps(one) for one in labels.values()),
        "score_title": "Results" if others else first.title[0].upper() + first.title[1:],
        "score_label": "value" if others else first.label,
        "median_label": f"median{unit}",
        "run_unit": unit,
    }


def _about_gaps(metric: Metric) -> str:
    if metric.is_share:
        return f"Points are percentage points of test {metric.title}."
    return f"Differences of test {metric.label}: lower is better."


def title(study: Study) -> str:
    """'s4d on mnist: does it matter where training starts?'."""
    return f"{_listed(study.models)} on {_listed(study.tasks)}: does it matter where training starts?"


def asked(study: Study) -> list[tuple[str, str]]:
    """The study in words: axis -> its values."""
    cells = study.cells()
    inits = [init for init in dict.fromkeys(cell.init for cell in cells) if init != NONE]
    objectives = [_start(pretrain) for pretrain in dict.fromkeys(cell.pretrain for cell in cells)]
    fractions = [f"{fraction:.3g}" for fraction in dict.fromkeys(cell.fraction for cell in cells)]
    rows = [
        ("model", _listed(study.models)),
        ("init", _listed(inits)),
        ("training", _listed(objectives)),
        ("task", _listed(study.tasks)),
        ("share of the training data", _listed(fractions)),
        ("seeds", f"{study.seeds} (0 to {study.seeds - 1})" if study.seeds > 1 else "1 (0)"),
        ("preset", f"{study.preset}: {study.settings['description']}"),
        ("changed settings", _listed(list(_flat(study.changes)))),
    ]
    return [(axis, values) for axis, values in rows if values]


def parts(study: Study) -> list[tuple[str, str, str, str]]:
    """Kind, name, what it is and source of everything the study chose by name."""
    cells = study.cells()
    chosen = [
        ("model", MIXERS, [cell.model for cell in cells]),
        ("init", INITS, [cell.init for cell in cells]),
        ("objective", OBJECTIVES, [cell.pretrain for cell in cells]),
        ("task", TASKS, [cell.task for cell in cells]),
    ]
    return [
        (kind, name, summary(registry[name]), source(registry[name]))
        for kind, registry, names in chosen
        for name in dict.fromkeys(names)
        if name != NONE
    ]


def origins(results: xr.Dataset) -> list[tuple[str, str]]:
    """Where the results come from: what was recorded -> its values, several where runs differ."""
    found: dict[str, list[str]] = {}
    for task, records in json.loads(results.attrs["provenance"]).items():
        for record in records:
            for line in _flat(record):
                key, _, value = line.partition(" = ")
                values = found.setdefault(f"{key} ({task})" if key == "data_sha256" else key, [])
                values += [] if value in values else [value]
    return [(key.replace("_", " "), ", ".join(values)) for key, values in found.items()]


def _sections(scores: Sequence[CellScore], results: xr.Dataset, steps: pd.DataFrame) -> Iterator[Section]:
    """A section for every task, fraction and budget."""
    for place in dict.fromkeys(_place(score.cell) for score in scores):
        here = [score for score in scores if _place(score.cell) == place]
        task, fraction, budget = place
        chance = float(results.chance.sel(task=task))
        metric = runs.metric(results, task)
        figures = [gap_chart(*_gap_frames(here), chance, metric)]
        if len(steps):
            own = steps[(steps.task == task) & (steps.fraction == fraction) & (steps.budget == budget)]
            figures += [curves_chart(_named(own), metric)] if own.loss.notna().any() else []
        share = "" if fraction == 1 else f", {fraction:.3g} of the training data"
        yield Section(f"{task}{share}", summary(TASKS[task]), [_drawn(figure) for figure in figures])


def _place(cell: Cell) -> tuple[str, float, str]:
    return cell.task, cell.fraction, cell.budget


def _gap_frames(scores: Sequence[CellScore]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the gap chart takes: cells, and seeds."""
    cells, seeds = [], []
    for score in scores:
        names = {"cell": _label(score.cell), "model": score.cell.model}
        estimate, low, high = score.interval or (np.nan, np.nan, np.nan)
        numbers = {"value": estimate, "low": low, "high": high}
        cells.append(names | numbers | {"from_scratch": score.cell.pretrain == NONE, "note": score.reason})
        seeds += [names | {"value": value} for value in score.done]
    return pd.DataFrame(cells), pd.DataFrame(seeds, columns=["cell", "model", "value"])


def _label(cell: Cell) -> str:
    """A cell among those of the same task and fraction."""
    return ", ".join([*_names(cell.model, cell.init), _start(cell.pretrain)])


def _names(model: str, init: str) -> list[str]:
    return [model] if init == NONE else [model, init]


def _start(pretrain: str) -> str:
    return "from scratch" if pretrain == NONE else f"{pretrain} pretraining"


def _named(steps: pd.DataFrame) -> pd.DataFrame:
    """Learning curves with the words that people read for model and init, and for pretraining."""
    starts = [", ".join(_names(model, init)) for model, init in zip(steps.model, steps.init, strict=True)]
    return steps.assign(start=starts, pretrain=[_start(name) for name in steps.pretrain])


def _drawn(figure: Figure) -> dict[str, str]:
    """A figure whose chart has become a picture that a page can hold."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    drawn = spec(figure.chart)
    drawn["config"] |= {"font": PICTURE_FONT}
    svg = vl_convert.vegalite_to_svg(drawn, vl_version=version)
    picture = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return {"title": figure.title, "caption": figure.caption, "picture": picture}


def _whole(number: float) -> str:
    """'1,234', or an empty string where there is none."""
    return "" if pd.isna(number) else f"{number:,.0f}"


def _flat(table: dict[str, Any], path: str = "") -> Iterator[str]:
    """'versions.torch = 2.6' for every leaf of a nested mapping."""
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _flat(value, name)
        else:
            yield f"{name} = {value}"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1] if words else ""
