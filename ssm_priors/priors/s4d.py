"""S4D: diagonal state matrices that approximate HiPPO or keep its shape of spectrum.

x_n'(t) = A_n x_n(t) + u(t), with A_n = -1/2 + i times a law of n, the same in every channel.

Source: Gu, Gupta, Goel, Re 2022, "On the Parameterization and Initialization of Diagonal State Space Models",
arXiv 2206.11893; the laws that paper leaves out are those of its public code, github.com/state-spaces/s4.
"""

from __future__ import annotations

import numpy as np

from ssm_priors.priors.hippo import legs_normal_eigenvalues
from ssm_priors.registry import INITS


@INITS.register("s4d-lin")
def s4d_lin(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -1/2 + i pi n: evenly spaced frequencies, a damped Fourier basis.

    Source: Gu et al. 2022, arXiv 2206.11893, equation 9 (S4D-Lin).
    """
    return _same_in_every_channel(-0.5 + 1j * np.pi * np.arange(d_state // 2), channels)


@INITS.register("s4d-inv")
def s4d_inv(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -1/2 + i N/pi (N/(2n+1) - 1): frequencies by an inverse law, close to HiPPO-LegS's own.

    Source: Gu et al. 2022, arXiv 2206.11893, equation 8 (S4D-Inv).
    """
    n = np.arange(d_state // 2)
    return _same_in_every_channel(-0.5 + 1j * d_state / np.pi * (d_state / (2 * n + 1) - 1), channels)


@INITS.register("s4d-inv2")
def s4d_inv2(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -1/2 + i N/pi (N/(n+1) - 1): the inverse law with a slower fall, up to twice S4D-Inv's frequencies.

    Source: Gu et al. 2022, arXiv 2206.11893, its ablation of the inverse law; `diag-inv2` of the public S4 code.
    """
    n = np.arange(d_state // 2)
    return _same_in_every_channel(-0.5 + 1j * d_state / np.pi * (d_state / (n + 1) - 1), channels)


@INITS.register("s4d-quad")
def s4d_quad(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -1/2 + i (2n+1)^2/pi: frequencies by a quadratic law.

    Source: Gu et al. 2022, arXiv 2206.11893, its ablation of the law; `diag-quad` of the public S4 code.
    """
    n = np.arange(d_state // 2)
    return _same_in_every_channel(-0.5 + 1j * (2 * n + 1) ** 2 / np.pi, channels)


@INITS.register("s4d-real")
def s4d_real(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """A_n = -(n+1): real decays only, the diagonal of HiPPO-LegS; no mode oscillates.

    Source: Gu et al. 2022, arXiv 2206.11893, its ablation of real state spaces (S4D-Real).
    """
    return _same_in_every_channel(-np.arange(1, d_state // 2 + 1) + 0j, channels)


@INITS.register("s4d-legs")
def s4d_legs(d_state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """The eigenvalues of HiPPO-LegS's normal part: LegS with its low-rank correction left off.

    Source: Gu et al. 2022, arXiv 2206.11893, section 3.1 (S4D-LegS); Gupta et al. 2022, arXiv 2203.14343.
    """
    return _same_in_every_channel(legs_normal_eigenvalues(d_state), channels)


def _same_in_every_channel(eigenvalues: np.ndarray, channels: int) -> np.ndarray:
    return np.tile(eigenvalues, (channels, 1))
