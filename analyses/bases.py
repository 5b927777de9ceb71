"""Priors by name: the modes that an init or a HiPPO family places, and the kernels that span what it can say.

    diagonal init   basis kernels Re z_n^l, Im z_n^l, modes by ascending frequency
    HiPPO family    basis kernels (Ad^l Bd)_n, n = 0, 1, ..: the family's functions, seen through its discretisation

Eigenvalues of a HiPPO family are those of the whole A, low-rank part included: real ones once, of a conjugate pair one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.priors.discretise import discretise
from ssm_priors.priors.hippo import fout, lagt, legs, legt
from ssm_priors.registry import INITS

FAMILIES: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "hippo-legs": legs,
    "hippo-legt": legt,
    "hippo-fout": fout,
    "hippo-lagt": lagt,
}
ROUNDING = 1e-10
"""Of a basis's strongest direction: what lies below is not told from rounding, and spans nothing."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What a prior prescribes to a layer."""

    name: str
    eigenvalue: np.ndarray
    """(H, M), complex, per unit of time, by ascending (|Im A|, -Re A)."""
    system: tuple[np.ndarray, np.ndarray] | None
    """A (N, N) and B (N,) of a HiPPO family; None for a diagonal init."""


def known_priors() -> list[str]:
    """Every name that `prior_named` takes."""
    return sorted([*INITS, *FAMILIES])


def prior_named(name: str, d_state: int, channels: int, rng: np.random.Generator) -> Prior:
    """A prior at a layer's size.

    Args:
        name: an init, or hippo-legs, hippo-legt, hippo-fout, hippo-lagt.
        d_state: state size N, even.
        channels: H.
        rng: for inits that are drawn.

    Raises:
        UnknownName: no such prior.
    """
    if name not in known_priors():
        raise UnknownName("prior", name, known_priors())
    if name not in FAMILIES:
        return Prior(name, _in_order(INITS[name](d_state, channels, rng)), None)
    A, B = _reached(*FAMILIES[name](d_state))
    return Prior(name, _in_order(np.tile(_eigenvalues(A), (channels, 1))), (A, B))


def kernel_basis(prior: Prior, channel: int, dt: float, rule: str, length: int, count: int | None) -> np.ndarray:
    """Orthonormal columns that span the first basis kernels of one channel.

    Args:
        prior: of `prior_named`.
        channel: whose modes are taken.
        dt: units of time a step.
        rule: "zoh" or "bilinear".
        length: lags L.
        count: the first n basis kernels; None takes all.

    Returns:
        (L, m), m <= n: fewer where the kernels are not independent to 1e-10.

    Raises:
        BadConfig: more basis kernels than the prior has, or so many that they span every kernel of this length.
    """
    if prior.system is None:
        found = _modal(discretise(rule, prior.eigenvalue[channel], np.array([dt]))[0][0], length, count)
    else:
        found = _orbit(*_one_step(*prior.system, dt, rule), length)[:, :count]
    if count is not None and found.shape[1] < count:
        raise BadConfig(f"{count} basis kernels were asked for; {prior.name} has {found.shape[1]} at this state size")
    columns = _orthonormal(found)
    if columns.shape[1] >= length:
        raise BadConfig(f"{found.shape[1]} basis kernels span every kernel of {length} lags; take fewer, or more lags")
    return columns


def _in_order(eigenvalue: np.ndarray) -> np.ndarray:
    order = np.lexsort((-eigenvalue.real, np.abs(eigenvalue.imag)), axis=-1)
    return np.take_along_axis(eigenvalue, order, axis=-1)


def _reached(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without states that stand alone and have no input: the sine of frequency 0 in FouT, which is 0 for ever."""
    alive = A.any(0) | A.any(1) | (B != 0)
    return A[np.ix_(alive, alive)], B[alive]


def _eigenvalues(A: np.ndarray) -> np.ndarray:
    """A triangular matrix's stand on its diagonal, where no solver that takes it for a full one finds them."""
    if not np.triu(A, 1).any():
        return np.diag(A).astype(np.complex128)
    found = np.linalg.eigvals(A)
    return found[found.imag >= 0]


def _modal(log_z: np.ndarray, length: int, count: int | None) -> np.ndarray:
    """(modes,) -> (L, n): Re z^l and Im z^l, interleaved."""
    powers = np.exp(np.arange(length)[:, None] * log_z[:count])  # n modes have at least n basis kernels
    both = np.stack([powers.real, powers.imag], axis=-1).reshape(length, -1)
    turns = np.stack([np.ones(powers.shape[1], bool), log_z[:count].imag != 0], axis=-1).ravel()
    return both[:, turns][:, :count]


def _one_step(A: np.ndarray, B: np.ndarray, dt: float, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Ad and Bd."""
    size = len(B)
    if rule == "bilinear":
        left = np.eye(size) - dt / 2 * A
        return np.linalg.solve(left, np.eye(size) + dt / 2 * A), np.linalg.solve(left, dt * B)
    both = np.zeros((size + 1, size + 1))
    both[:size, :size], both[:size, size] = A, B
    stepped = expm(dt * both)
    return stepped[:size, :size], stepped[:size, size]


def _orbit(Ad: np.ndarray, Bd: np.ndarray, length: int) -> np.ndarray:
    """Rows Ad^l Bd: (L, N), by doubling."""
    rows, power = Bd[None], Ad
    while len(rows) < length:
        rows = np.concatenate([rows, rows @ power.T])
        power = power @ power
    return rows[:length]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(columns, axis=0)
    q, r = np.linalg.qr(columns[:, size > 0] / size[size > 0])
    u, strength, _ = np.linalg.svd(r)
    return q @ u[:, : len(strength)][:, strength > ROUNDING * strength[0]]
