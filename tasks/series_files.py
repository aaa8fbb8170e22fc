r"""Files of time series: `.tsv`, `.txt`, `.ts` and `.arff`, as the UCR, UEA and regression archives publish them.

- `.tsv` (2018 archive) and `.txt` (older): one series a line, label first, then the values, between tabs or blanks.
- `.ts`: lines of `#` are comments, lines of `@` the header; after `@data` one case a line, channels between `:`, values
  between commas, the label last. `@targetlabel true` makes the label a number to be predicted.
- `.arff`: values between commas, the label last. Several channels are one quoted attribute with `\n` between them.

Shorter series of `.tsv`, `.txt` and `.arff` are filled up with missing values at the end; these are cut off.
A `.ts` file writes each series in its own length, so that there a missing value is missing wherever it stands.

The reader is our own: aeon 1.6, which reads `.ts` and `.arff`, demands pandas below 3.1 and brings numba with it, and
names neither row nor column of a value that it cannot read. All four are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FORMATS = (".tsv", ".ts", ".txt", ".arff")
MISSING = ("refuse", "interpolate", "zero")
MISSING_HELP = (
    "values that are missing: 'refuse' (default), 'interpolate' (linear in time within each channel, the ends held) or "
    "'zero'"
)
_NAN = ("", "?", "nan")
_ATTRIBUTE = re.compile(r"""@attribute\s+('[^']*'|"[^"]*"|\S+)\s+(.+)""", re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """One series.

    Attributes:
        row: Line in the file, from 1.
        values: (length, channels), float32.
        label: As written, whole numbers without a fraction ("1.0" is "1"); the target's text for regression.
        is_trimmed: Whether missing values were cut off the end.
        num_filled: How many missing values were filled in.
    """

    row: int
    values: np.ndarray
    label: str
    is_trimmed: bool
    num_filled: int


@dataclass
class SeriesFile:
    """One file's series, in file order.

    Attributes:
        name: The file's name, for messages.
        is_regression: Whether the labels are numbers to be predicted.
        values: Series of shape (length, channels), float32.
        labels: Label of each series, as in `Case`.
        rows: Line number of each series, from 1.
        num_trimmed: How many series ended in missing values.
        num_filled: How many missing values were filled in.
    """

    name: str
    is_regression: bool
    values: list[np.ndarray]
    labels: list[str]
    rows: list[int]
    num_trimmed: int
    num_filled: int

    @property
    def targets(self) -> np.ndarray:
        """The labels as numbers, (series,), float32.

        Raises:
            ValueError: With the row of a label that is no finite number.
        """
        return np.array([target(self.name, row, label) for row, label in zip(self.rows, self.labels)], np.float32)


# What a format's reader yields: row, the channels' values as text, the label as text.
_Raw = tuple[int, list[list[str]], str]


def check_missing(missing: object) -> None:
    """Refuse an unknown way to treat missing values."""
    if missing not in MISSING:
        raise ValueError(f"missing={missing!r} is unknown; use one of {', '.join(map(repr, MISSING))}.")


def canonical_label(text: str) -> str:
    """Whole numbers without a fraction or an exponent, anything else as it is."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if np.isfinite(number) and number == int(number) else text


def sort_labels(labels: set[str]) -> list[str]:
    """Sort by number if every label is one, else as text."""
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)


def target(name: str, row: int, label: str) -> float:
    """The number in a label, or a ValueError with file and row."""
    try:
        number = float(label)
    except ValueError:
        number = float("nan")
    if not np.isfinite(np.float32(number)):
        raise ValueError(f"{name}, row {row}: the target {label!r} is no finite number; correct it or remove the row.")
    return number


def read_series(path: Path, missing: str = "refuse") -> SeriesFile:
    """Read a whole file.

    Raises:
        ValueError: With the row (line number from 1) of the first series that cannot be used.
    """
    is_regression, cases = iter_series(path, missing)
    file = SeriesFile(path.name, is_regression, [], [], [], 0, 0)
    for case in cases:
        file.values.append(case.values)
        file.labels.append(case.label)
        file.rows.append(case.row)
        file.num_trimmed += case.is_trimmed
        file.num_filled += case.num_filled
    return file


def iter_series(path: Path, missing: str = "refuse") -> tuple[bool, Iterator[Case]]:
    """Whether the labels of a file are numbers to be predicted, and its series, one in memory at a time.

    Raises:
        ValueError: For a format or a header that cannot be used; the series raise it with their row.
    """
    check_missing(missing)
    reader = {".tsv": _tsv, ".txt": _txt, ".ts": _ts, ".arff": _arff}.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path.name} cannot be read; the formats are {', '.join(FORMATS)}.")
    is_regression, raw = reader(path)
    return is_regression, _cases(path, raw, is_regression, missing)


