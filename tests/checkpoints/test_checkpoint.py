from __future__ import annotations

import enum
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import CONTINUOUS, config, masked, model, normal

import ssm_priors
from ssm_priors import atomic
from ssm_priors.checkpoints import container
from ssm_priors.checkpoints.checkpoint import Checkpoint, load_exactly
from ssm_priors.checkpoints.container import digest
from ssm_priors.errors import BadCheckpoint, SsmPriorsError
from ssm_priors.registry import MIXERS


def checkpoint(mixer: str = "s4d", **record: object) -> Checkpoint:
    tensors = model(mixer).state_dict()
    return Checkpoint(config=config(mixer), spec=CONTINUOUS, phase="finetune", tensors=tensors, record=record)


@pytest.fixture
def path(tmp_path) -> Path:
    checkpoint(step=3).write(tmp_path / "ckpt.pt")
    return tmp_path / "ckpt.pt"


def refused(path: Path, read=Checkpoint.read) -> str:
    with pytest.raises(BadCheckpoint) as refusal:
        read(path)
    text = str(refusal.value)
    assert "\n" not in text
    assert path.name in text
    return text


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_is_written_is_read_back(mixer, tmp_path):
    first = checkpoint(mixer, step=3, metrics={"test_accuracy": 0.5})
    first.write(tmp_path / "ckpt.pt")
    again = ssm_priors.load(str(tmp_path / "ckpt.pt"))
    assert (again.config, again.spec, again.phase, again.record) == (
        first.config,
        first.spec,
        first.phase,
        first.record,
    )
    assert again.digest == first.digest == digest(first.tensors)
    x, lengths = normal(2, 9, 1, dtype=torch.float32), torch.tensor([9, 4])
    assert torch.equal(again.model()(x, lengths), model(mixer).eval()(x, lengths))
    assert not again.model().training


