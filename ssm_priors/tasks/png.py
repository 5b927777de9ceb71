"""Grey PNG images of 8 bits, read without any imaging library: a benchmark's images need no more than this.

    signature, IHDR, IDAT .., IEND; each chunk: length, name, content, CRC of name and content

The size is known beforehand, so that at most (side + 1) side bytes are ever decompressed, whatever the file says.

Source: W3C, Portable Network Graphics (PNG) Specification, second edition, sections 5, 9 and 11.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from ssm_priors.errors import BadData

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEAD = struct.Struct(">IIBBBBB")
LARGEST = 2**24
"""Bytes of a file beyond which it is not looked at."""


def check(path: Path, side: int) -> str:
    """Why `read` would refuse a file; empty if it would not."""
    try:
        _filtered(path, side)
    except BadData as error:
        return str(error)
    return ""


def read(path: Path, side: int) -> np.ndarray:
    """The pixels of a square image, row by row from the top: (side, side) uint8.

    Raises:
        BadData: no such file, or no whole grey image of 8 bits and this size; the text names the file.
    """
    lines = _filtered(path, side)
    pixels = np.zeros((side + 1, side), np.uint8)  # above the first row all is 0
    for row, line in enumerate(lines):
        pixels[row + 1] = _UNDO[line[0]](line[1:], pixels[row])
    return pixels[1:]


def _filtered(path: Path, side: int) -> np.ndarray:
    """The lines of an image as they are compressed, the kind of filter first: (side, side + 1)."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadData(f"{path}: {path.stat().st_size} bytes are too many for an image of {side} x {side} pixels")
        lines = _decompressed(_chunks(path.read_bytes()), side)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadData(f"{path}: {error}") from error
    return lines


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Names and contents up to IEND; raises ValueError."""
    if not content:
        raise ValueError("the file is empty")
    if not content.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    found: list[tuple[bytes, bytes]] = []
    place = len(SIGNATURE)
    while not found or found[-1][0] != b"IEND":
        length = int.from_bytes(content[place : place + 4], "big")
        named, crc = content[place + 4 : place + 8 + length], content[place + 8 + length : place + 12 + length]
        if len(crc) < 4:
            raise ValueError("the file is cut short")
        if zlib.crc32(named) != int.from_bytes(crc, "big"):
            raise ValueError("a checksum is wrong")
        found.append((named[:4], named[4:]))
        place += 12 + length
    return found


def _decompressed(chunks: list[tuple[bytes, bytes]], side: int) -> np.ndarray:
    name, head = chunks[0]
    if name != b"IHDR" or len(head) != HEAD.size:
        raise ValueError("it does not begin with a header")
    width, height, depth, colour, *methods = HEAD.unpack(head)
    if (width, height, depth, colour, *methods) != (side, side, 8, 0, 0, 0, 0):
        raise ValueError(
            f"{width} x {height} pixels of {depth} bits, colour type {colour}, methods {methods}; expected "
            f"{side} x {side} grey pixels of 8 bits, colour type 0, methods [0, 0, 0]"
        )
    size, stream = side * (side + 1), zlib.decompressobj()
    try:
        data = stream.decompress(b"".join(content for name, content in chunks if name == b"IDAT"), size + 1)
    except zlib.error as error:
        raise ValueError(f"its pixels cannot be decompressed: {error}") from error
    if len(data) != size or not stream.eof:
        raise ValueError(f"its pixels are not the {size} bytes that {side} x {side} pixels have")
    lines = np.frombuffer(data, np.uint8).reshape(side, side + 1)
    if lines[:, 0].max() >= len(_UNDO):
        raise ValueError(f"a line has filter {lines[:, 0].max()}; there are {len(_UNDO)}")
    return lines


# -- filters: each line minus what its neighbours foretell, modulo 256


def _average(line: np.ndarray, above: np.ndarray) -> list[int]:
    left, undone = 0, []
    for value, up in zip(line.tolist(), above.tolist(), strict=True):
        left = (value + (left + up) // 2) & 255
        undone.append(left)
    return undone


def _paeth(line: np.ndarray, above: np.ndarray) -> np.ndarray | list[int]:
    """Of left, above and above left, the one nearest to left + above - above left foretells."""
    if not above.any():
        return _left(line, above)  # which is the same, and the rule in most lines of a dark image
    left, corner, undone = 0, 0, []
    for value, up in zip(line.tolist(), above.tolist(), strict=True):
        to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        nearer, away = (up, to_up) if to_up <= to_corner else (corner, to_corner)
        foretold = left if to_left <= away else nearer
        left, corner = (value + foretold) & 255, up
        undone.append(left)
    return undone


def _left(line: np.ndarray, above: np.ndarray) -> np.ndarray:
    return np.add.accumulate(line, dtype=np.uint8)


_UNDO = (lambda line, above: line, _left, lambda line, above: line + above, _average, _paeth)
"""None, left, above, average, Paeth: what undoes each, given the line above."""
