"""Every objective on every kind of input that it admits: what is asked, what is seen, no leak, and it trains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import CONTINUOUS, TOKENS, config, model, normal
from hypothesis import given
from hypothesis import strategies as st
from strategies import padded_batches

from ssm_priors.batch import Batch, valid_positions
from ssm_priors.errors import BadConfig
from ssm_priors.objectives.contrastive import Contrastive
from ssm_priors.objectives.denoise import Denoise
from ssm_priors.objectives.infill import BLANK, MASK, Infill
from ssm_priors.objectives.jepa import Jepa
from ssm_priors.objectives.mae import MaskedPatches
from ssm_priors.objectives.objective import HasTeacher, Rewritten, rewrite, squared_error
from ssm_priors.objectives.patches import hide_patches, patch_of
from ssm_priors.objectives.span import Span, partition
from ssm_priors.registry import OBJECTIVES
from ssm_priors.seeds import torch_stream
from ssm_priors.training.teacher import Teacher

SPECS = {"continuous": CONTINUOUS, "token": TOKENS}
PAIRS = [(name, kind) for name in OBJECTIVES for kind in OBJECTIVES[name].kinds]
IMAGE = replace(CONTINUOUS, width=8)
SMALL = {"contrastive": {"frame": 2, "span": 2}}


def make(name, kind="continuous", spec=None, **options):
    options = SMALL.get(name, {}) | options
    return OBJECTIVES[name](OBJECTIVES[name].Config(**options), spec or SPECS[kind])


def batch_of(kind, rows=4, columns=24, lengths=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths or [columns] * rows)
    if kind == "token":
        return Batch(torch.randint(20, (rows, columns), generator=generator), lengths, None)
    return Batch(torch.randn(rows, columns, 1, generator=generator), lengths, None)


def network_for(made, kind, **changes):
    changes = {"causal": made.requires_causal, "layers": 2, **changes}
    sizes = {"outputs": made.outputs, "pooled": False, "stand_ins": made.stand_ins}
    return model("s4d", SPECS[kind], **sizes, **changes)


def asked(made, network, batch, seed=0):
    problem = made.pose(batch, torch_stream(seed, "masks"))
    if isinstance(made, HasTeacher):
        problem = made.taught(problem, Teacher(network, made.momentum).represent(batch))
    return problem


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@given(data=st.data())
def test_nothing_in_the_padding_is_asked_and_the_same_generator_asks_the_same(name, kind, data):
    batch = data.draw(padded_batches(vocabulary=20 if kind == "token" else 0))
    first, again = (make(name, kind).pose(batch, torch_stream(0, "masks")) for _ in range(2))
    inputs, lengths, _ = first.given(batch)
    assert inputs.shape[:2] == first.scored.shape
    assert not (first.scored & ~(torch.arange(inputs.shape[1]) < lengths[:, None])).any()
    for one, other in zip(first.given(batch), again.given(batch), strict=True):
        assert one is other is None or torch.equal(one, other)
    assert torch.equal(first.scored, again.scored)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_what_stands_in_the_padding_changes_no_problem(name, kind):
    batch = batch_of(kind, lengths=[24, 5, 17, 12])
    padding = ~valid_positions(batch.lengths, batch.inputs.shape[1])
    other = batch.inputs.clone()
    other[padding] = 7 if kind == "token" else math.pi
    made = make(name, kind)
    first, second = (made.pose(Batch(x, batch.lengths, None), torch_stream(0, "masks")) for x in (batch.inputs, other))
    seen = torch.arange(first.scored.shape[1]) < first.given(batch)[1][:, None]
    assert torch.equal(first.given(batch)[0][seen], second.given(Batch(other, batch.lengths, None))[0][seen])
    if not isinstance(made, HasTeacher):
        assert torch.equal(first.targets[first.scored], second.targets[second.scored])


@pytest.mark.parametrize(
    "name", [name for name, kind in PAIRS if kind == "continuous" and name not in ("denoise", "causal")]
)
def test_the_value_of_a_hidden_step_reaches_no_answer(name):
    made = make(name)
    network = network_for(made, "continuous").eval()
    batch = batch_of("continuous", rows=2, columns=32)
    problem = made.pose(batch, torch_stream(0, "masks"))
    other = torch.where(problem.hidden[..., None] > 0, batch.inputs * -50 + 9, batch.inputs)
    assert not torch.equal(other, batch.inputs)
    assert torch.equal(
        network(batch.inputs, batch.lengths, problem.hidden), network(other, batch.lengths, problem.hidden)
    )


@pytest.mark.parametrize("name", ["span", "infill"])
def test_the_value_of_a_token_that_was_cut_out_reaches_no_answer(name):
    made = make(name, "token", ratio=0.4)
    batch = batch_of("token", rows=1, columns=30)
    problem = made.pose(batch, torch_stream(3, "masks"))
    sources = make(name, "token", ratio=0.4).pose(
        Batch(torch.arange(30)[None], batch.lengths, None), torch_stream(3, "masks")
    )
    shown = set(sources.inputs[sources.hidden == 0].tolist())
    cut = sorted(set(range(30)) - shown)
    assert cut
    other = batch.inputs.clone()
    other[0, cut] = (other[0, cut] + 7) % 20
    network = network_for(made, "token").eval()
    again = made.pose(Batch(other, batch.lengths, None), torch_stream(3, "masks"))
    assert torch.equal(network(*problem.given(batch)), network(*again.given(batch)))
    assert not torch.equal(problem.targets[problem.scored], again.targets[again.scored])


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_fifty_steps_lower_the_loss(name, kind):
    made = make(name, kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = network_for(made, kind, d_model=16).train()
        waves = torch.sin(torch.arange(32.0) * torch.rand(16, 1) * 2 + torch.rand(16, 1) * 6)
        inputs = (waves * 9 + 10).long() if kind == "token" else waves[..., None]
        batch = Batch(inputs, torch.full((16,), 32), None)
        teacher = Teacher(network, made.momentum) if isinstance(made, HasTeacher) else None
        optimiser = torch.optim.AdamW(network.parameters(), 1e-2)
        losses = []
        for step in range(50):
            problem = made.pose(batch, torch_stream(0, "masks", step))
            if teacher:
                problem = made.taught(problem, teacher.represent(batch))
            total, count = made.score(network(*problem.given(batch)), problem)
            optimiser.zero_grad()
            (total / count).backward()
            optimiser.step()
            if teacher:
                teacher.follow(network)
            losses.append(total.item() / count)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-8:]) < 0.9 * np.mean(losses[:4])
    if teacher:  # its targets still differ from step to step: nothing has collapsed
        targets = made.taught(problem, teacher.represent(batch)).targets
        assert targets.std((0, 1)).mean() > 0.1


@pytest.mark.parametrize(("name", "task"), [("span", "digits"), ("infill", "mnist")])
def test_an_objective_for_another_kind_of_input_is_refused_before_anything_runs(name, task):
    from ssm_priors.training.stages import preflight

    with pytest.raises(BadConfig, match="works with token inputs"):
        preflight(config(task={"name": task}, pretrain={"objective": {"name": name}, "epochs": 1, "batch_size": 10}))


# -- patches


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_patch_of_an_image_is_a_square_and_of_a_series_a_run(size):
    patch = patch_of(IMAGE, size, 64).reshape(8, 8)
    for number in patch.unique():
        rows, columns = torch.nonzero(patch == number, as_tuple=True)
        assert rows.max() - rows.min() < size
        assert columns.max() - columns.min() < size
        assert len(rows) == (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
    assert len(patch.unique()) == math.ceil(8 / size) ** 2
    assert torch.equal(patch_of(CONTINUOUS, size, 10), torch.arange(10) // size)


@given(length=st.integers(1, 64), ratio=st.sampled_from([0.1, 0.5, 0.75, 0.95]), size=st.integers(1, 5))
def test_a_fixed_share_of_whole_patches_is_hidden(length, ratio, size):
    batch = batch_of("continuous", rows=3, columns=64, lengths=[length] * 3)
    patch = patch_of(IMAGE, size, 64)
    hidden = hide_patches(batch, patch, ratio, torch_stream(0, "masks"))
    there = patch[:length].unique()
    count = min(max(1, round(ratio * len(there))), max(1, len(there) - 1))
    for row in hidden:
        chosen = patch[row].unique()
        assert len(chosen) == count
        assert torch.equal(row[:length], torch.isin(patch[:length], chosen))
        assert not row[length:].any()


# -- denoise


def test_the_noise_has_the_deviation_asked_for_and_the_target_is_clean():
    batch = batch_of("continuous", rows=400, columns=64)
    problem = Denoise(Denoise.Config(deviation=0.3), CONTINUOUS).pose(batch, torch_stream(0, "masks"))
    noise = problem.inputs - batch.inputs
    assert noise.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(noise.mean().item()) < 0.01
    assert torch.equal(problem.targets, batch.inputs)
    assert problem.scored.all()


def test_squared_error_is_summed_over_what_is_scored():
    problem = Denoise(Denoise.Config(), CONTINUOUS).pose(
        batch_of("continuous", lengths=[24, 3, 1, 2]), torch_stream(0, "m")
    )
    answers = problem.targets + 2
    assert squared_error(answers, problem) == (pytest.approx(4 * 30, rel=1e-5), 30)


# -- span


@given(total=st.integers(1, 200), data=st.data())
def test_a_partition_has_positive_parts_that_add_up(total, data):
    parts = partition(total, data.draw(st.integers(1, total)), torch_stream(data.draw(st.integers(0, 99)), "p"))
    assert sum(parts) == total
    assert min(parts) >= 1


def test_all_partitions_are_equally_likely():
    counts: dict[tuple, int] = {}
    for seed in range(6000):
        key = tuple(partition(5, 3, torch_stream(seed, "p")))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == math.comb(4, 2)
    assert max(abs(count - 1000) for count in counts.values()) < 150


@given(length=st.integers(1, 120), seed=st.integers(0, 50), ratio=st.sampled_from([0.1, 0.15, 0.5, 0.9]))
def test_what_is_left_and_what_is_asked_make_the_original(length, seed, ratio):
    batch = Batch(torch.arange(length)[None], torch.tensor([length]), None)
    made = Span(Span.Config(ratio=ratio, sentinels=20), replace(TOKENS, vocabulary=200))
    problem = made.pose(batch, torch_stream(seed, "masks"))
    inputs, lengths, hidden = problem.given(batch)
    slots = problem.scored[0]
    body, marks = inputs[0, ~slots], hidden[0, ~slots]
    rebuilt = []
    for value, mark in zip(body.tolist(), marks.tolist(), strict=True):
        rebuilt += problem.targets[0][slots & (hidden[0] == mark)].tolist() if mark else [value]
    assert rebuilt == list(range(length))
    spans = int((marks > 0).sum())
    assert lengths.item() == length + spans
    assert marks[marks > 0].tolist() == list(range(1, spans + 1))
    assert slots.sum() == min(max(1, round(ratio * length)), max(1, length - 1))


# -- infill


def test_infilling_without_breaking_anything_shows_everything():
    batch = batch_of("token", rows=2, columns=9)
    problem = Infill(Infill.Config(ratio=0.0), TOKENS).pose(batch, torch_stream(0, "masks"))
    assert not problem.hidden.any()
    assert torch.equal(problem.inputs, batch.inputs)
    assert torch.equal(problem.targets, batch.inputs)


def test_a_permutation_keeps_every_token_and_the_order_within_a_piece():
    batch = Batch(torch.arange(20)[None], torch.tensor([20]), None)
    problem = Infill(Infill.Config(ratio=0.0, piece=4), TOKENS).pose(batch, torch_stream(1, "masks"))
    order = problem.inputs[0].tolist()
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert all(order[i : i + 4] == list(range(order[i], order[i] + 4)) for i in range(0, 20, 4))
    assert torch.equal(problem.targets, batch.inputs)


def test_deletion_leaves_no_trace_but_blanks_at_the_end():
    batch = Batch(torch.arange(500)[None], torch.tensor([500]), None)
    made = Infill(Infill.Config(ratio=0.0, deleted=0.3), replace(TOKENS, vocabulary=500))
    problem = made.pose(batch, torch_stream(0, "masks"))
    blanks = problem.hidden[0] == BLANK
    kept = problem.inputs[0, ~blanks].tolist()
    assert kept == sorted(set(kept))
    assert blanks.sum().item() == pytest.approx(150, abs=45)
    assert torch.equal(blanks, torch.arange(500) >= len(kept))


def test_the_masked_share_is_the_ratio_and_runs_have_the_mean_length_asked_for():
    batch = Batch(torch.arange(4000)[None], torch.tensor([4000]), None)
    made = Infill(Infill.Config(ratio=0.3, mean_length=3.0), replace(TOKENS, vocabulary=4000))
    problem = made.pose(batch, torch_stream(0, "masks"))
    masks = int((problem.hidden == MASK).sum())
    shown = set(problem.inputs[problem.hidden == 0].tolist())
    cut = 4000 - len(shown)
    assert cut == pytest.approx(0.3 * 4000, rel=0.08)
    assert cut / masks == pytest.approx(3.0, rel=0.15)
    missing = sorted(set(range(4000)) - shown)
    assert missing[0] < 60  # they lie all over the sequence, not at one end
    assert missing[-1] > 3940


# -- contrastive


def test_a_frame_is_told_from_all_others_by_its_own_values():
    made = Contrastive(Contrastive.Config(frame=4, span=2, ratio=0.6), CONTINUOUS)
    batch = batch_of("continuous", rows=3, columns=64)
    problem = made.pose(batch, torch_stream(0, "masks"))
    perfect, count = made.score(problem.targets, problem)
    chance, _ = made.score(torch.ones_like(problem.targets), problem)
    assert perfect / count < 0.05 < chance / count
    assert count == problem.scored.sum()
    frames = batch.inputs[:, :, 0].unflatten(1, (16, 4))
    torch.testing.assert_close(problem.targets[:, 3::4], frames @ made.projection)


def test_frames_with_the_same_values_are_no_negatives():
    made = Contrastive(Contrastive.Config(frame=2, span=1, ratio=0.9), CONTINUOUS)
    batch = Batch(torch.ones(1, 40, 1), torch.tensor([40]), None)
    problem = made.pose(batch, torch_stream(0, "masks"))
    total, count = made.score(normal(1, 40, made.outputs, dtype=torch.float32), problem)
    assert count > 3
    assert total.item() == pytest.approx(0, abs=1e-5)  # nothing to be confused with


def test_the_share_of_hidden_frames_is_near_the_ratio_and_never_nothing():
    made = Contrastive(Contrastive.Config(frame=2, span=3, ratio=0.4), CONTINUOUS)
    batch = Batch(torch.zeros(300, 400, 1), torch.full((300,), 400), None)
    share = made.pose(batch, torch_stream(0, "masks")).hidden.float().mean().item()
    assert share == pytest.approx(1 - (1 - 0.4 / 3) ** 3, abs=0.01)
    short = Batch(torch.zeros(50, 2, 1), torch.full((50,), 2), None)
    assert made.pose(short, torch_stream(0, "masks")).scored.any(1).all()


# -- jepa


def test_the_teacher_follows_by_its_momentum():
    network = model(layers=1)
    teacher = Teacher(network, 0.9)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 1
    teacher.follow(network)
    for name, tensor in teacher.state_dict().items():
        torch.testing.assert_close(tensor, before[name] + 0.1)


def test_targets_are_normalised_and_of_the_whole_input():
    made = Jepa(Jepa.Config(ratio=0.5), CONTINUOUS)
    network = model("s4d", pooled=False, outputs=None)
    batch = batch_of("continuous")
    problem = asked(made, network, batch)
    assert problem.targets.shape == (4, 24, 8)
    torch.testing.assert_close(problem.targets.mean(-1), torch.zeros(4, 24), atol=1e-6, rtol=0)
    changed = batch.inputs + problem.hidden[..., None] * 5.0
    assert not torch.equal(asked(made, network, Batch(changed, batch.lengths, None)).targets, problem.targets)


# -- rewriting


def test_a_rewritten_batch_shows_hides_and_asks_as_it_says():
    batch = Batch(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]), None)
    first, second = Rewritten(), Rewritten()
    first.show([2, 0])
    first.stand_in(3)
    first.ask([1, 2], 1)
    second.show([1])
    problem = rewrite(batch, [first, second])
    assert problem.inputs[0, :2].tolist() == [7, 5]
    assert problem.inputs[1, 0] == 9
    assert problem.hidden.tolist() == [[0, 0, 3, 1, 1], [0, 0, 0, 0, 0]]
    assert problem.scored.tolist() == [[False] * 3 + [True] * 2, [False] * 5]
    assert problem.targets[0, 3:].tolist() == [6, 7]
    assert problem.lengths.tolist() == [5, 1]


def test_masked_patches_are_regressed_where_they_are_hidden():
    made = MaskedPatches(MaskedPatches.Config(ratio=0.75, patch=4), IMAGE)
    problem = made.pose(batch_of("continuous", columns=64), torch_stream(0, "masks"))
    assert torch.equal(problem.hidden, problem.scored)
    assert problem.hidden.sum(1).tolist() == [48] * 4
    assert made.score(problem.targets, problem)[0] == 0


def shown_of(made, batch) -> set[int]:
    """Positions of an example whose input the model is given, found out by inputs that are their own number."""
    numbers = torch.arange(batch.inputs.shape[1])
    places = numbers if batch.inputs.ndim == 2 else numbers[:, None].to(batch.inputs)
    numbered = Batch(places[None], batch.lengths, None)
    inputs, lengths, hidden = made.pose(numbered, torch_stream(3, "masks")).given(numbered)
    seen = torch.ones(inputs.shape[:2], dtype=torch.bool) if hidden is None else hidden == 0
    return set(inputs[seen & valid_positions(lengths, inputs.shape[1])].long().flatten().tolist())


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[0] != "denoise"])
def test_what_the_model_is_given_holds_no_value_of_what_is_hidden(name, kind):
    made = make(name, kind)
    batch = batch_of(kind, rows=1, columns=30)
    hidden = sorted(set(range(30)) - shown_of(made, batch))
    assert bool(hidden) == (name != "causal")
    other = batch.inputs.clone()
    other[0, hidden] = (other[0, hidden] + 7) % 20 if kind == "token" else float("nan")
    again = Batch(other, batch.lengths, None)
    first, second = (made.pose(each, torch_stream(3, "masks")).given(each) for each in (batch, again))
    for one, two in zip(first, second, strict=True):
        assert one is two is None or torch.equal(one, two)


def test_what_is_cut_out_stands_neither_below_a_sentinel_nor_in_the_padding():
    made = make("span", "token", ratio=0.5)
    batch = batch_of("token", lengths=[30, 7, 1, 12], columns=30)
    other = batch.inputs.clone()
    for row, length in enumerate(batch.lengths.tolist()):
        _cut_out(made, batch, row, length, other)
    again = Batch(other, batch.lengths, None)
    assert not torch.equal(other, batch.inputs)
    first, second = (made.pose(each, torch_stream(3, "masks")).inputs for each in (batch, again))
    assert torch.equal(first, second)


def _cut_out(made, batch, row, length, other) -> None:
    """Change every token of a row that is asked for; a token is asked for exactly where it was cut out."""
    numbered = Batch(torch.arange(30).expand(4, 30), batch.lengths, None)
    problem = made.pose(numbered, torch_stream(3, "masks"))
    cut = problem.targets[row][problem.scored[row]]
    assert (cut < length).all()
    other[row, cut] = (other[row, cut] + 7) % 20
