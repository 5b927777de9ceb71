"""What a report says, assembled once: a study and its results -> a document. Nothing here knows of any format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts import page, theme
from ssm_priors.analyses.charts.curves import curves as curves_chart
from ssm_priors.analyses.charts.gap import gap as gap_chart
from ssm_priors.analyses.charts.studies import against_fraction
from ssm_priors.metrics import ACCURACY, Metric
from ssm_priors.registry import TASKS, summary
from ssm_priors.studies import results as runs
from ssm_priors.studies import statistics
from ssm_priors.studies.grid import NONE, Cell, Study
from ssm_priors.studies.report import labels
from ssm_priors.studies.report.document import Cell as Text
from ssm_priors.studies.report.document import (
    Column,
    Document,
    Figure,
    Listing,
    Names,
    Paragraph,
    Section,
    Table,
    row,
    slug,
)
from ssm_priors.studies.report.measures import Measures, measures, spoken
from ssm_priors.studies.report.published import benchmark_of, published
from ssm_priors.studies.report.words import flat, listed, methods, parts, protocol
from ssm_priors.studies.statistics import CellScore, Effect

Extra = tuple[str, Sequence[theme.Figure], Sequence[page.Table]]
"""A section of somebody else's: title, figures, tables."""
MOST_TOLD = 12
"""Cells whose numbers the text for a chart tells; the table has all."""


def assemble(study: Study, results: xr.Dataset, steps: pd.DataFrame, extra: Sequence[Extra] = ()) -> Document:
    """The whole report.

    Args:
        study: what was asked.
        results: of `results.collect`.
        steps: of `results.curves`.
        extra: sections that stand between the study's charts and its compute.
    """
    scores, effects, table = statistics.scores(results), statistics.effects(results), runs.table(results)
    measured, names = measures(results), Names()
    sections = [
        Section("What was asked", [asked(study)]),
        Section("What was found", [in_short(effects), found(effects, measured)]),
        Section(measured.title, [main(scores, results, measured), *beside_published(study, scores)]),
        *against_data(scores, results, names),
        *places(scores, results, steps, names),
        *(_extra(*each, names) for each in extra),
        Section("Compute", [compute(scores, results), Paragraph("not measured.", "Energy:")]),
        Section("Runs without a result", [without_result(table, results)]),
        Section("How it was done", [*told_protocol(study, results), used(study), settings(study)]),
        Section("Methods, to paste", [Paragraph(methods(study, results))]),
        Section("Every run", [every_run(table, results, measured)]),
        Section("Where it was done", [origins(results)]),
    ]
    return Document(title(study), sections)


def title(study: Study) -> str:
    """'s4d on mnist: does it matter where training starts?'."""
    return f"{listed(study.models)} on {listed(study.tasks)}: does it matter where training starts?"


# --- what was asked and found ----------------------------------------------------------------------------------------


def asked(study: Study) -> Table:
    """The study in words: axis -> its values."""
    cells = study.cells()
    inits = [init for init in dict.fromkeys(cell.init for cell in cells) if init != NONE]
    objectives = [labels.start(pretrain) for pretrain in dict.fromkeys(cell.pretrain for cell in cells)]
    fractions = [f"{fraction:.3g}" for fraction in dict.fromkeys(cell.fraction for cell in cells)]
    rows = [
        ("model", listed(study.models)),
        ("init", listed(inits)),
        ("training", listed(objectives)),
        ("task", listed(study.tasks)),
        ("share of the training data", listed(fractions)),
        ("seeds", f"{study.seeds} (0 to {study.seeds - 1})" if study.seeds > 1 else "1 (0)"),
        ("preset", f"{study.preset}: {study.settings['description']}"),
        ("changed settings", listed(list(flat(study.changes)))),
    ]
    columns = [Column("axis"), Column("values", "text")]
    return Table("asked", "The study", columns, [row(*each) for each in rows if each[1]], is_headed=False)


GAPS = (
    "A gap that pretraining closes is one that came from where training started. Each interval is for its comparison "
    "alone: of twenty comparisons between equals, about one interval excludes zero by chance."
)


