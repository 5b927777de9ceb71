"""Data sets small enough to ship, with their hashes; sources and licences are in README.md beside this file."""

from __future__ import annotations

import hashlib
import io
from functools import cache
from importlib.resources import files

import numpy as np

from ssm_priors.errors import BadData

MNIST_5K = ("mnist5k.npz", "246e0c30eeea57c8d0037d3f38c8e00651ec204cc61b8022563e9aeeb9d756f4")


@cache
def read(name: str, sha256: str) -> dict[str, np.ndarray]:
    """The arrays of a shipped file, not to be changed, after its hash was checked; raises BadData.

    Read once a process: a worker of a study asks for every run.
    """
    content = files(__name__).joinpath(name).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise BadData(f"{name} is damaged: its SHA-256 is {found}, expected {sha256}. Install the package again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found_arrays = dict(arrays)
    for array in found_arrays.values():
        array.flags.writeable = False
    return found_arrays
