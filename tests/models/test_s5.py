from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone
from golden import published

from ssm_priors.errors import BadConfig
from ssm_priors.models.mixers.s5 import S5
from ssm_priors.models.statespace import recur
from ssm_priors.priors.s5 import block_diagonal_hippo

PUBLISHED = ["s5ssm_zoh", "s5ssm_zoh_bidir", "s5ssm_bilinear", "s5ssm_zoh_noconj", "s5ssm_bilinear_noconj"]
WITH_IMPULSES = ["s5ssm_zoh", "s5ssm_zoh_bidir", "s5ssm_bilinear"]


@pytest.fixture(scope="module")
def s5():
    return published("s5_lru")


def carrying(arrays: dict[str, np.ndarray], name: str) -> S5:
    """A mixer with the parameters of the public code; modes without their conjugates count half."""
    prefix = f"{name}/params/"
    raw = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
    C = np.stack([raw["C1"], raw["C2"]]) if "C1" in raw else raw["C"][None]
    rule = "bilinear" if "bilinear" in name else "zoh"
    modes = len(raw["Lambda_re"])
    mixer = mixer_alone("s5", causal=len(C) == 1, d_model=len(raw["D"]), d_state=2 * modes, discretisation=rule)
    values = {
        "log_A_real": np.log(-raw["Lambda_re"]),
        "A_imag": raw["Lambda_im"],
        "log_dt": raw["log_step"][:, 0],
        "B": raw["B"],
        "C": C / 2 if "noconj" in name else C,
        "D": raw["D"],
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()}, strict=False)
    return mixer


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_gives_the_published_outputs(s5, name):
    mixer, u = carrying(s5, name), torch.from_numpy(s5["u_LH"])[None]
    found = recur(u, torch.tensor([64]), mixer._per_step(), mixer.D, lag=0)[0].detach().numpy()
    np.testing.assert_allclose(found, s5[f"{name}/y_LH"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", WITH_IMPULSES)
def test_it_gives_the_published_impulse_responses(s5, name):
    mixer, impulses = carrying(s5, name), torch.zeros(8, 64, 8, dtype=torch.float64)
    impulses[torch.arange(8), s5[f"{name}/impulse_t0"], torch.arange(8)] = 1
    found = recur(impulses, torch.full((8,), 64), mixer._per_step(), torch.zeros(8, dtype=torch.float64), lag=0)
    expected = s5[f"{name}/impulse_Hin_L_Hout"]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_what_it_reads_out_is_its_scan_with_both_directions_at_the_present(causal):
    mixer, seen = mixer_alone("s5", causal=causal), {}
    mixer.dropout.register_forward_pre_hook(lambda module, inputs: seen.update(y=inputs[0]))
    u = torch.zeros(1, 5, 4, dtype=torch.float64)
    u[0, 2] = torch.arange(1, 5)
    mixer(u, torch.tensor([5]))
    _, B, C = mixer._per_step()
    expected = (C.sum(0) @ B @ u[0, 2].to(B.dtype)).real + mixer.D * u[0, 2]
    torch.testing.assert_close(seen["y"][0, 2], torch.nn.functional.gelu(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_it_starts_from_hippo_in_every_block(blocks):
    spectrum = mixer_alone("s5", causal=True, d_state=16, blocks=blocks).spectrum()
    expected = block_diagonal_hippo(16, blocks).eigenvalues
    np.testing.assert_allclose(spectrum.eigenvalue, expected[None], rtol=1e-6)
    assert spectrum.dt.shape == (1, 8)


def test_every_mode_has_its_own_timescale():
    mixer = mixer_alone("s5", causal=True, d_state=16)
    log_z, _ = mixer.spectrum().per_step()
    np.testing.assert_allclose(log_z[0], mixer._per_step().log_z.detach().numpy(), rtol=1e-12)
    assert len(np.unique(mixer.spectrum().dt)) == 8


def test_blocks_that_do_not_hold_pairs_are_refused():
    with pytest.raises(BadConfig, match="d_state 16 does not divide into 3 blocks"):
        mixer_alone("s5", causal=True, d_state=16, blocks=3)
