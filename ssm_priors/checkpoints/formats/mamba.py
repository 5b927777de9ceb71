"""Mamba, whose dt, B and C depend on the input: it has no kernel, and a spectrum only at a stated dt.

    A = -exp(A_log), real;   dt = softplus(projection of the input + bias)

What is shown is dt = softplus(bias): the step of an input whose projection is zero. Weights C B have no value without
an input, and are NaN. Source: Gu, Dao 2023, arXiv 2312.00752; version 2: Dao, Gu 2024, arXiv 2405.21060.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from ssm_priors.checkpoints.formats.family import Settings, fits, positive
from ssm_priors.models.protocols import Spectrum
from ssm_priors.registry import FORMATS


class Selective(nn.Module):
    """A diagonal state space whose step the input chooses.

    Args:
        A: (H, N), real and negative, per unit of time.
        bias: (H,), of dt before softplus.
    """

    def __init__(self, A: np.ndarray, bias: Tensor):
        super().__init__()
        self._A = A
        self._dt: np.ndarray = positive(bias, "softplus", "dt").numpy()

    def spectrum(self, dt: float | None = None) -> Spectrum:
        """Eigenvalues at one step size; weights are NaN.

        Args:
            dt: units of time a step, for all channels; None takes softplus(bias), each channel's step without input.
        """
        steps = self._dt if dt is None else np.full(len(self._A), float(dt))
        weight = np.full((1, *self._A.shape), complex(np.nan, np.nan))
        return Spectrum(self._A.astype(np.complex128), steps, weight, "zoh")


@FORMATS.register("mamba")
class Mamba:
    """Mamba: mixer.{A_log, dt_proj.bias}, as in Hugging Face's safetensors and in the original files.

    Source: Gu, Dao 2023, arXiv 2312.00752.
    """

    needs = ("A_log", "dt_proj.bias")
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """A_log: (H, N)."""
        A, bias = positive(part["A_log"], "exp", "A_log"), part["dt_proj.bias"]
        fits("A_log", A, (len(A), A.shape[-1]))
        fits("dt_proj.bias", bias, (len(A),))
        return Selective(-A.numpy(), bias)


@FORMATS.register("mamba2")
class Mamba2:
    """Mamba-2: mixer.{A_log, dt_bias}, one eigenvalue a head.

    Source: Dao, Gu 2024, arXiv 2405.21060.
    """

    needs = ("A_log", "dt_bias")
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """A_log: (heads,)."""
        A, bias = positive(part["A_log"], "exp", "A_log"), part["dt_bias"]
        fits("A_log", A, (A.numel(),))
        fits("dt_bias", bias, (A.numel(),))
        return Selective(-A.numpy()[:, None], bias)
