"""What the devices of a team do in tests; a file of its own, because their processes import it by name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Literal

import torch
from builders import CONTINUOUS, TOKENS, config, model, normal
from lightning_fabric import Fabric
from torch import Tensor

from ssm_priors.batch import TaskSpec
from ssm_priors.errors import RunFailed
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.registry import OBJECTIVES
from ssm_priors.tasks.task import Split
from ssm_priors.training import loop
from ssm_priors.training.optimiser import adamw
from ssm_priors.training.teacher import teacher_of
from ssm_priors.training.team import Team


@dataclass(frozen=True)
class Case:
    """One step of one phase."""

    objective: str
    """"" for the task itself."""
    kind: str = "continuous"
    examples: int = 7
    mixer: str = "s4d"
    documents: int = 1
    clip: float = 0.0
    dropout: float = 0.0
    precision: Literal["32-true", "64-true"] = "32-true"

    @property
    def spec(self) -> TaskSpec:
        return CONTINUOUS if self.kind == "continuous" else TOKENS


@dataclass(frozen=True)
class Stepped:
    """What a step leaves."""

    loss: float
    norm: float
    examples: int
    gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]


def step(case: Case, team: Team) -> Stepped:
    """One step of a device."""
    phase, before = _phase(case), torch.get_default_dtype()
    pooled, stand_ins, outputs = phase.objective.pooled, phase.objective.stand_ins, phase.objective.outputs
    head = {"pooled": pooled, "outputs": outputs, "stand_ins": max(stand_ins, 1)}
    network = model(case.mixer, case.spec, causal=True, dropout=case.dropout, **head)
    fabric = Fabric(accelerator="cpu", devices=1, precision=case.precision)
    module, optimiser = fabric.setup(network, adamw(network, phase.settings))
    loop.set_rate(optimiser, phase.settings, 5, 10, 5)
    torch.set_default_dtype(torch.float64 if case.precision == "64-true" else before)  # to which fabric rounds answers
    loss, norm, batch = loop._step(phase, module, optimiser, fabric, 0, teacher_of(phase.objective, network), team)
    torch.set_default_dtype(before)
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    return Stepped(loss, norm, len(batch), gradients, network.state_dict())


def _phase(case: Case) -> loop.Phase:
    rows, length = case.examples * case.documents, 48
    lengths = torch.randint(33, length + 1, (rows,), generator=torch.Generator().manual_seed(1))
    inputs = normal(rows, length, 1, dtype=torch.float32)
    if case.kind == "token":
        inputs = torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(2))
    labels = torch.arange(case.examples) % 3
    split = Split(inputs, lengths, labels if not case.objective else None, documents=case.documents)
    objective = Supervised(case.spec)
    if case.objective:
        options = {"frame": 4, "span": 1} if case.objective == "contrastive" else {}  # several frames an example
        objective = OBJECTIVES[case.objective](OBJECTIVES[case.objective].Config(**options), case.spec)
    settings = config(finetune={"batch_size": case.examples, "clip": case.clip}).finetune
    return loop.Phase("finetune", settings, objective, split, None, 0, case.spec)


def steps(cases: list[Case], team: Team) -> list[Stepped]:
    """All of them, one after the other."""
    return [step(case, team) for case in cases]


def drifted(team: Team) -> None:
    """Weights that are those of another seed on every device."""
    team.refuse_unequal(model(seed=team.rank))


def breaks(how: str, team: Team) -> None:
    """The first device waits; any other ends as it is told."""
    if team.is_first:
        team.sums(torch.zeros(()), 1)
    elif how == "refuses":
        raise RunFailed("a reason of its own")
    elif how == "fails":
        raise ZeroDivisionError("a bug of its own")
    else:
        os.kill(os.getpid(), signal.SIGKILL)
