from __future__ import annotations

import torch
from builders import mixer_alone, normal
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ssm_priors.models.mixers.gru import reverse_valid

LENGTHS = torch.tensor([12, 1, 7])


def hidden(mixer: nn.Module, u: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """What the mixer reads out."""
    seen = {}
    handle = mixer.dropout.register_forward_pre_hook(lambda module, inputs: seen.update(h=inputs[0]))
    mixer(u, lengths)
    handle.remove()
    return seen["h"].detach()


def test_two_sided_states_are_those_of_a_packed_bidirectional_gru():
    mixer = mixer_alone("gru", causal=False, d_hidden=5)
    packed = nn.GRU(4, 5, batch_first=True, bidirectional=True).double()
    weights = dict(mixer.rightward.state_dict())
    weights |= {f"{key}_reverse": value for key, value in mixer.leftward.state_dict().items()}
    packed.load_state_dict(weights)
    u = normal(3, 12, 4)
    expected, _ = packed(pack_padded_sequence(u, LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    found = hidden(mixer, u, LENGTHS)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=1e-12, atol=1e-12)


def test_states_follow_the_equation():
    mixer = mixer_alone("gru", causal=True, d_hidden=3)
    W, V, b, c = (parameter.detach() for parameter in mixer.rightward.parameters())
    u, h, rows = normal(1, 6, 4), torch.zeros(3, dtype=torch.float64), []
    for t in range(6):
        from_input, from_state = (W @ u[0, t] + b).chunk(3), (V @ h + c).chunk(3)
        r, z = (torch.sigmoid(x + y) for x, y in zip(from_input[:2], from_state[:2], strict=True))
        h = (1 - z) * torch.tanh(from_input[2] + r * from_state[2]) + z * h
        rows.append(h)
    torch.testing.assert_close(hidden(mixer, u, torch.tensor([6]))[0], torch.stack(rows), rtol=1e-12, atol=1e-12)


def test_reversing_turns_the_valid_part_alone_and_undoes_itself():
    u = torch.arange(5.0)[None, :, None].repeat(2, 1, 1)
    lengths = torch.tensor([3, 5])
    assert reverse_valid(u, lengths)[..., 0].tolist() == [[2, 1, 0, 3, 4], [4, 3, 2, 1, 0]]
    assert torch.equal(reverse_valid(reverse_valid(u, lengths), lengths), u)


def test_hidden_units_are_as_many_as_asked_for():
    assert mixer_alone("gru", causal=True).rightward.hidden_size == 4
    wide = mixer_alone("gru", causal=False, d_hidden=11)
    assert wide(normal(1, 3, 4), torch.tensor([3])).shape == (1, 3, 4)
    assert hidden(wide, normal(1, 3, 4), torch.tensor([3])).shape == (1, 3, 22)
    assert mixer_alone("gru", causal=True, d_hidden=11).initial_state(2).shape == (2, 11)
