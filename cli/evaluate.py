"""`ssmp evaluate`: a finished checkpoint on its task's test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.cli.output import Output
from ssm_priors.errors import BadCheckpoint
from ssm_priors.registry import TASKS
from ssm_priors.studies.statistics import bootstrap
from ssm_priors.training.evaluate import Evaluation
from ssm_priors.training.evaluate import evaluate as evaluate_split
from ssm_priors.training.run import pick_device


def evaluate(path: Path, *, device: str, output: Output) -> int:
    """Print the accuracy with its interval, and whether it is the recorded one.

    Raises:
        BadCheckpoint: not a finished checkpoint.
        BadData: the task's data are not here.
    """
    checkpoint = Checkpoint.read(path)
    if checkpoint.phase != "finetune":
        raise BadCheckpoint(f"{path}: holds the weights after pretraining, which have no classification head to test")
    where = pick_device(device)
    task = TASKS[checkpoint.config.task.name].load(checkpoint.config.task.options)
    batch_size = checkpoint.config.finetune.batch_size
    result = evaluate_split(checkpoint.model().to(where), task.test, batch_size, where)
    score = describe(checkpoint, result.predictions.numpy(), result.targets.numpy())
    recorded = checkpoint.record.get("metrics", {}).get("test_accuracy")
    if not isinstance(recorded, float):
        raise BadCheckpoint(f"{path}: its record has no test accuracy")
    same = recorded == result.accuracy
    score |= {"recorded_accuracy": recorded, "equals_recorded": same, "digest": checkpoint.digest}
    output.json(score)
    output.text(score["text"])
    output.text("equal to the recorded accuracy" if same else _difference(recorded, result))
    output.text(f"weights: {checkpoint.digest[:16]}")
    return 0


def describe(checkpoint: Checkpoint, prediction: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Accuracy with its interval over test examples, in numbers and in words."""
    correct = prediction == target
    score = bootstrap(correct[None, None])
    text = (
        f"{checkpoint.config.model.mixer.name} on {checkpoint.config.task.name}: test accuracy {score.estimate:.1%} "
        f"[{score.low:.1%}, {score.high:.1%}], {len(correct)} examples, 95% interval over examples"
    )
    return {
        "accuracy": score.estimate,
        "low": score.low,
        "high": score.high,
        "examples": len(correct),
        "text": text,
    }


def _difference(recorded: float, result: Evaluation) -> str:
    return (
        f"the recorded accuracy is {recorded:.1%}: another machine, device or version rounds differently, "
        f"and {abs(round((result.accuracy - recorded) * len(result.targets)))} examples fell on the other side"
    )