def found(effects: Sequence[Effect], measured: Measures) -> Table:
    """Every effect with what may be said of it."""
    columns = [Column("comparison", "text"), Column(measured.gap, "number"), Column("95% interval", "number")]
    columns += [Column("seeds", "number"), Column("what may be said", "text")]
    gaps = [_gap(effect, measured) for effect in effects]
    rows = [
        row(effect.text, gap, effect.bounds, str(effect.seeds), _verdict(effect))
        for effect, gap in zip(effects, gaps, strict=True)
    ]
    caption = f"{measured.about_gaps} {GAPS}" if rows else "One cell alone: there is nothing to compare."
    return Table("effects", f"Effects on {measured.subject}", columns, rows, caption)


def _gap(effect: Effect, measured: Measures) -> str:
    """The difference, with its unit where the column does not say it."""
    unit = effect.metric.gap_unit if measured.several_gaps and effect.points else ""
    return f"{effect.points} {unit}".rstrip()


def in_short(effects: Sequence[Effect]) -> Paragraph:
    """What a reader may take home."""
    claims = [f"{effect.text}: {effect.numbers}" for effect in effects if effect.is_claim]
    of_all = f"of {len(effects)} comparison{'' if len(effects) == 1 else 's'}"
    if not claims:
        return Paragraph(f"none {of_all} is a difference that this study may call real.", "In short:")
    return Paragraph(f"{len(claims)} {of_all} may be called real: {'; '.join(claims)}.", "In short:")


def _verdict(effect: Effect) -> Text:
    return Text(effect.verdict, "strong" if effect.is_claim else "" if effect.available else "bad")


def main(scores: Sequence[CellScore], results: xr.Dataset, measured: Measures) -> Table:
    """The main table: a row a cell."""
    numbers = (measured.value, "95% interval", f"median{measured.unit}", "seeds")
    columns = [*labels.axes(results), *measured.columns(), *(Column(name, "number") for name in numbers)]
    rows = [
        [*labels.coordinates(score.cell, results), *row(*measured.names(score.cell.task)), *_score(score)]
        for score in scores
    ]
    title = measured.subject[0].upper() + measured.subject[1:]
    return Table("scores", f"{title}, in every cell", [*columns, Column("remarks", "text")], rows)


def _score(score: CellScore) -> list[Text]:
    done = f"{score.seeds} of {len(score.values)}"
    remarks = Text("; ".join(score.remarks), "bad")
    if score.interval is None:
        return [*row(Text("no result", "bad"), "", "", done), remarks]
    estimate, median = map(score.metric.text, (score.interval.estimate, score.median))
    return [*row(estimate, _interval(score), median, done), remarks]


def _interval(score: CellScore) -> str:
    return "[{}, {}]".format(*map(score.metric.text, score.interval[1:])) if score.interval else ""


def beside_published(study: Study, scores: Sequence[CellScore]) -> Iterator[Table]:
    """Our cells and published accuracies of the same benchmark, for tasks that read a benchmark's own data."""
    columns = [Column("model"), Column("training"), Column(ACCURACY.label, "number"), Column("where from", "text")]
    for task in dict.fromkeys(study.tasks):
        here = [score for score in scores if score.cell.task == task and score.cell.fraction == 1]
        here = [score for score in here if score.metric == ACCURACY]
        benchmark = benchmark_of(study.config(here[0].cell, 0).task) if here else ""
        numbers = published(benchmark)
        if not numbers:
            continue
        rows = [
            row(labels.model(score.cell), labels.start(score.cell.pretrain), _shown(score), "measured here")
            for score in here
        ]
        rows += [row(each.model, each.training, str(each.accuracy), f"published: {each.source}") for each in numbers]
        caption = "Published numbers were not measured here: other code, other sizes and often other protocols."
        yield Table(f"published-{slug(task)}", f"{benchmark}, beside published numbers", columns, rows, caption)


