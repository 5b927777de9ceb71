"""ListOps: nested MIN, MAX, median and sum modulo 10 over digits, as the Long Range Arena's generator draws them.

A node at depth d (the root has 1) is an operator with probability 1/4 if d < max_depth, else a uniform digit. An
operator is uniform over the four and has uniformly 2 .. max_args children. A tree is kept if its number of tokens
(operator and closing bracket count one each, round parentheses none) lies strictly between min_length and max_length;
no tree occurs twice. [MED is the median cut down to an integer, [SM the sum modulo 10.

Rejection happens inside a row's own stream, so rows are independent draws of the law above. The public generator also
collects its trees in a set, which makes them draws without repetition, in an order that ignores when each was drawn.
`redraws` does the same: rows take their turn in a seeded order over all splits, and a row whose tree was taken before
its turn draws again. So small versions, where repetition matters, favour rare trees just as the original does, and the
three splits are exchangeable.

Source: Nangia and Bowman 2018, arXiv 1804.06028; Tay et al. 2021 (Long Range Arena), arXiv 2011.04006.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ssm_priors.errors import BadConfig, BadData
from ssm_priors.seeds import numpy_stream
from ssm_priors.tasks.generators import SPLITS, Block, require_range

VOCABULARY = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""The token of each id; ids 1 to 10 are the digits 0 to 9."""
OPERATOR_SHARE = 0.25
LEAST_ACCEPTANCE = 1e-4
"""Trees kept per tree drawn below which options are refused: a row would take seconds."""
MOST_DRAWS = 10_000

