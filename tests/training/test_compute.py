"""FLOPs against closed forms: of every mixer, of what training adds, and of the operations that torch cannot count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from builders import CONTINUOUS, SMALL, TOKENS, config, masked, model
from scipy.fft import next_fast_len
from torch.utils.flop_counter import FlopCounterMode

from ssm_priors.batch import Batch, TaskSpec
from ssm_priors.config import PhaseConfig
from ssm_priors.objectives.masked import Masked
from ssm_priors.objectives.supervised import Supervised
from ssm_priors.registry import MIXERS, OBJECTIVES
from ssm_priors.tasks.task import Split
from ssm_priors.training import compute
from ssm_priors.training.compute import phase_flops, step_flops
from ssm_priors.training.loop import Phase
from ssm_priors.training.run import run

H, CLASSES = 8, 3
"""Channels and classes of the models here, all two-sided with one layer."""


def phase(length: int = 48, examples: int = 7, batch_size: int = 3, epochs: int = 2) -> Phase:
    lengths = torch.arange(examples) % length + 1
    split = Split(torch.zeros(examples, length, 1), lengths, torch.arange(examples) % CLASSES)
    settings = PhaseConfig(epochs=epochs, batch_size=batch_size)
    return Phase("finetune", settings, Supervised(CONTINUOUS), split, None, 0, CONTINUOUS)


def count(name: str, length: int = 48, examples: int = 2, **changes: object) -> compute.Flops:
    return step_flops(phase(length), model(name, replace(CONTINUOUS, length=length), **changes), examples, length)


# --- closed forms, of the forward pass -------------------------------------------------------------------------------


def matrix(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def fft(points: int) -> float:
    """Of real numbers."""
    return 2.5 * points * math.log2(points)


def convolution(B: int, L: int) -> float:
    """Spectra of the inputs and of the kernel, their products, and the way back."""
    points = next_fast_len(2 * L - 1, real=True)
    return (2 * B + 1) * H * fft(points) + 6 * B * H * (points // 2 + 1)


def kernel(L: int, modes: int) -> int:
    """Two directions, with L cut into Q x R."""
    R = 1 << round(math.log2(L) / 2)
    return 2 * H * matrix(-(-L // R), 2 * modes, R)


def scan(B: int, L: int, N: int) -> int:
    """A complex product and sum a position that is reached, and a power of z a pass."""
    reaches = [1 << k for k in range(math.ceil(math.log2(L)))]
    return sum(8 * B * (L - reach) * N + 2 * N for reach in reaches)


def shared_state(B: int, L: int, N: int) -> int:
    return matrix(B * L, H, 2 * N) + 2 * scan(B, L, N) + 2 * matrix(B * L, 2 * N, H)


def gated(B: int, L: int) -> int:
    return matrix(B * L, H, 2 * H)


def transformer(B: int, L: int) -> float:
    return 8 * B * L * H * H + 4 * B * L * L * H


def mega(B: int, L: int) -> float:
    N, queries, values = SMALL["mega"]["d_state"], SMALL["mega"]["d_query"], 2 * H
    mixed = matrix(B * L, H, 2 * H + queries + values) + 2 * matrix(B * L, H, values)
    return convolution(B, L) + kernel(L, N) + mixed + 2 * B * L * L * (2 * queries + values)


FORWARD: dict[str, Callable[[int, int], float]] = {
    "dlr": lambda B, L: convolution(B, L) + kernel(L, 6) + gated(B, L) + 2 * (2 * H * 6),  # W / 2
    "dss": lambda B, L: convolution(B, L) + kernel(L, 6) + gated(B, L),
    "gru": lambda B, L: 2 * (matrix(B * L, H, 3 * H) + matrix(B * L, H, 3 * H)) + matrix(B * L, 2 * H, H),
    "longconv": lambda B, L: convolution(B, L) + gated(B, L),
    "lru": lambda B, L: shared_state(B, L, 6) + gated(B, L) + 2 * (6 * H),  # gamma B
    "mega": mega,
    "s4d": lambda B, L: convolution(B, L) + kernel(L, 4) + gated(B, L),
    "s5": lambda B, L: shared_state(B, L, 4) + gated(B, L) + 6 * (4 * H) + 2 * (2 * H * 4),  # gain B, 2 C
    "sgconv": lambda B, L: convolution(B, L) + gated(B, L),
    "transformer": transformer,
}
"""(B, L) -> FLOPs of one mixer. S4's kernel has a test of its own."""