def _shown(score: CellScore) -> str:
    return f"{score.metric.text(score.interval.estimate)} {_interval(score)}" if score.interval else "no result"


# --- charts ----------------------------------------------------------------------------------------------------------


def places(scores: Sequence[CellScore], results: xr.Dataset, steps: pd.DataFrame, names: Names) -> Iterator[Section]:
    """A section for every task, fraction and budget."""
    for place in dict.fromkeys(_place(score.cell) for score in scores):
        here = [score for score in scores if _place(score.cell) == place]
        task, fraction, budget = place
        share = "" if fraction == 1 else f", {fraction:.3g} of the training data"
        chance, metric = float(results.chance.sel(task=task)), runs.metric(results, task)
        name = task if fraction == 1 else f"{task} {fraction:.3g}"
        chart = gap_chart(*_gap_frames(here), chance, metric)
        figures = [_named(chart, f"gap {name}", _gap_words(here, chance, metric), names)]
        if len(steps):
            own = steps[(steps.task == task) & (steps.fraction == fraction) & (steps.budget == budget)]
            if own.loss.notna().any():
                own = _worded(own)
                figures.append(_named(curves_chart(own, metric), f"curves {name}", _curve_words(own, metric), names))
        yield Section(f"{task}{share}", [Paragraph(summary(TASKS[task])), *figures])


def against_data(scores: Sequence[CellScore], results: xr.Dataset, names: Names) -> list[Section]:
    """How much of a gap is left as data grow: a chart a task, for a study of several shares."""
    if results.sizes["fraction"] == 1:
        return []
    figures = []
    for task in dict.fromkeys(score.cell.task for score in scores):
        here, metric = [score for score in scores if score.cell.task == task], runs.metric(results, task)
        chart = against_fraction(_data_frame(here), f"test {metric.label}", percent=metric.is_share)
        told = [f"{labels.label(score.cell)}, {score.cell.fraction:.3g} of the data: {_shown(score)}" for score in here]
        figures.append(_named(chart, f"data {task}", f"A line a cell. {_told(told)}", names))
    return [Section("Against the amount of data", figures)]


def _data_frame(scores: Sequence[CellScore]) -> pd.DataFrame:
    rows = []
    for score in scores:
        estimate, low, high = score.interval or (np.nan, np.nan, np.nan)
        cell = score.cell
        axes = {"cell": labels.label(cell), "model": cell.model, "init": cell.init, "pretrain": cell.pretrain}
        rows.append(axes | {"x": cell.fraction, "value": estimate, "low": low, "high": high})
    return pd.DataFrame(rows)


def _place(cell: Cell) -> tuple[str, float, str]:
    return cell.task, cell.fraction, cell.budget


