"""How far a model's state spaces and kernels are from what theory prescribes, layer by layer.

A prior places modes; it prescribes neither dt nor the weights C. So it is held against a layer at the layer's own dt
and weights: channel by channel, modes in ascending order of (|Im A|, -Re A) on both sides, the prior's k-th mode takes
the weight of the layer's k-th (a prior with another number of modes takes the weights at the same ranks). What remains
is where modes lie, so a layer whose eigenvalues are the prior's has distance 0, whatever its C. Both sides go through
the layer's discretisation. Inits that differ in frequency alone, as most of S4D's do, have the same decay rates: then
the decay distance is 0 too, and the other numbers tell them apart.

    decay distance     = W1(log10 decay rate of the layer's modes, of the prior's), weights |C B|, channels pooled
    frequency distance = W1(frequency of the layer's modes, of the prior's), the same, frequencies folded into [0, 0.5]
    best timescale     = argmin_c decay distance to the prior at c dt

Basis kernels of a channel with step dt, at lags l = 0 .. L-1: of a diagonal init Re z^l and Im z^l, mode after mode
from the slowest frequency on (an Im that is 0 is left out); of a HiPPO family the components of Ad^l Bd, in its own
order. With P the orthogonal projection onto the first n of them (directions below 1e-10 of the strongest are rounding),

    captured         = sum_h |P_h K_h|^2 / sum_h |K_h|^2
    principal angles = between span(K_1, .., K_r) and span(P K_1, .., P K_r), K_i the r leading directions of the
                       layer's kernels, each channel scaled to energy 1 and projected with its own P_h. Where all
                       channels have one dt, these are the principal angles between the kernels' leading subspace and
                       the prior's span.

A mixer that has no dt of its own (DLR and LRU, whose modes are given per step; kernels that are free parameters) takes
the best fit in its place: the dt with the least decay distance or, for kernels without a spectrum, the one dt that
captures most; its best timescale is that dt. Under zero-order hold dt moves all decay rates alike on their log axis, so
the best timescale is the median of the difference of the two quantile functions; else a grid over log10 is searched,
then Brent's method around its best point.

Source: W1 is Ramdas, Garcia, Cuturi 2015, arXiv 1509.02237; HiPPO bases: Gu et al. 2022, arXiv 2206.12037.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.linalg import subspace_angles
from scipy.optimize import minimize_scalar

from ssm_priors.analyses.bases import Prior, kernel_basis, prior_named
from ssm_priors.analyses.kernels import by_distance, impulse_response
from ssm_priors.analyses.models import HasMixers, Source, Subject, listed, origin, stages_of, subject
from ssm_priors.analyses.schema import DIRECTIONS, NULL, check, index, labelled
from ssm_priors.errors import BadConfig, NotThere
from ssm_priors.models.protocols import HasKernel, HasSpectrum, Spectrum
from ssm_priors.priors.discretise import discretise, log_uniform_dt
from ssm_priors.priors.random_diagonal import random_diagonal
from ssm_priors.priors.response import decay_rate, frequency, kernel
from ssm_priors.seeds import numpy_stream

LEAST_RATE = 1e-8
"""1/step: a mode that decays less, or grows, counts as one of this decay rate."""
FAINTEST = 1e-3
"""Of the strongest direction of a layer's kernels: those below have no principal angle."""
FREE_STATE, FREE_BASIS = 64, 16
"""State size N and first n basis kernels of the priors that a mixer without modes is held against."""
_MULTIPLIERS = np.linspace(-3, 3, 13)
"""log10 of the multipliers of dt that the search begins with."""
_STEP_SIZES = np.linspace(-4, 1, 21)
"""log10 of dt where there is none to multiply."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every layer."""

    priors: tuple[str, ...]
    length: int
    """Lags L of the kernels."""
    basis: int | None = None
    """First n basis kernels; None takes all of the prior's state, and 16 of 64 where the mixer has no state."""
    rank: int = 8
    """Leading directions of a layer's kernels that principal angles are taken of."""
    channels: int | tuple[int, ...] = 32
    """Channels whose kernels are projected: so many, evenly spaced, or these; modes are always those of all."""
    seed: int = 0
    """Of priors that are drawn, and of the null."""

    def __post_init__(self) -> None:
        if not self.priors:
            raise BadConfig("no prior to compare with was given; see: ssmp list inits")
        count = self.channels if isinstance(self.channels, int) else len(self.channels)
        if min(self.length, self.rank, count, 1 if self.basis is None else self.basis) < 1:
            raise BadConfig("length, basis, rank and channels must all be 1 or more")


