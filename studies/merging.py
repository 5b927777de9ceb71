"""Several study folders -> one: the runs of studies that were made with the same settings, side by side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssm_priors import atomic, presets
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.errors import BadConfig
from ssm_priors.folder import LOCK, claimed
from ssm_priors.studies import tuning
from ssm_priors.studies.grid import Study
from ssm_priors.studies.ledger import Ledger
from ssm_priors.studies.runner import STUDY, Run, plan
from ssm_priors.training.run import CHECKPOINT

UNITED = ("models", "inits", "pretrains", "tasks")
"""Axes whose values are put together; shares of the data, seeds and baselines besides, each in its own way."""
LEFT_BEHIND = shutil.ignore_patterns(LOCK, ".*.tmp")
"""What belongs to a process, not to a run."""


def unite(studies: Mapping[Path, Study], out: Path) -> tuple[Study, list[str]]:
    """Put the runs of several studies into one new folder.

    Args:
        studies: folder -> the study in it.
        out: a new or an empty folder, or one where the same merge was begun before.

    Returns:
        The whole study, and what there is to tell about it.

    Raises:
        BadConfig: fewer than two studies, other settings, or an `out` that holds something else.
    """
    if len(studies) < 2:
        raise BadConfig("one study folder was given; two or more different ones were expected")
    whole = _whole(list(studies.values()))
    with claimed(out, STUDY, whole.to_toml(), lambda path: _refuse_other(whole, path)):
        tuning.unite(studies, out)
        runs = plan(whole, out)
        notes = [note for run in runs if not run.is_done and (note := _take(run, list(studies)))]
        ledger = Ledger(out)
        ledger.plan({run.name: run.state for run in runs})
        ledger.close()
    missing = sum(not run.is_done for run in runs)
    if missing:
        notes.append(f"{missing} of {len(runs)} runs are not done; to do them: ssmp study resume {out}")
    return whole, notes


def _whole(studies: Sequence[Study]) -> Study:
    """The grid that holds them all; raises BadConfig where there is none."""
    tables = [study.to_dict() for study in studies]
    first = tables[0]
    names = dict.fromkeys(name for table in tables for name in table)
    same = [name for name in names if name not in (*UNITED, "fractions", "seeds", "baseline")]
    if unlike := [name for name in same if any(table.get(name) != first.get(name) for table in tables)]:
        raise BadConfig(f"these studies were made with other settings: {', '.join(unlike)} differ; they stay apart")
    axes: dict[str, Any] = {name: _together([table[name] for table in tables]) for name in UNITED}
    axes |= {"fractions": _fractions(studies), "seeds": max(study.seeds for study in studies)}
    wanted = {config.fingerprint for study in studies for *_, config in study.runs()}
    for baseline in dict.fromkeys((any(study.baseline for study in studies), True)):
        whole = Study.from_dict(first | axes | {"baseline": baseline})
        if wanted <= {config.fingerprint for *_, config in whole.runs()}:
            return whole
    raise BadConfig("no one grid holds all runs of these studies; they stay apart")


def _together(values: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for one in values for value in one))


def _fractions(studies: Sequence[Study]) -> tuple[float, ...]:
    """None if nobody named any; else also the preset's, for those who did not."""
    if not any(study.fractions for study in studies):
        return ()
    named = (
        study.fractions or tuple(presets.fraction(study.settings, task) for task in study.tasks) for study in studies
    )
    return _together(list(named))


def _take(run: Run, folders: Sequence[Path]) -> str:
    """Bring a run from the first folder where it is well and done, or else begun; gives what there is to tell."""
    here = [replace(run, folder=folder / "runs" / run.name) for folder in folders]
    well = [one for one in here if one.folder.exists() and not one.damage()]
    done = [one for one in well if one.is_done]
    if not well:
        return ""
    source = (done or well)[0]
    copy = _link if source.is_done else shutil.copy2
    run.folder.parent.mkdir(exist_ok=True)
    atomic.write_folder(run.folder, _filled(source.folder, copy))
    if len({Checkpoint.read(one.folder / CHECKPOINT).digest for one in done}) > 1:
        places = " and ".join(str(one.folder) for one in done)
        return f"{run.label}: {places} hold different weights; the first are taken"
    return ""


def _filled(source: Path, copy: Callable[[str, str], object]) -> Callable[[Path], object]:
    return lambda fresh: shutil.copytree(source, fresh, ignore=LEFT_BEHIND, copy_function=copy)


def _link(source: str, target: str) -> None:
    """Files of a finished run are replaced, never written into, so two folders may share them."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _refuse_other(whole: Study, path: Path) -> None:
    if Study.read(path) != whole:
        raise BadConfig(f"{path.parent} holds another study; choose a new folder")
