"""The Transformer of not-from-scratch: layer.linears.{0, 1, 2, 3} are queries, keys, values and output.

Source: the code of Amos et al. 2023, arXiv 2310.02980.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ssm_priors.checkpoints.formats.family import Settings, fits
from ssm_priors.errors import BadCheckpoint
from ssm_priors.models.mixers.transformer import Transformer
from ssm_priors.registry import FORMATS


@FORMATS.register("not-from-scratch-transformer")
class Attention:
    """Attention of not-from-scratch: layer.linears.{0, 1, 2, 3}, sinusoids or no positions.

    Source: Amos et al. 2023, arXiv 2310.02980; Vaswani et al. 2017, arXiv 1706.03762.
    """

    needs = tuple(f"linears.{index}.weight" for index in range(4))
    lacks = ()

    @staticmethod
    def layer(part: Mapping[str, Tensor], settings: Settings) -> nn.Module:
        """This package's own attention with these weights; how many heads they mean must be stated in the file."""
        settings.refuse("rotary", False)
        weights = [part[name] for name in Attention.needs]
        channels = len(weights[0])
        for name, weight in zip(Attention.needs, weights, strict=True):
            fits(name, weight, (channels, channels))
        heads = settings.get("n_heads", 0)
        if type(heads) is not int or heads < 1 or channels % heads:
            raise BadCheckpoint(f"n_heads = {heads}: its {channels} channels need a number of heads that divides them")
        biases = [part.get(name.replace("weight", "bias"), torch.zeros(channels)) for name in Attention.needs]
        options = Transformer.Config(heads=heads, rotary=False)
        causal = bool(settings.get("causal", False))
        mixer = Transformer(options, d_model=channels, causal=causal, dropout=0.0, rng=np.random.default_rng(0))
        mixer.load_state_dict(
            {
                "input.weight": torch.cat(weights[:3]),
                "input.bias": torch.cat(biases[:3]),
                "output.weight": weights[3],
                "output.bias": biases[3],
            }
        )
        return mixer.eval()