def _cases(path: Path, raw: Iterator[_Raw], is_regression: bool, missing: str) -> Iterator[Case]:
    is_empty, num_channels = True, None
    for row, channels, written in raw:
        is_empty = False
        label = written.strip() if is_regression else canonical_label(written.strip())
        if label.lower() in _NAN:
            raise ValueError(f"{path.name}, row {row}: the label is missing; every series needs one.")
        num_channels = num_channels or len(channels)
        if len(channels) != num_channels:
            raise ValueError(
                f"{path.name}, row {row}: {len(channels)} channels where the first series has {num_channels}; the file "
                f"may be cut off."
            )
        values, is_trimmed, num_filled = _values(path, row, channels, missing)
        yield Case(row, values, label, is_trimmed, num_filled)
    if is_empty:
        raise ValueError(f"{path.name} holds no series; expected one a line, with its label.")


def _values(path: Path, row: int, channels: list[list[str]], missing: str) -> tuple[np.ndarray, bool, int]:
    """Values (length, channels) float32, whether their end was cut off, and how many were filled in."""
    lengths = [len(channel) for channel in channels]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{path.name}, row {row}: its channels have {', '.join(map(str, lengths))} values; all channels of a "
            f"series must be equally long."
        )
    series = np.stack([_numbers(path.name, row, channels, index) for index in range(len(channels))], axis=1)  # (L, C)
    known = np.flatnonzero(~np.isnan(series).all(axis=1))
    if len(known) == 0:
        raise ValueError(f"{path.name}, row {row}: the series is empty or all NaN; remove the row.")
    length = len(series)
    if path.suffix.lower() != ".ts":
        series = series[: known[-1] + 1]
    is_missing = np.isnan(series)
    with np.errstate(over="ignore"):
        is_infinite = np.isinf(series.astype(np.float32))
    for bad, advice in (
        (is_infinite, "infinite values cannot be used, correct it or remove the row."),
        (is_missing, "fill it in, or load with missing='interpolate' or missing='zero'."),
    ):
        if bad.any() and (missing == "refuse" or bad is is_infinite):
            column, channel = divmod(int(np.flatnonzero(bad)[0]), series.shape[1])
            place = _place(len(channels), channel, column)
            text = channels[channel][column].strip() or "nothing"
            raise ValueError(f"{path.name}, row {row}, {place}: {text} inside the series; {advice}")
    if is_missing.any():
        series = fill_missing(series, missing, f"{path.name}, row {row}")
    return series.astype(np.float32), len(series) < length, int(is_missing.sum())


def _place(num_channels: int, channel: int, column: int) -> str:
    return f"value {column + 1}" if num_channels == 1 else f"channel {channel + 1}, value {column + 1}"


def _numbers(name: str, row: int, channels: list[list[str]], index: int) -> np.ndarray:
    fields = channels[index]
    try:
        return np.array([float(text) for text in fields], dtype=np.float64)
    except ValueError:
        series = np.full(len(fields), np.nan)
    for column, text in enumerate(fields):
        try:
            series[column] = float("nan") if text.strip() in ("", "?") else float(text)
        except ValueError:
            raise ValueError(
                f"{name}, row {row}, {_place(len(channels), index, column)}: {text!r} is not a number; write numbers, "
                f"and NaN or ? for what is missing."
            ) from None
    return series


def fill_missing(series: np.ndarray, missing: str, place: str) -> np.ndarray:
    """A series (length, channels) with its NaN filled in: 'zero', or 'interpolate' within each channel, ends held.

    Raises:
        ValueError: If there is nothing in a channel to interpolate from, beginning with `place`.
    """
    if missing == "zero":
        return np.where(np.isnan(series), 0.0, series)
    filled, steps = series.copy(), np.arange(len(series))
    for channel in range(series.shape[1]):
        is_known = ~np.isnan(series[:, channel])
        if not is_known.any():
            raise ValueError(
                f"{place}: channel {channel + 1} holds no value to interpolate from; remove the row, or load with "
                f"missing='zero'."
            )
        filled[:, channel] = np.interp(steps, steps[is_known], series[is_known, channel])
    return filled


