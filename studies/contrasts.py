"""What the cells of a grid can be asked: which are held against which, and in what words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from ssm_priors.studies.grid import NONE, Cell, baseline_init

Kind = Literal["model", "init", "pretrain", "interaction"]


@dataclass(frozen=True, slots=True)
class Contrast:
    """Cells whose values are added, and cells whose values are subtracted."""

    kind: Kind
    text: str
    plus: tuple[Cell, ...]
    minus: tuple[Cell, ...]


def contrasts(every: Sequence[Cell]) -> Iterator[Contrast]:
    """What the cells of one task, fraction and budget can be asked.

    The base of a comparison is the model's own init, or where a study left that out, the first init it names.
    """
    for contrast in _conceivable(every):
        if set(contrast.plus + contrast.minus) <= set(every):
            yield contrast


def _conceivable(every: Sequence[Cell]) -> Iterator[Contrast]:
    models = list(dict.fromkeys(cell.model for cell in every))
    bases = [replace(every[0], model=model, init=_base_init(model, every), pretrain=NONE) for model in models]
    pretrains = list(dict.fromkeys(cell.pretrain for cell in every))
    for base in bases[1:]:
        yield from _gaps("model", base, bases[0], f"{base.model} instead of {bases[0].model}", pretrains)
    for base in bases:
        inits = list(dict.fromkeys(cell.init for cell in every if cell.model == base.model))
        for init in inits:
            if init != base.init:
                words = f"{base.model}, {init} instead of {base.init}"
                yield from _gaps("init", replace(base, init=init), base, words, pretrains)
        for pretrain, init in product(pretrains, inits):
            if pretrain != NONE:
                cell = replace(base, init=init)
                words = f"{base.model}, {'' if init == NONE else f'{init}, '}{pretrain} pretraining instead of none"
                yield Contrast("pretrain", words, (replace(cell, pretrain=pretrain),), (cell,))


def _base_init(model: str, every: Sequence[Cell]) -> str:
    inits = [cell.init for cell in every if cell.model == model]
    return baseline_init(model) if baseline_init(model) in inits else inits[0]


def _gaps(kind: Kind, cell: Cell, base: Cell, words: str, pretrains: Iterable[str]) -> Iterator[Contrast]:
    """The gap between two cells under every pretraining, and what each pretraining changes about it."""
    for pretrain in pretrains:
        ours, theirs = replace(cell, pretrain=pretrain), replace(base, pretrain=pretrain)
        start = "from scratch" if pretrain == NONE else f"after {pretrain} pretraining"
        yield Contrast(kind, f"{words}, {start}", (ours,), (theirs,))
        if pretrain != NONE:
            change = f"{words}, after {pretrain} pretraining minus from scratch (interaction)"
            yield Contrast("interaction", change, (ours, base), (theirs, cell))
