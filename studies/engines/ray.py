"""Runs as Ray tasks: on a cluster (its address given, or in RAY_ADDRESS), or on workers started for the study.

The study folder must be on a file system that every node sees under the same path: workers write their runs there, and
only what they tell about their progress goes through Ray. A study at a URL needs no such file system: each worker
trains in a folder of its node, and brings the run to the store. Prepared data must be on every node under the same
path, and the package installed. A worker that dies loses its own run only.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from typing import Any

from ssm_priors.config import RunConfig
from ssm_priors.errors import BadConfig, NotReady
from ssm_priors.registry import ENGINES
from ssm_priors.studies.engines.engine import Job, Message, Workers, perform

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Nothing is sent to Ray's makers, and nothing is said that the user did not ask for."""
KNOCK = 10.0
"""Seconds that a cluster has to answer."""
LOOK = 0.1
"""Seconds between looks into the mailbox."""


@ENGINES.register("ray")
class RayEngine:
    """Ray tasks with needs of CPUs and GPUs, on a cluster (--address) or on this machine; needs the extra [ray]."""

    def __init__(self, workers: Workers):
        os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
        try:
            import ray
        except ModuleNotFoundError as missing:
            raise NotReady("--engine ray needs Ray, which is not installed: pip install 'ssm-priors[ray]'") from missing
        self.ray: Any = ray
        self.workers = workers
        self.was_there = ray.is_initialized()
        if not self.was_there:
            _connect(ray, workers)
        gpus = int(_uses_gpu(ray, workers))
        needs = {"num_cpus": workers.threads, "num_gpus": gpus, "max_retries": 0}
        found = ray.cluster_resources()
        room = found.get("GPU", 0) if gpus else found.get("CPU", 0) // workers.threads
        self.count = max(1, min(workers.count, int(room)))
        self._perform = self.ray.remote(**needs)(_perform)
        self._mailbox = self.ray.remote(num_cpus=0)(_Mailbox).remote()
        self._tasks: dict[Any, str] = {}
        self.is_closed = False

    @property
    def free(self) -> int:
        """How many more tasks there is room for, as far as others leave it."""
        return self.count - len(self._tasks)

    def start(self, job: Job) -> None:
        """Make it a task."""
        task = self._perform.remote(job.config.to_dict(), job.folder.absolute(), self.workers, self._mailbox)
        self._tasks[task] = job.name

    def wait(self, seconds: float) -> list[Message]:
        """What the mailbox holds, then how tasks ended."""
        until = time.monotonic() + seconds
        while True:
            ended = self._ended()
            told = self.ray.get(self._mailbox.take.remote()) + [self._end(task) for task in ended]
            if told or time.monotonic() >= until:
                return told

    def close(self) -> None:
        """Cancel what is running; end the workers if they were started for this study."""
        if self.is_closed:
            return
        self.is_closed = True
        for task in self._tasks:
            self.ray.cancel(task, force=True)
        self.ray.kill(self._mailbox)
        if not self.was_there:
            self.ray.shutdown()

    def _ended(self) -> list[Any]:
        """Tasks that have ended; waits a little for the first."""
        if not self._tasks:
            time.sleep(LOOK)
            return []
        if not self.ray.wait(list(self._tasks), timeout=LOOK)[0]:
            return []
        ended: list[Any] = self.ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)[0]
        return ended

    def _end(self, task: Any) -> Message:
        name = self._tasks.pop(task)
        try:
            message: Message = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return Message(name, "died", f"the Ray task ended: {str(error).strip().splitlines()[0]}")
        return message


class _Mailbox:
    """An actor that keeps what tasks tell until the runner takes it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def put(self, message: Message) -> None:
        self.messages.append(message)

    def take(self) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken


def _perform(raw: dict[str, Any], folder: Any, workers: Workers, mailbox: Any) -> Message:
    """A task: one run, in a worker process of Ray's."""
    job = Job(RunConfig.from_dict(raw), folder)
    if not workers.store:
        return perform(job, workers, mailbox.put.remote)
    from ssm_priors.studies.afar import perform_afar

    return perform_afar(job, workers, mailbox.put.remote)


def _connect(ray: Any, workers: Workers) -> None:
    """To the cluster that was named, or to workers that are started here; raises BadConfig."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("SSMP_")}
    settings: dict[str, Any] = {
        "runtime_env": {"env_vars": environment | {"OMP_NUM_THREADS": str(workers.threads)}},
        "log_to_driver": False,
        "configure_logging": False,
    }
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = workers.address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        here = {"num_cpus": workers.count * workers.threads, "include_dashboard": False}
        ray.init(address="local", **here, **settings)
        return
    try:
        _knock(address)
        ray.init(address=address, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadConfig(f"no Ray cluster answers at {address}: {reason}. Is it running (ray start --head)?") from error


def _knock(address: str) -> None:
    """Find out in seconds whether a HOST:PORT listens, for which Ray takes minutes; raises OSError."""
    if match := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address):
        socket.create_connection((match[1], int(match[2])), timeout=KNOCK).close()


def _uses_gpu(ray: Any, workers: Workers) -> bool:
    """Whether a run needs a GPU to itself: it was asked for, or may use one and the cluster has some."""
    return workers.device == "cuda" or (workers.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
