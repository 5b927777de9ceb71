"""Grey PNG files, written by the definition of their filters, one pixel at a time."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def foretold(kind: int, left: int, up: int, corner: int) -> int:
    nearest = min((left, up, corner), key=lambda value: abs(left + up - corner - value))  # the first of equals
    return [0, left, up, (left + up) // 2, nearest][kind]


def png(image: np.ndarray, kinds: list[int] | None = None, *, colour: int = 0, depth: int = 8, parts: int = 1) -> bytes:
    """A file of (side, side) pixels; `kinds` has the filter of each line."""
    side = len(image)
    around = np.zeros((side + 1, side + 1), int)
    around[1:, 1:] = image
    lines = bytearray()
    for row, kind in enumerate(kinds or [0] * side, 1):
        lines.append(kind)
        for column in range(1, side + 1):
            left, up, corner = around[row, column - 1], around[row - 1, column], around[row - 1, column - 1]
            lines.append(int(around[row, column] - foretold(kind, int(left), int(up), int(corner))) % 256)
    packed = zlib.compress(bytes(lines))
    cuts = [round(part * len(packed) / parts) for part in range(parts + 1)]
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)),
            chunk(b"tEXt", b"Comment\0any"),
            *(chunk(b"IDAT", packed[start:end]) for start, end in pairwise(cuts)),
            chunk(b"IEND", b""),
        ]
    )
