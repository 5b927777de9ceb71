"""`hf:PATH`: start from the weights of a language model that others pretrained, in a folder of Hugging Face's form.

    config.json          what the model is: GPT-NeoX, as Pythia, is understood
    model*.safetensors   its weights; nothing else is read, no pickle is ever opened, nothing is downloaded
    tokenizer.json       which token each symbol of a task is: exactly one, else the folder is refused

The phase trains nothing. A symbol's row of the model's token embedding becomes its row here, and so it is with the
output table: what the objective asks, the next symbol, shows what the language model knows of a task it never saw.
Symbols that stand for nothing (padding, the end of a text) are the model's end of text. A path is no content, so a
run's record names both: `hf:/full/path#SHA-256`, the first 12 digits of that of all files that are read.
Source: Amos, Berant, Gupta 2023, arXiv 2310.02980, section 3 (Pythia); Biderman et al. 2023, arXiv 2304.01373.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.errors import BadCheckpoint, BadConfig, BadData, NotReady
from ssm_priors.objectives.causal import Causal
from ssm_priors.objectives.objective import Problem
from ssm_priors.registry import OBJECTIVES

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model*.safetensors"
DIGITS = 12
NAMED = re.compile(rf"(.+)#([0-9a-f]{{{DIGITS}}})")
BYTE = re.compile(r"\\x([0-9a-f]{2})")
"""How a task writes a byte that is no character."""
FIXED = {
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "attention_bias": True,
}
"""What `config.json` must say where it says something: all else is another model than `gpt-neox`."""
LAYER = {
    "mixer.attention_norm": "input_layernorm",
    "mixer.feed_forward_norm": "post_attention_layernorm",
    "mixer.input": "attention.query_key_value",
    "mixer.output": "attention.dense",
    "mixer.up": "mlp.dense_h_to_4h",
    "mixer.down": "mlp.dense_4h_to_h",
}
"""Our name of a part of a layer -> theirs."""


@OBJECTIVES.register("hf")
@dataclass(frozen=True, slots=True)
class HuggingFace:
    """Start from a language model that others pretrained; the phase itself trains nothing.

    Source: the folder at PATH; Amos et al. 2023, arXiv 2310.02980, section 3 (Pythia).
    """

    argument: ClassVar[str] = "PATH"
    requires_causal: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("token",)

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Options of a start from outside."""

        spell: dict[str, str] = field(default_factory=dict)
        """Symbols of the task that are no token of the model -> what is read in their place: {"[MIN" = "A"}."""

    path: Path
    digest: str
    """The first digits of the SHA-256 of its files."""

    @classmethod
    @cache
    def member(cls, argument: str) -> HuggingFace:
        """The folder with that content; raises BadConfig for a name that means something else elsewhere or later."""
        named = NAMED.fullmatch(argument)
        if not named or os.path.abspath(named[1]) != named[1]:
            raise BadConfig(
                f"objective 'hf:{argument}': a full path and the hash of what is there were expected, so that the name "
                "means the same everywhere: hf:/full/path#0123456789ab. On the command line the path is enough"
            )
        return cls(Path(named[1]), named[2])

    @staticmethod
    def spelled(argument: str) -> str:
        """A full path, and the hash of what is there now; raises NotReady where no such folder is."""
        named = NAMED.fullmatch(argument)
        path = os.path.abspath(os.path.expanduser(named[1] if named else argument))
        return f"{path}#{named[2] if named else digest_of(Path(path))}"

    @staticmethod
    def ready() -> str:
        """Any folder can be named."""
        return "yes: any folder with a GPT-NeoX model, such as Pythia"

    @property
    def origin(self) -> str:
        """Whose weights they are, in words."""
        return f"the weights of the language model in {self.path} (SHA-256 {self.digest}..)"

    def __call__(self, options: Config, spec: TaskSpec) -> Outside:
        """The objective for a task."""
        return Outside(self, options, spec)


