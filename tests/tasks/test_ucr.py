"""`ucr:NAME`: small .ts files in the layout in which aeon ships them, and its own where it is installed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from task_runs import prepared, refused, ssmp, trains

from ssm_priors import presets
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig, NotReady
from ssm_priors.registry import TASKS
from ssm_priors.studies.grid import Study
from ssm_priors.tasks import store
from ssm_priors.tasks.task import SPLITS, Task
from ssm_priors.tasks.ucr import Ucr, data_sets

SHIPPED = {
    "ACSF1": (1460, 1, 10, [80, 20, 100]),
    "ArrowHead": (251, 1, 3, [29, 7, 175]),
    "BasicMotions": (100, 6, 4, [32, 8, 40]),
    "JapaneseVowels": (29, 12, 9, [216, 54, 370]),
    "OSULeaf": (427, 1, 6, [160, 40, 242]),
    "PickupGestureWiimoteZ": (361, 1, 10, [40, 10, 50]),
}
"""Steps, features, classes and examples of each split, of what aeon 1.6 ships."""

HEADER = """# a comment
% another
@problemName Made
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true 10 2 blue

@data
"""


def lines(examples: int, seed: int, labels: str = "10 2 blue") -> list[str]:
    """Examples of two features and 5 to 9 steps."""
    rng, names, made = np.random.default_rng(seed), labels.split(), []
    for row in range(examples):
        steps = rng.integers(5, 10)
        features = np.round(rng.normal(size=(2, steps)) + row % len(names), 4)
        made.append(":".join([*(",".join(map(repr, one.tolist())) for one in features), names[row % len(names)]]))
    return made


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    """The folder of a data set called Made, in a package called aeon that holds nothing else."""
    package = tmp_path / "site" / "aeon"
    folder = package / "datasets" / "data" / "Made"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('aeon was imported')\n")
    (folder / "Made_TRAIN.ts").write_text(HEADER + "\n".join(lines(30, 0)) + "\n")
    (folder / "Made_TEST.ts").write_text(HEADER + "\n".join(lines(12, 1)) + "\n")
    (folder / "Lonely_TRAIN.ts").write_text(HEADER)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *sys.path]))
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    return folder


def load(name: str = "ucr:Made", **options) -> Task:
    return TASKS[name].load(TASKS[name].Config(**options))


def change(path: Path, edit: Callable[[str], str]) -> None:
    before = path.read_text()
    assert edit(before) != before
    path.write_text(edit(before))


def test_what_is_stored_is_what_the_files_say(archive):
    task = load()
    assert (task.spec.kind, task.spec.length, task.spec.features, task.spec.classes) == ("continuous", 9, 2, 3)
    assert [len(getattr(task, split)) for split in SPLITS] == [24, 6, 12]
    notes = store.manifest(store.folder_of("ucr:Made", Ucr.Config()))["notes"]
    assert notes["classes"] == ["2", "10", "blue"]
    scale = notes["scaled by the training split"]
    batch = task.test.take(torch.arange(12))
    for row, line in enumerate(lines(12, 1)):
        *features, label = line.split(":")
        expected = np.array([[float(word) for word in feature.split(",")] for feature in features]).T
        found = batch.inputs[row, : batch.lengths[row]].numpy() * scale["deviation"] + scale["mean"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert notes["classes"][batch.targets[row]] == label


def test_scale_and_validation_come_from_the_training_file_alone(archive):
    task = load()
    batch = task.train.take(torch.arange(24))
    steps = torch.cat([batch.inputs[row, : batch.lengths[row]] for row in range(24)]).double()
    torch.testing.assert_close(steps.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(steps.std(0, correction=0), torch.ones(2).double(), atol=1e-6, rtol=0)
    (archive / "Made_TEST.ts").write_text(HEADER + "\n".join(lines(12, 5)) + "\n")
    again = load()
    assert again.sha256 != task.sha256  # the changed file was noticed
    for split in ("train", "validation"):
        assert torch.equal(getattr(again, split).inputs, getattr(task, split).inputs)
        assert getattr(task, split).labels.bincount().tolist() == [len(getattr(task, split)) // 3] * 3


def test_the_split_belongs_to_the_data_and_to_its_own_seed(archive):
    assert load().sha256 == load().sha256
    assert load(split_seed=1).sha256 != load().sha256
    assert [len(getattr(load(validation=0.5), split)) for split in SPLITS] == [15, 15, 12]


def test_numbers_may_be_what_is_asked(archive):
    for split in ("TRAIN", "TEST"):
        change(
            archive / f"Made_{split}.ts", lambda text: text.replace("@classLabel true 10 2 blue", "@targetLabel true")
        )
        change(archive / f"Made_{split}.ts", lambda text: text.replace(":blue", ":0.25"))
    task = load()
    assert (task.spec.answer, task.spec.classes) == ("values", 1)
    assert sorted(set(task.test.labels.flatten().tolist())) == [0.25, 2.0, 10.0]


def test_examples_in_both_official_splits_are_kept_and_counted(archive):
    change(archive / "Made_TEST.ts", lambda text: text + "\n".join(lines(3, 0)) + "\n")
    assert len(load().test) == 15
    assert store.manifest(store.folder_of("ucr:Made", Ucr.Config()))["duplicates"] >= 3
    assert ssmp("data", "verify", "ucr:Made").exit_code == 0


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text + "1,2:3,x:2\n", "row 42, feature 2: could not convert"),
        (lambda text: text + "1,2:3,4:red\n", "row 42: label 'red' was found; one of 10, 2, blue"),
        (lambda text: text + "1,2:2\n", "row 42: 1 features; 2 and a label"),
        (lambda text: text + "1,2:3:2\n", "row 42: its features have different numbers of steps, [2, 1]"),
        (lambda text: text + "1,?,2:3,4,5:2\n", "row 42, feature 1"),
        (lambda text: text + "1,nan,2:3,4,5:2\n", "row 42, feature 1, its series: step 1 is nan"),
        (lambda text: text + "1,1_0,2:3,4,5:2\n", "row 42, feature 1: '1_0' is no number"),
        (lambda text: text + "?:?:2\n", "row 42, feature 1: no steps"),
        (lambda text: text.replace("@equalLength false", "@equalLength true\n@seriesLength 7"), "7 were expected"),
        (lambda text: text.replace("@data", ""), "a line of the header, such as @data"),
        (lambda text: text.replace("@dimensions 2", "@dimensions two"), "@dimensions two: a whole number"),
        (lambda text: text.replace("@timeStamps false", "@timeStamps true"), "time stamps"),
        (lambda text: text.replace("@classLabel true", "@classLabel false"), "@classLabel true"),
        (lambda text: text[: text.index("@data") + 6], "no example is of the train split"),
        (lambda text: text.replace(":blue", ":2"), "class 'blue' has no example in the training split"),
        (lambda text: "@problemName Made\n", "no line @data"),
    ],
)
def test_damaged_files_are_refused_with_file_and_row(edit, words, archive):
    change(archive / "Made_TRAIN.ts", edit)
    said = " ".join(refused("ucr:Made").split())
    assert words in said
    assert "Made_T" in said


def test_bytes_that_are_no_text_are_refused(archive):
    (archive / "Made_TRAIN.ts").write_bytes(b"@data\n\xff\xfe")
    assert "Made_TRAIN.ts: not UTF-8 text" in refused("ucr:Made")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ucr:Mode", "unknown ucr data set 'Mode'. Did you mean Made?"),
        ("ucr:completely-different", "Known: Made."),
        ("ucr:Lonely", "Known: Made."),
        ("ucr", "task 'ucr' is one of many: ucr:NAME was expected (yes: Made)"),
        ("ucr:../Made", "the name of a data set was expected"),
        ("urc:Made", "unknown task 'urc:Made'. Did you mean ucr:Made?"),
    ],
)
def test_names_that_lead_nowhere_come_with_the_nearest(name, words, archive):
    for said in (
        ssmp("train", "--task", name),
        ssmp("ablate", "--task", name, "--pretrain", "masked"),
        ssmp("data", "prepare", name),
        ssmp("data", "verify", name),
    ):
        assert said.exit_code == 2
        assert words in " ".join(said.stderr.split())


def test_a_name_is_good_where_its_data_are_not(monkeypatch):
    """So that a checkpoint opens anywhere."""
    monkeypatch.setattr("ssm_priors.tasks.ucr.find_spec", lambda name: None)
    config = RunConfig.from_dict(presets.compose("quick", model="s4d", task="ucr:ACSF1"))
    assert RunConfig.from_toml(config.to_toml()) == config
    with pytest.raises(NotReady, match=r"pip install 'ssm-priors\[ucr\]'"):
        load("ucr:ACSF1")
    with pytest.raises(NotReady, match="pip install"):
        store.prepare("ucr:ACSF1", Ucr.Config())
    with pytest.raises(NotReady, match="pip install"):
        TASKS["ucr:ACSF1"].spec(Ucr.Config())
    assert TASKS.families["ucr:NAME"].ready().startswith("no: ")
    with pytest.raises(BadConfig, match="the name of a data set"):
        TASKS["ucr:a/b"]


def test_it_is_prepared_in_a_process_of_its_own(archive):
    assert prepared("ucr:Made")["splits"]["train"]["labels"]["counts"] == [8, 8, 8]
    assert ssmp("data", "verify", "ucr:Made").exit_code == 0
    [folder] = store.data_dir().glob("ucr*")
    assert folder.name.startswith("ucr-Made-")


def test_it_trains_from_scratch_and_after_pretraining(archive, tmp_path):
    trains(tmp_path / "runs", "ucr:Made", 24)


def test_it_is_a_coordinate_of_studies_with_the_settings_of_its_family():
    table = presets.load("quick") | {"tasks": {"ucr": {"fraction": 1.0, "seed": 3}, "ucr:Made": {"seed": 4}}}
    study = Study.from_dict({"tasks": ["ucr:Made", "ucr:Other", "digits"], "pretrains": ["masked"], "settings": table})
    assert [cell.task for cell in study.cells()] == [name for name in study.tasks for _ in range(2)]
    assert [cell.fraction for cell in study.cells()] == [1, 1, 1, 1, 0.15, 0.15]
    seeds = [presets.compose(table, model="s4d", task=name).get("seed") for name in study.tasks]
    assert seeds == [4, 3, None]
    assert Study.from_toml(study.to_toml()) == study
    assert study.config(study.cells()[0], seed=0).task.name == "ucr:Made"


def test_lists_show_the_family_and_what_there_is_to_name(archive):
    for command in (["list", "tasks"], ["data", "list"]):
        rows = {row["name"]: row for row in json.loads(ssmp(*command, "--json").stdout)}
        assert rows["ucr:NAME"]["ready"] == "yes: Made"
    load()
    rows = {row["name"]: row for row in json.loads(ssmp("data", "list", "--json").stdout)}
    assert (rows["ucr:Made"]["length"], rows["ucr:Made"]["ready"]) == (9, "yes")


def test_what_aeon_ships_is_what_is_said_of_it(tmp_path, monkeypatch):
    known = data_sets()
    if not set(SHIPPED) <= set(known):
        pytest.skip("aeon, which ships the real series, is not installed; only made ones were tested")
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path))
    for name, (length, features, classes, sizes) in SHIPPED.items():
        task = load(f"ucr:{name}")
        assert (task.spec.length, task.spec.features, task.spec.classes) == (length, features, classes), name
        assert [len(getattr(task, split)) for split in SPLITS] == sizes, name
