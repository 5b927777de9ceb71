from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import mixer_alone, normal
from golden import below, published
from torch import Tensor, nn

from ssm_priors.models.mixers.mega import Mega
from ssm_priors.ops import reference

CASES = ["mega_ema_N2", "mega_ema_N16", "mega_ema_N2_bidir", "mega_ema_N16_bidir"]


def average(data: dict[str, np.ndarray]) -> nn.Module:
    """A moving average with published parameters: both directions stand one after the other in the channel axis."""
    channels, d_state = data["omega"].shape[0], data["beta"].shape[1]
    mixer = mixer_alone("mega", causal=len(data["beta"]) == channels, d_model=channels, d_state=d_state)
    values = {key: data[key].reshape(-1, channels, d_state) for key in ("delta", "alpha", "beta", "gamma")}
    values["omega"] = data["omega"]
    mixer.average.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()})
    return mixer.average


def ours(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A published kernel, (direction H, L), whose backward half begins with the present input, in our indexing."""
    kernel = kernel.reshape(-1, channels, kernel.shape[-1]).copy()
    if len(kernel) == 2:
        kernel[0, :, 0] += kernel[1, :, 0]
        kernel[1] = np.roll(kernel[1], -1, axis=-1)
    return kernel


@pytest.mark.parametrize(
    ("case", "length"),
    [("mega_ema_N2", 64), ("mega_ema_N16", 64), ("mega_ema_N16", 1000), ("mega_ema_N16_bidir", 64)],
)
def test_it_gives_the_published_kernels(case, length):
    data = below(published("kernels"), case)
    found, expected = average(data).kernel(length).detach().numpy(), ours(data[f"L{length}/K"], 4)
    if len(expected) == 2:  # the last backward lag stands beyond the published end
        found, expected = found[..., :-1], expected[..., :-1]
    assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_it_gives_the_published_averages_with_and_without_padding(case):
    data = below(published("layers_nfs"), case)
    u = torch.from_numpy(published("layers_nfs")["u_BLH"])
    layer = average(data)
    padded = torch.from_numpy(data["padding_mask"]).bool()[..., None]
    for name, inputs in (("y_BLH", u), ("y_BLH_padmask", u.masked_fill(padded, 0))):
        error = np.abs(layer(inputs).detach().numpy() - data[name])
        assert error.max() < 1e-6 * np.abs(data[name]).max()  # they went through an FFT in float32


@pytest.mark.parametrize("causal", [True, False])
def test_the_average_equals_its_recurrence(causal):
    layer = mixer_alone("mega", causal=causal, d_state=5).average
    u = normal(2, 37, 4)
    weight, log_q = layer.modes()
    expected = reference.moving_average(u, weight, log_q.exp()) + layer.omega * u
    torch.testing.assert_close(layer(u), expected, rtol=1e-10, atol=1e-10)


def test_the_modes_are_their_formula():
    layer = mixer_alone("mega", causal=True, d_state=5).average
    weight, log_q = layer.modes()
    p = 1 / (1 + torch.exp(-layer.delta))
    torch.testing.assert_close(log_q.exp(), 1 - p / (1 + torch.exp(-layer.alpha)))
    torch.testing.assert_close(weight, p * layer.beta * layer.gamma / 5**0.5)


def by_hand(mixer: Mega, u: Tensor, attend) -> Tensor:
    """The equations of the module's docstring, for one unpadded batch."""
    H, z, v = u.shape[-1], mixer.d_query, mixer.d_value
    f, shared, r, direct = mixer.mix(mixer.average(u)).split([H, z, v, H], dim=-1)
    q, k = (F.silu(shared) * mixer.scale[side] + mixer.shift[side] for side in (0, 1))
    read = attend(q, k, F.silu(mixer.value(u)))
    h = F.silu(direct + mixer.attended(F.silu(r) * read))
    return torch.sigmoid(f) * (h - u)


def bias_by_hand(mixer: Mega, length: int) -> Tensor:
    """(L, L): a dot product of two vectors turned by their positions, written with complex numbers."""
    a, b = (torch.view_as_complex(row.unflatten(-1, (-1, 2)).contiguous()) for row in mixer.position)
    rate = 10_000.0 ** (-2 * torch.arange(len(a), dtype=torch.float64) / mixer.d_query)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (torch.exp(1j * rate * distance[..., None]) * a * b.conj()).sum(-1).real


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [0, 1, 5, 8, 30])
@pytest.mark.parametrize("attention", ["softmax", "laplace"])
def test_the_layer_is_its_equations(causal, chunk, attention):
    mixer = mixer_alone("mega", causal=causal, chunk=chunk, attention=attention)
    with torch.no_grad():
        for parameter in mixer.parameters():  # starts near 0, where much looks alike
            parameter.add_(normal(*parameter.shape, seed=3), alpha=0.5)
    u = normal(2, 23, 4)
    steps = chunk or 23

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for begin in range(0, 23, steps):
            one, two, three = (x[:, None, begin : begin + steps] for x in (q, k, v))
            full, bias = torch.tensor([one.shape[2]] * 2), bias_by_hand(mixer, one.shape[2])
            if attention == "laplace":
                parts.append(reference.laplace_attention(one, two, three, full, causal, bias))
            else:
                scores = one @ two.transpose(-1, -2) / mixer.d_query**0.5 + bias
                hidden = torch.ones_like(bias, dtype=torch.bool).triu(1) & causal
                parts.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ three)
        return torch.cat(parts, dim=2)[:, 0]

    expected = by_hand(mixer, u, attend)
    torch.testing.assert_close(mixer(u, torch.tensor([23, 23])), expected, rtol=1e-10, atol=1e-10)


def test_no_decay_rate_leaves_the_stable_region():
    mixer = mixer_alone("mega", causal=False).float()
    with torch.no_grad():
        for parameter in mixer.ssm_parameters():
            parameter.view(-1)[::2] = 100
            parameter.view(-1)[1::2] = -100
    assert_stable(mixer)
    kernel = mixer.kernel(16_384)
    kernel.sum().backward()
    assert torch.isfinite(kernel).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.ssm_parameters())


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
def test_two_hundred_steps_at_a_rate_of_one_stay_stable_and_finite(attention):
    mixer = mixer_alone("mega", causal=False, attention=attention).float().train()
    optimiser = torch.optim.Adam(mixer.parameters(), lr=1.0)
    u, target = normal(2, 32, 4, dtype=torch.float32), normal(2, 32, 4, seed=1, dtype=torch.float32)
    for _ in range(200):
        optimiser.zero_grad()
        (mixer(u, torch.tensor([32, 32])) - target).square().mean().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
        optimiser.step()
    assert_stable(mixer)


def assert_stable(mixer: nn.Module) -> None:
    _, log_q = mixer.average.modes()
    q = torch.exp(log_q).float()
    assert ((q > 0) & (q < 1)).all()


def test_half_precision_leaves_the_decay_rates_as_they_were():
    mixer = mixer_alone("mega", causal=True).float()
    before = mixer.average.modes()[1]
    mixer.bfloat16()
    assert torch.equal(mixer.average.modes()[1], before)
    assert mixer.average.gamma.dtype == torch.bfloat16
    assert mixer(normal(1, 9, 4).bfloat16(), torch.tensor([9])).dtype == torch.bfloat16
