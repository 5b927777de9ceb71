from __future__ import annotations

import json

import pytest
from study_folders import ABLATION, study_folder

from ssm_priors.errors import BadData
from ssm_priors.registry import TASKS
from ssm_priors.studies import audits
from ssm_priors.studies.results import collect
from ssm_priors.tasks.audit import Audit

LEAKY = Audit(
    sha256="ab",
    examples={"train": 9, "validation": 5, "test": 1000},
    exact={"validation in train": 0, "test in train": 2, "test in validation": 1},
    near={"validation in train": 1, "test in train": 3},
)


def test_a_study_is_looked_at_once_and_again_when_its_data_change(tmp_path, monkeypatch):
    first = audits.examine(ABLATION, tmp_path)
    assert list(first) == ["mnist"]
    assert audits.read(tmp_path) == first
    monkeypatch.setattr(audits, "audit", lambda task: pytest.fail("it was looked at already"))
    assert audits.examine(ABLATION, tmp_path) == first
    monkeypatch.setattr(audits, "audit", lambda task: LEAKY)
    path = tmp_path / audits.FILE
    path.write_text(path.read_text().replace(first["mnist"].sha256, "cd" * 32))
    assert audits.examine(ABLATION, tmp_path) == {"mnist": LEAKY}


def test_a_leak_is_told_in_words():
    [warning] = audits.warnings({"text": LEAKY, "mnist": audits.audit(TASKS["mnist"].load(TASKS["mnist"].Config()))})
    assert warning == (
        "task 'text' leaks: 2 of 1,000 test examples stand in the training split; "
        "1 of 1,000 test examples stand in the validation split; "
        "1 of 5 validation examples nearly stand in the training split; "
        "3 of 1,000 test examples nearly stand in the training split"
    )


def test_results_carry_it(tmp_path):
    folder = study_folder(tmp_path / "study", ABLATION, lambda cell, seed: 0.5)
    assert json.loads(collect(ABLATION, folder).attrs["audits"]) == {}
    found = audits.examine(ABLATION, folder)
    assert json.loads(collect(ABLATION, folder).attrs["audits"])["mnist"]["exact"] == found["mnist"].exact


@pytest.mark.parametrize("text", ["{", '{"mnist": 3}', '{"mnist": {"sha256": 7}}', "[]"])
def test_a_damaged_file_is_told(text, tmp_path):
    (tmp_path / audits.FILE).write_text(text)
    with pytest.raises(BadData, match="damaged"):
        audits.read(tmp_path)
