"""A runner as a process of its own: `python run_study.py FOLDER TOML WORKERS`; a line of JSON an event."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ssm_priors.errors import SsmPriorsError
from ssm_priors.registry import ENGINES
from ssm_priors.studies.engines.engine import Workers
from ssm_priors.studies.grid import Study
from ssm_priors.studies.runner import execute


def main() -> int:
    out, study, workers = Path(sys.argv[1]), Study.from_toml(sys.argv[2]), int(sys.argv[3])
    engine = ENGINES["local"](Workers(count=workers, device="cpu", save_every=0.0))
    try:
        for event in execute(study, out, engine):
            if event.kind != "step":
                print(json.dumps([event.kind, event.run and event.run.name, event.reason]), flush=True)
    except SsmPriorsError as error:
        print(json.dumps(["error", None, str(error)]), flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":  # workers import this file too
    sys.exit(main())
