"""IDX files, in which MNIST is offered: as they are or as .gz, read block by block.

    two bytes 0, type 8 (bytes), number of axes, the length of each axis in 4 bytes with the highest first, the values

At most as many bytes are read, or decompressed, as the head announces and the caller expects.

Source: LeCun, Cortes and Burges, The MNIST database of handwritten digits, section on file formats.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from ssm_priors.errors import BadData


def find(folder: Path, name: str) -> Path:
    """The file of an official name such as 'train-images-idx3-ubyte', as it is or as .gz.

    Raises:
        BadData: it is not in the folder.
    """
    for candidate in (name, name.replace("-idx", ".idx"), f"{name}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise BadData(f"{folder} has neither {name} nor {name}.gz")


def blocks(path: Path, shape: tuple[int, ...], together: int) -> Iterator[np.ndarray]:
    """The values along the first axis, at most `together` at a time.

    Args:
        path: the file.
        shape: what its head must say.
        together: entries of the first axis a block.

    Raises:
        BadData: another head, more or fewer values, or a .gz that is damaged.
    """
    with _opened(path) as file:
        head = 4 * (1 + len(shape))
        expected = bytes([0, 0, 8, len(shape)]) + b"".join(axis.to_bytes(4, "big") for axis in shape)
        found = file.read(head)
        if found != expected:
            raise BadData(f"{path} begins with {_told(found)}; expected {_told(expected)}")
        for start in range(0, shape[0], together):
            block = (min(together, shape[0] - start), *shape[1:])
            values = file.read(prod(block))
            if len(values) < prod(block):
                raise BadData(f"{path} ends within the entries {start} to {start + block[0] - 1} of {shape[0]}")
            yield np.frombuffer(values, np.uint8).reshape(block)
        if file.read(1):
            raise BadData(f"{path} goes on behind its {shape[0]} entries")


def read(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """All values of a small file; raises BadData as `blocks` does."""
    return np.concatenate(list(blocks(path, shape, shape[0])))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} cannot be read: {error}") from error


def _told(head: bytes) -> str:
    """'an array of bytes, 60000 x 28 x 28', or the bytes themselves."""
    if head[:3] != b"\0\0\x08" or len(head) != 4 * (1 + head[3]):
        return f"the bytes {head.hex(' ')}"
    return "an array of bytes, " + " x ".join(
        str(int.from_bytes(head[at : at + 4], "big")) for at in range(4, len(head), 4)
    )
