"""Formal languages: fifteen tasks, regular to context-sensitive, learned on short strings and tested on longer ones.

A row's length is uniform over the lengths from 1 to `train_length` that its task has (training, validation), or over
those from `test_start` to `test_length` (test); strings of that length are drawn as in the paper, symbols independent
and uniform unless the task says otherwise. As in the paper the string is followed by as many placeholders `?` as there
are symbols to answer, and the answer is read at the placeholders. Behind the end mark `.` of an answer nothing is
asked. The paper balances no classes: where symbols are uniform so is the answer of parity_check, and nearly that of
even_pairs (a string of one symbol has class 0). Short strings repeat, within a split and between training and
validation; test strings are longer than any of those, so they are new.

Where the public code leaves the paper's text, this follows the text: odds_first begins with s_1. Lengths for which the
public code answers something arbitrary (fewer than 2 or 3 symbols, in tasks that need them) are left out.

Source: Deletang et al. 2022 (Neural Networks and the Chomsky Hierarchy), arXiv 2207.02098, appendix A.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ssm_priors.errors import BadConfig, UnknownName
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.generators import Block, require_range

MODULUS = 5
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
PAD = 0

Drawing = Callable[[np.random.Generator, int], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Language:
    """One task: what it draws, and the symbols of its strings and answers."""

    name: str
    level: str
    """regular, context-free or context-sensitive: where the paper places it in the hierarchy."""
    symbols: str
    """Ids 1, 2, ... of the input; 0 pads, and the placeholder is one above the last."""
    answers: str
    """Classes 0, 1, ... of the output."""
    shortest: int
    """Least length of a string."""
    odd: bool
    """Whether only odd lengths exist."""
    single: bool
    """Whether the answer is one class."""
    answer_length: Callable[[int], int]
    """Placeholders behind a string of some length."""
    draw: Drawing
    """(stream, length) -> string and answer, as text."""

    @property
    def vocabulary(self) -> int:
        """Number of ids, padding and placeholder included."""
        return len(self.symbols) + 2

    @property
    def placeholder(self) -> int:
        """The id that asks for an answer."""
        return len(self.symbols) + 1


LANGUAGES: dict[str, Language] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Which language, and how long its strings are."""

    language: str
    """A name from `LANGUAGES`."""
    seed: int = 0
    """Of the whole data set."""
    train_length: int = 40
    """Longest string of training and validation."""
    test_start: int = 41
    """Shortest string of the test split; longer than any of training."""
    test_length: int = 500
    """Longest string of the test split."""

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise UnknownName("language", self.language, LANGUAGES)
        if not 1 <= self.train_length < self.test_start <= self.test_length:
            raise BadConfig(
                f"train_length {self.train_length}, test_start {self.test_start}, test_length {self.test_length}; "
                "expected 1 <= train_length < test_start <= test_length"
            )
        for split in ("train", "test"):
            self.lengths(split)

    def lengths(self, split: str) -> list[int]:
        """The lengths that strings of a split may have.

        Raises:
            BadConfig: the language has no string of such a length.
        """
        language = LANGUAGES[self.language]
        low, high = (self.test_start, self.test_length) if split == "test" else (1, self.train_length)
        found = [n for n in range(max(low, language.shortest), high + 1) if n % 2 or not language.odd]
        if not found:
            odd = "odd and " if language.odd else ""
            raise BadConfig(
                f"{self.language} has no string of {low} to {high} symbols; its lengths are {odd}at least "
                f"{language.shortest}"
            )
        return found

    def columns(self, split: str) -> int:
        """Positions of the longest row of a split, placeholders included."""
        return max(n + LANGUAGES[self.language].answer_length(n) for n in self.lengths(split))


def rows(options: Options, split: str, start: int, stop: int) -> Block:
    """Rows `start` to `stop` (exclusive) of a split.

    Args:
        options: the language and its lengths.
        split: train, validation or test.
        start: first row.
        stop: one behind the last row.

    Returns:
        inputs (rows, options.columns(split)) ids, lengths (placeholders included), and targets: (rows,) classes where
        the answer is one class (its placeholder is the last valid position), else (rows, columns), -1 where nothing
        is asked.

    Raises:
        BadConfig: the range is none.
    """
    require_range(split, start, stop)
    language, columns = LANGUAGES[options.language], options.columns(split)
    inputs = np.full((stop - start, columns), PAD, np.uint8)
    targets = np.full((stop - start, columns), -1, np.int8)
    lengths = np.zeros(stop - start, np.int32)
    for index, row in enumerate(range(start, stop)):
        string, answer = example(options, split, row)
        end, total = len(string), len(string) + language.answer_length(len(string))
        inputs[index, :end] = [language.symbols.index(symbol) + 1 for symbol in string]
        inputs[index, end:total] = language.placeholder
        targets[index, end : end + len(answer)] = [language.answers.index(symbol) for symbol in answer]
        lengths[index] = total
    if language.single:
        return Block(inputs, lengths, targets[np.arange(len(lengths)), lengths - 1].astype(np.uint8))
    return Block(inputs, lengths, targets)


