"""Torch files by hand: the instructions of a pickle, without the STOP, and the zip around them."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from ssm_priors.checkpoints import archive
from ssm_priors.errors import BadCheckpoint


def ops(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def table(**items: bytes) -> bytes:
    return b"}" + b"".join(ops(name) + item + b"s" for name, item in items.items())


def tensor(size=(4,), stride=(1,), offset=0, count=4, key="0", kind="FloatStorage") -> bytes:
    storage = b"(" + ops("storage") + f"ctorch\n{kind}\n".encode() + ops(key) + ops("cpu") + ops(count) + b"tQ"
    view = ops(offset) + ops(size) + ops(stride) + b"\x89)"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"tR"


def packed(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    entries = {"data/0": struct.pack("<4f", 1, 2, 3, 4), "byteorder": b"little"} | entries
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", content + b".")
        for name, data in entries.items():
            file.writestr(f"archive/{name}", data)
    return path


def outcome(path: Path) -> archive.Archive | None:
    """What a file holds, every tensor read; None where it is refused, which no exception but BadCheckpoint may do."""
    assert archive.is_ours(path) is False
    try:
        found = archive.read(path)
        for name in found.tensors:
            assert isinstance(found.tensors[name], torch.Tensor)
    except BadCheckpoint as refusal:
        text = str(refusal)
    else:
        return found
    assert path.name in text
    assert "\n" not in text
    return None


def refused(path: Path) -> str:
    with pytest.raises(BadCheckpoint) as refusal:
        dict(archive.read(path).tensors)
    return str(refusal.value)
