"""What Hypothesis draws for the tests: diagonal state spaces, padded batches, run configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ssm_priors.batch import Batch


@dataclass(frozen=True)
class DiagonalSSM:
    A: np.ndarray
    dt: np.ndarray
    C: np.ndarray
    """(direction, H, N/2), complex."""


@st.composite
def diagonal_ssms(draw: Any) -> DiagonalSSM:
    channels, modes = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    slowest = draw(st.sampled_from([1e-4, 1e-2, 0.5]))
    A = -slowest * (1 + rng.exponential(size=(channels, modes))) + 1j * rng.uniform(0, 50, size=(channels, modes))
    dt = np.exp(rng.uniform(np.log(1e-3), np.log(0.3), size=channels))
    shape = (draw(st.integers(1, 2)), channels, modes)
    return DiagonalSSM(A, dt, rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


@st.composite
def padded_batches(draw: Any, features: int = 1, vocabulary: int = 0) -> Batch:
    """Right-padded; what stands in the padding is drawn like everything else."""
    lengths = torch.tensor(draw(st.lists(st.integers(1, 24), min_size=1, max_size=5)))
    columns = int(lengths.max()) + draw(st.integers(0, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    if vocabulary:
        inputs = torch.randint(vocabulary, (len(lengths), columns), generator=generator)
    else:
        inputs = torch.randn(len(lengths), columns, features, generator=generator)
    return Batch(inputs, lengths, torch.randint(3, (len(lengths),), generator=generator))


def _numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_subnormal=False) | st.sampled_from([low, high])


def phases(**more: Any) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "epochs": st.integers(1, 300),
        "batch_size": st.integers(1, 500),
        "learning_rate": _numbers(1e-8, 10),
        "ssm_learning_rate": _numbers(0, 10),
        "weight_decay": _numbers(0, 1),
        "dt_learning_rate": _numbers(0, 10),
        "decay_vectors": st.booleans(),
        "beta2": _numbers(0, 0.9999),
        "warmup": _numbers(0, 0.99),
        "warmup_steps": st.integers(0, 10_000),
        "schedule": st.sampled_from(["cosine", "constant", "multistep"]),
        "step_epochs": st.integers(1, 300),
        "step_factor": _numbers(1e-3, 1),
        "clip": _numbers(0, 100),
    }
    return st.fixed_dictionaries(more, optional=optional)


def _mixers() -> st.SearchStrategy[dict[str, Any]]:
    s4d = {
        "d_state": st.integers(1, 64).map(lambda modes: 2 * modes),
        "init": st.sampled_from(["s4d-lin", "s4d-inv", "s4d-legs", "random"]),
        "discretisation": st.sampled_from(["zoh", "bilinear"]),
        "dt_min": _numbers(1e-5, 1e-2),
    }
    transformer = {"heads": st.integers(1, 8), "rotary": st.booleans()}
    return st.one_of(
        st.fixed_dictionaries({"name": st.just("s4d")}, optional=s4d),
        st.fixed_dictionaries({"name": st.just("transformer")}, optional=transformer),
    )


@st.composite
def raw_configs(draw: Any) -> dict[str, Any]:
    """Nested mappings that `RunConfig.from_dict` takes."""
    causal = draw(st.booleans())
    masked = st.fixed_dictionaries({"name": st.just("masked")}, optional={"ratio": _numbers(0.01, 0.99)})
    objectives = [masked, st.just({"name": "causal"})] if causal else [masked]
    model = {
        "d_model": st.integers(1, 512),
        "layers": st.integers(1, 12),
        "expand": st.integers(0, 4),
        "norm": st.sampled_from(["layer", "batch"]),
        "norm_position": st.sampled_from(["pre", "post"]),
        "dropout": _numbers(0, 0.9),
        "tied_dropout": st.booleans(),
        "pooling": st.sampled_from(["mean", "max", "last"]),
        "head": st.sampled_from(["linear", "mlp"]),
        "positions": st.sampled_from(["none", "learned"]),
    }
    whole = {
        "task": st.sampled_from([{"name": "digits"}, {"name": "mnist"}, {"name": "mnist", "pool": 2}]),
        "model": st.fixed_dictionaries({"mixer": _mixers(), "causal": st.just(causal)}, optional=model),
        "finetune": phases(),
    }
    optional = {
        "pretrain": phases(objective=st.one_of(objectives)),
        "fraction": _numbers(0.01, 1),
        "precision": st.sampled_from(["32", "bf16-mixed"]),
        "seed": st.integers(0, 2**63 - 1),
    }
    return draw(st.fixed_dictionaries(whole, optional=optional))
