from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import CONTINUOUS, config, model, normal
from foreign_files import (
    assert_close,
    dlr,
    refused,
    saved,
    standalone,
    system,
    version_3,
    version_3_diagonal,
    version_4,
)
from golden import FULL, SHIPPED, below
from torch import Tensor

import ssm_priors
from ssm_priors.analyses.kernels import impulse_response
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.foreign import ForeignCheckpoint
from ssm_priors.models.protocols import HasKernel, HasSpectrum
from ssm_priors.ops import reference
from ssm_priors.priors import response
from ssm_priors.registry import FORMATS

PUBLISHED = {
    "s4_v4.ckpt": ("state-spaces-v4", 256),
    "s4_v4_plain.ckpt": ("state-spaces-v4", 256),
    "s4_v4_cifar.ckpt": ("state-spaces-v4", None),
    "s4d_v4.ckpt": ("state-spaces-v4", 256),
    "s4d_v4_plain.ckpt": ("state-spaces-v4", 256),
    "nfs_s4.ckpt": ("state-spaces-v3", 256),
    "nfs_s4_plain.ckpt": ("state-spaces-v3", 256),
    "nfs_s4_mlm.ckpt": ("state-spaces-v3", 256),
    "nfs_dlr.ckpt": ("not-from-scratch-dlr", 256),
    "nfs_dlr_plain.ckpt": ("not-from-scratch-dlr", 256),
    "s4d_standalone.pt": ("s4d-standalone", None),
    "s4d_standalone_example_ckpt.pth": ("s4d-standalone", None),
}
SMALL = ["s4d_standalone.pt", "s4_v4_plain.ckpt", "s4d_v4_plain.ckpt", "nfs_s4_plain.ckpt", "nfs_dlr.ckpt"]
"""What of them is in tests/data."""
DIAGONAL = ["s4d_standalone.pt", "s4d_v4_plain.ckpt", "nfs_dlr.ckpt"]


def origin(name: str) -> str:
    return name.partition(".")[0].removesuffix("_plain").removesuffix("_example_ckpt")


def small(name: str) -> ForeignCheckpoint:
    found = ssm_priors.load(SHIPPED / f"foreign_{name}")
    assert isinstance(found, ForeignCheckpoint)
    return found


# -- files that public code has written


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_kernels_are_the_published_ones(name, golden):
    found = ssm_priors.load(golden / name)
    assert (found.family, found.length) == PUBLISHED[name]
    assert (found.assumed, len(found.layers)) == ({}, 2)
    with np.load(golden / f"{origin(name)}_expected.npz") as expected:
        for index, (layer, mixer) in enumerate(found.layers.items()):
            assert f".{index}." in layer
            [key] = [key for key in expected if key.endswith(f"layers.{index}/K_L128")]
            kernel = expected[key]
            tolerance = 2e-5 if "dlr" in name else 1e-6
            assert_close(mixer.kernel(128), kernel[None] if kernel.ndim == 2 else kernel, tolerance)


