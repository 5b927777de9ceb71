"""The Triton kernels as machine code for GPUs that are not here: they compile, and stay within the registers."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs Triton, and not its interpreter: pip install 'ssm-priors[triton]'",
)

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
FLOAT64 = {"hop", "c_real", "c_imag", "log_real", "log_imag"}
POINTERS = FLOAT64 | {"u", "into", "states", "line", "out", "y", "left", "right", "local", "entering", "kernel", "grad"}
LAUNCHES: list[tuple[str, dict[str, Any], str]] = [
    ("project", {"T": 64}, "*fp32"),
    ("project", {"T": 64}, "*bf16"),
    ("emit", {"T": 64}, "*fp32"),
    ("emit", {"T": 64}, "*bf16"),
    *[
        ("correlate", {"LEFT_IS_SEQUENCE": left, "RIGHT_IS_SEQUENCE": right}, "*fp32")
        for left, right in ((True, True), (True, False), (False, True))
    ],
    ("carry", {"ADJOINT": False}, "*fp32"),
    ("carry", {"ADJOINT": True}, "*fp32"),
    ("vandermonde", {}, "*fp32"),
    ("vandermonde_backward", {}, "*fp32"),
]
each_target = pytest.mark.parametrize("target", TARGETS)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was compiled before says nothing; ptxas tells what it spilled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")


def compiled(name: str, constants: dict[str, Any], input_type: str, target: str, ones: bool) -> Any:
    """One kernel as `launch` calls it, sizes divisible by 16 or all 1, which Triton compiles apart."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ssm_priors.ops.triton import kernels, launch

    kind, arch, warp = TARGETS[target]
    function = getattr(kernels, name)
    constants = launch.TILES[name] | constants
    if "PRECISION" in function.arg_names:
        constants["PRECISION"] = "tf32x3" if kind == "cuda" else "ieee"
    sizes = [each for each in function.arg_names if each not in constants and each not in POINTERS | {"sums"}]
    signature = {each: "*fp64" if each in FLOAT64 else "*fp32" for each in function.arg_names}
    signature |= dict.fromkeys(constants, "constexpr") | dict.fromkeys(sizes, "i32")
    signature |= {each: input_type for each in ("u", "left") if each in signature}
    if name == "vandermonde_backward":
        signature["sums"] = "*fp64"
    if ones:
        constants |= dict.fromkeys(sizes, 1)
        signature |= dict.fromkeys(sizes, "constexpr")
    even = {
        (index,): [["tt.divisibility", 16]]
        for index, each in enumerate(function.arg_names)
        if signature[each] != "constexpr"
    }
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=even)
    return triton.compile(source, target=GPUTarget(kind, arch, warp), options=launch.OPTIONS)


def spilled(made: Any, log: str) -> list[int]:
    """Bytes (NVIDIA, of the assembler's own account) or registers (AMD, of the code's metadata) that went to memory."""
    if "amdgcn" in made.asm:
        return [int(count) for count in re.findall(r"\.[vs]gpr_spill_count: *(\d+)", made.asm["amdgcn"])]
    return [int(count) for count in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]


@each_target
@pytest.mark.parametrize(("name", "constants", "input_type"), LAUNCHES)
def test_they_compile_to_machine_code_that_spills_nothing(name, constants, input_type, target, capfd):
    made = compiled(name, constants, input_type, target, ones=False)
    assert made.asm["hsaco" if target.startswith("gfx") else "cubin"][:4] == b"\x7fELF"
    counts = spilled(made, capfd.readouterr().out)
    assert len(counts) == 2
    assert counts == [0, 0]


@pytest.mark.parametrize(("name", "constants", "input_type"), LAUNCHES)
def test_they_compile_where_every_size_is_one(name, constants, input_type):
    assert compiled(name, constants, input_type, "sm_90", ones=True).asm["cubin"][:4] == b"\x7fELF"


@each_target
@pytest.mark.parametrize("name", ["project", "emit", "vandermonde"])
def test_their_products_run_on_tensor_cores(name, target):
    constants = {"T": 64} if name != "vandermonde" else {}
    made = compiled(name, constants, "*fp32", target, ones=False)
    if target.startswith("gfx"):
        assert "v_mfma_f32" in made.asm["amdgcn"]
    else:
        assert re.search(r"mma\S*\.tf32", made.asm["ptx"])


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_count_of_spills_tells_a_kernel_that_spills(target, capfd, monkeypatch):
    from ssm_priors.ops.triton import launch

    monkeypatch.setitem(launch.TILES, "correlate", {"ROWS": 64, "BLOCK": 128})
    made = compiled("correlate", {"LEFT_IS_SEQUENCE": True, "RIGHT_IS_SEQUENCE": True}, "*fp32", target, ones=False)
    assert min(spilled(made, capfd.readouterr().out)) > 0
