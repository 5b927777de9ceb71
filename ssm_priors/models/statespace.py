"""What the state-space mixers share: bounds that keep them stable, their convolution or scan, their read-out.

    y = u * kernel + D u   (a convolution)   or   x_t = z x_{t-1} + B u_t, y_t = Re(C x_t) + D u_t   (a scan)
    output = a sigmoid(b),   [a, b] = W GELU(y) + bias

Functions, to be called from a mixer's own `forward` and `step`: every mixer stays one class that can be read alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssm_priors.batch import valid_positions
from ssm_priors.errors import BadConfig
from ssm_priors.models.padding import silence_padding
from ssm_priors.models.protocols import Spectrum
from ssm_priors.ops import dispatch
from ssm_priors.ops.chunked import stream
from ssm_priors.ops.discretise import Discrete
from ssm_priors.ops.scan import scan
from ssm_priors.priors.discretise import log_uniform_dt

# Outside these bounds exp() of a parameter overflows, or |z| rounds to 1 in float32. No init comes near them; they hold
# a run that was pushed there (a learning rate far too large) inside the stable region, with finite numbers.
LOG_A_BOUNDS = (math.log(1e-6), math.log(1e6))
LOG_DT_BOUNDS = (math.log(1e-6), math.log(1e3))
LEAST_DECAY = 1e-7
"""1/step: the smallest decay rate whose |z| is below 1 in float32."""


class Timescales(Protocol):
    """Options with the range of dt."""

    @property
    def dt_min(self) -> float:
        """Smallest initial timescale."""
        ...

    @property
    def dt_max(self) -> float:
        """Largest initial timescale."""
        ...


def timescales(options: Timescales, count: int, rng: np.random.Generator) -> np.ndarray:
    """dt: (count,), log-uniform in the options' range, in units of time a step; raises BadConfig if that is empty."""
    if options.dt_min > options.dt_max:
        raise BadConfig(f"model.mixer: dt_min {options.dt_min} is larger than dt_max {options.dt_max}")
    return log_uniform_dt(count, options.dt_min, options.dt_max, rng)


def one_sided(causal: bool) -> None:
    """Refuse to step where the present output needs the future; raises BadConfig."""
    if not causal:
        raise BadConfig("a two-sided model has no step form; set model.causal = true")


# -- parameters


def parameter(array: np.ndarray) -> nn.Parameter:
    """A float32 parameter that owns its memory."""
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array)).float())


def pairs(array: np.ndarray) -> np.ndarray:
    """Complex (...) -> real pairs (..., 2)."""
    return np.stack([array.real, array.imag], axis=-1)


def complex_normal(rng: np.random.Generator, *shape: int, deviation: float) -> np.ndarray:
    """Real pairs (*shape, 2), each part normal with this standard deviation."""
    return rng.standard_normal((*shape, 2)) * deviation


def as_complex(pair: Tensor) -> Tensor:
    """Real pairs (..., 2) -> complex128 (...), with gradients."""
    return torch.view_as_complex(pair.double().contiguous())


def to_numpy(pair: Tensor) -> np.ndarray:
    """Real pairs (..., 2) -> complex128 array (...), without gradients."""
    return as_complex(pair.detach()).cpu().numpy()


@contextmanager
def kept_in_float32(parameters: Callable[[], list[nn.Parameter]]) -> Iterator[None]:
    """`.half()` and `.bfloat16()` within leave these parameters in float32: rounded, A and dt are another state space.

    Args:
        parameters: asked twice, because moving a module may exchange its parameters.
    """
    before = [each.detach().clone() for each in parameters()]
    yield
    for each, kept in zip(parameters(), before, strict=True):
        if each.dtype in (torch.float16, torch.bfloat16):
            each.data = kept.to(each.device)


