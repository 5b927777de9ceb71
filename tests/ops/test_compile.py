"""torch.compile takes a whole S4D block as one graph, with either backend."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from ssm_priors.models.backbone import Block
from ssm_priors.models.mixers.s4d import S4D
from ssm_priors.ops import backend, fused

LIBRARY, LACKING = fused.load()
FUSED = pytest.param("fused", marks=pytest.mark.skipif(LIBRARY is None, reason=LACKING))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["torch", FUSED])
def test_an_s4d_block_is_one_graph_with_the_same_values_and_gradients(name, causal):
    rng = np.random.default_rng(0)
    mixer = S4D(S4D.Config(d_state=4), d_model=3, causal=causal, dropout=0.0, rng=rng)
    block = Block(mixer, d_model=3, width=0, norm="layer", dropout=0.0)
    u, lengths = torch.randn(2, 11, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([11, 6])
    torch.compiler.reset()
    with backend.using(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own, which differ between versions of torch
        # The graph with its derivative, run by torch itself: what a C++ compiler makes of it is not ours
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        found, expected = compiled(u, lengths), block(u, lengths)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        parameters = list(block.parameters())
        grads = torch.autograd.grad(found.square().sum(), parameters)
        for grad, right in zip(grads, torch.autograd.grad(expected.square().sum(), parameters), strict=True):
            torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-5)
