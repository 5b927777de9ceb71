"""What a mixer does, and what it can do besides: one protocol a skill, asked for with `isinstance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from ssm_priors.ops.attention import Weights
from ssm_priors.priors.discretise import discretise


@runtime_checkable
class Mixer(Protocol):
    """Mixes positions. Right padding never changes a valid output, in either direction."""

    def forward(self, u: Tensor, lengths: Tensor) -> Tensor:
        """u: (B, L, H), lengths: (B,) valid positions -> (B, L, H); padded outputs have no meaning."""
        ...


@dataclass(frozen=True, slots=True)
class Spectrum:
    """A layer's state-space parameters as NumPy float64, without discretisation; one of each conjugate pair.

    A mixer whose channels share one state has a single row in place of H.
    """

    eigenvalue: np.ndarray
    """A: (H, N/2), complex, per unit of time."""
    dt: np.ndarray
    """Units of time a step: (H,), or (H, N/2) where every mode has its own."""
    weight: np.ndarray
    """C B: (direction, H, N/2), complex; for a shared state the size of the matrix c_n b_n."""
    discretisation: str
    """A name in `ssm_priors.priors.discretise.RULES`."""

    def per_step(self) -> tuple[np.ndarray, np.ndarray]:
        """log z and the input's gain of every mode, each (H, N/2), complex."""
        if self.dt.ndim == 1:
            return discretise(self.discretisation, self.eigenvalue, self.dt)
        log_z, gain = discretise(self.discretisation, self.eigenvalue.reshape(-1, 1), self.dt.ravel())
        return log_z.reshape(self.dt.shape), gain.reshape(self.dt.shape)


@runtime_checkable
class HasSpectrum(Protocol):
    """A linear state space: everything about it follows from its eigenvalues, weights and dt."""

    def spectrum(self) -> Spectrum:
        """The parameters as they stand."""
        ...


@runtime_checkable
class HasKernel(Protocol):
    """A convolution, whatever makes its kernel."""

    def kernel(self, length: int) -> Tensor:
        """Impulse response without the skip D: (direction, H, L); direction 0 at lags 0.., 1 at lags -1, -2, .."""
        ...


@runtime_checkable
class HasAttention(Protocol):
    """Mixes positions by weights that depend on the input."""

    def attention_weights(self, u: Tensor, lengths: Tensor) -> Weights:
        """u: (B, L, H), lengths: (B,) -> queries, keys and values as `forward` has them, and the weights they make."""
        ...


@runtime_checkable
class HasStep(Protocol):
    """Runs one position at a time. Causal mixers only."""

    def initial_state(self, batch: int) -> Tensor:
        """The state before the first input."""
        ...

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (B, H), state -> output (B, H), next state."""
        ...


@runtime_checkable
class HasPrefill(HasStep, Protocol):
    """Runs many positions at once from a state, as `step` would one after the other. Causal mixers only."""

    def prefill(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (B, L, H), state -> output (B, L, H), the state after the last position."""
        ...


@runtime_checkable
class HasSsmParameters(Protocol):
    """Owns parameters that train at the SSM's own rate and are never decayed."""

    def ssm_parameters(self) -> list[nn.Parameter]:
        """Those parameters: A and dt, in whatever form the mixer stores them, and what its paper trains like them."""
        ...
