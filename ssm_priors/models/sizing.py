"""Parameter matching: the width at which a model has as many parameters as another, so that a gap is not one of size.

d_model is chosen among the widths that the mixer takes (heads must divide it), the nearest to the target; where models
have a feed-forward, its width then makes up for the rest. Layers, state size and everything else stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from ssm_priors.batch import TaskSpec
from ssm_priors.config import ModelConfig
from ssm_priors.errors import BadConfig
from ssm_priors.models.build import build, parameter_count

TOLERANCE = 0.02
"""Share of the target that a matched model may be off by."""
WIDEST, COARSEST = 2**14, 2**8
"""Largest d_model, and largest step between two that a mixer takes, that are looked for."""


@functools.cache
def matched(config: ModelConfig, spec: TaskSpec, target: int) -> ModelConfig:
    """The configuration with the d_model, and the feed-forward's width if it has one, that come nearest to a size.

    Args:
        config: of the model; its own widths are forgotten, but a feed-forward keeps its proportion as nearly as can be.
        spec: of the task, whose embedding and head count.
        target: trainable parameters of the model that is tested.

    Raises:
        BadConfig: no width comes within 2%; says which are nearest.
    """

    def size(chosen: ModelConfig) -> int:
        model = build(chosen, spec, 0, outputs=spec.classes, pooled=spec.answer != "tokens")
        return parameter_count(model)

    step = _step(config, size)
    widest = _largest(lambda k: size(replace(config, d_model=k * step)) <= target, WIDEST // step)
    widths = [k * step for k in (widest, widest + 1) if k > 0]
    found = [replace(config, d_model=width) for width in widths]
    if config.expand:
        found = [_filled(each, size, target) for each in found]
    best = min(found, key=lambda each: abs(size(each) - target))
    if abs(size(best) - target) > TOLERANCE * target:
        nearest = ", ".join(f"{size(each):,} (d_model {each.d_model})" for each in found)
        raise BadConfig(
            f"match_params: {config.mixer.name} comes no nearer to {target:,} parameters than {nearest}; 2% was "
            "expected. Choose another number, more layers, or another state size"
        )
    return best


def _step(config: ModelConfig, size: Callable[[ModelConfig], int]) -> int:
    """The least step between widths that the mixer takes."""
    for step in range(1, COARSEST + 1):
        try:
            for k in (1, 2, 3):
                size(replace(config, d_model=k * step, layers=1))
        except BadConfig:
            continue
        return step
    raise BadConfig(f"match_params: {config.mixer.name} with these options takes no width up to {COARSEST}")


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest k in 0 .. most for which it holds, by bisection: it holds up to there and not beyond."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _filled(config: ModelConfig, size: Callable[[ModelConfig], int], target: int) -> ModelConfig:
    """With the feed-forward's width that comes nearest; a width adds the same number of parameters every time."""
    whole = config.feed_forward_width
    more = size(replace(config, feed_forward=whole + 1)) - size(replace(config, feed_forward=whole))
    return replace(config, feed_forward=max(1, whole + round((target - size(config)) / more)))
