from __future__ import annotations

import builtins
import hashlib
from importlib.resources import files

import numpy as np
import pytest
import torch
from builders import TOKENS
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadConfig, BadData
from ssm_priors.registry import TASKS, source, summary
from ssm_priors.tasks import data
from ssm_priors.tasks.task import Split, Task, fixed_length, fraction_of, is_stored, stratified_parts

SPLITS = ("train", "validation", "test")
SHIPPED = [name for name in TASKS if not is_stored(TASKS[name], TASKS[name].Config())]
"""Those that are here without being prepared; the others have tests of their own."""


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {name: TASKS[name].load(TASKS[name].Config()) for name in SHIPPED}


def every_split(task: Task) -> torch.Tensor:
    return torch.cat([getattr(task, name).inputs for name in SPLITS])


@pytest.mark.parametrize("name", TASKS)
def test_it_says_what_it_is_and_where_it_comes_from(name):
    assert summary(TASKS[name])
    assert source(TASKS[name])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_task_loads_the_same_every_time_and_from_any_global_seed(name, tasks):
    np.random.seed(3)
    torch.manual_seed(3)
    again = TASKS[name].load(TASKS[name].Config())
    assert again.sha256 == tasks[name].sha256
    for split in SPLITS:
        assert torch.equal(getattr(again, split).inputs, getattr(tasks[name], split).inputs)


@pytest.mark.parametrize(("name", "sizes"), [("mnist", [3500, 500, 1000]), ("digits", [1257, 180, 360])])
def test_the_splits_have_their_sizes_and_keep_the_classes_in_proportion(name, sizes, tasks):
    whole = torch.cat([getattr(tasks[name], split).targets for split in SPLITS]).bincount(minlength=10)
    for split, size in zip(SPLITS, sizes, strict=True):
        part = getattr(tasks[name], split)
        assert len(part) == size
        share = whole.double() * size / sum(sizes)
        assert (part.targets.bincount(minlength=10) - share).abs().max() < (1e-9 if name == "mnist" else 1.5)


@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_the_splits_are_disjoint_and_cover_everything(name, tasks):
    rows = [row.numpy().tobytes() for row in every_split(tasks[name])]
    if name == "mnist":
        images = data.read(*data.MNIST_5K)["images"]
        expected = torch.from_numpy(images.reshape(5000, 784, 1) / 127.5 - 1).float()
    else:
        from sklearn.datasets import load_digits

        expected = torch.from_numpy(load_digits().data / 8 - 1).float()[..., None]
    assert sorted(rows) == sorted(row.numpy().tobytes() for row in expected)


@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_labels_belong_to_their_images(name, tasks):
    """A nearest-mean classifier from one split scores far above chance on another."""
    train, test = tasks[name].train, tasks[name].test
    means = torch.stack([train.inputs[train.targets == label, :, 0].mean(0) for label in range(10)])
    guess = torch.cdist(test.inputs[..., 0], means).argmin(1)
    assert (guess == test.targets).double().mean() > 0.75


@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_values_lie_between_minus_one_and_one_by_a_fixed_rule(name, tasks):
    values = every_split(tasks[name])
    assert values.min() == -1
    assert values.max() == 1
    assert values.dtype == torch.float32
    spec = tasks[name].spec
    assert values.shape[1:] == (spec.length, spec.features)


@pytest.mark.parametrize("pool", [2, 4])
def test_pooling_is_the_mean_of_each_square(pool, tasks):
    pooled = TASKS["mnist"].load(TASKS["mnist"].Config(pool=pool))
    side = 28 // pool
    assert pooled.spec.length == side * side
    for split in SPLITS:
        full = getattr(tasks["mnist"], split).inputs.double().reshape(-1, 28, 28)
        means = [
            full[:, r * pool : (r + 1) * pool, c * pool : (c + 1) * pool].mean((1, 2))
            for r in range(side)
            for c in range(side)
        ]
        expected = torch.stack(means, dim=1)[..., None].float()
        torch.testing.assert_close(getattr(pooled, split).inputs, expected, atol=1e-6, rtol=0)
        assert torch.equal(getattr(pooled, split).targets, getattr(tasks["mnist"], split).targets)


