"""What a family of foreign checkpoints is, and the two kinds of layer that most of them come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.protocols import Spectrum
from ssm_priors.ops.cauchy import dplr_kernel
from ssm_priors.ops.vandermonde import vandermonde


class Settings:
    """The options that a file states for its layers; remembers those that had to be assumed."""

    def __init__(self, stated: Mapping[str, Any]):
        self._stated = stated
        self.assumed: dict[str, Any] = {}

    def stated(self, name: str) -> Any:
        """An option's value; None where the file leaves it out, or leaves a reference to another one."""
        value = self._stated.get(name)
        return None if isinstance(value, str) and "${" in value else value

    def get(self, name: str, default: Any) -> Any:
        """An option's value. One that is left out among others is at its code's default; without any, it is assumed."""
        value = self.stated(name)
        if value is not None:
            return value
        if not self._stated or name in self._stated:
            self.assumed[name] = default
        return default

    def refuse(self, name: str, harmless: Any) -> None:
        """Raise BadCheckpoint if an option is stated with another value than the only one that is understood here."""
        value = self.stated(name)
        if value not in (None, harmless):
            raise BadCheckpoint(f"its layers use {name} = {value}, which changes kernels and is not understood here")
        if value is None and self._stated.get(name) is not None:
            self.assumed[name] = harmless


class Family(Protocol):
    """One way in which public code stores a layer."""

    needs: ClassVar[tuple[str, ...]]
    """The parameters by which a layer is recognised, below its own name."""
    lacks: ClassVar[tuple[str, ...]]
    """Parameters whose presence says that it is a layer of another family."""

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """From the parameters below a layer's name to something with the skills of `models.protocols`."""
        ...


class Diagonal(nn.Module):
    """A diagonal state space for every channel, in this package's convention."""

    def __init__(self, spectrum: Spectrum):
        super().__init__()
        self._spectrum = spectrum

    def spectrum(self) -> Spectrum:
        """Eigenvalues, dt and weights, float64."""
        return self._spectrum

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), float64."""
        log_z, gain = self._spectrum.per_step()
        weight = torch.from_numpy(self._spectrum.weight * gain)
        z = torch.from_numpy(log_z)
        return vandermonde(weight.real, weight.imag, z.real, z.imag, length, torch.float64)


class LowRank(nn.Module):
    """S4: a state space for every channel, diagonal plus low rank, bilinear in time.

    Args:
        A, P, B: (H, N/2), complex128; the state matrix is diag(A) - P P*.
        C: (direction, H, N/2), complex128, the true output.
        dt: (H,), float64, units of time a step.
    """

    def __init__(self, A: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor):
        super().__init__()
        self._system = A, P, B, C, dt

    def kernel(self, length: int) -> Tensor:
        """Impulse response without D: (direction, H, L), float64."""
        return dplr_kernel(*self._system, length, torch.float64)


def upper(eigenvalue: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The member of each conjugate pair with a positive imaginary part, and its weight.

    Args:
        eigenvalue: (H, N/2), complex.
        weight: (direction, H, N/2), complex.
    """
    below = eigenvalue.imag < 0
    return np.where(below, eigenvalue.conj(), eigenvalue), np.where(below, weight.conj(), weight)


def real(stored: Tensor) -> Tensor:
    """Float64; raises BadCheckpoint for complex numbers, whose imaginary part would be lost."""
    if stored.is_complex():
        raise BadCheckpoint("a parameter that should be real is complex")
    return stored.double()


def complex_array(stored: Tensor) -> np.ndarray:
    """Complex numbers (...), or real pairs (..., 2) -> complex128 (...); raises BadCheckpoint for anything else."""
    if not stored.is_complex() and stored.shape[-1:] != (2,):
        raise BadCheckpoint(f"a parameter that should be complex has the shape {tuple(stored.shape)}, without pairs")
    pair = stored if stored.is_complex() else torch.view_as_complex(stored.double().contiguous())
    array: np.ndarray = pair.to(torch.complex128).numpy()
    return array


def fits(name: str, array: np.ndarray | Tensor, *shapes: tuple[int, ...]) -> None:
    """Raise BadCheckpoint unless an array has one of the shapes; before anything is made in a size that nobody has."""
    if tuple(array.shape) not in shapes:
        raise BadCheckpoint(f"{name} has the shape {tuple(array.shape)}; {' or '.join(map(str, shapes))} was expected")


def directions(C: np.ndarray, settings: Settings) -> None:
    """Raise BadCheckpoint unless C's first axis is the direction: several kernels a channel lie along it as well."""
    settings.refuse("channels", 1)
    both = settings.get("bidirectional", len(C) == 2)
    if C.ndim != 3 or len(C) != (2 if both else 1):
        raise BadCheckpoint(f"bidirectional = {both}, but C has the shape {C.shape}; (direction, H, N/2) was expected")


POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda stored: stored,
    "exp": torch.exp,
    "relu": lambda stored: F.relu(stored) + 1e-4,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}
"""From a stored number to the positive one that it stands for."""


def positive(stored: Tensor, transform: Any, option: str) -> Tensor:
    """The positive number that a parameter stands for, float64; raises BadCheckpoint for an unknown transform."""
    if transform not in list(POSITIVE):  # a list compares with what has no hash
        raise BadCheckpoint(f"its layers use {option} = {transform}; known: {', '.join(POSITIVE)}")
    number = POSITIVE[transform](real(stored))
    if not bool(number.isfinite().all()):
        raise BadCheckpoint(f"{option} = {transform} makes values that are not finite")
    return number
