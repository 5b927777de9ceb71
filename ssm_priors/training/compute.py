"""What a phase of training costs, counted: floating-point operations of the very step that training takes.

    FLOPs of a phase = sum over its steps of  fixed(L) + B each(L),   B examples padded to L positions

L is the length before an objective rewrites the inputs; what the model is then given is what is counted. The forward
pass of a teacher, where the objective has one, is a part of the step's own.

`fixed` is what a step does once for its batch (kernels, their spectra), `each` what it does for every example; both
follow from counting a step over one example and a step over two, forward and backward, on a model that is thrown away.
One multiplication and one addition are 2 FLOPs. Counted, wherever in the model they happen:

    matrix products, convolutions    2 m n k, by torch's own formulas; 8 m n k between complex numbers
    attention                        2 L^2 (d_key + d_value) a head, twice that backward; whole, also where it is masked
    FFTs of n points                 5 n log2 n, half of that where one side is real
    complex numbers, one by one      6 a product, 2 a sum, 2 by a real number, 5 a reciprocal, 11 a quotient

Not counted: real arithmetic number by number (activations, norms, gates, residuals, losses, tables of sines), the
optimiser, validation and test. Padding is counted, because models compute on it. What a backward pass makes again
instead of keeping it is counted as done, but not the scores that a fused attention makes again: then the count would
depend on which kernel torch picks. Counting happens on the CPU in float32, whatever the run's device and precision.

Source of the FFT's count: Frigo and Johnson 2005, The design and implementation of FFTW3, Proc. IEEE 93(2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ssm_priors.batch import Batch
from ssm_priors.models.build import Model
from ssm_priors.ops.backend import using
from ssm_priors.seeds import torch_stream
from ssm_priors.training.loop import Phase
from ssm_priors.training.teacher import taught, teacher_of

COMPLEX_PRODUCT = 4
"""Real products and sums in a complex product and sum, over those of a real one."""
MOST_BATCHES = 64
"""Batches of an epoch that are looked at; where it has more, these stand for the others."""
MOST_LENGTHS = 9
"""Padded lengths that are counted; where batches have more of them, what lies between is interpolated."""


class Flops(NamedTuple):
    """Floating-point operations."""

    forward: int
    """Of the forward pass alone, a teacher's included."""
    training: int
    """Of forward and backward."""


Cost = Callable[[int, int], Flops]
"""Of one step of a phase, over so many examples padded to so many positions."""


def phase_flops(cost: Cost, shapes: Mapping[str, float]) -> Flops:
    """FLOPs of a whole phase.

    Args:
        cost: of one of its steps.
        shapes: "BxL" -> how many steps had a batch of B examples padded to L positions.

    Returns:
        Exact for up to `MOST_LENGTHS` lengths where a step's cost is linear in its examples, as it is here; but what an
        objective draws is drawn once, and the similarities of contrastive depend on how many frames that hides.
    """
    sizes = np.array([[int(number) for number in shape.split("x")] for shape in shapes])
    examples, lengths = sizes.T
    counted = _thinned(np.unique(lengths))
    one, two = (np.array([cost(B, L) for L in counted]).T for B in (1, 2))  # (part, length)
    first, more = ([np.interp(lengths, counted, part) for part in parts] for parts in (one, two - one))
    steps = np.array(list(shapes.values()))
    return Flops(*(round(float(steps @ (a + (examples - 1) * b))) for a, b in zip(first, more, strict=True)))


def steps_within(phase: Phase, cost: Cost, flops: float) -> int:
    """How many steps of a phase a budget pays for, at their mean cost over an epoch; 0 if not one.

    Args:
        phase: what would be trained.
        cost: of one of its steps.
        flops: the budget.
    """
    return int(flops * phase.steps / phase_flops(cost, expected_shapes(phase)).training)


def expected_shapes(phase: Phase) -> dict[str, float]:
    """ "BxL" -> steps with a batch of B examples padded to L positions; exact for examples of one length."""
    steps = np.unique(np.linspace(0, phase.steps_per_epoch - 1, min(phase.steps_per_epoch, MOST_BATCHES)).round())
    batches = (phase.train.take(phase.rows(int(step))) for step in steps)
    shapes = Counter(f"{len(batch)}x{batch.inputs.shape[1]}" for batch in batches)
    return {shape: phase.steps * number / len(steps) for shape, number in shapes.items()}


