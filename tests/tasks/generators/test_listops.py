from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadConfig, BadData
from ssm_priors.tasks.generators import listops
from ssm_priors.tasks.generators.listops import Options, evaluate, parse, read_tsv, rows, write

SHORT = Path(__file__).parents[2] / "data" / "listops_short.tsv"
SMALL = Options(train=400, validation=40, test=40, min_length=4, max_length=40, max_depth=5, max_args=4)
CROWDED = Options(train=90, validation=30, test=30, min_length=1, max_length=5, max_depth=2, max_args=3)
"""400 trees of four tokens; 150 independent draws surely repeat some."""


def plain(text: str) -> int:
    """Another evaluator: rewrites innermost brackets, one at a time, from the text."""
    words = text.split()
    while "]" in words:
        end = words.index("]")
        start = max(place for place, word in enumerate(words[:end]) if word.startswith("["))
        values = [int(word) for word in words[start + 1 : end]]
        median = int(np.median(values))
        value = {"[MIN": min(values), "[MAX": max(values), "[MED": median, "[SM": sum(values) % 10}[words[start]]
        words[start : end + 1] = [str(value)]
    (answer,) = words
    return int(answer)


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(0, 9)))
    arguments = draw(st.lists(trees(depth=depth - 1), min_size=1, max_size=4))
    return f"{draw(st.sampled_from(['[MIN', '[MAX', '[MED', '[SM']))} {' '.join(arguments)} ]"


# -- reading and evaluating


@given(text=trees())
def test_the_evaluator_agrees_with_rewriting_and_the_text_survives(text):
    tokens = parse(text)
    assert evaluate(tokens) == plain(text)
    assert write(tokens) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[MED 0 5 ]", 2),
        ("[MED 1 2 ]", 1),
        ("[MED 3 4 9 ]", 4),
        ("[SM 9 9 ]", 8),
        ("[MIN 9 [MAX 1 2 ] 5 ]", 2),
        ("[MIN 9 [MAX 1 2 5 ] ]", 5),
        ("7", 7),
    ],
)
def test_conventions(text, answer):
    assert evaluate(parse(text)) == answer


def test_brackets_are_tokens_and_round_parentheses_are_not():
    assert parse("( ( ( [MAX 4 ) 3 ) ] )").tolist() == [12, 5, 4, 15]
    assert parse("[MIN 9 [MAX 1 2 ] 5 ]").tolist() != parse("[MIN 9 [MAX 1 2 5 ] ]").tolist()


def test_nesting_far_beyond_the_recursion_limit():
    deep = 50_000
    assert evaluate(np.repeat(np.array([12, 8, 15], np.uint8), [deep, 1, deep])) == 7


def test_every_shipped_golden_row():
    assert len([evaluate(tokens) == answer or pytest.fail(write(tokens)) for tokens, answer in read_tsv(SHORT)]) == 40


def test_every_golden_row(golden):
    files = sorted(golden.glob("listops_*.tsv"))
    counts = [sum(evaluate(tokens) == answer for tokens, answer in read_tsv(file)) for file in files]
    assert counts == [4, 12, 4, 20, 80, 20]


def test_golden_rows_have_lengths_between_the_bounds_they_were_made_with(golden):
    for kind, low, high in (("short", 20, 200), ("lra", 500, 2000)):
        lengths = [len(tokens) for file in golden.glob(f"listops_{kind}_*.tsv") for tokens, _ in read_tsv(file)]
        assert low < min(lengths)
        assert max(lengths) < high


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
@pytest.mark.parametrize("parentheses", [True, False])
def test_line_ends_and_parentheses_may_be_either(tmp_path, ends, parentheses):
    text = SHORT.read_text()
    if not parentheses:
        text = text.replace("( ", "").replace(" )", "")
    (tmp_path / "a.tsv").write_bytes(text.replace("\n", ends).encode())
    for (one, first), (two, second) in zip(read_tsv(tmp_path / "a.tsv"), read_tsv(SHORT), strict=True):
        assert one.tolist() == two.tolist()
        assert first == second


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[MIN 1 2 ]\t2", "answer is given as 2, the row evaluates to 1"),
        ("[MIN 1 2\t1", "1 brackets are never closed"),
        ("[MIN 1 2 ] ]\t1", "token 4 closes a bracket that was never opened"),
        ("[MIN 1 2 ] 3\t1", "2 values stand side by side"),
        ("[MIN ]\t1", "has no argument"),
        ("[FIRST 1 2 ]\t1", r"unknown token '\[FIRST'"),
        ("[MIN 1 12 ]\t1", "unknown token '12'"),
        ("[MIN <pad> 2 ]\t1", "unknown token '<pad>'"),
        ("( [MIN 1 2 ]\t1", "1 round parentheses open and 0 close"),
        ("[MIN 1 2 ] 1", "does not end in a tab and an answer"),
        ("[MIN 1 2 ]\t11", "does not end in a tab and an answer"),
        ("", "does not end in a tab and an answer"),
        ("\t3", "0 values stand side by side"),
    ],
)
def test_a_broken_row_is_refused_with_file_and_row(tmp_path, line, complaint):
    (tmp_path / "a.tsv").write_text(f"Source\tTarget\n[MAX 1 2 ]\t2\n{line}\n")
    with pytest.raises(BadData, match=rf"a\.tsv, row 2: .*{complaint}"):
        list(read_tsv(tmp_path / "a.tsv"))


