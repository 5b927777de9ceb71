"""What a report says, assembled once: a study and its results -> a document. Nothing here knows of any format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from ssm_priors.analyses.charts import page, theme
from ssm_priors.metrics import ACCURACY, Metric
from ssm_priors.studies import results as runs
from ssm_priors.studies.claims import Answer
from ssm_priors.studies.findings import Findings
from ssm_priors.studies.grid import NONE, Cell, Study
from ssm_priors.studies.report import charted, labels
from ssm_priors.studies.report.document import Cell as Text
from ssm_priors.studies.report.document import (
    Column,
    Document,
    Listing,
    Names,
    Paragraph,
    Section,
    Table,
    row,
    slug,
)
from ssm_priors.studies.report.measures import Measures, measures
from ssm_priors.studies.report.published import benchmark_of, published
from ssm_priors.studies.report.words import flat, listed, methods, parts, protocol
from ssm_priors.studies.statistics import CellScore, Effect
from ssm_priors.studies.tuning import Tried

Extra = tuple[str, Sequence[theme.Figure], Sequence[page.Table]]
"""A section of somebody else's: title, figures, tables."""


def assemble(
    study: Study, results: xr.Dataset, findings: Findings, steps: pd.DataFrame, extra: Sequence[Extra] = ()
) -> Document:
    """The whole report.

    Args:
        study: what was asked.
        results: of `results.collect`.
        findings: what they say.
        steps: of `results.curves`.
        extra: sections that stand between the study's charts and its compute.
    """
    scores, effects, table = findings.scores, findings.effects, runs.table(results)
    measured, names = measures(results), Names()
    sections = [
        Section("What was asked", [*([Paragraph(study.question.strip())] if study.question else []), asked(study)]),
        *claimed(findings.answers),
        Section("What was found", [in_short(effects), found(effects, measured)]),
        Section(measured.title, [main(scores, results, measured), *beside_published(study, scores)]),
        *charted.against_data(scores, results, names),
        *charted.against_compute(scores, results, names),
        *charted.places(scores, results, steps, names),
        *(charted.adopted(*each, names) for each in extra),
        Section("Compute", [compute(scores, results), Paragraph("not measured.", "Energy:")]),
        Section("Runs without a result", [without_result(table, results)]),
        Section("Leak audit", [audited(results)]),
        *tried(study, results, measured),
        Section("How it was done", [*told_protocol(study, results), used(study), settings(study)]),
        Section("Methods, to paste", [Paragraph(methods(study, results))]),
        Section("Every run", [every_run(table, results, measured)]),
        Section("Where it was done", [origins(results)]),
    ]
    return Document(title(study), sections)


def title(study: Study) -> str:
    """The study's own, or 's4d on mnist: does it matter where training starts?'."""
    return study.title or f"{listed(study.models)} on {listed(study.tasks)}: does it matter where training starts?"


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
        ("budget", listed([f"{name}: {', '.join(flat(budget))}" for name, budget in study.budgets.items()])),
        ("variant", listed([f"{name}: {', '.join(flat(changes))}" for name, changes in study.variants.items()])),
        ("left out", listed([", ".join(flat(place)) for place in study.exclude])),
        ("parameters", f"every model is sized to {study.match_params:,}" if study.match_params else ""),
        ("seeds", f"{study.seeds} (0 to {study.seeds - 1})" if study.seeds > 1 else "1 (0)"),
        ("preset", f"{study.preset}: {study.settings['description']}"),
        ("changed settings", listed(list(flat(study.changes)))),
    ]
    columns = [Column("axis"), Column("values", "text")]
    return Table("asked", "The study", columns, [row(*each) for each in rows if each[1]], is_headed=False)


CLAIMED = (
    "What the study was made to test, written down with its axes. Each interval is for its claim alone; verdicts "
    "follow Holm's correction of the p-values, so that of all claims any is called wrongly in at most 5% of such "
    "studies. A claim is undecided where its corrected p-value is not below 0.05, a run is missing, or there are fewer "
    "than 3 seeds."
)


def claimed(given: Sequence[Answer]) -> Iterator[Section]:
    """The claims of a study with their verdicts; nothing where it has none."""
    if not given:
        return
    columns = [Column("claim", "text"), Column("verdict"), Column("value and 95% interval", "number")]
    columns += [Column("claimed"), Column("seeds", "number"), Column("why", "text")]
    rows = [
        [
            *row(_claim(answer, given), Text(answer.verdict, "" if answer.verdict == "undecided" else "strong")),
            *row(answer.numbers, answer.wanted, str(answer.seeds), answer.why),
        ]
        for answer in given
    ]
    yield Section("What was claimed", [Table("claims", "The claims", columns, rows, CLAIMED)])


