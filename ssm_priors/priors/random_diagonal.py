"""The null of every comparison: a diagonal state matrix with no structure."""

from __future__ import annotations

import numpy as np

from ssm_priors.registry import INITS


@INITS.register("random")
def random_diagonal(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A = -U(0, 1) + i exp(N(0, 1)), drawn anew for every channel and mode: stable, but of no design.

    Source: the `rand` diagonal init of the public S4 code, github.com/state-spaces/s4.
    """
    shape = (channels, d_state // 2)
    real = np.maximum(rng.uniform(size=shape), np.finfo(np.float32).tiny)  # uniform() may return 0: no decay at all
    return -real + 1j * np.exp(rng.standard_normal(shape))
