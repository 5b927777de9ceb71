"""Cutting a sequence into patches and hiding whole ones: squares of an image, runs of steps of anything else."""

from __future__ import annotations

import torch
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec


def patch_of(spec: TaskSpec, size: int, columns: int) -> Tensor:
    """The number of the patch that each position lies in, from 0.

    Args:
        spec: its `width` says whether positions are the pixels of an image, row by row.
        size: side of a square in pixels, or steps of a run.
        columns: number of positions.

    Returns:
        (columns,), integer.
    """
    position = torch.arange(columns)
    if not spec.width:
        return position // size
    across = -(-spec.width // size)
    return (position // spec.width // size) * across + (position % spec.width) // size


def hide_patches(batch: Batch, patch: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Hide a share of every example's patches, chosen uniformly: a number that is fixed by its length.

    Args:
        batch: right-padded examples.
        patch: of `patch_of`: (L,).
        ratio: share of the patches; at least one is hidden, and one stays if there are two.
        generator: on the CPU.

    Returns:
        (B, L), True where hidden; never in the padding.
    """
    lengths = batch.lengths.cpu()
    hidden = torch.zeros(len(lengths), len(patch), dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        there = torch.unique(patch[:length])
        count = min(max(1, round(ratio * len(there))), max(1, len(there) - 1))
        chosen = there[torch.randperm(len(there), generator=generator)[:count]]
        hidden[row, :length] = torch.isin(patch[:length], chosen)
    return hidden.to(batch.lengths.device)