class Outside:
    """A language model's own objective on a task's symbols, and its weights."""

    requires_causal = True
    kinds = ("token",)
    stand_ins = 0
    pooled = False

    def __init__(self, folder: HuggingFace, options: HuggingFace.Config, spec: TaskSpec):
        self.folder, self.options = folder, options
        self.next = Causal(Causal.Config(), spec)
        self.outputs = self.next.outputs

    def pose(self, batch: Batch, generator: torch.Generator) -> Problem:
        """Ask for the next symbol."""
        return self.next.pose(batch, generator)

    def score(self, answers: Tensor, problem: Problem) -> tuple[Tensor, int]:
        """Cross-entropy over symbols that have a next one."""
        return self.next.score(answers, problem)

    def settings(self) -> dict[str, Any]:
        """What the part `model` of a configuration must say, for these weights to fit; raises BadCheckpoint."""
        found = _config(self.folder.path)
        rope = found.get("rope_parameters") or {}
        try:
            width, inner = found["hidden_size"], found["intermediate_size"]
            rotary = rope.get("partial_rotary_factor", found.get("rotary_pct", 0.25))
            layers, heads = found["num_hidden_layers"], found["num_attention_heads"]
        except KeyError as missing:
            raise BadCheckpoint(f"{self.folder.path / CONFIG} lacks {missing}") from missing
        base, kind = rope.get("rope_theta", found.get("rotary_emb_base", 10_000)), rope.get("rope_type", "default")
        if base != 10_000 or kind != "default" or inner % width:
            raise BadCheckpoint(
                f"{self.folder.path / CONFIG}: rotary base {base} of kind {kind}, feed-forward of {inner} channels; "
                f"10000, default and a multiple of {width} were expected, as in Pythia"
            )
        mixer = {"name": "gpt-neox", "heads": heads, "inner": inner // width, "rotary": rotary}
        plain = {"expand": 0, "norm": "layer", "norm_position": "pre", "positions": "none", "causal": True}
        return {"mixer": mixer, "d_model": width, "layers": layers, **plain}

    def weights(self, words: Sequence[str]) -> dict[str, Tensor]:
        """The state dict of our model with these weights, float32.

        Args:
            words: what each symbol of the task stands for.

        Raises:
            BadData: the folder's content is not that which the name says.
            BadCheckpoint: the folder is damaged, or holds another kind of model.
            BadConfig: a symbol is not exactly one token of the model.
        """
        if (found := digest_of(self.folder.path)) != self.folder.digest:
            raise BadData(
                f"{self.folder.path} holds other files than the name of this objective says: #{found}, not "
                f"#{self.folder.digest}. Name the path again, without a hash, to start from what is there now"
            )
        layers = self.settings()["layers"]
        theirs, tokens = _tensors(self.folder.path), torch.tensor(self._tokens(words))
        try:
            return _ours(theirs, tokens, layers)
        except (KeyError, IndexError) as missing:
            raise BadCheckpoint(f"{self.folder.path}: its weights do not hold {missing}") from missing

    def _tokens(self, words: Sequence[str]) -> list[int]:
        """The model's id of every symbol."""
        tokenizer, end = _tokenizer(self.folder.path), self._end()
        found = {word: self._token(tokenizer, word) for word in words if word}
        if unknown := [word for word, token in found.items() if token is None]:
            listed = ", ".join(f'{json.dumps(word)} = "?"' for word in unknown[:8])
            raise BadConfig(
                f"{self.folder.path}: {len(unknown)} symbols of the task are not exactly one token of this model: "
                f"{' '.join(unknown[:8])}. Say what is read in their place, a token of its own for each: "
                f"--set 'pretrain.objective.spell={{{listed}}}'"
            )
        uses = Counter([*found.values(), end])
        if twice := [word for word, token in found.items() if uses[token] > 1]:
            raise BadConfig(
                f"{self.folder.path}: {' '.join(twice[:8])} are different symbols of the task, but the same token "
                "of this model as another; give each its own with pretrain.objective.spell"
            )
        return [token if (token := found.get(word)) is not None else end for word in words]

    def _end(self) -> int:
        """The model's end of text."""
        end = _config(self.folder.path).get("eos_token_id")
        if not isinstance(end, int):
            raise BadCheckpoint(
                f"{self.folder.path / CONFIG}: eos_token_id is {end!r}; the id of one token was expected"
            )
        return end

    def _token(self, tokenizer: Any, word: str) -> int | None:
        """The one token that a symbol is; None where it is several, or none."""
        if byte := BYTE.fullmatch(word):
            return tokenizer.token_to_id(_byte_letters()[int(byte[1], 16)])
        ids = tokenizer.encode(self.options.spell.get(word, word), add_special_tokens=False).ids
        return ids[0] if len(ids) == 1 else None


def digest_of(path: Path) -> str:
    """The first digits of the SHA-256 of a folder's files that are read; raises NotReady where one is missing."""
    total = hashlib.sha256()
    for file in _files(path):
        with open(file, "rb") as content:
            total.update(f"{file.name}:{hashlib.file_digest(content, 'sha256').hexdigest()};".encode())
    return total.hexdigest()[:DIGITS]


def _files(path: Path) -> list[Path]:
    weights = sorted(path.glob(WEIGHTS))
    missing = [name for name in (CONFIG, TOKENIZER) if not (path / name).is_file()] + [WEIGHTS] * (not weights)
    if missing:
        raise NotReady(
            f"{path}: no {', no '.join(missing)} there; the folder of a GPT-NeoX language model was expected, with its "
            "weights as safetensors. Nothing is downloaded: fetch it yourself first"
        )
    return [path / CONFIG, path / TOKENIZER, *weights]


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path / CONFIG} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{path / CONFIG} is no table")
    for key, wanted in FIXED.items():
        if found.get(key, None if key == "model_type" else wanted) != wanted:
            raise BadCheckpoint(f"{path / CONFIG}: {key} is {found.get(key)!r}; {wanted!r} was expected, as in Pythia")
    return found


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(path.glob(WEIGHTS)):
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise BadCheckpoint(f"{file} cannot be read: {error}") from error
    return {name.removeprefix("gpt_neox."): tensor.float() for name, tensor in tensors.items()}


