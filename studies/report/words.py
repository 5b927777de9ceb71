"""A study in sentences, from its configurations: the protocol of the report, and the methods paragraph to paste."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import xarray as xr

from ssm_priors.analyses.models import listed
from ssm_priors.config import ModelConfig, Part, PhaseConfig, RunConfig
from ssm_priors.models.protocols import HasSsmParameters
from ssm_priors.objectives.objective import StartsElsewhere
from ssm_priors.registry import INITS, MIXERS, OBJECTIVES, TASKS, source, summary
from ssm_priors.studies import bootstrap, space, statistics
from ssm_priors.studies.grid import NONE, TUNING_SEED, Cell, Study
from ssm_priors.studies.report.measures import measures, spoken
from ssm_priors.studies.results import at, is_cell
from ssm_priors.training import run as method
from ssm_priors.training.stages import spt_share

PRETRAINED = (
    "Pretraining saw the inputs of the task's own training examples and nothing else: no labels, no validation or test "
    "examples, no other data. Its head was then replaced, and all weights were finetuned on the labels of the same "
    "examples. From scratch is the same finetuning without the first phase. "
)
OUTSIDE = "None of this is said of weights that others pretrained, on data of which nothing is known here. "
SELECTED = "The weights with the best value of the validation metric (the first of equals) were tested, once."
LEARNED = {
    "class": "the cross-entropy of the labels",
    "tokens": "the cross-entropy of the labels at every asked position",
    "values": "the squared error of the labels, which were scaled to mean 0 and deviation 1 over the training examples",
}
"""What finetuning minimises, by `TaskSpec.answer`."""


def protocol(study: Study, results: xr.Dataset) -> list[tuple[str, str]]:
    """What was done: a lead word and its sentences, in the order in which it happened."""
    configs = {cell: study.config(cell, 0) for cell in study.cells()}
    is_tuned = study.tune is not None
    parts = [
        ("Tasks", tasks(configs, results)),
        ("Tuning", tuning(study)),
        ("Models", models(configs, results, is_tuned)),
        ("Pretraining", pretraining(configs, is_tuned)),
        ("Finetuning", finetuning(configs, results, is_tuned)),
        ("Selection", _what_pretraining_saw(configs) + SELECTED),
        ("Seeds", seeds(study)),
        ("Statistics", resampling(results)),
        ("Software", software(results)),
    ]
    return [(lead, text) for lead, text in parts if text]


def methods(study: Study, results: xr.Dataset) -> str:
    """The same as one paragraph, with its references."""
    text = " ".join(text for lead, text in protocol(study, results))
    return f"{text} References: {'; '.join(references(study))}."


def parts(study: Study) -> list[tuple[str, str, str, str]]:
    """Kind, name, what it is and source of everything the study chose by name."""
    cells = study.cells()
    chosen = [
        ("model", MIXERS, [cell.model for cell in cells]),
        ("init", INITS, [cell.init for cell in cells]),
        ("objective", OBJECTIVES, [cell.pretrain for cell in cells]),
        ("task", TASKS, [cell.task for cell in cells]),
    ]
    return [
        (kind, name, summary(registry[name]), source(registry[name]))
        for kind, registry, names in chosen
        for name in dict.fromkeys(names)
        if name != NONE
    ]


def references(study: Study) -> list[str]:
    """Sources of what was used, each once: the method, the parts, the statistics."""
    sources = [source(method), *(origin for *_, origin in parts(study)), source(bootstrap)]
    sources += [source(space)] if study.tune else []
    single = [each.strip().rstrip(".") for origin in sources for each in origin.split(";")]
    return list(dict.fromkeys(each for each in single if each))


def tasks(configs: dict[Cell, RunConfig], results: xr.Dataset) -> str:
    """Every task with its options, how much of it was seen, how many examples were tested, and by what metric."""
    seen: dict[str, int] = {}
    for cell, config in configs.items():
        text = f"{_with_options(cell.task, config.task)}, {_share(config, results.answer.sel(task=cell.task).item())}"
        passes = 0 if config.budget else config.finetune.epochs
        seen[text] = max(seen.get(text, 0), _count(results, cell, "finetune_examples", passes) if passes else 0)
    described = [text + (f" ({count:,} examples)" if count else "") for text, count in seen.items()]
    is_tested = results.score.notnull().any([dim for dim in results.score.dims if dim not in ("task", "example")])
    tested = {task: int(is_tested.sel(task=task).sum()) for task in results.task.values}
    sizes = listed([f"{count:,} test examples of {task}" for task, count in tested.items() if count])
    tests = f", and tested on {sizes}" if sizes else ""
    scored = _sentences((task, f"scored by {spoken(metric)}") for task, metric in measures(results).by_task.items())
    return f"Models were trained on {listed(described)}{tests}. {scored}"


def _share(config: RunConfig, answer: str) -> str:
    """How much of the training split was seen; where an example has no class, nothing can be stratified by it."""
    if config.fraction == 1:
        return "the whole training split"
    return f"{config.fraction:.3g} of the training split" + (", stratified by class" if answer == "class" else "")


TRIED = (
    "Every cell had {trials} before its runs, each with seed {seed:,}, which no run that is reported has: the same "
    "points of one space for all cells, from a scrambled Sobol sequence. Searched were {space}. {scratch}A trial ended "
    "with its validation and never saw a test example. The settings of the cell's best trial by the validation metric "
    "(the first of equals; one that failed counts as the worst) are those of all its runs."
)
FEWER = (
    "Settings of pretraining mean nothing from scratch, so there the same number of trials searched fewer settings. "
)


def tuning(study: Study) -> str:
    """How settings were chosen; empty where they were not."""
    if study.tune is None:
        return ""
    searched = listed([f"{path} {_range(given)}" for path, given in study.tune.space.items()])
    cells = study.cells()
    scratch = FEWER if len({len(study.searched(cell)) for cell in cells}) > 1 else ""
    trials = f"{study.tune.trials} trial{'' if study.tune.trials == 1 else 's'}"
    return TRIED.format(trials=trials, seed=TUNING_SEED, space=searched, scratch=scratch)


def _range(given: dict[str, Any]) -> str:
    """'from 0.001 to 0.1 (logarithmic)', or 'in 0, 0.1 and 0.2'."""
    if "values" in given:
        return f"in {listed([str(value) for value in given['values']])}"
    kinds = [word for key, word in (("whole", "whole numbers"), ("log", "logarithmic")) if given.get(key)]
    return f"from {given['low']:g} to {given['high']:g}" + (f" ({', '.join(kinds)})" if kinds else "")


def models(configs: dict[Cell, RunConfig], results: xr.Dataset, is_tuned: bool = False) -> str:
    """Every model's size and options, with the inits it was given."""
    sizes: dict[tuple[str, str], int] = {}
    for cell, config in configs.items():
        key = _named(cell, configs, is_tuned), _model(config.model)
        sizes[key] = max(sizes.get(key, 0), _count(results, cell, "parameters"))
    named = [(name, text + (f", {size:,} parameters" if size else "")) for (name, text), size in sizes.items()]
    inits: dict[str, list[str]] = {}
    for cell in configs:
        if cell.init != NONE and cell.init not in inits.setdefault(cell.model, []):
            inits[cell.model].append(cell.init)
    starts = [f"{model} began from {listed(names)}" for model, names in inits.items()]
    return _sentences(named, "had", "had") + (f" The state space of {listed(starts)}." if starts else "")


