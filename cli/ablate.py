"""`ssmp ablate`: a small study made from flags."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ssm_priors import presets
from ssm_priors.cli.conduct import Means
from ssm_priors.cli.output import Output
from ssm_priors.cli.study_folders import conduct_at
from ssm_priors.errors import BadConfig
from ssm_priors.registry import OBJECTIVES
from ssm_priors.studies.grid import NONE, Study


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for, in the words of `Study`."""

    inits: tuple[str, ...]
    pretrains: tuple[str, ...]
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    fractions: tuple[float, ...]
    budgets: dict[str, dict[str, Any]]
    variants: dict[str, dict[str, Any]]
    match_params: int
    seeds: int
    preset: str
    baseline: bool
    changes: dict[str, Any]


def ablate(request: Request, out: str | None, means: Means, output: Output) -> int:
    """Run the study, write and print its results; 1 if a run failed.

    Raises:
        SsmPriorsError: wrong use, found before any training.
    """
    if request.variants and not request.budgets:
        raise BadConfig("--spt-share: a share of what? Name a --budget, such as --budget flops=5e11")
    study = Study.from_dict(asdict(_one_sided_if_needed(request, output)))
    return conduct_at(out or f"ssmp-runs/ablate-{study.fingerprint}", study, means, output)


def _one_sided_if_needed(request: Request, output: Output) -> Request:
    """Where an objective needs one-sided models, make those of all cells one-sided, so that they stay comparable."""
    if not request.inits and not request.pretrains and len(request.models) < 2:
        raise BadConfig("nothing to ablate: name an --init, a --pretrain, or two models. See: ssmp ablate --help")
    needs = [name for name in request.pretrains if name != NONE and OBJECTIVES[name].requires_causal]
    model = request.changes.get("model", {})
    if not needs or not isinstance(model, dict) or "causal" in model:
        return request
    output.note(f"objective '{needs[0]}' needs one-sided models, so every cell of this study has model.causal = true")
    changes = presets.merge(request.changes, {"model": {"causal": True}})
    return Request(**(asdict(request) | {"changes": changes}))
