"""ListOps trees with their values, made from a seed.

The grammar is that of Nangia and Bowman (2018, arXiv 1804.06028) with the parameters of the Long Range Arena (Tay et
al., 2021, arXiv 2011.04006). A node above the depth limit is an operator with probability 1/4, else a digit; an
operator has 2 to `max_args` arguments. Trees of the wanted length are kept.

Written from that description. Trees are grown level by level, many at once, and given up as soon as they are too long,
which leaves the distribution of the kept ones as it is: one tree in twelve passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .generation import Maker, Tick

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

DIGITS = tuple(str(digit) for digit in range(10))
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
VOCABULARY = (*DIGITS, *OPERATORS, CLOSE)
_MIN, _MAX, _MED, _SM = range(4)
_CLOSE_ID = len(VOCABULARY) - 1
_OPERATOR_SHARE = 0.25
# Trees that are begun at once: enough to hide the cost of numpy's calls, few enough to stay in the processor's cache.
_BATCH = 4096
# Trees in a row of which none had the wanted length, before such a length is taken for impossible.
_MAX_REJECTED = 20_000_000


@dataclass
class _Level:
    """The nodes of one depth, of all trees, from left to right.

    Attributes:
        tree: Which tree a node belongs to, (N,).
        is_operator: (N,) bool.
        arity: Number of arguments of each operator, (M,). The next level holds them in this order.
    """

    tree: np.ndarray
    is_operator: np.ndarray
    arity: np.ndarray

    def keep(self, kept: np.ndarray) -> _Level:
        """The nodes of the trees for which `kept` is true."""
        mask = kept[self.tree]
        number = np.cumsum(kept) - 1
        return _Level(number[self.tree[mask]], self.is_operator[mask], self.arity[mask[self.is_operator]])


def grow(random: np.random.Generator, options: dict[str, Any]) -> tuple[list[_Level], np.ndarray, int]:
    """Grow a batch of trees and keep those of the wanted length.

    Returns:
        The levels of the kept trees, their lengths (T,) in tokens, and the number of trees that were begun.
    """
    alive = np.arange(_BATCH)
    length = np.zeros(_BATCH, dtype=np.int64)
    levels: list[_Level] = []
    tree = alive
    for depth in range(1, options["max_depth"] + 1):
        is_operator = random.random(len(tree)) < _OPERATOR_SHARE if depth < options["max_depth"] else tree < 0
        number = int(is_operator.sum())
        arity = 2 + (random.random(number) * (options["max_args"] - 1)).astype(np.int64)
        levels.append(_Level(tree, is_operator, arity))
        length += np.bincount(tree, minlength=len(length)) + np.bincount(tree[is_operator], minlength=len(length))
        tree = np.repeat(tree[is_operator], arity)
        waiting = np.bincount(tree, minlength=len(length))
        # Too long already, or ended and too short.
        kept = (length + waiting < options["max_length"]) & ((waiting > 0) | (length > options["min_length"]))
        levels = [level.keep(kept) for level in levels]
        tree = (np.cumsum(kept) - 1)[tree[kept[tree]]]
        length = length[kept]
        if not len(tree):
            break
    return levels, length, _BATCH


def evaluate(levels: list[_Level], lengths: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw operators and digits, work the values out, and write the trees down.

    Returns:
        Ids of the tokens of all trees one after the other, (sum of lengths,) uint8, and the values of the trees, (T,).
    """
    symbols, spans, values = [], [], []
    for level in levels:
        digits = (random.random(len(level.tree)) * 10).astype(np.int64)
        operators = len(DIGITS) + (random.random(len(level.tree)) * len(OPERATORS)).astype(np.int64)
        symbols.append(np.where(level.is_operator, operators, digits))
    # From the leaves up: the value of each node, and the number of its tokens.
    value = span = np.zeros(0, dtype=np.int64)
    for level, symbol in zip(reversed(levels), reversed(symbols)):
        below_value, below_span = value, span
        value, span = symbol.copy(), np.ones(len(symbol), dtype=np.int64)
        if len(level.arity):
            value[level.is_operator] = _apply(symbol[level.is_operator] - len(DIGITS), level.arity, below_value)
            starts = np.cumsum(level.arity) - level.arity
            span[level.is_operator] = 2 + np.add.reduceat(below_span, starts)
        values.append(value)
        spans.append(span)
    spans.reverse()
    tokens = np.empty(int(lengths.sum()), dtype=np.uint8)
    # From the root down: where each node begins. Arguments follow their operator and each other.
    place = np.cumsum(lengths) - lengths
    for depth, (level, symbol) in enumerate(zip(levels, symbols)):
        tokens[place] = symbol
        if not len(level.arity):
            break
        begin, end = place[level.is_operator], (place + spans[depth])[level.is_operator]
        tokens[end - 1] = _CLOSE_ID
        below = spans[depth + 1]
        before = np.cumsum(below) - below
        starts = np.cumsum(level.arity) - level.arity
        place = before + np.repeat(begin + 1 - before[starts], level.arity)
    return tokens, values[-1]


