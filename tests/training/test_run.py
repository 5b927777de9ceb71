from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import config, masked, raw

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadCheckpoint, BadConfig, BadData, RunFailed, SsmPriorsError
from ssm_priors.ops.backend import chosen
from ssm_priors.registry import MIXERS, OBJECTIVES, TASKS
from ssm_priors.tasks.task import Split, Task
from ssm_priors.training.allocator import malloc_tuning
from ssm_priors.training.evaluate import evaluate
from ssm_priors.training.run import pick_device, run
from ssm_priors.training.stages import prepare

CPU = torch.device("cpu")
BOTH = config(pretrain=masked(), finetune={"epochs": 2, "batch_size": 50}, model={"dropout": 0.1})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(BOTH, folder, device="cpu")


def poisoned(task: Task, *, labels: bool) -> Task:
    """Other validation and test inputs, and if asked for other labels everywhere."""

    def other(split: Split, inputs: bool) -> Split:
        targets = (split.targets * 7 + 3) % 10 if labels else split.targets
        return Split(split.inputs * 0 - 1e6 if inputs else split.inputs, split.lengths, targets)

    return Task(task.spec, other(task.train, False), other(task.validation, True), other(task.test, True), task.sha256)


@pytest.fixture
def poison(monkeypatch):
    real = TASKS["digits"].load

    def install(**how):
        monkeypatch.setattr(TASKS["digits"], "load", staticmethod(lambda options: poisoned(real(options), **how)))

    return install


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if "continuous" in OBJECTIVES[name].kinds])
@pytest.mark.parametrize(("fraction", "labels"), [(1.0, True), (0.1, False)])  # a smaller part is stratified by label
def test_pretraining_reads_the_training_inputs_and_nothing_else(objective, fraction, labels, tmp_path, poison):
    changes = {"fraction": fraction, "model": {"causal": True, "norm": "batch"}, "finetune": {"batch_size": 120}}
    settings = config(pretrain=masked(objective={"name": objective}, batch_size=120), **changes)
    clean = run(settings, tmp_path / "clean", device="cpu")
    poison(labels=labels)
    dirty = run(settings, tmp_path / "dirty", device="cpu")
    digests = [Checkpoint.read(tmp_path / name / "pretrained.pt").digest for name in ("clean", "dirty")]
    assert digests[0] == digests[1]
    assert clean.record["metrics"] != dirty.record["metrics"]
    rows = [(tmp_path / name / "metrics.csv").read_text().splitlines() for name in ("clean", "dirty")]
    pretraining = [[row for row in part if row.startswith("pretrain")] for part in rows]
    assert pretraining[0] == pretraining[1]
    assert pretraining[0]


