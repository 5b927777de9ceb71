"""Trials: as many for every cell, chosen by validation alone, the same whoever runs them and whatever interrupts."""

from __future__ import annotations

import csv
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners import OneByOne, fail, runner, told, train, wait_for
from study_folders import reported

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig, BadData, NotReady
from ssm_priors.metrics import METRICS
from ssm_priors.registry import TASKS
from ssm_priors.studies import results, tuning
from ssm_priors.studies.engines.engine import Message
from ssm_priors.studies.forecast import finished_seconds
from ssm_priors.studies.grid import TUNING_SEED, Study
from ssm_priors.studies.merging import unite
from ssm_priors.studies.report import content, words
from ssm_priors.studies.runner import execute, plan
from ssm_priors.studies.space import draw, nested
from ssm_priors.tasks.task import Split, Task
from ssm_priors.training.run import read_finished, read_trial, run

TINY = {"model": {"d_model": 8, "layers": 1, "mixer": {"d_state": 4}}, "finetune": {"epochs": 1}}
RATE = {"low": 1e-3, "high": 1e-1, "log": True}
SPACE = {"finetune.learning_rate": RATE, "pretrain.learning_rate": RATE}


def tuned(trials: int = 3, seeds: int = 2, **axes) -> Study:
    tune = {"trials": trials, "space": SPACE if "pretrains" in axes else {"finetune.learning_rate": RATE}}
    changes = TINY | ({"pretrain": {"epochs": 1}} if "pretrains" in axes else {})
    base = {"tasks": ["digits"], "fractions": [0.1], "seeds": seeds, "changes": changes, "tune": tune}
    return Study.from_dict(base | axes)


def ends(study, out, do=train):
    return [(event.kind, event.run and event.run.label) for event in execute(study, out, OneByOne(do))]


# --- the space --------------------------------------------------------------------------------------------------------


@given(
    st.floats(1e-6, 1.0),
    st.floats(1.01, 1e4),
    st.integers(1, 20),
    st.integers(1, 30),
    st.integers(1, 12),
    st.booleans(),
)
def test_points_lie_in_their_ranges_and_more_trials_begin_with_those_of_fewer(low, factor, least, more, trials, log):
    space = {
        "finetune.learning_rate": {"low": low, "high": low * factor, "log": log},
        "model.layers": {"low": least, "high": least + more, "whole": True},
        "model.norm": {"values": ["layer", "batch"]},
    }
    points = draw(space, trials)
    assert len(points) == trials
    for point in points:
        assert low <= point["finetune.learning_rate"] <= low * factor
        assert isinstance(point["model.layers"], int)
        assert least <= point["model.layers"] <= least + more
        assert point["model.norm"] in ("layer", "batch")
    assert draw(space, trials + 1)[:trials] == points


def test_eight_points_fall_in_eight_different_eighths_of_every_range():
    space = {"finetune.learning_rate": RATE, "model.dropout": {"low": 0.0, "high": 0.8}}
    points = draw(space, 8)
    eighths = [8 * np.log10(point["finetune.learning_rate"] / 1e-3) / 2 for point in points]
    assert sorted(map(int, eighths)) == list(range(8))
    assert sorted(int(10 * point["model.dropout"]) for point in points) == list(range(8))


def test_values_are_all_tried_equally_often():
    points = draw({"model.dropout": {"values": [0.0, 0.1, 0.2, 0.3]}}, 8)
    assert sorted(point["model.dropout"] for point in points) == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({}, "no setting is named"),
        ({"seed": RATE}, "a setting of model, pretrain, finetune"),
        ({"finetune": {"learning_rate": RATE}}, "in quotes"),
        ({"finetune.learning_rat": RATE}, "Did you mean learning_rate"),
        ({"finetune.learning_rate": {"low": 0.1, "hihg": 1.0}}, "Did you mean high"),
        ({"finetune.learning_rate": {"low": 0.1}}, "low 0.1 and high None were given"),
        ({"finetune.learning_rate": {"low": 0.0, "high": 1.0, "log": True}}, "both above 0"),
        ({"finetune.learning_rate": {"low": 0.1, "high": 1.0, "log": "yes"}}, "true or false"),
        ({"finetune.learning_rate": 0.1}, "a valid dictionary"),
        ({"model.layers": {"low": 1.5, "high": 3, "whole": True}}, "whole numbers"),
        ({"model.expand": {"low": 1, "high": 3}}, "a whole number was expected"),
        ({"model.dropout": {"values": [0.1]}}, "two or more"),
        ({"model.dropout": {"low": 0.5, "high": 9.0}}, "less than 1"),
        ({"model.mixer.name": {"values": ["s4d", "dss"]}}, "cell"),
        ({"model.d_model": {"low": 4, "high": 8, "whole": True}}, "changes sets it"),
        ({"pretrain.learning_rate": RATE}, "nothing pretrains"),
    ],
)
def test_a_wrong_space_is_refused(space, says):
    with pytest.raises(BadConfig, match=says):
        tuned(tune={"trials": 4, "space": space})


