from __future__ import annotations

import json
import tomllib
from dataclasses import fields

import pytest
from builders import config, masked, raw
from hypothesis import given, settings
from strategies import raw_configs

from ssm_priors import presets
from ssm_priors.config import ModelConfig, PhaseConfig, RunConfig
from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.registry import MIXERS, OBJECTIVES, TASKS


@given(given_raw=raw_configs())
@settings(max_examples=60)
def test_toml_and_back_is_the_same_configuration(given_raw):
    first = RunConfig.from_dict(given_raw)
    again = RunConfig.from_toml(first.to_toml())
    assert again == first
    assert again.fingerprint == first.fingerprint
    assert RunConfig.from_dict(json.loads(json.dumps(first.to_dict()))) == first


@given(given_raw=raw_configs())
def test_every_default_is_written_down(given_raw):
    first = RunConfig.from_dict(given_raw)
    plain = first.to_dict()
    assert RunConfig.from_dict(plain).to_dict() == plain
    assert {"fraction", "precision", "seed"} <= set(plain)
    assert set(plain["model"]["mixer"]) == {"name", *MIXERS[first.model.mixer.name].Config.__dataclass_fields__}


@given(given_raw=raw_configs())
def test_reading_changes_nothing_that_it_is_given(given_raw):
    before = json.dumps(given_raw)
    RunConfig.from_dict(given_raw)
    assert json.dumps(given_raw) == before


def test_a_whole_number_and_its_float_are_the_same_run():
    one, other = config(finetune={"learning_rate": 1}), config(finetune={"learning_rate": 1.0})
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert one.to_toml() == other.to_toml()


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_equal_configurations_have_equal_fingerprints_at_zero_too(zero):
    assert config(model={"dropout": zero}).fingerprint == config(model={"dropout": 0.0}).fingerprint
    assert config(finetune={"weight_decay": zero}).fingerprint == config(finetune={"weight_decay": 0.0}).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"fraction": 0.2},
        {"precision": "bf16-mixed"},
        {"model": {"causal": True}},
        {"model": {"mixer": {"init": "random"}}},
        {"finetune": {"epochs": 2}},
        {"pretrain": masked()},
        {"task": {"name": "mnist"}},
    ],
)
def test_whatever_decides_a_result_changes_the_fingerprint(change):
    assert config(**change).fingerprint != config().fingerprint


NEWER = [
    ("model", "norm_position", "pre", "post"),
    ("model", "tied_dropout", False, True),
    ("model", "pooling", "mean", "last"),
    ("model", "head", "linear", "mlp"),
    ("finetune", "decay_vectors", False, True),
    ("finetune", "beta2", 0.999, 0.98),
    ("finetune", "warmup_steps", 0, 5),
    ("finetune", "schedule", "cosine", "constant"),
    ("finetune", "step_epochs", 100, 3),
    ("finetune", "step_factor", 0.5, 0.1),
]
"""Settings that came after the first runs: table, name, what those runs did, another value."""


@pytest.mark.parametrize(("table", "name", "before", "other"), NEWER)
def test_a_newer_setting_is_recorded_only_where_it_says_something_new(table, name, before, other):
    old, same, changed = (config(), config(**{table: {name: before}}), config(**{table: {name: other}}))
    assert name not in old.to_dict()[table]
    assert same == old
    assert same.fingerprint == old.fingerprint
    assert changed.to_dict()[table][name] == other
    assert changed.fingerprint != old.fingerprint
    assert RunConfig.from_toml(changed.to_toml()) == changed


def test_the_newer_settings_are_these():
    newer = {
        (table, each.name)
        for table, cls in (("model", ModelConfig), ("finetune", PhaseConfig))
        for each in fields(cls)
        if each.metadata.get("newer")
    }
    assert newer == {(table, name) for table, name, _, _ in NEWER}


