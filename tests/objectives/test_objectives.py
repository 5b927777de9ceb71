from __future__ import annotations

import math

import pytest
import torch
from builders import CONTINUOUS, TOKENS, config, model, normal
from hypothesis import given
from hypothesis import strategies as st
from strategies import padded_batches

from ssm_priors.batch import Batch
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.objectives.causal import Causal
from ssm_priors.objectives.masked import Masked
from ssm_priors.objectives.objective import Problem, reconstruction_score
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.registry import OBJECTIVES, source, summary
from ssm_priors.seeds import torch_stream

RECONSTRUCTING = ["causal", "masked"]
"""Those whose answers are inputs, at their own place, of either kind."""


def objective(name: str, spec=CONTINUOUS):
    return OBJECTIVES[name](OBJECTIVES[name].Config(), spec)


def masked(ratio: float, spec=CONTINUOUS) -> Masked:
    return Masked(Masked.Config(ratio=ratio), spec)


def valid(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.inputs.shape[1]) < batch.lengths[:, None]


batches = st.one_of(padded_batches(), padded_batches(features=3), padded_batches(vocabulary=20))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_says_what_it_is_and_where_it_comes_from(name):
    assert summary(OBJECTIVES[name])
    assert source(OBJECTIVES[name])


@pytest.mark.parametrize("name", RECONSTRUCTING)
@given(batch=batches)
def test_nothing_in_the_padding_is_asked_or_hidden(name, batch):
    problem = objective(name).pose(batch, torch_stream(0, "masks"))
    assert not (problem.scored & ~valid(batch)).any()
    if problem.hidden is not None:
        assert not (problem.hidden & ~valid(batch)).any()


@pytest.mark.parametrize("name", RECONSTRUCTING)
@given(batch=batches)
def test_a_problem_is_a_function_of_its_generator_and_of_no_value(name, batch):
    other = Batch(batch.inputs * 0, batch.lengths, None)
    first, second, third = (
        objective(name).pose(which, torch_stream(seed, "masks")) for which, seed in ((batch, 0), (other, 0), (batch, 1))
    )
    assert torch.equal(first.scored, second.scored)
    if first.hidden is not None and valid(batch).sum() > 60:
        assert not torch.equal(first.hidden, third.hidden)


@pytest.mark.parametrize("name", RECONSTRUCTING)
@pytest.mark.parametrize("features", [1, 3])
def test_what_is_answered_where_it_does_not_count_changes_no_score(name, features):
    batch = Batch(normal(2, 12, features), torch.tensor([12, 5]), None)
    problem = objective(name).pose(batch, torch_stream(0, "masks"))
    answers = normal(2, 12, features, seed=1)
    elsewhere = torch.where(problem.scored[..., None], answers, torch.tensor(float("nan")).double())
    assert objective(name).score(answers, problem) == objective(name).score(elsewhere, problem)


# -- masked


