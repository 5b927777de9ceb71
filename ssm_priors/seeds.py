"""Named random streams of a run: changing one (the masks, say) leaves all others as they were.

A stream is a pure function of (seed, names), so nothing about it has to be saved to resume a run bit for bit, and
two cells of a study with the same seed see the same data order, the same subset and the same masks.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names` of the run seeded with `seed`."""
    text = json.dumps((seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the stream called `names`."""
    return np.random.default_rng(derive(seed, *names))


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator of torch for the stream called `names`; drawn on the CPU so that devices agree."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))


def reseed(seed: int, *names: str | int) -> None:
    """Put torch's global generators at the beginning of the stream called `names`; for what takes no generator.

    As `torch.manual_seed` does, which takes 0.4 ms a call where CUDA was never used: a step's share of dropout alone.
    """
    import torch

    derived = derive(seed, *names)
    torch.default_generator.manual_seed(derived)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived)
