"""Where a model's attention looks: maps of chosen inputs, and what they come to over many.

    distance       = |query - key|, in steps; in images |row - row| and |column - column|
    mass           = mean over queries of the share of attention on keys within a bin of distances
    entropy        = mean over queries of -sum_key share ln share, between 0 and ln(visible keys)
    locality       = mean share at distances up to `near`;   recency = mean share on the `recent` steps before the query

Every query at a valid position counts alike. Shares are weights divided by their sum, which is 1 already for softmax;
`total_weight` says what it was, and a query whose weights are all 0 (Laplace attention) is left out and not counted.
`uniform_distance` and `uniform_entropy` are those of attention that is even over the keys a query sees.

Weights come from the mixer's own queries and keys, in float64, for a block of queries at a time: a whole (L, L) table
of all heads exists only in `attention_maps`, which was asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import xarray as xr
from scipy.special import entr

from ssm_priors.analyses.models import Subject, subject
from ssm_priors.analyses.passes import Passed, looking, require_examples, walk
from ssm_priors.analyses.schema import check, index, labelled
from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig
from ssm_priors.models.build import Model
from ssm_priors.models.protocols import HasAttention
from ssm_priors.ops.attention import Weights

BLOCK = 128
"""Queries looked at together."""


def attention_maps(
    source: Checkpoint | Model, batch: Batch, *, layers: Sequence[int] | None = None, block: int = BLOCK
) -> xr.Dataset:
    """The weights of every query on every key, for few and chosen inputs.

    Args:
        source: a checkpoint (its trained weights) or a model.
        batch: the inputs; padding is looked at too.
        layers: which; None takes all.
        block: queries computed together.

    Returns:
        attention(layer, example, head, query, key), float32, as the forward pass weighs; NaN for a padded query.

    Raises:
        NotThere: the model's mixer is no attention.
        BadConfig: no such layer, or a block below 1.
        BadData: an empty batch.
    """
    require_examples([batch])
    looked_at = _attending(source, block)
    depth = len(looked_at.model.mixers)
    chosen = list(range(depth)) if layers is None else list(layers)
    if not chosen or not set(chosen) <= set(range(depth)):
        raise BadConfig(f"layers {chosen}: the model has the layers 0 to {depth - 1}")
    found: dict[int, np.ndarray] = {}
    with looking(looked_at.whole):
        for layer, passed in enumerate(walk(looked_at.whole, batch)):
            if layer in chosen:
                found[layer] = _maps(passed, block)
    values = np.stack([found[layer] for layer in chosen]) if len(chosen) > 1 else found[chosen[0]][None]
    axes = ["layer", "example", "head", "query", "key"]
    coords = index("layer", chosen)
    for axis, size in zip(axes[1:], values.shape[1:], strict=True):
        coords |= index(axis, range(size))
    return check(xr.Dataset({"attention": labelled("attention", axes, values)}, coords, looked_at.origin))


def attention_summary(
    source: Checkpoint | Model,
    batches: Sequence[Batch],
    *,
    near: int = 16,
    recent: int = 16,
    width: int | None = None,
    block: int = BLOCK,
) -> xr.Dataset:
    """What the attention of many inputs comes to, per layer and head.

    Args:
        source: a checkpoint (its trained weights) or a model.
        batches: the inputs; any number, of any lengths.
        near: largest distance that counts as local, in steps.
        recent: steps before the query that count as recent, itself excluded.
        width: of the image that the sequence was read from row by row; None for sequences that are none.
        block: queries computed together: it changes memory, not results.

    Returns:
        mass(layer, head, reach), by distances that begin at 0, 1, 2, 4, 8, ..; mean_distance, entropy, locality,
        recency, padding, total_weight and queries (layer, head); uniform_distance and uniform_entropy (layer). With a
        width also offset_mass(layer, head, row, column), mean_row_distance and mean_column_distance.

    Raises:
        NotThere: the model's mixer is no attention.
        BadConfig: a block, width, near or recent that is not positive.
        BadData: no inputs.
    """
    if near < 1 or recent < 1 or (width is not None and width < 1):
        raise BadConfig(f"near {near}, recent {recent} and width {width} count steps: each must be 1 or more")
    require_examples(list(batches))
    looked_at = _attending(source, block)
    longest = max(batch.inputs.shape[1] for batch in batches)
    tallies: list[_Tally] = []
    with looking(looked_at.whole):
        for batch in batches:
            for layer, passed in enumerate(walk(looked_at.whole, batch)):
                weights = cast(HasAttention, passed.mixer).attention_weights(passed.before, passed.lengths)
                if layer == len(tallies):
                    tallies.append(_Tally(weights.q.shape[1], longest, width))
                tallies[layer].add_batch(weights, block)
    answers = [tally.means(near, recent) for tally in tallies]
    asked = {"near": near, "recent": recent, "examples": sum(map(len, batches))} | ({"width": width} if width else {})
    return _summary(answers, longest, looked_at.origin | asked)


def _summary(answers: list[dict[str, np.ndarray]], longest: int, attrs: dict) -> xr.Dataset:
    variables, coords = {}, index("layer", range(len(answers)))
    for name in answers[0]:
        values = np.stack([answer[name] for answer in answers])
        axes = ["layer", "head", "row", "column"] if name == "offset_mass" else ["layer", "head", "reach"]
        variables[name] = labelled(name, axes[: values.ndim], values)
        for axis, size in zip(axes, values.shape, strict=False):
            coords |= index(axis, range(size))
    return check(xr.Dataset(variables, coords | index("reach", _edges(longest)), attrs))


def _attending(source: Checkpoint | Model, block: int) -> Subject:
    if block < 1:
        raise BadConfig(f"a block of {block} queries: at least 1 is looked at together")
    looked_at = subject(source)
    looked_at.mixers(HasAttention, "attention", "an attention")
    return looked_at


def _blocks(weights: Weights, valid: int, block: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """First query, weights (heads, rows, L) and visible keys (rows, L) of one example's valid queries."""
    for start in range(0, valid, block):
        stop = min(start + block, valid)
        yield start, weights.rows(start, stop)[0].cpu().numpy(), weights.visible(start, stop)[0, 0].cpu().numpy()