def ends(B: int, L: int) -> int:
    """Embedding and head."""
    return matrix(B * L, 1, H) + matrix(B, H, CLASSES)


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize(("B", "L"), [(1, 48), (3, 48), (2, 31)])
def test_a_forward_pass_costs_what_its_formula_says(name, B, L):
    assert count(name, L, B).forward == pytest.approx(FORWARD[name](B, L) + ends(B, L), abs=5)


def test_a_transformer_block_costs_what_everybody_says():
    """24 L d^2 + 4 L^2 d, with a feed-forward of four times the width; attention counts whole."""
    L, B = 48, 3
    expected = B * (24 * L * H**2 + 4 * L**2 * H) + ends(B, L)
    assert count("transformer", L, B, expand=4).forward == expected
    assert count("transformer", L, B, expand=4, causal=True).forward == expected


def test_training_costs_a_transformer_three_forward_passes():
    """Every product has two in the backward, but for the embedding's, whose inputs need no gradient."""
    flops = count("transformer", 48, 3, expand=4)
    assert flops.training == 3 * flops.forward - matrix(3 * 48, 1, H)


def test_dropout_and_masks_change_no_count():
    """They make torch take plain attention instead of a fused one."""
    assert count("transformer", dropout=0.1) == count("transformer")


def test_training_a_convolution_costs_its_formula():
    """Backward: three transforms of the batch, two of the kernel, three products of spectra, sums over examples."""
    B, L = 3, 48
    points = next_fast_len(2 * L - 1, real=True)
    backward = (3 * B + 2) * H * fft(points) + (6 + 6 + 2) * B * H * (points // 2 + 1)
    backward += 2 * H * (points // 2 + 1)  # what blocks of examples add up to
    backward += 2 * kernel(L, 4) + 2 * gated(B, L) + matrix(B * L, 1, H) + 2 * matrix(B, H, CLASSES)
    flops = count("s4d", L, B)
    assert flops.training - flops.forward == pytest.approx(backward, abs=5)


def test_the_kernel_of_s4_costs_its_poles_and_points():
    """A difference, a reciprocal and (rows x 1) complex products for every pole and point, and one transform back."""
    L, N = 512, SMALL["s4"]["d_state"]
    points = next_fast_len(math.ceil(1.25 * L), real=True)
    half = points // 2 + 1
    rows = 2 * 3  # (two directions and P) x (B and P)
    poles = H * half * N * (2 + 5 + 8 * rows)
    known = poles + 2 * H * fft(points) + convolution(1, L) + gated(1, L) + ends(1, L)
    assert known < count("s4", L, 1).forward < 1.1 * known  # Woodbury's correction, a number a point


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("causal", [True, False])
def test_the_cost_of_a_step_is_linear_in_its_examples(name, causal):
    one, two, five = (count(name, 16, examples, causal=causal) for examples in (1, 2, 5))
    for first, second, fifth in zip(one, two, five, strict=True):
        assert fifth == pytest.approx(first + 4 * (second - first), abs=20)
        assert 0 < first < second


def test_a_phase_is_the_sum_of_its_steps():
    part, made = phase(), model("s4d", replace(CONTINUOUS, length=48))
    three, one = step_flops(part, made, 3, 48), step_flops(part, made, 1, 30)
    expected = tuple(4 * full + 2 * rest for full, rest in zip(three, one, strict=True))
    assert phase_flops(partial(step_flops, part, made), {"3x48": 4, "1x30": 2}) == pytest.approx(expected, abs=20)


def test_between_many_lengths_it_is_interpolated():
    """Attention is a parabola in L: nine points leave far less than a percent."""
    part, made = phase(), model("transformer", replace(CONTINUOUS, length=48))
    exact = sum(step_flops(part, made, 2, length).training for length in range(8, 48))
    found = phase_flops(partial(step_flops, part, made), {f"2x{length}": 1 for length in range(8, 48)}).training
    assert found != exact
    assert found == pytest.approx(exact, rel=1e-2)


def test_pretraining_counts_an_answer_at_every_position():
    part = replace(phase(), objective=Masked(Masked.Config(), CONTINUOUS))
    spec = replace(CONTINUOUS, length=48)
    flops = step_flops(part, model("s4d", spec, outputs=1, pooled=False), 2, 48)
    assert flops.forward == count("s4d", 48, 2).forward - matrix(2, H, CLASSES) + matrix(2 * 48, H, 1)


def pretraining(name: str, spec: TaskSpec, examples: int, length: int, **options: object) -> compute.Flops:
    """Of one step of an objective."""
    objective = OBJECTIVES[name](OBJECTIVES[name].Config(**options), spec)
    inputs = torch.zeros(7, length, dtype=torch.uint8) if spec.kind == "token" else torch.zeros(7, length, 1)
    split = Split(inputs, torch.full((7,), length), None)
    part = replace(phase(length), objective=objective, train=split, spec=spec)
    sizes = {"outputs": objective.outputs, "pooled": False, "stand_ins": objective.stand_ins}
    return step_flops(part, model("s4d", spec, causal=objective.requires_causal, **sizes), examples, length)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in OBJECTIVES for kind in OBJECTIVES[name].kinds])
