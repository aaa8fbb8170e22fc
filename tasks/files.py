"""What the loaders of published files share: finding folders, reading lines, and looking for what is amiss."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import datasets

LRA_CITATION = (
    "Y. Tay, M. Dehghani, S. Abnar, Y. Shen, D. Bahri, P. Pham, J. Rao, L. Yang, S. Ruder, D. Metzler (2021). "
    "Long Range Arena: A Benchmark for Efficient Transformers. ICLR. arXiv:2011.04006."
)
# Columns that are prepared beside the examples and taken off again: a hash of the input, and its length.
DIGEST, NUM_BYTES, NUM_CHARACTERS, SHORTEST = "digest", "num_bytes", "num_characters", "shortest"


@contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """Say which Parquet file cannot be read, at its opening or further in, with the first line of why."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = "".join(sign for sign in str(error).strip().partition("\n")[0] if sign.isprintable()).rstrip(".")
        raise ValueError(f"{path.name} is cut off or no Parquet file ({reason}); copy it again.") from None


def open_parquet(path: Path) -> Any:
    """The opened file, a `pyarrow.parquet.ParquetFile`."""
    import pyarrow.parquet as pq

    with reading_parquet(path):
        return pq.ParquetFile(path)


def decode(raw: bytes, file_name: str, first_line: int = 1) -> str:
    """Text from UTF-8, or a ValueError with file and line."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw[: error.start].count(b"\n")
        raise ValueError(
            f"{file_name}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file to UTF-8."
        ) from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, with its end. Only LF and CRLF end a line; nothing else is held.

    Raises:
        ValueError: With file and line, for bytes that are no UTF-8.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            line = decode(raw, path.name, number)
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def find_folder(task: str, data_dir: Path | None, places: Sequence[str], file_names: Sequence[str]) -> Path:
    """The first of `places` below `data_dir` ("" is `data_dir` itself) that holds all files.

    Raises:
        FileNotFoundError: If `data_dir` is no folder, or with the names of the missing files.
        ValueError: If `data_dir` is None.
    """
    check_folder(task, data_dir)
    assert data_dir is not None
    present = {place: [name for name in file_names if (data_dir / place / name).is_file()] for place in places}
    for place in places:
        if len(present[place]) == len(file_names):
            return data_dir / place
    # Name what is missing where most of the set is.
    place = max(places, key=lambda place: len(present[place]))
    missing = [(Path(place) / name).as_posix() for name in file_names if name not in present[place]]
    raise FileNotFoundError(
        f"Missing in {data_dir}: {', '.join(missing)}. The files may lie directly in the folder, or in "
        f"{', '.join(f'{place}/' for place in places if place)}."
    )


def check_folder(task: str, data_dir: Path | None) -> None:
    """Refuse what is no folder."""
    if data_dir is None:
        raise ValueError(f"{task} needs data_dir, the folder that holds its files.")
    if not data_dir.is_dir():
        raise FileNotFoundError(f"data_dir={str(data_dir)!r} is not a folder; give the folder that holds the files.")


def bytes_digest(data: bytes) -> int:
    """64-bit hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def text_digest(text: str) -> int:
    """`bytes_digest` of a text."""
    return bytes_digest(text.encode("utf-8"))


def text_measures(*texts: str) -> dict[str, int]:
    """Hash and lengths of an example's text or texts. The hash does not depend on their order."""
    total = sum(text_digest(text) for text in texts)
    return {
        DIGEST: (total + 2**63) % 2**64 - 2**63,
        NUM_BYTES: max(len(text.encode("utf-8")) for text in texts),
        NUM_CHARACTERS: max(len(text) for text in texts),
        SHORTEST: min(len(text) for text in texts),
    }


def text_features(labels: Sequence[str], names: Sequence[str] = ("text",)) -> datasets.Features:
    """Types of the columns of texts `names`, with those of `text_measures`."""
    import datasets

    integers = ("example_id", DIGEST, NUM_BYTES, NUM_CHARACTERS, SHORTEST)
    return datasets.Features(
        {
            **{name: datasets.Value("string") for name in names},
            "label": datasets.ClassLabel(names=list(labels)),
            **{name: datasets.Value("int64") for name in integers},
        }
    )


def without_measures(split: datasets.Dataset) -> datasets.Dataset:
    """The split as the task hands it out."""
    measures = (DIGEST, NUM_BYTES, NUM_CHARACTERS, SHORTEST)
    return split.remove_columns([name for name in measures if name in split.column_names])


def numbers(split: datasets.Dataset, name: str) -> np.ndarray:
    """A column of whole numbers of a split as it was prepared, (examples,)."""
    return split.data.column(name).to_numpy()


def longest_text(splits: Sequence[datasets.Dataset], unit: str) -> int:
    """Length of the longest text in bytes or characters."""
    name = NUM_BYTES if unit == "bytes" else NUM_CHARACTERS
    return max(int(numbers(split, name).max()) for split in splits)


def check_labels(task: str, labels: Sequence[str], parts: Mapping[str, np.ndarray]) -> None:
    """Refuse a training part with a single class; warn once of labels that it never shows but others do."""
    trained = set(np.unique(parts["train"]).tolist())
    if len(trained) < 2:
        names = ", ".join(repr(labels[label]) for label in trained)
        raise ValueError(f"the training part of {task} has the single label {names}; give it at least two.")
    found: list[str] = []
    for part, values in parts.items():
        unseen = [labels[label] for label in sorted(set(np.unique(values).tolist()) - trained)]
        if unseen:
            has = "" if found else "has the label(s) "
            found.append(f"the {part} part {has}{', '.join(unseen)}")
    if found:
        warnings.warn(f"{task}: {', '.join(found)}, which no training example has.", stacklevel=4)


def warn_of_repeats(task: str, digests: Mapping[str, np.ndarray]) -> None:
    """Warn once, with counts, of examples that occur in two parts."""
    names = list(digests)
    found = []
    for index, part in enumerate(names):
        for other in names[:index]:
            count = int(np.isin(digests[part], digests[other]).sum())
            if count:
                found.append(f"{count:,} of {len(digests[part]):,} in {part} occur in {other}, too")
    if found:
        warnings.warn(
            f"{task}: some inputs stand in more than one part ({'; '.join(found)}); they are kept, as published.",
            stacklevel=4,
        )


def check_unit(unit: Any, min_count: Any, max_length: Any, default_min_count: int) -> dict[str, Any]:
    """The options unit, min_count and max_length, filled in, or a ValueError with what is allowed."""
    if unit not in ("bytes", "characters"):
        raise ValueError(f"unit={unit!r} is unknown; use 'bytes' or 'characters'.")
    if unit == "bytes" and min_count is not None:
        raise ValueError(f"min_count={min_count!r} is for unit='characters'; all 256 bytes are known, leave it out.")
    filled = {"min_count": default_min_count if min_count is None else min_count, "max_length": max_length}
    for name, value in filled.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}={value!r} is out of range; use a whole number from 1 up.")
    counted = {} if unit == "bytes" else {"min_count": int(filled["min_count"])}
    return {"unit": unit, **counted, "max_length": int(max_length)}
