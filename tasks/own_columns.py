"""Columns of a user's tables (CSV, Parquet, JSON lines, sets of the Hub): what they hold, and which is what."""

from __future__ import annotations

import csv
import fnmatch
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .base import nearest
from .files import open_parquet
from .own_rows import decode
from .own_splits import is_number, split_word

if TYPE_CHECKING:
    import pyarrow as pa

CSV_SUFFIXES, JSON_SUFFIXES = (".csv",), (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (*CSV_SUFFIXES, ".parquet", *JSON_SUFFIXES)
LABEL_NAMES = ("label", "labels", "class", "target", "y")
# Columns of numbers that count the rows; never a step of a series unless they are named in `input`.
COUNTER_NAMES = ("", "id", "index", "row", "unnamed: 0", "example_id", "__index_level_0__")
BLOCK_BYTES = 8 * 2**20
BLOCK_ROWS = 512

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_LINE_ENDS = "{}: a line ends in a bare carriage return; save the file with the line ends of Unix or Windows."


@dataclass(frozen=True)
class Plan:
    """Which columns of a table are what.

    Attributes:
        kind: "columns" (a number a column), "lists", "texts", "symbols", "files" (sounds or images) or "long".
        inputs: Columns of the input, in order.
        label, group, split, id, time: Their columns, or None.
        missing: As for `check_series`.
        names: Of the label's ids, where the table holds ids with names.
        delimiter: Of a CSV.
        sampling_rate: Of sounds; None if lists are series.
        shape: Of the first image.
    """

    kind: str
    inputs: tuple[str, ...]
    label: str
    group: str | None = None
    split: str | None = None
    id: str | None = None
    time: str | None = None
    missing: str | None = None
    names: tuple[str, ...] | None = None
    delimiter: str = ","
    sampling_rate: int | None = None
    shape: tuple[int, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """All that are read."""
        extra = (self.label, self.group, self.split, self.id, self.time)
        return [*dict.fromkeys((*self.inputs, *(name for name in extra if name is not None)))]


def suffix_of(path: Path) -> str:
    """The ending that says what a file is: that before `.gz`, in small letters."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked if it ends in `.gz`.

    Raises:
        ValueError: From the block under it, if the packed file is cut off.
    """
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path.name} is cut off or no gzip file ({error}); copy it again.") from None


# What a table holds: column -> kind.


def kind_of_type(kind: pa.DataType) -> str:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind_of_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return kind_of_type(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return "text"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind_of_type(kind.value_type)
        return "words" if inner == "text" else "list" if inner in ("number", "list", "empty") else "other"
    if pa.types.is_struct(kind) and {"bytes", "path"} <= {item.name for item in kind}:
        return "file"
    return "other"


def csv_delimiter(path: Path) -> str:
    """Comma, unless the header has none but semicolons or tabs."""
    with open_bytes(path) as file:
        line = file.readline().decode("utf-8", "replace")
    return max(",;\t", key=lambda sign: (line.count(sign) > 0, sign == ",", line.count(sign)))


def _allow_long_fields() -> None:
    """Python's CSV reader refuses texts of more than 128 KiB unless told otherwise; documents may be longer."""
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))


def _csv_sample(path: Path, delimiter: str, width: int) -> tuple[list[list[str]], bytes]:
    """Up to 200 rows of `width` fields, and the bytes that they were found in."""
    _allow_long_fields()
    size = 2 * 2**20
    while True:
        with open_bytes(path) as file:
            start = file.read(size)
        whole = start[: start.rfind(b"\n") + 1] if len(start) == size else start
        rows = csv.reader(io.StringIO(decode(whole, path.name), newline=""), delimiter=delimiter)
        try:
            next(rows, None)
            sample = [row for _, row in zip(range(200), rows, strict=False) if len(row) == width]
        except csv.Error:
            raise ValueError(_LINE_ENDS.format(path.name)) from None
        if sample or len(start) < size:
            return sample, start
        size *= 8


