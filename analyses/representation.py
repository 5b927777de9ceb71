"""How alike two models' layers represent the same inputs: linear centred kernel alignment (CKA).

    CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)),   X: (n, p), Y: (n, q), rows are the same n points

    biased    HSIC = |Xc^T Yc|_F^2, Xc with its column means taken off
    debiased  HSIC = 1/(n(n-3)) [sum_{i!=j} K_ij L_ij + s(K) s(L) / ((n-1)(n-2)) - 2/(n-2) r(K).r(L)], K = X X^T and
              L = Y Y^T with their diagonals set to 0, r their row sums, s the sum of those

Debiased is the default: the biased number of two unrelated representations is not near 0 but grows with p / n, and with
one point an example n is often smaller than p. It can be a little below 0. Both are exact over all points and computed
from sums over points (X^T Y and its like), in float64: no (n, n) table, and batches change nothing.

Points are the valid positions of all inputs, or one an input, the mean over its valid positions (`pooled`). Either way
they are features of a block's output, after its residual.

Source: Kornblith et al. 2019, arXiv 1905.00414 (CKA); Song et al. 2012, JMLR 13 (the unbiased estimator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from ssm_priors.analyses.models import subject
from ssm_priors.analyses.passes import looking, require_examples, walk
from ssm_priors.analyses.schema import check, index, labelled
from ssm_priors.batch import Batch, valid_positions
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadData
from ssm_priors.models.build import Model

LEAST_POINTS = 4
"""What the debiased estimator divides by is 0 for 3."""


def cka(
    first: Checkpoint | Model,
    second: Checkpoint | Model,
    batches: Sequence[Batch],
    *,
    pooled: bool = False,
    debiased: bool = True,
) -> xr.Dataset:
    """Every layer of one model against every layer of another, or of itself.

    Args:
        first, second: checkpoints (their trained weights) or models; of any sizes, reading the same inputs.
        batches: held inputs.
        pooled: one point an input instead of one a position.
        debiased: which estimator.

    Returns:
        cka(layer, other): layers of `first`, layers of `second`; NaN where a layer says the same at every point. What
        is known of the second model stands in attributes that begin with `other_`.

    Raises:
        BadData: fewer than 4 points.
    """
    require_examples(list(batches))
    ours, theirs = subject(first), subject(second)
    sums: dict[tuple[int, int], Sums] = {}
    shifts: list[np.ndarray] = []
    depth = len(ours.model.mixers)
    for batch in batches:
        views = [*_features(ours.whole, batch, pooled), *_features(theirs.whole, batch, pooled)]
        shifts = shifts or [view.mean(0) for view in views]  # CKA ignores it; sums far from 0 would lose digits
        views = [view - shift for view, shift in zip(views, shifts, strict=True)]
        for pair in _pairs(depth, len(views)):
            sums[pair] = Sums(views[pair[0]], views[pair[1]]) + sums.get(pair)
    points = sums[0, 0].points
    if points < LEAST_POINTS:
        raise BadData(f"{points} points were given; CKA needs {LEAST_POINTS} or more: more inputs, or unpooled ones")
    values = np.array([[_cka(sums, a, b, debiased) for b in range(depth, len(views))] for a in range(depth)])
    known = {f"other_{name}": value for name, value in theirs.origin.items()}
    asked = {
        "points": points,
        "point": "input, mean over valid positions" if pooled else "valid position",
        "estimator": "debiased" if debiased else "biased",
    }
    coords = index("layer", range(values.shape[0])) | index("other", range(values.shape[1]))
    variables = {"cka": labelled("cka", ["layer", "other"], values)}
    return check(xr.Dataset(variables, coords, ours.origin | known | asked))


def linear_cka(x: np.ndarray, y: np.ndarray, *, debiased: bool = True) -> float:
    """CKA of two representations of the same points.

    Args:
        x: (n, p).
        y: (n, q).
        debiased: which estimator.

    Raises:
        BadData: other numbers of points, or fewer than 4.
    """
    if len(x) != len(y) or len(x) < LEAST_POINTS:
        raise BadData(f"{len(x)} and {len(y)} points: CKA compares the same points, {LEAST_POINTS} or more")
    x, y = (view.astype(np.float64) - view.mean(0, dtype=np.float64) for view in (x, y))
    return _ratio(*(Sums(a, b).hsic(debiased) for a, b in ((x, y), (x, x), (y, y))))


class Sums:
    """All that HSIC needs of two views, added over points: nothing grows with their number."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        k, m = np.square(x).sum(1), np.square(y).sum(1)  # the diagonals of X X^T and Y Y^T
        self.points = len(x)
        self.parts = [x.T @ y, x.sum(0), y.sum(0), k.sum(), m.sum(), k @ m, k @ y, m @ x]

    def __add__(self, other: Sums | None) -> Sums:
        if other is not None:
            self.points += other.points
            self.parts = [ours + theirs for ours, theirs in zip(self.parts, other.parts, strict=True)]
        return self

    def hsic(self, debiased: bool) -> float:
        """Up to a factor that depends on the number of points only."""
        n, (cross, x, y, k, m, km, ky, mx) = self.points, self.parts
        if not debiased:
            return float(np.square(cross - np.outer(x, y) / n).sum())
        rows = x @ cross @ y - ky @ y - mx @ x + km
        whole = (x @ x - k) * (y @ y - m)
        return float(np.square(cross).sum() - km + whole / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows)


def _pairs(depth: int, views: int) -> list[tuple[int, int]]:
    """Each view with itself, and the first model's with the second's."""
    return [(a, a) for a in range(views)] + [(a, b) for a in range(depth) for b in range(depth, views)]


def _cka(sums: dict[tuple[int, int], Sums], a: int, b: int, debiased: bool) -> float:
    return _ratio(*(sums[pair].hsic(debiased) for pair in ((a, b), (a, a), (b, b))))


def _ratio(both: float, first: float, second: float) -> float:
    return both / np.sqrt(first * second) if first > 0 and second > 0 else np.nan


def _features(model: Model, batch: Batch, pooled: bool) -> list[np.ndarray]:
    """Of every layer: (points, H), float64."""
    with looking(model):
        return [_points(passed.after, passed.lengths, pooled) for passed in walk(model, batch)]


def _points(u: Any, lengths: Any, pooled: bool) -> np.ndarray:
    valid = valid_positions(lengths, u.shape[1])
    u = u.double()
    points = (u * valid[..., None]).sum(1) / lengths[:, None] if pooled else u[valid]
    return points.cpu().numpy()
