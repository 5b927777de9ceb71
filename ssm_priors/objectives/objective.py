"""What the training loop asks of an objective, and what several objectives share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """A batch, posed."""

    hidden: Tensor | None
    """(B, L), True where the model must not see the input, or k where it sees the k-th stand-in instead; None hides
    nothing."""
    targets: Tensor
    """(B, L) ids, (B, L, features) values, or (B,) classes."""
    scored: Tensor
    """(B, L) or (B,), True where an answer counts."""
    inputs: Tensor | None = None
    """What the model is given, where that is not the batch as it is."""
    lengths: Tensor | None = None
    """(B,), valid positions of those inputs."""

    def given(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the model is called with: inputs, lengths, hidden. A hidden input is not handed over: there stands 0."""
        inputs = batch.inputs if self.inputs is None else self.inputs
        if self.hidden is not None:
            hidden = self.hidden > 0
            inputs = inputs.masked_fill(hidden if inputs.ndim == 2 else hidden[..., None], 0)
        return inputs, batch.lengths if self.lengths is None else self.lengths, self.hidden


class Objective(Protocol):
    """One way to learn from a batch."""

    @property
    def requires_causal(self) -> bool:
        """Whether the answer stands in the input of a model that sees both sides."""
        ...

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds of input it can work with, of `TaskSpec.kind`."""
        ...

    @property
    def outputs(self) -> int | None:
        """Size of the model's answer; None: as many numbers as the model has channels."""
        ...

    @property
    def pooled(self) -> bool:
        """One answer an example, or one a position."""
        ...

    @property
    def stand_ins(self) -> int:
        """How many learned vectors it needs to stand in for hidden inputs."""
        ...

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Choose what is hidden and what is asked; `generator` lives on the CPU."""
        ...

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Loss summed over what is scored, and how many that is."""
        ...


def reconstruction_outputs(spec: TaskSpec) -> int:
    """Size of an answer that names an input: the vocabulary, or the features of a step."""
    return spec.vocabulary if spec.kind == "token" else spec.features


def reconstruction_score(answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
    """Cross-entropy for ids, L1 (mean over the features of a step) for values, summed over scored positions.

    Args:
        answers: (B, L, outputs).
        problem: targets (B, L) integer ids, or (B, L, features) values.

    Returns:
        The sum, and the number of scored positions.
    """
    answers, targets = answers[problem.scored], problem.targets[problem.scored]
    if targets.is_floating_point():
        total = (answers - targets).abs().mean(-1).sum()
    else:
        total = F.cross_entropy(answers, targets.long(), reduction="sum")
    return total, len(targets)


def squared_error(answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
    """Squared error, mean over the features of a step, summed over scored positions; and how many those are."""
    answers, targets = answers[problem.scored], problem.targets[problem.scored]
    return (answers - targets).square().mean(-1).sum(), len(targets)


@runtime_checkable
class HasTeacher(Protocol):
    """An objective whose targets are what a slowly following copy of the model says of the whole input."""

    momentum: float
    """How much of the copy stays at each step."""

    def taught(self, problem: Problem, representation: Tensor) -> Problem:
        """The problem with its targets, from the copy's last layer (B, L, H)."""
        ...


@runtime_checkable
class BringsWeights(Protocol):
    """An objective whose phase trains nothing: the weights come from elsewhere."""

    def settings(self) -> Mapping[str, Any]:
        """What the part `model` of a configuration must say for the weights to fit."""
        ...

    def weights(self, words: Sequence[str]) -> Mapping[str, Tensor]:
        """The model's state dict, the head of this objective included, for what the task's token ids stand for."""
        ...


@runtime_checkable
class StartsElsewhere(Protocol):
    """A registered objective that makes one that `BringsWeights`."""

    @property
    def origin(self) -> str:
        """Whose weights they are, in words."""
        ...


@runtime_checkable
class HasChoices(Protocol):
    """An objective whose answer picks one of several."""

    def choices(self, answers: Tensor, problem: Problem) -> Iterable[Tensor]:
        """An example at a time: logits (asked, asked) of each answer for each choice; -inf where there is no choice.

        The right choice stands on the diagonal.
        """
        ...


# -- rewriting a sequence


@dataclass(slots=True)
class Rewritten:
    """A sequence in the making: position by position an original one, or a stand-in; and what is asked there."""

    sources: list[int] = field(default_factory=list)
    """The original position that is shown; -1 below a stand-in."""
    stand_ins: list[int] = field(default_factory=list)
    """0, or which stand-in is seen instead."""
    asked: list[int] = field(default_factory=list)
    """The original position whose token is asked for here; -1 for none."""
    NOTHING: ClassVar[int] = -1

    def show(self, positions: Iterable[int]) -> None:
        """Original positions, as they are."""
        for position in positions:
            self._add(position, 0, self.NOTHING)

    def stand_in(self, which: int) -> None:
        """One position that is seen as a stand-in."""
        self._add(self.NOTHING, which, self.NOTHING)

    def ask(self, positions: Iterable[int], which: int) -> None:
        """A stand-in for each of these positions, at which its token is asked for."""
        for position in positions:
            self._add(self.NOTHING, which, position)

    def cut(self, length: int) -> None:
        """Keep the first positions."""
        del self.sources[length:], self.stand_ins[length:], self.asked[length:]

    def extend(self, other: Rewritten) -> None:
        """Put another one behind."""
        self.sources += other.sources
        self.stand_ins += other.stand_ins
        self.asked += other.asked

    def _add(self, source: int, which: int, asked: int) -> None:
        self.sources.append(source)
        self.stand_ins.append(which)
        self.asked.append(asked)


def rewrite(batch: Batch, rewritten: Sequence[Rewritten]) -> Problem:
    """The problem of a batch of token ids in which every example is shown as its `Rewritten` says."""
    lengths = torch.tensor([len(one.sources) for one in rewritten])
    columns = int(lengths.max())
    sources, stand_ins, asked = (
        torch.tensor([[*row, *[fill] * (columns - len(row))] for row in rows]).to(batch.inputs.device)
        for rows, fill in (
            ([one.sources for one in rewritten], Rewritten.NOTHING),
            ([one.stand_ins for one in rewritten], 0),
            ([one.asked for one in rewritten], Rewritten.NOTHING),
        )
    )
    return Problem(
        hidden=stand_ins,
        targets=batch.inputs.gather(1, asked.clamp(min=0)),
        scored=asked >= 0,
        inputs=batch.inputs.gather(1, sources.clamp(min=0)).masked_fill(sources < 0, 0),
        lengths=lengths.to(batch.lengths.device),
    )