def _csv_kinds(path: Path, delimiter: str) -> dict[str, str]:
    import pyarrow.csv as pacsv

    with open_bytes(path) as file:
        header = decode(file.readline(), path.name).rstrip("\r\n")
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        raise ValueError(_LINE_ENDS.format(path.name)) from None
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{path.name}: the header has {twice[0]!r} more than once; give every column its own name.")
    sample, start = _csv_sample(path, delimiter, len(names))
    if not sample:
        if start.count(b"\n") > 1:
            explain_csv(path, Plan("texts", (), "", delimiter=delimiter))
        raise ValueError(f"{path.name} has a header and no rows; every file needs examples.")
    null = set(pacsv.ConvertOptions().null_values)
    kinds = {}
    for place, name in enumerate(names):
        cells = [row[place] for row in sample if row[place] not in null]
        numbers = sum(map(is_number, cells))
        # A few words among numbers are mistakes to be named, not a column of texts.
        commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
        if 2 * len(commas) > len(cells):
            raise ValueError(
                f"{path.name}, column {name!r}: numbers such as {commas[0]!r} have a decimal comma; write a point."
            )
        kinds[name] = "empty" if not cells else "number" if 2 * numbers > len(cells) else "text"
    return kinds


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line that is not blank."""
    number = 0
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(decode_line(line, path, number))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path.name}, line {number}: no JSON ({error.msg}, character {error.pos + 1}); each line must "
                    f"hold "
                    f'one object, such as {{"values": [0.1, 0.2], "label": "a"}}.'
                ) from None
            if not isinstance(row, dict):
                raise ValueError(
                    f"{path.name}, line {number}: a {type(row).__name__}, but each line must hold one object with "
                    f"named columns."
                )
            yield number, row


def decode_line(line: bytes, path: Path, number: int) -> str:
    """As `decode`, for one line of a file."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is no UTF-8; "
            f"save the file as UTF-8."
        ) from None


def _kind_of_value(value: Any) -> str:
    if isinstance(value, list):
        first = value[0] if value else None
        return "words" if isinstance(first, str) else "list" if isinstance(first, (int, float, list)) else "empty"
    if value is None:
        return "empty"
    return "number" if isinstance(value, (int, float)) else "text" if isinstance(value, str) else "other"


def table_kinds(source: Any, delimiter: str = ",") -> dict[str, str]:
    """Columns of a file or a `datasets.Dataset` and what they hold.

    Raises:
        ValueError: If the file has no rows, or is broken.
    """
    if not isinstance(source, Path):
        return {field.name: kind_of_type(field.type) for field in source.features.arrow_schema}
    suffix = suffix_of(source)
    if suffix == ".parquet":
        return {field.name: kind_of_type(field.type) for field in open_parquet(source).schema_arrow}
    if suffix in JSON_SUFFIXES:
        kinds: dict[str, str] = {}
        for _, (_, row) in zip(range(100), json_rows(source), strict=False):
            for name, value in row.items():
                if kinds.get(name, "empty") == "empty":
                    kinds[name] = _kind_of_value(value)
        if not kinds:
            raise ValueError(f"{source.name} holds no rows; every file needs examples.")
        return kinds
    return _csv_kinds(source, delimiter)


# Which column is what.


def column(name: str, kinds: dict[str, str], where: str, named_by: str) -> str:
    """The column that an option, or another file, names; `named_by` says which.

    Raises:
        ValueError: With the columns found and the nearest.
    """
    if name in kinds:
        return name
    found = list(kinds)
    shown = ", ".join(found[:20]) + (f" and {len(found) - 20} more" if len(found) > 20 else "")
    raise ValueError(f"{where} has no column {name!r} ({named_by}).{nearest(str(name), found)} Its columns: {shown}.")


def _label_column(options: dict[str, Any], kinds: dict[str, str], where: str) -> str:
    if options["label"] is not None:
        return column(options["label"], kinds, where, "the option label")
    found = [name for name in kinds if name.strip().lower() in LABEL_NAMES]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(list(kinds)[:20]) + (f" and {len(kinds) - 20} more" if len(kinds) > 20 else "")
    problem = f"has several columns that may be the label ({', '.join(found)})" if found else "has no column label"
    raise ValueError(f"{where} {problem}; name it in the option label. Its columns: {shown}.")


def make_plan(kinds: dict[str, str], options: dict[str, Any], where: str, delimiter: str) -> tuple[Plan, list[str]]:
    """Say which columns are read, and note those that are left out.

    Raises:
        ValueError: If the columns that are named are not there, or it is not clear which hold the input.
    """
    label = _label_column(options, kinds, where)
    named = {
        option: column(options[option], kinds, where, f"the option {option}") if options[option] is not None else None
        for option in ("group", "split", "id", "time")
    }
    if named["split"] is None and kinds.get("split") == "text":
        named["split"] = "split"
    if named["time"] is not None and named["id"] is None:
        raise ValueError(
            "the option time names the column of times of a long table; name that of the series in the option id, too."
        )
    used = {label, *(name for name in named.values() if name is not None)}
    free = {name: kind for name, kind in kinds.items() if name not in used}
    notes: list[str] = []
    if options["input"] is not None:
        inputs = _named_inputs(options["input"], kinds, free, where)
    else:
        inputs, notes = _found_inputs(free, where)
    kind = _plan_kind([kinds[name] for name in inputs], inputs, named["id"], where)
    plan = Plan(
        kind,
        tuple(inputs),
        label,
        group=named["group"],
        split=named["split"],
        id=named["id"],
        time=named["time"],
        missing=options["missing"],
        delimiter=delimiter,
        sampling_rate=options["sampling_rate"],
    )
    return plan, notes


