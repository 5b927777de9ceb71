"""Variants in the public code that no mixer here has, written out from the parts that the mixers are made of."""

from __future__ import annotations

import golden as rooms
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden import below, published
from torch import Tensor

from ssm_priors.ops import reference
from ssm_priors.priors import response
from ssm_priors.priors.discretise import discretise, dss_softmax


def kernel_of(W: np.ndarray, log_z: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
    """Re sum_n W_n gain_n z_n^l for modes without conjugates, by both implementations, which must agree."""
    weight, log_z = W * gain / 2, np.broadcast_to(log_z, W.shape[1:])
    found = response.kernel(weight, log_z, 64)
    twin = reference.vandermonde(torch.from_numpy(weight), torch.from_numpy(log_z.copy()), 64)
    np.testing.assert_allclose(twin.numpy(), found, rtol=1e-12, atol=1e-12 * np.abs(found).max())
    return found


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def dss(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    part = below(published("kernels"), name)
    return part["Lambda"], np.exp(part["log_dt"]), part["W"], part["L64/K"]


@pytest.mark.parametrize("name", ["dss_exp", "dss_exp_re_im"])
def test_dss_exp(name):
    A, dt, W, expected = dss(name)
    assert_close(kernel_of(W, *discretise("dss-exp", A, dt)), expected)


def test_dss_exp_without_scale_takes_its_weights_as_they_are():
    A, dt, W, expected = dss("dss_exp_no_scale")
    log_z, _ = discretise("dss-exp", A, dt)
    assert_close(kernel_of(W, log_z), expected)


def test_dss_clip_is_dss_exp_of_clipped_decay():
    A, dt, W, expected = dss("dss_clip")
    assert (A.real < 0).all()
    assert_close(kernel_of(W, *discretise("dss-exp", A, dt)), expected)


@pytest.mark.parametrize("name", ["dss_softmax", "dss_softmax_mixed"])
def test_dss_softmax_with_modes_that_decay_and_that_grow(name):
    A, dt, W, expected = dss(name)
    assert (A.real > 0).any() == (name == "dss_softmax_mixed")
    assert_close(kernel_of(W, *dss_softmax(A, dt, 64, epsilon=1e-7)), expected)


@pytest.mark.parametrize(
    ("name", "to_real"),
    [
        ("dlr", lambda real, imag: real),
        ("dlr_imag", lambda real, imag: imag),
        ("dlr_sum", lambda real, imag: real + imag),
        ("dlr_prod", lambda real, imag: real * imag),
        ("dlr_Lambda_imag", lambda real, imag: real),
        ("dlr_Lambda_imag_W_real", lambda real, imag: real),
        ("dlr_Lambda_real_W_real", lambda real, imag: real),
    ],
)
def test_dlr_and_what_becomes_of_its_complex_kernel(name, to_real):
    part = below(published("kernels"), name)
    log_z, W = part["Lambda"], part["W"] + 0j
    np.testing.assert_allclose(log_z, dlr_modes(part), rtol=1e-14)
    assert_close(to_real(kernel_of(W, log_z), kernel_of(-1j * W, log_z)), part["L64/K"])


def dlr_modes(part: dict[str, np.ndarray]) -> np.ndarray:
    """What is stored as the logarithm of the decay rate is its root; versions leave one of both parts out."""
    decay = part["raw_Lambda_log_neg_re"] ** 2 if "raw_Lambda_log_neg_re" in part else 0
    return -decay + 1j * part.get("raw_Lambda_im", 0)


def test_the_shipped_arrays_are_cut_from_the_full_ones(golden):
    for room in ("kernels", "layers", "layers_nfs", "s5_lru"):
        part = rooms.shipped(room)
        assert part
        with np.load(golden / f"{room}.npz") as full:
            for key, array in part.items():
                np.testing.assert_array_equal(array, full[key])


# -- whole models


def whole(path) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: torch.from_numpy(value) for key, value in file.items()}
    return arrays, arrays.pop("x"), arrays.pop("log_softmax")


def linear(u: Tensor, arrays: dict[str, Tensor], name: str) -> Tensor:
    return u @ arrays[f"params/{name}/kernel"] + arrays[f"params/{name}/bias"]


def affine(u: Tensor, arrays: dict[str, Tensor], name: str) -> Tensor:
    return u * arrays[f"params/{name}/scale"] + arrays[f"params/{name}/bias"]


def outputs(u: Tensor, arrays: dict[str, Tensor]) -> Tensor:
    return F.log_softmax(linear(u.mean(1), arrays, "decoder"), -1)


def s5_layer(u: Tensor, arrays: dict[str, Tensor], layer: str) -> Tensor:
    """2 Re (C x) + D u, both directions from the present input on."""
    part = {key.rpartition("/")[2]: value for key, value in arrays.items() if key.startswith(f"params/{layer}/seq/")}
    A, dt = torch.complex(part["Lambda_re"], part["Lambda_im"]).numpy(), part["log_step"][:, 0].exp().numpy()
    log_z, gain = (torch.from_numpy(each[:, 0]) for each in discretise("zoh", A[:, None], dt))
    v = u.to(log_z.dtype) @ (torch.view_as_complex(part["B"]) * gain[:, None]).T
    forward, backward = reference.scan(v, log_z), reference.scan(v.flip(1), log_z).flip(1)
    states = torch.cat([forward, backward], -1)
    C = torch.view_as_complex(torch.cat([part["C1"], part["C2"]], 1))
    return 2 * (states @ C.T).real + part["D"] * u


def test_the_whole_s5_model_gives_the_published_answer(golden):
    arrays, x, expected = whole(golden / "s5_model.npz")
    u = linear(x, arrays, "encoder/encoder")
    for index in range(2):
        layer = f"encoder/layers_{index}"
        mean, var = (arrays[f"batch_stats/{layer}/norm/{name}"] for name in ("mean", "var"))
        y = s5_layer(affine((u - mean) / (var + 1e-5).sqrt(), arrays, f"{layer}/norm"), arrays, layer)
        u = u + y * torch.sigmoid(linear(F.gelu(y, approximate="tanh"), arrays, f"{layer}/out2"))
    torch.testing.assert_close(outputs(u, arrays), expected, rtol=1e-10, atol=1e-10)


def lru_layer(u: Tensor, arrays: dict[str, Tensor], layer: str) -> Tensor:
    """Re (C x) + D u."""
    part = {key.rpartition("/")[2]: value for key, value in arrays.items() if key.startswith(f"params/{layer}/seq/")}
    log_z = torch.complex(-part["nu_log"].exp(), part["theta_log"].exp())
    B = torch.complex(part["B_re"], part["B_im"]) * part["gamma_log"].exp()[:, None]
    states = reference.scan(u.to(B.dtype) @ B.T, log_z)
    return (states @ torch.complex(part["C_re"], part["C_im"]).T).real + part["D"] * u


def test_the_whole_lru_model_gives_the_published_answer(golden):
    arrays, x, expected = whole(golden / "lru_model.npz")
    u = linear(x, arrays, "encoder/encoder")
    for index in range(2):
        layer = f"encoder/layers_{index}"
        y = F.gelu(lru_layer(u, arrays, layer), approximate="tanh")
        u = u + linear(y, arrays, f"{layer}/out1") * torch.sigmoid(linear(y, arrays, f"{layer}/out2"))
        u = affine(F.layer_norm(u, (8,), eps=1e-6), arrays, f"{layer}/normalization")
    torch.testing.assert_close(outputs(u, arrays), expected, rtol=1e-10, atol=1e-10)