def pretraining(configs: dict[Cell, RunConfig], is_tuned: bool = False) -> str:
    """Objectives with their options, and how they were optimised; empty where nothing was pretrained."""
    named = [
        (_named(cell, configs, is_tuned), _pretrained(config.pretrain, cell, _long(config, "pretrain")))
        for cell, config in configs.items()
        if config.pretrain
    ]
    return _sentences(named)


def _pretrained(phase: PhaseConfig, cell: Cell, long: str) -> str:
    elsewhere = _elsewhere(cell)
    if elsewhere:
        return f"given {elsewhere.origin}, and took no step before it was finetuned"
    return f"pretrained with {_objective(phase)} {_phase(phase, cell, long)}"


def _elsewhere(cell: Cell) -> StartsElsewhere | None:
    part = None if cell.pretrain == NONE else OBJECTIVES[cell.pretrain]
    return part if isinstance(part, StartsElsewhere) else None


def _what_pretraining_saw(configs: Iterable[Cell]) -> str:
    pretrained = [cell for cell in configs if cell.pretrain != NONE]
    if not any(_elsewhere(cell) is None for cell in pretrained):
        return ""
    return PRETRAINED + (OUTSIDE if any(map(_elsewhere, pretrained)) else "")


def finetuning(configs: dict[Cell, RunConfig], results: xr.Dataset, is_tuned: bool = False) -> str:
    """How the labels were learned."""
    learned = {task: LEARNED[answer] for task, answer in zip(results.task.values, results.answer.values, strict=True)}
    return _sentences(
        (
            _named(cell, configs, is_tuned),
            f"finetuned on {learned[cell.task]}, {_phase(config.finetune, cell, _long(config, 'finetune'))}",
        )
        for cell, config in configs.items()
    )