OLD_RUNS = [
    (
        """\
fraction = 0.15
precision = "32"
seed = 0

[task]
name = "mnist"
data = "shipped"
pool = 2

[model]
d_model = 32
layers = 2
expand = 0
norm = "layer"
dropout = 0.0
positions = "none"
causal = false

[model.mixer]
name = "s4d"
d_state = 32
init = "s4d-lin"
discretisation = "zoh"
dt_min = 0.001
dt_max = 0.1

[finetune]
epochs = 40
batch_size = 25
learning_rate = 0.02
ssm_learning_rate = 0.01
weight_decay = 0.01
warmup = 0.1
clip = 1.0

[pretrain]
epochs = 80
batch_size = 25
learning_rate = 0.02
ssm_learning_rate = 0.01
weight_decay = 0.01
warmup = 0.1
clip = 1.0

[pretrain.objective]
name = "masked"
ratio = 0.5
""",
        "b5a2005b280e",
    ),
    (
        """\
fraction = 1.0
precision = "32"
seed = 0

[task]
name = "digits"

[model]
d_model = 64
layers = 4
expand = 0
norm = "layer"
dropout = 0.0
positions = "none"
causal = false

[model.mixer]
name = "dlr"
d_state = 64
frequencies = "omega"
to_real = "real"
decay_min = 5e-05
decay_max = 0.05

[finetune]
epochs = 20
batch_size = 50
learning_rate = 0.01
ssm_learning_rate = 0.001
weight_decay = 0.01
warmup = 0.1
clip = 1.0
""",
        "9d171bd4ab46",
    ),
]
"""What `run.toml` held and the folder was called before there were newer settings."""


@pytest.mark.parametrize(("text", "fingerprint"), OLD_RUNS)
def test_old_runs_keep_their_meaning_and_their_fingerprint(text, fingerprint):
    read = RunConfig.from_toml(text)
    assert read.fingerprint == fingerprint
    assert read.to_dict() == tomllib.loads(text)


def test_a_rate_of_dt_is_absent_or_a_number():
    assert "dt_learning_rate" not in config().to_dict()["finetune"]
    assert config(finetune={"dt_learning_rate": 1}).finetune.dt_learning_rate == 1.0
    for wrong in ("7", True, -1, float("nan")):
        with pytest.raises(BadConfig, match=r"^finetune\.dt_learning_rate: "):
            config(finetune={"dt_learning_rate": wrong})


