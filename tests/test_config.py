from __future__ import annotations

import json

import pytest
from builders import config, masked, raw
from hypothesis import given, settings
from strategies import raw_configs

from ssm_priors import presets
from ssm_priors.config import RunConfig
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
def test_every_preset_works_for_every_model_task_and_objective(preset, model, task, pretrain):
    changes = {"model": {"causal": True}} if pretrain == "causal" else {}
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
