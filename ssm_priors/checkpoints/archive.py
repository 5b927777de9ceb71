"""Tensors and plain values out of a file that other tools wrote, without running anything that stands in it.

A torch file is a zip with a pickle inside, and a pickle is a program. `pickles` reads it as a record of what it would
have called; here the records of the calls by which torch rebuilds tensors become tensors, and what other objects hold
is looked into where that is known. So neither the library that wrote the file nor trust in its author is needed.

Tensors are read when they are asked for: optimiser states that nobody looks at cost nothing.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ssm_priors import pickles
from ssm_priors.errors import BadCheckpoint
from ssm_priors.pickles import Thing

STATE_DICTS = ("state_dict", "model_state_dict", "model", "module")
"""Where tools keep the weights within what they save, if not at the top."""
SETTINGS = ("hyper_parameters", "config", "args")
"""Where tools keep the options of the model."""
MOST_VALUES = 100_000
"""A record with more values than this is no record: lists that hold each other can unfold without end."""
LARGEST_VIEW = 1 << 20
"""Numbers that a view may show beyond those it has stored, as an expanded tensor does."""
MOST_DIMENSIONS = 64
"""Of a tensor; torch has no more."""


class Tensors(Mapping[str, Tensor]):
    """Tensors by name, read from their file one by one, when asked for."""

    def __init__(self, loaders: Mapping[str, Callable[[], Tensor]]):
        self._loaders = dict(loaders)

    def __getitem__(self, name: str) -> Tensor:
        return self._loaders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


@dataclass(frozen=True, slots=True)
class Archive:
    """What a file holds."""

    tensors: Tensors
    """The weights, by the names that they have in the file."""
    settings: dict[str, Any]
    """Options the file states, as nested plain values; objects of unknown classes are None."""
    sha256: str
    """Of the file."""


def read(path: Path) -> Archive:
    """Open a torch file or a safetensors file; no code in it is run.

    Raises:
        BadCheckpoint: missing, damaged, of an unknown format, or without named tensors.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path}: no such file")
    is_zip = _is_zip(path)
    kind = "damaged" if is_zip else NEITHER
    with _blamed(path, kind):
        tensors, settings = (_read_torch if is_zip else _read_safetensors)(path)
    if not tensors:
        raise BadCheckpoint(f"{path}: no table of named tensors in it; save a state_dict")
    with open(path, "rb") as file:
        return Archive(tensors, settings, hashlib.file_digest(file, "sha256").hexdigest())


def is_ours(path: Path) -> bool:
    """Whether a file says that this package wrote it."""
    if not _is_zip(path):
        return False
    try:
        with _blamed(path, "damaged"), zipfile.ZipFile(path) as file:
            mark = _content(file).get("format")
    except BadCheckpoint:
        return False
    return isinstance(mark, str) and mark.startswith("ssm-priors ")


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # one that is damaged is one nevertheless
        return True


NEITHER = (
    "neither a torch file (the zip that torch writes since version 1.6) nor safetensors: "
    "damaged, cut short, or no checkpoint"
)


@contextmanager
def _blamed(path: Path, reason: str) -> Iterator[None]:
    """A hostile or damaged file can fail in any way, and each is the file's fault: BadCheckpoint with its name."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{path}: {error}") from error
    except Exception as error:
        raise BadCheckpoint(f"{path}: {reason}") from error


# -- safetensors


def _read_safetensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        return Tensors({name: _from_safetensors(path, name) for name in file.keys()}), dict(file.metadata() or {})  # noqa: SIM118


def _from_safetensors(path: Path, name: str) -> Callable[[], Tensor]:
    def load() -> Tensor:
        with _blamed(path, f"damaged: '{name}' cannot be read"), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    return load


# -- torch


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor in the file, not yet read: a view of the numbers of a storage."""

    key: str
    dtype: torch.dtype
    count: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool


def _read_torch(path: Path) -> tuple[Tensors, dict[str, Any]]:
    with zipfile.ZipFile(path) as file:
        content, root = _content(file), _root(file)
    loaders = {name: _from_torch(path, root, view) for name, view in _state_dict(content).items()}
    stated = next((content[key] for key in SETTINGS if key in content), None)
    settings = _plain(stated, [MOST_VALUES])
    return Tensors(loaders), settings if isinstance(settings, dict) else {}


def _content(file: zipfile.ZipFile) -> dict[str, Any]:
    """The table that the pickle in a torch file holds."""
    content = pickles.read(file.read(_stored(file, f"{_root(file)}data.pkl")))
    if isinstance(content, Thing) and content.name in TABLES:
        content = content.table
    if not isinstance(content, dict):
        kind = content.name if isinstance(content, Thing) else type(content).__name__
        raise BadCheckpoint(f"it holds a {kind[:100]!r}, not a table of tensors; save a state_dict")
    return content


