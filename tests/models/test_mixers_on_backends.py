"""Every mixer runs on the compiled kernels where it has what they do, and gives what torch's operations give."""

from __future__ import annotations

import pytest
import torch
from builders import mixer_alone, normal

from ssm_priors.ops import backend, fused
from ssm_priors.registry import MIXERS

LIBRARY, LACKING = fused.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=LACKING)

DIAGONAL = {"convolve", "convolve_backward", "gate", "gate_backward", "vandermonde", "vandermonde_backward"}
OPERATIONS = {
    "dlr": DIAGONAL,
    "dss": DIAGONAL,
    "gpt-neox": set(),
    "gru": set(),
    "longconv": DIAGONAL - {"vandermonde", "vandermonde_backward"},
    "lru": {"gate", "gate_backward"},
    "mega": DIAGONAL - {"gate", "gate_backward"},
    "s4": DIAGONAL - {"vandermonde", "vandermonde_backward"},
    "s4d": DIAGONAL,
    "s5": {"gate", "gate_backward"},
    "sgconv": DIAGONAL - {"vandermonde", "vandermonde_backward"},
    "transformer": set(),
}


def test_every_mixer_is_named_here():
    assert set(OPERATIONS) == set(MIXERS)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_mixer_gives_the_same_on_both_backends(name, causal, monkeypatch):
    if name == "gpt-neox" and not causal:
        pytest.skip("GPT-NeoX is causal")
    mixer = mixer_alone(name, causal=causal, d_model=20).float()
    u, lengths = normal(3, 40, 20, dtype=torch.float32), torch.tensor([40, 17, 40])
    parameters = list(mixer.parameters())
    calls, real = set(), fused._call
    results = {}
    for chosen in ("torch", "fused"):
        with backend.using(chosen):
            monkeypatch.setattr(fused, "_call", lambda operation, *rest: calls.add(operation) or real(operation, *rest))
            y = mixer(u, lengths)
            weight = normal(*y.shape, seed=1, dtype=torch.float32) * (torch.arange(40) < lengths[:, None])[..., None]
            results[chosen] = [y, *torch.autograd.grad((y * weight).sum(), parameters, allow_unused=True)]
            monkeypatch.undo()
    assert calls == OPERATIONS[name]
    for exact, found in zip(results["torch"], results["fused"], strict=True):
        if exact is not None:
            assert (found - exact).abs().max() <= 1e-4 * exact.abs().max() + 1e-6