def test_a_fingerprint_is_twelve_hexadecimal_digits_and_ignores_the_order_of_keys():
    fingerprint = config().fingerprint
    assert len(fingerprint) == 12
    int(fingerprint, 16)
    assert RunConfig.from_dict(dict(reversed(raw().items()))).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sed": 1}, r"^sed: no such setting\. Did you mean seed\?$"),
        ({"finetune": {"epoch": 3}}, r"^finetune\.epoch: no such setting\. Did you mean epochs\?$"),
        ({"model": {"d_modle": 3}}, r"^model\.d_modle: no such setting\. Did you mean d_model\?$"),
        ({"model": {"mixer": {"dstate": 3}}}, r"^model\.mixer\.dstate: no such setting\. Did you mean d_state\?$"),
        ({"task": {"pool": 2}}, r"^task\.pool: no such setting\.$"),
        ({"pretrain": masked(warm=1)}, r"^pretrain\.warm: no such setting\. Did you mean warmup\?$"),
        (
            {"pretrain": {"objective": {"name": "masked", "rate": 1}}},
            r"^pretrain\.objective\.rate: no such setting\. Did",
        ),
        ({"finetune": {"epochs": 0}}, r"^finetune\.epochs: 0 was given; input should be greater than or equal to 1$"),
        ({"finetune": {"epochs": "ten"}}, r"^finetune\.epochs: 'ten' was given"),
        ({"finetune": {"epochs": 2.5}}, r"^finetune\.epochs: 2\.5 was given"),
        ({"finetune": {"learning_rate": -1}}, r"^finetune\.learning_rate: -1 was given"),
        ({"finetune": {"warmup": 1}}, r"^finetune\.warmup: 1 was given"),
        ({"finetune": {"warmup_steps": -1}}, r"^finetune\.warmup_steps: -1 was given"),
        ({"finetune": {"warmup_steps": 0.1}}, r"^finetune\.warmup_steps: 0\.1 was given; a whole number"),
        ({"finetune": {"schedule": "plateau"}}, r"^finetune\.schedule: 'plateau' was given"),
        ({"finetune": {"step_factor": 0}}, r"^finetune\.step_factor: 0 was given"),
        ({"finetune": {"beta2": 1}}, r"^finetune\.beta2: 1 was given"),
        ({"finetune": {"clip": -1}}, r"^finetune\.clip: -1 was given"),
        ({"model": {"pooling": "first"}}, r"^model\.pooling: 'first' was given"),
        ({"model": {"head": "deep"}}, r"^model\.head: 'deep' was given"),
        ({"model": {"norm_position": "both"}}, r"^model\.norm_position: 'both' was given"),
        ({"finetune": {"clip": float("nan")}}, r"^finetune\.clip: nan was given"),
        ({"fraction": 0}, r"^fraction: 0 was given"),
        ({"fraction": 1.5}, r"^fraction: 1\.5 was given"),
        ({"precision": "16"}, r"^precision: '16' was given"),
        ({"model": {"norm": "group"}}, r"^model\.norm: 'group' was given"),
        ({"model": {"mixer": {"d_state": 5}}}, r"^model\.mixer\.d_state: 5 was given"),
        ({"seed": -1}, r"^seed: -1 was given"),
        ({"pretrain": {"epochs": 1}}, r"^pretrain\.objective: absent"),
        ({"finetune": masked()}, r"^finetune\.objective: finetuning always learns the task's labels"),
        ({"task": "digits"}, r"^task: a table"),
        ({"model": {"mixer": "s4d"}}, r"^model\.mixer: a table"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_path(change, text):
    with pytest.raises(BadConfig, match=text):
        config(**change)


@pytest.mark.parametrize("value", ["masked", 3, ["masked"]])
@pytest.mark.parametrize("phase", ["pretrain", "finetune"])
def test_a_phase_that_is_no_table_is_refused_with_its_path(phase, value):
    with pytest.raises(BadConfig, match=phase):
        RunConfig.from_dict(raw() | {phase: value})


@pytest.mark.parametrize("value", ["yes", "no", "1", 1.5])
def test_text_is_not_taken_for_a_switch(value):
    with pytest.raises(BadConfig, match=r"model\.causal"):
        config(model={"causal": value})


@pytest.mark.parametrize("change", [{"seed": "7"}, {"seed": True}, {"finetune": {"learning_rate": "1e-3"}}])
def test_values_of_a_wrong_type_are_refused(change):
    with pytest.raises(BadConfig):
        config(**change)


@pytest.mark.parametrize("setting", ["learning_rate", "ssm_learning_rate", "weight_decay", "clip"])
def test_an_infinite_setting_is_refused(setting):
    with pytest.raises(BadConfig, match=rf"finetune\.{setting}"):
        config(finetune={setting: float("inf")})


def test_all_faults_are_told_at_once():
    with pytest.raises(BadConfig) as refusal:
        config(sed=1, finetune={"epoch": 1})
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"task": {"name": "minst"}}, "unknown task 'minst'. Did you mean mnist?"),
        ({"model": {"mixer": {"name": "s4dd"}}}, "unknown model 's4dd'. Did you mean s4d?"),
        ({"pretrain": {"objective": {"name": "mask"}}}, "unknown objective 'mask'. Did you mean masked?"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest(change, text):
    with pytest.raises(UnknownName) as refusal:
        RunConfig.from_dict(presets.merge(raw(), change) | ({"model": change["model"]} if "model" in change else {}))
    assert str(refusal.value) == text


def test_text_that_is_no_toml_is_refused_with_its_line():
    with pytest.raises(BadConfig, match="line 2"):
        RunConfig.from_toml("seed = 1\nseed 2\n")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("preset", presets.names())
@pytest.mark.parametrize("model", MIXERS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pretrain", ["none", *OBJECTIVES])
def test_every_preset_works_for_every_model_and_objective_on_its_tasks(preset, model, task, pretrain):
    changes = {"model": {"causal": True}} if pretrain == "causal" else {}
    table = presets.load(preset)
    if table.get("named_only") and task not in table["tasks"]:
        with pytest.raises(BadConfig, match=f"nothing of task '{task}'"):
            presets.compose(preset, model=model, task=task, pretrain=pretrain, changes=changes)
        return
    made = RunConfig.from_dict(presets.compose(preset, model=model, task=task, pretrain=pretrain, changes=changes))
    assert (made.task.name, made.model.mixer.name) == (task, model)
    assert (made.pretrain is None) == (pretrain == "none")


def test_an_unknown_preset_comes_with_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean quick"):
        presets.load("quik")


def test_merging_lays_one_table_over_another_and_changes_neither():
    base, over = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 3}, "d": {"e": 4}}
    merged = presets.merge(base, over)
    assert merged == {"a": {"b": 3, "c": [1]}, "d": {"e": 4}}
    merged["a"]["c"].append(2)
    assert base == {"a": {"b": 1, "c": [1]}, "d": 2}