def test_the_shipped_file_has_the_stated_hash():
    name, sha256 = data.MNIST_5K
    content = files("ssm_priors.tasks.data").joinpath(name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    assert sha256 in files("ssm_priors.tasks.data").joinpath("README.md").read_text()


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    name, sha256 = data.MNIST_5K
    content = bytearray(files("ssm_priors.tasks.data").joinpath(name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(data, "files", lambda package: tmp_path)
    data.read.cache_clear()
    with pytest.raises(BadData, match=f"{name} is damaged.*{sha256}"):
        TASKS["mnist"].load(TASKS["mnist"].Config())


def test_without_scikit_learn_the_digits_say_what_to_install(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError("No module named 'sklearn'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(BadData, match="pip install scikit-learn"):
        TASKS["digits"].load(TASKS["digits"].Config())


# -- checks on creation


def broken(change) -> Task:
    def split() -> Split:
        return Split(torch.zeros(4, 6, dtype=torch.long), torch.full((4,), 6), torch.tensor([0, 1, 2, 0]))

    parts = {name: split() for name in SPLITS}
    change(parts)
    return Task(TOKENS, *parts.values(), "")


def test_an_example_without_a_valid_position_is_refused_with_its_row():
    with pytest.raises(BadData, match="validation example 2 has 0 valid positions"):
        broken(lambda parts: parts["validation"].lengths.__setitem__(2, 0))


def test_a_length_beyond_the_columns_is_refused():
    with pytest.raises(BadData, match="train example 3 has 7 valid positions"):
        broken(lambda parts: parts["train"].lengths.__setitem__(3, 7))


@pytest.mark.parametrize("token", [20, -1])
def test_a_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(BadData, match=r"test example 1 has a token id outside 0 \.\. 19"):
        broken(lambda parts: parts["test"].inputs.__setitem__((1, 1), token))


def test_a_class_that_does_not_exist_is_refused():
    with pytest.raises(BadData, match="class outside"):
        broken(lambda parts: parts["train"].targets.__setitem__(0, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(value):
    inputs = np.zeros((4, 5, 1))
    inputs[2, 3] = value
    part, bad = (fixed_length(array, np.zeros(4)) for array in (np.zeros((4, 5, 1)), inputs))
    from builders import CONTINUOUS

    with pytest.raises(BadData, match="not finite"):
        Task(CONTINUOUS, part, bad, part, "")


def test_an_empty_split_is_refused():
    with pytest.raises(BadData, match="test split is empty"):
        broken(lambda parts: parts.update(test=Split(torch.zeros(0, 6), torch.zeros(0), torch.zeros(0))))


# -- parts and fractions


def balanced(each: int = 50, classes: int = 10) -> Split:
    targets = np.repeat(np.arange(classes), each)
    return fixed_length(np.arange(len(targets), dtype=float)[:, None, None].repeat(3, 1), targets)


def rows(split: Split) -> set[int]:
    return set(split.take(torch.arange(len(split))).inputs[:, 0, 0].int().tolist())


@given(fraction=st.sampled_from([0.02, 0.1, 0.3, 0.5, 0.77, 0.99]), seed=st.integers(0, 2**40))
def test_a_fraction_takes_its_share_of_every_class(fraction, seed):
    part = fraction_of(balanced(), fraction, 10, seed)
    assert part.labels.bincount().tolist() == [round(fraction * 50)] * 10
    assert part.labels.tolist() == [row // 50 for row in sorted(rows(part))]
    assert len(rows(part)) == len(part)


@given(pair=st.tuples(st.floats(0.02, 1), st.floats(0.02, 1)), seed=st.integers(0, 2**40))
def test_a_smaller_fraction_lies_inside_a_larger_one(pair, seed):
    small, large = (fraction_of(balanced(), fraction, 10, seed) for fraction in sorted(pair))
    assert rows(small) <= rows(large)


def test_another_seed_takes_another_subset():
    assert rows(fraction_of(balanced(), 0.1, 10, 0)) != rows(fraction_of(balanced(), 0.1, 10, 1))


def test_a_fraction_of_one_is_everything_and_never_one_example():
    assert rows(fraction_of(balanced(), 1.0, 10, 0)) == set(range(500))
    assert rows(fraction_of(balanced(), 1, 10, 0)) == set(range(500))


@pytest.mark.parametrize("each", [3, 7, 50, 129, 351])
def test_a_fraction_that_empties_a_class_is_refused_with_one_that_works(each):
    with pytest.raises(BadConfig, match="leaves class 0 without one") as refusal:
        fraction_of(balanced(each), 0.4 / each, 10, 0)
    works = float(str(refusal.value).rpartition("; ")[2].split()[0])
    assert fraction_of(balanced(each), works, 10, 0).labels.bincount().tolist() == [1] * 10


def test_a_class_that_was_never_there_is_refused_in_words():
    with pytest.raises(BadConfig, match="class 10"):
        fraction_of(balanced(), 0.5, 11, 0)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 99),
)
def test_stratified_parts_are_disjoint_sorted_and_in_proportion(sizes, cut, seed):
    classes = np.repeat(np.arange(len(sizes)), sizes)
    low, high = sorted(round(part * len(classes)) for part in cut)
    parts = stratified_parts(classes, [low, high - low], np.random.default_rng(seed))
    assert [len(part) for part in parts] == [low, high - low]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    for part in parts:
        assert (np.diff(part) > 0).all()
        found = np.bincount(classes[part], minlength=len(sizes))
        assert np.abs(found - np.array(sizes) * len(part) / len(classes)).max() < 2


def test_more_than_there_is_cannot_be_shared_out():
    with pytest.raises(BadData, match="9 examples were asked for, 8 are there"):
        stratified_parts(np.arange(8) % 2, [4, 5], np.random.default_rng(0))


def test_without_labels_there_are_none():
    assert balanced().without_labels().targets is None
    assert balanced().without_labels().take(torch.tensor([1])).targets is None
