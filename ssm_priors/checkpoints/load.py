"""Any checkpoint that this package can look into: its own, or one of the families in `registry.FORMATS`."""

from __future__ import annotations

from pathlib import Path

from ssm_priors.checkpoints import archive
from ssm_priors.checkpoints.checkpoint import Checkpoint
from ssm_priors.checkpoints.foreign import ForeignCheckpoint


def load(path: str | Path) -> Checkpoint | ForeignCheckpoint:
    """Open a checkpoint; no code in it is run.

    Args:
        path: a `ckpt.pt` of this package, a torch file (.pt, .pth, .ckpt) or a .safetensors of other code.

    Returns:
        Either has `mixers`-bearing layers with the skills of `ssm_priors.models.protocols`: `Checkpoint.model().mixers`
        and `ForeignCheckpoint.mixers`.

    Raises:
        BadCheckpoint: the file is missing, damaged, or of no known family; then its parameters are listed.
    """
    if archive.is_ours(Path(path)):
        return Checkpoint.read(path)
    return ForeignCheckpoint.read(path)
