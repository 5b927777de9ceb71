"""Studies as files: every one that ships can be made, and what a user asks for takes the place of what it says."""

from __future__ import annotations

import pytest

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.studies import catalogue

FILE = """
title = "Data"
question = "Does it matter?"
models = ["s4d"]
pretrains = ["masked"]
tasks = ["digits"]
seeds = 2
[changes.finetune]
epochs = 3
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    return str(tmp_path / "mine.toml")


@pytest.mark.parametrize("name", catalogue.names())
def test_every_study_of_the_catalogue_can_be_made_and_says_what_it_asks(name):
    entry = catalogue.load(name)
    study = entry.study()
    assert study.title
    assert study.question.strip().endswith((".", "?"))
    assert len(study.runs()) == len(study.cells()) * study.seeds
    assert study.claims, "a study says what it tests"


@pytest.mark.parametrize("name", [name for name in catalogue.names() if catalogue.load(name).presets])
def test_every_study_can_be_made_at_its_other_sizes(name):
    entry = catalogue.load(name)
    assert set(entry.presets) <= {"paper", "small"}
    for preset in entry.presets:
        entry.study({"preset": preset, "seeds": 1} | ({"variants": {}, "claims": []} if name == "model-scale" else {}))


def test_a_file_is_read_as_the_catalogue_is(path):
    entry = catalogue.load(path)
    assert (entry.name, entry.study().title, entry.study().question) == ("mine", "Data", "Does it matter?")
    assert entry.study().config(entry.study().cells()[0], 0).finetune.epochs == 3


def test_what_is_asked_for_takes_the_place_of_what_the_file_says(path):
    given = {"models": "s4d, dlr", "fractions": 0.5, "seeds": 3, "finetune": {"batch_size": 20}, "preset": "small"}
    study = catalogue.load(path).study(given)
    assert (study.models, study.fractions, study.seeds, study.preset) == (("s4d", "dlr"), (0.5,), 3, "small")
    config = study.config(study.cells()[0], 0)
    assert (config.finetune.epochs, config.finetune.batch_size) == (3, 20)
    assert catalogue.load(path).study({"fractions": "0.1,1"}).fractions == (0.1, 1.0)


def test_a_study_file_of_a_folder_can_be_run_under_another_preset(path, tmp_path):
    (tmp_path / "study.toml").write_text(catalogue.load(path).study().to_toml())
    entry = catalogue.load(str(tmp_path / "study.toml"))
    assert entry.study() == catalogue.load(path).study()
    small = entry.study({"preset": "small"})
    assert small.config(small.cells()[0], 0).model.d_model == 64


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fractions": "much"}, "numbers were expected"),
        ({"models": "s4dd"}, "Did you mean s4d"),
        ({"seeds": "three"}, "a whole number was expected"),
        ({"sead": 3}, "no such setting"),
    ],
)
def test_wrong_values_are_refused_in_words(path, given, words):
    with pytest.raises((BadConfig, UnknownName), match=words):
        catalogue.load(path).study(given)


def test_unknown_names_and_broken_files_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean explicit-priors"):
        catalogue.load("explicit-prior")
    (tmp_path / "broken.toml").write_text("models = [")
    with pytest.raises(BadConfig, match="not valid TOML"):
        catalogue.load(str(tmp_path / "broken.toml"))
    (tmp_path / "number.toml").write_text("title = 3")
    with pytest.raises(BadConfig, match="text was expected"):
        catalogue.load(str(tmp_path / "number.toml")).study()
