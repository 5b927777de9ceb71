"""Where a result comes from: versions, machine, device, threads, data. Goes into every checkpoint."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import ssm_priors
from ssm_priors.ops.backend import Backend, chosen
from ssm_priors.training.allocator import malloc_tuning

PACKAGES = ("torch", "lightning-fabric", "numpy", "scipy")


def provenance(*, device: torch.device, devices: list[int], data_sha256: str) -> dict[str, Any]:
    """Plain values that describe this process and its data.

    Args:
        device: where the first process trains.
        devices: over how many it was trained, one after the other where a run went on with another number.
        data_sha256: of the task's data.
    """
    return {
        "ssm_priors": ssm_priors.__version__,
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "devices": devices,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "data_sha256": data_sha256,
        "malloc_tuning": malloc_tuning(),
        "kernel_backend": kernels(device).name,
        "kernel_backend_detail": kernels(device).detail,
    }


@cache
def versions() -> dict[str, str]:
    """Of the packages that numbers depend on; looked up once, for it takes longer than a small run's epoch."""
    return {name: version(name) for name in PACKAGES}


def kernels(device: torch.device) -> Backend:
    """What runs the state-space kernels."""
    return chosen(device.type)


def process_peak_memory() -> int | None:
    """Most memory this process has held, in bytes, earlier runs of a worker included; None where none can tell."""
    if os.name == "nt":
        return None
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024  # macOS reports bytes, Linux kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak_memory(device: torch.device) -> int | None:
    """Most memory that tensors of this process have held on a CUDA device, in bytes; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
