"""Texts as bytes: an id a byte, and one more for the end.

    id = byte, 1 .. 255;   END = 0, which no text contains

A text that is too long keeps its beginning, and an end. Nothing is counted in any split to make this vocabulary, so it
is the same in every phase, for every part of the data, and in every language.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssm_priors.errors import BadData

END = 0
VOCABULARY = 256
WORDS = ("", *(chr(byte) if byte < 128 else f"\\x{byte:02x}" for byte in range(1, VOCABULARY)))
"""What an id stands for: a character of ASCII, or a byte of a longer character."""


def encode(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts -> ids (texts, columns) uint8, and lengths (texts,), each with its end counted.

    Args:
        texts: bytes without END.
        length: most ids of one, its end included.
    """
    lengths = np.array([min(len(text), length - 1) + 1 for text in texts])
    ids = np.zeros((len(texts), lengths.max()), dtype=np.uint8)
    for row, text in zip(ids, texts, strict=True):
        kept = text[: length - 1]
        row[: len(kept)] = np.frombuffer(kept, np.uint8)
    return ids, lengths


def require_text(text: bytes, where: str) -> None:
    """Refuse bytes that are no text, for they would seem to end early; raises BadData."""
    if END in text:
        raise BadData(f"{where} has a byte of value 0, which stands in no text")


def decode(ids: Sequence[int]) -> bytes:
    """Ids of one text, padded or not -> its bytes up to the end."""
    return bytes(ids).partition(bytes([END]))[0]


def cut_share(sizes: np.ndarray, length: int) -> str:
    """How many texts of these sizes, in bytes, lose their end: '12 of 200 texts (6.0%) cut to their first 4,095'."""
    cut = int((sizes > length - 1).sum())
    return f"{cut:,} of {len(sizes):,} texts ({100 * cut / len(sizes):.1f}%) cut to their first {length - 1:,} bytes"
