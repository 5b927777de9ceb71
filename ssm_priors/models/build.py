"""RunConfig -> module: embedding, backbone and a head for the phase."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ssm_priors.batch import TaskSpec
from ssm_priors.config import ModelConfig
from ssm_priors.errors import BadConfig
from ssm_priors.models.backbone import Backbone, Block
from ssm_priors.models.embedding import Embedding
from ssm_priors.models.heads import Head, PairHead, PooledHead, PositionHead
from ssm_priors.registry import INITS, MIXERS
from ssm_priors.seeds import numpy_stream, reseed


class Model(nn.Module):
    """Embedding -> backbone -> head. The head is exchanged between the phases; the rest is carried over."""

    def __init__(self, embedding: Embedding, backbone: Backbone, head: Head):
        super().__init__()
        self.embedding = embedding
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor, lengths: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Answers per position or per example, as the head gives them.

        Args:
            inputs: (B, L) ids or (B, L, features); (2B, ...) where an example is two documents.
            lengths: (B,), valid positions.
            hidden: (B, L), True where the input must not be seen, or which stand-in is seen instead, from 1.
        """
        return self.head(self.represent(inputs, lengths, hidden), lengths)

    def represent(self, inputs: Tensor, lengths: Tensor, hidden: Tensor | None = None) -> Tensor:
        """(B, L, H): what the head reads. Arguments as `forward`."""
        stand_ins = None if hidden is None else cast(PositionHead, self.head).stand_ins
        return self.backbone(self.embedding(inputs, hidden, stand_ins), lengths)

    @property
    def mixers(self) -> list[nn.Module]:
        """The mixer of every layer, in order."""
        return [cast(Block, block).mixer for block in self.backbone.blocks]


def build(
    config: ModelConfig, spec: TaskSpec, seed: int, *, outputs: int | None, pooled: bool, stand_ins: int = 1
) -> Model:
    """A model whose start is a function of (config, seed) alone; torch's global generator is left as it was.

    Args:
        config: the model part of a run's configuration.
        spec: the task's kind, length, sizes and number of documents.
        seed: the run's seed; the stream "init" is used, and each layer has its own.
        outputs: size of the head's answer; None: as many numbers as the model has channels.
        pooled: one answer an example (True) or one a position.
        stand_ins: learned vectors that stand in for hidden inputs, where there is an answer a position.
    """
    check_names(config)

    def mixer(layer: int) -> nn.Module:
        make = MIXERS[config.mixer.name]
        rng = numpy_stream(seed, "init", layer)
        return make(config.mixer.options, d_model=config.d_model, causal=config.causal, dropout=config.dropout, rng=rng)

    with torch.random.fork_rng(devices=[]):
        reseed(seed, "init")
        embedding = Embedding(spec, config.d_model, config.positions)
        backbone = Backbone(
            mixer,
            d_model=config.d_model,
            layers=config.layers,
            width=config.feed_forward_width,
            norm=config.norm,
            dropout=config.dropout,
            norm_position=config.norm_position,
            tied_dropout=config.tied_dropout,
        )
    head = fresh_head(config, seed, outputs=outputs, pooled=pooled, documents=spec.documents, stand_ins=stand_ins)
    return Model(embedding, backbone, head)


def fresh_head(
    config: ModelConfig, seed: int, *, outputs: int | None, pooled: bool, documents: int = 1, stand_ins: int = 1
) -> Head:
    """A head from its own stream, so that it starts the same whether or not another came before it.

    Raises:
        BadConfig: `model.head` is asked for where a pair of documents has a head of its own.
    """
    if pooled and documents == 2 and config.head != "linear":
        raise BadConfig(
            f"model.head: '{config.head}' was given, but a pair of documents has a head of its own; remove it"
        )
    outputs = config.d_model if outputs is None else outputs
    with torch.random.fork_rng(devices=[]):
        reseed(seed, "head", "pooled" if pooled else "position")
        if not pooled:
            return PositionHead(config.d_model, outputs, stand_ins)
        if documents == 2:
            return PairHead(config.d_model, outputs, config.pooling)
        return PooledHead(config.d_model, outputs, config.pooling, config.head)


def check_names(config: ModelConfig) -> None:
    """Refuse an init that does not exist, before anything is built; raises UnknownName."""
    init = getattr(config.mixer.options, "init", None)
    if init is not None:
        _ = INITS[init]


def parameter_count(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