def _tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as missing:
        raise NotReady("objective 'hf' needs the package tokenizers: pip install 'ssm-priors[hf]'") from missing
    try:
        return Tokenizer.from_file(str(path / TOKENIZER))
    except Exception as error:  # what it raises has no type of its own
        raise BadCheckpoint(f"{path / TOKENIZER} cannot be read: {error}") from error


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary.

    Printable bytes of Latin-1 are themselves; the others are the letters from 256 on, in order.
    Source: Radford et al. 2019 (GPT-2), section 2.2.
    """
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]


def _ours(theirs: dict[str, Tensor], tokens: Tensor, layers: int) -> dict[str, Tensor]:
    """Their tensors by our names; the embedding and the output have the rows of `tokens` alone."""
    table = theirs["embed_in.weight"]
    width = table.shape[1]
    head = theirs.get("embed_out.weight", table)  # absent where both are one
    found = {"embedding.values.weight": table[tokens], "head.output.weight": head[tokens]}
    found |= {"head.output.bias": torch.zeros(len(tokens)), "head.stand_ins": torch.zeros(0, width)}
    for end in ("weight", "bias"):
        found[f"backbone.norm.{end}"] = theirs[f"final_layer_norm.{end}"]
    for layer, ours, their in _parts(layers):
        found[f"backbone.blocks.{layer}.{ours}"] = theirs[f"layers.{layer}.{their}"]
    for layer in range(layers):
        found[f"backbone.blocks.{layer}.mixer_norm.weight"] = torch.ones(width)
        found[f"backbone.blocks.{layer}.mixer_norm.bias"] = torch.zeros(width)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _parts(layers: int) -> Iterator[tuple[int, str, str]]:
    for layer in range(layers):
        for ours, their in LAYER.items():
            for end in ("weight", "bias"):
                yield layer, f"{ours}.{end}", f"{their}.{end}"