def test_every_objective_is_counted_and_linear_in_its_examples(name, kind):
    options = {"frame": 2, "span": 2} if name == "contrastive" else {}
    spec = {"continuous": CONTINUOUS, "token": TOKENS}[kind]
    one, two, five = (pretraining(name, spec, examples, 48, **options) for examples in (1, 2, 5))
    for first, second, fifth in zip(one, two, five, strict=True):
        if name != "contrastive":  # how many frames it tells apart is drawn
            assert fifth == pytest.approx(first + 4 * (second - first), abs=20)
        assert 0 < first < second < fifth
    assert 1.9 * one.forward < one.training  # of which a teacher has no backward


def test_a_teacher_costs_one_more_forward_pass_without_its_head():
    B, L = 2, 48
    with_teacher, without = (pretraining(name, CONTINUOUS, B, L) for name in ("jepa", "mae"))
    backbone = without.forward - matrix(B * L, H, 1)  # mae's head has one output, jepa's has H
    assert with_teacher.forward == 2 * backbone + matrix(B * L, H, H)
    backward = without.training - without.forward - 2 * matrix(B * L, H, 1)
    assert with_teacher.training - with_teacher.forward == backward + 2 * matrix(B * L, H, H)


def test_what_an_objective_rewrites_is_counted_at_the_length_that_the_model_is_given():
    """40 tokens, 15% of them hidden in 2 spans: 34 visible, 2 sentinels, 6 slots."""
    expected = pretraining("infill", TOKENS, 2, 42)  # which keeps every length
    assert pretraining("span", TOKENS, 2, 40) == expected


def test_a_pair_costs_its_two_documents_and_one_answer():
    spec = replace(TOKENS, documents=2, length=48)
    pairs = Split(torch.zeros(6, 48, dtype=torch.uint8), torch.full((6,), 48), torch.arange(3), documents=2)
    alone = replace(pairs, targets=torch.zeros(6, dtype=torch.long), documents=1)
    two = replace(phase(), objective=Supervised(spec), train=pairs, spec=spec)
    four = replace(phase(), objective=Supervised(TOKENS), train=alone, spec=TOKENS)
    answers = matrix(2, 4 * H, H) + matrix(2, H, CLASSES) - matrix(4, H, CLASSES)
    expected = step_flops(four, model("s4d", TOKENS), 4, 48).forward + answers
    assert step_flops(two, model("s4d", spec), 2, 48).forward == expected


