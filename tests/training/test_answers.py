"""Every kind of answer, through training, testing, statistics and report, from scratch and after pretraining."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import made_tasks
import numpy as np
import pandas as pd
import pytest
import torch
from builders import SMALL
from study_folders import reported

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadData
from ssm_priors.metrics import metric_of
from ssm_priors.models.build import build
from ssm_priors.registry import TASKS
from ssm_priors.studies import results
from ssm_priors.studies.findings import find
from ssm_priors.studies.grid import Study
from ssm_priors.training.evaluate import evaluate
from ssm_priors.training.run import read_finished, run
from ssm_priors.training.stages import prepare

CPU = torch.device("cpu")
NAMES = ("large", "rate", "same", "double", "waves")
SIZE = {"d_model": 16, "layers": 1}
PHASE = {"epochs": 12, "batch_size": 10, "learning_rate": 2e-2}


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory):
    with made_tasks.registered(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSMP_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


def config(task: str, mixer: str = "s4d", **changes) -> RunConfig:
    model = {"mixer": {"name": mixer, **SMALL.get(mixer, {})}, **SIZE}
    return RunConfig.from_dict({"task": {"name": task}, "model": model, "finetune": PHASE} | changes)


def masked(**more) -> dict:
    return {"objective": {"name": "masked"}, **PHASE, "epochs": 1} | more


@pytest.fixture(scope="module", params=[(task, spt) for task in NAMES for spt in (False, True)], ids=str)
def finished(request, tmp_path_factory) -> tuple[RunConfig, Path, Checkpoint]:
    task, is_pretrained = request.param
    settings = config(task, pretrain=masked()) if is_pretrained else config(task)
    folder = tmp_path_factory.mktemp(task)
    return settings, folder, run(settings, folder, device="cpu")


def test_it_learns_what_is_asked(finished):
    settings, folder, saved = finished
    metric, task = metric_of(saved.spec), prepare(settings)
    value = saved.record["metrics"][f"test_{metric.name}"]
    chance = metric.value(metric.guess(task.test.labels.numpy()))
    if metric.lower_is_better:
        assert value < 0.7 * chance
    else:
        assert value > chance + 0.15
    assert read_finished(folder, settings)[0].digest == saved.digest


def test_the_best_validation_is_kept_in_the_metrics_own_direction(finished):
    _, folder, saved = finished
    metric = metric_of(saved.spec)
    with open(folder / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[f"validation_{metric.name}"]]
    told = [float(row[f"validation_{metric.name}"]) for row in rows]
    best = min(told) if metric.lower_is_better else max(told)
    assert saved.record["metrics"][f"validation_{metric.name}"] == best
    assert saved.record["step"] == int(rows[told.index(best)]["step"])


def test_a_checkpoint_scores_the_same_again_without_what_it_was_trained_with(finished):
    _, folder, _ = finished
    saved = Checkpoint.read(folder / "ckpt.pt")
    metric = metric_of(saved.spec)
    test = TASKS[saved.config.task.name].load(saved.config.task.options).test
    again = evaluate(saved.model(), test, saved.config.finetune.batch_size, CPU, saved.spec)
    assert again.value == saved.record["metrics"][f"test_{metric.name}"]
    np.testing.assert_array_equal(read_finished(folder)[1], again.predictions.numpy())


def test_the_batch_size_of_the_test_changes_no_answer(finished):
    settings, _, saved = finished
    test = prepare(settings).test
    one, other = (evaluate(saved.model(), test, size, CPU, saved.spec) for size in (1, 30))
    torch.testing.assert_close(one.predictions, other.predictions, atol=1e-3, rtol=1e-5)
    assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_a_pair_is_read_one_document_at_a_time():
    settings = config("same")
    task = prepare(settings)
    model = build(settings.model, task.spec, 0, outputs=2, pooled=True).eval()
    batch = task.test.take(torch.arange(6))
    assert (len(batch), len(batch.inputs), len(batch.targets)) == (6, 12, 6)
    answers = model(batch.inputs, batch.lengths)
    assert answers.shape == (6, 2)
    changed = batch.inputs.clone()
    changed[3] = 1  # the second document of pair 1
    other = model(changed, batch.lengths)
    assert torch.equal(answers[[0, 2, 3, 4, 5]], other[[0, 2, 3, 4, 5]])
    assert not torch.equal(answers[1], other[1])


def test_pretraining_on_pairs_masks_every_document(tmp_path):
    saved = run(config("same", pretrain=masked()), tmp_path, device="cpu")
    assert saved.record["cost"]["examples"] == {"pretrain": 60, "finetune": 720}


def test_the_scale_of_real_answers_comes_from_the_examples_that_a_run_sees():
    whole, part = (prepare(config("rate", fraction=fraction)) for fraction in (1.0, 0.4))
    for task in (whole, part):
        targets = task.train.labels.double()
        assert task.spec.mean == pytest.approx(targets.mean().item())
        assert task.spec.deviation == pytest.approx(targets.std(correction=0).item())
    assert len(part.train) == 24
    assert part.spec.mean != whole.spec.mean


def test_answers_that_are_all_the_same_are_refused(monkeypatch):
    task = made_tasks.Rate.load(None)
    task.train.targets[:] = 7
    monkeypatch.setattr(made_tasks.Rate, "load", staticmethod(lambda options: task))
    with pytest.raises(BadData, match="same target"):
        prepare(config("rate"))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Study, Path]:
    """Tasks of every metric in one study, run in this process, in which the tasks above are registered."""
    out = tmp_path_factory.mktemp("study")
    phase = PHASE | {"epochs": 3}
    changes = {"model": SIZE, "finetune": phase, "pretrain": phase | {"epochs": 1}}
    made = Study(tasks=("rate", "large", "double"), pretrains=("masked",), fractions=(1.0,), seeds=3, changes=changes)
    out.joinpath("study.toml").write_text(made.to_toml())
    for _, _, settings in made.runs():
        run(settings, out / "runs" / settings.fingerprint, device="cpu")
    return made, out


def test_a_study_of_several_metrics_has_each_right(study):
    made, out = study
    dataset = results.collect(made, out)
    results.write(dataset, out)
    dataset = results.read(out)
    findings = find(made, dataset)
    found = {score.cell.task: score for score in findings.scores if score.cell.pretrain == "none"}
    assert {name: score.metric.label for name, score in found.items()} == {
        "rate": "RMSE, bpm",
        "large": "accuracy, %",
        "double": "token accuracy, %",
    }
    for cell in [cell for cell in made.cells() if cell.pretrain == "none"]:
        runs = [read_finished(out / "runs" / made.config(cell, seed).fingerprint) for seed in range(3)]
        name = found[cell.task].metric.name
        recorded = [checkpoint.record["metrics"][f"test_{name}"] for checkpoint, *_ in runs]
        assert found[cell.task].values == pytest.approx(recorded)
        assert found[cell.task].interval.estimate == pytest.approx(np.mean(recorded))
    rate = [effect for effect in findings.effects if effect.task == "rate"]
    assert all(effect.metric.unit == "bpm" and " bpm [" in effect.numbers for effect in rate)


def test_the_report_of_several_metrics_labels_every_row(study):
    made, out = study
    dataset = results.collect(made, out)
    reported(made, out)
    page = (out / "report.html").read_text()
    for words in ("RMSE, bpm", "accuracy, %", "token accuracy, %", "lower is better", "percentage points of test"):
        assert words in page
    frame = pd.read_csv(out / "results.csv")
    assert dict(zip(frame.task, frame.metric, strict=True)) == {
        "rate": "rmse",
        "large": "accuracy",
        "double": "accuracy",
    }
    assert set(frame.unit[frame.task == "rate"]) == {"bpm"}
    assert results.curves(dataset, out).validation_metric.notna().sum() == len(frame) * 3


@pytest.mark.parametrize("task", ["rate", "double"])
def test_a_study_of_one_metric_names_its_columns_after_it(task, study, tmp_path):
    made, out = study
    alone = Study(tasks=(task,), pretrains=("masked",), fractions=(1.0,), seeds=3, changes=made.changes)
    reported(alone, out, into=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert {"rate": ">RMSE</h2>", "double": ">Token accuracy</h2>"}[task] in page
    assert ("percentage points" in page) == (task == "double")


def test_the_report_of_an_rmse_speaks_of_nothing_else(study, tmp_path):
    made, out = study
    alone = Study(tasks=("rate",), pretrains=("masked",), fractions=(1.0,), seeds=3, changes=made.changes)
    dataset = results.collect(alone, out)
    reported(alone, out, into=tmp_path)
    for name in ("report.html", "report.md", "tables/scores.tex", "tables/runs.csv", "results.csv"):
        text = (tmp_path / name).read_text()
        assert not re.search(r"accuracy|percent\b|percentage|Wilson's", text, re.IGNORECASE), name
    page = (tmp_path / "report.md").read_text()
    for words in (
        "Effects on test RMSE",
        "Differences of test RMSE, bpm: lower is better.",
        "rate was scored by RMSE in bpm, lower is better",
        "finetuned on the squared error of the labels",
        "best value of the validation metric",
        "mean of those of its runs",
        "Chance is 1",
    ):
        assert words in page
    with open(tmp_path / "tables" / "scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {score.cell.pretrain: score for score in find(alone, dataset).scores}
    for row in rows:
        score = found[row["pretraining"]]
        assert row["RMSE, bpm"] == score.metric.text(score.interval.estimate)
        assert row["median, bpm"] == score.metric.text(score.median)
    with open(tmp_path / "tables" / "runs.csv", newline="") as file:
        assert all(float(row["test, bpm"]) > 0 for row in csv.DictReader(file))


def test_where_tasks_have_several_metrics_every_number_says_its_own(study, tmp_path):
    made, out = study
    reported(made, out, into=tmp_path)
    with open(tmp_path / "tables" / "scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["task"]: row["metric"] for row in rows} == {
        "rate": "RMSE, bpm",
        "large": "accuracy, %",
        "double": "token accuracy, %",
    }
    with open(tmp_path / "tables" / "effects.csv", newline="") as file:
        gaps = {row["comparison"].rpartition(", ")[2]: row["difference"] for row in csv.DictReader(file)}
    assert {task: gap.rpartition(" ")[2] for task, gap in gaps.items()} == {
        "rate": "bpm",
        "large": "points",
        "double": "points",
    }
    with open(tmp_path / "tables" / "runs.csv", newline="") as file:
        assert {row["task"]: row["test"][-1] for row in csv.DictReader(file)} == {
            "rate": "m",
            "large": "%",
            "double": "%",
        }
    page = (tmp_path / "report.md").read_text()
    for words in ("squared error of the labels", "at every asked position", "Wilson's interval", "token accuracy"):
        assert words in page


def test_a_task_without_any_run_still_knows_its_metric(tmp_path):
    made = Study(tasks=("rate",), seeds=1)
    dataset = results.collect(made, tmp_path)
    assert results.metric(dataset, "rate").label == "RMSE, bpm"
    assert np.isnan(dataset.chance).all()
