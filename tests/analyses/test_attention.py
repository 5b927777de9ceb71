from __future__ import annotations

import builders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssm_priors.analyses import attention as analysis
from ssm_priors.analyses import schema
from ssm_priors.analyses.attention import along_diagonals, attention_maps, attention_summary
from ssm_priors.batch import Batch
from ssm_priors.errors import BadConfig, BadData, NotThere
from ssm_priors.models.protocols import HasAttention
from ssm_priors.ops.attention import Weights

from .conftest import make_checkpoint

KINDS = [
    ("transformer", {}),
    ("transformer", {"rotary": False}),
    ("transformer", {"window": 3}),
    ("mega", {}),
    ("mega", {"attention": "laplace"}),
    ("mega", {"chunk": 5}),
    ("mega", {"chunk": 5, "attention": "laplace"}),
]
"""Every way in which a mixer attends."""


def batch(*lengths: int, columns: int = 0, seed: int = 0) -> Batch:
    columns = max(columns, *lengths)
    inputs = builders.normal(len(lengths), columns, 1, seed=seed, dtype=torch.float32)
    return Batch(inputs, torch.tensor(lengths), None)


class Built(torch.nn.Module):
    """An attention whose scores are given: a (L, L) table, the same for every input."""

    def __init__(self, scores: torch.Tensor, causal: bool):
        super().__init__()
        self.scores, self.causal = scores, causal

    def forward(self, u, lengths):
        return u

    def attention_weights(self, u, lengths):
        size = len(self.scores)
        q = (self.scores * size**0.5).expand(len(u), 1, size, size)
        k = torch.eye(size, dtype=q.dtype).expand(len(u), 1, size, size)
        return Weights(q, k, k, lengths, self.causal)


def model_of(scores: torch.Tensor, causal: bool = True):
    model = builders.model("transformer", causal=causal)
    model.backbone.blocks[0].mixer = Built(scores, causal)
    return model


def looks_back(steps: int, length: int):
    """All weight on the key `steps` back; where there is none, on the query itself."""
    key = torch.arange(length) - steps
    scores = torch.full((length, length), -1e4, dtype=torch.float64)
    scores[torch.arange(length), torch.where(key >= 0, key, torch.arange(length))] = 0
    return model_of(scores)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_the_weights_are_those_that_the_forward_pass_reads_values_with(name, options, causal, monkeypatch):
    """What `attend` gave the mixer in its own forward pass, against weights times values."""
    mixer = builders.mixer_alone(name, causal=causal, d_model=8, **options)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter *= 3  # away from weights that are nearly even
    assert isinstance(mixer, HasAttention)
    lengths = torch.tensor([13, 7, 1])
    u = builders.normal(3, 13, 8)
    seen = {}
    with torch.no_grad():
        if name == "transformer":
            mixer.output.register_forward_pre_hook(lambda _, given: seen.update(read=given[0]))
        else:
            original = type(mixer)._attend
            monkeypatch.setattr(type(mixer), "_attend", lambda *a: seen.setdefault("read", original(*a)))
        mixer(u, lengths)
        weights = mixer.attention_weights(u, lengths)
        rows = torch.cat([weights.rows(start, min(start + 4, 13)) for start in range(0, 13, 4)], dim=2)
        read = (rows @ weights.v).transpose(1, 2).flatten(-2)
    for example, valid in enumerate(lengths):
        torch.testing.assert_close(read[example, :valid], seen["read"][example, :valid], rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_attention_that_looks_back_some_steps_has_that_mean_distance(steps):
    length = 40
    found = attention_summary(looks_back(steps, length), [batch(length)], near=3, recent=3).isel(layer=0, head=0)
    share = (length - steps) / length  # the first queries have no key so far back and look at themselves
    assert found.mean_distance == pytest.approx(steps * share)
    assert found.mass.sel(reach=steps, method="ffill") == pytest.approx(share)
    assert found.mass.sel(reach=0) == pytest.approx(1 - share)
    assert found.entropy == pytest.approx(0, abs=1e-9)
    assert found.recency == pytest.approx(share if steps <= 3 else 0)
    assert found.locality == pytest.approx(1 if steps <= 3 else 1 - share)


@pytest.mark.parametrize("causal", [True, False])
def test_even_attention_has_the_entropy_of_its_keys_and_its_own_baseline(causal):
    length = 12
    found = attention_summary(model_of(torch.zeros(20, 20), causal), [batch(length, columns=20)]).isel(layer=0, head=0)
    keys = np.arange(1, length + 1) if causal else np.full(length, length)
    assert found.entropy == pytest.approx(np.log(keys).mean())
    assert found.entropy == pytest.approx(found.uniform_entropy)
    key, query = np.meshgrid(np.arange(length), np.arange(length))
    apart = np.abs(query - key) * ((key <= query) if causal else 1)
    assert found.mean_distance == pytest.approx((apart.sum(1) / keys).mean())
    assert found.mean_distance == pytest.approx(found.uniform_distance)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_no_weight_falls_on_padding_and_shares_are_whole(name, options, causal):
    model = builders.model(name, layers=2, causal=causal, mixer=options)
    found = attention_summary(model, [batch(20, 7, 1), batch(3, columns=31)])
    assert (found.padding == 0).all()
    assert (found.queries == 31).all()
    np.testing.assert_allclose(found.mass.sum("reach"), 1, atol=1e-12)
    if options.get("attention") != "laplace":
        np.testing.assert_allclose(found.total_weight, 1, atol=1e-12)
    maps = attention_maps(model, batch(20, 7, 1)).attention
    assert (maps.isel(example=1, key=slice(7, None), query=slice(None, 7)) == 0).all()
    assert maps.isel(example=1, query=slice(7, None)).isnull().all()


def test_padding_that_is_attended_would_be_seen():
    """The share on padding is computed: weights that leak have one."""

    weights = Built(torch.zeros(10, 10), False).attention_weights(torch.zeros(1, 10, 8), torch.tensor([10]))
    tally = analysis._Tally(1, 10, None)
    rows, visible = weights.rows(0, 4)[0].numpy(), weights.visible(0, 4)[0, 0].numpy()
    tally._add(0, rows, visible, valid=4)
    assert tally.means(1, 1)["padding"] == pytest.approx(0.6)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.sampled_from(KINDS))