@pytest.mark.parametrize("ratio", [0.1, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("length", [20, 196, 1000])
def test_the_masked_share_is_the_ratio_within_its_binomial_bounds(ratio, length):
    rows = 200_000 // length
    batch = Batch(torch.zeros(rows, length, 1), torch.full((rows,), length), None)
    share = masked(ratio).pose(batch, torch_stream(0, "masks")).hidden.double().mean(1)
    expected = ratio + (1 - ratio) ** length / length  # an empty draw hides one position
    assert abs(share.mean().item() - expected) < 4 * math.sqrt(ratio * (1 - ratio) / (rows * length))
    spread = math.sqrt(ratio * (1 - ratio) / length)
    assert share.std().item() == pytest.approx(spread, rel=0.25)


def test_every_position_is_masked_as_often_as_any_other():
    batch = Batch(torch.zeros(4000, 20, 1), torch.full((4000,), 20), None)
    often = masked(0.15).pose(batch, torch_stream(0, "masks")).hidden.double().mean(0)
    assert (often - often.mean()).abs().max() < 4.5 * math.sqrt(0.15 * 0.85 / 4000)


@pytest.mark.parametrize("ratio", [1e-9, 0.15])
def test_no_example_goes_without_a_target(ratio):
    lengths = torch.randint(1, 21, (1000,), generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.zeros(1000, 20, 1), lengths, None)
    hidden = masked(ratio).pose(batch, torch_stream(0, "masks")).hidden
    assert hidden.any(dim=1).all()
    assert not (hidden & ~valid(batch)).any()
    if ratio < 0.1:  # one position each, and every place comes up
        assert (hidden.sum(1) == 1).all()
        assert hidden.any(dim=0).all()


def test_the_loss_is_finite_on_the_shortest_examples():
    batch = Batch(torch.zeros(50, 1, 1), torch.ones(50, dtype=torch.long), None)
    total, count = masked(0.15).score(torch.ones(50, 1, 1), masked(0.15).pose(batch, torch_stream(0, "masks")))
    assert count == 50
    assert total.item() == 50


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", [CONTINUOUS, TOKENS], ids=["continuous", "token"])
@pytest.mark.parametrize("mixer", ["s4d", "transformer"])
def test_the_value_of_a_masked_input_reaches_no_prediction(mixer, spec, causal):
    made = masked(0.3, spec)
    network = model(mixer, spec, pooled=False, outputs=made.outputs, causal=causal, layers=2).eval()
    tokens = spec.kind == "token"
    x = torch.randint(20, (2, 30)) if tokens else normal(2, 30, 1, dtype=torch.float32)
    batch = Batch(x, torch.tensor([30, 11]), None)
    problem = made.pose(batch, torch_stream(0, "masks"))
    hidden = problem.hidden if tokens else problem.hidden[..., None]
    other = torch.where(hidden, (x + 7) % 20 if tokens else x * -50 + 9, x)
    assert not torch.equal(x, other)
    assert torch.equal(network(x, batch.lengths, problem.hidden), network(other, batch.lengths, problem.hidden))


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_a_ratio_that_hides_nothing_or_everything_is_refused(ratio):
    with pytest.raises(BadConfig, match=r"pretrain\.objective\.ratio"):
        config(pretrain={"objective": {"name": "masked", "ratio": ratio}})


# -- causal


def test_a_next_value_answers_and_a_copy_does_not():
    values = torch.arange(10.0)[None, :, None]
    batch = Batch(values, torch.tensor([10]), None)
    made = objective("causal")
    problem = made.pose(batch, torch_stream(0, "masks"))
    assert made.score(values + 1, problem) == (torch.tensor(0.0), 9)
    assert made.score(values, problem) == (torch.tensor(9.0), 9)


@given(batch=batches)
def test_the_answer_is_the_next_valid_input(batch):
    problem = objective("causal").pose(batch, torch_stream(0, "masks"))
    assert problem.scored.sum() == (batch.lengths - 1).sum()
    for row, length in enumerate(batch.lengths):
        assert torch.equal(problem.targets[row, : length - 1], batch.inputs[row, 1:length])


def test_a_two_sided_model_is_refused_for_the_causal_objective():
    with pytest.raises(BadConfig, match=r"model\.causal = true"):
        config(pretrain={"objective": {"name": "causal"}})
    assert config(pretrain={"objective": {"name": "causal"}}, model={"causal": True}).model.causal


@pytest.mark.parametrize("mixer", ["s4d", "transformer"])
def test_a_causal_model_has_not_seen_what_it_is_asked(mixer):
    network = model(mixer, pooled=False, outputs=1, causal=True, layers=2).double().eval()
    x = normal(1, 20, 1)
    lengths = torch.tensor([20])
    for t in (0, 7, 18):
        changed = x.clone()
        changed[0, t + 1] += 1
        torch.testing.assert_close(
            network(changed, lengths)[0, : t + 1], network(x, lengths)[0, : t + 1], atol=1e-12, rtol=0
        )


# -- scores


@pytest.mark.parametrize(("name", "count"), [("causal", 2), ("masked", 3)])
def test_an_end_token_that_equals_the_padding_token_is_learned(name, count):
    eos = 1
    batch = Batch(torch.tensor([[5, 6, eos, eos, eos, eos]]), torch.tensor([3]), None)
    made = masked(1 - 1e-12, TOKENS) if name == "masked" else objective(name, TOKENS)
    problem = made.pose(batch, torch_stream(0, "masks"))
    assert made.score(torch.zeros(1, 6, 20), problem)[1] == count
    assert eos in problem.targets[problem.scored]


def test_a_score_is_a_sum_over_targets_so_that_one_and_ninety_nine_weigh_so():
    batch = Batch(torch.zeros(2, 99, 1), torch.tensor([1, 99]), None)
    scored = valid(batch)
    answers = torch.cat([torch.full((1, 99, 1), 100.0), torch.ones(1, 99, 1)])
    total, count = reconstruction_score(answers, Problem(scored, batch.inputs, scored))
    assert count == 100
    assert total.item() / count == pytest.approx(1.99)


def test_features_of_a_step_are_averaged_and_tokens_scored_by_cross_entropy():
    everywhere = torch.ones(1, 2, dtype=torch.bool)
    total, count = reconstruction_score(
        torch.zeros(1, 2, 2), Problem(None, torch.tensor([[[1.0, 3.0], [0.0, -4.0]]]), everywhere)
    )
    assert (total.item(), count) == (4.0, 2)
    total, count = reconstruction_score(torch.zeros(1, 2, 20), Problem(None, torch.tensor([[3, 19]]), everywhere))
    assert total.item() == pytest.approx(2 * math.log(20))


@pytest.mark.parametrize("name", RECONSTRUCTING)
def test_the_vocabulary_is_the_tasks_own_and_gains_no_extra_token(name):
    assert objective(name, TOKENS).outputs == TOKENS.vocabulary
    assert objective(name, CONTINUOUS).outputs == CONTINUOUS.features
    pretrained = model(spec=TOKENS, pooled=False, outputs=TOKENS.vocabulary)
    finetuned = model(spec=TOKENS, pooled=True, outputs=TOKENS.classes)
    assert torch.equal(pretrained.embedding.values.weight, finetuned.embedding.values.weight)
    assert len(finetuned.embedding.values.weight) == TOKENS.vocabulary


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("name", RECONSTRUCTING)
def test_ids_of_any_integer_type_can_be_targets(name, dtype):
    batch = Batch(torch.tensor([[5, 6, 7]], dtype=dtype), torch.tensor([3]), None)
    problem = objective(name, TOKENS).pose(batch, torch_stream(0, "masks"))
    assert torch.isfinite(objective(name, TOKENS).score(torch.zeros(1, 3, 20), problem)[0])


def test_the_supervised_objective_asks_for_every_class_and_needs_labels():
    made = Supervised(CONTINUOUS)
    batch = Batch(torch.zeros(4, 5, 1), torch.full((4,), 5), torch.tensor([0, 1, 2, 0]))
    problem = made.pose(batch, torch_stream(0, "masks"))
    total, count = made.score(torch.zeros(4, 3), problem)
    assert (total.item(), count) == (pytest.approx(4 * math.log(3)), 4)
    assert problem.hidden is None
    with pytest.raises(BadData, match="without labels"):
        made.pose(Batch(batch.inputs, batch.lengths, None), torch_stream(0, "masks"))


def test_only_the_causal_objective_needs_a_one_sided_model():
    assert Causal.requires_causal
    assert not Masked.requires_causal
