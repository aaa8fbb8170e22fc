"""What a task's data look like: lengths, labels, and what will be cut. Read column by column, with flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .base import SPLITS, Task, TaskSpec

if TYPE_CHECKING:
    import datasets
    import pyarrow

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)


def _array_lengths(column: pyarrow.ChunkedArray, spec: TaskSpec) -> np.ndarray:
    """Length of each entry of one Arrow column, in the steps that models see."""
    import pyarrow.compute as pc

    if spec.modality == "text":
        return (pc.binary_length(column.cast("binary")) if spec.unit == "bytes" else pc.utf8_length(column)).to_numpy()
    lengths = []
    for chunk in column.chunks:
        storage = getattr(chunk, "storage", chunk)
        size = pc.list_value_length(storage).to_numpy(zero_copy_only=False)
        if spec.modality == "image":
            size = size * _width(storage)
        lengths.append(size)
    return np.concatenate(lengths) if lengths else np.zeros(0)


def _width(images: pyarrow.Array) -> int:
    """Pixels in a row; all images of a task have one size."""
    return len(images[0].values[0]) if len(images) else 1


def input_lengths(split: datasets.Dataset, spec: TaskSpec) -> np.ndarray:
    """Length of each example before it is cut, int64: (examples,), or (examples, 2) for pairs."""
    names = [spec.modality, *([f"{spec.modality}_pair"] if spec.is_pair else [])]
    split = split.with_format("arrow")
    parts: list[list[np.ndarray]] = [[] for _ in names]
    for batch in split.iter(batch_size=1000):
        for part, name in zip(parts, names, strict=True):
            part.append(_array_lengths(batch[name], spec))
    columns = [np.concatenate(part).astype(np.int64) if part else np.zeros(0, np.int64) for part in parts]
    return np.stack(columns, axis=1) if spec.is_pair else columns[0]


def describe(task: Task) -> str:
    """What was read, as a text: files, sizes, labels, lengths, and how many sequences will be cut."""
    spec = task.spec
    lines = [f"{spec.name}: {spec.title}", *(f"read    {path}" for path in task.files)]
    if task.options:
        lines.append("options " + ", ".join(f"{name}={value}" for name, value in task.options.items()))
    lines.append(f"input   {spec.modality}{' pairs' if spec.is_pair else ''}, {_input_kind(spec)}")
    chance = f"chance {spec.chance:.3g}"
    target = "regression" if spec.labels is None else f"{len(spec.labels)} classes"
    lines.append(f"target  {target}, metric {spec.metric} ({chance})")
    for part in SPLITS:
        lines += _describe_split(task.splits[part], spec, part)
    lines.append(f"note    {spec.notes}" if spec.notes else "")
    return "\n".join(line for line in lines if line)


def _input_kind(spec: TaskSpec) -> str:
    if spec.unit is not None:
        return spec.unit
    if spec.num_levels is not None:
        return f"{spec.num_levels} levels"
    rate = f" at {spec.sampling_rate} Hz" if spec.sampling_rate else ""
    return f"{spec.num_channels} channel(s){rate}"


def _describe_split(split: datasets.Dataset, spec: TaskSpec, part: str) -> list[str]:
    lengths = input_lengths(split, spec).ravel()
    if not len(lengths):
        return [f"{part:<11} 0 examples"]
    quantiles = ", ".join(f"{value:.0f}" for value in np.quantile(lengths, QUANTILES))
    lines = [f"{part:<11} {len(split):,} examples, lengths (least, quartiles, 95%, greatest) {quantiles}"]
    if spec.max_length is not None:
        cut = int((lengths > spec.max_length).sum())
        lines[0] += f"; {cut:,} of {len(lengths):,} will be cut at {spec.max_length:,}"
    labels = np.asarray(split.with_format("numpy")["label"][:])
    if spec.labels is None:
        lines.append(f"{'':<11} target mean {labels.mean():.4g}, deviation {labels.std():.4g}")
    else:
        is_single = spec.problem_type == "single_label_classification"
        counts = np.bincount(labels, minlength=len(spec.labels)) if is_single else labels.sum(axis=0).astype(int)
        order = np.argsort(-counts, kind="stable")[:12]
        shown = ", ".join(f"{spec.labels[index]} {counts[index]}" for index in order)
        more = f" and {len(spec.labels) - 12} more" if len(spec.labels) > 12 else ""
        lines.append(f"{'':<11} {shown}{more}")
    return lines
