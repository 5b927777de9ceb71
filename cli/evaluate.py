"""`ssmp evaluate`: a finished checkpoint on its task's test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.cli.data import make_ready
from ssm_priors.cli.output import Output
from ssm_priors.errors import BadCheckpoint
from ssm_priors.metrics import ACCURACY, metric_of
from ssm_priors.registry import TASKS
from ssm_priors.studies.bootstrap import bootstrap
from ssm_priors.training.evaluate import Evaluation
from ssm_priors.training.evaluate import evaluate as evaluate_split
from ssm_priors.training.run import pick_device


def evaluate(path: Path, *, device: str, output: Output) -> int:
    """Print the metric with its interval, and whether it is the recorded one.

    Raises:
        BadCheckpoint: not a finished checkpoint.
        BadData: the task's data are not here.
    """
    checkpoint = Checkpoint.read(path)
    if checkpoint.phase != "finetune":
        raise BadCheckpoint(f"{path}: holds the weights after pretraining, which have no head for the task to test")
    metric = metric_of(checkpoint.spec)
    recorded = checkpoint.record.get("metrics", {}).get(f"test_{metric.name}")
    if not isinstance(recorded, float):
        raise BadCheckpoint(f"{path}: its record has no test {metric.title}")
    where, part = pick_device(device), checkpoint.config.task
    make_ready([part], output)
    task = TASKS[part.name].load(part.options)
    model, batch_size = checkpoint.model().to(where), checkpoint.config.finetune.batch_size
    result = evaluate_split(model, task.test, batch_size, where, checkpoint.spec)
    score = describe(checkpoint, result.predictions.numpy(), result.targets.numpy())
    same = recorded == result.value
    score |= {f"recorded_{metric.name}": recorded, "equals_recorded": same, "digest": checkpoint.digest}
    output.json(score)
    output.text(score["text"])
    output.text(f"equal to the recorded {metric.title}" if same else _difference(recorded, result))
    output.text(f"weights: {checkpoint.digest[:16]}")
    return 0


def describe(checkpoint: Checkpoint, prediction: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """The metric with its interval over test examples, in numbers and in words."""
    metric, config = metric_of(checkpoint.spec), checkpoint.config
    score = metric.score(prediction, target)
    value = bootstrap(score[None, None], metric=metric)
    low, high = map(metric.full, value[1:])
    text = (
        f"{config.model.mixer.name} on {config.task.name}: test {metric.title} {metric.full(value.estimate)} "
        f"[{low}, {high}], {len(score)} examples, 95% interval over examples"
    )
    numbers = {metric.name: value.estimate, "low": value.low, "high": value.high, "metric": metric.name}
    return numbers | {"unit": metric.unit, "examples": len(score), "text": text}


def _difference(recorded: float, result: Evaluation) -> str:
    metric = result.metric
    told = (
        f"the recorded {metric.title} is {metric.full(recorded)}: another machine, device or version rounds differently"
    )
    if metric != ACCURACY:
        return told
    return f"{told}, and {abs(round((result.value - recorded) * len(result.targets)))} examples fell on the other side"
