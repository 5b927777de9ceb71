from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from ssm_priors.training import allocator

GLIBC = hasattr(ctypes.CDLL(None), "mallinfo2")
"""It is there from glibc 2.33 on."""
MAPPED = """
import ctypes
import torch
from ssm_priors.training import allocator

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
assert allocator.malloc_tuning() == "off"
if {tuned}:
    assert allocator.keep_freed_memory() == allocator.keep_freed_memory() == allocator.malloc_tuning() == "on"
before = mallinfo()
tensor = torch.ones(2**24)
print(mallinfo().hblkhd - before.hblkhd)
"""


def mapped(tuned: bool) -> int:
    code = [sys.executable, "-c", MAPPED.format(tuned=tuned)]
    return int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not GLIBC, reason="malloc is not glibc's, or tells too little")
def test_a_large_tensor_comes_from_the_heap_once_freed_memory_is_kept():
    assert mapped(tuned=False) >= 2**26
    assert mapped(tuned=True) == 0


def test_another_c_library_is_left_alone(monkeypatch):
    def refuse(name: str) -> str:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(allocator, "_tuning", "off")
    monkeypatch.setattr(os, "confstr", refuse, raising=False)
    monkeypatch.setattr(allocator, "_raise_thresholds", lambda: pytest.fail("mallopt was called"))
    assert allocator.keep_freed_memory() == allocator.malloc_tuning() == "not glibc"