def _named_inputs(wanted: Any, kinds: dict[str, str], free: dict[str, str], where: str) -> list[str]:
    names = list(wanted) if not isinstance(wanted, str) else [wanted] if wanted in kinds else wanted.split(",")
    inputs: list[str] = []
    for name in (name if name in kinds else str(name).strip() for name in names):
        matching = [other for other in free if fnmatch.fnmatchcase(other, name)] if "*" in name else []
        inputs += matching or [column(name, kinds, where, "the option input")]
    both = [name for name in inputs if name not in free]
    if both:
        raise ValueError(
            f"{where}: column {both[0]!r} is both input and label, group, split, id or time; name another."
        )
    return inputs


def _found_inputs(free: dict[str, str], where: str) -> tuple[list[str], list[str]]:
    countable = {name for name, kind in free.items() if kind in ("number", "empty")}
    counters = [name for name in free if name in countable and name.strip().lower() in COUNTER_NAMES]
    numbers = [name for name, kind in free.items() if kind in ("number", "empty") and name not in counters]
    others = [name for name, kind in free.items() if kind not in ("number", "empty")]
    notes = (
        [f"Column {', '.join(map(repr, counters))} is left out, as its name says that it counts the rows."]
        if counters
        else []
    )
    if numbers and not others:
        return numbers, notes
    if len(others) == 1 and not numbers:
        return others, notes
    if not others and counters:
        raise ValueError(f"{where}: only {', '.join(map(repr, counters))} is left as input; name the input's columns.")
    if not free:
        raise ValueError(f"{where} has no column but the label and those named; it needs an input.")
    shown = ", ".join(f"{name} ({kind})" for name, kind in list(free.items())[:12])
    raise ValueError(f"{where}: more than one column may be the input: {shown}; name it in the option input.")


def _plan_kind(kinds: list[str], inputs: list[str], id_column: str | None, where: str) -> str:
    if id_column is not None:
        wrong = [name for name, kind in zip(inputs, kinds, strict=True) if kind not in ("number", "empty")]
        if wrong:
            raise ValueError(f"{where}: column {wrong[0]!r} holds no numbers, as a long table's values must.")
        return "long"
    if all(kind in ("number", "empty") for kind in kinds):
        return "columns"
    if all(kind == "list" for kind in kinds):
        return "lists"
    single = {"text": "texts", "words": "symbols", "file": "files"}
    if len(inputs) == 1 and kinds[0] in single:
        return single[kinds[0]]
    shown = ", ".join(f"{name} ({kind})" for name, kind in zip(inputs, kinds, strict=True))
    raise ValueError(
        f"{where}: the input columns {shown} do not go together; take numbers, lists of numbers, or one text."
    )


def explain_csv(path: Path, plan: Plan) -> None:
    """Go through a CSV that Arrow refused, and name the first row that is wrong.

    Raises:
        ValueError: With row and column.
    """

    def lines() -> Iterator[str]:
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                yield decode_line(line, path, number)

    _allow_long_fields()
    rows = csv.reader(lines(), delimiter=plan.delimiter)
    try:
        _explain_rows(path, plan, rows)
    except csv.Error:
        raise ValueError(_LINE_ENDS.format(path.name)) from None


def _explain_rows(path: Path, plan: Plan, rows: Iterator[list[str]]) -> None:
    import pyarrow.csv as pacsv

    null = set(pacsv.ConvertOptions().null_values)
    header = next(rows, [])
    for name in plan.columns if plan.label else ():
        column(name, dict.fromkeys(header, ""), path.name, "as in the first file")
    numbers = [header.index(name) for name in plan.inputs] if plan.kind in ("columns", "long") else []
    for number, row in enumerate((row for row in rows if row), start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{path.name}, row {number}: {len(row)} field(s) where the header has {len(header)}; write one field a "
                f"column, and texts with {plan.delimiter!r} in them between quotation marks."
            )
        for place in numbers:
            cell = row[place].strip()
            if cell not in null and not is_number(cell) and cell.lower().lstrip("+-") not in ("inf", "infinity"):
                raise ValueError(
                    f"{path.name}, row {number}, column {header[place]!r}: {cell!r} is not a number; correct it, or "
                    f"name the columns of the series in input."
                )


def check_part(value: Any, plan: Plan, where: str) -> str | None:
    """The part that an entry of the column `split` names."""
    if plan.split is None:
        return None
    part = split_word(str(value))
    if part is None:
        raise ValueError(
            f"{where}, column {plan.split!r}: {value!r} names no part; write train, validation or test, or name "
            f"another column in split."
        )
    return part


def source_name(source: Any) -> str:
    """For messages: the file's name with its folder, or the set's."""
    return source.name if isinstance(source, Path) else str(source.info.dataset_name or "the set")
