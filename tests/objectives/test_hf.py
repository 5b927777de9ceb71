"""A start from a language model's weights: against what transformers computes with them, and what must be refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import TOKENS, config, raw
from safetensors.torch import load_file, save_file

from ssm_priors.batch import TaskSpec
from ssm_priors.checkpoints.checkpoint import Checkpoint, load_exactly
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint, BadConfig, BadData, NotReady
from ssm_priors.models.build import build
from ssm_priors.objectives import hf
from ssm_priors.presets import merge
from ssm_priors.registry import OBJECTIVES
from ssm_priors.studies.grid import Study
from ssm_priors.studies.report import words
from ssm_priors.tasks.letters import WORDS
from ssm_priors.training.run import run
from ssm_priors.training.stages import phases_of, preflight, prepare, spt_share

pytest.importorskip("tokenizers", reason="the tokenizer of a language model is read with tokenizers")

FOLDER = Path(__file__).parents[1] / "data" / "tiny_gpt_neox"
SIZES = {"mixer": {"heads": 2, "inner": 3, "rotary": 0.5}, "d_model": 16, "layers": 2, "causal": True}


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "pythia")
    return tmp_path / "pythia"


def outside(folder, spec=TOKENS, **options):
    part = OBJECTIVES[OBJECTIVES.spelled(f"hf:{folder}")]
    return part(part.Config(**options), spec)


def parity(folder, **changes):
    """A run on a language of two symbols, from these weights."""
    task = {"name": "chomsky", "examples": 60, "train_length": 8, "test_length": 12}
    base = raw("gpt-neox", model=SIZES, task=task, fraction=1.0, finetune={"batch_size": 20})
    base["pretrain"] = {"objective": {"name": OBJECTIVES.spelled(f"hf:{folder}")}, "batch_size": 20}
    return RunConfig.from_dict(merge(base, changes))


def whole_model():
    """Every token of the language model a symbol."""
    spec = TaskSpec(kind="token", length=64, classes=2, vocabulary=272)
    model = build(config("gpt-neox", model=SIZES).model, spec, 0, outputs=272, pooled=False, stand_ins=0)
    load_exactly(model, hf._ours(hf._tensors(FOLDER), torch.arange(272), 2))
    return model.eval()


def test_our_model_answers_as_transformers_does_also_on_padded_rows():
    expected = np.load(FOLDER / "expected.npz")
    ids, lengths = torch.from_numpy(expected["ids"]), torch.from_numpy(expected["lengths"])
    with torch.no_grad():
        answers = whole_model()(ids, lengths).numpy()
    assert np.abs(expected["logits"]).max() > 1
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(answers[row, :length], expected["logits"][row, :length], atol=2e-5)


def test_transformers_itself_gives_what_is_expected_of_it():
    transformers = pytest.importorskip("transformers", reason="the golden numbers were made with it")
    expected = np.load(FOLDER / "expected.npz")
    model = transformers.GPTNeoXForCausalLM.from_pretrained(FOLDER, local_files_only=True).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(expected["ids"])).logits.numpy()
    np.testing.assert_allclose(logits[0], expected["logits"][0], atol=2e-5)


def test_every_byte_of_a_text_is_a_token_of_its_own():
    spec = TaskSpec(kind="token", length=64, classes=2, vocabulary=256)
    weights = outside(FOLDER, spec).weights(WORDS)
    theirs = load_file(FOLDER / "model.safetensors")["gpt_neox.embed_in.weight"]
    vocabulary = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    rows = [vocabulary["<|endoftext|>"], vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"], vocabulary["é"]]
    found = weights["embedding.values.weight"]
    assert torch.equal(found[[0, ord("A"), ord(" "), ord("\n"), 0xE9]], theirs[rows])
    assert len({tuple(row) for row in found.tolist()}) == 256


def test_symbols_that_are_several_tokens_are_refused_and_can_be_spelled():
    symbols = ("", "1", "[MIN", "[SM")
    with pytest.raises(BadConfig, match=r"2 symbols .* not exactly one token of this model: \[MIN \[SM"):
        outside(FOLDER).weights(symbols)
    spelled = outside(FOLDER, spell={"[MIN": "A", "[SM": "SM"}).weights(symbols)["embedding.values.weight"]
    theirs = load_file(FOLDER / "model.safetensors")["gpt_neox.embed_in.weight"]
    assert torch.equal(spelled[3], theirs[258])
    with pytest.raises(BadConfig, match=r"1 \[MIN are different symbols .* the same token"):
        outside(FOLDER, spell={"[MIN": "1", "[SM": "SM"}).weights(symbols)


def test_a_name_holds_the_content_and_other_weights_make_another_run(folder):
    first = parity(folder)
    assert RunConfig.from_toml(first.to_toml()) == first
    change(folder)
    assert parity(folder).fingerprint != first.fingerprint
    with pytest.raises(BadData, match="holds other files than the name of this objective says"):
        preflight(first)


def change(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_out.weight"] = tensors["embed_out.weight"] + 1
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["hf:pythia", "hf:/a/pythia", "hf:pythia#0123456789ab"])
def test_a_name_that_means_something_else_elsewhere_is_refused(name):
    with pytest.raises(BadConfig, match="a full path and the hash"):
        _ = OBJECTIVES[name]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_a_part_of_a_model_is_refused_and_nothing_is_downloaded(folder, missing):
    (folder / missing).unlink()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(NotReady, match="Nothing is downloaded"):
        OBJECTIVES.spelled(f"hf:{folder}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "llama"), ("hidden_act", "gelu_new"), ("use_parallel_residual", False), ("eos_token_id", None)],
)
def test_another_kind_of_model_is_refused(folder, key, value):
    content = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(BadCheckpoint, match=key):
        outside(folder).weights(("", "1"))


def test_a_damaged_file_of_weights_is_refused(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors cannot be read"):
        outside(folder).weights(("", "1"))


def test_a_model_of_another_size_is_refused_with_the_settings_that_fit(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(BadConfig, match=r"\(d_model, mixer\.inner\).*--model gpt-neox .*--set model\.d_model=16"):
        preflight(parity(folder, model={"d_model": 8, "mixer": {"inner": 4}}))


def test_a_two_sided_model_is_refused(folder):
    with pytest.raises(BadConfig, match=r"model\.causal = true"):
        parity(folder, model={"causal": False})


def test_a_run_starts_from_the_weights_takes_no_step_before_finetuning_and_says_so(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SSMP_DATA_DIR", str(tmp_path / "data"))
    finished = run(parity(folder), tmp_path / "run", device="cpu")
    pretrained = Checkpoint.read(tmp_path / "run" / "pretrained.pt")
    theirs = load_file(folder / "model.safetensors")
    layer = "backbone.blocks.1.mixer.input.weight"
    assert torch.equal(pretrained.tensors[layer], theirs["gpt_neox.layers.1.attention.query_key_value.weight"])
    assert pretrained.record["step"] == 0
    cost = finished.record["cost"]
    assert cost["steps"] == {"pretrain": 0, "finetune": 3}
    assert set(cost["flops"]) == {"finetune"}
    far = (finished.tensors[layer] - pretrained.tensors[layer]).abs().max()
    assert 0 < far < 0.1


def test_of_a_budget_finetuning_has_all_where_nothing_is_pretrained_here(folder):
    settings = parity(folder, budget={"steps": 8, "pretrain_share": 0.25})
    _, finetune = phases_of(settings, prepare(settings))
    assert spt_share(settings) == 0
    assert finetune.steps == 8


def test_a_report_does_not_claim_that_anything_was_pretrained_here(folder):
    objective = OBJECTIVES.spelled(f"hf:{folder}")
    changes = {"model": SIZES}
    study = Study(models=("gpt-neox",), tasks=("chomsky",), pretrains=(objective, "causal"), changes=changes)
    configs = {cell: study.config(cell, 0) for cell in study.cells()}
    text = words.pretraining(configs)
    assert f"gpt-neox was given the weights of the language model in {folder}" in text
    assert text.count("epochs") == 1
    assert words.OUTSIDE in words._what_pretraining_saw(configs)
    alone = [cell for cell in configs if cell.pretrain != "causal"]
    assert words._what_pretraining_saw(alone) == ""
