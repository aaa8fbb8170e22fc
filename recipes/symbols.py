"""Text and symbols -> token ids: the tokenizer that travels with a checkpoint, and the same mapping without its cost.

PAD 0, MASK 1 and UNK 2 come first, then the vocabulary: 256 byte values, the characters, or the symbols. The tokenizer
is a plain `PreTrainedTokenizerFast`, so `AutoTokenizer` reads it without code of ours. Training data goes through
`encoder`, which gives the same ids some hundred times faster, as it makes no objects for each token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "<unk>"}
NUM_SPECIAL_IDS = len(SPECIAL_TOKENS)

# Every byte value as the printable character that ByteLevel puts in its place, in the order of the values.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_REST = [value for value in range(256) if value not in _PRINTABLE]
BYTE_CHARACTERS = [chr(value) if value in _PRINTABLE else chr(256 + _REST.index(value)) for value in range(256)]


def count_units(examples: Iterable[Any], unit: str) -> Counter[str]:
    """How often each character of the texts, or each symbol of the lists, occurs."""
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(example)
    return counts


def fit_vocabulary(train_examples: Iterable[Any], unit: str, min_count: int = 1) -> list[str]:
    """The characters or symbols of the training part that occur at least `min_count` times, sorted."""
    counts = count_units(train_examples, unit)
    vocabulary = sorted(symbol for symbol, count in counts.items() if count >= min_count)
    for symbol in vocabulary:
        if symbol in SPECIAL_TOKENS.values():
            raise ValueError(f"The data hold the symbol {symbol!r}, which is a special token; rename it in the data.")
        if unit == "symbols" and (not symbol or symbol.split() != [symbol]):
            raise ValueError(f"The symbol {symbol!r} is empty or holds a blank; symbols are separated by blanks.")
    if not vocabulary:
        raise ValueError(f"No symbol occurs min_count={min_count} times in the training part; lower min_count.")
    return vocabulary


def build_tokenizer(unit: str, vocabulary: list[str] | None, max_length: int | None) -> PreTrainedTokenizerFast:
    """The tokenizer of a vocabulary; `vocabulary` is None for bytes.

    Args:
        unit: "bytes", "characters" or "symbols" (separated by blanks in a string).
        vocabulary: From `fit_vocabulary`, or fixed by the task.
        max_length: `model_max_length`, what `truncation=True` cuts at.
    """
    names = BYTE_CHARACTERS if unit == "bytes" else vocabulary
    assert names is not None
    tokens = [*SPECIAL_TOKENS.values(), *names]
    model = models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    each = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")
    if unit == "bytes":
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level, each])
        tokenizer.decoder = decoders.ByteLevel()
    elif unit == "characters":
        tokenizer.pre_tokenizer = each
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    extra = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        # A text that holds "<pad>" means these five characters.
        split_special_tokens=True,
        **SPECIAL_TOKENS,
        **extra,
    )


def unit_of(tokenizer: PreTrainedTokenizerFast) -> str:
    """What a tokenizer of ours cuts a text into."""
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    if isinstance(pre_tokenizer, pre_tokenizers.Sequence):
        return "bytes"
    return "symbols" if isinstance(pre_tokenizer, pre_tokenizers.WhitespaceSplit) else "characters"


def encoder(tokenizer: PreTrainedTokenizerFast) -> Callable[[Any], np.ndarray]:
    """A function from a text, or a list of symbols, to ids (L,), as the tokenizer gives them; int16 or int32."""
    unit, ids = unit_of(tokenizer), tokenizer.get_vocab()
    dtype: Any = np.int16 if len(ids) < 2**15 else np.int32
    unknown = ids["<unk>"]
    if unit == "bytes":
        return lambda text: np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(dtype) + dtype(NUM_SPECIAL_IDS)
    if unit == "symbols":

        def encode_symbols(symbols: Any) -> np.ndarray:
            return np.fromiter((ids.get(symbol, unknown) for symbol in symbols), dtype=dtype, count=len(symbols))

        return encode_symbols
    codes = {ord(character): index for character, index in ids.items() if len(character) == 1}
    table = np.full(max(codes) + 2, unknown, dtype=dtype)
    table[list(codes)] = list(codes.values())

    def encode_characters(text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        # The last entry of the table is the unknown one.
        return table[np.minimum(points, len(table) - 1)]

    return encode_characters
