from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import mixer_alone, normal
from golden import Part, below, published

from ssm_priors.errors import BadConfig
from ssm_priors.models.mixers.lru import LRU
from ssm_priors.models.statespace import recur


@pytest.fixture(scope="module")
def lru():
    arrays = published("s5_lru")
    return Part(below(arrays, "lru") | {"u_LH": arrays["u_LH"]})


def carrying(part: dict[str, np.ndarray]) -> LRU:
    """A mixer with the parameters of the public code."""
    raw = {key.removeprefix("params/"): value for key, value in part.items()}
    mixer = mixer_alone("lru", causal=True, d_model=len(raw["D"]), d_state=len(raw["nu_log"]))
    values = {
        "log_decay": raw["nu_log"],
        "angle": np.exp(raw["theta_log"]),
        "log_gamma": raw["gamma_log"],
        "B": np.stack([raw["B_re"], raw["B_im"]], axis=-1),
        "C": np.stack([raw["C_re"], raw["C_im"]], axis=-1)[None],
        "D": raw["D"],
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()}, strict=False)
    return mixer


def test_it_gives_the_published_outputs(lru):
    mixer, u = carrying(lru), torch.from_numpy(lru["u_LH"])[None]
    found = recur(u, torch.tensor([64]), mixer._per_step(), mixer.D, lag=1)[0].detach().numpy()
    np.testing.assert_allclose(found, lru["y_LH"], rtol=1e-10, atol=1e-10)


def test_it_gives_the_published_impulse_responses(lru):
    mixer, impulses = carrying(lru), torch.zeros(8, 64, 8, dtype=torch.float64)
    impulses[torch.arange(8), 0, torch.arange(8)] = 1
    found = recur(impulses, torch.full((8,), 64), mixer._per_step(), torch.zeros(8, dtype=torch.float64), lag=1)
    np.testing.assert_allclose(found.detach().numpy(), lru["impulse_Hin_L_Hout"], rtol=1e-10, atol=1e-11)


def test_it_starts_on_the_ring_with_states_the_size_of_their_input():
    mixer = mixer_alone("lru", causal=True, d_model=4, d_state=512, r_min=0.5, r_max=0.99, max_phase=1.0)
    log_z, B, _ = mixer._per_step()
    radius = log_z.real.exp()
    assert ((radius >= 0.5 * (1 - 1e-6)) & (radius <= 0.99 * (1 + 1e-6))).all()
    assert ((log_z.imag >= 0) & (log_z.imag <= 1)).all()
    variance = B.abs().square().sum(-1) / (1 - radius**2)  # of each mode, for white input
    assert variance.mean().item() == pytest.approx(1, abs=0.1)


def test_the_second_direction_starts_at_the_next_input():
    mixer = mixer_alone("lru", causal=False, d_state=6)
    log_z, B, C = mixer._per_step()
    u = normal(1, 9, 4)
    found = recur(u, torch.tensor([9]), mixer._per_step(), torch.zeros(4, dtype=torch.float64), lag=1)[0, 4]
    forward = sum(torch.exp(log_z * lag) * (B @ u[0, 4 - lag].to(B.dtype)) for lag in range(5))
    backward = sum(torch.exp(log_z * (lag - 1)) * (B @ u[0, 4 + lag].to(B.dtype)) for lag in range(1, 5))
    torch.testing.assert_close(found, (C[0] @ forward + C[1] @ backward).real, rtol=1e-10, atol=1e-12)


def test_its_spectrum_is_one_row_in_steps():
    mixer = mixer_alone("lru", causal=False, d_state=6)
    spectrum = mixer.spectrum()
    assert spectrum.eigenvalue.shape == (1, 6)
    assert spectrum.weight.shape == (2, 1, 6)
    assert spectrum.discretisation == "none"
    np.testing.assert_allclose(spectrum.per_step()[0][0], mixer._per_step().log_z.detach().numpy(), rtol=1e-12)
    _, B, C = (part.detach().numpy() for part in mixer._per_step())
    size = np.linalg.norm(C[1][:, :, None] * B[None], axis=(0, 2)) / 2
    np.testing.assert_allclose(spectrum.weight[1, 0].real, size, rtol=1e-10)


def test_radii_out_of_order_are_refused():
    with pytest.raises(BadConfig, match=r"radii are 0\.9 and 0\.5"):
        mixer_alone("lru", causal=True, r_min=0.9, r_max=0.5)
