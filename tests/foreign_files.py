"""Checkpoints as other public code writes them, by hand, in float64, of state spaces whose kernels are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import normal
from torch import Tensor

from ssm_priors.checkpoints.foreign import ForeignCheckpoint
from ssm_priors.errors import BadCheckpoint

H, N, L = 4, 3, 50


def pairs(array: Tensor) -> Tensor:
    return torch.view_as_real(array.resolve_conj()).clone()


def system(n_ssm: int = H, directions: int = 2) -> dict[str, Tensor]:
    """A state space in this package's convention: A and P, B (n_ssm, N/2), C (direction, H, N/2), dt (H,)."""
    part = normal(3, n_ssm, N, 2, seed=1)
    complex_part = torch.view_as_complex(part)
    A = -0.2 - complex_part[0].real.abs() + 1j * (1 + complex_part[0].imag.abs() * 4)
    C = torch.view_as_complex(normal(directions, H, N, 2, seed=2))
    dt = torch.tensor([0.05, 0.1, 0.02, 0.2], dtype=torch.float64)
    return {"A": A, "P": complex_part[1], "B": complex_part[2], "C": C, "dt": dt}


def tied(parts: dict[str, Tensor]) -> list[Tensor]:
    """A, P, B for every channel: channel h has that of h mod n_ssm."""
    return [torch.stack([parts[name][h % len(parts[name])] for h in range(H)]) for name in ("A", "P", "B")]


def stored_output(parts: dict[str, Tensor], length: int) -> Tensor:
    """(1 - Abar^length)^T C, with dense matrices."""
    A, P, _ = tied(parts)
    rows = []
    for h in range(H):
        a, p = torch.cat([A[h], A[h].conj()]), torch.cat([P[h], P[h].conj()])
        half = parts["dt"][h] / 2 * (torch.diag(a) - torch.outer(p, p.conj()))
        one = torch.eye(2 * N, dtype=a.dtype)
        bar = torch.linalg.inv(one - half) @ (one + half)
        power = one
        for _ in range(length):
            power = power @ bar
        C = torch.cat([parts["C"][:, h], parts["C"][:, h].conj()], -1)
        rows.append((C @ (one - power))[:, :N])
    return torch.stack(rows, 1)


INVERSE = {"exp": torch.log, "softplus": lambda x: torch.log(torch.expm1(x)), "none": lambda x: x}


def version_4(parts: dict[str, Tensor], dt: str = "exp", real: str = "exp", l_kernel: int = 0, low_rank: bool = True):
    """As its code stores them: of each pair the member with a negative imaginary part, A_imag positive."""
    state = {
        "inv_dt": INVERSE[dt](parts["dt"])[:, None],
        "A_real": INVERSE[real](-parts["A"].real),
        "A_imag": parts["A"].imag,
        "B": pairs(parts["B"].conj())[None],
        "C": pairs((stored_output(parts, l_kernel) if l_kernel else parts["C"]).conj()),
    }
    if low_rank:
        state |= {"P": pairs(parts["P"].conj())[None], "l_kernel": torch.tensor(l_kernel)}
    return state


def version_3(parts: dict[str, Tensor], l_kernel: int = 0):
    """As its code stores them: A's sign as it is, and here the member with a positive imaginary part."""
    return {
        "log_dt": parts["dt"].log(),
        "inv_w_real": (-parts["A"].real).log(),
        "w_imag": parts["A"].imag,
        "B": pairs(parts["B"])[None],
        "P": pairs(parts["P"])[None],
        "C": pairs(stored_output(parts, l_kernel) if l_kernel else parts["C"]),
        "L": torch.tensor(l_kernel),
    }


def version_3_diagonal(parts: dict[str, Tensor]):
    state = {"log_dt": parts["dt"].log(), "inv_A_real": (-parts["A"].real).log(), "A_imag": -parts["A"].imag}
    return state | {"B": pairs(parts["B"].conj()), "C": pairs(parts["C"].conj())}


def standalone(parts: dict[str, Tensor]):
    A, _, B = tied(parts)
    state = {"log_dt": parts["dt"].log(), "log_A_real": (-A.real).log(), "A_imag": A.imag}
    return state | {"C": pairs(parts["C"][0] * B)}


def dlr():
    state = {"Lambda_log_neg_re": normal(N, seed=4), "Lambda_im": normal(N, seed=5)}
    return state | {"W": normal(2, H, N, 2, seed=6)}


def mamba(channels: int = 5, states: int = 4):
    return {
        "A_log": normal(channels, states).abs(),
        "dt_proj.bias": normal(channels, seed=1) - 3,
        "D": torch.ones(channels),
    }


def saved(path: Path, layers: dict[str, dict[str, Tensor]] | dict[str, Tensor], **options: Any) -> Path:
    """A Lightning checkpoint with these layers, or one, and the options of its layers if there are any."""
    if isinstance(next(iter(layers.values())), Tensor):
        layers = {"model.layers.0.layer.kernel": layers}
    state = {f"{layer}.{name}": value for layer, part in layers.items() for name, value in part.items()}
    stated = {"hyper_parameters": {"model": {"layer": options}}} if options else {}
    torch.save({"state_dict": state, **stated}, path)
    return path


def refused(path: Path, **how: Any) -> str:
    with pytest.raises(BadCheckpoint) as refusal:
        ForeignCheckpoint.read(path, **how)
    assert path.name in str(refusal.value)
    return str(refusal.value)


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Equal to a tolerance relative to the largest value."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
