"""A model run layer by layer, so that what goes into each mixer and comes out of each block can be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ssm_priors.batch import Batch
from ssm_priors.errors import BadData
from ssm_priors.models.backbone import Block
from ssm_priors.models.build import Model


class Passed(NamedTuple):
    """One layer of a forward pass."""

    mixer: nn.Module
    before: Tensor
    """What its mixer reads: (B, L, H)."""
    after: Tensor
    """What its block leaves: (B, L, H)."""
    lengths: Tensor
    """(B,), valid positions."""


@contextmanager
def looking(model: Model) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it was in, also after an error."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def walk(model: Model, batch: Batch) -> Iterator[Passed]:
    """The layers of a forward pass, in order and one at a time; to be consumed within `looking`.

    No hook is set, so that none can stay behind: embedding and blocks are called as the model calls them.
    """
    batch = batch.to(next(model.parameters()).device)
    u = model.embedding(batch.inputs)
    for block in (cast(Block, each) for each in model.backbone.blocks):
        before = block.mixer_input(u, batch.lengths)
        u = block(u, batch.lengths)
        yield Passed(block.mixer, before, u, batch.lengths)


def require_examples(batches: list[Batch]) -> None:
    """Raises BadData where there is nothing to look at."""
    if not sum(map(len, batches)):
        raise BadData("no inputs were given; an analysis of what a model does with inputs needs at least one")
