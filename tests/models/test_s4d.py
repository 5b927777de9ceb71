from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import config, mixer_alone
from golden import arrays

from ssm_priors.errors import BadConfig


def test_it_gives_the_published_layer_output():
    layer = {key.rpartition("/")[2]: value for key, value in arrays().items() if key.startswith("layers/standalone/")}
    mixer = mixer_alone("s4d", causal=True, d_model=4, d_state=2 * layer["C"].shape[1])
    values = {
        "log_A_real": layer["log_A_real"],
        "A_imag": layer["A_imag"],
        "log_dt": layer["log_dt"],
        "C": np.stack([layer["C"].real, layer["C"].imag], axis=-1)[None],
        "D": layer["D"],
        "output.weight": layer["out_weight"][..., 0],
        "output.bias": layer["out_bias"],
    }
    mixer.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()})
    u = torch.from_numpy(arrays()["layers/u"].transpose(0, 2, 1).copy())
    answer = mixer(u, torch.tensor([64, 64])).detach().numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(answer, layer["y"], rtol=1e-8, atol=1e-10)


def test_timescales_out_of_order_are_refused():
    with pytest.raises(BadConfig, match=r"dt_min.*dt_max"):
        mixer_alone("s4d", causal=True, dt_min=1.0, dt_max=0.1)


@pytest.mark.parametrize("d_state", [0, 3, -2])
def test_a_state_that_does_not_pair_up_is_refused(d_state):
    with pytest.raises(BadConfig, match=r"model\.mixer\.d_state"):
        config("s4d", model={"mixer": {"d_state": d_state}})


def test_the_impulse_response_is_the_kernel_and_the_skip():
    mixer = mixer_alone("s4d", causal=False)
    seen = {}
    mixer.dropout.register_forward_pre_hook(lambda module, inputs: seen.update(y=inputs[0]))
    u = torch.zeros(1, 41, 4, dtype=torch.float64)
    u[0, 20] = 1
    mixer(u, torch.tensor([41]))
    before, after = mixer.kernel(20)[1].flip(-1), mixer.kernel(21)[0].clone()
    after[:, 0] += mixer.D
    expected = torch.nn.functional.gelu(torch.cat([before, after], dim=-1))
    torch.testing.assert_close(seen["y"][0].T, expected, rtol=1e-8, atol=1e-10)


def test_a_kernel_is_the_start_of_a_longer_one():
    mixer = mixer_alone("s4d", causal=False)
    torch.testing.assert_close(mixer.kernel(50), mixer.kernel(333)[..., :50], rtol=1e-10, atol=1e-12)