def _claim(answer: Answer, given: Sequence[Answer]) -> str:
    """Its words, with the task where there are several."""
    return answer.claim.text + (f", {answer.task}" if len({each.task for each in given}) > 1 else "")


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
    return [*row(estimate, labels.interval(score), median, done), remarks]


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
            row(labels.model(score.cell), labels.start(score.cell.pretrain), labels.shown(score), "measured here")
            for score in here
        ]
        rows += [row(each.model, each.training, str(each.accuracy), f"published: {each.source}") for each in numbers]
        caption = "Published numbers were not measured here: other code, other sizes and often other protocols."
        yield Table(f"published-{slug(task)}", f"{benchmark}, beside published numbers", columns, rows, caption)


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
TRIALS = " FLOPs of trials are those of all trials of the cell together, both phases; failed ones are not in them."
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1, ""))


def compute(scores: Sequence[CellScore], results: xr.Dataset) -> Table:
    """What every cell cost, by phase."""
    phases = [(score.cell, phase) for score in scores for phase in runs.phases(score.cell)]
    flops = [runs.mean(results, cell, f"{phase}_flops") for cell, phase in phases]
    tuned = {one.cell: one for one in runs.tried(results)}
    factor, prefix = next((each for each in PREFIXES if np.nanmax([0, *flops]) >= each[0]), PREFIXES[-1])
    columns = [*labels.axes(results), Column("phase"), Column(f"{prefix}FLOP", "number")]
    columns += [Column(name, "number") for name in ("steps", "examples", "tokens", "seconds", "peak memory, MiB")]
    rows = []
    for (cell, phase), flop in zip(phases, flops, strict=True):
        counts = [labels.whole(runs.mean(results, cell, f"{phase}_{name}")) for name in ("steps", "examples", "tokens")]
        seconds = runs.mean(results, cell, f"{phase}_seconds")
        memory = labels.whole(_memory(results, cell) / 2**20)
        numbers = [labels.significant(flop / factor), *counts, labels.significant(seconds), memory]
        rows.append([*labels.coordinates(cell, results), *row(runs.PHASES[phase], *numbers)])
        if phase == runs.phases(cell)[-1] and cell in tuned:
            spent = labels.significant((tuned[cell].flops or np.nan) / factor)
            told = row(f"{len(tuned[cell].trials)} trials", spent, *[""] * 5)
            rows.append([*labels.coordinates(cell, results), *told])
    return Table("compute", "What training took", columns, rows, COUNTED + (TRIALS if tuned else ""))


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


AUDITED = (
    "Before anything was trained, every example of every split was looked at: by a hash of its inputs, and texts also "
    "by MinHash signatures of their word 5-shingles (Jaccard similarity of about 0.8 or more)."
)


def audited(results: xr.Dataset) -> Table | Paragraph:
    """Whether what is tested or chosen by stands in the training split."""
    found = json.loads(results.attrs.get("audits", "{}"))
    if not found:
        return Paragraph("Not made: these results come from a version, or a folder, without one.")
    columns = [Column("task"), Column("which", "text"), Column("exactly", "number"), Column("nearly", "number")]
    rows = [
        row(task, pair, str(count), str(one["near"][pair]) if one["near"] and pair in one["near"] else "")
        for task, one in found.items()
        for pair, count in one["exact"].items()
    ]
    return Table("leaks", "Examples that stand in two splits", columns, rows, AUDITED)


TRIED = (
    "What was tried before the runs, on the validation split alone, and the settings that all runs of the cell then "
    "had. Median and worst are those of the trials that ended well; one that failed counts as worse than any. The best "
    "of several noisy values is too good: what settings are worth is said by the test results, from other seeds."
)


def tried(study: Study, results: xr.Dataset, measured: Measures) -> Iterator[Section]:
    """The trials of every cell; nothing where nothing was tuned."""
    if study.tune is None:
        return
    found = [one for one in runs.tried(results) if runs.is_cell(results, one.cell)]
    columns = [*labels.axes(results), Column("trials", "number"), Column("failed", "number")]
    columns += [Column("chosen settings", "text"), *measured.columns()]
    columns += [Column(f"{which} validation{measured.unit}", "number") for which in ("best", "median", "worst")]
    rows = [
        [*labels.coordinates(one.cell, results), *_tried(one, runs.metric(results, one.cell.task), measured)]
        for one in found
    ]
    table = Table("tried", "Trials of every cell", columns, rows, TRIED)
    yield Section("What was tried", [table if rows else Paragraph("The trials have not ended yet.")])


def _tried(one: Tried, metric: Metric, measured: Measures) -> list[Text]:
    values = one.values(metric)
    failed = len(one.trials) - len(values)
    chosen = Text("none: all failed", "bad") if one.best is None else ", ".join(flat(one.trials[one.best].settings))
    spread = [values[0], float(np.median(values)), values[-1]] if values else [None] * 3
    numbers = [measured.text(one.cell.task, value) if value is not None else "" for value in spread]
    told = Text(str(failed), "bad" if failed else "")
    return row(str(len(one.trials)), told, chosen, *measured.names(one.cell.task), *numbers)


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
