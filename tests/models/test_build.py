from __future__ import annotations

import pytest
import torch
from builders import CONTINUOUS, TOKENS, config, model, normal

from ssm_priors.batch import valid_positions
from ssm_priors.checkpoints.container import digest
from ssm_priors.errors import BadConfig, BadData, UnknownName
from ssm_priors.models.backbone import BatchNorm
from ssm_priors.models.build import build, fresh_head
from ssm_priors.models.heads import mean_pool
from ssm_priors.models.padding import silence_padding
from ssm_priors.ops.attention import sinusoid
from ssm_priors.registry import MIXERS


def test_the_mean_is_over_valid_positions_only():
    u = torch.tensor([2.0, 4, 9, 9])[None, :, None]
    assert mean_pool(u, torch.tensor([2])).item() == 3
    u[0, 2:] = float("nan")
    assert mean_pool(u, torch.tensor([2])).item() == 3
    assert mean_pool(u[:, :2], torch.tensor([2])).item() == 3


def test_each_row_is_averaged_over_its_own_length():
    u = normal(3, 7, 2)
    lengths = torch.tensor([1, 7, 4])
    expected = torch.stack([row[:length].mean(0) for row, length in zip(u, lengths, strict=True)])
    torch.testing.assert_close(mean_pool(u, lengths), expected)


def test_silencing_zeroes_the_padding_and_its_gradient():
    u = torch.full((2, 3, 1), float("nan"))
    u[0, :2], u[1] = 1, 2
    u.requires_grad_()
    quiet = silence_padding(u, torch.tensor([2, 3]))
    assert quiet[..., 0].tolist() == [[1, 1, 0], [2, 2, 2]]
    quiet.sum().backward()
    assert u.grad[..., 0].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert valid_positions(torch.tensor([0, 2]), 2).tolist() == [[False, False], [True, True]]


def test_batch_norm_is_over_valid_positions_only():
    u, lengths = normal(3, 6, 4), torch.tensor([2, 6, 3])
    norm, plain = BatchNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    valid = valid_positions(lengths, 6)
    normed = norm(u.masked_fill(~valid[..., None], 1e6), lengths)
    torch.testing.assert_close(normed[valid], plain(u[valid]))
    assert (normed[~valid] == 0).all()
    torch.testing.assert_close(norm.running_var, plain.running_var)
    torch.testing.assert_close(norm.running_mean, plain.running_mean)


@pytest.mark.parametrize("name", MIXERS)
def test_a_start_is_a_function_of_configuration_and_seed_alone(name):
    torch.manual_seed(5)
    generator = torch.get_rng_state()
    first = digest(model(name, layers=2).state_dict())
    assert torch.equal(torch.get_rng_state(), generator)
    torch.manual_seed(6)
    assert digest(model(name, layers=2).state_dict()) == first
    assert digest(model(name, layers=2, seed=1).state_dict()) != first


@pytest.mark.parametrize("name", MIXERS)
def test_layers_start_differently(name):
    one, two = model(name, layers=2).mixers
    assert digest(one.state_dict()) != digest(two.state_dict())


def test_a_head_starts_the_same_whether_or_not_another_came_before_it():
    settings = config().model
    pretrained = build(settings, CONTINUOUS, 0, outputs=1, pooled=False)
    scratch = build(settings, CONTINUOUS, 0, outputs=3, pooled=True)
    pretrained.head = fresh_head(settings, 0, outputs=3, pooled=True)
    assert digest(pretrained.state_dict()) == digest(scratch.state_dict())


def test_tokens_are_tokens_even_when_a_batch_is_as_long_as_the_vocabulary():
    network = model(spec=TOKENS).eval()
    ids = torch.arange(20)[None].repeat(2, 1)
    assert network(ids, torch.tensor([20, 20])).shape == (2, 3)
    assert network.embedding(ids).shape == (2, 20, 8)


def test_a_token_outside_the_vocabulary_is_an_error_and_no_zero_vector():
    with pytest.raises(IndexError):
        model(spec=TOKENS)(torch.tensor([[20, 1]]), torch.tensor([2]))


def test_a_hidden_input_is_replaced_by_one_vector_whatever_it_was():
    network = model(pooled=False, outputs=1).eval()
    hidden = torch.zeros(1, 10, dtype=torch.bool)
    hidden[0, [2, 7]] = True
    x = normal(1, 10, 1, dtype=torch.float32)
    other = x.masked_fill(hidden[..., None], -3e3)
    lengths = torch.tensor([10])
    assert torch.equal(network(x, lengths, hidden), network(other, lengths, hidden))
    assert not torch.equal(network(x, lengths), network(other, lengths))


def test_learned_positions_tell_positions_apart_and_say_where_they_end():
    network = model(positions="learned")
    u = network.embedding(torch.ones(1, 5, 1))
    assert not torch.equal(u[0, 0], u[0, 1])
    with pytest.raises(BadData, match=r"65 positions.*64"):
        network(torch.ones(1, 65, 1), torch.tensor([65]))


def test_sinusoidal_positions_are_fixed_added_and_reach_any_length():
    network, plain = model(positions="sinusoidal"), model()
    assert network.state_dict().keys() == plain.state_dict().keys()
    x = normal(1, 200, 1, dtype=torch.float32)
    added = network.embedding(x) - plain.embedding(x)
    torch.testing.assert_close(added[0], sinusoid(200, 8).float(), rtol=0, atol=1e-6)
    assert network.bfloat16().embedding(x.bfloat16()).dtype == torch.bfloat16


def test_an_unknown_init_is_refused_before_anything_is_built():
    settings = config(model={"mixer": {"init": "s4d-lim"}}).model
    with pytest.raises(UnknownName, match="Did you mean s4d-lin"):
        build(settings, CONTINUOUS, 0, outputs=3, pooled=True)


@pytest.mark.parametrize(("d_model", "heads", "text"), [(10, 4, "not divide"), (6, 2, "odd")])
def test_heads_that_do_not_fit_are_refused(d_model, heads, text):
    with pytest.raises(BadConfig, match=text):
        model("transformer", d_model=d_model, mixer={"heads": heads})
