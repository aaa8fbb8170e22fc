"""Long tables of a user: a row is a step of a series, which an id names. Such a table is sorted in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .own_columns import JSON_SUFFIXES, Plan, check_part, source_name, suffix_of
from .own_rows import check_series, make_example

if TYPE_CHECKING:
    import pyarrow as pa


def _read(source: Any, plan: Plan) -> pa.Table:
    import pyarrow as pa

    from .own_tables import LINES, blocks

    collected: dict[str, list[Any]] = {name: [] for name in plan.columns}
    for block in blocks(source, plan):
        for name in plan.columns:
            piece = block[name]
            if isinstance(piece, list):
                piece = _json_column(piece, name, name in plan.inputs, source_name(source), block[LINES])
            collected[name].append(piece.cast(pa.float64()) if name in plan.inputs else piece)
    if not collected[plan.label]:
        raise ValueError(f"{source_name(source)} holds no rows; every file needs examples.")
    return pa.table({name: pa.chunked_array(pieces).combine_chunks() for name, pieces in collected.items()})


def _json_column(values: list[Any], name: str, is_input: bool, where: str, lines: list[int]) -> Any:
    import pyarrow as pa

    if is_input:
        for value, line in zip(values, lines, strict=True):
            if value is not None and not isinstance(value, (int, float)):
                raise ValueError(f"{where}, line {line}, column {name!r}: {value!r} is not a number; correct it.")
        return pa.array(values, type=pa.float64())
    kinds = {type(value) for value in values if value is not None}
    return pa.array(values if len(kinds) < 2 else [None if value is None else str(value) for value in values])


def _codes(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Of each row the number of its value, by first appearance, and the values."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def _times(column: Any, name: str, where: str) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise ValueError(f"{where}, row {row}: the time ({name}) is missing; fill it in or remove the row.")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        raise ValueError(
            f"{where}: column {name!r} holds texts such as {column[0].as_py()!r}; write times as numbers or as "
            f"2024-01-31T12:00:00."
        )
    times = column.to_numpy()
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        row = int(np.flatnonzero(~np.isfinite(times))[0]) + 1
        raise ValueError(f"{where}, row {row}: the time ({name}) is no finite number; correct it or remove the row.")
    return times


def long_examples(shards: list[Any], plan: Plan, channels: int | None = None) -> Iterator[dict[str, Any]]:
    """The series of long tables, in the order in which their ids appear, each sorted by time."""
    assert plan.id is not None
    for source in shards:
        name = source_name(source)
        unit = "line" if isinstance(source, Path) and suffix_of(source) in JSON_SUFFIXES else "row"
        table = _read(source, plan)
        ids, id_values = _codes(table[plan.id])
        if (ids < 0).any() or "" in id_values:
            row = int(np.flatnonzero((ids < 0) | np.isin(ids, [i for i, v in enumerate(id_values) if v == ""]))[0]) + 1
            raise ValueError(f"{name}, {unit} {row}: the id ({plan.id}) is missing; fill it in or remove the row.")
        if plan.time is None:
            order = np.argsort(ids, kind="stable")
        else:
            times = _times(table[plan.time], plan.time, name)
            order = np.lexsort((times, ids))
            same = (np.diff(ids[order]) == 0) & (times[order][1:] == times[order][:-1])
            if same.any():
                row = order[1:][same].min()
                raise ValueError(
                    f"{name}, {unit} {row + 1}: {plan.id} {id_values[ids[row]]!r} has time {times[row]} more than "
                    f"once; keep one row for each id and time."
                )
        ends = np.flatnonzero(np.diff(ids[order], append=-1)) + 1
        values = np.stack([table[item].to_numpy() for item in plan.inputs], axis=1)
        fixed = {item: _codes(table[item]) for item in (plan.label, plan.group, plan.split) if item is not None}
        start = 0
        for end in ends.tolist():
            rows = order[start:end]
            where = f"{name}, {plan.id} {id_values[ids[rows[0]]]!r}"
            known = {item: _constant(codes[rows], found, item, where) for item, (codes, found) in fixed.items()}
            names = (
                plan.inputs if len(plan.inputs) > 1 else [f"{plan.inputs[0]} (step {i + 1})" for i in range(len(rows))]
            )
            value, flags = check_series(values[rows], where, plan.missing, names, channels)
            group = known.get(plan.group) if plan.group is not None else None
            part = check_part(known.get(plan.split), plan, where) if plan.split is not None else None
            label = known[plan.label]
            if plan.names is not None and isinstance(label, int):
                label = plan.names[label] if 0 <= label < len(plan.names) else None
            yield make_example("values", value, label, where, flags=flags, group=group, part=part)
            start = end


def _constant(codes: np.ndarray, values: list[Any], column: str, where: str) -> Any:
    """The one value of a column within a series."""
    if (codes != codes[0]).any():
        other = codes[codes != codes[0]][0]
        shown = [None if code < 0 else values[code] for code in (codes[0], other)]
        raise ValueError(
            f"{where}: column {column!r} holds {shown[0]!r} and {shown[1]!r}; it must be the same in all rows of a "
            f"series."
        )
    return None if codes[0] < 0 else values[codes[0]]
