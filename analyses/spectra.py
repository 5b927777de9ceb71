"""The spectra of a model's state spaces: eigenvalues as they stand, and what they mean per step.

log z = dt A (or its bilinear twin)    decay rate = -ln |z|    timescale = 1 / decay rate    frequency = arg z / 2 pi
decay density = weighted histogram of log10 of the decay rates, weights |C B|, so that a whole axis integrates to 1
response(f)   = sum_lag kernel[lag] exp(-2 pi i f lag)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from ssm_priors.analyses.kernels import impulse_response
from ssm_priors.analyses.models import HasMixers, Source, Subject, subject
from ssm_priors.analyses.schema import DIRECTIONS, check, index, labelled, split_complex
from ssm_priors.errors import BadConfig
from ssm_priors.models.protocols import HasKernel, HasSpectrum, Spectrum
from ssm_priors.priors.response import decay_rate, frequency, frequency_response, timescale

MODES = ("layer", "channel", "mode")
DECADES = (-8, 2)
"""log10 of the decay rates that a density spans, 1/step: from what float32 can just tell from 1 to gone in a step."""


def per_step(spectrum: Spectrum) -> dict[str, np.ndarray]:
    """decay_rate (1/step), timescale (steps) and frequency (cycles/step) of every mode, each (H, N/2), float64."""
    log_z, _ = spectrum.per_step()
    return {"decay_rate": decay_rate(log_z), "timescale": timescale(log_z), "frequency": frequency(log_z)}


def spectra(source: Source | HasMixers) -> xr.Dataset:
    """Spectra of all layers.

    Args:
        source: a checkpoint (its trained weights) or a model.

    Returns:
        eigenvalue_real, eigenvalue_imag (1/unit of time), z_real, z_imag (the same per step), decay_rate (1/step),
        timescale (steps) and frequency (cycles/step), each (layer, channel, mode); weight |C B| (layer, channel,
        direction, mode); dt (layer, channel), or (layer, channel, mode) where every mode has its own. Channels that
        share one state make one row of it. The attribute `discretisation` names what leads from eigenvalues to steps.

    Raises:
        NotThere: the model's mixer is no state space.
    """
    looked_at = subject(source)
    found = _spectra(looked_at)
    weight = np.stack([np.abs(spectrum.weight).swapaxes(0, 1) for spectrum in found])
    steps = [per_step(spectrum) for spectrum in found]
    variables = {
        **split_complex("eigenvalue", MODES, np.stack([spectrum.eigenvalue for spectrum in found])),
        **split_complex("z", MODES, np.exp(np.stack([spectrum.per_step()[0] for spectrum in found]))),
        **{name: labelled(name, MODES, np.stack([step[name] for step in steps])) for name in steps[0]},
        "weight": labelled("weight", ["layer", "channel", "direction", "mode"], weight),
        "dt": labelled("dt", MODES[: 1 + found[0].dt.ndim], np.stack([spectrum.dt for spectrum in found])),
    }
    layers, channels, directions, modes = weight.shape
    coords = (
        index("layer", range(layers))
        | index("channel", range(channels))
        | index("direction", DIRECTIONS[:directions])
        | index("mode", range(modes))
    )
    attrs = looked_at.origin | {"discretisation": found[0].discretisation}
    return check(xr.Dataset(variables, coords, attrs))


def decay_density(source: Source | HasMixers, per_decade: int = 10, decades: tuple[int, int] = DECADES) -> xr.Dataset:
    """How a layer's weight |C B| is spread over decay rates: a weighted histogram on a log axis, not smoothed.

    Args:
        source: a checkpoint (its trained weights) or a model.
        per_decade: bins a decade.
        decades: log10 of the lowest and of the highest decay rate, 1/step; bins lie alike for all models.

    Returns:
        decay_density(layer, rate), 1/decade, over all channels, directions and modes of a layer; its integral over the
        axis is 1 - outside(layer), the share of the weight that lies beyond the axis. NaN for a layer without weight.

    Raises:
        NotThere: the model's mixer is no state space.
        BadConfig: no bins.
    """
    if per_decade < 1 or decades[0] >= decades[1]:
        raise BadConfig(f"{per_decade} bins a decade from 1e{decades[0]} to 1e{decades[1]} 1/step: that is no axis")
    looked_at = subject(source)
    edges = np.linspace(*decades, (decades[1] - decades[0]) * per_decade + 1)
    density = np.stack([_histogram(spectrum, edges) for spectrum in _spectra(looked_at)])
    outside = np.clip(1 - density.sum(-1) / per_decade, 0, 1)
    variables = {
        "decay_density": labelled("decay_density", ["layer", "rate"], density),
        "outside": labelled("outside", ["layer"], outside),
    }
    coords = index("layer", range(len(density))) | index("rate", 10 ** ((edges[1:] + edges[:-1]) / 2))
    return check(xr.Dataset(variables, coords, looked_at.origin | {"density": "weighted histogram, weights |C B|"}))


def _histogram(spectrum: Spectrum, edges: np.ndarray) -> np.ndarray:
    weight = np.abs(spectrum.weight).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a mode that grows or stands still lies beyond the axis
        rates = np.log10(per_step(spectrum)["decay_rate"])
    counted = np.where(np.isnan(rates), -np.inf, rates)
    inside = (counted >= edges[0]) & (counted <= edges[-1])
    share, _ = np.histogram(counted[inside], edges, weights=weight[inside])
    total = weight.sum()
    return share / (total or np.nan) / (edges[1] - edges[0])


def response(source: Source | HasMixers, points: int = 257, length: int = 16_384) -> xr.Dataset:
    """What a kernel does to a sinusoid of each frequency from 0 to 0.5 cycles/step.

    A state space whose modes all decay is asked in closed form, for the endless kernel; anything else by the Fourier
    sum of its first `length` lags. The attribute `response_of` says which.

    Args:
        source: a checkpoint (its trained weights) or a model.
        points: frequencies, evenly spaced, both ends included.
        length: lags that are summed where there is no closed form.

    Returns:
        response_real, response_imag and gain (layer, channel, direction, cycle). As everywhere, a backward kernel is
        indexed by its distance.

    Raises:
        NotThere: the model's mixer is no convolution.
        BadConfig: fewer than 2 frequencies, or no lags.
    """
    if points < 2 or length < 1:
        raise BadConfig(f"{points} frequencies of {length} lags: at least 2 frequencies and 1 lag are needed")
    looked_at = subject(source)
    mixers = looked_at.mixers(HasKernel, "frequency response", "a convolution")
    cycles = np.linspace(0, 0.5, points)
    closed = all(isinstance(mixer, HasSpectrum) and _decays(mixer.spectrum()) for mixer in mixers)
    found = [_closed_form(mixer.spectrum(), cycles) if closed else _fourier(mixer, cycles, length) for mixer in mixers]
    values = np.stack(found).swapaxes(1, 2)
    axes = ["layer", "channel", "direction", "cycle"]
    variables = split_complex("response", axes, values) | {"gain": labelled("gain", axes, np.abs(values))}
    layers, channels, directions, _ = values.shape
    coords = (
        index("layer", range(layers))
        | index("channel", range(channels))
        | index("direction", DIRECTIONS[:directions])
        | index("cycle", cycles)
    )
    which = "endless kernel, closed form" if closed else f"Fourier sum of the first {length} lags"
    return check(xr.Dataset(variables, coords, looked_at.origin | {"response_of": which}))


def _decays(spectrum: Spectrum) -> bool:
    return bool((spectrum.per_step()[0].real < 0).all())


def _closed_form(spectrum: Spectrum, cycles: np.ndarray) -> np.ndarray:
    """(direction, H, F), complex."""
    log_z, gain = spectrum.per_step()
    found = frequency_response(spectrum.weight * gain, log_z, cycles)
    found[1:] *= np.exp(-2j * np.pi * cycles)  # a backward kernel begins at a distance of one step
    return found


def _fourier(mixer: Any, cycles: np.ndarray, length: int) -> np.ndarray:
    """(direction, H, F), complex: a transform long enough to pass through every frequency asked for."""
    half = len(cycles) - 1
    kernel = impulse_response(mixer, length)
    folded = np.pad(kernel, ((0, 0), (0, 0), (0, -length % (2 * half)))).reshape(*kernel.shape[:2], -1, 2 * half)
    return np.fft.rfft(folded.sum(-2), axis=-1)  # exp(-2 pi i f lag) repeats after 2 half lags at these frequencies


def _spectra(looked_at: Subject) -> list[Spectrum]:
    return [mixer.spectrum() for mixer in looked_at.mixers(HasSpectrum, "spectra", "a state space")]
