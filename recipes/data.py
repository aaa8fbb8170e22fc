"""From raw splits to encoded ones: the processor is fitted on training data alone and travels with the checkpoint."""

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from neverscratch.tasks import Task, TaskSpec, load_task, training_subset

EncodedSplits = dict[str, datasets.Dataset]


@dataclass(frozen=True)
class StageData:
    """A task as a stage sees it: its description, the fitted processor and the encoded splits."""

    spec: TaskSpec
    processor: Any
    splits: EncodedSplits
    image_shape: tuple[int, ...] | None = None
    """(height, width[, channels]) of the raw images; None when the task holds no images."""


def load_subset(name: str, options: dict[str, Any], train_size: int | None, split_seed: int) -> Task:
    """The task with the training subset of one seed. Validation and test never depend on the seed."""
    task = load_task(name, **options)
    return task if train_size is None else training_subset(task, train_size, split_seed)


def data_digest(task: Task) -> str:
    """A hash of every split's rows: other data under the same name give another."""
    digest = hashlib.sha256()
    for part, split in sorted(task.splits.items()):
        digest.update(part.encode())
        for batch in split.with_format("arrow").iter(batch_size=1000):
            for column in batch.column_names:
                digest.update(column.encode() + repr(batch[column].type).encode())
                digest.update(pickle.dumps(batch[column].to_pylist(), protocol=4))
    return digest.hexdigest()[:16]


def check_objective(objective: str, spec: TaskSpec) -> None:
    """Refuse symbols' objectives on real values, and the reverse."""
    kind = "values" if spec.num_levels is None else "tokens"
    fitting = ("classification", f"masked_{kind}", f"next_{kind[:-1]}")
    if objective not in fitting:
        raise ValueError(
            f"objective {objective} does not fit task {spec.name}, whose inputs are {kind}; "
            f"use {' or '.join(fitting[1:])}."
        )


def raw_examples(split: datasets.Dataset, spec: TaskSpec) -> list[np.ndarray]:
    """The inputs of a raw split as arrays: images (H, W[, C]) or values (L, C)."""
    if spec.modality not in ("image", "values"):
        raise ValueError(f"Task {spec.name} holds {spec.modality}, which no recipe encodes yet; image and values are.")
    return list(split.with_format("numpy")[spec.modality][:])


def fit_processor(spec: TaskSpec, train: datasets.Dataset) -> Any:
    """A feature extractor with statistics from the training split only."""
    from neverscratch.modeling.feature_extraction_sequence import LongSequenceFeatureExtractor

    return LongSequenceFeatureExtractor.fit(
        raw_examples(train, spec),
        modality="image" if spec.modality == "image" else "values",
        num_levels=spec.num_levels,
        num_channels=spec.num_channels or 1,
        max_length=spec.length,
    )


def encode(split: datasets.Dataset, spec: TaskSpec, processor: Any) -> datasets.Dataset:
    """Model inputs with `labels` and `example_id`, in the order of the split.

    Columns: `input_ids` (L,) int64 or `input_values` (L, C) float32, `labels`, `example_id`. The collator pads.
    """
    encoded = processor(raw_examples(split, spec), padding=False, return_tensors=None)
    if "input_ids" in encoded:
        column, feature = "input_ids", datasets.List(datasets.Value("int64"))
        values: list[Any] = [np.asarray(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    else:
        column = "input_values"
        values = [np.asarray(series, dtype=np.float32) for series in encoded["input_values"]]
        feature = datasets.Array2D((None, values[0].shape[1]), "float32")
    label = datasets.Value("float32" if spec.labels is None else "int64")
    features = datasets.Features({column: feature, "labels": label, "example_id": datasets.Value("int64")})
    columns = {column: values, "labels": list(split["label"]), "example_id": list(split["example_id"])}
    return datasets.Dataset.from_dict(columns, features=features).with_format("numpy")


def rows(split: datasets.Dataset, limit: int = 2**28) -> datasets.Dataset | list[dict[str, Any]]:
    """The encoded examples, decoded once and kept when they take less than `limit` bytes.

    Reading rows from Arrow takes longer than a step of a small model may.
    """
    return split if split.data.nbytes > limit else list(split)


def prepare(
    name: str, options: dict[str, Any], train_size: int | None, split_seed: int, processor: Any | None = None
) -> StageData:
    """Load, take the subset, fit the processor on train (unless a checkpoint brings its own) and encode every split."""
    task = load_subset(name, options, train_size, split_seed)
    if processor is None:
        processor = fit_processor(task.spec, task.splits["train"])
    shape = raw_examples(task.splits["validation"].select([0]), task.spec)[0].shape
    splits = {part: encode(split, task.spec, processor) for part, split in task.splits.items()}
    return StageData(task.spec, processor, splits, shape if task.spec.modality == "image" else None)
