"""Tables of a user: CSV, Parquet, JSON lines, sets of the Hub. Read in blocks, so that memory stays flat.

A row is an example (its series in numeric columns or in lists, its text in one column), or a step of a series where a
column of ids is named ("long" tables). Rows are counted from 1, without the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .files import open_parquet, reading_parquet
from .own_columns import (
    CSV_SUFFIXES,
    JSON_SUFFIXES,
    Plan,
    check_part,
    column,
    csv_delimiter,
    explain_csv,
    json_rows,
    kind_of_type,
    make_plan,
    open_bytes,
    source_name,
    suffix_of,
    table_kinds,
)
from .own_files import embedded_rate, read_embedded
from .own_rows import Source, check_series, check_symbols, check_text, make_example, sound_of

BLOCK_BYTES = 8 * 2**20
# A text of a CSV must fit into a block.
TEXT_BLOCK_BYTES = 32 * 2**20
BLOCK_ROWS = 512
# Key of the line numbers in a block of JSON; no column is called so.
LINES = "\0line"


def blocks(source: Any, plan: Plan) -> Iterator[dict[str, Any]]:
    """Blocks of rows, as column -> Arrow array or list; of JSON also the line numbers."""
    if not isinstance(source, Path):
        for table in source.with_format("arrow").iter(batch_size=BLOCK_ROWS):
            yield {name: _plain(table[name].combine_chunks()) for name in plan.columns}
        return
    suffix = suffix_of(source)
    if suffix == ".parquet":
        yield from _parquet_blocks(source, plan)
    elif suffix in JSON_SUFFIXES:
        lines: list[tuple[int, dict[str, Any]]] = []
        for item in json_rows(source):
            lines.append(item)
            if len(lines) == BLOCK_ROWS:
                yield _json_block(lines, plan)
                lines = []
        if lines:
            yield _json_block(lines, plan)
    else:
        yield from _csv_blocks(source, plan)


def _plain(values: Any) -> Any:
    """The lists under an extension type, such as the arrays of `datasets`."""
    return getattr(values, "storage", values)


def _label_names(source: Any, label: str) -> list[str] | None:
    """Names of label ids, where a Hub set or a Parquet file written by `datasets` has them."""
    import datasets

    if isinstance(source, Path):
        if suffix_of(source) != ".parquet":
            return None
        features = datasets.Features.from_arrow_schema(open_parquet(source).schema_arrow)
    else:
        features = source.features
    feature = getattr(features[label], "feature", features[label])
    return getattr(feature, "names", None)


def _json_block(lines: list[tuple[int, dict[str, Any]]], plan: Plan) -> dict[str, Any]:
    block: dict[str, Any] = {name: [row.get(name) for _, row in lines] for name in plan.columns}
    return {**block, LINES: [number for number, _ in lines]}


def _parquet_blocks(path: Path, plan: Plan) -> Iterator[dict[str, Any]]:
    file = open_parquet(path)
    have = dict.fromkeys(file.schema_arrow.names, "")
    for name in plan.columns:
        column(name, have, path.name, "as in the first file")
    with reading_parquet(path):
        for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=plan.columns):
            yield {name: _plain(batch.column(name)) for name in plan.columns}


def _csv_blocks(path: Path, plan: Plan) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    numbers = plan.kind in ("columns", "long")
    types = {name: pa.float64() if numbers and name in plan.inputs else pa.string() for name in plan.columns}
    if plan.time is not None:
        del types[plan.time]
    convert = pacsv.ConvertOptions(column_types=types, include_columns=plan.columns, strings_can_be_null=False)
    # Only texts run over line ends; without them blocks can be cut at any line.
    parse = pacsv.ParseOptions(delimiter=plan.delimiter, newlines_in_values=not numbers)
    try:
        with open_bytes(path) as file:
            reader = pacsv.open_csv(
                file,
                read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES if numbers else TEXT_BLOCK_BYTES),
                parse_options=parse,
                convert_options=convert,
            )
            for batch in reader:
                yield {name: batch.column(name) for name in plan.columns}
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        explain_csv(path, plan)
        if "straddl" in str(error):
            raise ValueError(
                f"{path.name}: a row is longer than {TEXT_BLOCK_BYTES >> 20} MiB; save such texts as Parquet or as "
                f"files."
            ) from None
        raise ValueError(f"{path.name}: {error}") from None


def _row_label(plan: Plan, value: Any) -> Any:
    if plan.names is None or not isinstance(value, (int, list)):
        return value
    if isinstance(value, list):
        return [plan.names[item] for item in value]
    # The Hub writes -1 where a test part's labels are kept secret.
    return plan.names[value] if 0 <= value < len(plan.names) else None


def _matrix(block: dict[str, Any], plan: Plan) -> np.ndarray | list[list[Any]]:
    import pyarrow as pa

    columns = [block[name] for name in plan.inputs]
    if isinstance(columns[0], list):
        return [list(row) for row in zip(*columns, strict=True)]
    return np.stack([item.cast(pa.float64()).to_numpy(zero_copy_only=False) for item in columns], axis=1)


def _list_array(scalar: Any, where: str) -> Any:
    """One entry of a list column as an array, or nested lists of JSON as they are."""
    import pyarrow as pa

    if scalar is None or (isinstance(scalar, pa.Scalar) and not scalar.is_valid):
        raise ValueError(f"{where}: the series is missing; every row needs one, remove the row.")
    if not isinstance(scalar, pa.Scalar):
        return scalar
    values = scalar.values
    if kind_of_type(values.type) != "list":
        return values.to_numpy(zero_copy_only=False)
    sizes = values.value_lengths().to_numpy(zero_copy_only=False) if hasattr(values, "value_lengths") else np.array([0])
    flat = values.flatten()
    if kind_of_type(flat.type) == "list" or not len(sizes) or (sizes != sizes[0]).any():
        return scalar.as_py()
    return flat.to_numpy(zero_copy_only=False).reshape(len(sizes), -1)


def _series_of(block: dict[str, Any], plan: Plan, row: int, where: str) -> Any:
    parts = [_list_array(block[name][row], where) for name in plan.inputs]
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in zip(plan.inputs, lengths, strict=True))
        raise ValueError(f"{where}: the channels have unequal lengths ({shown}); every step needs each of them.")
    return np.stack([np.asarray(part, dtype=np.float64) for part in parts], axis=1)


def _samples(values: Any, where: str) -> np.ndarray:
    array = np.asarray(values)
    if (
        array.ndim != 1
        or array.dtype.kind not in "iu"
        or (array.size and np.abs(array.astype(np.int64)).max() >= 2**15)
    ):
        raise ValueError(
            f"{where}: sound is a list of whole numbers between -32768 and 32767; leave sampling_rate out."
        )
    if not array.size:
        raise ValueError(f"{where}: the recording has no samples; remove the row.")
    return array.astype(np.int16)


def table_examples(shards: list[Any], plan: Plan, channels: int | None = None) -> Iterator[dict[str, Any]]:
    """The examples of tables in which a row is one."""
    for source in shards:
        name, seen, label_kind = source_name(source), 0, None
        for block in blocks(source, plan):
            matrix = _matrix(block, plan) if plan.kind == "columns" else None
            labels = _python(block[plan.label])
            groups = _python(block[plan.group]) if plan.group is not None else [None] * len(labels)
            parts = _python(block[plan.split]) if plan.split is not None else [None] * len(labels)
            lines = block.get(LINES)
            for row, label in enumerate(labels):
                seen += 1
                where = f"{name}, row {seen}" if lines is None else f"{name}, line {lines[row]}"
                if plan.group is not None and groups[row] in (None, ""):
                    raise ValueError(f"{where}: the group ({plan.group}) is missing; fill it in or remove the row.")
                part = check_part(parts[row], plan, where)
                if lines is not None:
                    label_kind = _same_kind(label, label_kind, where)
                if matrix is not None:
                    value, flags = check_series(matrix[row], where, plan.missing, plan.inputs, channels)
                    modality = "values"
                else:
                    modality, value, flags = _input_of(block, plan, row, where, channels)
                label = _row_label(plan, label)
                yield make_example(modality, value, label, where, flags=flags, group=groups[row], part=part)
        if not seen:
            raise ValueError(f"{name} holds no rows; every file needs examples.")


def _same_kind(label: Any, before: str | None, where: str) -> str | None:
    """Whether a label of JSON is a word, a number or a list; "1" and 1 must not become one class."""
    kinds = {bool: "true or false", int: "number", float: "number", str: "word", list: "list"}
    kind = kinds.get(type(label))
    if before is not None and kind is not None and kind != before:
        raise ValueError(
            f"{where}: label {label!r} is a {kind} where those before are a {before}; write all in one way."
        )
    return kind or before


def _input_of(block: dict[str, Any], plan: Plan, row: int, where: str, channels: int | None) -> tuple[str, Any, int]:
    """Modality, input and flags of a row whose input is one cell, or a list for each channel."""
    if plan.kind == "lists":
        raw = _series_of(block, plan, row, where)
        if plan.sampling_rate is not None:
            return "audio", sound_of(_samples(raw, where)), 0
        return "values", *check_series(raw, where, plan.missing, None, channels)
    cell = block[plan.inputs[0]][row]
    cell = cell.as_py() if hasattr(cell, "as_py") else cell
    if plan.kind == "files":
        return read_embedded(cell, where, plan.sampling_rate, plan.shape)
    return ("text", check_text(cell, where), 0) if plan.kind == "texts" else ("tokens", check_symbols(cell, where), 0)


def _python(values: Any) -> list[Any]:
    return values if isinstance(values, list) else values.to_pylist()


def table_source(parts: dict[str, list[Any]], options: dict[str, Any]) -> Source:
    """How to read the tables of each part.

    Raises:
        ValueError: If the columns are not there or not clear.
    """
    from .own_long import long_examples

    first = parts["train"][0]
    is_csv = isinstance(first, Path) and suffix_of(first) in (*CSV_SUFFIXES, ".tsv")
    delimiter = csv_delimiter(first) if is_csv else ","
    plan, notes = make_plan(table_kinds(first, delimiter), options, source_name(first), delimiter)
    names = _label_names(first, plan.label)
    plan = plan if names is None else replace(plan, names=tuple(names))
    if plan.split is not None and len(parts) > 1:
        if options["split"] is not None:
            raise ValueError(
                f"The parts are given as {', '.join(parts)}, so split={options['split']!r} says it twice; leave it out."
            )
        plan = replace(plan, split=None)
    if plan.kind == "files":
        cell = next(blocks(first, plan))[plan.inputs[0]][0].as_py()
        plan = replace(plan, sampling_rate=embedded_rate(cell, f"{source_name(first)}, row 1"))
    files = [path for shards in parts.values() for path in shards if isinstance(path, Path)]
    kinds = {"texts": "text", "symbols": "tokens"}
    modality = kinds.get(plan.kind, "values" if plan.sampling_rate is None or plan.kind == "columns" else "audio")
    return Source(
        modality,
        dict(parts),
        long_examples if plan.kind == "long" else table_examples,
        {"plan": plan},
        files,
        sampling_rate=plan.sampling_rate,
        notes=notes,
        fixed_length=len(plan.inputs) if plan.kind == "columns" and plan.missing != "trim" else None,
    )
