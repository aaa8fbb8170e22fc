"""What a task is: its description, its raw splits, and fixed subsets of its training part.

Nothing here imports `datasets` or scikit-learn at module level, so that looking a task up stays instant.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import datasets

MODALITIES = ("image", "values", "text", "tokens", "audio")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
TEXT_UNITS = ("bytes", "characters", "symbols")
SPLITS = ("train", "validation", "test")

# Metric name -> whether more is better. The metrics themselves are in `metrics.py`.
METRICS: dict[str, bool] = {"accuracy": True, "f1_macro": True, "roc_auc": True, "rmse": False, "r2": True}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name closest to `name`, or "" when none is near."""
    known = list(known)
    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """What can be said of a task before its files are read: a line of the list of tasks. "file" stands for "as found".

    Attributes:
        title: The name for people.
        modality: As in `TaskSpec`.
        length: Longest input as models get it.
        classes: Number of labels, or "target" for regression.
        sizes: Published numbers of training, validation and test examples.
        metric: As in `TaskSpec`.
        chance: As in `TaskSpec`, or None where it depends on the files.
        license: Of the data.
        source: Where the data come from.
        layout: What `data_dir` must hold, as half a sentence; "" for tasks that are shipped.
        options: The loader's own options: name -> default, values and meaning, for people.
        can_generate: Whether `neverscratch data make` makes it.
    """

    title: str
    modality: str
    length: int | str
    classes: int | str
    sizes: str
    metric: str
    chance: float | None
    license: str
    source: str
    layout: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    can_generate: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Everything about a task except its examples.

    Attributes:
        name: The name `load_task` takes; also the key in result tables.
        title: The name for people.
        modality: The raw column that holds the input: "image", "values", "text", "tokens" or "audio".
        num_channels: Channels of an image, series or audio; None for text and tokens.
        labels: Label names in the order of the label ids, or None for regression.
        num_levels: Number of grey levels when the input is integers 0 .. num_levels - 1, else None.
        length: Longest sequence over all splits, in steps (pixels for images).
        metric: Name of the metric that is reported and selected on.
        greater_is_better: Whether a larger value of `metric` is better.
        chance: Expected value of `metric` when guessing without looking at the input (for accuracy: uniform guessing).
        license: Licence of the data.
        citation: What to cite.
        source: Where the data come from.
        version: Raised whenever the task's numbers would change.
        problem_type: As in `transformers`: "single_label_classification", "regression", ...
        notes: The variant in use: how the splits were made and what was changed or left out.
        is_pair: Whether an example holds two inputs; the second one's column is `<modality>_pair`.
        unit: What a text or a list of tokens is cut into: "bytes", "characters" or "symbols"; None for other inputs.
        vocabulary: The symbols, where the task itself fixes them; None to take them from the training part.
        min_count: Characters or symbols that occur less often in the training part are unknown ones.
        max_length: Longest input that models get; the rest is cut off and counted. None for no limit.
        scale: (mean, deviation) of each channel that the papers normalise by, in raw units; None to take them from the
            training part.
        sampling_rate: Of audio, in Hz.
    """

    name: str
    title: str
    modality: str
    num_channels: int | None
    labels: tuple[str, ...] | None
    num_levels: int | None
    length: int
    metric: str
    greater_is_better: bool
    chance: float
    license: str
    citation: str
    source: str
    version: int
    problem_type: str = "single_label_classification"
    notes: str = ""
    is_pair: bool = False
    unit: str | None = None
    vocabulary: tuple[str, ...] | None = None
    min_count: int = 1
    max_length: int | None = None
    scale: tuple[tuple[float, float], ...] | None = None
    sampling_rate: int | None = None

    def __post_init__(self) -> None:
        if self.modality not in MODALITIES:
            raise ValueError(f"modality={self.modality!r} is unknown; use one of {', '.join(MODALITIES)}.")
        if self.problem_type not in PROBLEM_TYPES:
            raise ValueError(f"problem_type={self.problem_type!r} is unknown; use one of {', '.join(PROBLEM_TYPES)}.")
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is unknown; use one of {', '.join(METRICS)}.")
        if self.greater_is_better != METRICS[self.metric]:
            raise ValueError(f"greater_is_better must be {METRICS[self.metric]} for metric={self.metric!r}.")
        if (self.unit is None) == (self.modality in ("text", "tokens")) or self.unit not in (None, *TEXT_UNITS):
            raise ValueError(
                f"unit={self.unit!r} does not fit modality={self.modality!r}; use {', '.join(TEXT_UNITS)}."
            )

    @property
    def num_labels(self) -> int:
        """Number of outputs a classifier needs; 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Task:
    """A task's description and its raw examples.

    Attributes:
        spec: The description.
        splits: `train`, `validation` and `test`. Columns: the one named by `spec.modality`, `label` and `example_id`
            (int64, unique over the three splits). Rows come back as numpy arrays.
        options: The options it was loaded with, such as `train_size` and `split_seed`; goes into results.
        files: Where the examples were read from: files or folders, for people.
    """

    spec: TaskSpec
    splits: datasets.DatasetDict
    options: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
        return {name: len(self.splits[name]) for name in SPLITS}

    @property
    def absent_labels(self) -> tuple[str, ...]:
        """Names of the labels that no training example has."""
        if self.spec.labels is None:
            return ()
        targets = np.asarray(self.splits["train"]["label"][:])
        if targets.ndim == 2:
            return tuple(label for label, column in zip(self.spec.labels, targets.T, strict=True) if not column.any())
        present = set(targets.ravel().tolist())
        return tuple(label for index, label in enumerate(self.spec.labels) if index not in present)