@dataclass(frozen=True, slots=True)
class _Layer:
    position: int
    spectrum: Spectrum | None
    rows: np.ndarray | None
    """Kernels of the channels looked at: (direction, channel, L), each from its own first lag."""
    chosen: np.ndarray
    """Those channels."""

    @property
    def state(self) -> int:
        return FREE_STATE if self.spectrum is None else 2 * self.spectrum.eigenvalue.shape[1]


def distances(source: Source | HasMixers, question: Question) -> xr.Dataset:
    """One model against a set of priors.

    Args:
        source: a checkpoint (its trained weights) or a model.
        question: the priors and what to compute.

    Returns:
        decay_distance (decades), frequency_distance (cycles/step), best_timescale and captured, each (layer, prior),
        and principal_angle (layer, prior, angle), radians. What the mixer cannot show is left out: without a spectrum
        the first two, without kernels the last two. NaN for a layer without weight or kernels.

    Raises:
        NotThere: the mixers have neither spectrum nor kernels.
        UnknownName: no such prior.
        BadConfig: more basis kernels than the prior has.
    """
    looked_at = subject(source)
    return _dataset([_layers(looked_at, question)], question).isel(stage=0).assign_attrs(looked_at.origin)


def distances_of_stages(source: Source, question: Question) -> xr.Dataset:
    """As `distances`, of the checkpoint's own init, of its trained weights, and of a null, along `stage`.

    The null "random" is the init (of a foreign checkpoint, which has none, the trained weights) with every mode drawn
    anew by the init of that name, at the same dt and weights; for kernels without a spectrum, those kernels with a
    random sign at every lag.
    """
    stages = {stage: _layers(subject(model), question) for stage, model in stages_of(source).items()}
    stages[NULL] = [_null(layer, question) for layer in next(iter(stages.values()))]
    found = _dataset(list(stages.values()), question).assign_coords(index("stage", list(stages)))
    return check(found.assign_attrs(origin(source, listed(stages))))


def best_fits(source: Source | HasMixers, prior: str, length: int, channels: Sequence[int]) -> xr.Dataset:
    """The nearest that a prior can come to single kernels: their projections P K, least squares over the lags.

    Args:
        source: a checkpoint (its trained weights) or a model.
        prior: its name.
        length: number of lags L.
        channels: positions of those looked at, in every layer.

    Returns:
        kernel(layer, channel, direction, lag), and the attribute `prior`.

    Raises:
        NotThere: the model's mixer is no convolution.
        UnknownName: no such prior.
    """
    looked_at = subject(source)
    looked_at.mixers(HasKernel, "kernels", "a convolution")
    question = Question((prior,), length, channels=tuple(channels))
    values = np.stack([_fit(layer, question) for layer in _layers(looked_at, question)])
    coords = (
        index("layer", range(len(values)))
        | index("channel", channels)
        | index("direction", DIRECTIONS[: values.shape[2]])
        | index("lag", range(length))
    )
    kernel = labelled("kernel", ["layer", "channel", "direction", "lag"], values)
    return check(xr.Dataset({"kernel": kernel}, coords, looked_at.origin | {"prior": prior}))


def _fit(layer: _Layer, question: Question) -> np.ndarray:
    """(channel, direction, L), indexed by the distance in steps."""
    assert layer.rows is not None
    _, bases = _placed(layer, question.priors[0], question)
    return by_distance(_inside(layer.rows, bases)).swapaxes(0, 1)