def example(options: Options, split: str, row: int) -> tuple[str, str]:
    """The string of a row and its answer, in the symbols of the language."""
    rng = numpy_stream(options.seed, "chomsky", options.language, split, row)
    return LANGUAGES[options.language].draw(rng, int(rng.choice(options.lengths(split))))


def _language(
    level: str,
    symbols: str,
    answers: str,
    *,
    answer_length: Callable[[int], int] = lambda length: 1,
    single: bool = False,
    shortest: int = 1,
    odd: bool = False,
) -> Callable[[Drawing], Drawing]:
    """File a drawing function under its name."""

    def file(draw: Drawing) -> Drawing:
        name = draw.__name__
        LANGUAGES[name] = Language(name, level, symbols, answers, shortest, odd, single, answer_length, draw)
        return draw

    return file


def _string(rng: np.random.Generator, symbols: str, length: int) -> str:
    return "".join(symbols[index] for index in rng.integers(len(symbols), size=length))


# -- regular


@_language("regular", "01", "01", single=True)
def even_pairs(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """Is the number of 01 and 10 together odd (1)?"""
    string = _string(rng, "01", length)
    return string, str((string.count("01") + string.count("10")) % 2)


@_language("regular", "01", "01", single=True)
def parity_check(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """Is the number of 1 odd (1)?"""
    string = _string(rng, "01", length)
    return string, str(string.count("1") % 2)


@_language("regular", "<0>", "01234", single=True)
def cycle_navigation(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """Where on a circle of five places do steps left <, stay 0 and right > lead, from place 0?"""
    string = _string(rng, "<0>", length)
    return string, str((string.count(">") - string.count("<")) % MODULUS)


@_language("regular", "01234+-*", "01234", single=True, odd=True)
def modular_arithmetic_simple(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The value modulo 5 of digits joined by +, - and *, without brackets, * binding first."""
    digits = _string(rng, "01234", length // 2 + 1)
    operators = _string(rng, "+-*", length // 2)
    string = "".join(itertools.chain.from_iterable(itertools.zip_longest(digits, operators, fillvalue="")))
    total, term = 0, int(digits[0])
    for sign, digit in zip(operators, digits[1:], strict=True):
        if sign == "*":
            term = term * int(digit) % MODULUS
        else:
            total, term = total + term, int(sign + digit)
    return string, str((total + term) % MODULUS)


# -- context-free


@_language("context-free", "01-ab", "01.", answer_length=lambda length: length + 1)
def stack_manipulation(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """A stack bottom to top, then pops - and pushes a (0) and b (1): the stack that is left, top to bottom, and `.`

    The first stack has uniformly 1 to length - 1 symbols; a pop from an empty stack does nothing.
    """
    size = int(rng.integers(1, max(length, 2)))
    start, actions = _string(rng, "01", size), _string(rng, "-ab", length - size)
    stack = list(start)
    for action in actions:
        if action != "-":
            stack.append("0" if action == "a" else "1")
        elif stack:
            stack.pop()
    return start + actions, "".join(reversed(stack)) + "."


@_language("context-free", "01", "01", answer_length=lambda length: length)
def reverse_string(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The string backwards."""
    string = _string(rng, "01", length)
    return string, string[::-1]


@_language("context-free", "01234+-*()", "01234", single=True)
def modular_arithmetic_brackets(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The value modulo 5 of a bracketed expression in +, - and *."""
    expression = _expression(rng, length, "+-*")
    return expression, str(evaluate(expression))


@_language("context-free", "01234+-()x=", "01234", single=True, shortest=3)
def solve_equation(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The digit that x stands for in a bracketed expression of + and - with its value modulo 5.

    x replaces the first digit at or behind a uniform place of the expression, from its start again behind its end.
    """
    expression = _expression(rng, length - 2, "+-")
    place = int(rng.integers(len(expression)))
    while not expression[place].isdigit():
        place = (place + 1) % len(expression)
    return f"{expression[:place]}x{expression[place + 1 :]}={evaluate(expression)}", expression[place]


def _expression(rng: np.random.Generator, length: int, operators: str) -> str:
    """An expression: d, -d, (d) or (-d) up to 4 symbols, else (left operator right), split uniformly."""
    written: list[str] = []
    to_do: list[str | int] = [length]
    while to_do:
        part = to_do.pop()
        if isinstance(part, str):
            written.append(part)
        elif part < 5:
            written.append(("{}", "-{}", "({})", "(-{})")[part - 1].format(rng.integers(MODULUS)))
        else:
            left = int(rng.integers(1, part - 3))
            to_do += [")", part - 3 - left, operators[rng.integers(len(operators))], left, "("]
    return "".join(written)


def evaluate(expression: str) -> int:
    """The value modulo 5 of an expression in which every operation on two values has brackets; any depth."""
    open_: list[list[int | str]] = [[]]  # values and operators in turn, of each open bracket
    sign = 1
    for symbol in expression:
        if symbol == "(":
            open_.append([])
        elif symbol == ")":
            value = _value_of(open_.pop())
            open_[-1].append(value)
        elif symbol.isdigit():
            open_[-1].append(sign * int(symbol))
            sign = 1
        elif symbol == "-" and len(open_[-1]) % 2 == 0:
            sign = -1  # where a value is due, - belongs to the digit behind it
        else:
            open_[-1].append(symbol)
    return _value_of(open_.pop())


def _value_of(parts: list[int | str]) -> int:
    left, sign, right = (*parts, "+", 0)[:3]
    return OPERATIONS[str(sign)](int(left), int(right)) % MODULUS


# -- context-sensitive


@_language("context-sensitive", "01", "01", answer_length=lambda length: 2 * length)
def duplicate_string(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The string twice."""
    string = _string(rng, "01", length)
    return string, 2 * string


@_language("context-sensitive", "01_#", "01", single=True, shortest=2)
def missing_duplicate(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """A string twice, one symbol of it replaced by _, and # behind it if the length is odd: the symbol that is gone."""
    doubled = 2 * _string(rng, "01", length // 2)
    place = int(rng.integers(len(doubled)))
    return f"{doubled[:place]}_{doubled[place + 1 :]}{'#' * (length % 2)}", doubled[place]


@_language("context-sensitive", "01", "01", answer_length=lambda length: length)
def odds_first(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """s_1 s_3 s_5 ... and then s_2 s_4 s_6 ..."""
    string = _string(rng, "01", length)
    return string, string[::2] + string[1::2]


@_language("context-sensitive", "01+", "01.", answer_length=lambda length: length + 1, shortest=3)
def binary_addition(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The sum of two positive binary numbers, lowest digit first, and `.`"""
    left, right = _two_numbers(rng, length)
    return f"{left}+{right}", _low_first(_value(left) + _value(right)) + "."


@_language("context-sensitive", "01*", "01.", answer_length=lambda length: length, shortest=3)
def binary_multiplication(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The product of two positive binary numbers, lowest digit first, and `.`"""
    left, right = _two_numbers(rng, length)
    return f"{left}*{right}", _low_first(_value(left) * _value(right)) + "."


@_language("context-sensitive", "01", "01", answer_length=lambda length: (length + 1) // 2)
def compute_sqrt(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The square root, rounded down, of a positive binary number; highest digit first, half as many digits."""
    number = _number(rng, length)
    return number, format(math.isqrt(int(number, 2)), f"0{(length + 1) // 2}b")


@_language("context-sensitive", "01234", "01234", answer_length=lambda length: length)
def bucket_sort(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """The symbols in order."""
    string = _string(rng, "01234", length)
    return string, "".join(sorted(string))


def _two_numbers(rng: np.random.Generator, length: int) -> tuple[str, str]:
    """Numbers whose digits and the sign between them fill `length`, split uniformly."""
    first = int(rng.integers(1, length - 1))
    return _number(rng, first), _number(rng, length - 1 - first)


def _number(rng: np.random.Generator, digits: int) -> str:
    """Uniform over 1 .. 2^digits - 1, zeros in front kept."""
    while "1" not in (number := _string(rng, "01", digits)):
        pass
    return number


def _value(low_first: str) -> int:
    return int(low_first[::-1], 2)


def _low_first(number: int) -> str:
    return format(number, "b")[::-1]
