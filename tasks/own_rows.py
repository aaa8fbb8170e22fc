"""One example of a user's data: its input checked, its label as names. What every reader of `own` shares."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import datasets

MISSING = ("interpolate", "zero", "trim")
# Bits of the column `flags`.
CONSTANT, REPAIRED, TRIMMED, MIXED_DOWN = 1, 2, 4, 8


@dataclass
class Source:
    """Examples that are found but not read: what `tasks.cache.cached_split` needs, for each part.

    Attributes:
        modality: As in `TaskSpec`.
        shards: Part ("train", "validation", "test") -> what its examples are made from. A missing part is held out of
            "train" later.
        examples: `examples(shards, **constants)` yields `make_example`'s mappings; a function of a module.
        constants: Passed to `examples`.
        files: Everything that is read.
        shape: Of an input where all have the same: (L, C), (H, W) or (H, W, 3); L is None if lengths differ or are not
            known. () for text and tokens.
        sampling_rate: Of audio, in Hz.
        notes: Sentences on what was left out or chosen.
        fixed_length: L where the columns fix it.
        problem: "regression" where the files say so themselves.
    """

    modality: str
    shards: dict[str, list[Any]]
    examples: Any
    constants: dict[str, Any]
    files: list[Path]
    shape: tuple[int | None, ...] = ()
    sampling_rate: int | None = None
    notes: list[str] = field(default_factory=list)
    fixed_length: int | None = None
    problem: str | None = None

    def features(self) -> datasets.Features:
        """Types of the columns of `make_example`."""
        import datasets

        if self.modality == "text":
            column: Any = datasets.Value("string")
        elif self.modality == "tokens":
            column = datasets.List(datasets.Value("string"))
        elif self.modality in ("values", "audio"):
            column = datasets.Array2D(self.shape, "float32")
        else:
            column = (datasets.Array2D if len(self.shape) == 2 else datasets.Array3D)(self.shape, "uint8")
        text = datasets.Value("string")
        return datasets.Features(
            {
                self.modality: column,
                "names": datasets.List(text),
                "is_list": datasets.Value("bool"),
                "group": text,
                "part": text,
                "digest": datasets.Value("int64"),
                "flags": datasets.Value("int8"),
            }
        )


def make_example(
    modality: str, value: Any, label: Any, where: str, *, flags: int = 0, group: Any = None, part: Any = None
) -> dict[str, Any]:
    """A row of the prepared data.

    Args:
        modality: Name of the input's column.
        value: A checked input: an array, a text or a list of symbols.
        label: As read: a word, a number or a list of names.
        where: File and row, for messages.
        flags: CONSTANT, REPAIRED, TRIMMED or MIXED_DOWN.
        group: What must not be on both sides of a split, or None.
        part: Entry of the column that names the split, or None.
    """
    names, is_list = label_names(label, where)
    data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode("utf-8", "surrogatepass")
    digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
    return {
        modality: value,
        "names": names,
        "is_list": is_list,
        "group": None if group is None else str(group),
        "part": None if part is None else str(part),
        "digest": digest,
        "flags": flags,
    }


def label_names(label: Any, where: str) -> tuple[list[str], bool]:
    """The label as a list of names, and whether it was a list.

    Raises:
        ValueError: If it is missing, or neither a word, a number nor a list of them.
    """
    if isinstance(label, np.ndarray):
        label = label.tolist()
    if isinstance(label, (list, tuple)):
        return [label_names(item, where)[0][0] for item in label], True
    if isinstance(label, np.generic):
        # A float32 is written with its own digits: 0.1, not 0.10000000149.
        label = str(label) if isinstance(label, np.floating) else label.item()
    if isinstance(label, bytes):
        label = decode(label, where)
    is_missing = label is None or (isinstance(label, float) and math.isnan(label))
    if is_missing or (isinstance(label, str) and (not label.strip() or label.strip().lower() == "nan")):
        raise ValueError(f"{where}: the label is missing; every example needs one, fill it in or remove the row.")
    if not isinstance(label, (str, int, float)):
        raise ValueError(
            f"{where}: the label is a {type(label).__name__}; use a word, a number, or a list of words for several "
            f"labels."
        )
    return [_whole_characters(str(label), where)], False


def decode(data: bytes, where: str) -> str:
    """The text of UTF-8 bytes, without a byte order mark.

    Raises:
        ValueError: With the line and the byte where it is no UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{where}, line {line}: byte {error.start + 1} (0x{data[error.start]:02x}) is no UTF-8; "
            f"save the file as UTF-8."
        ) from None


def check_text(value: Any, where: str) -> str:
    """A text of at least one character."""
    if isinstance(value, bytes):
        value = decode(value, where)
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text is expected, but this is a {_kind(value)}; give every row a text.")
    if not value:
        raise ValueError(f"{where}: the text is empty; every example needs a character, remove the row.")
    return _whole_characters(value, where)


