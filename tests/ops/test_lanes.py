"""Sixteen lanes, as the AVX-512 object has them, compiled here for what this processor runs: the same sources."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from against_reference import check_convolution, check_gate, check_kernel

from ssm_priors.ops import backend, fused

NATIVE = Path(fused.__file__).with_name("native")
SETUP = Path(__file__).resolve().parents[2] / "setup.py"
COMPILER = shutil.which("g++") or shutil.which("clang++")
NEEDED = fused.OBJECTS["x86-64-v3"]

pytestmark = pytest.mark.skipif(
    COMPILER is None or not fused._processor_flags() >= NEEDED, reason="no C++ compiler, or a processor without AVX2"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = re.search(r'^FLAGS = "(.*)"$', SETUP.read_text(), re.MULTILINE)[1].replace("-O3", "-O1").split()
    path = tmp_path_factory.mktemp("lanes") / "sixteen.so"
    sources = [str(source) for source in sorted(NATIVE.glob("*.cpp"))]
    made = ["-march=x86-64-v3", "-DLANES=16", f'-DSOURCE="{fused._digest()}"', "-shared", "-fPIC", "-o", str(path)]
    subprocess.run([COMPILER, *flags, *made, *sources], check=True, capture_output=True, text=True)
    return fused._declared(ctypes.CDLL(str(path)))


@pytest.fixture(autouse=True)
def _sixteen(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "load", lambda: (library, "for a test"))
    with backend.using("fused") as chosen:
        assert str(chosen) == "fused (for a test, 16 lanes)"
        yield


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 15), (3, 48, 16), (5, 97, 17), (4, 31, 33), (9, 64, 100)], ids=str)
def test_convolution(shape, directions, gelu):
    check_convolution(*shape, directions, gelu, torch.float32)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 7, 250])
@pytest.mark.parametrize("shape", [(1, 1), (16, 3), (33, 16)], ids=str)
def test_kernel(shape, length, directions):
    check_kernel(directions, *shape, length, torch.float32)


@pytest.mark.parametrize("channels", [(1, 1), (16, 16), (17, 15), (64, 33), (100, 100)], ids=str)
@pytest.mark.parametrize("rows", [1, 11, 12, 25, 300])
def test_gate(rows, channels):
    check_gate(rows, *channels, torch.float32)
