from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builders import mixer_alone, model, normal
from torch import nn

from ssm_priors.models.backbone import Block, TiedDropout
from ssm_priors.registry import MIXERS

FULL = torch.tensor([20, 20])


def block(norm_position: str, *, expand: int = 2, **settings) -> Block:
    made = Block(
        mixer_alone("s4d", causal=False),
        d_model=4,
        width=4 * expand,
        norm="layer",
        norm_position=norm_position,
        **settings,
    )
    for norm in (made.mixer_norm, *([made.feed_forward.norm] if expand else [])):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return made.double()


def normalised(u, norm):
    return F.layer_norm(u, (4,), norm.weight, norm.bias)


@pytest.mark.parametrize("expand", [0, 2])
def test_the_norm_stands_before_the_mixer_or_after_the_sum(expand):
    u = normal(2, 20, 4)
    for position in ("pre", "post"):
        made = block(position, expand=expand, dropout=0.0)
        parts = [(lambda v, made=made: made.mixer(v, FULL), made.mixer_norm)]
        if expand:
            ff = made.feed_forward
            parts.append((lambda v, ff=ff: ff.down(F.gelu(ff.up(v))), ff.norm))
        expected = u
        for part, norm in parts:
            if position == "pre":
                expected = expected + part(normalised(expected, norm))
            else:
                expected = normalised(expected + part(expected), norm)
        torch.testing.assert_close(made(u, FULL), expected)


def test_only_pre_norm_has_a_norm_after_the_last_block():
    pre, post = model(layers=2, expand=1), model(layers=2, expand=1, norm_position="post")
    assert set(pre.state_dict()) - set(post.state_dict()) == {"backbone.norm.weight", "backbone.norm.bias"}
    u = post.represent(normal(2, 9, 1, dtype=torch.float32), torch.tensor([9, 9]))
    torch.testing.assert_close(u.mean(-1), torch.zeros(2, 9), rtol=0, atol=1e-6)  # it ends in a norm all the same


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_with_a_norm_after_the_sum_padding_changes_nothing_either(name, norm):
    network = model(name, layers=2, expand=1, norm=norm, norm_position="post", pooling="max").eval()
    x = normal(2, 30, 1, dtype=torch.float32)
    lengths = torch.tensor([30, 12])
    harmed = x.clone()
    harmed[1, 12:] = 1e3
    torch.testing.assert_close(network(harmed, lengths), network(x, lengths), rtol=0, atol=0)
    alone = network(x[1:, :12], lengths[1:])
    torch.testing.assert_close(network(harmed, lengths)[1:], alone, rtol=1e-4, atol=1e-4)


# -- dropout


def test_tied_dropout_drops_a_channel_of_an_example_whole_or_not_at_all():
    dropout = TiedDropout(0.25)
    torch.manual_seed(0)
    kept = dropout(torch.ones(400, 30, 8))
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    torch.testing.assert_close(kept.unique(), torch.tensor([0, 1 / 0.75]))
    assert (kept[:, 0] == 0).double().mean().item() == pytest.approx(0.25, abs=0.03)  # 3200 draws: 4 deviations
    assert torch.equal(dropout.eval()(kept), kept)


@pytest.mark.parametrize("name", MIXERS)
def test_every_dropout_module_is_tied_or_none_is(name):
    for tied, kind in ((True, TiedDropout), (False, nn.Dropout)):
        network = model(name, layers=2, expand=1, dropout=0.1, tied_dropout=tied)
        kinds = [type(part) for part in network.modules() if isinstance(part, nn.Dropout)]
        assert set(kinds) == {kind}
        assert len(kinds) >= 4  # of the residual sum and of the feed-forward, in both layers


def test_a_block_with_tied_dropout_drops_channels_of_the_whole_sequence():
    made = block("pre", expand=0, dropout=0.5, tied_dropout=True).train()
    u = normal(2, 20, 4)
    torch.manual_seed(0)
    change = made(u, FULL) - u
    dropped = change == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0 < dropped[:, 0].sum() < 8
