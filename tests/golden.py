"""The golden arrays that ship with the tests, brought to this package's sign convention."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from ssm_priors.priors.discretise import DISCRETISATIONS


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "data" / "golden_s4d.npz", allow_pickle=False) as file:
        return dict(file)


def modes(A: np.ndarray, B: np.ndarray, C: np.ndarray, log_dt: np.ndarray, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """C B gain: (direction, H, N/2) and log z: (H, N/2); all conjugated, so that imaginary parts are positive."""
    log_z, gain = DISCRETISATIONS[rule](A.conj(), np.exp(log_dt))
    return (C * B).conj() * gain, log_z


@cache
def prior_arrays() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "data" / "golden_priors.npz", allow_pickle=False) as file:
        return dict(file)
