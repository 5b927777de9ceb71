from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.seeds import derive, numpy_stream, torch_stream


def test_a_seed_stays_what_it_was_in_earlier_versions():
    assert derive(0, "masks", "pretrain", 3) == 5819451680920057103


@given(seed=st.integers(0, 2**63 - 1))
def test_a_derived_seed_fits_every_generator(seed):
    derived = derive(seed, "order", 1)
    assert 0 <= derived < 2**63
    torch.manual_seed(derived)
    np.random.default_rng(derived)


def test_streams_of_other_names_seeds_and_steps_are_others():
    names = [("masks",), ("dropout",), ("masks", 1), ("masks", 2), ("masks", "pretrain", 1), ("masks", "finetune", 1)]
    derived = [derive(seed, *name) for seed in (0, 1, 10, 11) for name in names]
    assert len(set(derived)) == len(derived)


def test_a_stream_is_a_function_of_its_name():
    assert torch.equal(torch.rand(4, generator=torch_stream(0, "a")), torch.rand(4, generator=torch_stream(0, "a")))
    np.testing.assert_array_equal(numpy_stream(0, "a").random(4), numpy_stream(0, "a").random(4))


def test_a_stream_leaves_the_global_generators_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_stream(0, "a"))
    assert torch.equal(torch.get_rng_state(), before)
