"""When the Triton kernels are chosen: none of this needs a GPU or Triton."""

from __future__ import annotations

import logging

import pytest
import torch

from ssm_priors.errors import BadConfig
from ssm_priors.ops import backend
from ssm_priors.ops import triton as package


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with kernels that are right, and a CPU without any."""
    monkeypatch.setattr(backend.fused, "load", lambda: (None, "no kernels here"))
    monkeypatch.setattr(backend, "lacking", lambda: None)
    monkeypatch.setattr(backend, "_failing_on_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")


@pytest.mark.parametrize("name", ["auto", "triton"])
def test_on_a_gpu_they_are_taken_where_they_are_asked_for(gpu, name):
    with backend.using(name):
        assert str(backend.chosen("cuda")) == "triton (a GPU)"
        assert backend.chosen("cpu").name == "torch"


@pytest.mark.parametrize("name", ["torch", "fused"])
def test_on_a_gpu_it_is_torch_where_they_are_not_asked_for(gpu, name):
    assert str(backend._choose(name, "cuda")) == "torch (on cuda)"


def test_triton_leaves_the_cpu_to_torch(gpu):
    with backend.using("triton") as on_cpu:
        assert str(on_cpu) == "torch (the Triton kernels are for GPUs)"
        assert not backend.runs_fused(torch.zeros(1), torch.float32, 8)


@pytest.mark.parametrize("why", ["torch sees no GPU", "Triton is not installed"])
def test_without_them_it_is_torch_and_says_what_is_lacking(monkeypatch, why):
    monkeypatch.setattr(backend, "lacking", lambda: why)
    assert str(backend._choose("auto", "cuda")) == f"torch ({why})"
    with pytest.raises(BadConfig, match=f"SSM_PRIORS_BACKEND=triton: {why}; use auto or torch"):
        backend._choose("triton", "cuda")


def test_wrong_ones_are_refused_with_a_warning(gpu, monkeypatch, caplog):
    monkeypatch.setattr(backend, "_failing_on_gpu", lambda: "they are off by 1")
    with caplog.at_level(logging.WARNING):
        assert str(backend._choose("auto", "cuda")) == "torch (they are off by 1)"
    assert "they are off by 1; torch's operations are used instead" in caplog.text
    with pytest.raises(BadConfig, match="they are off by 1"):
        backend._choose("triton", "cuda")


def test_what_is_lacking_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert package.lacking() == "torch sees no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    assert "pip install 'ssm-priors[triton]'" in package.lacking()
    monkeypatch.setattr(package, "find_spec", lambda name: object())
    assert package.lacking() is None


def test_another_kind_of_device_runs_on_torch():
    assert str(backend._choose("auto", "mps")) == "torch (the Triton kernels are not for mps)"


def test_what_the_kernels_cannot_do_goes_to_torch(gpu):
    on_gpu = torch.zeros(1, device="meta")
    with backend.using("triton"):
        assert not backend.runs_triton(torch.zeros(1), torch.float32)
        assert not backend.runs_triton(on_gpu, torch.float32)

        class OnCuda:
            device = torch.device("cuda")

        assert backend.runs_triton(OnCuda(), torch.float32)
        assert not backend.runs_triton(OnCuda(), torch.float64)
