from __future__ import annotations

import builders
import pytest
import torch

from ssm_priors.analyses.passes import looking, walk
from ssm_priors.batch import Batch


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("name", ["s4d", "transformer"])
def test_a_walk_sees_what_every_mixer_is_given_and_every_block_leaves(name, norm_position):
    model = builders.model(name, layers=2, expand=1, norm_position=norm_position).eval()
    batch = Batch(builders.normal(2, 20, 1, dtype=torch.float32), torch.tensor([20, 13]), None)
    given, left = [], []
    hooks = [mixer.register_forward_pre_hook(lambda _, u: given.append(u[0])) for mixer in model.mixers]
    hooks += [block.register_forward_hook(lambda *call: left.append(call[2])) for block in model.backbone.blocks]
    with torch.no_grad():
        model(batch.inputs, batch.lengths)
    for hook in hooks:
        hook.remove()
    with looking(model):
        seen = list(walk(model, batch))
    assert [each.mixer for each in seen] == model.mixers
    for each, before, after in zip(seen, given, left, strict=True):
        torch.testing.assert_close(each.before, before, rtol=0, atol=0)
        torch.testing.assert_close(each.after, after, rtol=0, atol=0)
