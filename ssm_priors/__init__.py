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

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

_here = Path(__file__).parent
if not (_here / "cli").is_dir():  # in a wheel the rooms lie inside this folder, in a checkout beside it
    __path__.append(str(_here.parent))


def load(path: str | Path) -> Checkpoint:
    """Open a checkpoint written by this package.

    Args:
        path: a `ckpt.pt` file.

    Raises:
        BadCheckpoint: the file is missing, truncated, of another tool, or holds anything but plain tensors.
    """
    from ssm_priors.checkpoints.checkpoint import Checkpoint

    return Checkpoint.read(path)
