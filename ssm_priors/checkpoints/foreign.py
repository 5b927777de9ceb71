"""A checkpoint of other public code: which family it is of, and its layers in this package's convention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ssm_priors.checkpoints import archive
from ssm_priors.checkpoints.formats.family import Family, Settings
from ssm_priors.errors import BadCheckpoint
from ssm_priors.registry import FORMATS, summary

SHOWN = 40
"""How many parameter names an error lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCheckpoint:
    """What could be recognised in a file of other code."""

    family: str
    """A name in `registry.FORMATS`."""
    layers: dict[str, nn.Module]
    """By the name each has in the file, in its order; with what skills of `models.protocols` it has."""
    assumed: dict[str, Any]
    """Options that the file does not state, and what was taken for them."""
    length: int | None
    """Longest sequence it was made for, in steps, where the file states it."""
    sha256: str
    """Of the file."""

    @classmethod
    def read(cls, path: str | Path) -> ForeignCheckpoint:
        """Open a torch or safetensors file; no code in it is run.

        Raises:
            BadCheckpoint: the file is missing or damaged, of no known family (what it holds is listed), or its layers
                use an option that is not understood.
        """
        path = Path(path)
        content = archive.read(path)
        found = {name: _layers(content.tensors, FORMATS[name]) for name in FORMATS}
        found = {name: layers for name, layers in found.items() if layers}
        if len(found) != 1:
            raise BadCheckpoint(f"{path}: {_mixed(found) if found else _unknown(content.tensors)}")
        [(family, names)] = found.items()
        settings = Settings(_of_layer(content.settings))
        try:
            layers = {name: _build(FORMATS[family], content.tensors, name, settings) for name in names}
        except BadCheckpoint as error:
            raise BadCheckpoint(f"{path}: {error}") from error
        length = settings.stated("l_max")
        return cls(
            family=family,
            layers=layers,
            assumed=settings.assumed,
            length=length if type(length) is int and length > 0 else None,
            sha256=content.sha256,
        )

    @property
    def mixers(self) -> list[nn.Module]:
        """The mixer of every layer, in order."""
        return list(self.layers.values())

    @property
    def recognised(self) -> str:
        """One sentence: what the file was taken for, and what had to be assumed."""
        count = f"{len(self.layers)} layer{'s' if len(self.layers) > 1 else ''}"
        assumed = ", ".join(f"{name} = {value}" for name, value in self.assumed.items())
        return f"{summary(FORMATS[self.family]).rstrip('.')}; {count}" + (f"; assumed: {assumed}" if assumed else "")


def _layers(names: Iterable[str], family: Family) -> list[str]:
    """The layers of a family: what stands before all the parameters that it needs, in the order of their numbers."""
    given = set(names)
    ending = f".{family.needs[0]}"
    stems = [name.removesuffix(ending) for name in given if name.endswith(ending)]
    layers = [
        stem
        for stem in stems
        if all(f"{stem}.{need}" in given for need in family.needs)
        and not any(f"{stem}.{lack}" in given for lack in family.lacks)
    ]
    return sorted(layers, key=_natural)


def _natural(name: str) -> str:
    """Sorts layer 2 before layer 10."""
    return re.sub(r"[0-9]+", lambda number: number[0].zfill(20), name)


def _build(family: Family, tensors: Mapping[str, Tensor], layer: str, settings: Settings) -> nn.Module:
    part = _Part(tensors, f"{layer}.")
    try:
        return family.layer(part, settings)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"layer '{_printable(layer)}': {error}") from error
    except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
        shapes = ", ".join(f"{name} {tuple(tensors[part.stem + name].shape)}" for name in family.needs)
        raise BadCheckpoint(f"layer '{_printable(layer)}': its parameters do not fit together: {shapes}") from error


class _Part(Mapping[str, Tensor]):
    """The parameters below a layer's name, read when asked for; raises BadCheckpoint where one is not finite."""

    def __init__(self, tensors: Mapping[str, Tensor], stem: str):
        self._tensors, self.stem = tensors, stem

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[self.stem + name]
        if not bool(tensor.isfinite().all()):
            raise BadCheckpoint(f"'{name}' holds values that are not finite")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.stem) for name in self._tensors if name.startswith(self.stem))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of_layer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the layers: `model.layer`, one table or a list of them, as the public configurations have it."""
    model = settings.get("model")
    layer = model.get("layer") if isinstance(model, dict) else None
    tables = layer if isinstance(layer, list) else [layer]
    merged: dict[str, Any] = {}
    for table in tables:
        merged = (table if isinstance(table, dict) else {}) | merged
    return merged


def _printable(name: str) -> str:
    """A name from a file, fit for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:100])


def _mixed(found: Mapping[str, list[str]]) -> str:
    families = "; ".join(f"{name}: {', '.join(map(_printable, layers[:3]))}" for name, layers in found.items())
    return f"layers of more than one family, which cannot be shown as one model. {families}"


def _unknown(names: Iterable[str]) -> str:
    """What was found, layers' numbers written as *, and what would have been recognised."""
    kinds = sorted({re.sub(r"[0-9]+", "*", _printable(name)) for name in names})
    more = f", and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
    known = "\n".join(f"  {name}: {summary(FORMATS[name])}" for name in FORMATS)
    return f"no known family. Its parameters: {', '.join(kinds[:SHOWN])}{more}.\nKnown families:\n{known}"
