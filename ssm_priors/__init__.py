"""ssm-priors: does a gap between long-sequence models come from the architecture, or from where training began?

The tour, bottom up: `priors` (what theory prescribes, NumPy), `ops` (arithmetic that trains, torch), `models`,
`objectives` and `tasks` (the parts of a run), `training` (the two phases of self-pretraining), `checkpoints`
(what a run leaves), `analyses` (checkpoint -> labelled data -> chart), `studies` (grids, statistics, reports)
and `cli` (the command `ssmp`).

    >>> import ssm_priors
    >>> checkpoint = ssm_priors.load("ckpt.pt")  # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssm_priors.checkpoints.checkpoint import Checkpoint
    from ssm_priors.checkpoints.foreign import ForeignCheckpoint

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

_here = Path(__file__).parent
if not (_here / "cli").is_dir():  # in a wheel the rooms lie inside this folder, in a checkout beside it
    __path__.append(str(_here.parent))


def load(path: str | Path) -> Checkpoint | ForeignCheckpoint:
    """Open a checkpoint of this package, or one of the public code in `ssm_priors.registry.FORMATS`.

    Args:
        path: a `ckpt.pt`; or a torch file (.pt, .pth, .ckpt) or .safetensors of other code. No code in it is run.

    Raises:
        BadCheckpoint: the file is missing, damaged, or of no known family; then its parameters are listed.
    """
    from ssm_priors.checkpoints.load import load

    return load(path)
