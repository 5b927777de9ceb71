from __future__ import annotations

import numpy as np
import pytest
import torch
from foreign_files import (
    H,
    L,
    N,
    assert_close,
    dlr,
    mamba,
    refused,
    saved,
    standalone,
    system,
    tied,
    version_3,
    version_3_diagonal,
    version_4,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import ssm_priors
from ssm_priors.checkpoints.foreign import ForeignCheckpoint
from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.protocols import HasKernel, HasSpectrum
from ssm_priors.ops import reference
from ssm_priors.priors import response


def low_rank_kernel(parts: dict[str, Tensor]) -> Tensor:
    return reference.dplr_kernel(*tied(parts), parts["C"], parts["dt"], L)


def diagonal_kernel(parts: dict[str, Tensor], rule: str) -> np.ndarray:
    A, _, B = (part.numpy() for part in tied(parts))
    dt = parts["dt"].numpy()[:, None]
    z = np.exp(dt * A) if rule == "zoh" else (1 + dt * A / 2) / (1 - dt * A / 2)
    gain = (z - 1) / A if rule == "zoh" else dt / (1 - dt * A / 2)
    powers = z[..., None] ** np.arange(L)
    return 2 * np.einsum("chn,hnl->chl", parts["C"].numpy() * B * gain, powers).real


@pytest.mark.parametrize("n_ssm", [1, 2, 4])
@pytest.mark.parametrize("l_kernel", [0, 7, 256])
@pytest.mark.parametrize(
    ("dt", "real"), [("exp", "exp"), ("softplus", "exp"), ("softplus", "softplus"), ("none", "none")]
)
def test_version_4_s4(path, dt, real, l_kernel, n_ssm):
    parts = system(n_ssm)
    saved(path, version_4(parts, dt, real, l_kernel), dt_transform=dt, real_transform=real, bidirectional=True)
    [mixer] = ForeignCheckpoint.read(path).mixers
    assert_close(mixer.kernel(L), low_rank_kernel(parts), 1e-10)


@pytest.mark.parametrize("n_ssm", [1, 2, 4])
@pytest.mark.parametrize(("dt", "rule"), [("exp", "zoh"), ("softplus", "zoh"), ("softplus", "bilinear")])
def test_version_4_s4d(path, dt, rule, n_ssm):
    parts = system(n_ssm, directions=1)
    saved(path, version_4(parts, dt, low_rank=False), dt_transform=dt, disc=rule)
    [mixer] = ForeignCheckpoint.read(path).mixers
    assert_close(mixer.kernel(L), diagonal_kernel(parts, rule), 1e-10)
    assert_close(mixer.spectrum().eigenvalue, tied(parts)[0], 1e-12)


def test_a_timescale_of_each_mode(path):
    parts = system()
    state = version_4(parts, low_rank=False) | {"inv_dt": (parts["dt"][:, None] * torch.tensor([1, 2, 3])).log()}
    [mixer] = ForeignCheckpoint.read(saved(path, state, bidirectional=True)).mixers
    for n in range(N):
        one = {name: value[..., n : n + 1] if name != "dt" else value * (n + 1) for name, value in parts.items()}
        log_z, gain = mixer.spectrum().per_step()
        alone = response.kernel((mixer.spectrum().weight * gain)[..., n : n + 1], log_z[:, n : n + 1], L)
        assert_close(alone, diagonal_kernel(one, "zoh"), 1e-10)


@pytest.mark.parametrize("l_kernel", [0, 7, 256])
@pytest.mark.parametrize("mirrored", [False, True])
def test_version_3_s4(path, l_kernel, mirrored):
    parts = system()
    state = version_3(parts, l_kernel)
    if mirrored:
        flip = torch.tensor([1.0, -1.0])
        state |= {"w_imag": -state["w_imag"], **{name: state[name] * flip for name in ("B", "C", "P")}}
    [mixer] = ForeignCheckpoint.read(saved(path, state)).mixers
    assert_close(mixer.kernel(L), low_rank_kernel(parts), 1e-10)


@pytest.mark.parametrize("rule", ["bilinear", "zoh"])
def test_version_3_s4d(path, rule):
    parts = system(2)
    options = {} if rule == "bilinear" else {"disc": rule, "bidirectional": True}
    [mixer] = ForeignCheckpoint.read(saved(path, version_3_diagonal(parts), **options)).mixers
    assert_close(mixer.kernel(L), diagonal_kernel(parts, rule), 1e-10)
    assert (mixer.spectrum().eigenvalue.imag > 0).all()


def test_the_standalone_s4d(path):
    parts = system(directions=1)
    [mixer] = ForeignCheckpoint.read(saved(path, standalone(parts))).mixers
    assert_close(mixer.kernel(L), diagonal_kernel(parts, "zoh"), 1e-10)


@pytest.mark.parametrize("to_real", ["real", "imag", "sum"])
def test_dlr(path, to_real):
    state = dlr()
    Lambda = -(state["Lambda_log_neg_re"] ** 2) + 1j * state["Lambda_im"]
    K = torch.einsum("chn,nl->chl", torch.view_as_complex(state["W"]), torch.exp(Lambda[:, None] * torch.arange(L)))
    expected = {"real": K.real, "imag": K.imag, "sum": K.real + K.imag}[to_real]
    [mixer] = ForeignCheckpoint.read(saved(path, state, kernel_to_real=to_real, bidirectional=True)).mixers
    assert_close(mixer.kernel(L), expected, 1e-12)
    assert (state["Lambda_im"] < 0).any()
    assert (mixer.spectrum().eigenvalue.imag >= 0).all()


# -- Mamba


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("version", ["mamba", "mamba2"])
def test_mamba_has_a_spectrum_at_a_stated_step_only(version, dtype, tmp_path):
    layers = {f"backbone.layers.{index}.mixer.": mamba() for index in (0, 2, 10)}
    if version == "mamba2":
        layers = {
            stem: {"A_log": part["A_log"][:, 0], "dt_bias": part["dt_proj.bias"]} for stem, part in layers.items()
        }
    state = {f"{stem}{name}": value.to(dtype) for stem, part in layers.items() for name, value in part.items()}
    state["backbone.embeddings.weight"] = torch.ones(7, 5, dtype=dtype)
    state |= {f"{stem}dt_proj.weight": torch.ones(5, 1, dtype=dtype) for stem in layers if version == "mamba"}
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    found = ssm_priors.load(tmp_path / "model.safetensors")
    assert (found.family, found.assumed, found.length) == (version, {}, None)
    assert list(found.layers) == [f"backbone.layers.{index}.mixer" for index in (0, 2, 10)]
    stem = "backbone.layers.2.mixer."
    bias = state[stem + ("dt_bias" if version == "mamba2" else "dt_proj.bias")].double().numpy()
    A = -np.exp(state[f"{stem}A_log"].double().numpy().reshape(5, -1))
    mixer = found.mixers[1]
    assert isinstance(mixer, HasSpectrum)
    assert not isinstance(mixer, HasKernel)
    for dt, steps in ((None, np.log1p(np.exp(bias))), (0.3, np.full(5, 0.3))):
        spectrum = mixer.spectrum(dt)
        log_z, _ = spectrum.per_step()
        np.testing.assert_allclose(log_z, steps[:, None] * A, rtol=1e-12)
        assert np.isnan(spectrum.weight).all()
        assert spectrum.weight.shape == (1, *A.shape)


# -- parameters that do not fit

EVERY = {
    "v4": version_4(system(), l_kernel=3),
    "v4 diagonal": version_4(system(), low_rank=False),
    "v3": version_3(system(), 3),
    "v3 diagonal": version_3_diagonal(system()),
    "standalone": standalone(system()),
    "dlr": dlr(),
    "mamba": mamba(),
    "mamba 2": {"A_log": torch.ones(3), "dt_bias": torch.ones(3)},
    "transformer": {
        f"linears.{i}.{kind}": torch.ones((4, 4)[: 2 - (kind == "bias")])
        for i in range(4)
        for kind in ("weight", "bias")
    },
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
@pytest.mark.parametrize("family", EVERY)
def test_parameters_of_any_shape_and_type_make_a_layer_or_are_refused(family, data, tmp_path):
    state = dict(EVERY[family])
    for name in data.draw(st.lists(st.sampled_from(sorted(state)), min_size=1, max_size=3, unique=True)):
        shape = data.draw(st.lists(st.integers(0, 5), max_size=4) | st.just(list(state[name].shape)))
        dtype = data.draw(st.sampled_from([torch.float64, torch.complex64, torch.int64, torch.bool, torch.float16]))
        state[name] = torch.full(shape, data.draw(st.sampled_from([-800.0, -1, 0, 0.5, 3, 800]))).to(dtype)
    path = saved(tmp_path / "file.ckpt", state, **({"n_heads": 2} if family == "transformer" else {}))
    try:
        [mixer] = ForeignCheckpoint.read(path).mixers
    except BadCheckpoint:
        return
    if isinstance(mixer, HasSpectrum):
        spectrum = mixer.spectrum()
        log_z, gain = spectrum.per_step()
        assert log_z.shape == gain.shape == spectrum.weight.shape[1:]
    if isinstance(mixer, HasKernel):
        assert mixer.kernel(5).shape[-1] == 5


def test_sizes_that_nobody_has_are_refused_before_anything_is_made_in_them(path):
    wide = torch.ones(300_000)
    huge = version_4(system()) | {"inv_dt": wide, "A_real": wide[None], "A_imag": wide[None]}
    assert "dt has the shape" in refused(saved(path, huge))
    assert "A has the shape" in refused(saved(path, huge | {"inv_dt": torch.ones(H, 1)}))
    assert "Lambda has the shape" in refused(saved(path, dlr() | {"Lambda_im": wide, "Lambda_log_neg_re": wide}))
    tall = {f"linears.{i}.weight": torch.ones(300_000, 1) for i in range(4)}
    assert "(300000, 1)" in refused(saved(path, tall, n_heads=1))


@pytest.mark.parametrize("family", EVERY)
def test_a_parameter_that_is_not_finite_is_named(family, path):
    for bad in (torch.nan, torch.inf):
        state = {
            name: value.double() if "kernel" not in name and name != "L" else value
            for name, value in EVERY[family].items()
        }
        name = next(iter(state))
        state[name] = state[name].clone()
        state[name].view(-1)[0] = bad
        options = {"n_heads": 2} if family == "transformer" else {}
        assert f"'{name}' holds values that are not finite" in refused(saved(path, state, **options))


def test_a_number_that_overflows_is_refused(path):
    state = version_4(system()) | {"inv_dt": torch.full((H, 1), 800.0)}
    assert "not finite" in refused(saved(path, state))


def test_low_rank_modes_that_grow_are_refused(path):
    state = version_4(system(), real="none")
    state["A_real"] = -state["A_real"]
    assert "grow" in refused(saved(path, state, real_transform="none", bidirectional=True))


def test_an_output_that_is_stored_for_no_length_is_refused(path):
    assert "-5 steps" in refused(saved(path, version_4(system()) | {"l_kernel": torch.tensor(-5)}))
    still = version_4(system(), real="none", l_kernel=3) | {"A_real": torch.zeros(H, N), "A_imag": torch.zeros(H, N)}
    still["P"] = torch.zeros_like(still["P"])
    assert refused(saved(path, still, real_transform="none", bidirectional=True))
