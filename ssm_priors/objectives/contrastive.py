"""Tell a hidden frame from the other hidden frames of the same example: wav2vec 2.0 without its encoder.

    loss = -log exp(cos(a, q) / T) / (exp(cos(a, q) / T) + sum_k exp(cos(a, q_k) / T))

A frame is a run of steps; its target q is a fixed random projection of its values, where wav2vec 2.0 learns a quantiser
behind a convolutional encoder: with fixed targets nothing can collapse. The q_k are the example's other hidden frames,
but for those with the same values. The answer to a frame is read at its last step.
Source: Baevski et al. 2020, arXiv 2006.11477; fixed projections: Chiu et al. 2022, arXiv 2202.01855.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.objectives.objective import Problem
from ssm_priors.registry import OBJECTIVES
from ssm_priors.seeds import torch_stream


@OBJECTIVES.register("contrastive")
class Contrastive:
    """Tell a hidden frame of a signal from other hidden frames of the same example.

    Source: Baevski et al. 2020, arXiv 2006.11477; fixed projections: Chiu et al. 2022, arXiv 2202.01855.
    """

    requires_causal = False
    kinds = ("continuous",)
    stand_ins = 1
    pooled = False

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of the contrastive objective."""

        frame: Annotated[int, Ge(1)] = 16
        """Steps of a frame."""
        span: Annotated[int, Ge(1)] = 4
        """Frames hidden in a row."""
        ratio: Annotated[float, Gt(0), Lt(1)] = 0.5
        """Share of the frames that is hidden, on average; spans that overlap lower it."""
        temperature: Annotated[float, Gt(0)] = 0.1
        """T of the loss."""
        size: Annotated[int, Ge(2)] = 64
        """Numbers of a target."""

    def __init__(self, options: Config, spec: TaskSpec):
        self.options = options
        self.outputs = options.size
        generator = torch_stream(0, "contrastive", "projection")
        self.projection = torch.randn(options.frame * spec.features, options.size, generator=generator)

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Draw the spans; a target stands at the last step of its frame."""
        columns, frame = batch.inputs.shape[1], self.options.frame
        frames = columns // frame
        whole = torch.arange(frames) < (batch.lengths.cpu() // frame)[:, None]
        starts = torch.rand(len(batch.lengths), frames, generator=generator) < self.options.ratio / self.options.span
        chosen = _spread(starts, self.options.span) & whole
        chosen[:, :1] |= whole[:, :1] & ~chosen.any(1, keepdim=True)  # no example is left out of the loss
        hidden = torch.zeros(len(chosen), columns, dtype=torch.bool)
        hidden[:, : frames * frame] = chosen.repeat_interleave(frame, dim=1)
        last = torch.arange(columns) % frame == frame - 1
        hidden, scored = hidden.to(batch.lengths.device), (hidden & last).to(batch.lengths.device)
        return Problem(hidden=hidden, targets=self._targets(batch.inputs), scored=scored)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Cross-entropy of the right frame, summed over hidden frames."""
        total = answers.new_zeros(())
        for logits in self.choices(answers, problem):
            own = torch.arange(len(logits), device=logits.device)
            total = total + F.cross_entropy(logits, own, reduction="sum")
        return total, int(problem.scored.sum())

    def choices(self, answers: Tensor, problem: Problem) -> Iterator[Tensor]:
        """Of every example how much each hidden frame's answer is for each hidden frame, its own on the diagonal."""
        for answer, target, scored in zip(answers, problem.targets, problem.scored, strict=True):
            rows = target[scored]
            similarity = F.normalize(answer[scored], dim=-1) @ F.normalize(rows, dim=-1).T
            same = (rows[:, None] == rows).all(-1) & ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
            yield (similarity / self.options.temperature).masked_fill(same, -torch.inf)

    def _targets(self, inputs: Tensor) -> Tensor:
        """(B, L, size): at the last step of each frame the projection of its values, 0 elsewhere."""
        frame = self.options.frame
        frames = inputs.shape[1] // frame
        values = inputs[:, : frames * frame].unflatten(1, (frames, frame)).flatten(2)
        targets = inputs.new_zeros(*inputs.shape[:2], self.outputs)
        targets[:, frame - 1 : frames * frame : frame] = values @ self.projection.to(values)
        return targets


def _spread(starts: Tensor, span: int) -> Tensor:
    """Every start and the `span` - 1 frames behind it: (B, frames) -> the same."""
    reached = torch.zeros_like(starts)
    for lag in range(min(span, starts.shape[1])):
        reached[:, lag:] |= starts[:, : starts.shape[1] - lag]
    return reached