def seeds(study: Study) -> str:
    """How often, and what the runs of a seed share."""
    number = f"{study.seeds} seeds (0 to {study.seeds - 1})" if study.seeds > 1 else "one seed (0)"
    return f"Every cell was trained with {number}; runs with the same seed share data order, training subset and masks."


WILSON = "An accuracy of exactly 0 or 100% has Wilson's interval. "
ROOTED = "The RMSE of a cell is the mean of those of its runs. "
STATISTICS = (
    "All runs of a task are tested on the same examples, so differences are paired: 95% percentile intervals of "
    f"{bootstrap.RESAMPLES:,} bootstrap resamples, each drawing the test examples once for all runs and the seeds "
    "once for all cells. Because few seeds make such intervals too narrow and do not show their skew, the part that "
    "comes from seeds is widened as Student's t asks, and the interval of several seeds reaches equally far to both "
    "sides. {special}With one seed an interval covers test examples "
    f"only, and says nothing about training again; with fewer than {statistics.CLAIM_SEEDS} seeds, or where a run "
    "failed, no claim is made."
)


def resampling(results: xr.Dataset) -> str:
    """How intervals are made; what is special about a metric is said where the study has it."""
    metrics = measures(results).different
    special = WILSON if any(metric.is_share for metric in metrics) else ""
    special += ROOTED if any(metric.rooted for metric in metrics) else ""
    return STATISTICS.format(special=special)


def software(results: xr.Dataset) -> str:
    """Versions and devices, as recorded by the runs; empty where none is done."""
    records = [record for found in json.loads(results.attrs["provenance"]).values() for record in found]
    versions = [(name, number) for record in records for name, number in _versions(record)]
    if not versions:
        return ""
    devices = list(dict.fromkeys(str(record["device"]) for record in records if "device" in record))
    where = f" on {listed(devices)}" if devices else ""
    return f"Everything was run with {listed([' '.join(each) for each in dict.fromkeys(versions)])}{where}."


