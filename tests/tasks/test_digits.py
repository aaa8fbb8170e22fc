"""The digits task: the very same split, for ever."""

import zlib

import numpy as np
import pytest

from neverscratch.tasks import load_task
from neverscratch.tasks.base import SPLITS


def test_split_and_columns() -> None:
    task = load_task("digits")
    assert task.sizes == {"train": 1257, "validation": 180, "test": 360}
    ids = np.concatenate([task.splits[split]["example_id"][:] for split in SPLITS])
    assert sorted(ids) == list(range(1797))
    # Rows of load_digits in order; a change here changes every result on this task.
    assert zlib.crc32(ids.astype("<i8").tobytes()) == 3179020250

    row = task.splits["train"][0]
    assert row["image"].shape == (8, 8)
    assert task.splits["train"].features["image"].dtype == "uint8"
    images = task.splits["train"]["image"][:]
    assert images.min() == 0 and images.max() == 16
    assert int(row["label"]) == task.splits["train"].features["label"].str2int(task.spec.labels[row["label"]])


def test_examples_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits()
    for split in load_task("digits").splits.values():
        rows = split["example_id"][:]
        assert (split["image"][:] == raw.images[rows]).all()
        assert (split["label"][:] == raw.target[rows]).all()


def test_folder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data_dir='x' was given, but digits comes with scikit-learn"):
        load_task("digits", data_dir="x")
