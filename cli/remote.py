"""Commands on a study whose place is a URL: done in its folder on this machine, brought there and back."""

from __future__ import annotations

from ssm_priors.cli import conduct as here
from ssm_priors.cli.output import Output
from ssm_priors.cli.report import present
from ssm_priors.errors import RunFailed
from ssm_priors.studies.grid import Study
from ssm_priors.studies.remote import Depot, sight, sitting


def conduct(study: Study | None, url: str, means: here.Means, output: Output) -> int:
    """Run a study, or the one that is there, at a URL; 1 if a run failed or something could not be brought.

    Raises:
        SsmPriorsError: wrong use, found before any training.
    """
    if means.dry_run:
        return _foretell(study, url, means, output)
    with sitting(url, output.note) as depot:
        study = study or depot.study()
        depot.begin(study)
        code = here.conduct(study, depot.folder, means, output, depot)
        return max(code, _delivered(depot, output))


def report(url: str, output: Output) -> None:
    """Write the report of the study at a URL again."""
    with sitting(url, output.note) as depot:
        study = depot.study()
        depot.begin(study)
        present(study, depot.folder, output)
        if _delivered(depot, output):
            raise RunFailed(f"the report of {depot.store.name} is not there")


def _foretell(study: Study | None, url: str, means: here.Means, output: Output) -> int:
    """As a dry run of a folder; of a place where nothing is yet, as one of no folder."""
    with sight(url, output.note, must_be=study is None) as depot:
        return here.conduct(study or depot.study(), depot.folder, means, output)


def _delivered(depot: Depot, output: Output) -> int:
    """Bring what is left; 1 if it could not be brought."""
    if fault := depot.deliver():
        output.error(fault)
        return RunFailed.exit_code
    output.note(f"results, report and runs are at {depot.store.name}")
    return 0
