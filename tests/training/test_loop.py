from __future__ import annotations

import pytest
import torch
from builders import CONTINUOUS, config, masked, model, normal
from hypothesis import given
from hypothesis import strategies as st
from lightning_fabric import Fabric

from ssm_priors.errors import BadConfig
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.tasks.task import Split
from ssm_priors.training import loop
from ssm_priors.training.evaluate import Evaluation, evaluate
from ssm_priors.training.journal import Progress
from ssm_priors.training.loop import Phase
from ssm_priors.training.optimiser import adamw

CPU = torch.device("cpu")


def split(examples: int, length: int = 12, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (examples,), generator=generator)
    inputs = normal(examples, length, 1, seed=seed, dtype=torch.float32)
    return Split(inputs, lengths, torch.randint(3, (examples,), generator=generator))


def phase(examples: int = 10, **settings: object) -> Phase:
    finetune = config(finetune=settings).finetune
    return Phase("finetune", finetune, Supervised(CONTINUOUS), split(examples), split(6), 0, CONTINUOUS)


@given(examples=st.integers(1, 60), batch=st.integers(1, 25), epochs=st.integers(1, 3))
def test_every_example_is_seen_once_an_epoch(examples, batch, epochs):
    made = phase(examples, batch_size=batch, epochs=epochs)
    orders = []
    for epoch in range(epochs):
        steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
        orders.append(torch.cat([made.rows(step) for step in steps]))
        assert sorted(orders[-1].tolist()) == list(range(examples))
    assert made.steps == epochs * made.steps_per_epoch
    if epochs > 1 and examples > 20:
        assert not torch.equal(orders[0], orders[1])


def validated(monkeypatch, accuracies: list[float]) -> Progress:
    """Five epochs whose validation accuracies are given; the weights of epoch k hold the number k."""
    network, made = model(), phase(4, batch_size=2)
    progress = Progress("finetune")
    for epoch, accuracy in enumerate(accuracies, 1):
        with torch.no_grad():
            network.head.output.bias.fill_(epoch)
        right = torch.arange(100) < round(accuracy * 100)
        told = Evaluation(0.0, right.long(), torch.ones(100, dtype=torch.long))
        monkeypatch.setattr(loop, "evaluate", lambda *_, told=told: told)
        assert loop._validate(made, network, CPU, progress, 2 * epoch - 1) == {}
        loop._validate(made, network, CPU, progress, 2 * epoch)
    return progress


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [([0.1, 0.9, 0.3, 0.4, 0.5], 2), ([0.5, 0.5, 0.5], 1), ([0.0, 0.0], 1), ([0.1, 0.2, 0.3], 3), ([0.2, 0.7, 0.7], 2)],
)
def test_the_first_of_the_best_validations_is_kept_with_its_own_weights(monkeypatch, accuracies, best):
    progress = validated(monkeypatch, accuracies)
    assert progress.best_step == 2 * best
    assert progress.best_metric == accuracies[best - 1]
    assert progress.best["head.output.bias"].tolist() == [best] * 3


def test_a_phase_without_validation_keeps_the_last_weights():
    assert (
        loop._validate(
            Phase("pretrain", config(pretrain=masked()).pretrain, None, split(4), None, 0, CONTINUOUS),
            model(),
            CPU,
            Progress("pretrain"),
            50,
        )
        == {}
    )


@pytest.mark.parametrize("name", ["s4d", "transformer"])
def test_evaluation_does_not_depend_on_the_batch_size(name):
    network = model(name, layers=2, norm="batch").train()
    part = split(37)
    results = [evaluate(network, part, size, CPU, CONTINUOUS) for size in (1, 8, 37)]
    for other in results[1:]:
        assert torch.equal(other.predictions, results[0].predictions)
        assert other.loss == pytest.approx(results[0].loss, abs=1e-5)
        assert other.value == results[0].value
    assert network.training


def test_a_mean_is_over_examples_and_not_over_batches():
    class Constant(torch.nn.Module):
        def forward(self, inputs, lengths):
            return torch.stack([inputs[:, 0, 0], torch.zeros(len(inputs))], dim=1)

    right = torch.cat([torch.arange(256) < 179, torch.arange(256) < 205, torch.arange(10) < 9])
    inputs = torch.where(right, 1.0, -1.0)[:, None, None]
    part = Split(inputs, torch.ones(522, dtype=torch.long), torch.zeros(522, dtype=torch.long))
    result = evaluate(Constant(), part, 256, CPU, CONTINUOUS)
    assert result.value == pytest.approx((179 + 205 + 9) / 522, abs=1e-12)
    losses = torch.nn.functional.cross_entropy(Constant()(inputs, None).double(), part.targets, reduction="none")
    assert result.loss == pytest.approx(losses.mean().item(), abs=1e-12)
    assert result.scores.tolist() == right.double().tolist()


def test_an_evaluation_that_fails_leaves_the_training_flag():
    network = model().train()
    with pytest.raises(RuntimeError):
        evaluate(network, Split(torch.zeros(2, 3, 5), torch.full((2,), 3), torch.zeros(2)), 1, CPU, CONTINUOUS)
    assert network.training


def test_a_warm_up_that_would_never_end_is_refused_before_any_training():
    text = r"^finetune\.warmup_steps: 6 were given, but the phase has 6 steps; .* 0\.3 .*--set finetune\.warmup_steps=0"
    with pytest.raises(BadConfig, match=text):
        phase(10, batch_size=4, epochs=2, warmup_steps=6, warmup=0.3)
    assert phase(10, batch_size=4, epochs=2, warmup_steps=5).steps == 6


@pytest.mark.parametrize(("clip", "most"), [(0.0, None), (1e9, None), (1e-3, 1e-3)])
def test_gradients_are_clipped_to_the_limit_or_not_at_all(clip, most):
    """The gradients after the step, whose norm is told as it was before clipping."""
    made, network = phase(8, batch_size=8, clip=clip), model()
    fabric = Fabric(accelerator="cpu", devices=1)
    module, optimiser = fabric.setup(network, adamw(network, made.settings))
    _, norm, _ = loop._step(made, module, optimiser, fabric, 0, None)
    left = torch.linalg.vector_norm(torch.cat([one.grad.flatten() for one in network.parameters()])).item()
    assert norm > 1e-2
    assert left == pytest.approx(most or norm, rel=1e-3)