def test_a_searched_setting_that_something_else_decides_is_refused():
    rates = {"slow": {"finetune": {"learning_rate": 1e-3}}}
    with pytest.raises(BadConfig, match="variant 'slow' sets it"):
        tuned(variants=rates)
    with pytest.raises(BadConfig, match="something else decides"):
        tuned(changes={}, match_params=2892, tune={"trials": 2, "space": {"model.d_model": {"values": [64, 8]}}})


@pytest.mark.parametrize(("tune", "says"), [({"trials": 0}, "trials"), ({"trails": 3}, "Did you mean trials")])
def test_a_wrong_number_of_trials_is_refused(tune, says):
    with pytest.raises(BadConfig, match=says):
        tuned(tune={"space": {"finetune.learning_rate": RATE}} | tune)


def test_a_study_cannot_turn_its_test_off():
    with pytest.raises(BadConfig, match="a study tests its runs"):
        tuned(changes=TINY | {"test": False})


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(NotReady, match=r"ssm-priors\[tune\]"):
        tuned()


def test_a_written_study_needs_no_sampler_and_keeps_its_points(monkeypatch):
    study = tuned(pretrains=["masked"])
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert Study.from_toml(study.to_toml()) == study
    with pytest.raises(BadConfig, match="are not 2 points"):
        replace(study.tune, trials=2)


def test_a_study_without_trials_is_recorded_as_before():
    plain = Study.from_dict({"tasks": ["digits"]}).to_dict()
    assert {"tune", "chosen"}.isdisjoint(plain)


# --- trials -----------------------------------------------------------------------------------------------------------


def test_every_cell_has_the_same_trials_apart_from_its_runs():
    study = tuned(models=["s4d", "dss"], pretrains=["masked"], changes={})
    by_cell = {cell: [study.trial(cell, number) for number in range(3)] for cell in study.cells()}
    assert len(by_cell) == 4
    for cell, configs in by_cell.items():
        assert [config.finetune.learning_rate for config in configs] == [
            point["finetune.learning_rate"] for point in study.tune.points
        ]
        assert len({config.fingerprint for config in configs}) == 3
        assert {(config.seed, config.test) for config in configs} == {(TUNING_SEED, False)}
        assert study.searched(cell) == sorted(SPACE) if cell.pretrain != "none" else ["finetune.learning_rate"]
    assert all(config.test and config.seed < TUNING_SEED for *_, config in study.runs())


def poisoned(task: Task) -> Task:
    split = task.test
    test = Split(split.inputs * 0 + 1e9, split.lengths, (split.targets + 1) % 10)
    return Task(task.spec, task.train, task.validation, test, task.sha256)


def test_a_trial_reads_nothing_of_the_test_split(tmp_path, monkeypatch):
    study = tuned(1, pretrains=["masked"])
    config = study.trial(study.cells()[1], 0)
    clean = run(config, tmp_path / "clean", device="cpu")
    real = TASKS["digits"].load
    monkeypatch.setattr(TASKS["digits"], "load", staticmethod(lambda options: poisoned(real(options))))
    dirty = run(config, tmp_path / "dirty", device="cpu")
    assert clean.digest == dirty.digest
    assert clean.record["metrics"] == dirty.record["metrics"]
    assert list(clean.record["metrics"]) == ["validation_accuracy"]
    assert not (tmp_path / "clean" / "test.npz").exists()


def test_a_trial_is_never_taken_for_a_finished_run_nor_the_other_way_round(tmp_path):
    study = tuned(1)
    [cell] = study.cells()
    trial, tested = study.trial(cell, 0), study.config(cell, 0)
    run(trial, tmp_path / "trial", device="cpu")
    run(tested, tmp_path / "tested", device="cpu")
    assert run(trial, tmp_path / "trial", device="cpu").config == trial
    with pytest.raises(BadData, match="never tested"):
        read_finished(tmp_path / "trial")
    with pytest.raises(BadData, match="was tested"):
        read_trial(tmp_path / "tested", tested)
    with pytest.raises(BadData, match="another run"):
        read_finished(tmp_path / "trial", tested)


