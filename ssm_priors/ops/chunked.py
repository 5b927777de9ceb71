"""A diagonal SSM in time linear in L: a convolution inside chunks of T steps, a state from chunk to chunk.

    y_c = u_c M + x_c W,   x_{c+1} = z^T x_c + u_c V

M (T x T) holds the kernel at lags below T and D, V leads a chunk's inputs into the state behind it, W reads the state
that enters. All three are products of real matrices, over all chunks at once; only the states pass from one chunk to
the next, in a scan of L / T positions. A second direction enters the same way, with states from the other side.

The backward is the same three steps from the other end: M, W and V transposed, V and W exchanged, z conjugated. Tables
of z^l are made in float64, where they get their gradients, and only then rounded.
Source: Dao and Gu 2024, arXiv 2405.21060, whose state-space duality this is for a z that never changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.ops.precision import without_autocast
from ssm_priors.ops.scan import doubled

CHUNK = 64
"""Steps T of a chunk: with N = 64, as much work inside chunks as between them."""


class Steps(Protocol):
    """What the chunked form consists of, on some device; P is (directions, N/2, 2), flattened, of real numbers."""

    def project(self, u: Tensor, into: Tensor) -> Tensor:
        """u V: (B, L, H), (H, T, P) -> (B, chunks, H, P)."""
        ...

    def carry(self, local: Tensor, log_hop: Tensor, entering: Tensor, adjoint: bool) -> Tensor:
        """States before each chunk from what chunks add to them.

        Args:
            local: (B, chunks, H, P).
            log_hop: (H, directions, N/2), complex128: log of z^T.
            entering: (B, H, P), what stands before the first chunk of each direction.
            adjoint: whether every direction runs from its other end.
        """
        ...

    def emit(self, u: Tensor, line: Tensor, states: Tensor, out: Tensor) -> Tensor:
        """u M + x W: (B, L, H), (H, 2T - 1), (B, chunks, H, P), (H, P, T) -> (B, L, H); M[j, i] = line[T-1 + i-j]."""
        ...

    def correlate(self, left: Tensor, right: Tensor, T: int) -> Tensor:
        """Sums over all chunks of products: sequences (B, L, H) or states, (H, T or P, T or P), float64."""
        ...


class Tables(NamedTuple):
    """What does not depend on the input, float64."""

    line: Tensor
    """The kernel from lag -(T-1) to T-1, D at lag 0: (H, 2T - 1)."""
    into: Tensor
    """V: (H, T, P)."""
    out: Tensor
    """W: (H, P, T)."""
    log_hop: Tensor
    """log of z^T: (H, directions, N/2), complex128."""


def stream(
    u: Tensor, C: tuple[Tensor, Tensor], log_z: tuple[Tensor, Tensor], state: Tensor, *, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """The recurrence x_t = z x_{t-1} + u_t, y_t = 2 Re sum_n C_n x_t over any number of positions, from any state.

    Another u at t, if it is finite, changes no bit of y before t.

    Args:
        u: (B, L, H), float32 or float64, L >= 1.
        C: real and imaginary part, (H, N/2), float64, gain included.
        log_z: real and imaginary part, (H, N/2), float64, per step.
        state: x before the first position: (B, H, N/2), complex64 or complex128 as u is.
        chunk: steps T of a chunk.

    Returns:
        y: (B, L, H), and the state after the last position.
    """
    T = min(chunk, _power_of_two(u.shape[1]))
    tables = tabulate(torch.complex(*C)[None], torch.complex(*log_z), T)
    y, before = run(u, tables, torch.view_as_real(state.resolve_conj()).flatten(-2), TORCH)
    rest = (u.shape[1] - 1) % T + 1  # steps of the last chunk
    # float64, which no autocast touches, neither here nor in the backward
    added = torch.einsum("bth,htp->bhp", u[:, -rest:].double(), tables.into[:, T - rest :])
    after = torch.exp(rest * torch.complex(*log_z)) * _as_complex(before) + _as_complex(added)
    return y, after.to(state.dtype)


def convolve(
    u: Tensor, C: tuple[Tensor, Tensor], log_z: tuple[Tensor, Tensor], D: Tensor, steps: Steps, *, chunk: int = CHUNK
) -> Tensor:
    """u * K + D u with K[d, h, l] = 2 Re sum_n C_n z_n^l, one- or two-sided, without K.

    Args:
        u: (B, L, H), float32 or float64, and for some `steps` narrower.
        C: real and imaginary part, (direction, H, N/2), float64, gain included.
        log_z: real and imaginary part, (H, N/2), float64, per step.
        D: (H,).
        steps: what computes.
        chunk: steps T of a chunk.

    Returns:
        (B, L, H), in the dtype that `steps` computes in.
    """
    tables = tabulate(torch.complex(*C), torch.complex(*log_z), chunk, D.double())
    return run(u, tables, None, steps)[0]


def tabulate(C: Tensor, log_z: Tensor, T: int, D: Tensor | None = None) -> Tables:
    """The tables of a chunk: C: (direction, H, N/2) and log_z: (H, N/2), complex128, D: (H,), float64."""
    powers = torch.exp(log_z.unsqueeze(-1) * torch.arange(T + 1, device=log_z.device))  # (H, N/2, T + 1)
    weighted = C.unsqueeze(-1) * powers  # (direction, H, N/2, T + 1)
    kernel = 2 * weighted[..., :T].sum(-2).real  # (direction, H, T)
    later = kernel[1, :, : T - 1].flip(-1) if len(C) == 2 else kernel.new_zeros(len(log_z), T - 1)
    line = torch.cat([later, kernel[0]], dim=-1)
    if D is not None:
        line = line + F.pad(D[:, None], (T - 1, T - 1))
    # The first direction leaves a chunk at its end and reads it one lag on; the second has lag 0 at the step before
    into = [powers[..., :T].flip(-1), powers[..., :T]][: len(C)]
    out = [2 * weighted[0, ..., 1:], 2 * weighted[-1, ..., :T].flip(-1)][: len(C)]
    return Tables(
        line,
        torch.view_as_real(torch.stack(into, dim=1)).permute(0, 3, 1, 2, 4).flatten(2),
        torch.view_as_real(torch.stack(out, dim=1).conj().resolve_conj()).transpose(-1, -2).flatten(1, 3),
        (T * log_z).unsqueeze(1).expand(-1, len(C), -1),
    )


def run(u: Tensor, tables: Tables, entering: Tensor | None, steps: Steps) -> tuple[Tensor, Tensor]:
    """The output, and the state before the last chunk: (B, H, P). Without `entering`, states start from nothing."""
    if entering is None:
        entering = u.new_zeros(len(u), *tables.out.shape[:2], dtype=_real(u.dtype))
    y, last = _Chunked.apply(u, *tables, entering, steps)
    return y, last


class _Chunked(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, u: Tensor, line: Tensor, into: Tensor, out: Tensor, log_hop: Tensor, entering: Tensor, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        dtype = entering.dtype
        line, into, out = line.to(dtype), into.to(dtype), out.to(dtype)
        states = steps.carry(steps.project(u, into), log_hop, entering, False)
        ctx.save_for_backward(u, line, into, out, log_hop, states)
        ctx.steps = steps
        return steps.emit(u, line, states, out), states[:, -1].clone()

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        u, line, into, out, log_hop, states = ctx.saved_tensors
        steps, T = ctx.steps, into.shape[1]
        into_states = steps.project(grad, out.mT)
        into_states[:, -1] += grad_last
        # what each chunk adds to the states behind it is answered for by all chunks behind it
        behind = steps.carry(into_states, log_hop.conj(), torch.zeros_like(states[:, 0]), True)
        grad_u = steps.emit(grad, line.flip(-1), behind, into.mT) if ctx.needs_input_grad[0] else None
        hop = torch.exp(log_hop).flatten(1).conj()  # (H, P / 2)
        grad_hop = (_as_complex(states).conj() * _as_complex(behind)).sum((0, 1), dtype=hop.dtype) * hop
        first = _as_complex(into_states[:, 0]) + hop.to(_complex(states.dtype)) * _as_complex(behind[:, 0])
        return (
            grad_u,
            _sum_of_diagonals(steps.correlate(u, grad, T)),
            steps.correlate(u, behind, T),
            steps.correlate(states, grad, T),
            grad_hop.view_as(log_hop),
            torch.view_as_real(first).flatten(-2),
            None,
        )


class _Torch:
    """The steps by torch's operations, on any device."""

    def project(self, u: Tensor, into: Tensor) -> Tensor:
        return torch.einsum("bcth,htp->bchp", _split(u, into.shape[1]), into)

    def carry(self, local: Tensor, log_hop: Tensor, entering: Tensor, adjoint: bool) -> Tensor:
        driven, first = (_as_complex(part).unflatten(-1, log_hop.shape[1:]) for part in (local, entering))
        sides = [
            _before(driven[..., side, :], log_hop[:, side], first[..., side, :], (side == 1) != adjoint)
            for side in range(log_hop.shape[1])
        ]
        return torch.view_as_real(torch.stack(sides, dim=-2)).flatten(-3)

    def emit(self, u: Tensor, line: Tensor, states: Tensor, out: Tensor) -> Tensor:
        inside = line.unfold(-1, out.shape[-1], 1).flip(-2)  # (H, T, T)
        y = torch.einsum("bcth,hts->bcsh", _split(u, out.shape[-1]), inside)
        return (y + torch.einsum("bchp,hps->bcsh", states, out)).flatten(1, 2)[:, : u.shape[1]]

    def correlate(self, left: Tensor, right: Tensor, T: int) -> Tensor:
        left, right = (each.transpose(2, 3) if each.dim() == 4 else _split(each, T) for each in (left, right))
        return torch.einsum("bcih,bcjh->hij", left, right).double()


