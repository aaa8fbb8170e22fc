"""`load_task`: names, options, subsets."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from neverscratch.tasks import (
    METRICS,
    Task,
    TaskSpec,
    list_tasks,
    load_task,
    resolve_task_name,
    task_entry,
    training_subset,
)
from neverscratch.tasks.base import SPLITS, stratified_order


@pytest.fixture(scope="module")
def digits() -> Task:
    return load_task("digits")


def ids(task: Task, split: str = "train") -> set[int]:
    return set(task.splits[split]["example_id"][:].tolist())


def test_importing_and_refusing_is_light() -> None:
    code = (
        "import sys\n"
        "from neverscratch.tasks import list_tasks, load_task\n"
        "list_tasks()\n"
        "try: load_task('digist')\n"
        "except ValueError: pass\n"
        "heavy = {'datasets', 'sklearn', 'torch', 'transformers', 'evaluate', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names() -> None:
    assert list_tasks()[:3] == ["digits", "gunpoint", "ucr:<Name>"] and "lra-listops" in list_tasks()
    for name in list_tasks():
        entry = task_entry(name)
        assert entry.title and entry.license and entry.source and entry.metric in METRICS
    assert resolve_task_name("gunpoint") == "ucr:GunPoint"
    assert resolve_task_name("ucr:ECG200") == "ucr:ECG200"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digist", "There is no task 'digist'. Did you mean 'digits'? Known tasks: digits, gunpoint, ucr:<Name>,"),
        ("GunPoint", "There is no task 'GunPoint'. Did you mean 'gunpoint'?"),
        ("ucr:../secret", "There is no task 'ucr:../secret'."),
        ("ucr:", "There is no task 'ucr:'."),
        ("ucr:<Name>", "There is no task 'ucr:<Name>'."),
        (7, "There is no task 7."),
        (
            "ucr:gunpoint",
            "Task 'ucr:gunpoint' is not shipped with this package. Did you mean 'ucr:GunPoint'? Give data_dir",
        ),
        ("ucr:ECG200", "Task 'ucr:ECG200' is not shipped with this package. Give data_dir"),
    ],
)
def test_unknown_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load_task(name)
    assert message in str(error.value)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"has no option 'train_sise'. Did you mean 'train_size'\? Its options: train_"
    ):
        load_task("digits", train_sise=300)


@pytest.mark.parametrize(
    ("train_size", "message"),
    [
        (0, "train_size=0 is not a training size; use a whole number of examples from 1 up"),
        (-3, "train_size=-3 is not"),
        (1.5, "train_size=1.5 is not"),
        (float("nan"), "train_size=nan is not"),
        (True, "train_size=True is not"),
        ("300", "train_size='300' is not"),
        (1258, "train_size=1258 is more than the 1257 training examples of digits; use a number from 1 to 1257"),
    ],
)
def test_train_size_out_of_range(train_size: object, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load_task("digits", train_size=train_size)
    assert message in str(error.value)


def test_bad_seed() -> None:
    with pytest.raises(ValueError, match="split_seed=-1 is not a seed; use a whole number from 0 up"):
        load_task("digits", train_size=300, split_seed=-1)


def test_subset_is_stratified_nested_and_seeded(digits: Task) -> None:
    large, small = training_subset(digits, 300, 3), training_subset(digits, 100, 3)
    assert large.sizes == {"train": 300, "validation": 180, "test": 360}
    assert large.options == {"train_size": 300, "split_seed": 3}
    assert ids(small) < ids(large) < ids(digits)
    counts = np.bincount(large.splits["train"]["label"][:], minlength=10)
    assert counts.min() >= 29 and counts.max() <= 31
    assert ids(load_task("digits", train_size=300, split_seed=3)) == ids(large)
    assert ids(training_subset(digits, 300, 4)) != ids(large)
    # A seed made by hashing may be larger than 32 bits.
    assert len(ids(training_subset(digits, 300, 2**63 + 1))) == 300
    for split in ("validation", "test"):
        assert ids(large, split) == ids(digits, split)
    # The same examples in every version of numpy and on every machine.
    assert sorted(ids(training_subset(digits, 10, 0))) == [146, 313, 644, 816, 819, 856, 981, 1190, 1651, 1690]


def test_all_and_shares(digits: Task) -> None:
    assert training_subset(digits, None) is digits
    whole = training_subset(digits, 1.0, 5)
    assert whole.splits["train"]["example_id"][:].tolist() == digits.splits["train"]["example_id"][:].tolist()
    assert training_subset(digits, 0.1).sizes["train"] == 126
    with pytest.warns(UserWarning, match="hold none of the label"):
        assert training_subset(digits, 1e-9).sizes["train"] == 1


def test_absent_classes_are_reported_and_the_label_map_stays(digits: Task) -> None:
    with pytest.warns(UserWarning, match=r"The 5 training examples of digits \(split_seed=0\) hold none of the label"):
        subset = training_subset(digits, 5)
    assert len(subset.absent_labels) == 5
    assert subset.spec.labels == digits.spec.labels
    assert subset.splits["train"].features["label"].names == list(digits.spec.labels or ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training_subset(digits, 50).absent_labels == ()


def test_subset_of_a_regression_task() -> None:
    import datasets

    spec = TaskSpec(
        name="toy", title="Toy", modality="values", num_channels=1, labels=None, num_levels=None, length=3,
        metric="rmse", greater_is_better=False, chance=1.0, license="", citation="", source="", version=1,
        problem_type="regression",
    )  # fmt: skip
    split = datasets.Dataset.from_dict({"label": [float(i) for i in range(20)], "example_id": list(range(20))})
    task = Task(spec, datasets.DatasetDict(dict.fromkeys(SPLITS, split)).with_format("numpy"))
    small, large = training_subset(task, 4, 1), training_subset(task, 9, 1)
    assert ids(small) < ids(large) and len(ids(large)) == 9
    assert task.absent_labels == () and spec.num_labels == 1


def test_every_prefix_of_the_order_is_stratified() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    order = stratified_order(labels, 100, seed=7)
    assert sorted(order) == list(range(100))
    for size in range(1, 101):
        counts = np.bincount(labels[order[:size]], minlength=3)
        assert np.abs(counts - size * np.array([0.5, 0.3, 0.2])).max() <= 1.5


def test_spec_is_checked_and_plain(digits: Task) -> None:
    assert digits.spec.to_dict()["labels"] == [str(i) for i in range(10)]
    with pytest.raises(ValueError, match="metric='acc' is unknown; use one of accuracy"):
        TaskSpec(**{**digits.spec.to_dict(), "metric": "acc"})
    with pytest.raises(ValueError, match="greater_is_better must be True"):
        TaskSpec(**{**digits.spec.to_dict(), "greater_is_better": False})
    with pytest.raises(ValueError, match="modality='pixels' is unknown"):
        TaskSpec(**{**digits.spec.to_dict(), "modality": "pixels"})