def _thinned(lengths: np.ndarray) -> list[int]:
    """At most `MOST_LENGTHS` of them, evenly by rank, with both ends."""
    chosen = np.linspace(0, len(lengths) - 1, min(len(lengths), MOST_LENGTHS)).round().astype(int)
    return lengths[chosen].tolist()


def step_flops(phase: Phase, model: Model, examples: int, length: int) -> Flops:
    """FLOPs of one step; the same for every seed and for any data of the task.

    The model counts in evaluation mode: dropout multiplies no matrices, and so no global random state is read.

    Args:
        phase: what is trained, on what.
        model: on the CPU; thrown away afterwards, as it is left in evaluation mode with gradients.
        examples: of the batch.
        length: positions to which they are padded.
    """
    batch, teacher = _batch(phase, examples, length), teacher_of(phase.objective, model)
    model.eval()
    with using("torch"), torch.enable_grad(), _Counter() as counter:  # compiled kernels cannot be looked into
        posed = phase.objective.pose(batch, torch_stream(0, "count"))
        total, _ = phase.score(model, batch, taught(phase.objective, posed, batch, teacher))
        forward = counter.flops
        total.backward()
    return Flops(forward, counter.flops)


def _batch(phase: Phase, examples: int, length: int) -> Batch:
    """The first example so many times, cut or padded to a length that then counts as valid."""
    batch = phase.train.take(torch.zeros(examples, dtype=torch.long))
    inputs, targets = _stretched(batch.inputs, length, 0), batch.targets
    if targets is not None and phase.spec.answer == "tokens":
        targets = _stretched(targets, length, -1)
    return replace(batch, inputs=inputs, lengths=torch.full_like(batch.lengths, length), targets=targets)


def _stretched(rows: Tensor, length: int, fill: int) -> Tensor:
    """(B, any, ...) -> (B, length, ...)."""
    rows = rows[:, :length].movedim(1, -1)
    return F.pad(rows, (0, length - rows.shape[-1]), value=fill).movedim(-1, 1)


class _Counter(TorchDispatchMode):
    """Adds up what every operation inside it costs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.flops += _cost(func.overloadpacket, args, kwargs or {}, result)
        return result


def _cost(operation: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> int:
    if operation in flop_registry:
        flops: int = flop_registry[operation](*args, **kwargs, out_val=result)
        return flops * (COMPLEX_PRODUCT if _is_complex(result) else 1)
    name = operation.__name__.rstrip("_")
    if name in UNKNOWN_TO_TORCH:
        return UNKNOWN_TO_TORCH[name](args, result)
    if name in ONE_BY_ONE and any(map(_is_complex, args)):
        return _one_by_one(name, args, result)
    return 0


def _one_by_one(name: str, args: tuple, result: Tensor) -> int:
    if name == "sum":
        return ONE_BY_ONE[name] * args[0].numel()
    by_real = not all(map(_is_complex, args[:2])) if name == "mul" else name == "div" and not _is_complex(args[1])
    return (2 if by_real else ONE_BY_ONE[name]) * result.numel()


def _transforms(numbers: Tensor, axes: Sequence[int], weight: float) -> int:
    """weight * n log2 n for each FFT over these axes; n: the points of all of them together."""
    points = math.prod(numbers.shape[axis] for axis in axes)
    return round(weight * numbers.numel() * math.log2(points))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> int:
    """The products q k^T and weights v; q: (B, heads, L, d), k: (B, heads, S, d), v: (B, heads, S, e)."""
    return 2 * q.shape[:3].numel() * k.shape[2] * (q.shape[3] + v.shape[3])


UNKNOWN_TO_TORCH: dict[str, Callable[[tuple, Any], int]] = {
    "_fft_r2c": lambda args, result: _transforms(args[0], args[1], 2.5),
    "_fft_c2r": lambda args, result: _transforms(result, args[1], 2.5),
    "_fft_c2c": lambda args, result: _transforms(args[0], args[1], 5),
    # torch has formulas for the fused attention of GPUs alone
    "_scaled_dot_product_flash_attention_for_cpu": lambda args, result: _attention(*args[:3]),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda args, result: 2 * _attention(*args[1:4]),
}
"""Operations that torch's registry lacks: arguments and result -> FLOPs."""

ONE_BY_ONE = {"mul": 6, "add": 2, "sub": 2, "rsub": 2, "reciprocal": 5, "div": 11, "pow": 6, "sum": 2}
"""FLOPs for every complex number; `pow` squares."""


def _is_complex(value: Any) -> bool:
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, complex)