def test_a_fresh_process_without_the_package_reads_the_weights(path):
    code = """
import sys, torch
sys.modules["ssm_priors"] = None
try:
    import ssm_priors
except ImportError:
    content = torch.load(sys.argv[1], weights_only=True)
    print(content["format"], len(content["tensors"]), type(content["record"]).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ssm-priors", "checkpoint", "1", str(len(model().state_dict())), "str"]


def test_records_of_any_plain_kind_are_saved_as_plain_values(tmp_path):
    class Colour(enum.Enum):
        RED = "red"

    record = {
        "numpy": np.float64(0.5),
        "zero_dim": torch.tensor(0.25),
        "array": np.arange(3),
        "path": Path("a/b"),
        "enum": Colour.RED,
        "nan": float("nan"),
        "nested": {3: [np.int64(1), (np.bool_(True), torch.tensor(float("inf")))]},
    }
    checkpoint(**record).write(tmp_path / "ckpt.pt")
    content = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    assert {type(part) for part in content.values()} == {str, dict}
    found = Checkpoint.read(tmp_path / "ckpt.pt").record
    assert found == {
        "numpy": 0.5,
        "zero_dim": 0.25,
        "array": [0, 1, 2],
        "path": os.path.join("a", "b"),
        "enum": "red",
        "nan": None,
        "nested": {"3": [1, [True, None]]},
    }


def test_a_view_does_not_carry_its_storage_along(tmp_path):
    big = torch.zeros(1000, 1000)
    tensors = {"row": big[0], "expanded": torch.ones(4).expand(50, 4), "turned": torch.ones(3, 2).T}
    container.write(tmp_path / "file.pt", "state", {}, tensors)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert (tmp_path / "file.pt").stat().st_size <= 1.2 * size + 65536
    _, found = container.read(tmp_path / "file.pt", "state")
    assert all(torch.equal(found[name], tensor) and found[name].is_contiguous() for name, tensor in tensors.items())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path):
    before = path.read_bytes()
    with pytest.raises(TypeError):
        container.write(path, "checkpoint", {"bad": object()}, {})

    def fill(file):
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="full"):
        atomic.write(path, fill)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# -- files that are no checkpoint


class Hostile:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("how", ["torch.save", "nested", "legacy", "pickle"])
@pytest.mark.parametrize("kind", ["checkpoint", "state"])
def test_a_hostile_file_is_refused_and_its_code_not_run(how, kind, tmp_path):
    target, path = tmp_path / "created", tmp_path / "ckpt.pt"
    payload = Hostile(target)
    if how == "pickle":
        path.write_bytes(pickle.dumps(payload))
    elif how == "nested":
        torch.save({"format": f"ssm-priors {kind} 1", "record": "{}", "tensors": {"a": payload}}, path)
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=how != "legacy")
    text = refused(path, lambda path: container.read(path, kind))
    assert how == "pickle" or "could run code" in text
    assert not target.exists()
    torch.load(path, weights_only=False) if how != "pickle" else pickle.loads(path.read_bytes())
    assert target.exists()  # it would have


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(share, path):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert ("empty" if share == 0 else "damaged") in refused(path)


@pytest.mark.parametrize("content", [bytes(1000), b"some text\n" * 40, b"{}", b"PK"])
def test_bytes_that_mean_nothing_are_called_damaged_and_not_dangerous(content, tmp_path):
    (tmp_path / "ckpt.pt").write_bytes(content)
    assert "damaged" in refused(tmp_path / "ckpt.pt")


def test_random_bytes_are_called_damaged_and_not_dangerous(tmp_path):
    for seed in range(20):
        (tmp_path / "ckpt.pt").write_bytes(np.random.default_rng(seed).bytes(500))
        assert "damaged" in refused(tmp_path / "ckpt.pt")


def test_a_flipped_bit_in_the_weights_is_noticed(path):
    content = bytearray(path.read_bytes())
    weights = model().state_dict()["embedding.values.weight"].numpy().tobytes()
    content[bytes(content).index(weights) + 2] ^= 64
    path.write_bytes(content)
    try:
        found = Checkpoint.read(path)
    except BadCheckpoint:
        return
    assert found.digest == checkpoint().digest


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "nothing.pt")
    (tmp_path / "folder.pt").mkdir()
    assert "no such file" in refused(tmp_path / "folder.pt")


def test_a_foreign_state_dict_is_refused_and_described(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "foreign.pt")
    assert "not an ssm-priors file; it holds a dictionary with the keys bias, weight" in refused(
        tmp_path / "foreign.pt"
    )
    torch.save(torch.zeros(3), tmp_path / "foreign.pt")
    assert "it holds a Tensor" in refused(tmp_path / "foreign.pt")


def test_a_published_checkpoint_of_another_tool_is_refused(golden):
    assert "not an ssm-priors file" in refused(golden / "s4d_standalone.pt")
    refused(golden / "s4_v4.ckpt")


def test_a_saved_state_is_no_checkpoint(tmp_path):
    container.write(tmp_path / "state.pt", "state", {}, {})
    assert "'ssm-priors state 1', 'ssm-priors checkpoint 1' was expected" in refused(tmp_path / "state.pt")


def test_a_later_format_is_refused_by_its_number(path):
    content = torch.load(path, weights_only=True)
    torch.save(content | {"format": "ssm-priors checkpoint 2"}, path)
    assert "checkpoint 2" in refused(path)


def good_record() -> dict:
    spec = {"kind": "continuous", "length": 64, "classes": 3}
    return {"config": config().to_dict(), "spec": spec, "phase": "finetune"}


def save(record: str, path: Path) -> None:
    tensors = model().state_dict()
    content = {"format": "ssm-priors checkpoint 1", "record": record, "tensors": tensors, "sha256": digest(tensors)}
    torch.save(content, path)


def with_change(name: str, value: object) -> str:
    return json.dumps(good_record() | {name: value})


def without(name: str) -> str:
    return json.dumps({key: value for key, value in good_record().items() if key != name})


@pytest.mark.parametrize(
    "record",
    [
        "not JSON",
        "[1]",
        "5",
        "null",
        with_change("config", 5),
        with_change("config", {}),
        with_change("config", good_record()["config"] | {"seed": "a"}),
        with_change("config", good_record()["config"] | {"pretrain": "masked"}),
        with_change("spec", 5),
        with_change("spec", {"kind": "pictures", "length": 1, "classes": 1}),
        without("config"),
        without("spec"),
        without("phase"),
    ],
)
def test_a_record_that_does_not_hold_together_is_refused(record, tmp_path):
    save(record, tmp_path / "ckpt.pt")
    refused(tmp_path / "ckpt.pt")


@pytest.mark.parametrize(
    "tensors", [5, [1], {"head.output.bias": 3}, {"head.output.bias": "text"}, {3: torch.zeros(1)}]
)
def test_tensors_that_are_none_are_refused(tensors, tmp_path):
    content = {"format": "ssm-priors checkpoint 1", "record": json.dumps(good_record()), "tensors": tensors}
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(BadCheckpoint) as refusal:
        Checkpoint.read(tmp_path / "ckpt.pt").model()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change", [{"mixer": {"name": "not-installed"}}, {"mixer": {"name": "s4d", "init": "not-installed"}}]
)
def test_a_part_that_is_not_installed_is_named(change, tmp_path):
    record = good_record()
    record["config"]["model"] |= change
    save(json.dumps(record), tmp_path / "ckpt.pt")
    with pytest.raises(SsmPriorsError, match="not-installed"):
        Checkpoint.read(tmp_path / "ckpt.pt").model()


# -- loading into a model


def renamed(tensors):
    tensors["backbone.norm.gain"] = tensors.pop("backbone.norm.weight")


def missing(tensors):
    del tensors["backbone.norm.weight"]


def left_over(tensors):
    tensors["backbone.extra"] = torch.zeros(1)


def not_a_number(tensors):
    tensors["backbone.norm.weight"][3] = float("nan")


def infinite(tensors):
    tensors["embedding.values.bias"][0] = float("inf")


def reshaped(tensors):
    tensors["backbone.norm.weight"] = torch.zeros(8, 1)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (renamed, "backbone.norm.gain"),
        (missing, "backbone.norm.weight"),
        (left_over, "backbone.extra"),
        (not_a_number, "backbone.norm.weight"),
        (infinite, "embedding.values.bias"),
        (reshaped, "backbone.norm.weight"),
    ],
)
@pytest.mark.parametrize("fresh", ["", "head."])
def test_a_tensor_that_does_not_fit_is_named_and_nothing_is_loaded(harm, named, fresh):
    tensors = {name: tensor.clone() for name, tensor in model(seed=1).state_dict().items()}
    harm(tensors)
    target = model(seed=0)
    before = digest(target.state_dict())
    with pytest.raises(BadCheckpoint) as refusal:
        load_exactly(target, tensors, fresh=fresh)
    assert f"'{named}'" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert digest(target.state_dict()) == before


def test_a_fresh_head_stays_and_everything_else_is_loaded():
    pretrained = model(pooled=False, outputs=1, seed=1)
    target = model(seed=0)
    head = digest(target.head.state_dict())
    loaded = load_exactly(target, pretrained.state_dict(), fresh="head.")
    assert loaded == len(target.state_dict()) - len(target.head.state_dict())
    assert digest(target.head.state_dict()) == head
    assert digest(target.backbone.state_dict()) == digest(pretrained.backbone.state_dict())
    assert digest(target.embedding.state_dict()) == digest(pretrained.embedding.state_dict())


def test_a_dropped_head_alone_is_refused_unless_it_is_expected():
    tensors = {name: tensor for name, tensor in model().state_dict().items() if not name.startswith("head.")}
    assert load_exactly(model(), tensors, fresh="head.") == len(tensors)
    with pytest.raises(BadCheckpoint, match=r"'head\.output\.bias' is missing"):
        load_exactly(model(), tensors)


def test_ssm_parameters_after_loading_are_those_of_the_file(path):
    loaded = Checkpoint.read(path)
    made = loaded.model()
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, loaded.tensors[name])


def test_the_initial_model_is_the_one_that_training_began_with():
    made = checkpoint()
    made.tensors["embedding.values.weight"] = made.tensors["embedding.values.weight"] + 1
    assert digest(made.initial_model().state_dict()) == digest(model().state_dict())


def test_digests_tell_names_types_shapes_and_values_apart():
    base = {"a": torch.zeros(4), "b": torch.ones(2)}
    others = [
        {"a": torch.zeros(4), "c": torch.ones(2)},
        {"a": torch.zeros(4, dtype=torch.float64), "b": torch.ones(2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2)},
        {"a": torch.zeros(4) - 0.0, "b": -torch.ones(2)},
        {"a": torch.zeros(4)},
    ]
    assert len({digest(tensors) for tensors in [base, *others]}) == 6
    assert digest(dict(reversed(base.items()))) == digest(base)
    assert digest({"a": torch.ones(3, 2).T, "s": torch.tensor(1)}) == digest(
        {"a": torch.ones(2, 3), "s": torch.tensor(1)}
    )


def test_a_pretrained_checkpoint_rebuilds_its_own_head(tmp_path):
    tensors = model(pooled=False, outputs=1).state_dict()
    made = Checkpoint(config=config(pretrain=masked()), spec=CONTINUOUS, phase="pretrain", tensors=tensors, record={})
    made.write(tmp_path / "pretrained.pt")
    network = Checkpoint.read(tmp_path / "pretrained.pt").model()
    assert network(torch.zeros(1, 5, 1), torch.tensor([5])).shape == (1, 5, 1)
