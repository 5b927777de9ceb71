"""Scores of a model on a split: sums over examples, never means of means."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.batch import TaskSpec
from ssm_priors.metrics import ACCURACY, Metric, metric_of
from ssm_priors.models.build import Model
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.tasks.task import Split

FACTOR = 4
"""How many training batches make one of evaluation, which keeps nothing for a backward pass."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model says about every example of a split, in the split's order."""

    loss: float
    """Of finetuning: mean over examples, or over asked positions."""
    predictions: Tensor
    """A row an example, as the split's targets: classes, ids at every position, or numbers in the task's unit."""
    targets: Tensor
    metric: Metric = ACCURACY

    @property
    def scores(self) -> Tensor:
        """(examples,) float64, whose mean makes the value."""
        return torch.from_numpy(self.metric.score(self.predictions.numpy(), self.targets.numpy()))

    @property
    def value(self) -> float:
        """The metric over all examples."""
        return self.metric.value(self.scores.numpy())


@torch.no_grad()
def evaluate(model: Model, split: Split, batch_size: int, device: torch.device, spec: TaskSpec) -> Evaluation:
    """Answer for every example once. The model's training flag is left as it was found.

    Args:
        model: with the head of finetuning.
        split: with labels.
        batch_size: of training; evaluation keeps nothing for a backward pass and takes `FACTOR` times as many.
        device: where the model is.
        spec: what is asked, and the scale of the model's answers.

    Raises:
        BadData: the split has no labels.
    """
    supervised, targets = Supervised(spec), split.labels
    was_training = model.training
    model.eval()
    total, count, predictions = 0.0, 0, []
    try:
        for rows in torch.arange(len(split)).split(FACTOR * batch_size):
            batch = split.take(rows)
            answers = model(batch.inputs.to(device), batch.lengths.to(device)).cpu().double()
            problem = supervised.pose(batch)
            loss, scored = supervised.score(answers, problem)
            total, count = total + loss.item(), count + scored
            predictions.append(supervised.predict(answers, problem))
    finally:
        model.train(was_training)
    if spec.answer == "tokens":  # batches were cut to their longest examples
        predictions = [F.pad(part, (0, targets.shape[1] - part.shape[1]), value=-1) for part in predictions]
    return Evaluation(total / count, torch.cat(predictions), targets, metric_of(spec))