TORCH: Steps = _Torch()


def _split(u: Tensor, T: int) -> Tensor:
    """(B, L, H) -> (B, chunks, T, H), with zeros after the end."""
    missing = -u.shape[1] % T
    return F.pad(u, (0, 0, 0, missing)).unflatten(1, (-1, T))


def _before(local: Tensor, log_hop: Tensor, first: Tensor, from_the_end: bool) -> Tensor:
    """States before each chunk: (B, chunks, H, N/2); x_0 = first, x_{c+1} = z^T x_c + local_c."""
    if from_the_end:
        local = local.flip(1)
    states = doubled(torch.cat([first[:, None], local[:, :-1]], dim=1), log_hop)
    return states.flip(1) if from_the_end else states


def _sum_of_diagonals(inside: Tensor) -> Tensor:
    """The adjoint of line -> M: (H, T, T) -> (H, 2T - 1), the sum of every diagonal."""
    channels, T, _ = inside.shape
    rows = F.pad(inside.flip(-2), (0, T)).flatten(1)[:, : T * (2 * T - 1)]  # each row one to the right of the last
    return rows.view(channels, T, 2 * T - 1).sum(1)


def _as_complex(pairs: Tensor) -> Tensor:
    """(..., P) -> (..., P / 2)."""
    return torch.view_as_complex(pairs.contiguous().unflatten(-1, (-1, 2)))


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def _real(dtype: torch.dtype) -> torch.dtype:
    """In which sums are taken."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
