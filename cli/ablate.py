"""`ssmp ablate`: a small study made from flags."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssm_priors import presets
from ssm_priors.cli.data import make_ready
from ssm_priors.cli.live import watch
from ssm_priors.cli.output import Output
from ssm_priors.cli.report import present
from ssm_priors.errors import BadConfig, RunFailed
from ssm_priors.registry import ENGINES, OBJECTIVES
from ssm_priors.studies.engines.engine import Workers
from ssm_priors.studies.grid import NONE, Study
from ssm_priors.studies.runner import execute, plan, workers_for
from ssm_priors.training.provenance import kernels
from ssm_priors.training.run import pick_device, preflight


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for, in the words of `Study`."""

    inits: tuple[str, ...]
    pretrains: tuple[str, ...]
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: int
    preset: str
    baseline: bool
    changes: dict[str, Any]


def ablate(
    request: Request,
    *,
    out: Path | None,
    device: str,
    jobs: int | None,
    threads: int,
    save_every: float,
    malloc_tuning: bool,
    output: Output,
) -> int:
    """Run the study, write and print its results; 1 if a run failed.

    Raises:
        SsmPriorsError: wrong use, found before any training.
    """
    study = Study.from_dict(asdict(_one_sided_if_needed(request, output)))
    where = pick_device(device)
    make_ready({study.config(cell, seed=0).task: None for cell in study.cells()}, output)
    for cell in study.cells():
        preflight(study.config(cell, seed=0))
    out = out or Path("ssmp-runs") / f"ablate-{study.fingerprint}"
    runs = plan(study, out)
    workers = jobs or workers_for(len(runs), threads)
    engine = ENGINES["local"](
        Workers(count=workers, threads=threads, device=device, save_every=save_every, malloc_tuning=malloc_tuning)
    )
    output.note(f"{len(study.cells())} cells, {len(runs)} runs, {workers} at a time, in {out}")
    output.note(f"kernels: {kernels(where)}")
    failed = watch(execute(study, out, engine), runs, output)
    present(study, out, output)
    return RunFailed.exit_code if failed else 0


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
