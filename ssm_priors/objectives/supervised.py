"""The task itself: what finetuning always learns. Not registered.

    class    cross-entropy of the class, from one pooled answer an example
    tokens   cross-entropy of the id, at every asked position
    values   squared error of z = (number - mean) / deviation, from one pooled answer an example

Squared error, because the metric is its root: the answer that minimises it is the conditional mean, which minimises the
RMSE, while L1 would be drawn to the median; the method's public code does the same. Scaling by the deviation of the
training targets makes the loss of every task about 1 at the start: the method's appendix found that labels must be
normalised.  Source: Amos, Berant, Gupta 2023, arXiv 2310.02980.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.errors import BadData
from ssm_priors.objectives.objective import Problem


class Supervised:
    """The loss of a task's own labels, and what an answer means."""

    requires_causal = False
    kinds = ("continuous", "token")
    stand_ins = 0

    def __init__(self, spec: TaskSpec):
        self.spec = spec
        self.outputs = spec.classes
        self.pooled = spec.answer != "tokens"

    def pose(self, batch: Batch, generator: torch.Generator | None = None) -> Problem:
        """Ask for every example's label; nothing is drawn.

        Raises:
            BadData: the batch has no labels.
        """
        if batch.targets is None:
            raise BadData("a batch without labels was given to the supervised objective")
        targets = batch.targets
        if self.spec.answer == "tokens":
            return Problem(hidden=None, targets=targets, scored=targets >= 0)
        if self.spec.answer == "values":
            targets = (targets - self.spec.mean) / self.spec.deviation
        return Problem(hidden=None, targets=targets, scored=torch.ones_like(targets, dtype=torch.bool))

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Over all examples, or over all asked positions.

        Args:
            answers: (B, classes), or (B, L, classes) for tokens.
            problem: of `pose`.
        """
        if self.spec.answer == "values":
            return (answers - problem.targets).square().mean(-1).sum(), len(problem.targets)
        targets = problem.targets
        if self.spec.answer == "tokens":
            answers, targets = answers[problem.scored], targets[problem.scored]
        return F.cross_entropy(answers, targets, reduction="sum"), len(targets)

    def predict(self, answers: Tensor, problem: Problem) -> Tensor:
        """What the model says: classes, numbers in the task's unit, or ids, with -1 where nothing is asked."""
        if self.spec.answer == "values":
            return answers * self.spec.deviation + self.spec.mean
        chosen = answers.argmax(-1)
        return chosen if self.spec.answer == "class" else chosen.masked_fill(~problem.scored, -1)