@given(st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3, 0.4]), max_size=8), st.sampled_from(["class", "values"]))
def test_the_first_of_the_best_is_chosen_and_failures_are_the_worst(values, answer):
    best = tuning.best_of(values, METRICS[answer])
    known = [value for value in values if value is not None]
    if not known:
        assert best is None
    else:
        assert best == values.index((min if answer == "values" else max)(known))


# --- both stages ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    study, out = tuned(pretrains=["masked"]), tmp_path_factory.mktemp("tuned")
    return study, out, ends(study, out)


def test_all_trials_come_before_all_runs_and_runs_have_the_best_settings(finished):
    study, out, happened = finished
    kinds = [kind for kind, _ in happened]
    assert kinds == ["finished"] * 6 + ["decided"] + ["finished"] * 4
    assert all("trial" in label for _, label in happened[:6])
    tried, settled = tuning.read(out), tuning.settled(study, out)
    for cell in study.cells():
        values = [
            Checkpoint.read(out / "runs" / study.trial(cell, number).fingerprint / "ckpt.pt").record["metrics"]
            for number in range(3)
        ]
        best = int(np.argmax([value["validation_accuracy"] for value in values]))
        assert tried[cell].best == best
        for seed in range(2):
            config = settled.config(cell, seed)
            assert config.finetune.learning_rate == study.tune.points[best]["finetune.learning_rate"]
            if config.pretrain:
                assert config.pretrain.learning_rate == study.tune.points[best]["pretrain.learning_rate"]
            assert read_finished(out / "runs" / config.fingerprint)[0].config == config


def test_results_are_those_of_the_chosen_settings_and_carry_all_trials(finished):
    study, out, _ = finished
    dataset = results.collect(study, out)
    assert (dataset.status == results.Status.DONE).all()
    assert Study.from_toml(dataset.attrs["study"]) == tuning.settled(study, out)
    assert {one.cell: one for one in results.tried(dataset)} == tuning.read(out)
    assert set(finished_seconds(study, out)) == set(study.cells())


def test_a_second_time_everything_is_kept_without_its_trials(finished):
    study, out, _ = finished
    assert [run.trial for run in plan(study, out)] == [None] * 4
    assert {kind for kind, _ in ends(study, out, fail)} == {"kept"}
    more = tuned(pretrains=["masked"], seeds=3)
    assert len([run for run in plan(more, out) if not run.is_done]) == 2


def test_a_folder_keeps_its_trials(finished):
    _, out, _ = finished
    with pytest.raises(BadConfig, match="other trials"):
        ends(tuned(4, pretrains=["masked"]), out)


def test_the_report_says_what_was_tried(finished):
    study, out, _ = finished
    settled = tuning.settled(study, out)
    dataset = results.collect(study, out)
    reported(settled, out)
    page = (out / "report.md").read_text()
    assert "## What was tried" in page
    [section] = content.tried(settled, dataset, content.measures(dataset))
    [table] = section.blocks
    assert len(table.rows) == 2
    said = dict(words.protocol(settled, dataset))["Tuning"]
    for expected in ("3 trials", "1,000,000", "0.001 to 0.1", "fewer settings", "never saw a test example"):
        assert expected in said
    first = tuning.read(out)[study.cells()[0]]
    rate = first.trials[first.best].settings["finetune.learning_rate"]
    assert f"a peak learning rate of {rate:g}" in dict(words.protocol(settled, dataset))["Finetuning"]
    assert list(content.tried(replace(settled, tune=None), dataset, content.measures(dataset))) == []