def _dataset(stages: Sequence[Sequence[_Layer]], question: Question) -> xr.Dataset:
    answers = [[[_compare(layer, name, question) for name in question.priors] for layer in stage] for stage in stages]
    axes = ["stage", "layer", "prior", "angle"]
    variables = {}
    for name in answers[0][0][0]:
        values = np.array([[[answer[name] for answer in layer] for layer in stage] for stage in answers])
        variables[name] = labelled(name, axes[: values.ndim], values)
    coords = index("layer", range(len(stages[0]))) | index("prior", question.priors)
    if "principal_angle" in variables:
        coords |= index("angle", range(question.rank))
    first = stages[0][0]
    basis = question.basis or (FREE_BASIS if first.spectrum is None else "all")
    asked = {"length": question.length, "basis": basis, "channels_projected": len(first.chosen), "seed": question.seed}
    return check(xr.Dataset(variables, coords, asked))


def _layers(looked_at: Subject, question: Question) -> list[_Layer]:
    found = [_layer(position, mixer, question) for position, mixer in enumerate(looked_at.model.mixers)]
    for layer, mixer in zip(found, looked_at.model.mixers, strict=True):
        if layer.spectrum is None and layer.rows is None:
            raise NotThere(f"this model has neither spectra nor kernels: its mixer is a {type(mixer).__name__}")
    return found


def _layer(position: int, mixer: Any, question: Question) -> _Layer:
    spectrum = mixer.spectrum() if isinstance(mixer, HasSpectrum) else None
    if not isinstance(mixer, HasKernel):
        return _Layer(position, spectrum, None, np.arange(0))
    found = impulse_response(mixer, question.length + 1)
    chosen = _chosen(question.channels, found.shape[1])
    rows = [found[0, chosen, :-1], *found[1:, chosen, 1:]]  # a backward kernel begins at a distance of one step
    return _Layer(position, spectrum, np.stack(rows), chosen)


def _chosen(channels: int | tuple[int, ...], there: int) -> np.ndarray:
    if isinstance(channels, int):
        return np.unique(np.linspace(0, there - 1, channels).round().astype(int))
    return np.array(channels)


def _null(layer: _Layer, question: Question) -> _Layer:
    rng = numpy_stream(question.seed, "null", layer.position)
    if layer.spectrum is None:
        assert layer.rows is not None
        return replace(layer, rows=layer.rows * rng.choice([-1.0, 1.0], layer.rows.shape))
    channels, modes = layer.spectrum.eigenvalue.shape
    drawn = random_diagonal(2 * modes, channels, rng)
    if layer.spectrum.discretisation == "none":
        drawn = drawn * log_uniform_dt(channels, 1e-3, 1e-1, rng)[:, None]
    spectrum = replace(layer.spectrum, eigenvalue=drawn)
    if layer.rows is None:
        return replace(layer, spectrum=spectrum)
    log_z, gain = (part[layer.chosen] for part in spectrum.per_step())
    weight = spectrum.weight[:, layer.chosen] * gain
    each = [kernel(weight[:, h : h + 1], log_z[h : h + 1], layer.rows.shape[-1]) for h in range(len(layer.chosen))]
    return replace(layer, spectrum=spectrum, rows=np.concatenate(each, axis=1))


def _compare(layer: _Layer, name: str, question: Question) -> dict[str, Any]:
    answer, bases = _placed(layer, name, question)
    return answer if layer.rows is None else answer | _project(layer.rows, list(bases), question.rank)


def _placed(layer: _Layer, name: str, question: Question) -> tuple[dict[str, Any], Iterator[np.ndarray]]:
    """What a prior comes to at a layer: the distances of its modes, and the basis of each channel looked at."""
    channels = 1 if layer.spectrum is None else len(layer.spectrum.eigenvalue)
    prior = prior_named(name, layer.state, channels, numpy_stream(question.seed, "prior", name, layer.position))
    if layer.spectrum is None:
        assert layer.rows is not None
        best, basis = _placed_by_kernels(layer.rows, prior, question)
        return {"best_timescale": best}, (basis for _ in layer.chosen)
    answer, dt = _compare_modes(layer.spectrum, prior)
    rule = _rule(layer.spectrum)
    return answer, (kernel_basis(prior, h, dt[h], rule, question.length, question.basis) for h in layer.chosen)


