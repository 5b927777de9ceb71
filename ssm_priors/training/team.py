"""One run over several devices: a process each, the same batches, the same weights, the gradients summed.

    gradient of a step = sum over devices of  grad(total of its share) / count over the whole batch

Every device takes the whole batch and poses the whole problem, as one device would, and works on its share of the
examples: so masks and noise are those of one device, and the mean is over all that is scored, not a mean of means. A
device without examples, in a batch smaller than the team, adds zeros. What differs from one device is the order in
which numbers are summed, and dropout, which every device draws for its own share. Norms over the batch would see a
share of it and are refused.

The first device is this process, which alone validates, tests and writes; the others are made for the run and end with
it. Numbers on the CPU go through gloo, gradients on CUDA through NCCL. Weights are whole on every device: there is no
sharding (FSDP), which models of this size do not need.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssm_priors.batch import Batch
from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig, RunFailed, SsmPriorsError
from ssm_priors.objectives.objective import Problem

PATIENCE = timedelta(days=1)
"""How long a device waits for the others while the first one validates; one that has died is noticed at once."""
SHORTLY = 1.0
"""Seconds; a device that breaks down says why before its connection breaks."""


@dataclass(frozen=True, slots=True)
class Team:
    """One device's place among those that work on a run together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the device that validates, tells and writes."""
        return self.rank == 0

    @property
    def stream(self) -> tuple[int, ...]:
        """What names its own random streams beside those of the run; nothing for the first."""
        return (self.rank,) if self.rank else ()

    def share(self, batch: Batch, problem: Problem) -> tuple[Batch, Problem]:
        """Its examples of a batch, and what is asked about them; they may be none."""
        if self.size == 1:
            return batch, problem
        examples = len(batch)

        def part(rows: Tensor) -> Tensor:  # (examples, ...), or (documents * examples, ...)
            each = len(rows) // examples
            return rows[each * (examples * self.rank // self.size) : each * (examples * (self.rank + 1) // self.size)]

        targets = None if batch.targets is None else part(batch.targets)
        own = replace(batch, inputs=part(batch.inputs), lengths=part(batch.lengths), targets=targets)
        whole = {field.name: getattr(problem, field.name) for field in fields(problem)}
        return own, replace(problem, **{name: part(rows) for name, rows in whole.items() if rows is not None})

    def sums(self, total: Tensor, count: int) -> tuple[Tensor, int]:
        """A share's loss and how much of it is scored -> those of the whole batch, the loss in float64."""
        if self.size == 1:
            return total, count
        both = torch.tensor([total.item(), count], dtype=torch.float64)
        dist.all_reduce(both)
        return both[0], int(both[1])

    def sum_gradients(self, model: nn.Module) -> None:
        """Give every device the sum of all gradients; a parameter that no device used keeps none."""
        if self.size == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = [parameter.grad for parameter in parameters]
        used = torch.tensor([float(grad is not None) for grad in own], device=parameters[0].device)
        parts = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(parameters, own, strict=True)]
        flat = torch.cat([used, *(part.flatten() for part in parts)])
        dist.all_reduce(flat)
        used, *sums = flat.split([len(used), *(len(part.flatten()) for part in parts)])
        for parameter, users, total in zip(parameters, used.tolist(), sums, strict=True):
            parameter.grad = total.view_as(parameter) if users else None

    def refuse_unequal(self, model: nn.Module) -> None:
        """Raise RunFailed if the devices' weights are not the same, bit for bit."""
        if self.size == 1:
            return
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        number = int.from_bytes(digest.digest()[:7], "big")
        ends = torch.tensor([number, -number])
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if ends[0] != -ends[1]:
            raise RunFailed(f"the weights on the {self.size} devices are no longer the same; train with --devices 1")


ALONE = Team()
"""One device."""


def refuse_devices(config: RunConfig, devices: int, kind: str) -> None:
    """Raise BadConfig where a run cannot work on so many devices of a kind ("cpu", "cuda")."""
    if devices < 1:
        raise BadConfig(f"devices {devices} was given; 1 or more was expected")
    if devices > 1 and config.model.norm == "batch":
        raise BadConfig(
            f"devices {devices} was given, but model.norm is batch: its statistics are those of a whole batch, of "
            "which each device sees a part. Use --devices 1, or another norm: --set model.norm=layer"
        )
    if kind == "cuda" and devices > torch.cuda.device_count():
        raise BadConfig(f"devices {devices} was given, but torch sees {torch.cuda.device_count()} CUDA devices here")


@contextmanager
def assembled(devices: int, kind: str, work: Callable[[Team], None]) -> Iterator[Team]:
    """A team of which this process is the first device; the others do `work`, which must be picklable.

    Raises:
        RunFailed: another device's process broke down, with its reason.
    """
    if devices == 1:
        yield ALONE
        return
    with tempfile.TemporaryDirectory(prefix="ssmp-") as folder:
        others = [_Other(Team(rank, devices), kind, Path(folder) / "store", work) for rank in range(1, devices)]
        try:
            for other in others:
                other.await_start()
            with _joined(Team(0, devices), kind, Path(folder) / "store") as team, _explained(others):
                yield team
        finally:
            for other in others:
                other.end()


@contextmanager
def _explained(others: list[_Other]) -> Iterator[None]:
    """Where a connection broke, say why; asked while the team is joined, for leaving it breaks connections."""
    try:
        yield
    except RuntimeError as error:  # what torch makes of a broken connection, and of much else
        if reasons := [reason for other in others if (reason := other.reason())]:
            raise RunFailed("\n".join(reasons)) from error
        raise


class _Other:
    """The first device's end of another device's process."""

    def __init__(self, team: Team, kind: str, store: Path, work: Callable[[Team], None]):
        context = multiprocessing.get_context("spawn")
        self.rank = team.rank
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, team, kind, store, work), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def await_start(self) -> None:
        """Wait until it is about to join; raises RunFailed if it never does."""
        try:
            self.pipe.recv()
        except EOFError:
            self.process.join()
            raise RunFailed(self._ended()) from None

    def reason(self) -> str:
        """Why it broke down; empty if it did not."""
        with suppress(EOFError):
            return f"device {self.rank}: {self.pipe.recv()}" if self.pipe.poll(SHORTLY) else ""
        self.process.join()
        return self._ended() if self.process.exitcode else ""

    def end(self) -> None:
        """Let it go, whatever it does: it writes nothing."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()

    def _ended(self) -> str:
        return f"the process of device {self.rank} ended with exit code {self.process.exitcode}"


def _work(pipe: Connection, team: Team, kind: str, store: Path, work: Callable[[Team], None]) -> None:
    """The life of another device's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first device decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send("here")
    with _joined(team, kind, store):
        try:
            work(team)
        except Exception as error:  # told to the first device, whose connection breaks when this process ends
            pipe.send(str(error) if isinstance(error, SsmPriorsError) else traceback.format_exc())


@contextmanager
def _joined(team: Team, kind: str, store: Path) -> Iterator[Team]:
    backend = "gloo"
    if kind == "cuda":
        torch.cuda.set_device(team.rank)
        backend = "cpu:gloo,cuda:nccl"
    meeting = dist.FileStore(str(store), team.size)
    dist.init_process_group(backend, store=meeting, rank=team.rank, world_size=team.size, timeout=PATIENCE)
    try:
        yield team
    finally:
        dist.destroy_process_group()


def _end_with_parent() -> None:
    """A killed parent says nothing, and this process could wait for it for long."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is another device's process
    parent.join()
    os._exit(1)
