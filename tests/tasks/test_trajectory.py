"""`trajectory`: sizes, laws of both generators, and the reference classifiers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverscratch.tasks.trajectory import (
    load,
    ou_trajectory,
    random_stream,
    reference_accuracy,
    threshold_accuracy,
    turn_products,
)


def test_sizes_columns_and_ids() -> None:
    task = load(num_train=30, num_validation=20, num_test=10)
    assert task.sizes == {"train": 30, "validation": 20, "test": 10}
    assert (task.spec.num_channels, task.spec.length, task.spec.labels) == (2, 32, ("phi=0.5", "phi=0.8"))
    ids = [int(i) for split in task.splits.values() for i in split["example_id"][:]]
    assert ids == list(range(60))
    values = task.splits["train"]["values"][:]
    assert values.shape == (30, 32, 2) and values.dtype == np.float32
    np.testing.assert_allclose(values.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose((values**2).sum(-1).mean(1), 1, atol=1e-5)


def test_the_seed_decides() -> None:
    first, again, other = (load(num_train=5, seed=seed).splits["train"]["values"][:] for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    task = load(num_train=5, num_validation=5)
    assert not np.array_equal(task.splits["train"]["values"][:], task.splits["validation"]["values"][:])
    # Other sizes of other parts change nothing.
    assert np.array_equal(load(num_train=5, num_test=7).splits["train"]["values"][:], task.splits["train"]["values"][:])


def test_neighbours_carry_the_label() -> None:
    task = load()
    assert task.sizes == {"train": 1000, "validation": 2000, "test": 2000}
    assert reference_accuracy(task) == pytest.approx(0.90, abs=0.02)
    # Each point alone says nothing: the radius of a single point has one distribution for both labels.
    paths, labels = ou_trajectory(4000, 32, (0.5, 0.8), 2, random_stream(1, 0))
    variance = [(paths[labels == label] ** 2).mean() for label in (0, 1)]
    assert variance[0] == pytest.approx(variance[1], rel=1e-5)


def test_the_negative_control_shows_the_label_at_every_lag() -> None:
    def by_lag(**options: Any) -> list[float]:
        task = load(kind="turning-walk", **options)
        parts = [(split["values"][:], split["label"][:]) for split in (task.splits["train"], task.splits["test"])]
        (train, train_labels), (test, labels) = parts
        return [
            threshold_accuracy(turn_products(train, lag), train_labels, turn_products(test, lag), labels)
            for lag in (1, 3, 6)
        ]

    task = load(kind="turning-walk", num_train=3)
    assert (task.spec.labels, task.options["omega"]) == (("right", "left"), 0.3)
    assert min(by_lag()) > 0.97
    # In the task itself only neighbours tell much.
    assert reference_accuracy(load(), lag=6) < 0.75


def test_threshold_accuracy() -> None:
    scores, labels = np.array([3.0, 1.0, 2.0, 4.0]), np.array([1, 0, 0, 1])
    assert threshold_accuracy(scores, labels, scores, labels) == 1.0
    assert threshold_accuracy(-scores, labels, -scores, labels) == 1.0
    assert threshold_accuracy(scores, labels, scores, 1 - labels) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ar"}, "kind='ar' is unknown; use one of 'ou', 'turning-walk'."),
        ({"phi": (-0.5, 0.5)}, "phi=-0.5 is out of range; use a number from 0 to below 1."),
        ({"phi": (0.5, 0.5)}, "give two different numbers"),
        ({"phi": 0.5}, "give two different numbers"),
        ({"phi": (0.5, 1.0)}, "phi=1.0 is out of range"),
        ({"omega": 0.1}, "omega=0.1 is not for kind='ou', whose own options are phi, dim."),
        ({"kind": "turning-walk", "dim": 3}, "dim=3 is not for kind='turning-walk'"),
        ({"kind": "turning-walk", "noise": -1}, "noise=-1 is out of range; use a number from 0 up."),
        ({"length": 2}, "length=2 is out of range; use a whole number from 3 up."),
        ({"num_test": 0}, "num_test=0 is out of range"),
        ({"seed": -1}, "seed=-1 is not a seed"),
        ({"data_dir": Path("there")}, "data_dir='there' was given, but trajectory is made in memory; leave it out."),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load(**options)
    assert message in str(error.value)