def test_a_wrong_header_is_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("[MAX 1 2 ]\t2\n")
    with pytest.raises(BadData, match="the header is"):
        list(read_tsv(tmp_path / "a.tsv"))


@pytest.mark.parametrize("token", [0, 16])
def test_an_id_that_is_no_token_is_refused(token):
    with pytest.raises(BadData, match=f"token 0 is {token}"):
        evaluate(np.array([token], np.uint8))


# -- generating


def test_rows_are_the_same_however_they_are_cut():
    whole = rows(SMALL, "train", 0, 60)
    parts = [rows(pickle.loads(pickle.dumps(SMALL)), "train", start, start + 20) for start in (40, 0, 20)]
    for name in ("inputs", "lengths", "targets"):
        joined = np.concatenate([getattr(parts[index], name) for index in (1, 2, 0)])
        assert np.array_equal(getattr(whole, name), joined)


def test_splits_and_seeds_differ():
    one = rows(SMALL, "train", 0, 20).inputs
    assert not np.array_equal(one, rows(SMALL, "validation", 0, 20).inputs)
    other = Options(seed=1, train=400, validation=40, test=40, min_length=4, max_length=40, max_depth=5, max_args=4)
    assert not np.array_equal(one, rows(other, "train", 0, 20).inputs)


@given(
    depth=st.integers(3, 6),
    most=st.integers(3, 6),
    low=st.integers(0, 6),
    width=st.integers(6, 60),
    row=st.integers(0, 99),
)
def test_a_row_is_a_tree_within_its_bounds(depth, most, low, width, row):
    options = Options(
        train=1, validation=1, test=1, min_length=low, max_length=low + width, max_depth=depth, max_args=most
    )
    block = rows(options, "test", row, row + 1)
    tokens = block.inputs[0, : block.lengths[0]]
    assert low < len(tokens) < low + width
    assert not block.inputs[0, len(tokens) :].any()
    text = write(tokens)
    assert block.targets[0] == plain(text)
    level, arguments = 1, [0]
    for word in text.split():
        if word == "]":
            assert 2 <= arguments.pop() <= most
            level -= 1
            continue
        arguments[-1] += 1
        assert level <= depth
        if word.startswith("["):
            level += 1
            arguments.append(0)
    assert arguments == [1]


def test_benchmark_rows_lie_between_500_and_2000_and_none_is_cut():
    block = rows(Options(), "train", 0, 40)
    assert block.inputs.shape == (40, 1999)
    assert block.lengths.min() > 500
    assert block.lengths.max() < 2000
    assert (block.inputs != 0).sum(axis=1).tolist() == block.lengths.tolist()


def recursive_lengths(rng: np.random.Generator, depth: int, max_depth: int, max_args: int) -> int:
    """The benchmark's rule, written as the recursion that its paper describes."""
    if depth == max_depth or rng.random() >= 0.25:
        return 1
    return 2 + sum(recursive_lengths(rng, depth + 1, max_depth, max_args) for _ in range(rng.integers(2, max_args + 1)))


def test_the_law_of_lengths_is_that_of_the_recursion():
    rng = np.random.default_rng(0)
    drawn = np.bincount([recursive_lengths(rng, 1, 4, 4) for _ in range(20_000)], minlength=400)[:400]
    expected = 20_000 * listops.length_law(400, 4, 4)
    assert expected.sum() == pytest.approx(20_000)
    common = expected > 20
    assert ((drawn - expected)[common] ** 2 / expected[common]).sum() < common.sum() + 4 * np.sqrt(2 * common.sum())


def test_generated_lengths_follow_the_law():
    lengths = rows(SMALL, "train", 0, 1500).lengths
    law = listops.length_law(40, 5, 4).copy()
    law[:5] = 0
    gap = np.abs(np.bincount(lengths, minlength=40).cumsum() / len(lengths) - law.cumsum() / law.sum()).max()
    assert gap < 1.95 / np.sqrt(len(lengths))  # Kolmogorov's bound at one in a thousand


