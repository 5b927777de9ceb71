"""The standalone S4D: kernel.{log_dt, C, log_A_real, A_imag}, A = -exp(log_A_real) + i A_imag, B = 1, zero-order hold.

Source: the one-file example of Gu et al. 2022, arXiv 2206.11893.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from ssm_priors.checkpoints.formats.family import Diagonal, Settings, complex_array, fits, positive, real, upper
from ssm_priors.models.protocols import Spectrum
from ssm_priors.registry import FORMATS


@FORMATS.register("s4d-standalone")
class Standalone:
    """The one-file S4D of state-spaces: kernel.{log_dt, C, log_A_real, A_imag}.

    Source: Gu et al. 2022, arXiv 2206.11893.
    """

    needs = ("log_dt", "C", "log_A_real", "A_imag")
    lacks = ("B",)

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """One direction; C: (H, N/2, 2)."""
        C = complex_array(part["C"])
        decay, angle = positive(part["log_A_real"], "exp", "log_A_real"), real(part["A_imag"])
        dt = positive(part["log_dt"], "exp", "log_dt").numpy()
        fits("A", decay, C.shape)
        fits("A", angle, C.shape)
        fits("log_dt", dt, C.shape[:1])
        eigenvalue, weight = upper((-decay + 1j * angle).numpy(), C[None])
        return Diagonal(Spectrum(eigenvalue, dt, weight, "zoh"))
