"""The Triton kernels as machine code for GPUs that are not here: they compile, and stay within the registers."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs Triton, and not its interpreter: pip install 'ssm-priors[triton]'",
)

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64"}
LAUNCHES: list[tuple[str, torch.dtype, dict[str, bool]]] = [
    ("project", torch.float32, {}),
    ("project", torch.bfloat16, {}),
    ("emit", torch.float32, {}),
    ("emit", torch.bfloat16, {}),
    ("correlate", torch.float32, {"LEFT_IS_SEQUENCE": True, "RIGHT_IS_SEQUENCE": True}),
    ("correlate", torch.bfloat16, {"LEFT_IS_SEQUENCE": True, "RIGHT_IS_SEQUENCE": True}),
    ("correlate", torch.float32, {"LEFT_IS_SEQUENCE": True, "RIGHT_IS_SEQUENCE": False}),
    ("correlate", torch.bfloat16, {"LEFT_IS_SEQUENCE": True, "RIGHT_IS_SEQUENCE": False}),
    ("correlate", torch.float32, {"LEFT_IS_SEQUENCE": False, "RIGHT_IS_SEQUENCE": True}),
    ("carry", torch.float32, {"ADJOINT": False}),
    ("carry", torch.float32, {"ADJOINT": True}),
    ("vandermonde", torch.float64, {}),
    ("vandermonde_backward", torch.float32, {}),
]
"""Each kernel by the type of its first tensor and what else is compiled apart."""
each_target = pytest.mark.parametrize("target", TARGETS)
each_launch = pytest.mark.parametrize(("name", "dtype", "flags"), LAUNCHES)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was compiled before says nothing; ptxas tells what it spilled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")


@dataclass(frozen=True)
class Launch:
    name: str
    dtypes: tuple[torch.dtype, ...]
    numbers: int
    constants: dict[str, Any]

    def fits(self, name: str, dtype: torch.dtype, flags: dict[str, bool]) -> bool:
        return (self.name, self.dtypes[0]) == (name, dtype) and flags.items() <= self.constants.items()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What a forward and backward launch, with whatever stands in the memory for their results."""
    from ssm_priors.ops.triton import launch

    seen: list[Launch] = []

    def record(name: str, grid: tuple[int, ...], tensors: list[torch.Tensor], *numbers: int, **constants: Any) -> None:
        assert all(tensor.is_contiguous() for tensor in tensors)
        seen.append(Launch(name, tuple(tensor.dtype for tensor in tensors), len(numbers), constants))

    monkeypatch.setattr(launch, "_launch", record)
    parts = [torch.zeros(*shape, dtype=torch.float64).requires_grad_() for shape in [(2, 4, 8)] * 2 + [(4, 8)] * 2]
    C, log_z = (parts[0], parts[1]), (parts[2], parts[3])
    for dtype in (torch.float32, torch.bfloat16):
        u = torch.zeros(3, 200, 4, dtype=dtype).requires_grad_()
        launch.convolve(u, C, log_z, torch.zeros(4)).sum().backward()
    launch.vandermonde(*parts, 200).sum().backward()
    return seen


def compiled(asked: Launch, target: str, *, ones: bool = False) -> Any:
    """One kernel as it is launched, sizes and addresses divisible by 16 or sizes of 1, which Triton compiles apart."""
    from triton import compile as machine_code_of
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ssm_priors.ops.triton import kernels, launch

    function = getattr(kernels, asked.name)
    given = len(asked.dtypes) + asked.numbers
    pointers, sizes = function.arg_names[: len(asked.dtypes)], function.arg_names[len(asked.dtypes) : given]
    assert set(function.arg_names[given:]) == set(asked.constants)
    constants = dict(asked.constants)
    if "PRECISION" in constants:
        constants["PRECISION"] = "ieee" if target.startswith("gfx") else "tf32x3"
    constants |= dict.fromkeys(sizes, 1) if ones else {}
    signature = dict(zip(pointers, (POINTERS[dtype] for dtype in asked.dtypes), strict=True))
    signature |= dict.fromkeys(sizes, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {each: signature[each] for each in function.arg_names}
    even = {(at,): [["tt.divisibility", 16]] for at, each in enumerate(signature.values()) if each != "constexpr"}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=even)
    return machine_code_of(source, target=GPUTarget(*TARGETS[target]), options=launch.OPTIONS)


def the(launches: list[Launch], name: str, dtype: torch.dtype, flags: dict[str, bool]) -> Launch:
    return next(each for each in launches if each.fits(name, dtype, flags))


def spilled(made: Any, log: str) -> list[int]:
    """Bytes (NVIDIA, of the assembler's own account) or registers (AMD, of the code's metadata) that went to memory."""
    if "amdgcn" in made.asm:
        return [int(count) for count in re.findall(r"\.[vs]gpr_spill_count: *(\d+)", made.asm["amdgcn"])]
    return [int(count) for count in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]


def test_every_launch_is_among_those_that_are_compiled(launches):
    assert [each for each in launches if not any(each.fits(*one) for one in LAUNCHES)] == []


@each_target
@each_launch
def test_they_compile_to_machine_code_that_spills_nothing(launches, name, dtype, flags, target, capfd):
    made = compiled(the(launches, name, dtype, flags), target)
    assert made.asm["hsaco" if target.startswith("gfx") else "cubin"][:4] == b"\x7fELF"
    counts = spilled(made, capfd.readouterr().out)
    assert len(counts) == 2
    assert counts == [0, 0]


@each_launch
def test_they_compile_where_every_size_is_one(launches, name, dtype, flags):
    assert compiled(the(launches, name, dtype, flags), "sm_90", ones=True).asm["cubin"][:4] == b"\x7fELF"


@each_target
@pytest.mark.parametrize("name", ["project", "emit", "correlate", "vandermonde", "vandermonde_backward"])
def test_their_products_run_on_tensor_cores(launches, name, target):
    made = compiled(next(each for each in launches if each.name == name), target)
    if target.startswith("gfx"):
        assert "v_mfma_f32" in made.asm["amdgcn"]
    else:
        assert re.search(r"mma\S*\.tf32", made.asm["ptx"])


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_count_of_spills_tells_a_kernel_that_spills(launches, target, capfd):
    asked = the(launches, "correlate", torch.float32, {})
    made = compiled(replace(asked, constants=asked.constants | {"ROWS": 64, "BLOCK": 128}), target)
    assert min(spilled(made, capfd.readouterr().out)) > 0