def test_operators_digits_and_arguments_are_uniform():
    block = rows(SMALL, "train", 0, 1500)
    counts = np.bincount(block.inputs.ravel(), minlength=16)
    for part in (counts[1:11], counts[11:15]):
        assert ((part - part.mean()) ** 2 / part.mean()).sum() < 30
    assert counts[15] == counts[11:15].sum()


def test_the_benchmark_keeps_one_tree_in_twelve():
    assert listops.require_possible(Options()) == pytest.approx(0.08276, abs=1e-5)


def test_different_trees_are_counted():
    count = listops.different_trees(12, 2, 3)
    assert count[[1, 4, 5]].tolist() == [10, 4 * 10**2, 4 * 10**3]
    assert count.sum() == 10 + 400 + 4000


# -- no row twice


def found(options: Options) -> dict[str, np.ndarray]:
    return {split: listops.digests(rows(options, split, 0, getattr(options, split))) for split in listops.SPLITS}


def finished(options: Options) -> dict[str, list[bytes]]:
    blocks = {split: rows(options, split, 0, getattr(options, split)).inputs for split in listops.SPLITS}
    for (split, row), block in listops.redraws(options, found(options)).items():
        blocks[split][row] = block.inputs[0]
    return {split: [line.tobytes() for line in inputs] for split, inputs in blocks.items()}


def test_no_tree_occurs_twice_in_any_two_splits():
    before = np.concatenate(list(found(CROWDED).values()))
    assert len(np.unique(before)) < len(before)
    lines = [line for part in finished(CROWDED).values() for line in part]
    assert len(set(lines)) == len(lines) == 150


def test_a_redrawn_row_keeps_its_bounds_and_its_answer():
    changed = listops.redraws(CROWDED, found(CROWDED))
    assert changed
    for block in changed.values():
        tokens = block.inputs[0, : block.lengths[0]]
        assert 1 < len(tokens) < 5
        assert block.targets[0] == plain(write(tokens))


def test_only_later_repetitions_are_redrawn():
    changed = set(listops.redraws(CROWDED, found(CROWDED)))
    kept = [
        digest
        for split, all_ in found(CROWDED).items()
        for row, digest in enumerate(all_)
        if (split, row) not in changed
    ]
    assert len(set(kept)) == len(kept) == 150 - len(changed)


def test_repetitions_are_shared_out_over_the_splits():
    """As in the original, where the order of the rows has nothing to do with when they were drawn."""
    counts = dict.fromkeys(listops.SPLITS, 0)
    for seed in range(30):
        options = Options(
            seed=seed, train=30, validation=30, test=30, min_length=1, max_length=5, max_depth=2, max_args=2
        )
        for split, _ in listops.redraws(options, found(options)):
            counts[split] += 1
    assert min(counts.values()) > 60
    assert max(counts.values()) - min(counts.values()) < 5 * np.sqrt(np.mean(list(counts.values())))


def test_without_repetition_nothing_is_redrawn():
    assert listops.redraws(Options(train=5, validation=2, test=2), found(Options(train=5, validation=2, test=2))) == {}


def test_a_missing_row_is_noticed():
    with pytest.raises(BadData, match="4 test rows are given, the options say 30"):
        listops.redraws(CROWDED, found(CROWDED) | {"test": np.zeros(4, np.uint64)})


# -- what cannot be


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(max_depth=2), "only 0 different rows"),
        (Options(min_length=1, max_length=5, max_depth=2, max_args=2), "only 400 different rows"),
        (Options(max_depth=4, max_args=10), "of all trees"),
        (Options(min_length=1000, max_length=1111, max_depth=4, max_args=10), "of all trees|different rows"),
    ],
)
def test_impossible_options_are_refused_at_once(options, complaint):
    with pytest.raises(BadConfig, match=complaint):
        rows(options, "train", 0, 1)


@pytest.mark.parametrize("wrong", [{"max_args": 1}, {"max_depth": 0}, {"min_length": 2000}, {"min_length": -1}])
def test_options_without_sense_are_refused(wrong):
    with pytest.raises(BadConfig, match="expected max_depth >= 1"):
        Options(**wrong)


def test_trees_that_are_there_but_too_rare_end_in_a_refusal(monkeypatch):
    monkeypatch.setattr(listops, "MOST_DRAWS", 20)
    options = Options(train=398, validation=1, test=1, min_length=1, max_length=5, max_depth=2, max_args=2)
    with pytest.raises(BadConfig, match="met no new tree in 20 draws"):
        listops.redraws(options, found(options))


@pytest.mark.parametrize(("split", "start", "stop"), [("dev", 0, 1), ("test", 3, 1), ("test", -1, 1)])
def test_a_range_that_is_none_is_refused(split, start, stop):
    with pytest.raises(BadConfig, match=r"unknown split|no range"):
        rows(SMALL, split, start, stop)
