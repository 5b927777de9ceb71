"""S4 and S4D as the state-spaces repository stores them, in the names of its versions 3 and 4.

    version 4   A = -f(A_real) - i g(A_imag)        dt = h(inv_dt), h softplus in its configurations, exp in its code
    version 3   A = -f(inv_A_real) + i A_imag       dt = exp(log_dt);   S4: inv_w_real, w_imag in place of A

`n_ssm` state spaces (A, B, P) are shared by the channels in turn: channel h takes h mod n_ssm. S4's C is stored as
(1 - Abar^L)^T C once the layer has been called, L in the buffer `l_kernel` (in version 3 also `L`). Its backward kernel
starts one step late, as ours does.

Source: the code of Gu, Goel, Re 2022, arXiv 2111.00396, and Gu et al. 2022, arXiv 2206.11893. Version 3 is also what
not-from-scratch, the code of Amos et al. 2023, arXiv 2310.02980, uses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ssm_priors.checkpoints.formats.family import (
    Diagonal,
    LowRank,
    Settings,
    complex_array,
    directions,
    fits,
    positive,
    real,
    upper,
)
from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.protocols import Spectrum
from ssm_priors.registry import FORMATS


@FORMATS.register("state-spaces-v4")
class Version4:
    """S4 and S4D of state-spaces, version 4: kernel.{inv_dt, C, B, A_real, A_imag}, and P for S4.

    Source: Gu, Goel, Re 2022, arXiv 2111.00396; Gu et al. 2022, arXiv 2206.11893.
    """

    needs = ("inv_dt", "C", "B", "A_real", "A_imag")
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """S4 where there is a P, else S4D."""
        settings.refuse("bandlimit", None)
        settings.refuse("dt_fast", False)
        settings.refuse("is_real", False)
        settings.refuse("swap_channels", False)
        dt = positive(part["inv_dt"], settings.get("dt_transform", "exp"), "dt_transform").numpy()
        decay = positive(part["A_real"], settings.get("real_transform", "exp"), "real_transform")
        imag = positive(part["A_imag"], settings.get("imag_transform", "none"), "imag_transform")
        return _layer(part, (-decay - 1j * imag).numpy(), dt, settings, "zoh")


@FORMATS.register("state-spaces-v3")
class Version3:
    """S4 of state-spaces, version 3, and of not-from-scratch: kernel.{log_dt, C, B, P, inv_w_real, w_imag}.

    Source: Gu, Goel, Re 2022, arXiv 2111.00396.
    """

    needs = ("log_dt", "C", "B", "P", "inv_w_real", "w_imag")
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """S4."""
        if settings.stated("real_type") == "relu":
            raise BadCheckpoint("its S4 layers use real_type = relu, which means another thing there than in S4D")
        return _version_3(part, part["inv_w_real"], part["w_imag"], settings)


@FORMATS.register("state-spaces-v3-diagonal")
class Version3Diagonal:
    """S4D of state-spaces, version 3: kernel.{log_dt, C, B, inv_A_real, A_imag}.

    Source: Gu et al. 2022, arXiv 2206.11893.
    """

    needs = ("log_dt", "C", "B", "inv_A_real", "A_imag")
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """S4D, or S4 where there is a P."""
        return _version_3(part, part["inv_A_real"], part["A_imag"], settings)


def _version_3(part: Mapping[str, Tensor], decay: Tensor, angle: Tensor, settings: Settings) -> nn.Module:
    settings.refuse("bandlimit", None)
    settings.refuse("force_real", False)
    settings.refuse("hyper_act", None)
    decay = positive(decay, settings.get("real_type", "exp"), "real_type")
    dt = positive(part["log_dt"], "exp", "log_dt").numpy()
    return _layer(part, (-decay + 1j * real(angle)).numpy(), dt, settings, "bilinear")


def _layer(
    part: Mapping[str, Tensor], A: np.ndarray, dt: np.ndarray, settings: Settings, discretisation: str
) -> nn.Module:
    """A layer from its continuous A: (n_ssm, N/2) and dt: (H,), (H, 1) or (H, N/2)."""
    C, B = complex_array(part["C"]), complex_array(part["B"])
    directions(C, settings)
    _, channels, modes = C.shape
    fits("dt", dt, (channels,), (channels, 1), (channels, modes))
    dt = dt[:, 0] if dt.shape == (channels, 1) else dt
    A, B = _in_turn("A", A, channels, modes), _in_turn("B", B.reshape(-1, B.shape[-1]), channels, modes)
    if "P" not in part:
        eigenvalue, weight = upper(A, C * B)
        return Diagonal(Spectrum(eigenvalue, dt, weight, _known(settings.get("disc", discretisation))))
    P = complex_array(part["P"])
    if len(P) != 1 or dt.ndim != 1:
        raise BadCheckpoint(f"its S4 layers have rank {len(P)} and dt {dt.shape}; known: rank 1, one dt a channel")
    if (A.real > 0).any():
        raise BadCheckpoint("its S4 layers have modes that grow")
    P = _in_turn("P", P[0], channels, modes)
    length = int(part.get("l_kernel", part.get("L", torch.tensor(0))))
    diagonal, low_rank, into, stored, steps = (torch.from_numpy(array) for array in (A, P, B, C, dt))
    return LowRank(diagonal, low_rank, into, output(diagonal, low_rank, stored, steps, length), steps)


def _in_turn(name: str, array: np.ndarray, channels: int, modes: int) -> np.ndarray:
    """(n_ssm, N/2) -> (H, N/2)."""
    fits(name, array, (len(array), modes))
    if not len(array) or channels % len(array):
        raise BadCheckpoint(f"{len(array)} state spaces cannot be shared by {channels} channels")
    return np.tile(array, (channels // len(array), 1))


def _known(discretisation: str) -> str:
    if discretisation not in ("zoh", "bilinear"):
        raise BadCheckpoint(f"its S4D layers use disc = {discretisation}; known: zoh, bilinear")
    return discretisation


def output(A: Tensor, P: Tensor, stored: Tensor, dt: Tensor, length: int) -> Tensor:
    """The true C of S4 from the one it stores, (1 - Abar^L)^T C.

    Args:
        A, P: (H, N/2), complex128.
        stored: (direction, H, N/2), complex128.
        dt: (H,), float64.
        length: L; 0 where the layer has never been called, so that C is stored itself.

    Returns:
        (direction, H, N/2), complex128.
    """
    if length == 0:
        return stored
    if length < 0:
        raise BadCheckpoint(f"it says that C is stored for a kernel of {length} steps")
    rows = [_output(*row, length) for row in zip(A, P, stored.movedim(0, -1), dt, strict=True)]
    C = torch.stack(rows, dim=1)
    if not bool(C.isfinite().all()):
        raise BadCheckpoint(f"C cannot be told from what is stored, (1 - Abar^{length})^T C")
    return C


def _output(A: Tensor, P: Tensor, stored: Tensor, dt: Tensor, length: int) -> Tensor:
    """One channel of `output`: A, P: (N/2,), stored: (N/2, direction) -> (direction, N/2)."""
    A, P, stored = (torch.cat([part, part.conj()]) for part in (A, P, stored))
    half = dt / 2 * (torch.diag(A) - P[:, None] * P.conj())
    one = torch.eye(len(A), dtype=A.dtype)
    power = torch.linalg.matrix_power(torch.linalg.solve(one - half, one + half), length)
    return torch.linalg.solve((one - power).mT, stored).mT[:, : len(A) // 2]
