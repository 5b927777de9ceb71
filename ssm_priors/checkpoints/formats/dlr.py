"""DLR of not-from-scratch: kernel.{Lambda_log_neg_re, Lambda_im, W}, modes per step that all channels share.

    K[l] = Re sum_n W_n exp(l Lambda_n),   Lambda = -Lambda_log_neg_re^2 + i Lambda_im

The square is what the code does, whatever the name says. The modes are no conjugate pairs: Re(w) is half of w +
conj(w), so each is half of a pair with the weight W / 2. Source: the code of Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from ssm_priors.checkpoints.formats.family import Diagonal, Settings, complex_array, directions, fits, real, upper
from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.mixers.dlr import TO_REAL
from ssm_priors.models.protocols import Spectrum
from ssm_priors.registry import FORMATS


@FORMATS.register("not-from-scratch-dlr")
class DlrLayer:
    """DLR of not-from-scratch: kernel.{Lambda_log_neg_re, Lambda_im, W}.

    Source: Gupta, Mehta, Berant 2022, arXiv 2212.00768; Amos et al. 2023, arXiv 2310.02980.
    """

    needs = ("Lambda_log_neg_re", "Lambda_im", "W")
    lacks = ("log_dt",)

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """Re, Im or their sum of the complex kernel; W: (direction, H, N, 2)."""
        settings.refuse("version", "")
        settings.refuse("max_kernel_length", None)
        settings.refuse("hyper_act", None)
        to_real = settings.get("kernel_to_real", "real")
        if to_real not in list(TO_REAL):
            raise BadCheckpoint(f"its layers use kernel_to_real = {to_real}; known: {', '.join(TO_REAL)}")
        decay, angle = real(part["Lambda_log_neg_re"]) ** 2, real(part["Lambda_im"])
        W = complex_array(part["W"]) * (TO_REAL[to_real] / 2)
        directions(W, settings)
        _, channels, modes = W.shape
        fits("Lambda", decay, (modes,))
        fits("Lambda", angle, (modes,))
        eigenvalue, weight = upper(np.tile((-decay + 1j * angle).numpy(), (channels, 1)), W)
        return Diagonal(Spectrum(eigenvalue, np.ones(channels), weight, "none"))