def _maps(passed: Passed, block: int) -> np.ndarray:
    """(B, heads, L, L)"""
    weights = cast(HasAttention, passed.mixer).attention_weights(passed.before, passed.lengths)
    examples, heads, length, _ = weights.q.shape
    maps = np.full((examples, heads, length, length), np.nan, np.float32)
    for example, valid in enumerate(weights.lengths.tolist()):
        for start, rows, _ in _blocks(weights.example(example), valid, block):
            maps[example, :, start : start + rows.shape[1]] = rows
    return maps


class _Tally:
    """Sums over queries, float64, from which every mean of a layer follows."""

    def __init__(self, heads: int, longest: int, width: int | None):
        self.longest, self.width = longest, width
        self.by_offset = np.zeros((heads, 2 * longest - 1))
        """By query - key + longest - 1."""
        self.evenly = np.zeros(2 * longest - 1)
        """The same, of even attention."""
        self.sums = {name: np.zeros(heads) for name in ("entropy", "padding", "total_weight", "queries")}
        self.asked, self.seen_entropy = 0, 0.0
        rows = 0 if width is None else -(-longest // width)
        self.by_place = np.zeros((heads, rows * (width or 0)))

    def add_batch(self, weights: Weights, block: int) -> None:
        """Every valid query of every example."""
        for example, valid in enumerate(weights.lengths.tolist()):
            for start, rows, visible in _blocks(weights.example(example), valid, block):
                self._add(start, rows, visible, valid)

    def _add(self, start: int, rows: np.ndarray, visible: np.ndarray, valid: int) -> None:
        total = rows.sum(-1)
        share = rows / np.where(total > 0, total, 1)[..., None]
        self.sums["entropy"] += entr(share).sum((1, 2))
        self.sums["padding"] += share[..., valid:].sum((1, 2))
        self.sums["total_weight"] += total.sum(1)
        self.sums["queries"] += np.count_nonzero(total > 0, axis=1)
        keys = visible.sum(-1, keepdims=True)
        self.asked += len(keys)
        self.seen_entropy += float(np.log(keys).sum())
        first = start + self.longest - rows.shape[-1]
        stop = first + rows.shape[1] + rows.shape[2] - 1
        self.by_offset[:, first:stop] += along_diagonals(share)
        self.evenly[first:stop] += along_diagonals(visible / keys)
        if self.width is not None:
            self._add_places(start, share, self.width)

    def _add_places(self, start: int, share: np.ndarray, width: int) -> None:
        query, key = np.arange(start, start + share.shape[1])[:, None], np.arange(share.shape[2])
        place = np.abs(query // width - key // width) * width + np.abs(query % width - key % width)
        for head, each in enumerate(share):
            self.by_place[head] += np.bincount(place.ravel(), each.ravel(), self.by_place.shape[1])

    def means(self, near: int, recent: int) -> dict[str, np.ndarray]:
        """By the names of the schema; (heads, ...), and scalars for even attention."""
        queries = np.where(self.sums["queries"] > 0, self.sums["queries"], np.nan)
        offset = np.arange(1 - self.longest, self.longest)
        distance, share = np.abs(offset), self.by_offset / queries[:, None]
        bins = np.digitize(distance, _edges(self.longest)) - 1
        mass = np.stack([share[:, bins == each].sum(-1) for each in range(bins.max() + 1)], axis=-1)
        found = {
            "mass": mass,
            "mean_distance": share @ distance,
            "locality": share[:, distance <= near].sum(-1),
            "recency": share[:, (offset >= 1) & (offset <= recent)].sum(-1),
            "entropy": self.sums["entropy"] / queries,
            "padding": self.sums["padding"] / queries,
            "total_weight": self.sums["total_weight"] / self.asked,
            "queries": self.sums["queries"],
            "uniform_distance": np.array(self.evenly @ distance / self.asked),
            "uniform_entropy": np.array(self.seen_entropy / self.asked),
        }
        return found if self.width is None else found | self._images(queries, self.width)

    def _images(self, queries: np.ndarray, width: int) -> dict[str, np.ndarray]:
        share = (self.by_place / queries[:, None]).reshape(len(queries), -1, width)
        return {
            "offset_mass": share,
            "mean_row_distance": share.sum(2) @ np.arange(share.shape[1]),
            "mean_column_distance": share.sum(1) @ np.arange(width),
        }


def along_diagonals(table: np.ndarray) -> np.ndarray:
    """Sums of (..., R, L) over entries of equal row - column: (..., R + L - 1), from 1 - L to R - 1.

    Each row is moved one step further than the one above it: by reading rows of R + L entries as rows of R + L - 1.
    """
    *outer, rows, columns = table.shape
    padded = np.zeros((*outer, rows, columns + rows))
    padded[..., :columns] = table[..., ::-1]
    width = columns + rows - 1
    return padded.reshape(*outer, -1)[..., : rows * width].reshape(*outer, rows, width).sum(-2)


def _edges(longest: int) -> np.ndarray:
    """0, 1, 2, 4, 8, .. below the longest sequence."""
    doublings = max(longest - 1, 0).bit_length()
    return np.array([0, *(2**power for power in range(doublings))])