def kernel_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of kernels and FFTs, given that of the weights: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of states, given that of the weights."""
    return torch.complex128 if dtype == torch.float64 else torch.complex64


# -- eigenvalues that cannot grow


def bounded_dt(log_dt: Tensor) -> Tensor:
    """Units of time a step, float64, within bounds."""
    return torch.exp(log_dt.double().clamp(*LOG_DT_BOUNDS))


def bounded_decay(log_decay: Tensor, least: Tensor | float) -> Tensor:
    """-Re A, float64, within bounds and at least `least`, so that |z| stays below 1."""
    decay = torch.exp(log_decay.double().clamp(*LOG_A_BOUNDS))
    return torch.maximum(decay, torch.as_tensor(least, dtype=decay.dtype, device=decay.device))


def per_step(log_decay: Tensor, angle: Tensor) -> Tensor:
    """log z = -exp(log_decay) + i angle, complex128, for mixers that hold z itself; |z| < 1 by construction."""
    return torch.complex(-bounded_decay(log_decay, LEAST_DECAY), angle.double())


def undiscretised(log_z: Tensor) -> Discrete:
    """Modes that are given per step, with a gain of 1."""
    one = torch.ones_like(log_z.real)
    return Discrete(log_z.real, log_z.imag, one, torch.zeros_like(one))


def with_gain(C: Tensor, modes: Discrete) -> Tensor:
    """C times the input gain, as real pairs: C: (direction, H, N/2, 2) -> the same, float64."""
    c, d = C.double().unbind(-1)
    weight = [c * modes.gain_real - d * modes.gain_imag, c * modes.gain_imag + d * modes.gain_real]
    return torch.stack(weight, dim=-1)


# -- from input to output


class Shared(NamedTuple):
    """One state space with many inputs and outputs, per step; y = Re(C x)."""

    log_z: Tensor
    """(N,), complex128."""
    B: Tensor
    """(N, H), complex128, gain included."""
    C: Tensor
    """(direction, H, N), complex128."""


def convolve(u: Tensor, lengths: Tensor, kernel: Callable[[int], Tensor], D: Tensor, *, gelu: bool = False) -> Tensor:
    """u * kernel + D u, with the padding silenced, and GELU over it if wanted.

    Args:
        u: (B, L, H).
        lengths: (B,), valid positions.
        kernel: L -> (direction, H, L).
        D: (H,).
        gelu: whether the output goes through GELU here, in one pass with the convolution; then `gate` it.

    Returns:
        (B, L, H), in u's dtype.
    """
    u = _silenced(u, lengths)
    return dispatch.convolve(u, kernel(u.shape[1]).to(kernel_dtype(u.dtype)), D, gelu)


def convolve_modes(
    u: Tensor, lengths: Tensor, weight: Tensor, modes: Discrete, D: Tensor, *, gelu: bool = False
) -> Tensor:
    """`convolve` with the `diagonal_kernel` of independent channels, by way of the kernel or without it.

    Args:
        u: (B, L, H).
        lengths: (B,), valid positions.
        weight: C with the gain, real pairs (direction, H, N/2, 2), float64.
        modes: z of each, (H, N/2).
        D: (H,).
        gelu: as in `convolve`.

    Returns:
        (B, L, H), in u's dtype.
    """
    real, imag = weight.unbind(-1)
    log_z, dtype = (modes.log_z_real, modes.log_z_imag), kernel_dtype(D.dtype)
    return dispatch.convolve_modes(_silenced(u, lengths), (real, imag), log_z, D, dtype, gelu)


def _silenced(u: Tensor, lengths: Tensor) -> Tensor:
    """`silence_padding`, which asks the numbers whether anything is padded; a compiled graph must not ask."""
    if torch.compiler.is_compiling():
        return u.masked_fill(~valid_positions(lengths, u.shape[1])[..., None], 0)
    return silence_padding(u, lengths)


def diagonal_kernel(weight: Tensor, modes: Discrete, length: int, dtype: torch.dtype) -> Tensor:
    """2 Re sum_n C_n z_n^l of independent channels.

    Args:
        weight: C with the gain, real pairs (direction, H, N/2, 2), float64.
        modes: z of each, (H, N/2).
        length: number of lags L.
        dtype: that of the mixer's weights, from which that of the kernel follows.

    Returns:
        (direction, H, L).
    """
    real, imag = weight.unbind(-1)
    return dispatch.diagonal_kernel(real, imag, modes.log_z_real, modes.log_z_imag, length, kernel_dtype(dtype))


def step_modes(u: Tensor, state: Tensor, weight: Tensor, modes: Discrete, D: Tensor) -> tuple[Tensor, Tensor]:
    """One position of independent channels: x' = z x + u, y = 2 Re sum_n C_n x'_n + D u.

    Args:
        u: (B, H).
        state: x: (B, H, N/2), complex.
        weight: C with the gain, real pairs (H, N/2, 2).
        modes: z of each, (H, N/2).
        D: (H,).

    Returns:
        y: (B, H), in u's dtype, and x'.
    """
    z = torch.polar(torch.exp(modes.log_z_real), modes.log_z_imag)
    state = (z * state + u.unsqueeze(-1)).to(state.dtype)
    y = 2 * (torch.view_as_complex(weight.contiguous()) * state).sum(-1).real
    return y.to(u.dtype) + D * u, state


def prefill_modes(u: Tensor, state: Tensor, weight: Tensor, modes: Discrete, D: Tensor) -> tuple[Tensor, Tensor]:
    """`step_modes` over many positions at once, in linear time: u: (B, L, H) -> y: (B, L, H), in u's dtype, and x'."""
    real, imag = weight.unbind(-1)
    y, state = stream(u.to(state.real.dtype), (real, imag), (modes.log_z_real, modes.log_z_imag), state)
    return y.to(u.dtype) + D * u, state


def recur(u: Tensor, lengths: Tensor, state_space: Shared, D: Tensor, *, lag: int) -> Tensor:
    """One state that all channels share, scanned in one or both directions, with the padding silenced.

        x_t = z x_{t-1} + B u_t,   y_t = Re(C0 x_t) + Re(C1 x'_{t + lag}) + D u_t,   x' the state from the end

    Args:
        u: (B, L, H).
        lengths: (B,), valid positions.
        state_space: z, B and C.
        D: (H,).
        lag: where the second direction starts: 0, the present input, or 1, the next one.

    Returns:
        (B, L, H), in u's dtype.
    """
    u = silence_padding(u, lengths)
    log_z, B, C = state_space
    with torch.autocast(u.device.type, enabled=False):
        driven = _project(u.to(kernel_dtype(u.dtype)), B)
        y = _read(scan(driven, log_z), C[0])
        if len(C) == 2:
            later = _read(scan(driven.flip(1), log_z).flip(1), C[1])
            y = y + F.pad(later, (0, 0, 0, lag))[:, lag:]
    return y.to(u.dtype) + D * u


def step_shared(u: Tensor, state: Tensor, state_space: Shared, D: Tensor) -> tuple[Tensor, Tensor]:
    """One position of `recur`, forward: u: (B, H), state: (B, N) -> y: (B, H), next state."""
    log_z, B, C = state_space
    with torch.autocast(u.device.type, enabled=False):
        driven = _project(u.to(state.real.dtype), B)
        state = (torch.exp(log_z) * state + driven).to(state.dtype)
        y = _read(state, C[0])
    return y.to(u.dtype) + D * u, state


def prefill_shared(u: Tensor, state: Tensor, state_space: Shared, D: Tensor) -> tuple[Tensor, Tensor]:
    """`step_shared` over many positions at once: u: (B, L, H), state: (B, N) -> y: (B, L, H), next state."""
    log_z, B, C = state_space
    with torch.autocast(u.device.type, enabled=False):
        driven = _project(u.to(state.real.dtype), B)
        first = (driven[:, 0] + torch.exp(log_z) * state).to(state.dtype)
        states = scan(torch.cat([first[:, None], driven[:, 1:]], dim=1), log_z)
        y = _read(states, C[0])
    return y.to(u.dtype) + D * u, states[:, -1]


def shared_spectrum(eigenvalue: Tensor, dt: Tensor, B: Tensor, C: Tensor, discretisation: str) -> Spectrum:
    """The spectrum of a state that all channels share, as one row.

    Args:
        eigenvalue: (N,), complex, per unit of time.
        dt: units of time a step: (1,), or (1, N) where every mode has its own.
        B: (N, H), complex, without gain.
        C: (direction, H, N), complex, such that y = 2 Re(C x).
        discretisation: as in `Spectrum`.

    Returns:
        What a mode contributes is the matrix c_n b_n, of rank one; its weight is that matrix's size, |c_n| |b_n|.
    """
    with torch.no_grad():
        size = torch.linalg.vector_norm(C, dim=1) * torch.linalg.vector_norm(B, dim=1)  # (direction, N)
        rows = (eigenvalue[None], dt, size[:, None].to(eigenvalue.dtype))
        first, second, third = (row.detach().cpu().numpy() for row in rows)
        return Spectrum(first, second, third, discretisation)


def _project(u: Tensor, B: Tensor) -> Tensor:
    """B u for real u: (..., H) -> (..., N) complex, as one real product."""
    parts = torch.view_as_real(B).to(u.dtype)
    return torch.view_as_complex(torch.einsum("...h,nhp->...np", u, parts).contiguous())


def _read(x: Tensor, C: Tensor) -> Tensor:
    """Re(C x): (..., N) complex -> (..., H), as one real product."""
    parts = torch.view_as_real(C.conj().resolve_conj().to(x.dtype))
    return torch.einsum("...np,hnp->...h", torch.view_as_real(x), parts)


def read_out(y: Tensor, dropout: nn.Dropout, output: nn.Linear) -> Tensor:
    """GELU, dropout and a gated linear unit: (..., H) -> (..., H)."""
    return gate(F.gelu(y), dropout, output)


def gate(y: Tensor, dropout: nn.Dropout, output: nn.Linear) -> Tensor:
    """Dropout and a gated linear unit: (..., H) -> (..., H)."""
    return dispatch.gate(dropout(y), output.weight, output.bias)