def test_what_trials_cost_stands_beside_what_runs_cost(finished):
    study, out, _ = finished
    reported(tuning.settled(study, out), out)
    with open(out / "tables" / "compute.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "3 trials"]
    for cell, row in zip(study.cells(), rows, strict=True):
        folders = [out / "runs" / study.trial(cell, number).fingerprint for number in range(3)]
        costs = [Checkpoint.read(folder / "ckpt.pt").record["cost"]["flops"] for folder in folders]
        spent = sum(sum(cost.values()) for cost in costs)
        assert tuning.read(out)[cell].flops == spent
        [unit] = {"GFLOP": 1e9, "MFLOP": 1e6}.keys() & row.keys()
        assert float(row[unit].replace(",", "")) == pytest.approx(spent / {"G": 1e9, "M": 1e6}[unit[0]], rel=0.005)


@pytest.mark.parametrize("harm", ["no json", "[{}]", '[{"cell": 3}]'])
def test_damaged_choices_are_told(tmp_path, harm):
    (tmp_path / tuning.FILE).write_text(harm)
    with pytest.raises(BadData, match="is damaged"):
        tuning.settled(tuned(), tmp_path)


def test_a_failed_trial_is_the_worst_and_told_and_where_all_fail_the_cell_does(tmp_path):
    study = tuned(models=["s4d", "dss"], seeds=1, changes={"model": {"d_model": 8, "layers": 1}, **SHORT})
    s4d, dss = study.cells()
    best_by_far = study.trial(s4d, 0).fingerprint

    def do(job):
        trial = job.config.test is False
        if trial and (job.config.model.mixer.name == "dss" or job.name == best_by_far):
            return Message(job.name, "failed", "it diverged")
        return train(job)

    happened = ends(study, tmp_path, do)
    assert [kind for kind, _ in happened].count("failed") == 5
    tried = tuning.read(tmp_path)
    assert tried[dss].best is None
    assert tried[s4d].best in (1, 2)
    assert tried[s4d].trials[0].error == "it diverged"
    table = results.table(results.collect(study, tmp_path)).set_index("model")
    assert table.status["s4d"] == "done"
    assert table.status["dss"] == "failed"
    assert "none of its 3 trials ended well" in table.reason["dss"]
    assert "it diverged" in table.reason["dss"]

    again = ends(study, tmp_path)
    assert [kind for kind, _ in again] == ["finished"] * 3 + ["decided", "kept", "finished"]
    assert (results.collect(study, tmp_path).status.stack(cell=("model", "init", "seed")) == 3).sum() == 2
    assert tuning.read(tmp_path)[s4d] == tried[s4d]


SHORT = {"finetune": {"epochs": 1}}


def test_a_study_that_is_left_between_its_trials_goes_on_to_the_same_end(finished, tmp_path):
    study, out, _ = finished
    events = execute(study, tmp_path, OneByOne(train))
    for _ in range(4):
        next(event for event in events if event.kind == "finished")
    events.close()
    assert not (tmp_path / tuning.FILE).exists()
    assert [kind for kind, _ in ends(study, tmp_path)].count("kept") == 4
    assert tuning.read(tmp_path) == tuning.read(out)
    ours, theirs = (results.collect(study, where) for where in (tmp_path, out))
    assert ours.score.equals(theirs.score)
    assert ours.fingerprint.equals(theirs.fingerprint)


@pytest.mark.xdist_group("sharing")
def test_two_runners_one_killed_between_the_stages_agree_with_one_left_alone(finished, tmp_path):
    study, out, _ = finished
    first = runner(study, tmp_path, 1)
    wait_for(lambda: (tmp_path / tuning.FILE).exists())
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    others = [runner(study, tmp_path, 1) for _ in range(2)]
    said = [line for other in others for line in told(other)]
    assert "failed" not in {kind for kind, *_ in said}
    assert tuning.read(tmp_path) == tuning.read(out)
    assert results.collect(study, tmp_path).score.equals(results.collect(study, out).score)


@pytest.mark.xdist_group("sharing")
def test_two_runners_from_the_start_share_the_trials_and_agree(finished, tmp_path):
    study, out, _ = finished
    pair = [runner(study, tmp_path, 1) for _ in range(2)]
    said = [line for other in pair for line in told(other)]
    done = [name for kind, name, _ in said if kind == "finished"]
    assert sorted(done) == sorted({*done})
    assert len(done) == 10
    assert tuning.read(tmp_path) == tuning.read(out)
    assert results.collect(study, tmp_path).score.equals(results.collect(study, out).score)


def test_merging_takes_choices_along_and_refuses_different_ones(finished, tmp_path):
    study, out, _ = finished
    other = tuned(pretrains=["masked"], models=["dss"])
    ends(other, tmp_path / "dss")
    whole, notes = unite({out: study, tmp_path / "dss": other}, tmp_path / "whole")
    assert notes == []
    assert (results.collect(whole, tmp_path / "whole").status != results.Status.MISSING).all()
    assert tuning.read(tmp_path / "whole") == tuning.read(out) | tuning.read(tmp_path / "dss")

    text = json.loads((out / tuning.FILE).read_text())
    text[0]["best"] = (text[0]["best"] + 1) % 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / tuning.FILE).write_text(json.dumps(text))
    with pytest.raises(BadConfig, match="chose different settings"):
        tuning.unite([out, tmp_path / "other"], tmp_path / "dss")


def test_paths_become_tables():
    assert nested({"a.b": 1, "a.c.d": 2}) == {"a": {"b": 1, "c": {"d": 2}}}
