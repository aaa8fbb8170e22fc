"""ListOps trees: their values, and their distribution beside the plainest recursion."""

import random as plain_random
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks.generate_listops import MAKERS, VOCABULARY, evaluate, grow, make_keys, make_rows
from neverscratch.tasks.generation import load_generated, make

MAKER = MAKERS["lra-listops"]
DEFAULTS = {name: default for name, (default, _) in MAKER.options.items()}
REAL = Path(__file__).parents[2].parent / "shared" / "data" / "lra_format" / "listops"


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def value(tokens: list[str]) -> int:
    """The value of a tree by reading it from left to right."""
    functions = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(np.median(x)), "[SM": lambda x: sum(x) % 10}
    stack: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens:
        if token == "]":
            operator, arguments = stack.pop()
            assert 2 <= len(arguments) <= 10
            stack[-1][1].append(functions[operator](arguments))
        elif token in functions:
            stack.append((token, []))
        else:
            stack[-1][1].append(int(token))
    assert len(stack) == 1 and len(stack[0][1]) == 1
    return stack[0][1][0]


def depth(tokens: list[str]) -> int:
    """Depth of the deepest node; the root has depth 1."""
    steps = np.cumsum([1 if token[0] == "[" else -1 if token == "]" else 0 for token in tokens])
    return int(steps.max()) + 1


@pytest.fixture(scope="module")
def trees():
    return make_rows(DEFAULTS, stream(0), 6000, lambda number: None)


def test_labels_are_values(trees):
    for tokens, label in zip(trees["tokens"][:400].to_pylist(), trees["label"][:400].to_pylist()):
        assert value(tokens) == label
        assert depth(tokens) <= 10


def test_reader_of_this_test_agrees_with_the_published_format():
    if not REAL.is_dir():
        pytest.skip("the shared data are not here")
    for line in (REAL / "basic_train.tsv").read_text().splitlines()[1:]:
        source, target = line.split("\t")
        assert value([token for token in source.split() if token not in "()"]) == int(target)


@pytest.mark.parametrize("max_depth, max_args, max_length", [(2, 2, 6), (3, 4, 30), (4, 3, 60)])
def test_other_limits(max_depth, max_args, max_length):
    options = {"min_length": 2, "max_length": max_length, "max_depth": max_depth, "max_args": max_args}
    table = make_rows(options, stream(1), 500, lambda number: None)
    for tokens, label in zip(table["tokens"].to_pylist(), table["label"].to_pylist()):
        assert value(tokens) == label
        assert 2 < len(tokens) < max_length and depth(tokens) <= max_depth
    assert max(depth(tokens) for tokens in table["tokens"].to_pylist()) == max_depth


def test_median_is_the_integer_part():
    table = make_rows({**DEFAULTS, "min_length": 2, "max_length": 5, "max_depth": 2}, stream(2), 4000, lambda n: None)
    found = dict(zip(map(tuple, table["tokens"].to_pylist()), table["label"].to_pylist()))
    assert found["[MED", "1", "2", "]"] == 1
    assert found["[MED", "4", "7", "]"] == 5
    assert found["[SM", "4", "7", "]"] == 1


def test_lengths_and_answers(trees):
    # The grammar itself has median 954 and mean 1,036 (85,000 trees); 2,000 published-style trees had 993 and 1,061.
    lengths = trees["tokens"].combine_chunks().value_lengths().to_numpy()
    assert lengths.min() > 500 and lengths.max() < 2000
    assert abs(np.median(lengths) - 954) < 30 and abs(lengths.mean() - 1036) < 25
    shares = np.bincount(trees["label"].to_numpy(), minlength=10) / len(lengths)
    assert (np.abs(shares[[0, 9]] - 0.17) < 0.02).all()
    assert ((shares[1:9] > 0.065) & (shares[1:9] < 0.11)).all()


def test_one_tree_in_twelve_passes():
    random, begun, kept = stream(3), 0, 0
    for _ in range(20):
        _, lengths, number = grow(random, DEFAULTS)
        begun, kept = begun + number, kept + len(lengths)
    assert abs(kept / begun - 0.0832) < 0.004  # three deviations


def plain_tree(random: plain_random.Random, level: int = 1) -> list[str]:
    """The grammar, as one reads it."""
    if level < 4 and random.random() < 0.25:
        arguments = [token for _ in range(random.randint(2, 4)) for token in plain_tree(random, level + 1)]
        return [random.choice(["[MIN", "[MAX", "[MED", "[SM"]), *arguments, "]"]
    return [str(random.randrange(10))]


def test_distribution_is_that_of_the_plain_recursion():
    options = {"min_length": 6, "max_length": 25, "max_depth": 4, "max_args": 4}
    random = plain_random.Random(0)
    plain = [tree for tree in (plain_tree(random) for _ in range(60_000)) if 6 < len(tree) < 25]
    ours = make_rows(options, stream(4), len(plain), lambda number: None)["tokens"].to_pylist()
    for statistic in (len, depth, lambda tree: tree[0], lambda tree: tree[1], lambda tree: tree[-2]):
        one, two = Counter(map(statistic, plain)), Counter(map(statistic, ours))
        for key in one | two:
            assert abs(one[key] - two[key]) < 4.5 * np.sqrt(one[key] + two[key]) + 1, key
    assert set(VOCABULARY) == {token for tree in ours for token in tree}


def test_equal_trees_have_equal_hashes_and_others_do_not():
    options = {**DEFAULTS, "min_length": 2, "max_length": 6, "max_depth": 2}
    table = make_rows(options, stream(5), 3000, lambda number: None)
    keys, trees = make_keys(table).tolist(), list(map(tuple, table["tokens"].to_pylist()))
    assert len(set(keys)) == len(set(trees)) == len(set(zip(keys, trees))) < 3000
    assert make_keys(table.slice(100, 50)).tolist() == keys[100:150]


def test_the_very_same_trees_for_ever():
    # A change here changes every generated set: raise the maker's version.
    levels, lengths, _ = grow(stream(6), DEFAULTS)
    random = stream(7)
    tokens, values = evaluate(levels, lengths, random)
    assert zlib.crc32(tokens.tobytes() + values.astype("<i8").tobytes()) == 2964371870


def test_generated_folder(tmp_path):
    splits = load_generated(make("lra-listops", tmp_path / "out", 150, seed=3, progress=False))
    assert {name: len(split) for name, split in splits.items()} == {"train": 144, "validation": 3, "test": 3}
    for split in splits.values():
        assert all(value(row["tokens"]) == row["label"] for row in split)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"max_depth": 0}, r"max_depth=0 is out of range; use a whole number from 1 up"),
        ({"max_args": 1}, r"max_args=1 is out of range; use a whole number from 2 up"),
        ({"min_length": True}, r"min_length=True is out of range"),
        ({"min_length": 600, "max_length": 601}, r"no tree has more than min_length=600 and fewer than max_length=601"),
        (
            {"min_length": 15, "max_length": 20, "max_depth": 2},
            r"none had more than min_length=15 and fewer than max_length=20 tokens; widen these, or raise max_depth",
        ),
    ],
)
def test_impossible_lengths(tmp_path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make("lra-listops", tmp_path / "out", 26, progress=False, **options)
