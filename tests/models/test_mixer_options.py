"""What the contract tests ask of every mixer, asked of the options that change how a mixer computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import mixer_alone, normal
from torch import Tensor

from ssm_priors.models.protocols import HasKernel, HasStep

LENGTHS = torch.tensor([1, 13, 33])
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gru", {"d_hidden": 7}),
    ("longconv", {"gated": True}),
    ("longconv", {"gated": True, "max_length": 5}),
    ("longconv", {"decay": False}),
    ("mega", {"attention": "laplace"}),
    ("mega", {"attention": "laplace", "chunk": 5}),
    ("mega", {"chunk": 8}),
    ("sgconv", {"segment": 3, "max_length": 10}),
    ("transformer", {"window": 1}),
    ("transformer", {"window": 5}),
    ("transformer", {"window": 5, "rotary": False}),
]

each_option = pytest.mark.parametrize(
    ("name", "options"), OPTIONS, ids=["-".join([name, *map(str, options.values())]) for name, options in OPTIONS]
)
either_side = pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])


def fill_padding(u: Tensor, value: float) -> Tensor:
    return u.masked_fill((torch.arange(u.shape[1]) >= LENGTHS[:, None])[..., None], value)


@each_option
@either_side
@pytest.mark.parametrize("garbage", [1e4, float("nan")])
def test_padding_changes_neither_outputs_nor_gradients(name, options, causal, garbage):
    mixer = mixer_alone(name, causal=causal, **options)
    u, target = normal(3, 40, 4), normal(3, 40, 4, seed=1)

    def answers(value: float) -> tuple[list[Tensor], list[Tensor]]:
        mixer.zero_grad()
        y = mixer(fill_padding(u, value), LENGTHS)
        valid = [row[:length] for row, length in zip(y, LENGTHS, strict=True)]
        sum((part * target[row, : len(part)]).sum() for row, part in enumerate(valid)).backward()
        return valid, [parameter.grad.clone() for parameter in mixer.parameters()]

    clean, dirty = answers(0), answers(garbage)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = mixer(u[row : row + 1, :length], torch.tensor([length]))[0]
        torch.testing.assert_close(clean[0][row], alone, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(dirty[0][row], alone, rtol=1e-10, atol=1e-10)
    for one, other in zip(clean[1], dirty[1], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)


@each_option
def test_a_causal_one_sees_no_later_input(name, options):
    mixer = mixer_alone(name, causal=True, **options)
    u = normal(1, 64, 4)
    changed = u.clone()
    changed[0, 32] += 1
    difference = (mixer(changed, torch.tensor([64])) - mixer(u, torch.tensor([64])))[0].abs()
    assert difference[:32].max() <= (1e-12 if isinstance(mixer, HasKernel) else 0)
    assert difference[32:].max() > 1e-6


@each_option
@either_side
@pytest.mark.parametrize("length", [1, 2, 5, 31])
def test_any_length_gives_finite_gradients(name, options, causal, length):
    mixer = mixer_alone(name, causal=causal, **options).train()
    u = normal(2, length, 4).requires_grad_()
    mixer(u, torch.tensor([length, 1]))[0].sum().backward()
    assert torch.isfinite(u.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


@each_option
def test_stepping_equals_the_whole_sequence_at_once(name, options):
    mixer = mixer_alone(name, causal=True, **options)
    if not isinstance(mixer, HasStep):
        assert name in ("mega", "transformer")  # attention's state grows with every step
        return
    u, state = normal(2, 40, 4), mixer.initial_state(2)
    for t, expected in enumerate(mixer(u, torch.tensor([40, 40])).unbind(1)):
        y, state = mixer.step(u[:, t], state)
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
