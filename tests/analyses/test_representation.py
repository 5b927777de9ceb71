from __future__ import annotations

import builders
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from ssm_priors.analyses import schema
from ssm_priors.analyses.representation import cka, linear_cka
from ssm_priors.batch import Batch
from ssm_priors.errors import BadData

from .conftest import make_checkpoint


def batch(*lengths: int, columns: int = 0, seed: int = 0) -> Batch:
    inputs = builders.normal(len(lengths), max(columns, *lengths), 1, seed=seed, dtype=torch.float32)
    return Batch(inputs, torch.tensor(lengths), None)


def by_definition(x: np.ndarray, y: np.ndarray, debiased: bool) -> float:
    """From the (n, n) tables."""

    def hsic(x: np.ndarray, y: np.ndarray) -> float:
        n, K, L = len(x), x @ x.T, y @ y.T
        if not debiased:
            centre = np.eye(n) - 1 / n
            return np.trace(centre @ K @ centre @ L)
        np.fill_diagonal(K, 0)
        np.fill_diagonal(L, 0)
        rows = K.sum(0) @ L.sum(0)
        return np.trace(K @ L) + K.sum() * L.sum() / (n - 1) / (n - 2) - 2 / (n - 2) * rows

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


@st.composite
def views(draw, least=6):
    n, p, q = draw(st.integers(least, 40)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shared = rng.standard_normal((n, 2))
    mixed = [rng.standard_normal((n, size)) + shared @ rng.standard_normal((2, size)) for size in (p, q)]
    return (*mixed, rng)


@given(views(), st.booleans())
def test_sums_over_features_are_the_tables_over_points(drawn, debiased):
    x, y, _ = drawn
    assert linear_cka(x, y, debiased=debiased) == pytest.approx(by_definition(x, y, debiased), rel=1e-8, abs=1e-10)


@given(views(10), st.booleans(), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_turning_scaling_and_moving_change_nothing(drawn, debiased, scale, shift):
    x, y, rng = drawn
    turn = ortho_group.rvs(x.shape[1], random_state=rng) if x.shape[1] > 1 else np.array([[-1.0]])
    before, after = (linear_cka(view, y, debiased=debiased) for view in (x, scale * x @ turn + shift))
    assert after == pytest.approx(before, rel=1e-6, abs=1e-8)


@given(views(), st.booleans())
def test_it_is_symmetric_and_1_with_itself(drawn, debiased):
    x, y, _ = drawn
    assert linear_cka(x, y, debiased=debiased) == pytest.approx(linear_cka(y, x, debiased=debiased))
    assert linear_cka(x, x, debiased=debiased) == pytest.approx(1)


def test_what_has_nothing_in_common_is_near_0_only_without_bias():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 60, 200))
    assert abs(linear_cka(x, y)) < 0.03
    assert linear_cka(x, y, debiased=False) > 0.7


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("debiased", [True, False])
def test_a_model_is_like_itself(pooled, debiased):
    model, inputs = builders.model(layers=3), [batch(30, 12, 9), batch(20, 20, 4, seed=1)]
    found = cka(model, model, inputs, pooled=pooled, debiased=debiased)
    assert found.cka.dims == ("layer", "other")
    np.testing.assert_allclose(np.diag(found.cka), 1)
    np.testing.assert_allclose(found.cka, found.cka.values.T)
    assert found.cka.values[0, 2] < 0.999
    assert found.attrs["points"] == (6 if pooled else 95)


def test_layers_are_what_blocks_leave_at_valid_positions():
    model, other = builders.model(layers=2).eval(), builders.model("transformer", layers=1, d_model=12, seed=3).eval()
    inputs = batch(30, 12, columns=35)
    left = []
    with torch.no_grad():
        for each in (model, other):
            u = each.embedding(inputs.inputs)
            for block in each.backbone.blocks:
                u = block(u, inputs.lengths)
                left.append(torch.cat([u[0, :30], u[1, :12]]).double().numpy())
    found = cka(model, other, [inputs])
    assert found.cka.shape == (2, 1)
    for layer in range(2):
        assert found.cka.values[layer, 0] == pytest.approx(linear_cka(left[layer], left[2]), rel=1e-9)


def test_batches_and_padding_change_nothing():
    first, second = builders.model(layers=2), builders.model(layers=2, seed=1)
    inputs = batch(20, 7, 13, 1)
    single = [
        Batch(torch.nn.functional.pad(inputs.inputs[i : i + 1], (0, 0, 0, 9)), inputs.lengths[i : i + 1], None)
        for i in (3, 1, 0, 2)
    ]
    for pooled in (True, False):
        whole, apart = (cka(first, second, parts, pooled=pooled) for parts in ([inputs], single))
        np.testing.assert_allclose(whole.cka, apart.cka, atol=1e-5)


def test_both_origins_are_told_and_survive_a_file(tmp_path):
    first, second = make_checkpoint(layers=2), make_checkpoint("transformer")
    found = cka(first, second, [batch(9, 5)])
    assert found.attrs["weights_sha256"] == first.digest
    assert found.attrs["other_weights_sha256"] == second.digest
    assert found.attrs["estimator"] == "debiased"
    schema.write(found, tmp_path / "cka.nc")
    assert schema.read(tmp_path / "cka.nc").identical(found)


def test_a_layer_that_says_nothing_is_undefined():
    model = builders.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert cka(model, builders.model(), [batch(9)]).cka.isnull().all()


def test_too_few_points_are_refused():
    with pytest.raises(BadData, match="no inputs"):
        cka(builders.model(), builders.model(), [])
    with pytest.raises(BadData, match="2 points were given"):
        cka(builders.model(), builders.model(), [batch(9, 5)], pooled=True)
    with pytest.raises(BadData, match="compares the same points"):
        linear_cka(np.ones((5, 2)), np.ones((6, 2)))