def _whole_characters(text: str, where: str) -> str:
    """Refuse half a character (a lone surrogate, which JSON can write): no file can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: character {error.start + 1} is half a surrogate pair ({text[error.start]!r}); correct the text."
        ) from None
    return text


def check_symbols(value: Any, where: str) -> list[str]:
    """A list of at least one symbol."""
    if not isinstance(value, list) or not all(isinstance(symbol, str) for symbol in value):
        raise ValueError(f"{where}: a list of words is expected, but this is a {_kind(value)}.")
    if not value:
        raise ValueError(f"{where}: the list is empty; every example needs a symbol, remove the row.")
    return [_whole_characters(symbol, where) for symbol in value]


def _kind(value: Any) -> str:
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in value})
        return f"list of {' and '.join(kinds)}" if kinds else "empty list"
    return "missing value" if value is None else type(value).__name__


def check_series(
    values: Any, where: str, missing: str | None, names: Sequence[str] | None = None, channels: int | None = None
) -> tuple[np.ndarray, int]:
    """A series of real numbers, ready for models.

    Args:
        values: (L,) or (L, C).
        where: File and row, for messages.
        missing: What becomes of NaN and infinite values: None to refuse them, "interpolate" (linear in time, the
            nearest value at the ends), "zero", or "trim" (NaN at the end are cut off, others refused).
        names: The columns that the steps come from, for messages.
        channels: C, if it is known.

    Returns:
        The series, (L, C) float32, and its flags.

    Raises:
        ValueError: With the row and the column or step of the first value that cannot be used.
    """
    array = _numbers(values, where)
    if array.ndim == 1:
        array = array[:, None]
    if not array.size:
        raise ValueError(f"{where}: the series has no values; every series needs a step, remove the row.")
    if channels is not None and array.shape[1] != channels:
        raise ValueError(
            f"{where}: {array.shape[1]} channel(s) where the first series has {channels}; every step of every series "
            f"needs the same channels."
        )
    flags = 0
    bad = ~np.isfinite(array)
    if bad.any():
        if np.isnan(array).all():
            raise ValueError(f"{where}: every value is NaN; such a series says nothing, remove the row.")
        array, flags = _repair(array, bad, where, missing, names)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(array, dtype=np.float32)
    if not (fits := np.isfinite(single)).all():
        raise ValueError(
            f"{where}, {_place(~fits, names)}: {array[~fits][0]:g} is too large for 32-bit floats; rescale the data."
        )
    if len(single) > 1 and (single == single[0]).all():
        flags |= CONSTANT
    return single, flags


def sound_of(samples: np.ndarray) -> np.ndarray:
    """16-bit samples (L,) as (L, 1) float32 from -1 to 1: numpy formats of `datasets` would make int16 int64."""
    return samples.astype(np.float32)[:, None] / np.float32(2**15)


def _numbers(values: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim in (1, 2):
            # `None` stands for a missing number in JSON and Arrow.
            if all(item is None or isinstance(item, (int, float)) for item in array.ravel()):
                array = array.astype(np.float64)
    except ValueError:
        array = None
    except OverflowError:
        raise ValueError(f"{where}: a whole number is too large for 32-bit floats; rescale the data.") from None
    if array is None or array.dtype == object or array.dtype.kind not in "iufb" or array.ndim not in (1, 2):
        flat = list(_leaves(values))
        odd = next((item for item in flat if not isinstance(item, (int, float, np.number))), None)
        if odd is not None:
            raise ValueError(f"{where}: {odd!r} stands among the values; a series is a list of numbers.")
        raise ValueError(
            f"{where}: the steps have unequal numbers of channels, or more than two axes; a series is a list of L "
            f"numbers, or of L lists of C numbers."
        )
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, (list, tuple, np.ndarray)):
        for item in values:
            yield from _leaves(item)
    else:
        yield values


def _place(bad: np.ndarray, names: Sequence[str] | None) -> str:
    step, channel = (int(index) for index in np.argwhere(bad)[0])
    if names is not None and bad.shape[1] == 1:
        return f"column {names[step]!r}"
    if names is not None:
        return f"step {step + 1}, column {names[channel]!r}"
    return f"step {step + 1}" + (f", channel {channel + 1}" if bad.shape[1] > 1 else "")


def _repair(
    array: np.ndarray, bad: np.ndarray, where: str, missing: str | None, names: Sequence[str] | None
) -> tuple[np.ndarray, int]:
    if missing == "trim":
        known = np.flatnonzero(~np.isnan(array).all(axis=1))
        array, bad = array[: known[-1] + 1], bad[: known[-1] + 1]
        if not bad.any():
            return array, TRIMMED
    if missing not in ("interpolate", "zero"):
        value = array[bad][0]
        what = "a missing value (NaN)" if np.isnan(value) else f"the value {value:g}"
        raise ValueError(
            f"{where}, {_place(bad, names)}: {what}; correct it, or give missing=interpolate, zero or trim (NaN at "
            f"the end are cut off)."
        )
    array = array.copy()
    if missing == "zero":
        array[bad] = 0
        return array, REPAIRED
    steps = np.arange(len(array))
    for channel in np.flatnonzero(bad.any(axis=0)):
        gaps = bad[:, channel]
        if gaps.all():
            raise ValueError(f"{where}: channel {channel + 1} has no finite value to interpolate from; remove the row.")
        array[gaps, channel] = np.interp(steps[gaps], steps[~gaps], array[~gaps, channel])
    return array, REPAIRED
