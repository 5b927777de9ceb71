from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone, normal
from golden import below, published

from ssm_priors.models.mixers.sgconv import stretch


def weights(segments: np.ndarray, decay: np.ndarray, norm: np.ndarray) -> dict[str, torch.Tensor]:
    arrays = {"segments": segments, "decay_logit": np.log(decay / (1 - decay)), "norm": norm}
    return {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in arrays.items()}


@pytest.mark.parametrize("case", ["sgconv/L64", "sgconv/L1000", "sgconv_bidir/L64"])
def test_it_gives_the_published_kernels(case):
    data = below(published("kernels"), case)
    mixer = mixer_alone("sgconv", causal=len(data["K"]) == 1, max_length=int(data["l_max"]), segment=int(data["N"]))
    mixer.load_state_dict(weights(data["ws"], data["alpha"], data["k_norm"]), strict=False)
    np.testing.assert_allclose(mixer.kernel(data["K"].shape[-1]).detach(), data["K"], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("case", ["sgconv_block", "sgconv_block_bidir"])
def test_it_gives_the_published_layer_output(case):
    data = below(published("layers_nfs"), case)
    mixer = mixer_alone("sgconv", causal=len(data["K"]) == 1)
    segments = np.stack([data[f"sd/kernel.ws.{scale}"] for scale in range(4)])
    values = weights(segments, data["sd/kernel.alpha"], np.ones((len(data["K"]), 4, 1)))
    values |= {
        "D": torch.from_numpy(data["sd/D"][0]),
        "output.weight": torch.from_numpy(data["sd/output_linear.0.weight"]),
        "output.bias": torch.from_numpy(data["sd/output_linear.0.bias"]),
    }
    mixer.load_state_dict(values)
    # the norm is in no published state dict: it was taken from these weights at the first call
    mixer.norm.copy_(mixer._multiscale().detach().norm(dim=-1, keepdim=True))
    np.testing.assert_allclose(mixer.kernel(64).detach(), data["K"], rtol=1e-10, atol=1e-13)
    u = torch.from_numpy(published("layers_nfs")["u_BLH"])
    answer = mixer(u, torch.tensor([64, 64])).detach()
    np.testing.assert_allclose(answer, data["y_BLH"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_every_channel_starts_with_a_norm_of_one(causal):
    kernel = mixer_alone("sgconv", causal=causal, max_length=100).kernel(128)
    torch.testing.assert_close(kernel.norm(dim=-1), torch.ones(1 if causal else 2, 4).double(), rtol=1e-6, atol=0)


def test_the_norm_is_saved_with_the_weights_and_stays_when_they_are_trained():
    trained = mixer_alone("sgconv", causal=True)
    with torch.no_grad():
        trained.segments *= 3
    kernel = trained.kernel(64)
    torch.testing.assert_close(kernel.norm(dim=-1), torch.full((1, 4), 3.0).double(), rtol=1e-6, atol=0)
    fresh = mixer_alone("sgconv", causal=True)
    fresh.norm.fill_(7)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.kernel(64), kernel)


@pytest.mark.parametrize(("max_length", "reach"), [(1, 8), (8, 8), (9, 16), (64, 64), (65, 128), (72, 128)])
def test_the_kernel_reaches_at_least_as_far_as_asked_and_ends_with_a_scale(max_length, reach):
    mixer = mixer_alone("sgconv", causal=False, max_length=max_length)
    kernel = mixer.kernel(200)
    assert kernel.shape == (2, 4, 200)
    assert (kernel[..., :reach] != 0).all()
    assert (kernel[..., reach:] == 0).all()
    assert torch.equal(mixer.kernel(5), kernel[..., :5])
    assert mixer_alone("sgconv", causal=True, max_length=max_length).initial_state(1).shape == (1, reach, 4)


def test_stretching_interpolates_between_midpoints():
    assert stretch(torch.tensor([[[0.0, 4.0]]]), 4)[0, 0].tolist() == [0, 0, 0.5, 1.5, 2.5, 3.5, 4, 4]
    assert stretch(torch.tensor([[[1.0, 2.0, 5.0]]]), 1)[0, 0].tolist() == [1, 2, 5]


def test_the_decay_stays_between_zero_and_one_whatever_its_parameter_is():
    mixer = mixer_alone("sgconv", causal=True)
    with torch.no_grad():
        mixer.segments.fill_(1)
        mixer.decay_logit.copy_(torch.tensor([[-100.0, 100.0, -30.0, 30.0]]))
    kernel = mixer._multiscale()
    assert (kernel.diff(dim=-1) <= 0).all()
    kernel.sum().backward()
    assert torch.isfinite(mixer.decay_logit.grad).all()


def test_half_precision_leaves_the_decay_as_it_was():
    mixer = mixer_alone("sgconv", causal=True).float()
    before = mixer.decay_logit.clone()
    assert torch.equal(mixer.bfloat16().decay_logit, before)
    assert mixer.segments.dtype == torch.bfloat16
    assert mixer(normal(1, 9, 4).bfloat16(), torch.tensor([9])).dtype == torch.bfloat16
