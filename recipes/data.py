"""From raw splits to encoded ones: the processor is fitted on training data alone and travels with the checkpoint.

Raw examples stay in memory-mapped files and are encoded when they are asked for, so memory does not grow with the data;
encoded ones are kept while there is room for them (`KeptRows`).
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from neverscratch.tasks import Task, TaskSpec, load_task, training_subset
from neverscratch.tasks.survey import input_lengths

from .symbols import build_tokenizer, encoder, fit_vocabulary

# Of larger splits the fingerprint of their files stands for their rows.
LARGEST_HASHED_BYTES = 2**30


class RawColumn(Sequence):
    """The inputs of a split, one at a time; may be gone through more than once."""

    def __init__(self, split: datasets.Dataset, name: str, as_array: bool) -> None:
        self.split = split.select_columns([name]).with_format("numpy" if as_array else None)
        self.name = name
        # What comes out of the files is wider: 16-bit samples must be known as such.
        feature = split.features[name]
        self.is_int16 = isinstance(feature, datasets.List) and feature.feature == datasets.Value("int16")

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: Any) -> Any:
        return self._restored(self.split[index][self.name])

    def __iter__(self) -> Iterator[Any]:
        for batch in self.split.iter(batch_size=256):
            yield from map(self._restored, batch[self.name])

    def read(self, indices: list[int]) -> list[Any]:
        """Several inputs at once, which takes a fraction of the time."""
        return [self._restored(value) for value in self.split[indices][self.name]] if indices else []

    def _restored(self, value: Any) -> Any:
        return value.astype(np.int16) if self.is_int16 else value


def is_symbolic(spec: TaskSpec) -> bool:
    """Whether models get ids (`input_ids`) and not real values (`input_values`)."""
    return spec.unit is not None or spec.num_levels is not None


def input_names(spec: TaskSpec) -> list[str]:
    """The raw columns that hold an example's inputs."""
    return [spec.modality, f"{spec.modality}_pair"] if spec.is_pair else [spec.modality]


