"""Scores of a model on a split: sums over examples, never means of means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.errors import BadData
from ssm_priors.models.build import Model
from ssm_priors.tasks.task import Split

FACTOR = 4
"""How many training batches make one of evaluation, which keeps nothing for a backward pass."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a classifier says about every example of a split, in the split's order."""

    loss: float
    """Cross-entropy, mean over examples."""
    predictions: Tensor
    """(examples,) classes."""
    targets: Tensor
    """(examples,) classes."""

    @property
    def correct(self) -> Tensor:
        """(examples,), True where the prediction is right."""
        return self.predictions == self.targets

    @property
    def accuracy(self) -> float:
        """Share of examples that are right."""
        return self.correct.double().mean().item()


@torch.no_grad()
def evaluate(model: Model, split: Split, batch_size: int, device: torch.device) -> Evaluation:
    """Classify every example once. The model's training flag is left as it was found.

    Args:
        model: gives one answer an example.
        split: with labels.
        batch_size: of training; evaluation keeps nothing for a backward pass and takes `FACTOR` times as many.
        device: where the model is.

    Raises:
        BadData: the split has no labels.
    """
    if split.targets is None:
        raise BadData("a split without labels cannot be scored")
    was_training = model.training
    model.eval()
    total, predictions = 0.0, []
    try:
        for rows in torch.arange(len(split)).split(FACTOR * batch_size):
            batch = split.take(rows)
            answers = model(batch.inputs.to(device), batch.lengths.to(device)).cpu()
            total += F.cross_entropy(answers.double(), split.targets[rows], reduction="sum").item()
            predictions.append(answers.argmax(-1))
    finally:
        model.train(was_training)
    return Evaluation(total / len(split), torch.cat(predictions), split.targets)
