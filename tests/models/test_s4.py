from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone, normal
from golden import below, published

from ssm_priors.errors import BadConfig
from ssm_priors.models.mixers.s4 import S4

PUBLISHED = [
    ("s4_dplr", "", 64),
    ("s4_dplr", "", 1000),
    ("s4_dplr", "doubled", 1000),
    ("s4_dplr_bidir", "", 64),
    ("s4_dplr_bidir", "", 1000),
    ("s4_dplr_purelegs", "", 64),
]
LAYERS = ("fftconv_s4_dplr", "fftconv_s4_dplr_bidir")


@pytest.fixture(scope="module")
def kernels():
    return published("kernels")


@pytest.fixture(scope="module")
def layers():
    return published("layers")


def pairs(array: np.ndarray) -> np.ndarray:
    return np.stack([array.real, array.imag], axis=-1)


def carrying(part: dict[str, np.ndarray]) -> S4:
    """A mixer with the parameters of the public code, whose A, P, B have a copy dimension or none."""
    C, A = part["C"], part["A"] if "A" in part else -np.exp(part["A_real_raw"]) - 1j * part["A_imag_raw"]
    A, P, B = (array.reshape(-1, C.shape[-1]) for array in (A, part["P"], part["B"]))
    copies = 1 if len(A) == 1 else 0
    mixer = mixer_alone("s4", causal=len(C) == 1, d_model=C.shape[1], d_state=2 * C.shape[2], n_ssm=copies)
    values = {
        "log_A_real": np.log(-A.real),
        "A_imag": A.imag,
        "P": pairs(P),
        "B": pairs(B),
        "C": pairs(C),
        "log_dt": part["log_dt"],
    }
    if "D" in part:
        values["D"] = part["D"][0]
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()}, strict=False)
    return mixer


@pytest.mark.parametrize(("name", "where", "length"), PUBLISHED)
def test_it_gives_the_published_kernels(kernels, name, where, length):
    expected = kernels[f"{name}/{where or f'L{length}'}/K"]
    found = carrying(below(kernels, name)).kernel(length).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("name", LAYERS)
def test_it_gives_the_published_activations(layers, name):
    part = below(layers, name)
    mixer, seen = carrying(part), {}
    mixer.dropout.register_forward_pre_hook(lambda module, inputs: seen.update(y=inputs[0]))
    u = torch.from_numpy(layers["u"].transpose(0, 2, 1).copy())
    mixer(u, torch.tensor([64, 64]))
    found = seen["y"].detach().numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(found, part["y_gelu"], rtol=1e-10, atol=1e-10)


def test_it_gives_the_published_block_output_with_and_without_padding(layers):
    part = below(layers, "s4block_bidir_glu")
    mixer = carrying(part)
    rest = {"output.weight": part["out_weight"], "output.bias": part["out_bias"]}
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in rest.items()}, strict=False)
    u = torch.from_numpy(layers["u"].transpose(0, 2, 1).copy())
    whole = mixer(u, torch.tensor([64, 64])).detach().numpy()
    np.testing.assert_allclose(whole, part["y_BLH"], rtol=1e-10, atol=1e-10)
    padded = mixer(u, torch.from_numpy(part["lengths"])).detach().numpy()
    for row, length in enumerate(part["lengths"]):
        np.testing.assert_allclose(padded[row, :length], part["y_BLH_lengths"][row, :length], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["dense", "diagonal", "linear"])
def test_it_gives_the_published_steps(layers, mode):
    part = below(layers, "fftconv_s4_dplr")
    mixer, seen = carrying(part), []
    mixer.dropout.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    u, state = torch.from_numpy(layers["u"]), mixer.initial_state(2)
    with torch.no_grad():
        for t in range(64):
            _, state = mixer.step(u[..., t], state)
    expected = torch.nn.functional.gelu(torch.from_numpy(part[f"step_{mode}/y"]))
    torch.testing.assert_close(torch.stack(seen, dim=-1), expected, rtol=1e-10, atol=1e-10)
    if mode == "linear":
        found, published = state.numpy(), part["step_linear/final_state"]
        np.testing.assert_allclose(found, published, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("hippo", ["legs", "fout"])
def test_every_channel_starts_from_the_same_state_space_at_its_own_timescale(hippo):
    tied = mixer_alone("s4", causal=True, d_state=8, hippo=hippo)
    own = mixer_alone("s4", causal=True, d_state=8, hippo=hippo, n_ssm=0)
    assert (len(tied.A_imag), len(own.A_imag)) == (1, 4)
    torch.testing.assert_close(tied.kernel(40), own.kernel(40), rtol=1e-12, atol=1e-12)
    assert not torch.equal(tied.kernel(40)[0, 0], tied.kernel(40)[0, 1])


def test_channels_take_their_state_spaces_in_turn():
    mixer = mixer_alone("s4", causal=True, d_state=4, n_ssm=2)
    before = mixer.kernel(20)
    with torch.no_grad():
        mixer.A_imag[1] += 1
    changed = (mixer.kernel(20) != before).any(-1)[0]
    assert changed.tolist() == [False, True, False, True]


def test_state_spaces_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(BadConfig, match=r"n_ssm 3 does not divide model\.d_model 4"):
        mixer_alone("s4", causal=True, n_ssm=3)


@pytest.mark.parametrize("hippo", ["legs", "fout"])
def test_raw_parameters_cannot_make_it_grow(hippo):
    mixer = mixer_alone("s4", causal=False, d_state=8, hippo=hippo, n_ssm=2).float()
    with torch.no_grad():
        for parameter in mixer.ssm_parameters():
            parameter.view(-1)[::2] = 100
            parameter.view(-1)[1::2] = -100
    assert radius(mixer) < 1
    kernel = mixer.kernel(16_384)
    kernel.sum().backward()
    assert torch.isfinite(kernel).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.ssm_parameters())


@pytest.mark.parametrize("hippo", ["legs", "fout"])
def test_two_hundred_steps_at_a_rate_of_one_stay_stable_and_finite(hippo):
    mixer = mixer_alone("s4", causal=False, d_state=8, hippo=hippo).float().train()
    optimiser = torch.optim.Adam(mixer.parameters(), lr=1.0)
    u, target = normal(2, 64, 4, dtype=torch.float32), normal(2, 64, 4, seed=1, dtype=torch.float32)
    for _ in range(200):
        optimiser.zero_grad()
        (mixer(u, torch.tensor([64, 64])) - target).square().mean().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())
        optimiser.step()
    assert radius(mixer) < 1


def radius(mixer: S4) -> float:
    """The largest |z| of the discrete state matrix, low-rank part included."""
    A, P, _, dt = (part.detach().numpy() for part in mixer._system())
    A, P = (np.concatenate([part, part.conj()], axis=-1) for part in (A, P))
    full = np.stack([np.diag(row) for row in A]) - P[:, :, None] * P.conj()[:, None]
    half, one = dt[:, None, None] * full / 2, np.eye(A.shape[-1])
    return np.abs(np.linalg.eigvals(np.linalg.solve(one - half, one + half))).max()
