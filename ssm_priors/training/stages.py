"""What a run consists of before it begins: its task cut to size, its phases in order, the model of each.

The one place where task, objective and model meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from ssm_priors.batch import TaskSpec
from ssm_priors.checkpoints.checkpoint import load_exactly
from ssm_priors.config import Budget, RunConfig
from ssm_priors.errors import BadConfig, BadData
from ssm_priors.models.build import Model, build, check_names
from ssm_priors.objectives.objective import BringsWeights, Objective, StartsElsewhere
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.registry import OBJECTIVES, TASKS
from ssm_priors.tasks.task import Split, Task, fraction_of, words_of
from ssm_priors.training.compute import Cost, Flops, step_flops, steps_within
from ssm_priors.training.loop import Phase


def prepare(config: RunConfig, whole: Task | None = None) -> Task:
    """The task with its training split cut to the fraction; refuses what cannot work, before any training.

    Args:
        config: of the run.
        whole: its task, if it was loaded before.

    Raises:
        UnknownName: an init that does not exist.
        BadConfig: a batch larger than the split, a fraction that leaves a class without examples.
        BadData: data that are not there.
    """
    check_names(config.model)
    task = whole if whole is not None else TASKS[config.task.name].load(config.task.options)
    subset = fraction_of(task.train, config.fraction, task.spec.classes, config.seed)
    for name, phase in (("pretrain", config.pretrain), ("finetune", config.finetune)):
        if phase and phase.batch_size > len(subset):
            raise BadConfig(
                f"{name}.batch_size: {phase.batch_size} is larger than the training split's {len(subset)} examples"
            )
    return Task(_scaled(task.spec, subset), subset, task.validation, task.test, task.sha256)


def preflight(config: RunConfig) -> None:
    """Find out whether a run can work, before it leaves a trace: loads its data, builds its model.

    Raises:
        UnknownName, BadConfig, BadData
    """
    for _ in staged(config):
        pass


def staged(config: RunConfig, whole: Task | None = None) -> Iterator[tuple[Phase, Model, Task]]:
    """Each phase of a run, with its model as it is built for it and its task; trains nothing, raises as `preflight`."""
    task = prepare(config, whole)
    for phase in phases_of(config, task):
        yield phase, begun(config, task.spec, phase.objective), task


def begun(config: RunConfig, spec: TaskSpec, objective: Objective) -> Model:
    """The model as a phase finds it; with weights from elsewhere, where the objective brings them.

    Raises:
        BadConfig: they are those of a model with other settings.
    """
    model = model_of(config, spec, objective)
    if isinstance(objective, BringsWeights):
        _refuse_other_model(config, objective)
        load_exactly(model, objective.weights(words_of(TASKS[config.task.name], config.task.options, spec)))
    return model


def _refuse_other_model(config: RunConfig, objective: BringsWeights) -> None:
    wanted = dict(objective.settings())
    mixer = wanted.pop("mixer")
    given = {name: getattr(config.model, name) for name in wanted} | {"mixer.name": config.model.mixer.name}
    wanted |= {f"mixer.{name}": value for name, value in mixer.items()}
    given |= {f"mixer.{name}": getattr(config.model.mixer.options, name, None) for name in mixer if name != "name"}
    other = [name for name, value in wanted.items() if given[name] != value]
    if other:
        asked = " ".join(f"--set model.{name}={str(wanted[name]).lower()}" for name in wanted if name != "mixer.name")
        raise BadConfig(
            f"these weights are of a model with other settings than this one ({', '.join(other)}). "
            f"Theirs are: --model {mixer['name']} {asked}"
        )


def trains(phase: Phase) -> bool:
    """Whether a phase takes steps; not where its objective brings weights that somebody else trained."""
    return not isinstance(phase.objective, BringsWeights)


def model_of(config: RunConfig, spec: TaskSpec, objective: Objective) -> Model:
    """The model of a phase as it is built, with the head that its objective asks for; no weights carried over yet."""
    return build(
        config.model,
        spec,
        config.seed,
        outputs=objective.outputs,
        pooled=objective.pooled,
        stand_ins=objective.stand_ins,
    )


_COUNTED: dict[tuple[str, int, int], Flops] = {}
"""What steps cost that were counted in this process; in a study, every seed of a cell asks the same."""


def step_cost(config: RunConfig, spec: TaskSpec, phase: Phase) -> Cost:
    """What a step of a phase costs; counted when it is asked for, once a process for steps of the same kind."""
    objective = config.pretrain.objective if phase.name == "pretrain" and config.pretrain else None
    kind = repr((config.model, objective, replace(spec, mean=0.0, deviation=1.0)))
    model = cache(partial(model_of, config, spec, phase.objective))

    def cost(examples: int, length: int) -> Flops:
        key = kind, examples, length
        if key not in _COUNTED:
            _COUNTED[key] = step_flops(phase, model(), examples, length)
        return _COUNTED[key]

    return cost


def phases_of(config: RunConfig, task: Task) -> list[Phase]:
    """The phases in order. The first is given neither labels nor any split but the training one."""
    phases = []
    if config.pretrain and config.pretrain.objective:
        part = config.pretrain.objective
        objective = OBJECTIVES[part.name](part.options, task.spec)
        if task.spec.kind not in objective.kinds:
            raise BadConfig(
                f"objective '{part.name}' works with {' and '.join(objective.kinds)} inputs, but those of task "
                f"'{config.task.name}' are of kind {task.spec.kind}. See: ssmp list objectives"
            )
        inputs = task.train.without_labels()
        phases.append(Phase("pretrain", config.pretrain, objective, inputs, None, config.seed, task.spec))
    phases.append(
        Phase("finetune", config.finetune, Supervised(task.spec), task.train, task.validation, config.seed, task.spec)
    )
    if config.budget is None:
        return phases
    return [
        replace(phase, allowed=_allowed(config, task, phase, config.budget)) if trains(phase) else phase
        for phase in phases
    ]


def spt_share(config: RunConfig) -> float:
    """Of a budget, the part of pretraining: 0 from scratch, and where somebody else has pretrained."""
    objective = config.pretrain and config.pretrain.objective
    if not (config.budget and objective) or isinstance(OBJECTIVES[objective.name], StartsElsewhere):
        return 0.0
    return config.budget.pretrain_share


def _allowed(config: RunConfig, task: Task, phase: Phase, budget: Budget) -> int:
    """The steps that a phase's part of the budget pays for.

    Raises:
        BadConfig: it does not pay for a single one.
    """
    pretrain = spt_share(config)
    part = pretrain if phase.name == "pretrain" else 1 - pretrain
    if budget.steps is not None:
        first = round(pretrain * budget.steps)
        allowed = first if phase.name == "pretrain" else budget.steps - first
    else:
        assert budget.flops is not None
        allowed = steps_within(phase, step_cost(config, task.spec, phase), part * budget.flops)
    if allowed < 1:
        raise BadConfig(f"budget: {part:.0%} of it does not pay for one step of {phase.name}; allow more")
    return allowed


def _scaled(spec: TaskSpec, train: Split) -> TaskSpec:
    """For real answers: the scale that makes those of the training examples 0 on average, with deviation 1.

    Raises:
        BadData: the answers are all the same.
    """
    if spec.answer != "values":
        return spec
    targets = train.labels.double()
    deviation = targets.std(correction=0).item()
    if deviation == 0:
        raise BadData(f"all {len(train)} training examples have the same target, {targets[0].tolist()}")
    return replace(spec, mean=targets.mean().item(), deviation=deviation)
