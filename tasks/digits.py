"""`digits`: 8 x 8 images of handwritten digits with 17 grey levels, as shipped inside scikit-learn.

These are the 1,797 images of the test part of the UCI set "Optical Recognition of Handwritten Digits". They have no
official split; ours is two stratified draws with fixed seeds: 360 for testing, then 180 of the rest for validation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec

TEST_SIZE = 360
VALIDATION_SIZE = 180
SPLIT_SEED = 0

SPEC = TaskSpec(
    name="digits",
    title="Handwritten digits (8x8)",
    modality="image",
    num_channels=1,
    labels=tuple(str(digit) for digit in range(10)),
    num_levels=17,
    length=64,
    metric="accuracy",
    greater_is_better=True,
    chance=0.1,
    license="CC BY 4.0",
    citation=(
        "E. Alpaydin and C. Kaynak (1998). Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository. doi:10.24432/C50P49."
    ),
    source="scikit-learn's load_digits (the test part of the UCI set, 1,797 images)",
    version=1,
    notes=(
        "No official split exists. Fixed stratified split, 1,257/180/360: scikit-learn's train_test_split with seed 0, "
        "first the test part, then the validation part."
    ),
)

ENTRY = TaskEntry(
    title=SPEC.title,
    modality=SPEC.modality,
    length=SPEC.length,
    classes=SPEC.num_labels,
    sizes="1,257/180/360",
    metric=SPEC.metric,
    chance=SPEC.chance,
    license=SPEC.license,
    source=SPEC.source,
)
ENTRIES = {"digits": ENTRY}


def split_indices(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return each split's rows of `load_digits()`, in the order the examples are served."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    rest, test = train_test_split(rows, test_size=TEST_SIZE, random_state=SPLIT_SEED, stratify=labels)
    train, validation = train_test_split(
        rest, test_size=VALIDATION_SIZE, random_state=SPLIT_SEED, stratify=labels[rest]
    )
    return dict(zip(SPLITS, (train, validation, test), strict=True))


def load(name: str = "digits", data_dir: Path | None = None) -> Task:
    """Load the images: columns `image` (8, 8) uint8 with values 0 .. 16, `label` 0 .. 9, `example_id`."""
    if data_dir is not None:
        raise ValueError(
            f"data_dir={str(data_dir)!r} was given, but {name} comes with scikit-learn and reads no folder; "
            f"leave it out."
        )
    import datasets
    from sklearn.datasets import load_digits

    raw = load_digits()
    features = datasets.Features(
        {
            "image": datasets.Array2D((8, 8), "uint8"),
            "label": datasets.ClassLabel(names=list(SPEC.labels or ())),
            "example_id": datasets.Value("int64"),
        }
    )
    splits = {
        split: datasets.Dataset.from_dict(
            {"image": raw.images[rows].astype(np.uint8), "label": raw.target[rows], "example_id": rows},
            features=features,
        )
        for split, rows in split_indices(raw.target).items()
    }
    return Task(SPEC, datasets.DatasetDict(splits).with_format("numpy"))
