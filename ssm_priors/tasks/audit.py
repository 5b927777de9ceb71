"""A leak audit: does an example that is tested or chosen by stand in the training split, which pretraining reads whole?

Exactly: by a hash of its valid inputs. Texts besides: nearly, where MinHash signatures of their word 5-shingles agree
in at least 80% of 128 places, as two texts do whose sets of shingles have a Jaccard similarity of about 0.8.

Source: Broder 1997, On the resemblance and containment of documents; Lee et al. 2022, arXiv 2107.06499, who clean
training sets of language models so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssm_priors.tasks.chunks import Chunk, Seen
from ssm_priors.tasks.letters import VOCABULARY, decode
from ssm_priors.tasks.task import SPLITS, Split, Task

if TYPE_CHECKING:
    from datasketch import MinHash

SHINGLE = 5
"""Words."""
PLACES, ALIKE = 128, 0.8
TOGETHER = 256
"""Examples read at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What was found; examples are counted once, however often they stand elsewhere."""

    sha256: str
    """Of the data."""
    examples: dict[str, int]
    """Split -> how many were looked at."""
    exact: dict[str, int]
    """'test in train' -> how many examples of the first stand in the second too."""
    near: dict[str, int] | None
    """'test in train' -> how many texts of the first nearly do, exact ones included; None where inputs are no texts."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing that is tested or chosen by was trained on."""
        leaks = [*self.exact.items(), *(self.near or {}).items()]
        return not any(count for pair, count in leaks if pair.endswith("in train"))


def audit(task: Task) -> Audit:
    """Look at every example of a task once."""
    seen = Seen()
    for name in SPLITS:
        for first, chunk in _chunks(getattr(task, name)):
            seen.add(name, first, chunk)
    exact = dict.fromkeys(["validation in train", "test in train", "test in validation"], 0)
    for one in seen.duplicates:
        exact[f"{one.split} in {one.first_split}"] += 1
    is_text = task.spec.kind == "token" and task.spec.vocabulary == VOCABULARY
    examples = {name: len(getattr(task, name)) for name in SPLITS}
    return Audit(sha256=task.sha256, examples=examples, exact=exact, near=_near(task) if is_text else None)


def _chunks(split: Split) -> Iterator[tuple[int, Chunk]]:
    import torch

    for first in range(0, len(split), TOGETHER):
        batch = split.take(torch.arange(first, min(first + TOGETHER, len(split))))
        assert batch.targets is not None
        yield first, Chunk(batch.inputs.numpy(), batch.lengths.numpy(), batch.targets.numpy())


def _near(task: Task) -> dict[str, int]:
    from datasketch import MinHashLSH

    index, known = MinHashLSH(threshold=ALIKE, num_perm=PLACES), {}
    for place, signature in enumerate(_signatures(task.train)):
        known[place] = signature
        index.insert(place, signature)
    held = {f"{name} in train": getattr(task, name) for name in ("validation", "test")}
    return {
        pair: sum(
            any(signature.jaccard(known[place]) >= ALIKE for place in index.query(signature))
            for signature in _signatures(split)
        )
        for pair, split in held.items()
    }


def _signatures(split: Split) -> Iterator[MinHash]:
    """Of every document, in order."""
    from datasketch import MinHash

    for _, chunk in _chunks(split):
        for ids, length in zip(chunk.inputs, chunk.lengths, strict=True):
            signature = MinHash(num_perm=PLACES, seed=0)
            signature.update_batch(_shingles(decode(ids[:length].tolist())))
            yield signature


def _shingles(text: bytes) -> list[bytes]:
    words = text.lower().split()
    return [b" ".join(words[first : first + SHINGLE]) for first in range(max(1, len(words) - SHINGLE + 1))]