@pytest.mark.parametrize("name", SMALL)
def test_the_shipped_files_give_the_published_kernels(name):
    with np.load(SHIPPED / "golden_foreign.npz") as file:
        expected = below(dict(file), origin(name))
    for index, mixer in enumerate(small(name).mixers):
        [kernel] = [value for key, value in expected.items() if key.endswith(f"layers.{index}/K_L128")]
        found = mixer.kernel(128)[..., ::4]
        assert_close(found[0] if kernel.ndim == 2 else found, kernel, 2e-5 if "dlr" in name else 1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_the_shipped_files_are_the_full_ones(name, golden):
    assert (SHIPPED / f"foreign_{name}").read_bytes() == (golden / name).read_bytes()
    with np.load(golden / f"{origin(name)}_expected.npz") as full, np.load(SHIPPED / "golden_foreign.npz") as part:
        for key in (key for key in part if key.startswith(f"{origin(name)}/")):
            array = full[key.partition("/")[2]]
            np.testing.assert_array_equal(part[key], array[..., ::4] if key.endswith("K_L128") else array)


def test_the_eigenvalues_are_the_published_ones():
    with np.load(SHIPPED / "golden_foreign.npz") as expected:
        for index, mixer in enumerate(small("s4d_standalone.pt").mixers):
            A = expected[f"s4d_standalone/s4_layers.{index}/A"]
            upper = np.where(A.imag < 0, A.conj(), A)  # training has let some cross the real axis
            np.testing.assert_allclose(mixer.spectrum().eigenvalue, upper, rtol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_a_kernel_is_the_start_of_every_longer_one(name):
    for mixer in small(name).mixers:
        whole = mixer.kernel(1000)
        for length in (1, 17, 128, 255, 256, 257, 700):
            assert_close(mixer.kernel(length), whole[..., :length], 1e-8)


@pytest.mark.parametrize("name", DIAGONAL)
def test_a_diagonal_layers_kernel_is_that_of_its_spectrum_and_of_its_recurrence(name):
    for mixer in small(name).mixers:
        assert isinstance(mixer, HasSpectrum)
        spectrum = mixer.spectrum()
        assert (spectrum.eigenvalue.imag >= 0).all()
        log_z, gain = spectrum.per_step()
        kernel = mixer.kernel(90)
        assert_close(kernel, response.kernel(spectrum.weight * gain, log_z, 90), 1e-12)
        impulse = torch.zeros(1, 90, len(log_z), dtype=torch.float64)
        impulse[0, 0] = 1
        for direction, weight in enumerate(spectrum.weight * gain):
            answer = reference.recurrence(impulse, torch.from_numpy(weight), torch.from_numpy(log_z))
            assert_close(kernel[direction], answer[0].T, 1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_a_backward_kernel_begins_at_a_distance_of_one_step(name):
    for mixer in small(name).mixers:
        kernel, answer = mixer.kernel(30), impulse_response(mixer, 30)
        np.testing.assert_array_equal(answer[0], kernel[0])
        assert len(answer) == len(kernel) == (1 if "standalone" in name else 2)
        if len(kernel) == 2:
            assert (answer[1, :, 0] == 0).all()
            np.testing.assert_array_equal(answer[1, :, 1:], kernel[1, :, :-1])
            u = normal(1, 30, kernel.shape[1])
            y = sum(u.roll(lag, 1)[:, 15:16] * torch.from_numpy(answer[0, :, lag]) for lag in range(16))
            y = y + sum(u[:, 15 + lag : 16 + lag] * torch.from_numpy(answer[1, :, lag]) for lag in range(15))
            torch.testing.assert_close(y[0, 0], reference.convolution(u, kernel)[0, 15], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["nfs_transformer.ckpt", "nfs_transformer_plain.ckpt"])
def test_attention_layers_stacked_by_hand_give_the_published_output(name, golden):
    found = ForeignCheckpoint.read(golden / name)
    assert found.family == "not-from-scratch-transformer"
    assert not any(isinstance(mixer, (HasKernel, HasSpectrum)) for mixer in found.mixers)
    state = torch.load(golden / "nfs_transformer_plain.ckpt", weights_only=True)["state_dict"]
    with np.load(golden / "nfs_transformer_expected.npz") as expected:
        u, output = torch.from_numpy(expected["encoder_out"]), torch.from_numpy(expected["model_out"])

    def norm(u: Tensor, where: str) -> Tensor:
        return F.layer_norm(u, (16,), state[f"{where}.norm.norm.weight"], state[f"{where}.norm.norm.bias"])

    with torch.no_grad():
        for index, mixer in enumerate(found.mixers):
            u = u + mixer(norm(u, f"model.layers.{2 * index}"), torch.tensor([128, 128]))
            stem = f"model.layers.{2 * index + 1}"
            one, two = (
                [state[f"{stem}.layer.ff.{part}.{kind}"] for kind in ("weight", "bias")] for part in ("0.0", "2")
            )
            u = u + F.linear(F.gelu(F.linear(norm(u, stem), *one)), *two)
        torch.testing.assert_close(norm(u, "model"), output, rtol=1e-4, atol=1e-5)


def test_neither_omegaconf_nor_lightning_is_imported(monkeypatch):
    for name in ("omegaconf", "pytorch_lightning", "lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises
    before = set(sys.modules)
    assert small("nfs_dlr.ckpt").family == "not-from-scratch-dlr"
    assert not {name for name in set(sys.modules) - before if "omegaconf" in name or "lightning" in name}


def test_our_own_checkpoint_is_read_as_one(tmp_path):
    own = Checkpoint(config=config(), spec=CONTINUOUS, phase="finetune", tensors=model().state_dict(), record={})
    own.write(tmp_path / "ckpt.pt")
    found = ssm_priors.load(tmp_path / "ckpt.pt")
    assert isinstance(found, Checkpoint)
    assert found.digest == own.digest


def test_every_family_names_its_source():
    for name in FORMATS:
        assert "arXiv" in FORMATS[name].__doc__


# -- what is said about a file


def test_what_the_file_does_not_say_is_told(path):
    saved(path, version_4(system()))
    found = ForeignCheckpoint.read(path)
    assumed = {"dt_transform": "exp", "real_transform": "exp", "imag_transform": "none", "bidirectional": True}
    assert found.assumed == assumed
    assert "1 layer; assumed: " in found.recognised
    assert all(f"{name} = {value}" in found.recognised for name, value in assumed.items())


def test_a_reference_to_another_option_is_as_good_as_none(path):
    saved(path, version_4(system()), dt_transform="${dataset.dt}", bidirectional=True, l_max="${dataset.l_max}")
    found = ForeignCheckpoint.read(path)
    assert (found.assumed, found.length) == ({"dt_transform": "exp"}, None)
    saved(path, version_4(system()), bandlimit="${dataset.limit}", bidirectional=True)
    assert ForeignCheckpoint.read(path).assumed == {"bandlimit": None}


@pytest.mark.parametrize("l_max", [0, -3, True, "256", 2.5, [256]])
def test_a_length_that_is_none_is_no_length(l_max, path):
    assert ForeignCheckpoint.read(saved(path, version_4(system()), bidirectional=True, l_max=l_max)).length is None


REFUSED = [
    (version_4(system()), {"bandlimit": 1.0}),
    (version_4(system()), {"dt_fast": True}),
    (version_4(system()), {"is_real": True}),
    (version_4(system()), {"swap_channels": True}),
    (version_4(system()), {"channels": 2}),
    (version_4(system()), {"bidirectional": False}),
    (version_4(system()), {"dt_transform": "cube"}),
    (version_4(system()), {"real_transform": ["exp"]}),
    (version_4(system()), {"imag_transform": {"exp": 1}}),
    (version_4(system(), low_rank=False), {"disc": "dss"}),
    (version_4(system(), low_rank=False), {"disc": ["zoh"]}),
    (version_3(system()), {"bandlimit": 0.5}),
    (version_3(system()), {"real_type": "cube"}),
    (version_3(system()), {"real_type": "relu"}),
    (version_3(system()), {"hyper_act": "mult"}),
    (version_3_diagonal(system()), {"disc": "dss"}),
    (version_3_diagonal(system()), {"force_real": True}),
    (dlr(), {"kernel_to_real": "prod"}),
    (dlr(), {"kernel_to_real": ["real"]}),
    (dlr(), {"version": "Lambda_imag"}),
    (dlr(), {"max_kernel_length": 100}),
    ({f"linears.{i}.weight": torch.ones(4, 4) for i in range(4)}, {"n_heads": 2, "rotary": True}),
    ({f"linears.{i}.weight": torch.ones(4, 4) for i in range(4)}, {"n_heads": 3}),
    ({f"linears.{i}.weight": torch.ones(4, 4) for i in range(4)}, {"n_heads": "2"}),
    ({f"linears.{i}.weight": torch.ones(4, 4) for i in range(4)}, {"rank": 1}),
]


@pytest.mark.parametrize(("state", "options"), REFUSED, ids=lambda part: str(part) if len(str(part)) < 50 else "")
def test_an_option_that_is_not_understood_is_refused_by_name(state, options, path):
    text = refused(saved(path, state, **{"bidirectional": True} | options))
    name = "n_heads" if "rank" in options else list(options)[-1]
    assert f"{name} = " in text
    assert "layer 'model.layers.0.layer" in text


def test_a_rank_of_two_is_refused(path):
    state = version_4(system())
    assert "rank 2" in refused(saved(path, state | {"P": state["P"].repeat(2, 1, 1, 1)}))


def test_layers_stand_in_the_order_of_their_numbers_whatever_stands_before_them(path):
    for stem in ("", "module.", "_orig_mod.", "net.", "model._orig_mod.module.", "a\u00b2."):
        layers = {f"{stem}layers.{index}.kernel": standalone(system(directions=1)) for index in (10, 2, 0, 1)}
        found = ForeignCheckpoint.read(saved(path, layers))
        assert [name.split(".")[-2] for name in found.layers] == ["0", "1", "2", "10"]
        assert found.family == "s4d-standalone"


def test_layers_of_two_families_are_refused(path):
    text = refused(saved(path, {"one.kernel": standalone(system(directions=1)), "two.kernel": dlr()}))
    assert "more than one family" in text
    assert "s4d-standalone: one.kernel" in text
    assert "not-from-scratch-dlr: two.kernel" in text


def test_an_unknown_file_is_told_with_its_parameters_and_the_families(path):
    torch.save(
        {f"layers.{index}.w\x1b[31m": torch.ones(1) for index in range(99)} | {"x" * 10_000: torch.ones(1)}, path
    )
    text = refused(path)
    assert "layers.*.w?[*m" in text
    assert "layers.1" not in text
    assert len(text) < 3000
    assert all(name in text for name in FORMATS)


def test_the_full_arrays_are_where_they_are_looked_for(golden):
    assert golden == FULL
