"""One file format for all that is saved: plain tensors and one JSON string, read with `weights_only=True` only.

{"format": "ssm-priors KIND 1", "record": "{...JSON...}", "tensors": {name: tensor}}
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssm_priors import atomic
from ssm_priors.errors import BadCheckpoint

VERSION = 1


def write(path: Path, kind: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write atomically. Tensors are cloned, so that a view does not carry its whole storage along."""
    own = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    content = {
        "format": f"ssm-priors {kind} {VERSION}",
        "record": json.dumps(plain(record), sort_keys=True, allow_nan=False),
        "sha256": digest(own),
        "tensors": own,
    }
    atomic.write(path, lambda file: torch.save(content, file))


def read(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors of a file written by `write`.

    Raises:
        BadCheckpoint: missing, truncated, of another tool, of another kind, or holding more than plain tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise BadCheckpoint(f"{path}: no such file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about a file that is refused below anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or damaged file can fail in any way; each is the file's fault
        raise BadCheckpoint(f"{path}: {_reason(path, error)}") from error
    tag = content.get("format") if isinstance(content, dict) else None
    if not isinstance(tag, str) or not tag.startswith("ssm-priors "):
        raise BadCheckpoint(f"{path}: not an ssm-priors file; it holds {_describe(content)}")
    if tag != f"ssm-priors {kind} {VERSION}":
        raise BadCheckpoint(f"{path}: holds '{tag}', 'ssm-priors {kind} {VERSION}' was expected")
    return _record(path, content.get("record")), _tensors(path, content.get("tensors"), content.get("sha256"))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors' names, types, shapes and bytes, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _record(path: Path, text: Any) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: its record does not parse: {error}") from error
    if not isinstance(record, dict):
        raise BadCheckpoint(f"{path}: its record is no table")
    return record


def _is_plain(tensor: Tensor) -> bool:
    """Numbers in memory: not sparse, quantised or without content."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _tensors(path: Path, tensors: Any, sha256: Any) -> dict[str, Tensor]:
    is_state_dict = isinstance(tensors, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and _is_plain(tensor) for name, tensor in tensors.items()
    )
    if not is_state_dict:
        raise BadCheckpoint(f"{path}: its tensors are not a table of names and tensors")
    if digest(tensors) != sha256:
        raise BadCheckpoint(f"{path}: damaged: its tensors are not those that were written")
    return tensors


def plain(value: Any) -> Any:
    """Nested plain values: NumPy and torch scalars, paths and enums become what JSON knows; NaN and inf become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "the file is empty"
    if "unsupported global" in str(error).lower():
        return "it holds more than plain tensors and could run code when opened; refused"
    return "damaged, cut short, or not a checkpoint at all"


def _describe(content: Any) -> str:
    if isinstance(content, dict):
        keys = ", ".join(sorted(str(key) for key in content)[:4])
        return f"a dictionary with the keys {keys}{', ..' if len(content) > 4 else ''}"
    return f"a {type(content).__name__}"