def _placed_by_kernels(rows: np.ndarray, prior: Prior, question: Question) -> tuple[float, np.ndarray]:
    """The dt at which the prior captures most of the kernels, and its basis there."""

    def basis(log_dt: float) -> np.ndarray:
        return kernel_basis(prior, 0, 10**log_dt, "zoh", question.length, question.basis or FREE_BASIS)

    best = _search(lambda log_dt: -_captured(rows, basis(log_dt)), _STEP_SIZES)
    return 10**best, basis(best)


# -- modes


def _compare_modes(spectrum: Spectrum, prior: Prior) -> tuple[dict[str, Any], np.ndarray]:
    """Distances of the modes, and the dt (H,) or (H, M) that the prior was taken at."""
    log_z, weight, dt = _in_order(spectrum)
    rates, cycles = np.log10(np.maximum(decay_rate(log_z), LEAST_RATE)), frequency(log_z)
    count = prior.eigenvalue.shape[1]
    theirs, steps = _at_ranks(weight, count), _steps_at_ranks(dt, count)

    def modes(log_multiplier: float) -> np.ndarray:
        return discretise(_rule(spectrum), prior.eigenvalue, steps * 10**log_multiplier)[0]

    def decay_distance(log_multiplier: float) -> float:
        placed = np.log10(np.maximum(decay_rate(modes(log_multiplier)), LEAST_RATE))
        return _wasserstein(rates, placed, weight, theirs)

    if not weight.any():
        best = np.nan
    elif _rule(spectrum) == "zoh":
        best = _best_shift(rates, np.log10(np.maximum(decay_rate(modes(0.0)), LEAST_RATE)), weight, theirs)
    else:
        best = _search(decay_distance, _MULTIPLIERS)
    taken = best if spectrum.discretisation == "none" and weight.any() else 0.0
    answer = {
        "decay_distance": decay_distance(taken),
        "frequency_distance": _wasserstein(cycles, frequency(modes(taken)), weight, theirs),
        "best_timescale": 10**best,
    }
    return answer, spectrum.dt * 10**taken


