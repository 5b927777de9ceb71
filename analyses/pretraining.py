"""What a pretrained model answers: what it was given, what was asked, what it said, and what a trivial guess costs.

    loss       = sum of the objective's loss over asked steps / their number, the objective's own arithmetic
    accuracy   = share of the asked steps whose likeliest token, or choice, is the right one; ties count their share
    cosine     = cosine of the angle between answer and target, where the target is a representation

    constant   the answer that ignores its input: the tokens' frequencies, or the mean or median of each number,
               whichever costs less. It is fitted to these very targets, so a model that does no better has learned
               nothing that the inputs are needed for. Where the answer picks one of several, it is chance.
    copy       what is given at the same step, where nothing is hidden: the noisy value itself, the present one for the
               next

Each document is looked at alone, so without padding, under a mask that follows from its position and the run's seed.
A checkpoint holds no teacher (jepa): the pretrained model itself, seeing the whole input, stands in for the copy that
followed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor

from ssm_priors.analyses.models import origin
from ssm_priors.analyses.passes import looking
from ssm_priors.analyses.schema import check, index, labelled
from ssm_priors.batch import Batch
from ssm_priors.checkpoints.checkpoint import PRETRAINED, Checkpoint
from ssm_priors.errors import BadConfig, NotThere
from ssm_priors.models.build import Model
from ssm_priors.objectives.objective import HasChoices, HasTeacher, Objective, Problem
from ssm_priors.registry import OBJECTIVES
from ssm_priors.seeds import torch_stream
from ssm_priors.tasks.task import Split

NUMBERS = ("pretrain_loss", "accuracy", "mean_cosine")
"""What can be said of an answer."""
NO_TEACHER = "the pretrained model itself, for a checkpoint holds no teacher"


class Posed(NamedTuple):
    """One document and what is asked about it."""

    batch: Batch
    problem: Problem


def reconstructions(checkpoint: Checkpoint, split: Split, examples: int) -> xr.Dataset:
    """What the objective's own model answers on inputs, beside what was asked.

    Args:
        checkpoint: of the phase "pretrain", so with the head that the objective trained.
        split: inputs that it was not trained on; labels are not looked at.
        examples: how many of them, evenly spaced over the split, which may be sorted; of a pair, both documents.

    Returns:
        For every document, padded with NaN or -1 to the longest: value(example, step, feature) or token(example, step),
        the same `_given`, stand_in and is_asked; `_asked` and `_answered` where the objective asks for inputs,
        is_right where it asks to choose, cosine where it asks for a representation. And pretrain_loss(answer, example),
        with accuracy or mean_cosine where they are defined, and answers(example).

    Raises:
        NotThere: the weights are not those after pretraining.
        BadConfig: no example was asked for.
    """
    if checkpoint.phase != "pretrain":
        raise NotThere(f"these are the weights after finetuning, without the head of pretraining; {PRETRAINED} has it")
    if examples < 1:
        raise BadConfig(f"examples: {examples} was given; 1 or more was expected")
    objective, models = objective_of(checkpoint), {"init": checkpoint.initial_model(), "pretrained": checkpoint.model()}
    posed = pose(checkpoint, split, examples)
    with looking(models["init"]), looking(models["pretrained"]):
        posed = [_taught(objective, models["pretrained"], each) for each in posed]
        rows = {
            name: [_numbers(objective, _answers(model, each), each) for each in posed] for name, model in models.items()
        }
        steps = [_steps(objective, _answers(models["pretrained"], each), each) for each in posed]
    for name, guesses in _trivial(objective, posed).items():
        rows[name] = [_numbers(objective, guess, each) for guess, each in zip(guesses, posed, strict=True)]
    counts = np.array([int(each.problem.scored.sum()) for each in posed])
    return _dataset(rows, steps, counts, _attributes(checkpoint, objective))


def overall(dataset: xr.Dataset, name: str) -> dict[str, float]:
    """One of `NUMBERS` over all asked steps of all documents, by whose answer it is."""
    means = dataset[name].weighted(dataset.answers).mean("example")
    return {str(answer): float(means.sel(answer=answer)) for answer in means.answer.values}


def objective_of(checkpoint: Checkpoint) -> Objective:
    """The objective that a run was pretrained with; raises NotThere if it was trained from scratch."""
    part = checkpoint.config.pretrain and checkpoint.config.pretrain.objective
    if not part:
        raise NotThere("this run was trained from scratch; there is no pretraining to look at")
    made: Objective = OBJECTIVES[part.name](part.options, checkpoint.spec)
    return made


def pose(checkpoint: Checkpoint, split: Split, examples: int) -> list[Posed]:
    """Documents of a split, evenly spaced, each with its problem; the mask of one depends on no other."""
    objective, seed = objective_of(checkpoint), checkpoint.config.seed
    return [
        Posed(document, objective.pose(document, torch_stream(seed, "masks", "inspect", row, place)))
        for row in split.spread(examples).tolist()
        for place, document in enumerate(_documents(split.without_labels().take(torch.tensor([row]))))
    ]


def _documents(batch: Batch) -> Iterator[Batch]:
    """Each alone, without padding."""
    for inputs, length in zip(batch.inputs, batch.lengths, strict=True):
        yield Batch(inputs[None, : int(length)], length[None], None)


def _taught(objective: Objective, model: Model, posed: Posed) -> Posed:
    if not isinstance(objective, HasTeacher):
        return posed
    seen = model.represent(posed.batch.inputs, posed.batch.lengths)
    return posed._replace(problem=objective.taught(posed.problem, seen))


def _answers(model: Model, posed: Posed) -> Tensor:
    answers: Tensor = model(*posed.problem.given(posed.batch))
    return answers


# -- trivial answers


def _trivial(objective: Objective, posed: Sequence[Posed]) -> dict[str, list[Tensor]]:
    """The best constant answer to every document, and the copy where there is something to copy."""
    candidates = [[_everywhere(constant, each) for each in posed] for constant in _constants(objective, posed)]
    guesses = {"constant": min(candidates, key=lambda guesses: _cost(objective, guesses, posed))}
    if _asks_for_inputs(objective) and all(_is_shown(each) for each in posed):
        guesses["copy"] = [each.problem.given(each.batch)[0] for each in posed]
    return guesses


def _cost(objective: Objective, guesses: Sequence[Tensor], posed: Sequence[Posed]) -> float:
    scores = (objective.score(guess, each.problem)[0] for guess, each in zip(guesses, posed, strict=True))
    return sum(map(float, scores))


def _constants(objective: Objective, posed: Sequence[Posed]) -> list[Tensor]:
    """Answers (outputs,) of which one is the best constant."""
    if isinstance(objective, HasChoices):
        return [torch.zeros(objective.outputs or 1)]  # as like to one choice as to any other
    targets = torch.cat([each.problem.targets[each.problem.scored] for each in posed])
    if not targets.is_floating_point():
        return [torch.bincount(targets.long(), minlength=objective.outputs or 0).float().log()]
    return [targets.mean(0), targets.median(0).values]


def _everywhere(constant: Tensor, posed: Posed) -> Tensor:
    return constant.expand(*posed.problem.scored.shape, len(constant))


def _is_shown(posed: Posed) -> bool:
    return posed.problem.hidden is None and posed.problem.targets.is_floating_point()


def _asks_for_inputs(objective: Objective) -> bool:
    return not isinstance(objective, (HasChoices, HasTeacher))


# -- numbers and steps of one document


def _numbers(objective: Objective, answers: Tensor, posed: Posed) -> dict[str, float]:
    total, count = objective.score(answers, posed.problem)
    found = {"pretrain_loss": float(total) / count if count else np.nan}
    hits = _hits(objective, answers, posed.problem)
    if hits is not None:
        found["accuracy"] = float(hits.mean())
    if isinstance(objective, HasTeacher):
        found["mean_cosine"] = float(_cosines(answers, posed.problem).mean())
    return found


def _hits(objective: Objective, answers: Tensor, problem: Problem) -> Tensor | None:
    """(asked,), whether each answer is right; None where an answer is a number."""
    if isinstance(objective, HasChoices):
        logits = next(iter(objective.choices(answers, problem)))
        best = logits == logits.max(-1, keepdim=True).values
        return best.diagonal() / best.sum(-1)
    if isinstance(objective, HasTeacher) or problem.targets.is_floating_point():
        return None
    return (answers.argmax(-1) == problem.targets)[problem.scored].float()


def _cosines(answers: Tensor, problem: Problem) -> Tensor:
    return F.cosine_similarity(answers[problem.scored], problem.targets[problem.scored], dim=-1)


def _steps(objective: Objective, answers: Tensor, posed: Posed) -> dict[str, np.ndarray]:
    """Everything that is known step by step of one document, by the names of the schema."""
    problem, asked = posed.problem, posed.problem.scored
    inputs, _, hidden = problem.given(posed.batch)
    stand_in = torch.zeros(inputs.shape[:2], dtype=torch.long) if hidden is None else hidden.long()
    kind, nothing = ("value", torch.nan) if inputs.is_floating_point() else ("token", -1)
    found = {kind: posed.batch.inputs, f"{kind}_given": _where(stand_in == 0, inputs, nothing)}
    found |= {"stand_in": stand_in, "is_asked": asked.long()}
    if _asks_for_inputs(objective):
        said = answers if kind == "value" else answers.argmax(-1)
        found[f"{kind}_asked"] = _where(asked, problem.targets, nothing)
        found[f"{kind}_answered"] = _where(asked, said, nothing)
    elif isinstance(objective, HasTeacher):
        found["cosine"] = _scattered(asked, _cosines(answers, problem))
    elif (hits := _hits(objective, answers, problem)) is not None:
        found["is_right"] = _scattered(asked, hits)
    return {name: part[0].numpy() for name, part in found.items()}


def _where(kept: Tensor, values: Tensor, nothing: float) -> Tensor:
    return values.masked_fill(~(kept if values.ndim == 2 else kept[..., None]), nothing)


def _scattered(asked: Tensor, values: Tensor) -> Tensor:
    return torch.full(asked.shape, torch.nan).masked_scatter(asked, values)


# -- the whole


def _dataset(
    rows: dict[str, list[dict[str, float]]], steps: list[dict[str, np.ndarray]], counts: np.ndarray, attrs: dict
) -> xr.Dataset:
    variables = {"answers": labelled("answers", ["example"], counts)}
    for name in rows["pretrained"][0]:
        values = np.array([[row[name] for row in rows[answer]] for answer in rows])
        variables[name] = labelled(name, ["answer", "example"], values)
    longest = max(len(part) for each in steps for part in each.values())
    for name in steps[0]:
        values = np.stack([_padded(each[name], longest) for each in steps])
        variables[name] = labelled(name, ["example", "step", "feature"][: values.ndim], values)
    coords = index("answer", list(rows)) | index("example", range(len(steps))) | index("step", range(longest))
    if "value" in variables:
        coords |= index("feature", range(variables["value"].sizes["feature"]))
    return check(xr.Dataset(variables, coords, attrs))


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    """Up to a length, with what means that there is nothing."""
    fill = np.nan if values.dtype.kind == "f" else -1
    return np.pad(values, [(0, length - len(values)), *[(0, 0)] * (values.ndim - 1)], constant_values=fill)


def _attributes(checkpoint: Checkpoint, objective: Objective) -> dict[str, Any]:
    found = origin(checkpoint, "pretrained") | {"width": checkpoint.spec.width}
    return found | ({"teacher": NO_TEACHER} if isinstance(objective, HasTeacher) else {})