def check_seed(name: str, seed: Any) -> int:
    """Return `seed` as an int, or refuse it under its `name`."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"{name}={seed!r} is not a seed; use a whole number from 0 up.")
    return int(seed)


def stratified_order(labels: Sequence[Any] | np.ndarray | None, num_examples: int, seed: int) -> np.ndarray:
    """Order examples so that every prefix has the class shares of the whole, as nearly as whole numbers allow.

    Prefixes of one seed are nested by construction. The order depends on `labels` and `seed` only.

    Args:
        labels: Class of each example, (num_examples,), or None for a plain random order.
        num_examples: Number of examples.
        seed: Any whole number from 0 up.

    Returns:
        A permutation of `range(num_examples)`, int64.
    """
    # Of numpy's generators only the legacy one promises the same stream in every version.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    shuffled = random.permutation(num_examples)
    if labels is None:
        return shuffled
    shuffled_labels = np.asarray(labels)[shuffled]
    position = np.empty(num_examples, dtype=np.float64)
    for label in np.unique(shuffled_labels):
        members = np.flatnonzero(shuffled_labels == label)
        # The j-th of n members of a class belongs at the share (j + 1/2) / n of the whole.
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    # A stable sort keeps the random order among members with equal shares.
    return shuffled[np.argsort(position, kind="stable")]


def subset_indices(labels: Sequence[Any] | np.ndarray | None, num_examples: int, size: int, seed: int) -> np.ndarray:
    """Return the sorted indices of the first `size` examples of `stratified_order`."""
    return np.sort(stratified_order(labels, num_examples, seed)[:size])


def check_train_size(train_size: Any, available: int | None = None, task_name: str = "the task") -> None:
    """Refuse a `train_size` that is no count or share; with `available`, also one that is too large."""
    is_number = isinstance(train_size, (int, float, np.integer, np.floating)) and not isinstance(train_size, bool)
    is_share = isinstance(train_size, (float, np.floating))
    if not is_number or train_size <= 0 or (is_share and not train_size <= 1.0):
        raise ValueError(
            f"train_size={train_size!r} is not a training size; use a whole number of examples from 1 up, "
            f"a share above 0.0 and up to 1.0, or leave it out for all."
        )
    if available is not None and not is_share and train_size > available:
        raise ValueError(
            f"train_size={train_size} is more than the {available} training examples of {task_name}; "
            f"use a number from 1 to {available}, or leave it out for all."
        )


def training_subset(task: Task, train_size: int | float | None, seed: int = 0) -> Task:
    """Keep a fixed part of the training split; validation, test and the label map stay as they are.

    For one seed the subsets are nested: that of 300 examples contains that of 100. Classes keep their shares; with one
    target value per example (regression) or several labels, the part is drawn without regard to them.

    Args:
        task: Any task.
        train_size: Number of training examples (int), their share (float, above 0.0 up to 1.0), or None for all.
        seed: Which subset; any whole number from 0 up.

    Returns:
        The task with the smaller training split, in the original order.

    Raises:
        ValueError: If `train_size` is out of range or `seed` is no seed.

    Warns:
        UserWarning: If some label has no training example left.
    """
    seed = check_seed("split_seed", seed)
    if train_size is None:
        return task
    train = task.splits["train"]
    check_train_size(train_size, len(train), task.spec.name)
    size = max(1, round(train_size * len(train))) if isinstance(train_size, (float, np.floating)) else int(train_size)
    labels = np.asarray(train["label"][:]) if task.spec.problem_type == "single_label_classification" else None
    smaller = train.select(subset_indices(labels, len(train), size, seed).tolist())

    splits = type(task.splits)({**task.splits, "train": smaller})
    subset = replace(task, splits=splits, options={**task.options, "train_size": size, "split_seed": seed})
    absent = [label for label in subset.absent_labels if label not in task.absent_labels]
    if absent:
        warnings.warn(
            f"The {size} training examples of {task.spec.name} (split_seed={seed}) hold none of the label(s) "
            f"{', '.join(absent)}; the label map stays whole, but raise train_size to train on every label.",
            stacklevel=2,
        )
    return subset