_IDS = {token: number for number, token in enumerate(VOCABULARY)}
_MIN, _MAX, _MED, _SM, _END = range(11, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is drawn; the defaults are the benchmark's."""

    seed: int = 0
    """Of the whole data set."""
    train: int = 96_000
    """Training rows."""
    validation: int = 2_000
    """Validation rows."""
    test: int = 2_000
    """Test rows."""
    min_length: int = 500
    """Tokens that a row must exceed."""
    max_length: int = 2_000
    """Tokens that a row must stay below."""
    max_depth: int = 10
    """Deepest node, the root having depth 1."""
    max_args: int = 10
    """Most arguments of an operator; the fewest are 2."""

    def __post_init__(self) -> None:
        if not (self.max_depth >= 1 and self.max_args >= 2 and 0 <= self.min_length < self.max_length):
            raise BadConfig(
                f"max_depth {self.max_depth}, max_args {self.max_args}, lengths {self.min_length} to "
                f"{self.max_length}; expected max_depth >= 1, max_args >= 2 and 0 <= min_length < max_length"
            )

    @property
    def columns(self) -> int:
        """Tokens of the longest row."""
        return self.max_length - 1


# -- the law of the lengths


@cache
def length_law(max_length: int, max_depth: int, max_args: int) -> np.ndarray:
    """P(number of tokens = n), n below `max_length`, of a tree before rejection: (max_length,), sums to at most 1.

    With p the law of a tree one level lower and * the convolution,
    P = 3/4 [n = 1] + 1/4 (mean over k = 2 .. max_args of p * ... * p, k times, at n - 2).
    """
    leaf = _leaf(max_length)
    law = leaf
    for _ in range(max_depth - 1):
        operator = _sum_of_powers(law, max_args) / (max_args - 1)
        law = (1 - OPERATOR_SHARE) * leaf + OPERATOR_SHARE * operator
    return law


@cache
def different_trees(max_length: int, max_depth: int, max_args: int) -> np.ndarray:
    """How many trees of n tokens there are, n below `max_length`: (max_length,), counted up to 1e18."""
    leaf = 10 * _leaf(max_length)
    count = leaf
    for _ in range(max_depth - 1):
        count = np.minimum(leaf + 4 * _sum_of_powers(count, max_args), 1e18)
    return count


def _leaf(max_length: int) -> np.ndarray:
    return (np.arange(max_length) == 1).astype(float)


def _sum_of_powers(one: np.ndarray, max_args: int) -> np.ndarray:
    """Of 2 .. max_args children, with the operator's own two tokens."""
    total, power = np.zeros_like(one), one
    for _ in range(max_args - 1):
        power = np.minimum(np.convolve(power, one)[: len(one)], 1e18)
        total += power
    return np.concatenate([[0, 0], total])[: len(one)]


@cache
def require_possible(options: Options) -> float:
    """The share of drawn trees that is kept.

    Raises:
        BadConfig: too few trees have such a length, or they are too rare to be drawn.
    """
    shape = (options.max_length, options.max_depth, options.max_args)
    kept = slice(options.min_length + 1, None)
    wanted, there = options.train + options.validation + options.test, different_trees(*shape)[kept].sum()
    asked = (
        f"between {options.min_length} and {options.max_length} tokens at max_depth {options.max_depth} and "
        f"max_args {options.max_args}"
    )
    if there < wanted:
        raise BadConfig(f"only {there:.0f} different rows lie {asked}, and {wanted} are asked for; widen the lengths")
    share = float(length_law(*shape)[kept].sum())
    if share < LEAST_ACCEPTANCE:
        raise BadConfig(f"only {share:.1g} of all trees lie {asked}; lower min_length, or raise max_depth or max_args")
    return share


# -- drawing


def rows(options: Options, split: str, start: int, stop: int) -> Block:
    """Rows `start` to `stop` (exclusive), before `redraws`.

    Args:
        options: what is drawn.
        split: train, validation or test.
        start: first row.
        stop: one behind the last row.

    Returns:
        inputs (rows, options.columns) ids of `VOCABULARY`, lengths, and targets (rows,), the answers 0 .. 9.

    Raises:
        BadConfig: the options leave no row, or the range is none.
    """
    require_range(split, start, stop)
    return _block(options, [draw(options, split, row, 0) for row in range(start, stop)])


def _block(options: Options, trees: list[np.ndarray]) -> Block:
    inputs = np.zeros((len(trees), options.columns), np.uint8)
    for line, tree in zip(inputs, trees, strict=True):
        line[: len(tree)] = tree
    lengths = np.array([len(tree) for tree in trees], np.int32)
    return Block(inputs, lengths, np.array([evaluate(tree) for tree in trees], np.uint8))


def draw(options: Options, split: str, row: int, number: int) -> np.ndarray:
    """The tokens of the `number`th tree of one row's stream that has a right length: (length,) uint8."""
    require_possible(options)
    rng = numpy_stream(options.seed, "listops", split, row, number)
    while (levels := _shape(rng, options)) is None:
        pass
    return _tokens(rng, levels)


def _shape(rng: np.random.Generator, options: Options) -> list[np.ndarray] | None:
    """Arguments of every node (0 for a digit), level by level; None if the tree's length is not wanted."""
    levels, nodes, length = [], 1, 0
    for depth in range(1, options.max_depth + 1):
        operator = rng.random(nodes) < (OPERATOR_SHARE if depth < options.max_depth else 0)
        if not operator[0] and depth == 1 and options.min_length >= 1:
            return None  # three of four trees are a single digit
        arguments = np.where(operator, rng.integers(2, options.max_args, nodes, endpoint=True), 0)
        levels.append(arguments)
        length += nodes + int(operator.sum())
        nodes = int(arguments.sum())
        if length + nodes >= options.max_length:
            return None
        if nodes == 0:
            break
    return levels if length > options.min_length else None


def _tokens(rng: np.random.Generator, levels: list[np.ndarray]) -> np.ndarray:
    """Fill a tree's shape with operators and digits, and write it in reading order: (length,) uint8."""
    sizes: list[np.ndarray] = []  # tokens of each node's subtree, deepest level first
    for arguments in reversed(levels):
        inside = np.concatenate([[0], np.cumsum(sizes[-1])]) if sizes else np.zeros(1, int)
        ends = np.cumsum(arguments)
        sizes.append(np.where(arguments > 0, 2 + inside[ends] - inside[ends - arguments], 1))
    sizes.reverse()
    tokens = np.full(sizes[0][0], _END, np.uint8)
    position = np.zeros(1, int)
    for level, arguments in enumerate(levels):
        operators = rng.integers(_MIN, _END, len(arguments))
        tokens[position] = np.where(arguments > 0, operators, rng.integers(1, 11, len(arguments)))
        if level + 1 < len(levels):
            # A child stands behind its parent's operator and its elder siblings
            before = np.cumsum(sizes[level + 1]) - sizes[level + 1]
            first = (np.cumsum(arguments) - arguments)[arguments > 0]
            parent = np.repeat(position[arguments > 0] + 1 - before[first], arguments[arguments > 0])
            position = parent + before
    return tokens


# -- no row twice


def digests(block: Block) -> np.ndarray:
    """A 64-bit hash of each row's tokens: (rows,) uint64."""
    pairs = zip(block.inputs, block.lengths, strict=True)
    hashes = [hashlib.blake2b(line[:length].tobytes(), digest_size=8).digest() for line, length in pairs]
    return np.frombuffer(b"".join(hashes), np.uint64)


def redraws(options: Options, found: Mapping[str, np.ndarray]) -> dict[tuple[str, int], Block]:
    """The rows that repeat another one, each with what stands there instead.

    Rows take their turn in a seeded order over all splits; one whose tree is taken draws on until a new one comes.
    Two different trees with one hash (chance about 1e-10 in all) cost a needless new draw, never a wrong row.

    Args:
        options: what is drawn.
        found: `digests` of all rows of each split, in order.

    Returns:
        (split, row) -> the one row to put there.

    Raises:
        BadConfig: no new tree came after very many draws.
        BadData: the numbers of rows are not those of the options.
    """
    for split in SPLITS:
        if len(found[split]) != getattr(options, split):
            raise BadData(f"{len(found[split])} {split} rows are given, the options say {getattr(options, split)}")
    places = [(split, row) for split in SPLITS for row in range(len(found[split]))]
    every = np.concatenate([found[split] for split in SPLITS])
    if len(np.unique(every)) == len(every):
        return {}
    turn = numpy_stream(options.seed, "listops", "order").permutation(len(places))
    taken: set[int] = set()
    changed: dict[tuple[str, int], Block] = {}
    for place in turn:
        digest = int(every[place])
        if digest in taken:
            split, row = places[place]
            changed[split, row], digest = _first_new(options, split, row, taken)
        taken.add(digest)
    return changed


def _first_new(options: Options, split: str, row: int, taken: set[int]) -> tuple[Block, int]:
    for number in range(1, MOST_DRAWS):
        block = _block(options, [draw(options, split, row, number)])
        digest = int(digests(block)[0])
        if digest not in taken:
            return block, digest
    raise BadConfig(f"{split} row {row} met no new tree in {MOST_DRAWS} draws; ask for fewer rows or wider lengths")


# -- reading


def parse(text: str) -> np.ndarray:
    """Token ids of a written row, round parentheses left out: (length,) uint8.

    Raises:
        BadData: a token is unknown, or parentheses do not match.
    """
    if text.count("(") != text.count(")"):
        raise BadData(f"{text.count('(')} round parentheses open and {text.count(')')} close")
    words = text.replace("(", " ").replace(")", " ").split()
    unknown = next((word for word in words if word not in _IDS or word == VOCABULARY[0]), None)
    if unknown is not None:
        raise BadData(f"unknown token '{unknown}'; ListOps has {' '.join(VOCABULARY[1:])}")
    return np.array([_IDS[word] for word in words], np.uint8)


def write(tokens: np.ndarray) -> str:
    """The text of token ids, without round parentheses; `parse` reads it back."""
    return " ".join(VOCABULARY[token] for token in tokens)


def evaluate(tokens: np.ndarray) -> int:
    """The answer, 0 .. 9, of token ids (length,); any depth.

    Raises:
        BadData: brackets do not match, an operator has no argument, or there is more or less than one value.
    """
    values: list[int] = []
    open_: list[tuple[int, int]] = []  # operator and where its arguments start
    for place, token in enumerate(tokens.tolist()):
        if 1 <= token <= 10:
            values.append(token - 1)
        elif _MIN <= token < _END:
            open_.append((token, len(values)))
        elif token == _END:
            values = _close(values, open_, place)
        else:
            raise BadData(f"token {place} is {token}; ids of ListOps are 1 to {len(VOCABULARY) - 1}")
    if open_:
        raise BadData(f"{len(open_)} brackets are never closed")
    if len(values) != 1:
        raise BadData(f"{len(values)} values stand side by side; a row is one digit or one operator")
    return values[0]


def _close(values: list[int], open_: list[tuple[int, int]], place: int) -> list[int]:
    if not open_:
        raise BadData(f"token {place} closes a bracket that was never opened")
    operator, start = open_.pop()
    if start == len(values):
        raise BadData(f"the operator that token {place} closes has no argument")
    arguments = values[start:]
    del values[start:]
    values.append(_apply(operator, arguments))
    return values


def _apply(operator: int, arguments: list[int]) -> int:
    if operator == _MIN:
        return min(arguments)
    if operator == _MAX:
        return max(arguments)
    if operator == _SM:
        return sum(arguments) % 10
    ordered, half = sorted(arguments), len(arguments) // 2
    return ordered[half] if len(arguments) % 2 else (ordered[half - 1] + ordered[half]) // 2


def read_tsv(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Tokens and answer of each row of an official file: header Source, Target; any line ends; parentheses or none.

    Raises:
        BadData: with file and row, of what cannot be read or whose answer is wrong.
    """
    with path.open(encoding="ascii", errors="replace", newline=None) as file:  # what is no ASCII is no token either
        header = file.readline().rstrip("\n")
        if header.split("\t") != ["Source", "Target"]:
            raise BadData(f"{path}: the header is '{header[:60]}', expected 'Source<tab>Target'")
        for row, line in enumerate(file, 1):
            try:
                yield _read_row(line.rstrip("\n"))
            except BadData as error:
                raise BadData(f"{path}, row {row}: {error}") from error


def _read_row(line: str) -> tuple[np.ndarray, int]:
    source, tab, target = line.rpartition("\t")
    if not tab or target not in set("0123456789"):
        raise BadData(f"'{line[-30:]}' does not end in a tab and an answer from 0 to 9")
    tokens = parse(source)
    if (answer := evaluate(tokens)) != int(target):
        raise BadData(f"the answer is given as {target}, the row evaluates to {answer}")
    return tokens, answer