def _gap_frames(scores: Sequence[CellScore]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the gap chart takes: cells, and seeds."""
    cells, seeds = [], []
    for score in scores:
        names = {"cell": labels.label(score.cell), "model": score.cell.model}
        estimate, low, high = score.interval or (np.nan, np.nan, np.nan)
        numbers = {"value": estimate, "low": low, "high": high}
        cells.append(names | numbers | {"from_scratch": score.cell.pretrain == NONE, "note": score.reason})
        seeds += [names | {"value": value} for value in score.done]
    return pd.DataFrame(cells), pd.DataFrame(seeds, columns=["cell", "model", "value"])


def _gap_words(scores: Sequence[CellScore], chance: float, metric: Metric) -> str:
    told = [f"{labels.label(score.cell)}: {_shown(score)}" for score in scores]
    level = "" if np.isnan(chance) else f" Chance is {metric.full(chance)}."
    shown = f"A row for each of {len(scores)} cells with its 95% interval: test {spoken(metric)}."
    return f"{shown} {_told(told)}{level}"


def _curve_words(steps: pd.DataFrame, metric: Metric) -> str:
    cells = steps.groupby(["start", "pretrain"], sort=False)
    told = [", ".join([*key, *_course(rows, metric)]) for key, rows in cells]
    return f"Loss and validation {metric.title} over steps. {_told(told)}"


def _course(rows: pd.DataFrame, metric: Metric) -> list[str]:
    """What one cell's curves do, in words."""
    told = [text for phase, words in runs.PHASES.items() if (text := _ends(rows[rows.phase == phase], words))]
    best = rows.validation_metric.min() if metric.lower_is_better else rows.validation_metric.max()
    return told if np.isnan(best) else [*told, f"best validation {metric.title} {metric.full(best)}"]


def _ends(rows: pd.DataFrame, words: str) -> str:
    """'finetuning loss from 2.3 to 0.41', means of the first and the last tenth of the steps."""
    loss = rows.groupby("step").loss.mean().dropna()
    few = max(1, len(loss) // 10)
    return f"{words} loss from {loss.iloc[:few].mean():.2g} to {loss.iloc[-few:].mean():.2g}" if len(loss) else ""


def _told(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_TOLD
    return "; ".join(parts[:MOST_TOLD]) + (f"; and {more} more, in the tables." if more > 0 else ".")


def _named(figure: theme.Figure, name: str, words: str, names: Names) -> Figure:
    return Figure(names.new(name), figure.title, figure.chart, figure.caption, f"{figure.title}. {words}")


def _extra(heading: str, figures: Sequence[theme.Figure], tables: Sequence[page.Table], names: Names) -> Section:
    drawn = [_named(figure, f"{heading} {figure.title}", figure.caption, names) for figure in figures]
    return Section(heading, [*(_adopted(heading, table, names) for table in tables), *drawn])


def _adopted(heading: str, table: page.Table, names: Names) -> Table:
    rows = [row(*cells) for cells in table.rows]
    return Table(names.new(f"{heading} {table.title}"), table.title, _typed(table), rows, table.caption)


def _typed(table: page.Table) -> list[Column]:
    numeric = [all(cells[i][:1] in tuple("-+0123456789") for cells in table.rows) for i in range(len(table.columns))]
    return [Column(name, "number" if number else "text") for name, number in zip(table.columns, numeric, strict=True)]


def _worded(steps: pd.DataFrame) -> pd.DataFrame:
    """Learning curves with the words that people read for model and init, and for pretraining."""
    starts = [", ".join(labels.names_of(model, init)) for model, init in zip(steps.model, steps.init, strict=True)]
    return steps.assign(start=starts, pretrain=[labels.start(name) for name in steps.pretrain])


# --- compute and runs ------------------------------------------------------------------------------------------------

COUNTED = (
    "Means over the seeds that are done. FLOPs are counted, not measured: matrix products (attention whole, masked or "
    "not), convolutions, FFTs (5 n log2 n, half of that for real numbers) and complex arithmetic of the steps of "
    "training, forward and backward, a teacher's forward pass and padding included; not real arithmetic number by "
    "number, the optimiser, validation or test. Examples and tokens (valid positions) are counted with repeats. "
    "Seconds are wall-clock time of the phase with its validation, on a machine that may have been shared. Peak memory "
    "is the most that a run's process had held until its end, earlier runs in the same process included; on CUDA, the "
    "most that its tensors had held on the device. Empty: not recorded."
)
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1, ""))


def compute(scores: Sequence[CellScore], results: xr.Dataset) -> Table:
    """What every cell cost, by phase."""
    phases = [(score.cell, phase) for score in scores for phase in _phases(score.cell)]
    flops = [_mean(results, cell, f"{phase}_flops") for cell, phase in phases]
    factor, prefix = next((each for each in PREFIXES if np.nanmax([0, *flops]) >= each[0]), PREFIXES[-1])
    columns = [*labels.axes(results), Column("phase"), Column(f"{prefix}FLOP", "number")]
    columns += [Column(name, "number") for name in ("steps", "examples", "tokens", "seconds", "peak memory, MiB")]
    rows = []
    for (cell, phase), flop in zip(phases, flops, strict=True):
        counts = [labels.whole(_mean(results, cell, f"{phase}_{name}")) for name in ("steps", "examples", "tokens")]
        seconds = _mean(results, cell, f"{phase}_seconds")
        memory = labels.whole(_memory(results, cell) / 2**20)
        numbers = [labels.significant(flop / factor), *counts, labels.significant(seconds), memory]
        rows.append([*labels.coordinates(cell, results), *row(runs.PHASES[phase], *numbers)])
    return Table("compute", "What training took", columns, rows, COUNTED)


def _phases(cell: Cell) -> list[str]:
    return [phase for phase in runs.PHASES if phase != "pretrain" or cell.pretrain != NONE]


def _mean(results: xr.Dataset, cell: Cell, name: str) -> float:
    return float(runs.at(results, cell)[name].mean())


def _memory(results: xr.Dataset, cell: Cell) -> float:
    """Of the device where there is one; the most over seeds."""
    here = runs.at(results, cell)
    device, process = float(here.device_peak_memory.max()), float(here.process_peak_memory.max())
    return process if np.isnan(device) else device


def without_result(table: pd.DataFrame, results: xr.Dataset) -> Table | Paragraph:
    """Runs that failed or are missing, with their reasons."""
    lacking = table[table.status != runs.Status.DONE.word]
    if lacking.empty:
        return Paragraph(f"None: all {len(table)} runs are done.")
    columns = [*labels.axes(results), Column("seed", "number"), Column("status")]
    columns += [Column("reason", "text"), Column("folder", "code")]
    rows = []
    for run in lacking.itertuples():
        told = row(str(run.seed), Text(run.status, "bad"), Text(run.reason, "bad"), run.fingerprint)
        rows.append([*labels.coordinates(run, results), *told])
    caption = f"{len(lacking)} of {len(table)} runs. A missing run has not finished, or not begun."
    return Table("without-result", "Failed and missing runs", columns, rows, caption)


def every_run(table: pd.DataFrame, results: xr.Dataset, measured: Measures) -> Table:
    """A row a run, also where it has no result."""
    numbers = ("seed", "best step", f"validation{measured.unit}", f"test{measured.unit}", "parameters")
    columns = [*labels.axes(results), *(Column(name, "number") for name in numbers), Column("status")]
    rows = []
    for run in table.itertuples():
        values = [measured.text(run.task, value) for value in (run.validation_metric, run.test_metric)]
        status = Text(run.status, "" if run.status == runs.Status.DONE.word else "bad")
        told = row(
            str(run.seed), labels.whole(run.best_step), *values, labels.whole(run.parameters), status, run.fingerprint
        )
        rows.append([*labels.coordinates(run, results), *told])
    return Table("runs", "Runs", [*columns, Column("folder", "code")], rows)


# --- how and where ---------------------------------------------------------------------------------------------------


def told_protocol(study: Study, results: xr.Dataset) -> list[Paragraph]:
    """What was done, in the order in which it happened."""
    return [Paragraph(text, f"{lead}.") for lead, text in protocol(study, results)]


def used(study: Study) -> Table:
    """Everything that was chosen by name, with its source."""
    columns = [Column("part"), Column("name"), Column("what it is", "text"), Column("source", "text")]
    return Table("parts", "What was used", columns, [row(*part) for part in parts(study)])


def settings(study: Study) -> Listing:
    """One run's configuration, whole."""
    config = study.config(study.cells()[-1], 0)  # the last cell pretrains, if any does
    return Listing("The full configuration of one run", config.to_toml())


def origins(results: xr.Dataset) -> Table | Paragraph:
    """Where the results come from: what was recorded -> its values, several where runs differ."""
    found: dict[str, list[str]] = {}
    for task, records in json.loads(results.attrs["provenance"]).items():
        for record in records:
            for line in flat(record):
                key, _, value = line.partition(" = ")
                values = found.setdefault(f"{key} ({task})" if key == "data_sha256" else key, [])
                values += [] if value in values else [value]
    if not found:
        return Paragraph("No run is done yet.")
    rows = [row(key.replace("_", " "), ", ".join(values)) for key, values in found.items()]
    return Table("provenance", "Provenance", [Column("what"), Column("recorded", "text")], rows, is_headed=False)