def _apply(operator: np.ndarray, arity: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """The value of each operator over its stretch of `arguments`."""
    starts = np.cumsum(arity) - arity
    # Digits are below 10, so sorting these numbers sorts each stretch on its own.
    base = np.repeat(np.arange(len(arity)) * 10, arity)
    ordered = np.sort(base + arguments) - base
    least, most = ordered[starts], ordered[starts + arity - 1]
    # The integer part of the median: the mean of the two middle ones where their number is even.
    median = (ordered[starts + (arity - 1) // 2] + ordered[starts + arity // 2]) // 2
    total = np.add.reduceat(arguments, starts) % 10
    return np.choose(operator, [least, most, median, total])


def make_rows(options: dict[str, Any], random: np.random.Generator, count: int, tick: Tick) -> pa.Table:
    """A table of `count` trees: `tokens`, a list of strings, and `label`, the value."""
    import pyarrow as pa

    tokens, lengths, labels = [], [], []
    have = rejected = 0
    while have < count:
        levels, length, begun = grow(random, options)
        rejected = 0 if len(length) else rejected + begun
        if rejected > _MAX_REJECTED:
            raise ValueError(
                f"of {rejected} trees none had more than min_length={options['min_length']} and fewer than "
                f"max_length={options['max_length']} tokens; widen these, or raise max_depth or max_args."
            )
        ids, value = evaluate(levels, length, random)
        number = min(len(length), count - have)
        tokens.append(ids[: int(length[:number].sum())])
        lengths.append(length[:number])
        labels.append(value[:number])
        have += number
        tick(number)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int32)
    strings = pa.array(VOCABULARY, pa.string()).take(pa.array(np.concatenate(tokens)))
    column = pa.ListArray.from_arrays(pa.array(offsets), strings)
    return pa.table({"tokens": column, "label": pa.array(np.concatenate(labels))})


def make_keys(table: pa.Table) -> np.ndarray:
    """A 64-bit hash of the tokens of each row; equal rows have equal hashes, others hardly ever."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column("tokens").combine_chunks()
    ids = pc.index_in(column.flatten(), pa.array(VOCABULARY, pa.string())).to_numpy().astype(np.uint64)
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    factors = np.random.Generator(np.random.Philox(2011_04006)).integers(
        0, 2**64, size=int(lengths.max(initial=1)), dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    place = np.arange(len(ids)) - np.repeat(starts, lengths)
    # Sums and products of 64-bit numbers wrap around, as wanted.
    return np.add.reduceat((ids + np.uint64(1)) * factors[place], starts)


def _check(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse limits that no tree can keep."""
    for name, least in (("min_length", 0), ("max_length", 2), ("max_depth", 1), ("max_args", 2)):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name}={value!r} is out of range; use a whole number from {least} up.")
    if options["max_length"] < options["min_length"] + 2:
        raise ValueError(
            f"no tree has more than min_length={options['min_length']} and fewer than "
            f"max_length={options['max_length']} tokens; widen these."
        )
    return {name: int(value) for name, value in options.items()}


def _features(options: dict[str, Any]) -> datasets.Features:
    import datasets

    return datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "label": datasets.ClassLabel(names=list(DIGITS))}
    )


def _parameters(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "operator_share": _OPERATOR_SHARE, "min_args": 2, "vocabulary": list(VOCABULARY)}


MAKERS = {
    "lra-listops": Maker(
        name="lra-listops",
        title="ListOps (Long Range Arena)",
        version=1,
        shares=(0.96, 0.02, 0.02),
        published_size=100_000,
        shard_size=2_000,
        bytes_per_example=6_500,
        options={
            "min_length": (500, "trees have more tokens than this"),
            "max_length": (2_000, "trees have fewer tokens than this"),
            "max_depth": (10, "depth at which only digits stand; the root has depth 1"),
            "max_args": (10, "most arguments of an operator"),
        },
        check=_check,
        parameters=_parameters,
        features=_features,
        rows=make_rows,
        keys=make_keys,
        description=(
            "Nested lists of MIN, MAX, MED (integer part of the median) and SM (sum modulo 10) over digits; the label "
            "is the value. Nangia and Bowman (2018, arXiv 1804.06028), parameters of Tay et al. (2021, arXiv "
            "2011.04006). Made by a generator of our own, not the published examples."
        ),
        differences=(
            "tokens are a list of the 15 symbols; the parentheses of the published strings, which add nothing, are "
            "left out",
            "examples come in the order in which they were drawn, not in that of a set of strings",
        ),
    )
}