def test_blocks_of_any_size_and_any_batching_give_the_same_summary(block, width, causal, kind):
    model = builders.model(kind[0], layers=2, causal=causal, mixer=kind[1])
    whole = attention_summary(model, [batch(21, 9, 2)], width=width, near=4, recent=2)
    inputs = batch(21, 9, 2)
    single = [Batch(inputs.inputs[i : i + 1], inputs.lengths[i : i + 1], None) for i in (2, 0, 1)]
    apart = attention_summary(model, single, width=width, near=4, recent=2, block=block)
    for name in whole.data_vars:
        np.testing.assert_allclose(apart[name], whole[name], atol=1e-5, err_msg=name)
    same = attention_summary(model, [batch(21, 9, 2)], width=width, near=4, recent=2, block=block)
    for name in whole.data_vars:
        np.testing.assert_allclose(same[name], whole[name], rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_a_summary_is_what_the_maps_say(name, options):
    model, shown = builders.model(name, layers=2, mixer=options), batch(17, 6)
    found = attention_summary(model, [shown], near=2, recent=3, width=4)
    maps = attention_maps(model, shown, block=5).attention.values.astype(np.float64)
    assert maps.shape[:2] == (2, 2)
    rows = np.concatenate([maps[:, 0, :, :17], maps[:, 1, :, :6]], axis=2)
    query = np.concatenate([np.arange(17), np.arange(6)])[:, None]
    key = np.arange(17)
    share = rows / rows.sum(-1, keepdims=True)
    expected = {
        "mean_distance": np.abs(query - key),
        "locality": np.abs(query - key) <= 2,
        "recency": (query - key >= 1) & (query - key <= 3),
        "mean_row_distance": np.abs(query // 4 - key // 4),
        "mean_column_distance": np.abs(query % 4 - key % 4),
    }
    for each, factor in expected.items():
        np.testing.assert_allclose(found[each], (share * factor).sum(-1).mean(-1), atol=1e-6, err_msg=each)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(share > 0, share * np.log(share), 0).sum(-1).mean(-1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-6)
    assert found.offset_mass.sum(["row", "column"]).values == pytest.approx(np.ones((2, share.shape[1])))


def test_looking_one_row_up_in_an_image_is_a_distance_of_one_row():
    found = attention_summary(looks_back(8, 64), [batch(64)], width=8).isel(layer=0, head=0)
    assert found.mean_row_distance == pytest.approx(56 / 64)
    assert found.mean_column_distance == pytest.approx(0)
    assert found.offset_mass.sel(row=1, column=0) == pytest.approx(56 / 64)


def test_only_what_was_asked_for_is_mapped(checkpoint):
    trained = make_checkpoint("transformer", layers=3)
    maps = attention_maps(trained, batch(9), layers=[2])
    whole = attention_maps(trained.model(), batch(9))
    assert maps.attention.equals(whole.attention.sel(layer=[2]))
    assert maps.attrs["weights_sha256"] == trained.digest


def test_a_summary_never_holds_a_table_of_all_heads(monkeypatch):
    length, block, sizes = 1024, 64, []
    original = Weights.rows

    def rows(self, start, stop):
        found = original(self, start, stop)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(Weights, "rows", rows)
    attention_summary(builders.model("transformer"), [batch(length)], block=block)
    assert max(sizes) == 2 * block * length
    assert len(sizes) == length // block


def test_looking_leaves_the_model_as_it_was_also_after_an_error(monkeypatch):
    model = builders.model("transformer", layers=2, dropout=0.5).train()
    model.backbone.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    attention_summary(model, [batch(9, 4)])
    assert [module.training for module in model.modules()] == modes
    monkeypatch.setattr(Weights, "rows", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attention_summary(model, [batch(9, 4)])
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_summary_survives_a_file(tmp_path):
    found = attention_summary(make_checkpoint("mega", layers=2), [batch(16, 5)], width=4)
    schema.write(found, tmp_path / "attention.nc")
    assert schema.read(tmp_path / "attention.nc").identical(found)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])
def test_sums_along_diagonals(rows, columns):
    table = np.random.default_rng(0).standard_normal((2, rows, columns))
    expected = [np.trace(table, offset=-offset, axis1=1, axis2=2) for offset in range(1 - columns, rows)]
    np.testing.assert_allclose(along_diagonals(table), np.stack(expected, axis=-1), atol=1e-12)


def test_what_has_no_attention_or_no_inputs_is_refused():
    with pytest.raises(NotThere, match="this model has no attention: its mixer is a S4D, not an attention"):
        attention_summary(builders.model(), [batch(4)])
    model = builders.model("transformer")
    with pytest.raises(BadData, match="no inputs"):
        attention_summary(model, [])
    with pytest.raises(BadConfig, match="block of 0"):
        attention_summary(model, [batch(4)], block=0)
    with pytest.raises(BadConfig, match="width 0"):
        attention_summary(model, [batch(4)], width=0)
    with pytest.raises(BadConfig, match=r"layers \[1\]: the model has the layers 0 to 0"):
        attention_maps(model, batch(4), layers=[1])