def flat(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """'versions.torch = 2.6' for every leaf of a nested mapping."""
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from flat(value, name)
        else:
            yield f"{name} = {value}"


def _named(cell: Cell, cells: Iterable[Cell], is_tuned: bool) -> str:
    """A model, with its task where there are several: settings may differ by both; where they were tuned, the cell."""
    name = f"'{cell.label}'" if is_tuned else cell.model
    return f"{name} on {cell.task}" if len({each.task for each in cells}) > 1 else name


def _sentences(named: Iterable[tuple[str, str]], one: str = "was", several: str = "were") -> str:
    """A sentence for each text, naming what it holds for: 's4d and dss were finetuned on ...'."""
    groups: dict[str, dict[str, None]] = {}
    for name, text in named:
        groups.setdefault(text, {})[name] = None
    verbs = {text: one if len(names) == 1 else several for text, names in groups.items()}
    return " ".join(f"{listed(list(names))} {verbs[text]} {text}." for text, names in groups.items())


def _model(config: ModelConfig) -> str:
    options = _options(config.mixer, without=("init",))
    parts = [
        f"{config.layers} layer{'s' if config.layers > 1 else ''} of {config.d_model} channels",
        *([options] if options else []),
        f"feed-forward of {config.feed_forward_width} channels" if config.feed_forward_width else "no feed-forward",
        f"{config.norm} normalisation" + (" after each residual sum" if config.norm_position == "post" else ""),
        f"{'tied ' if config.tied_dropout else ''}dropout {config.dropout:g}",
        *([] if config.positions == "none" else [f"{config.positions} positions"]),
        "causal" if config.causal else "two-sided",
        *([] if config.pooling == "mean" else [f"read out by {config.pooling} pooling"]),
        *([] if config.head == "linear" else ["a head with one hidden layer"]),
    ]
    return ", ".join(parts)


def _objective(phase: PhaseConfig) -> str:
    return f"the objective {_with_options(phase.objective.name, phase.objective)}" if phase.objective else ""


def _with_options(name: str, part: Part) -> str:
    """'mnist (pool 2)'."""
    options = _options(part)
    return f"{name} ({options})" if options else name


def _long(config: RunConfig, phase: str) -> str:
    """How long a phase was: '40 epochs', or its part of a budget."""
    budget = config.budget
    if budget is None:
        return f"{getattr(config, phase).epochs} epochs"
    first = spt_share(config)
    share = first if phase == "pretrain" else 1 - first
    amount = f"{budget.steps:,} steps" if budget.steps is not None else f"{budget.flops:.3g} FLOP"
    return f"as many steps as {share:.0%} of {amount} pay for" if first else f"{amount}"


def _phase(phase: PhaseConfig, cell: Cell, long: str) -> str:
    """How long and how, with the rates of what the model trains apart, if it has any such."""
    apart = f"{phase.ssm_learning_rate:g} for A, dt and their like"
    if phase.dt_learning_rate is not None and hasattr(MIXERS[cell.model].Config, "dt_min"):
        apart = f"{phase.ssm_learning_rate:g} for A and its like, {phase.dt_learning_rate:g} for dt"
    rate = f"{phase.learning_rate:g}{f' ({apart})' if issubclass(MIXERS[cell.model], HasSsmParameters) else ''}"
    memory = "" if phase.beta2 == 0.999 else f" (beta2 {phase.beta2:g})"
    decay = f"{phase.weight_decay:g}{' of biases and norms too' if phase.decay_vectors and phase.weight_decay else ''}"
    clipping = f"gradients clipped to {phase.clip:g}" if phase.clip else "no clipping of gradients"
    return (
        f"for {long} in batches of {phase.batch_size} by AdamW{memory}, with a peak learning rate of "
        f"{rate}, weight decay {decay}, {_course(phase)}, and {clipping}"
    )


def _course(phase: PhaseConfig) -> str:
    """'a linear warm-up over 10% of the steps and half a cosine to 0'."""
    ramp = f"{phase.warmup_steps:,} steps" if phase.warmup_steps else f"{phase.warmup:.0%} of the steps"
    then = {
        "cosine": "half a cosine to 0",
        "constant": "a constant rate",
        "multistep": f"a rate that falls to {phase.step_factor:.0%} of itself every {phase.step_epochs} epochs",
    }[phase.schedule]
    return (
        f"a linear warm-up over {ramp} and {then}" if phase.warmup_steps or phase.warmup else f"no warm-up and {then}"
    )


def _options(part: Part, without: tuple[str, ...] = ()) -> str:
    """'d_state 32, discretisation zoh' of a part chosen by name."""
    values = {field.name: getattr(part.options, field.name) for field in fields(part.options)}
    return ", ".join(f"{name} {value}" for name, value in values.items() if name not in without and value is not None)


def _versions(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "ssm_priors" in record:
        yield "ssm-priors", str(record["ssm_priors"])
    if "python" in record:
        yield "Python", str(record["python"])
    yield from ((str(name), str(number)) for name, number in record.get("versions", {}).items())


def _count(results: xr.Dataset, cell: Cell, name: str, parts: int = 1) -> int:
    """A number that the runs of a cell share, divided by `parts`; 0 where none is recorded."""
    if not is_cell(results, cell):
        return 0
    values = at(results[name], cell).values
    known = values[values == values]
    return round(float(known[0]) / parts) if len(known) else 0