class EncodedSplit(torch.utils.data.Dataset):
    """Model inputs of a split, in its order, without padding.

    An example has `input_ids` (L,) or `input_values` (L, C) float32, of pairs also `input_ids_pair` and so on, `labels`
    and `example_id`. A column is read by its name: `split["labels"]`, `split["example_id"]`.

    Args:
        split: The raw examples.
        spec: Of the task.
        encode: From a raw input to an array (L,) or (L, C).
        by_member: Whether each member of a pair is an example of its own, as in self-pretraining.
    """

    def __init__(
        self, split: datasets.Dataset, spec: TaskSpec, encode: Callable[[Any], np.ndarray], by_member: bool = False
    ) -> None:
        self.spec, self.encode = spec, encode
        self.names = input_names(spec)
        self.by_member = by_member and spec.is_pair
        self.input_name = "input_ids" if is_symbolic(spec) else "input_values"
        self.columns = [RawColumn(split, name, spec.unit is None) for name in self.names]
        label = None if spec.problem_type == "single_label_classification" else np.float32
        targets = split.select_columns(["label", "example_id"]).with_format("numpy")
        self.labels = np.asarray(targets["label"][:], dtype=label)
        self.example_ids = np.asarray(targets["example_id"][:], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.example_ids) * (2 if self.by_member else 1)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return {"labels": self.labels, "example_id": self.example_ids}[index]
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """The examples of a batch; what torch's loaders call."""
        if self.by_member:
            return self._read_members(indices)
        names = (self.input_name, f"{self.input_name}_pair")
        inputs = [map(self.encode, column.read(indices)) for column in self.columns]
        return [
            {**dict(zip(names, arrays, strict=False)), "labels": self.labels[row], "example_id": self.example_ids[row]}
            for row, *arrays in zip(indices, *inputs, strict=True)
        ]

    def _read_members(self, indices: list[int]) -> list[dict[str, Any]]:
        found: dict[int, np.ndarray] = {}
        for member, column in enumerate(self.columns):
            own = [index for index in indices if index % 2 == member]
            found |= zip(own, map(self.encode, column.read([index // 2 for index in own])), strict=True)
        return [
            {
                self.input_name: found[index],
                "labels": self.labels[index // 2],
                "example_id": 2 * self.example_ids[index // 2] + index % 2,
            }
            for index in indices
        ]

    def members(self) -> "EncodedSplit":
        """The same examples with each member of a pair by itself."""
        if not self.spec.is_pair:
            return self
        other = object.__new__(EncodedSplit)
        other.__dict__ = {**self.__dict__, "by_member": True}
        return other


EncodedSplits = dict[str, EncodedSplit]


@dataclass(frozen=True)
class StageData:
    """A task as a stage sees it: its description, the fitted processor and the encoded splits."""

    spec: TaskSpec
    processor: Any
    splits: EncodedSplits
    image_shape: tuple[int, ...] | None = None
    """(height, width[, channels]) of the raw images; None when the task holds no images."""

    @property
    def vocab_size(self) -> int | None:
        """Number of ids, the special ones included; None for real values."""
        if not is_symbolic(self.spec):
            return None
        return len(self.processor) if self.spec.unit is not None else self.processor.vocab_size


def data_digest(task: Task) -> str:
    """A hash of every split's rows: other data under the same name give another."""
    digest = hashlib.sha256()
    for part, split in sorted(task.splits.items()):
        digest.update(f"{part} {len(split)}".encode())
        if split.data.nbytes > LARGEST_HASHED_BYTES:
            digest.update(split._fingerprint.encode())
            continue
        for batch in split.with_format("arrow").iter(batch_size=1000):
            for name in batch.column_names:
                digest.update(name.encode())
                digest.update(_serialized(batch[name]))
    return digest.hexdigest()[:16]


def _serialized(column: pa.ChunkedArray) -> pa.Buffer:
    """Type and values as bytes that do not depend on where they lay or how they were cut into chunks."""
    values = pa.concat_arrays([getattr(chunk, "storage", chunk) for chunk in column.chunks])
    batch = pa.record_batch([values], names=["values"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def check_objective(objective: str, spec: TaskSpec) -> None:
    """Refuse symbols' objectives on real values, and the reverse."""
    kind = "tokens" if is_symbolic(spec) else "values"
    fitting = ("classification", f"masked_{kind}", f"next_{kind[:-1]}")
    if objective not in fitting:
        raise ValueError(
            f"objective {objective} does not fit task {spec.name}, whose inputs are {kind}; "
            f"use {' or '.join(fitting[1:])}."
        )


def fit_processor(spec: TaskSpec, train: datasets.Dataset) -> Any:
    """A tokenizer or feature extractor with vocabulary and statistics from the training split only."""
    columns = [RawColumn(train, name, spec.unit is None) for name in input_names(spec)]
    if spec.unit is not None:
        vocabulary = None if spec.vocabulary is None else list(spec.vocabulary)
        if spec.unit != "bytes" and vocabulary is None:
            examples = (example for column in columns for example in column)
            vocabulary = fit_vocabulary(examples, spec.unit, spec.min_count)
        return build_tokenizer(spec.unit, vocabulary, spec.max_length)
    from neverscratch.modeling.feature_extraction_sequence import LongSequenceFeatureExtractor

    return LongSequenceFeatureExtractor.fit(
        columns[0],
        modality=spec.modality,  # type: ignore[arg-type]
        num_levels=spec.num_levels,
        num_channels=spec.num_channels or 1,
        max_length=spec.max_length or spec.length,
        sampling_rate=spec.sampling_rate,
        scale=spec.scale,
    )


def load_processor(source: str | Path) -> Any:
    """The processor of a checkpoint: its tokenizer, or its feature extractor."""
    from transformers import AutoFeatureExtractor, AutoTokenizer
    from transformers.utils import cached_file

    has_extractor = cached_file(source, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
    loader = AutoFeatureExtractor if has_extractor else AutoTokenizer
    return loader.from_pretrained(source, trust_remote_code=False)


def make_encode(spec: TaskSpec, processor: Any) -> Callable[[Any], np.ndarray]:
    """From one raw input to the model's: ids (L,) or values (L, C) float32, the end cut off at `max_length`."""
    limit = spec.max_length
    if spec.unit is not None:
        to_ids = encoder(processor)
        return lambda example: to_ids(example)[:limit]

    def encode(example: np.ndarray) -> np.ndarray:
        shortened = example if spec.modality == "image" else example[:limit]
        encoded = processor(shortened, padding=False, return_tensors=None, batched=False)
        return encoded[processor.main_input_name][0]

    return encode


def check_lengths(splits: dict[str, datasets.Dataset], spec: TaskSpec) -> None:
    """Refuse empty sequences, and say once how many are cut."""
    cut, total = 0, 0
    for part, split in splits.items():
        lengths = input_lengths(split, spec)
        if len(lengths) and lengths.min() < 1:
            row = int(np.flatnonzero((lengths < 1).reshape(len(lengths), -1).any(axis=1))[0])
            raise ValueError(
                f"Example {row} of the {part} part of {spec.name} is empty; every sequence needs a step, remove it."
            )
        total += lengths.size
        cut += int((lengths > spec.max_length).sum()) if spec.max_length is not None else 0
    if cut:
        warnings.warn(
            f"{cut:,} of {total:,} sequences of {spec.name} are longer than max_length={spec.max_length:,} and lose "
            "their end.",
            stacklevel=2,
        )


class KeptRows(torch.utils.data.Dataset):
    """Encoded examples, each made when it is first asked for, and kept as long as there is room.

    Reading a row from Arrow takes longer than a step of a small model may.

    Args:
        split: Where they come from.
        limit: Bytes that the kept ones may take together.
    """

    # A dictionary, its arrays' headers and two numbers.
    ROW_BYTES = 600

    def __init__(self, split: EncodedSplit, limit: int = 2**28) -> None:
        self.split, self.room = split, limit
        self.kept: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        new = [index for index in dict.fromkeys(indices) if index not in self.kept]
        made = dict(zip(new, self.split.__getitems__(new), strict=True))
        for index, row in made.items():
            size = self.ROW_BYTES + sum(value.nbytes for value in row.values())
            if size <= self.room:
                # Copied, as the cut input of a long example would keep all of it alive.
                self.kept[index] = {name: value.copy() for name, value in row.items()}
                self.room -= size
        return [self.kept.get(index) or made[index] for index in indices]


def prepare(
    name: str, options: dict[str, Any], train_size: int | None, split_seed: int, source: str | Path | None = None
) -> StageData:
    """Load, take the subset, fit the processor on train (or take that of a checkpoint) and encode every split."""
    task = training_subset(load_task(name, **options), train_size, split_seed)
    spec = task.spec
    check_lengths(task.splits, spec)
    processor = fit_processor(spec, task.splits["train"]) if source is None else load_processor(source)
    encode = make_encode(spec, processor)
    splits = {part: EncodedSplit(split, spec, encode) for part, split in task.splits.items()}
    shape = None
    if spec.modality == "image":
        shape = np.asarray(splits["validation"].columns[0][0]).shape
    return StageData(spec, processor, splits, shape)
