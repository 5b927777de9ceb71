from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import TOKENS, config, model, normal

from ssm_priors.errors import BadConfig
from ssm_priors.models.heads import POOLS, PairHead, PooledHead

LENGTHS = torch.tensor([1, 7, 4])
POOLED = {"mean": lambda row: row.mean(0), "max": lambda row: row.amax(0), "last": lambda row: row[-1]}
each_pooling = pytest.mark.parametrize("pooling", POOLS)


def test_every_pooling_is_tested():
    assert POOLED.keys() == POOLS.keys()


@each_pooling
def test_each_row_is_pooled_over_its_own_length_whatever_stands_behind_it(pooling):
    u = normal(3, 7, 2) - 5  # below the zeros that silence padding
    expected = torch.stack([POOLED[pooling](row[:length]) for row, length in zip(u, LENGTHS, strict=True)])
    for harm in (0.0, 1e6, float("nan")):
        harmed = u.clone()
        harmed[0, 1:], harmed[2, 4:] = harm, harm
        torch.testing.assert_close(POOLS[pooling](harmed, LENGTHS), expected)


@each_pooling
def test_no_gradient_reaches_the_padding(pooling):
    u = normal(3, 7, 2).requires_grad_()
    POOLS[pooling](u, LENGTHS).square().sum().backward()
    assert (u.grad[0, 1:] == 0).all()
    assert (u.grad[2, 4:] == 0).all()
    assert (u.grad[0, 0] != 0).all()


@each_pooling
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_pooled_answer_follows_from_its_weights(pooling, kind):
    head = PooledHead(4, 3, pooling, kind).double()
    u = normal(3, 7, 4)
    pooled = POOLS[pooling](u, LENGTHS)
    if kind == "mlp":
        pooled = (pooled @ head.hidden.weight.T + head.hidden.bias).clamp(min=0)
    torch.testing.assert_close(head(u, LENGTHS), pooled @ head.output.weight.T + head.output.bias)
    assert sum(one.numel() for one in head.parameters()) == 4 * 3 + 3 + (20 if kind == "mlp" else 0)


@each_pooling
def test_a_pair_is_pooled_as_asked(pooling):
    head, mean = PairHead(2, 3, pooling), PairHead(2, 3, "mean")
    mean.load_state_dict(head.state_dict())
    u = normal(6, 7, 2, dtype=torch.float32)
    lengths = torch.tensor([1, 7, 4, 3, 2, 7])
    pooled = POOLS[pooling](u, lengths)[:, None]  # one position, which is its own mean
    torch.testing.assert_close(head(u, lengths), mean(pooled, torch.ones(6, dtype=torch.long)))


@each_pooling
def test_a_model_is_built_with_the_head_and_pooling_it_is_told(pooling):
    made = model(pooling=pooling, head="mlp").head
    assert made.pool is POOLS[pooling]
    assert made.hidden is not None
    plain = model().head
    assert (plain.pool, plain.hidden) == (POOLS["mean"], None)


def test_a_hidden_layer_for_a_pair_is_refused_and_not_passed_over():
    pair = replace(TOKENS, documents=2)
    with pytest.raises(BadConfig, match=r"model\.head: 'mlp'"):
        model(spec=pair, head="mlp")
    assert config(model={"head": "mlp"}).model.head == "mlp"
    assert isinstance(model(spec=pair, pooling="max").head, PairHead)
    model(spec=pair, pooled=False, head="mlp")  # while pretraining, each document has an answer a position