def _lines(path: Path, comment: bytes) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is neither blank nor a comment; comments may be in any encoding."""
    with open(path, "rb") as file:
        for row, raw in enumerate(file, start=1):
            raw = raw.removeprefix(b"\xef\xbb\xbf") if row == 1 else raw
            if not raw.strip() or (comment and raw.lstrip().startswith(comment)):
                continue
            try:
                yield row, raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path.name}, line {row}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file to UTF-8."
                ) from None


def _tsv(path: Path) -> tuple[bool, Iterator[_Raw]]:
    return False, _table(path, "\t")


def _txt(path: Path) -> tuple[bool, Iterator[_Raw]]:
    return False, _table(path, None)


def _table(path: Path, separator: str | None) -> Iterator[_Raw]:
    num_fields = None
    name = "tab" if separator else "blank"
    for row, line in _lines(path, b""):
        fields = line.rstrip("\t\r\n ").split(separator)
        if len(fields) < 2:
            raise ValueError(
                f"{path.name}, row {row}: no {name} in {line[:40]!r}; expected a label, a {name} and values."
            )
        num_fields = num_fields or len(fields)
        if len(fields) != num_fields:
            raise ValueError(
                f"{path.name}, row {row}: {len(fields) - 1} values where the first row has {num_fields - 1}; "
                f"fill shorter series with NaN at the end."
            )
        yield row, [fields[1:]], fields[0]


def _ts(path: Path) -> tuple[bool, Iterator[_Raw]]:
    lines = _lines(path, b"#")
    header: dict[str, list[str]] = {}
    for row, line in lines:
        if not line.lstrip().startswith("@"):
            raise ValueError(f"{path.name}, row {row}: no @data before the first series; the header is missing.")
        key, *words = line.split()
        if key.lower() == "@data":
            break
        header[key.lower()] = words
    else:
        raise ValueError(f"{path.name} has no line @data; it is empty, cut off, or no .ts file.")

    def is_true(key: str) -> bool:
        return [word.lower() for word in header.get(key, [])[:1]] == ["true"]

    if is_true("@timestamps"):
        raise ValueError(f"{path.name} has time stamps, which cannot be read; write plain values at equal distances.")
    is_regression = is_true("@targetlabel")
    if not is_regression and not is_true("@classlabel"):
        raise ValueError(f"{path.name} has neither @classLabel true nor @targetlabel true; a task needs labels.")
    declared = {canonical_label(word) for word in header.get("@classlabel", [])[1:]}
    dimensions = header.get("@dimensions", header.get("@dimension", [""]))[0]
    num_channels = 1 if is_true("@univariate") else int(dimensions) if dimensions.isdigit() else None

    def cases() -> Iterator[_Raw]:
        for row, line in lines:
            *channels, label = line.split(":")
            if not channels or (num_channels and len(channels) != num_channels):
                raise ValueError(
                    f"{path.name}, row {row}: {len(channels)} channels and a label where the header says "
                    f"{num_channels or 'at least 1'}; the file may be cut off."
                )
            # Without a list of classes in the header any label is good.
            if not is_regression and declared and canonical_label(label.strip()) not in declared | set(_NAN):
                raise ValueError(
                    f"{path.name}, row {row}: label {label.strip()!r} is not in @classLabel, which has "
                    f"{', '.join(sort_labels(declared))}; the line may be cut off."
                )
            yield row, [_split(channel) for channel in channels], label

    return is_regression, cases()


def _split(text: str) -> list[str]:
    return text.split(",") if text.strip() else []


def _arff(path: Path) -> tuple[bool, Iterator[_Raw]]:
    lines = _lines(path, b"%")
    kinds: list[str] = []
    is_relational = False
    for row, line in lines:
        word = line.split()[0].lower()
        if word == "@data":
            break
        if found := _ATTRIBUTE.match(line.strip()):
            kinds.append(found[2].strip().lower())
            is_relational |= kinds[-1] == "relational"
        elif word not in ("@relation", "@end"):
            raise ValueError(f"{path.name}, row {row}: {line[:40]!r} is no line of an .arff header.")
    else:
        raise ValueError(f"{path.name} has no line @data; it is empty, cut off, or no .arff file.")
    if len(kinds) < 2:
        raise ValueError(f"{path.name} has {len(kinds)} attribute(s); expected those of the series, then the label.")
    is_regression = kinds[-1] in ("numeric", "real", "integer")

    def cases() -> Iterator[_Raw]:
        for row, line in lines:
            text = line.strip()
            if is_relational:
                end = text.rfind(text[0])
                if text[0] not in "'\"" or end == 0:
                    raise ValueError(
                        f"{path.name}, row {row}: no quoted series in {text[:40]!r}; the line may be cut off."
                    )
                channels = [_split(channel) for channel in text[1:end].split("\\n")]
                label = text[end + 1 :].lstrip(" ,")
            else:
                *values, label = text.split(",")
                channels = [values]
                if len(values) != len(kinds) - 1:
                    raise ValueError(
                        f"{path.name}, row {row}: {len(values)} values where the header has {len(kinds) - 1}; the line "
                        f"may be cut off."
                    )
            yield row, channels, label.strip().strip("'\"")

    return is_regression, cases()