def test_training_never_reads_the_test_split_before_the_end(tmp_path, poison):
    run(BOTH, tmp_path / "clean", device="cpu")
    real = TASKS["digits"].load(TASKS["digits"].Config())
    task = replace(real, test=Split(real.test.inputs * -1, real.test.lengths, (real.test.targets + 1) % 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TASKS["digits"], "load", staticmethod(lambda options: task))
        run(BOTH, tmp_path / "other", device="cpu")
    one, other = (Checkpoint.read(tmp_path / name / "ckpt.pt") for name in ("clean", "other"))
    assert one.digest == other.digest
    assert one.record["metrics"]["validation_accuracy"] == other.record["metrics"]["validation_accuracy"]
    assert one.record["metrics"]["test_loss"] != other.record["metrics"]["test_loss"]


def test_pretraining_is_given_no_labels_and_no_validation(monkeypatch, tmp_path):
    from ssm_priors.training import run as module

    seen = []
    real = module.train
    monkeypatch.setattr(module, "train", lambda phase, *args: seen.append(phase) or real(phase, *args))
    run(BOTH, tmp_path, device="cpu")
    assert [phase.name for phase in seen] == ["pretrain", "finetune"]
    assert seen[0].train.targets is None
    assert seen[0].validation is None
    assert torch.equal(seen[0].train.inputs, seen[1].train.inputs)


def test_finetuning_begins_from_the_pretrained_weights_with_a_fresh_head(monkeypatch, tmp_path):
    from ssm_priors.training import run as module

    starts = []
    real = module.train

    def watch(phase, model, *args):
        starts.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return real(phase, model, *args)

    monkeypatch.setattr(module, "train", watch)
    run(BOTH, tmp_path, device="cpu")
    pretrained = Checkpoint.read(tmp_path / "pretrained.pt")
    scratch = Checkpoint.read(tmp_path / "ckpt.pt").initial_model().state_dict()
    for name, tensor in starts[1].items():
        expected = scratch if name.startswith("head.") else pretrained.tensors
        assert torch.equal(tensor, expected[name]), name
    assert any(not torch.equal(tensor, starts[0][name]) for name, tensor in pretrained.tensors.items())


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_the_same_configuration_twice_gives_the_same_weights(name, precision, tmp_path):
    settings = config(name, pretrain=masked(), precision=precision, model={"dropout": 0.1, "norm": "batch"})
    torch.manual_seed(1)
    one = run(settings, tmp_path / "one", device="cpu")
    torch.manual_seed(2)
    np.random.seed(2)
    other = run(settings, tmp_path / "other", device="cpu")
    assert one.digest == other.digest
    assert (tmp_path / "one" / "metrics.csv").read_bytes() == (tmp_path / "other" / "metrics.csv").read_bytes()
    assert {tensor.dtype for tensor in one.tensors.values() if tensor.is_floating_point()} == {torch.float32}


def test_another_seed_gives_other_weights(finished, tmp_path):
    other = run(replace(BOTH, seed=1), tmp_path, device="cpu")
    assert other.digest != finished[1].digest


def test_a_run_leaves_the_process_as_it_found_it(tmp_path):
    before = torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    run(config(), tmp_path, device="cpu", threads=2)
    after = torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_the_stored_metrics_are_those_of_the_stored_weights(precision, tmp_path):
    settings = replace(BOTH, precision=precision)
    run(settings, tmp_path, device="cpu")
    saved = Checkpoint.read(tmp_path / "ckpt.pt")
    task = prepare(settings)
    size = settings.finetune.batch_size
    validation, test = (evaluate(saved.model(), part, size, CPU, saved.spec) for part in (task.validation, task.test))
    assert validation.value == saved.record["metrics"]["validation_accuracy"]
    assert test.value == saved.record["metrics"]["test_accuracy"]
    assert test.loss == saved.record["metrics"]["test_loss"]
    with np.load(tmp_path / "test.npz") as arrays:
        np.testing.assert_array_equal(arrays["prediction"], test.predictions)
        np.testing.assert_array_equal(arrays["target"], task.test.targets)


def test_the_checkpoint_is_no_larger_than_its_weights(finished):
    folder, saved = finished
    size = sum(tensor.numel() * tensor.element_size() for tensor in saved.tensors.values())
    for name in ("ckpt.pt", "pretrained.pt"):
        assert (folder / name).stat().st_size <= 1.2 * size + 65536


def test_the_record_says_what_it_cost_and_where_it_comes_from(finished):
    record = finished[1].record
    assert record["cost"]["examples"] == {"pretrain": 126, "finetune": 252}
    assert set(record["cost"]["seconds"]) == {"pretrain", "finetune"}
    assert record["provenance"]["data_sha256"] == prepare(BOTH).sha256
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["malloc_tuning"] == malloc_tuning()
    assert record["provenance"]["kernel_backend"] == chosen().name
    assert record["provenance"]["kernel_backend_detail"] == chosen().detail


def test_learning_happens(tmp_path):
    finetune = {"epochs": 3, "batch_size": 25, "learning_rate": 0.01}
    settings = config(fraction=1.0, model={"d_model": 16, "layers": 2, "mixer": {"d_state": 16}}, finetune=finetune)
    saved = run(settings, tmp_path, device="cpu")
    assert saved.record["metrics"]["test_accuracy"] > 0.5
    assert (
        saved.digest
        != Checkpoint(
            config=settings, spec=saved.spec, phase="finetune", tensors=saved.initial_model().state_dict(), record={}
        ).digest
    )


def test_frozen_ssm_parameters_keep_their_init(tmp_path):
    saved = run(config(finetune={"epochs": 2, "batch_size": 50, "ssm_learning_rate": 0}), tmp_path, device="cpu")
    start = saved.initial_model().state_dict()
    frozen = [name for name in start if name.endswith(("log_dt", "log_A_real", "A_imag"))]
    assert frozen
    assert all(torch.equal(saved.tensors[name], start[name]) for name in frozen)
    assert not torch.equal(saved.tensors["backbone.blocks.0.mixer.C"], start["backbone.blocks.0.mixer.C"])


# -- folders


def test_a_finished_run_is_read_and_not_trained_again(finished):
    folder, first = finished
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"}

    def fail(report):
        raise AssertionError("trained again")

    assert run(BOTH, folder, device="cpu", watch=fail).digest == first.digest
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"} == before


def test_a_finished_folder_refuses_another_configuration(finished):
    with pytest.raises(BadConfig, match="another configuration"):
        run(replace(BOTH, seed=9), finished[0], device="cpu")


def test_an_unfinished_folder_refuses_another_configuration(tmp_path):
    (tmp_path / "run.toml").write_text(BOTH.to_toml())
    with pytest.raises(BadConfig, match="another configuration"):
        run(replace(BOTH, seed=9), tmp_path, device="cpu")
    assert RunConfig.from_toml((tmp_path / "run.toml").read_text()) == BOTH


def test_a_damaged_checkpoint_is_refused_and_not_trained_over(tmp_path):
    (tmp_path / "ckpt.pt").write_bytes(b"damaged")
    with pytest.raises((BadCheckpoint, BadConfig)):
        run(BOTH, tmp_path, device="cpu")
    assert (tmp_path / "ckpt.pt").read_bytes() == b"damaged"


@pytest.mark.parametrize("content", [b"", b"seed = 1\nbroken", b"\xff\xfe"])
def test_a_damaged_run_file_is_refused_in_words(content, tmp_path):
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(SsmPriorsError):
        run(BOTH, tmp_path, device="cpu")


def test_a_damaged_state_is_refused_in_words(tmp_path):
    (tmp_path / "run.toml").write_text(BOTH.to_toml())
    (tmp_path / "state.pt").write_bytes(b"damaged")
    with pytest.raises(BadCheckpoint, match=r"state\.pt"):
        run(BOTH, tmp_path, device="cpu")


def test_a_folder_in_use_by_another_process_is_refused(tmp_path):
    code = f"""
from filelock import FileLock
with FileLock({str(tmp_path / ".lock")!r}):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BadConfig, match="another process is at work here"):
            run(BOTH, tmp_path, device="cpu")
        other.communicate("\n")
    run(config(), tmp_path, device="cpu")


def test_two_runs_of_one_process_cannot_share_a_folder(tmp_path):
    def again(report):
        run(BOTH, tmp_path, device="cpu")

    with pytest.raises(BadConfig, match="another process is at work here"):
        run(BOTH, tmp_path, device="cpu", watch=again)


# -- runs that cannot work


@pytest.mark.parametrize("phase", ["pretrain", "finetune"])
def test_a_batch_larger_than_the_split_is_refused_before_training(phase, tmp_path):
    settings = RunConfig.from_dict(
        raw(pretrain=masked()) | {phase: masked(batch_size=127) if phase == "pretrain" else {"batch_size": 127}}
    )
    with pytest.raises(BadConfig, match=rf"{phase}\.batch_size: 127 is larger than the training split's 126 examples"):
        run(settings, tmp_path, device="cpu", watch=lambda report: pytest.fail("trained"))


def test_an_unknown_init_is_refused_before_training(tmp_path):
    with pytest.raises(SsmPriorsError, match="Did you mean s4d-lin"):
        run(config(model={"mixer": {"init": "s4d-lim"}}), tmp_path, device="cpu")


def test_a_fraction_that_empties_a_class_is_refused_before_training(tmp_path):
    with pytest.raises(BadConfig, match="fraction"):
        run(config(fraction=0.001), tmp_path, device="cpu")


@pytest.mark.parametrize("phase", ["pretrain", "finetune"])
@pytest.mark.parametrize("sick", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_fails_naming_the_step(phase, sick, tmp_path, monkeypatch):
    from ssm_priors.objectives.masked import Masked
    from ssm_priors.objectives.supervised import Supervised

    kind = Masked if phase == "pretrain" else Supervised
    real, calls = kind.score, []

    def score(self, answers, problem):
        total, count = real(self, answers, problem)
        calls.append(1)
        if len(calls) < 3:
            return total, count
        # the root's value at 0 is finite, its slope is not
        return (total * float("nan") if sick == "loss" else total + (answers.sum() * 0).abs().sqrt()), count

    monkeypatch.setattr(kind, "score", score)
    with pytest.raises(RunFailed, match=f"{phase}, step 3 of 3.*learning_rate") as failure:
        run(config(pretrain=masked()), tmp_path, device="cpu", save_every=0.0)
    assert "\n" not in str(failure.value)
    assert failure.value.exit_code == 1
    assert not (tmp_path / "ckpt.pt").exists()


def test_a_rate_far_too_large_ends_in_a_result_or_in_words(tmp_path):
    settings = config(pretrain=masked(learning_rate=1e6, ssm_learning_rate=1e6, clip=1e9))
    try:
        saved = run(settings, tmp_path, device="cpu")
    except RunFailed:
        return
    assert all(torch.isfinite(tensor).all() for tensor in saved.tensors.values())


def test_only_devices_that_are_there_can_be_chosen():
    assert pick_device("cpu") == CPU
    with pytest.raises(BadConfig, match="auto, cpu or cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(BadConfig, match="--device cpu"):
            pick_device("cuda")


def test_a_device_that_cannot_do_what_models_need_is_not_picked(monkeypatch):
    from ssm_priors.training import run as module

    def broken(*args, **kwargs):
        raise RuntimeError("not implemented")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "_works", lambda device: False)
    assert pick_device("auto") == CPU
    monkeypatch.undo()
    assert module._works("cpu")
    monkeypatch.setattr(torch.fft, "rfft", broken)
    assert not module._works("cpu")


def test_a_finished_run_is_refused_once_its_data_have_changed(tmp_path, monkeypatch):
    settings, digits = config(), TASKS["digits"]
    run(settings, tmp_path / "run")
    load = digits.load
    monkeypatch.setattr(digits, "load", staticmethod(lambda options: replace(load(options), sha256="0" * 64)))
    with pytest.raises(BadData, match=r"was trained on other data .* now 000000000000"):
        run(settings, tmp_path / "run")
    assert (tmp_path / "run" / "ckpt.pt").is_file()


UNUSUAL = {
    "model": {
        "norm_position": "post",
        "norm": "batch",
        "expand": 1,
        "dropout": 0.2,
        "tied_dropout": True,
        "pooling": "last",
        "head": "mlp",
    },
    "finetune": {"epochs": 4, "schedule": "multistep", "step_epochs": 1, "warmup": 0.0, "clip": 0.0, "beta2": 0.98},
}


def test_a_run_with_every_newer_setting_trains_as_told_and_its_checkpoint_is_the_model_that_was_tested(tmp_path):
    phase = masked(schedule="constant", warmup_steps=2, epochs=2, dt_learning_rate=1e-2, decay_vectors=True)
    settings = config("s4", pretrain=phase, **UNUSUAL)
    run(settings, tmp_path, device="cpu")
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    rates = {
        name: [float(row["learning_rate"]) / 4e-3 for row in rows if row["phase"] == name]
        for name in ("pretrain", "finetune")
    }
    steps = len(rates["pretrain"]) // 2
    assert rates["pretrain"] == pytest.approx([0.5, *[1.0] * (2 * steps - 1)])
    assert rates["finetune"] == pytest.approx([0.5**epoch for epoch in range(4) for _ in range(steps)])
    saved = Checkpoint.read(tmp_path / "ckpt.pt")
    assert saved.config == settings
    tested = evaluate(saved.model(), prepare(settings).test, 50, CPU, saved.spec)
    assert tested.value == saved.record["metrics"]["test_accuracy"]
    assert not [name for name in saved.tensors if name.startswith("backbone.norm.")]
    assert "head.hidden.weight" in saved.tensors


def test_a_warm_up_longer_than_the_phase_is_refused_before_a_folder_is_filled(tmp_path):
    with pytest.raises(BadConfig, match=r"^pretrain\.warmup_steps: 500 were given"):
        run(config(pretrain=masked(warmup_steps=500)), tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run").glob("*.pt"))