@pytest.mark.parametrize("length", [30, 48])
def test_an_answer_at_every_position_is_counted_at_any_length(length):
    spec = replace(TOKENS, answer="tokens", length=48)
    targets = torch.where(torch.arange(48) < 40, 1, -1).repeat(3, 1)
    split = Split(torch.zeros(3, 48, dtype=torch.uint8), torch.full((3,), 40), targets)
    part = replace(phase(), objective=Supervised(spec), train=split, spec=spec)
    flops = step_flops(part, model("s4d", spec, pooled=False), 2, length)
    answers = matrix(2 * length, H, CLASSES)
    assert flops.forward == pretraining("infill", TOKENS, 2, length).forward - matrix(2 * length, H, 20) + answers


def test_torch_counts_the_same_where_it_can():
    part, made = phase(examples=48), model("gru", replace(CONTINUOUS, length=48), expand=2)
    batch = part.train.take(torch.tensor([47, 47]))  # as long as examples can be
    with FlopCounterMode(display=False) as theirs:
        total, _ = part.objective.score(made(batch.inputs, batch.lengths), part.objective.pose(batch, None))
        total.backward()
    assert step_flops(part, made, 2, 48).training == theirs.get_total_flops()


# --- operations ------------------------------------------------------------------------------------------------------


def cost(operation: Callable[[], object]) -> int:
    with compute._Counter() as counter:
        operation()
    return counter.flops