def _in_order(spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log z, |C B| summed over directions, and dt of every mode, each (H, N/2), by ascending frequency, then decay."""
    log_z, _ = spectrum.per_step()
    order = np.lexsort((-spectrum.eigenvalue.real, np.abs(spectrum.eigenvalue.imag)), axis=-1)
    dt = spectrum.dt if spectrum.dt.ndim == 2 else np.broadcast_to(spectrum.dt[:, None], log_z.shape)
    each = (log_z, np.abs(spectrum.weight).sum(0), dt)
    return tuple(np.take_along_axis(part, order, axis=-1) for part in each)  # type: ignore[return-value]


def _at_ranks(weight: np.ndarray, count: int) -> np.ndarray:
    """(H, N/2) -> (H, count): the weight between the ranks k/count and (k+1)/count; itself where counts agree."""
    own = weight.shape[1]
    if own == count:
        return weight
    running = np.pad(np.cumsum(weight, axis=1), ((0, 0), (1, 0)))
    ranks = np.linspace(0, own, count + 1)
    return np.maximum(np.diff([np.interp(ranks, np.arange(own + 1), row) for row in running], axis=1), 0)


def _steps_at_ranks(dt: np.ndarray, count: int) -> np.ndarray:
    return dt[:, ((np.arange(count) + 0.5) * dt.shape[1] / count).astype(int)]


def _rule(spectrum: Spectrum) -> str:
    """How the prior comes to steps."""
    return "zoh" if spectrum.discretisation == "none" else spectrum.discretisation


def _wasserstein(ours: np.ndarray, theirs: np.ndarray, weight: np.ndarray, their_weight: np.ndarray) -> float:
    from scipy.stats import wasserstein_distance  # a second that commands which measure nothing must not wait

    if not weight.any():
        return np.nan
    return float(wasserstein_distance(ours.ravel(), theirs.ravel(), weight.ravel(), their_weight.ravel()))


def _best_shift(ours: np.ndarray, theirs: np.ndarray, weight: np.ndarray, their_weight: np.ndarray) -> float:
    """The c with the least W1 between ours and theirs + c.

    W1 is the mean of |Q(p) - Q'(p) - c| over p in [0, 1], Q and Q' the quantile functions: the median of Q - Q'.
    """
    (place, cumulative), (their_place, their_cumulative) = _quantile(ours, weight), _quantile(theirs, their_weight)
    ends = np.union1d(cumulative, their_cumulative)
    middle = ends - np.diff(ends, prepend=0) / 2
    found = [
        values[np.minimum(np.searchsorted(sums, middle), len(values) - 1)]
        for values, sums in ((place, cumulative), (their_place, their_cumulative))
    ]
    gap, share = _quantile(found[0] - found[1], np.diff(ends, prepend=0))
    return float(gap[np.searchsorted(share, 0.5)])


def _quantile(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values in ascending order, and the share of the weight up to each."""
    order = np.argsort(values, axis=None)
    running = np.cumsum(weight.ravel()[order])
    return values.ravel()[order], running / running[-1]


def _search(cost: Callable[[float], float], grid: np.ndarray) -> float:
    """Where the cost is least, as a point on the grid's axis."""
    near = int(np.argmin([cost(point) for point in grid]))
    low, high = grid[max(near - 1, 0)], grid[min(near + 1, len(grid) - 1)]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return float(found.x if found.fun < cost(grid[near]) else grid[near])


# -- kernels


def _captured(rows: np.ndarray, basis: np.ndarray) -> float:
    """Share of the energy of (..., L) in the span of orthonormal columns (L, n)."""
    total = np.square(rows).sum()
    return float(np.square(rows @ basis).sum() / total) if total > 0 else np.nan


def _inside(rows: np.ndarray, bases: Iterable[np.ndarray]) -> np.ndarray:
    """rows: (direction, channel, L), bases: orthonormal columns (L, n) of every channel -> the rows' projections."""
    return np.stack([rows[:, h] @ basis @ basis.T for h, basis in enumerate(bases)], axis=1)


def _project(rows: np.ndarray, bases: Sequence[np.ndarray], rank: int) -> dict[str, Any]:
    """Of `_inside`: the share of the energy, and the angles."""
    energy = np.square(rows).sum(-1, keepdims=True)
    unit = rows / np.sqrt(np.where(energy > 0, energy, 1))
    inside = _inside(unit, bases)
    kept = np.square(inside).sum(-1, keepdims=True)
    total = energy.sum()
    captured = float((kept * energy).sum() / total) if total > 0 else np.nan
    return {"captured": captured, "principal_angle": _angles(unit, inside, rank)}


def _angles(unit: np.ndarray, inside: np.ndarray, rank: int) -> np.ndarray:
    """(rank,), ascending, radians; NaN where the kernels have fewer directions."""
    ours, theirs = unit.reshape(-1, unit.shape[-1]), inside.reshape(-1, unit.shape[-1])
    mixing, strength, _ = np.linalg.svd(ours, full_matrices=False)
    lead = mixing[:, :rank][:, strength[:rank] > FAINTEST * max(strength[0], FAINTEST)]
    angles = np.full(rank, np.nan)
    if lead.shape[1]:
        angles[: lead.shape[1]] = np.pi / 2  # a direction of which the prior holds nothing
        if np.square(theirs).sum() > 0:
            found = np.sort(subspace_angles(ours.T @ lead, theirs.T @ lead))
            angles[: len(found)] = found
    return angles