def _root(file: zipfile.ZipFile) -> str:
    """The folder of the archive that holds everything: 'archive/'."""
    names = file.namelist()
    pickled = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if len(pickled) != 1:
        raise BadCheckpoint("a zip, but not one that torch wrote")
    root = pickled[0].removesuffix("data.pkl")
    if f"{root}byteorder" in names and file.read(_stored(file, f"{root}byteorder")) != b"little":
        raise BadCheckpoint("its numbers are big-endian; save it again on a little-endian machine")
    return root


def _stored(file: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """An entry as torch writes it: not compressed, so that it cannot be larger than the file."""
    entry = file.getinfo(name)
    largest = min(entry.compress_size, Path(str(file.filename)).stat().st_size)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > largest:
        raise BadCheckpoint(f"a zip, but not one that torch wrote: {name[:100]!r} is compressed")
    return entry


def _state_dict(content: dict[str, Any]) -> dict[str, _View]:
    """The table of tensors: at the top, or under one of the names that tools use."""
    for value in (*(content.get(key) for key in STATE_DICTS), content):
        table = value.table if isinstance(value, Thing) else value
        if isinstance(table, dict):
            views = {name: _view(item) for name, item in table.items()}
            if found := {name: view for name, view in views.items() if view}:
                return found
    return {}


def _view(value: Any) -> _View | None:
    """The tensor that a call makes; None if it makes none of a known kind.

    Raises:
        BadCheckpoint: a tensor that is no view of its numbers.
    """
    value = _bare(value)
    if not isinstance(value, Thing) or value.name != "torch._utils._rebuild_tensor_v2":
        return None
    storage, offset, size, stride, *more = value.args
    key, dtype, count = _storage(storage)
    whole = [*size, *stride, offset, count]
    if len(size) > MOST_DIMENSIONS or not all(type(number) is int and 0 <= number < 2**62 for number in whole):
        raise BadCheckpoint("damaged: a tensor in it is no view of its numbers")
    last = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    shown = math.prod(size)
    if shown and (last >= count or shown > max(count, LARGEST_VIEW)):
        raise BadCheckpoint("damaged: a tensor in it reaches beyond its numbers")
    marks = more[2] if len(more) > 2 and isinstance(more[2], dict) else {}
    return _View(key, dtype, count, offset, tuple(size), tuple(stride), "conj" in marks, "neg" in marks)


def _bare(value: Any) -> Any:
    """The tensor in a parameter, or in a tensor with attributes."""
    while isinstance(value, Thing) and value.name in WRAPPERS:
        if value.name == "torch._tensor._rebuild_from_type_v2":
            function, _, args, _ = value.args
            value = Thing(function.name, tuple(args))
        else:
            value = value.args[0]
    return value


def _storage(value: Any) -> tuple[str, torch.dtype, int]:
    """Where the numbers of a tensor are, of what type, and how many."""
    if not isinstance(value, Thing) or value.name != "persistent":
        raise BadCheckpoint("damaged: a tensor in it has no numbers")
    kind, dtype, key, _, count = value.args[0]
    if kind != "storage" or not isinstance(dtype, Thing) or dtype.name not in STORAGES or not isinstance(key, str):
        raise BadCheckpoint("damaged, or of a type that is not known here: its numbers are not described")
    return key, STORAGES[dtype.name], count


def _from_torch(path: Path, root: str, view: _View) -> Callable[[], Tensor]:
    def load() -> Tensor:
        with _blamed(path, "damaged: its numbers are missing or changed"):
            return _tensor(view, _numbers(path, f"{root}data/{view.key}", view.count * view.dtype.itemsize))

    return load


def _numbers(path: Path, name: str, size: int) -> bytes:
    with zipfile.ZipFile(path) as file:
        entry = _stored(file, name)
        if entry.file_size != size:
            raise BadCheckpoint(f"damaged: {entry.file_size} bytes where {size} should be")
        return file.read(entry)


def _tensor(view: _View, numbers: bytes) -> Tensor:
    if 0 in view.size:
        return torch.empty(view.size, dtype=view.dtype)
    flat = torch.frombuffer(bytearray(numbers), dtype=view.dtype)
    tensor = flat.as_strided(view.size, view.stride, view.offset)
    tensor = tensor.conj() if view.conjugate else tensor
    return (-tensor if view.negative else tensor).resolve_conj().clone()


TABLES = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict")
"""Kinds of table that a file may be as a whole."""
WRAPPERS = (
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
)
"""Calls that put a tensor into something."""
STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.ComplexDoubleStorage": torch.complex128,
}


def _plain(value: Any, left: list[int]) -> Any:
    """Nested plain values; a node of omegaconf gives what it holds, a table its entries, another object None.

    Args:
        value: whatever `pickles` gave.
        left: one number: how many more values may be looked at.
    """
    left[0] -= 1
    if left[0] < 0:
        raise BadCheckpoint("its record does not end")
    if isinstance(value, Thing):
        state = value.state if isinstance(value.state, dict) else {}
        held = next((state[key] for key in ("_content", "_val") if key in state), value.table or None)
        return _plain(held, left)
    if isinstance(value, dict):
        return {key: _plain(item, left) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, left) for item in value]
    return value if isinstance(value, (str, int, float)) else None
