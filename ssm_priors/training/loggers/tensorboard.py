"""Event files for TensorBoard, in the run's folder under `tensorboard/`; to be seen by `tensorboard --logdir`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ssm_priors.config import RunConfig
from ssm_priors.errors import NotReady
from ssm_priors.registry import LOGGERS
from ssm_priors.training.loggers.logger import Row, numbers

FOLDER = "tensorboard"


@LOGGERS.register("tensorboard")
class TensorBoard:
    """Event files for TensorBoard; needs the extra [tensorboard]."""

    def __init__(self, folder: Path, config: RunConfig):
        from torch.utils.tensorboard import SummaryWriter

        place = folder / FOLDER
        for earlier in place.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._writer = SummaryWriter(str(place))

    @staticmethod
    def refuse_missing() -> None:
        """Raise NotReady if TensorBoard is not installed."""
        if find_spec("tensorboard") is None:
            raise NotReady(
                "--logger tensorboard needs TensorBoard, which is not installed: pip install 'ssm-priors[tensorboard]'"
            )

    def row(self, number: int, values: Row) -> None:
        """A point on each curve, at the phase's own step."""
        for name, value in numbers(values).items():
            self._writer.add_scalar(name, value, int(values["step"]))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
