"""The golden arrays of public implementations: all of them where they lie beside the checkout, else what is shipped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ssm_priors.priors.discretise import DISCRETISATIONS

SHIPPED = Path(__file__).parent / "data"
FULL = Path(__file__).parent.parent.parent / "shared" / "golden"


class Part(dict[str, np.ndarray]):
    """Some of the golden arrays. In a clone, a test that asks for one that is not shipped is skipped."""

    def __missing__(self, key: str) -> np.ndarray:
        if FULL.is_dir():
            raise KeyError(key)
        pytest.skip(f"'{key}' is not in the part of the golden arrays in tests/data")


@cache
def _room(name: str) -> dict[str, np.ndarray]:
    if FULL.is_dir():
        with np.load(FULL / f"{name}.npz", allow_pickle=False) as file:
            return dict(file)
    return shipped(name)


def shipped(name: str) -> Part:
    """What of a file of golden arrays is in tests/data for the models' tests."""
    with np.load(SHIPPED / "golden_models.npz", allow_pickle=False) as file:
        return below(Part(file), name)


def published(room: str) -> Part:
    """A file of golden arrays: "kernels", "layers", "layers_nfs" or "s5_lru"."""
    return Part(_room(room))


def below(arrays: dict[str, np.ndarray], name: str) -> Part:
    """The arrays whose names start with `name/`, without that."""
    prefix = f"{name}/"
    return Part({key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)})


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(SHIPPED / "golden_s4d.npz", allow_pickle=False) as file:
        return dict(file)


def modes(A: np.ndarray, B: np.ndarray, C: np.ndarray, log_dt: np.ndarray, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """C B gain: (direction, H, N/2) and log z: (H, N/2); all conjugated, so that imaginary parts are positive."""
    log_z, gain = DISCRETISATIONS[rule](A.conj(), np.exp(log_dt))
    return (C * B).conj() * gain, log_z


@cache
def prior_arrays() -> dict[str, np.ndarray]:
    with np.load(SHIPPED / "golden_priors.npz", allow_pickle=False) as file:
        return dict(file)
