"""Trains a run undisturbed, and again while being killed: `python kill_and_resume.py FOLDER CONFIG SEED`.

Everything is imported once; each sitting of the disturbed run is a forked child that ends by SIGKILL, either from
outside at a random moment or by itself in the middle of writing a file. Prints how each sitting ended, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ssm_priors import atomic
from ssm_priors.config import RunConfig
from ssm_priors.training.journal import Journal
from ssm_priors.training.run import run


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_write(countdown: int, names: set[str], note: Path) -> None:
    """Die when the `countdown`-th write of a file in `names` is half done."""
    write, left = atomic.write, [countdown]

    def broken(path, fill):
        if path.name in names:
            left[0] -= 1
            if left[0] == 0:
                note.write_text(path.name)
                with open(path.with_name(f".{path.name}.{os.getpid()}.tmp"), "wb") as half:
                    fill(half)
                    half.truncate(max(half.tell() // 2, 1))
                die()
        write(path, fill)

    atomic.write = broken


def die_before_rename(countdown: int) -> None:
    replace, left = os.replace, [countdown]

    def broken(source, target):
        left[0] -= 1
        if left[0] == 0:
            die()
        replace(source, target)

    os.replace = broken


def die_in_row(countdown: int) -> None:
    """Die with half a row of the metrics on the disk."""
    row, left = Journal.row, [countdown]

    def broken(self, values):
        row(self, values)
        left[0] -= 1
        if left[0] == 0:
            self._metrics.flush()
            os.ftruncate(self._metrics.fileno(), os.fstat(self._metrics.fileno()).st_size - 9)
            die()

    Journal.row = broken


def sitting(config: RunConfig, folder: Path, harm, save_every: float) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if callable(harm):
                harm()
            run(config, folder, device="cpu", threads=1, save_every=save_every)
            code = 0
        finally:
            os._exit(code)
    if isinstance(harm, float):
        time.sleep(harm)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    folder, config = Path(sys.argv[1]), RunConfig.from_toml(Path(sys.argv[2]).read_text())
    rng = random.Random(int(sys.argv[3]))
    torch.set_num_threads(1)
    short = replace(config.finetune, epochs=1)
    run(replace(config, finetune=short), folder / "warm", device="cpu")  # every lazy import is done before the forks

    ends = []

    def sit(name: str, harm, where: str = "disturbed", save_every: float = 0.0) -> None:
        ends.append([name, sitting(config, folder / where, harm, save_every)])

    began = time.monotonic()
    sit("undisturbed", None, "undisturbed", 1e9)
    took = time.monotonic() - began
    for _ in range(2):
        sit("a random moment", rng.uniform(0.1, 0.3) * took)
        sit("half a row", partial(die_in_row, rng.randint(1, 3)))
        sit("before a rename", partial(die_before_rename, rng.randint(3, 4)))
        sit("half a state", partial(die_in_write, rng.randint(1, 3), {"state.pt"}, folder / "note"))
    once = {"pretrained.pt", "test.npz", "ckpt.pt"}
    while once:
        sit("half a result", partial(die_in_write, 1, once, folder / "note"))
        if ends[-1][1] == 0:
            break
        ends[-1][0] = f"half a {(folder / 'note').read_text()}"
        once.discard((folder / "note").read_text())
    sit("to the end", None)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
