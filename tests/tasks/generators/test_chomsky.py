from __future__ import annotations

import ast
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.tasks.generators import chomsky
from ssm_priors.tasks.generators.chomsky import LANGUAGES, Options, example, rows

NAMES = sorted(LANGUAGES)


def arithmetic(text: str) -> int:
    """Modulo 5, by Python's own grammar."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=operator, right=right):
                one, two = value(left), value(right)
                return {ast.Add: one + two, ast.Sub: one - two, ast.Mult: one * two}[type(operator)]
        raise AssertionError(ast.dump(node))

    return value(ast.parse(text, mode="eval").body) % 5


def stack(string: str) -> str:
    size = len(string.rstrip("-ab"))
    left = list(string[:size])
    for action in string[size:]:
        left = {"-": left[:-1], "a": [*left, "0"], "b": [*left, "1"]}[action]
    return "".join(left[::-1]) + "."


def two_numbers(string: str, sign: str) -> tuple[int, int]:
    one, two = (sum(2**place for place, digit in enumerate(part) if digit == "1") for part in string.split(sign))
    return one, two


def low_first(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 2)
        digits += str(digit)
    return digits + "."


def solve(string: str) -> str:
    left, right = string.split("=")
    (solution,) = [digit for digit in "01234" if arithmetic(left.replace("x", digit)) == int(right)]
    return solution


def missing(string: str) -> str:
    half = len(string) // 2
    first, second = string[:half], string[half : 2 * half]
    assert string[2 * half :] == "#" * (len(string) % 2)
    (gone,) = [one if two == "_" else two for one, two in zip(first, second, strict=True) if one != two]
    return gone


def root(string: str) -> str:
    number = int(string, 2)
    (found,) = [n for n in range(math.isqrt(number) - 1, math.isqrt(number) + 3) if n * n <= number < (n + 1) ** 2]
    return bin(found)[2:].zfill(math.ceil(len(string) / 2))


ANSWERS = {
    "even_pairs": lambda string: str(int(string[0] != string[-1])),
    "parity_check": lambda string: str(sum(map(int, string)) % 2),
    "cycle_navigation": lambda string: str(sum("<0>".index(step) - 1 for step in string) % 5),
    "modular_arithmetic_simple": lambda string: str(arithmetic(string)),
    "stack_manipulation": stack,
    "reverse_string": lambda string: "".join(reversed(string)),
    "modular_arithmetic_brackets": lambda string: str(arithmetic(string)),
    "solve_equation": solve,
    "duplicate_string": lambda string: string + string,
    "missing_duplicate": missing,
    "odds_first": lambda string: (
        "".join(s for i, s in enumerate(string, 1) if i % 2) + "".join(s for i, s in enumerate(string, 1) if i % 2 == 0)
    ),
    "binary_addition": lambda string: low_first(sum(two_numbers(string, "+"))),
    "binary_multiplication": lambda string: low_first(math.prod(two_numbers(string, "*"))),
    "compute_sqrt": root,
    "bucket_sort": lambda string: "".join(digit * string.count(digit) for digit in "01234"),
}
"""Another way to every answer, from the string alone."""


def test_every_language_has_another_way_to_its_answer():
    assert sorted(ANSWERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@given(row=st.integers(0, 10**6), split=st.sampled_from(["train", "validation", "test"]), seed=st.integers(0, 2**40))
def test_the_answer_follows_from_the_string(name, row, split, seed):
    options = Options(language=name, seed=seed, train_length=17, test_start=18, test_length=70)
    string, answer = example(options, split, row)
    assert answer == ANSWERS[name](string)
    assert set(string) <= set(LANGUAGES[name].symbols)
    assert set(answer) <= set(LANGUAGES[name].answers)
    assert len(string) in options.lengths(split)
    assert 1 <= len(answer) <= LANGUAGES[name].answer_length(len(string))


@pytest.mark.parametrize(
    ("name", "string", "answer"),
    [
        ("even_pairs", "001110", "0"),
        ("even_pairs", "0101001", "1"),
        ("parity_check", "1010100", "1"),
        ("cycle_navigation", "><0<<", "3"),
        ("modular_arithmetic_simple", "0*1+4*3-2", "0"),
        ("stack_manipulation", "0110b--", "110."),
        ("stack_manipulation", "110---", "."),
        ("missing_duplicate", "0110_110", "0"),
        ("missing_duplicate", "101_01#", "1"),
        ("odds_first", "00110101", "01000111"),
        ("binary_addition", "001+01101", "01011."),
        ("binary_multiplication", "001*01101", "0001101."),
        ("compute_sqrt", "100101", "110"),
        ("bucket_sort", "10204112", "00111224"),
    ],
)
def test_known_answers(name, string, answer):
    """Worked by hand: the other way, which the generator is held against, is right itself."""
    assert ANSWERS[name](string) == answer


@pytest.mark.parametrize("name", NAMES)
def test_the_arrays_say_what_the_example_says(name):
    language, options = LANGUAGES[name], Options(language=name, train_length=12, test_start=13, test_length=30)
    for split in ("train", "test"):
        block = rows(options, split, 5, 25)
        assert block.inputs.shape == (20, options.columns(split))
        for index, (line, length) in enumerate(zip(block.inputs, block.lengths, strict=True)):
            string, answer = example(options, split, 5 + index)
            asked = language.answer_length(len(string))
            assert length == len(string) + asked
            assert "".join(language.symbols[i - 1] for i in line[: len(string)]) == string
            assert (line[len(string) : length] == language.placeholder).all()
            assert not line[length:].any()
            if language.single:
                assert language.answers[block.targets[index]] == answer
                continue
            target = block.targets[index]
            start = len(string)
            assert "".join(language.answers[i] for i in target[start : start + len(answer)]) == answer
            assert (target[:start] == -1).all()
            assert (target[start + len(answer) :] == -1).all()


@pytest.mark.parametrize("name", NAMES)
def test_ids_lie_in_the_vocabulary_and_placeholders_stand_only_where_an_answer_goes(name):
    language = LANGUAGES[name]
    block = rows(Options(language=name), "train", 0, 50)
    assert block.inputs.max() == language.placeholder == language.vocabulary - 1
    if not language.single:
        assert (block.inputs[block.targets >= 0] == language.placeholder).all()
        assert block.targets.max() < len(language.answers)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_however_they_are_cut(name):
    options = Options(language=name)
    whole = rows(options, "test", 0, 9)
    parts = [rows(pickle.loads(pickle.dumps(options)), "test", start, start + 3) for start in (0, 3, 6)]
    for index in range(3):
        assert np.array_equal(whole[index], np.concatenate([part[index] for part in parts]))
    assert not np.array_equal(whole.inputs, rows(Options(language=name, seed=1), "test", 0, 9).inputs)


def test_training_is_short_and_testing_is_longer():
    options = Options(language="reverse_string")
    lengths = {split: rows(options, split, 0, 800).lengths // 2 for split in ("train", "test")}
    assert set(lengths["train"]) == set(range(1, 41))
    assert lengths["test"].min() >= 41
    assert lengths["test"].max() <= 500
    counts = np.bincount(lengths["train"], minlength=41)[1:]
    assert ((counts - 20) ** 2 / 20).sum() < 85  # chi squared with 39 degrees of freedom, one in 40,000


@pytest.mark.parametrize(
    ("name", "classes"),
    [("parity_check", 2), ("cycle_navigation", 5), ("modular_arithmetic_brackets", 5), ("solve_equation", 5)],
)
def test_classes_come_out_evenly_where_they_should(name, classes):
    counts = np.bincount(rows(Options(language=name), "test", 0, 1000).targets, minlength=classes)
    assert len(counts) == classes
    spread = 0.3 if name == "modular_arithmetic_brackets" else 0  # products make 0 more frequent
    assert (np.abs(counts - 1000 / classes) < 4 * np.sqrt(1000 / classes) + spread * 1000).all()


def test_splits_of_a_stack_and_of_two_numbers_are_uniform():
    rng = np.random.default_rng(0)
    sizes = [len(chomsky.stack_manipulation(rng, 6)[0].rstrip("-ab")) for _ in range(2000)]
    assert set(sizes) == {1, 2, 3, 4, 5}
    signs = [chomsky.binary_addition(rng, 6)[0].index("+") for _ in range(2000)]
    assert set(signs) == {1, 2, 3, 4}
    for found in (sizes, signs):
        counts = np.bincount(found)[1:]
        assert (np.abs(counts - counts.mean()) < 4.5 * np.sqrt(counts.mean())).all()


@given(length=st.integers(1, 120), seed=st.integers(0, 10**6))
def test_expressions_have_their_length_and_the_value_that_python_finds(length, seed):
    text = chomsky._expression(np.random.default_rng(seed), length, "+-*")
    assert len(text) == length
    assert chomsky.evaluate(text) == arithmetic(text)


def test_brackets_far_beyond_the_recursion_limit():
    assert chomsky.evaluate("(" * 5000 + "4" + "-1)" * 5000) == 4


def test_an_unknown_language_is_refused_with_a_near_one():
    with pytest.raises(UnknownName, match="Did you mean parity_check"):
        Options(language="parity_chek")


@pytest.mark.parametrize(
    "wrong", [{"train_length": 0}, {"train_length": 41}, {"test_start": 501}, {"train_length": 40, "test_start": 40}]
)
def test_lengths_without_sense_are_refused(wrong):
    with pytest.raises(BadConfig, match="expected 1 <= train_length < test_start <= test_length"):
        Options(language="parity_check", **wrong)


@pytest.mark.parametrize(
    ("name", "wrong", "complaint"),
    [
        ("solve_equation", {"train_length": 2}, "no string of 1 to 2 symbols; its lengths are at least 3"),
        ("modular_arithmetic_simple", {"test_start": 42, "test_length": 42}, "odd and at least 1"),
    ],
)
def test_lengths_that_a_language_does_not_have_are_refused(name, wrong, complaint):
    with pytest.raises(BadConfig, match=complaint):
        Options(language=name, **wrong)
