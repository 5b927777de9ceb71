"""The choice of a backend: by hand, by what is there, by the self-check."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ssm_priors.errors import BadConfig
from ssm_priors.ops import backend, fused

needs_fused = pytest.mark.skipif(fused.load()[0] is None, reason=fused.load()[1])


def test_a_name_that_is_none_is_refused():
    with pytest.raises(BadConfig, match="auto, fused, triton or torch was expected"), backend.using("cuda"):
        pass


def test_what_is_chosen_by_hand_holds_within_only():
    before = backend.chosen()
    with backend.using("torch") as inside:
        assert backend.chosen() is inside
        assert inside.name == "torch"
    assert backend.chosen() is before


def test_without_compiled_kernels_it_is_torch_and_says_what_is_lacking(monkeypatch):
    monkeypatch.setattr(fused, "load", lambda: (None, "no kernels here"))
    with backend.using("auto") as chosen:
        assert str(chosen) == "torch (no kernels here)"
    with pytest.raises(BadConfig, match="no kernels here"), backend.using("fused"):
        pass


@needs_fused
@pytest.mark.parametrize("off", [1e-2, float("nan")])
def test_kernels_that_fail_their_self_check_are_not_used(monkeypatch, caplog, off):
    real = fused._call

    def wrong(name, tensors, *numbers):
        real(name, tensors, *numbers)
        if name == "convolve":
            tensors[3] += off

    monkeypatch.setattr(fused, "_call", wrong)
    with caplog.at_level(logging.WARNING), backend.using("auto") as chosen:
        assert chosen.name == "torch"
        assert "self-check" in chosen.detail
    assert "self-check" in caplog.text


@needs_fused
def test_the_self_check_is_within_a_tenth_of_its_tolerance():
    assert backend._difference() < backend.TOLERANCE / 10


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (fused.OBJECTS["x86-64-v4"], "x86-64-v4"),
        (fused.OBJECTS["x86-64-v4"] - {"avx512vl"}, "x86-64-v3"),
        (fused.OBJECTS["x86-64-v3"], "x86-64-v3"),
        ({"sse2"}, None),
    ],
)
def test_the_object_is_chosen_by_what_the_processor_has(monkeypatch, tmp_path, flags, level):
    monkeypatch.setattr(fused.platform, "system", lambda: "Linux")
    monkeypatch.setattr(fused.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(fused, "_processor_flags", lambda: set(flags))
    monkeypatch.setattr(fused, "_path", lambda name: tmp_path / f"{name}.so")
    for name in fused.OBJECTS:
        (tmp_path / f"{name}.so").write_bytes(b"not a library")
    library, detail = fused.load.__wrapped__()
    assert library is None
    assert (f"{level}.so" in detail) if level else ("AVX2" in detail)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize(("level", "widest"), [("x86-64-v4", "zmm"), ("x86-64-v3", "ymm")])
def test_an_object_uses_the_registers_of_its_level(level, widest):
    if not fused._path(level).exists():
        pytest.skip("not built here")
    command = ["objdump", "-d", "--no-show-raw-insn", str(fused._path(level))]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count(f"%{widest}") > 1000
    assert widest == "zmm" or "%zmm" not in text


@needs_fused
def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(fused, "_digest", lambda: "another")
    assert "made from other sources" in fused.load.__wrapped__()[1]


def test_another_processor_is_told_apart(monkeypatch):
    monkeypatch.setattr(fused.platform, "machine", lambda: "aarch64")
    assert "aarch64" in fused.load.__wrapped__()[1]


@needs_fused
@pytest.mark.parametrize(("dtype", "length"), [(torch.float64, 8), (torch.float32, fused.LONGEST + 1)])
def test_what_the_kernels_cannot_do_goes_to_torch(dtype, length):
    with backend.using("fused"):
        assert not backend.runs_fused(torch.zeros(1), dtype, length)
        assert backend.runs_fused(torch.zeros(1), torch.float32, 8)


@pytest.mark.parametrize("name", ["torch", ""])
def test_the_environment_chooses(name):
    """An empty variable is none: then the compiled kernels run where they are."""
    code = "from ssm_priors.ops.backend import chosen; print(chosen())"
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"SSM_PRIORS_BACKEND": name, "OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    with backend.using("auto") as best:
        assert ran.stdout.strip() == ("torch (SSM_PRIORS_BACKEND=torch)" if name else str(best))