REAL, COMPLEX = torch.ones(4, 5), torch.ones(4, 5, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("operation", "flops"),
    [
        (lambda: REAL @ REAL.T, 2 * 4 * 5 * 4),
        (lambda: COMPLEX @ COMPLEX.T, 8 * 4 * 5 * 4),
        (lambda: REAL * REAL, 0),
        (lambda: COMPLEX * COMPLEX, 6 * 20),
        (lambda: COMPLEX.clone().mul_(COMPLEX), 6 * 20),
        (lambda: COMPLEX * REAL, 2 * 20),
        (lambda: REAL * COMPLEX, 2 * 20),
        (lambda: COMPLEX * 0.5, 2 * 20),
        (lambda: COMPLEX * 0.5j, 6 * 20),
        (lambda: COMPLEX / REAL, 2 * 20),
        (lambda: COMPLEX / COMPLEX, 11 * 20),
        (lambda: REAL / COMPLEX, 11 * 20),
        (lambda: COMPLEX + COMPLEX, 2 * 20),
        (lambda: 1 - COMPLEX, 2 * 20),
        (lambda: COMPLEX.reciprocal(), 5 * 20),
        (lambda: COMPLEX.square(), 6 * 20),
        (lambda: COMPLEX.sum(0), 2 * 20),
        (lambda: COMPLEX.conj().resolve_conj().abs(), 0),
        (lambda: torch.fft.rfft(torch.ones(3, 16)), 3 * 5 * 16 * 4 // 2),
        (lambda: torch.fft.irfft(torch.ones(3, 9, dtype=torch.complex64), 16), 3 * 5 * 16 * 4 // 2),
        (lambda: torch.fft.fft(torch.ones(3, 16, dtype=torch.complex64)), 3 * 5 * 16 * 4),
        (lambda: torch.fft.rfft2(torch.ones(3, 4, 4)), 3 * 5 * 16 * 4 // 2),
    ],
)
def test_one_operation(operation, flops):
    assert cost(operation) == flops


# --- in a run --------------------------------------------------------------------------------------------------------

BOTH = config(pretrain=masked(), finetune={"epochs": 2, "batch_size": 50}, model={"dropout": 0.1})


def test_a_run_records_what_it_cost(tmp_path):
    cost = run(BOTH, tmp_path, device="cpu").record["cost"]
    examples = cost["examples"]["pretrain"]
    assert cost["steps"] == {"pretrain": -(-examples // 50), "finetune": 2 * -(-examples // 50)}
    assert cost["examples"] == {"pretrain": examples, "finetune": 2 * examples}
    assert cost["tokens"] == {"pretrain": 64 * examples, "finetune": 2 * 64 * examples}
    assert set(cost["flops"]) == set(cost["forward_flops"]) == set(cost["seconds"]) == {"pretrain", "finetune"}
    assert all(0 < 2 * cost["forward_flops"][name] < cost["flops"][name] for name in cost["flops"])
    assert cost["process_peak_memory_bytes"] > 1e7
    assert cost["device_peak_memory_bytes"] is None


def test_a_run_with_a_teacher_counts_it(tmp_path):
    jepa = masked() | {"objective": {"name": "jepa"}}
    with_teacher = run(config(pretrain=jepa), tmp_path / "jepa", device="cpu").record["cost"]
    without = run(config(pretrain=masked()), tmp_path / "masked", device="cpu").record["cost"]
    assert with_teacher["steps"] == without["steps"]
    assert with_teacher["forward_flops"]["pretrain"] > 1.8 * without["forward_flops"]["pretrain"]
    assert with_teacher["forward_flops"]["finetune"] == without["forward_flops"]["finetune"]


def test_steps_that_were_not_counted_leave_no_number(tmp_path, monkeypatch):
    """As where a run goes on from the state of a version that did not count."""
    from ssm_priors.training.journal import Progress

    real = Progress.count

    def count_examples_alone(self: Progress, batch: Batch) -> None:
        real(self, batch)
        if self.step == 1:
            self.tokens.clear()
            self.shapes.clear()

    monkeypatch.setattr(Progress, "count", count_examples_alone)
    cost = run(BOTH, tmp_path, device="cpu").record["cost"]
    assert cost["flops"] == {}
    assert cost["tokens"] == {}
    assert set(cost["steps"]) == {"pretrain", "finetune"}


def test_counting_changes_no_bit_of_training(tmp_path, monkeypatch):
    from ssm_priors.training import run as module

    counted = run(BOTH, tmp_path / "counted", device="cpu")
    monkeypatch.setattr(module, "phase_flops", lambda *_: compute.Flops(0, 0))
    plain = run(BOTH, tmp_path / "plain", device="cpu")
    assert counted.digest == plain.digest
    assert (tmp_path / "counted" / "metrics.csv").read_bytes() == (tmp_path / "plain" / "metrics.csv").read_bytes()


def test_a_kind_of_step_is_counted_once_for_all_seeds_and_shares_of_the_data(tmp_path, monkeypatch):
    from ssm_priors.training import stages

    def counting(*given: object) -> compute.Flops:
        counted.append(given[2:])
        return step_flops(*given)

    def flops(name: str, **changes: object) -> dict[str, int]:
        counted.clear()
        return run(replace(BOTH, **changes), tmp_path / name, device="cpu").record["cost"]["flops"]

    counted: list[object] = []
    monkeypatch.setattr(stages, "_COUNTED", {})
    monkeypatch.setattr(stages, "step_flops", counting)
    first = flops("first")
    assert len(counted) == 4  # of each phase one example, and two
    assert flops("other seed", seed=BOTH.seed + 1) == first
    assert not counted
    wider = flops("wider", model=replace(BOTH.model, d_model=2 * BOTH.model.d_model))
    assert len(counted) == 4
    assert all(wider[phase] > first[phase] for phase in first)


def test_counting_reads_no_global_random_state():
    before = torch.get_rng_state()
    count("transformer", dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)
