"""UCR sets: the shipped GunPoint, and files with every trap."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import Task, load_task
from neverscratch.tasks.ucr import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")

# The tiny files repeat series.
pytestmark = pytest.mark.filterwarnings("ignore:.*test series occur in")

TRAIN = "1\t0.5\t1.5\n2\t1.0\t2.0\n1\t0.0\t-9\n2\t3\t4\n2\t3\t5\n"
TEST = "2\t1\t2\n1\t3\t4\n"


def write(folder: Path, train: str = TRAIN, test: str = TEST, name: str = "Toy", suffix: str = "tsv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}_TRAIN.{suffix}").write_text(train)
    (folder / f"{name}_TEST.{suffix}").write_text(test)
    return folder


def all_ids(task: Task) -> list[int]:
    return [int(i) for split in task.splits.values() for i in split["example_id"][:]]


def test_gunpoint_is_shipped() -> None:
    task = load_task("gunpoint")
    assert task.sizes == {"train": 40, "validation": 10, "test": 150}
    assert task.spec.labels == ("1", "2")
    assert (task.spec.name, task.spec.length, task.spec.num_channels) == ("ucr:GunPoint", 150, 1)
    assert "40 for training and 10 for validation" in task.spec.notes
    assert sorted(all_ids(task)) == list(range(200))
    values = task.splits["train"]["values"][:]
    assert values.shape == (40, 150, 1) and values.dtype == np.float32
    assert np.bincount(task.splits["validation"]["label"][:]).tolist() == [5, 5]
    assert np.bincount(task.splits["test"]["label"][:]).tolist() == [76, 74]
    # Fixed for ever: the same series are held out whatever the options.
    held_out = [4, 10, 14, 17, 29, 33, 35, 40, 44, 48]
    assert task.splits["validation"]["example_id"][:].tolist() == held_out
    smaller = load_task("ucr:GunPoint", train_size=20, split_seed=9)
    assert smaller.splits["validation"]["example_id"][:].tolist() == held_out
    assert smaller.sizes["train"] == 20


def test_1nn_on_the_official_split_of_gunpoint() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    splits = load_task("gunpoint").splits
    inputs = {name: split["values"][:][..., 0] for name, split in splits.items()}
    model = KNeighborsClassifier(1).fit(
        np.concatenate([inputs["train"], inputs["validation"]]),
        np.concatenate([splits["train"]["label"][:], splits["validation"]["label"][:]]),
    )
    assert model.score(inputs["test"], splits["test"]["label"][:]) == pytest.approx(0.9133, abs=5e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_both_places_are_read(tmp_path: Path, inside: bool) -> None:
    write(tmp_path / "Toy" if inside else tmp_path)
    task = load_task("ucr:Toy", tmp_path)
    assert task.sizes == {"train": 4, "validation": 1, "test": 2}
    assert task.splits["test"][0]["values"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("raw", "names", "expected"),
    [
        (["1", "-1"], ("-1", "1"), [1, 0]),
        (["10", "9"], ("9", "10"), [1, 0]),
        (["2.0000000e+00", "1.0"], ("1", "2"), [1, 0]),
        (["walk", "run"], ("run", "walk"), [1, 0]),
    ],
)
def test_labels_are_mapped_by_sorted_value(
    tmp_path: Path, raw: list[str], names: tuple[str, ...], expected: list
) -> None:
    rows = "".join(f"{label}\t{i}\t0\n" for i, label in enumerate(raw * 3))
    task = load_task("ucr:Toy", write(tmp_path, rows, rows))
    assert task.spec.labels == names
    assert task.splits["test"]["label"][:2].tolist() == expected
    assert task.splits["train"].features["label"].names == list(names)


def test_trailing_nan_is_cut_and_said(tmp_path: Path) -> None:
    train = "1\t1\t2\tNaN\n2\t1\tNaN\tnan\n1\t1\t2\t3\n2\t1\t2\t3\n"
    task = load_task("ucr:Toy", write(tmp_path, train, "1\t5\t6\tNaN\n"))
    series = {int(row["example_id"]): row["values"] for split in task.splits.values() for row in split}
    assert [len(series[i]) for i in range(5)] == [2, 1, 3, 3, 2]
    assert series[4].tolist() == [[5.0], [6.0]]
    assert "Lengths 1 to 3; NaN cut off the end of 3 series." in task.spec.notes
    assert task.spec.length == 3


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (TRAIN + "1\tNaN\t2\n", TEST, "Toy_TRAIN.tsv, row 6, value 1: NaN inside the series"),
        (TRAIN + "1\t1\tinf\n", TEST, "Toy_TRAIN.tsv, row 6, value 2: inf inside the series"),
        (TRAIN, TEST + "1\tNaN\tNaN\n", "Toy_TEST.tsv, row 3: the series is empty or all NaN"),
        (TRAIN + "1\t?\t2\n", TEST, "Toy_TRAIN.tsv, row 6, value 1: ? inside the series; fill it in, or load with"),
        (TRAIN + "1\t2\n", TEST, "Toy_TRAIN.tsv, row 6: 1 values where the first row has 2"),
        (TRAIN + "NaN\t2\t2\n", TEST, "Toy_TRAIN.tsv, row 6: the label is missing"),
        ("1,2,3\n", TEST, "Toy_TRAIN.tsv, row 1: no tab in '1,2,3'"),
        ("\n", TEST, "Toy_TRAIN.tsv holds no series"),
        (
            TRAIN,
            TEST + "3\t1\t1\n",
            "Toy_TEST.tsv, row 3: label '3' never occurs in Toy_TRAIN.tsv, whose labels are 1, 2",
        ),
        ("1\t1\t2\n1\t1\t3\n", "1\t1\t2\n", "Toy_TRAIN.tsv has the single label '1'"),
        ("1\t1\t2\n2\t1\t3\n", TEST, "Toy_TRAIN.tsv has 2 series for 2 labels, so that none can be held out"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, train: str, test: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load_task("ucr:Toy", write(tmp_path, train, test))
    assert message in str(error.value)


def test_rare_classes_stay_in_train(tmp_path: Path) -> None:
    train = "".join(f"{label}\t{i}\t0\n" for i, label in enumerate([1] * 12 + [2] * 2 + [3]))
    task = load_task("ucr:Toy", write(tmp_path, train, "1\t0\t0\n"))
    assert task.absent_labels == ()
    assert task.sizes == {"train": 12, "validation": 3, "test": 1}


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="Toy/Toy_TRAIN.tsv, Toy/Toy_TEST.tsv. Both files may lie in Toy/ or dir"
    ):
        load_task("ucr:Toy", tmp_path)
    write(tmp_path / "Toy")
    (tmp_path / "Toy" / "Toy_TEST.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: Toy/Toy_TEST\.tsv\. Both"):
        load_task("ucr:Toy", tmp_path)
    write(tmp_path, name="Flat")
    (tmp_path / "Flat_TRAIN.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: Flat_TRAIN\.tsv\. Both"):
        load_task("ucr:Flat", tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere' is not a folder; give the folder that holds Toy/"):
        load_task("ucr:Toy", tmp_path / "nowhere")


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "Toy", suffix="csv")
    with pytest.raises(
        ValueError, match=r"only as Toy/Toy_TEST.csv, Toy/Toy_TRAIN.csv; the formats that can be read are"
    ):
        load_task("ucr:Toy", tmp_path)


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing='drop' is unknown; use one of 'refuse', 'interpolate', 'zero'."):
        load("ucr:Toy", write(tmp_path), missing="drop")


@pytest.mark.parametrize(("missing", "expected"), [("interpolate", [1.0, 2.0, 3.0]), ("zero", [1.0, 0.0, 3.0])])
def test_missing_values_are_filled_in_on_demand(tmp_path: Path, missing: str, expected: list) -> None:
    task = load("ucr:Toy", write(tmp_path, "1\t1\tNaN\t3\n2\t4\t5\t6\n1\t4\t5\t7\n", "1\t7\t8\t9\n"), missing=missing)
    series = {int(row["example_id"]): row["values"][:, 0].tolist() for split in task.splits.values() for row in split}
    assert series[0] == expected
    assert task.options == {"missing": missing}
    assert "1 missing values filled in." in task.spec.notes


def test_series_of_both_parts_are_counted(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"ucr:Toy: 1 of 2 test series occur in Toy_TRAIN.tsv, too; they are kept."):
        load("ucr:Toy", write(tmp_path, TRAIN, "1\t0.5\t1.5\n2\t8\t8\n"))


def test_files_of_two_sets_are_refused(tmp_path: Path) -> None:
    header = "@univariate false\n@targetlabel true\n@data\n"
    classes = header.replace("@targetlabel true", "@classLabel true 1 2")
    write(tmp_path, f"{header}1,2:1\n1,3:2\n", f"{classes}1,2:1\n", suffix="ts")
    with pytest.raises(ValueError, match=r"Toy_TRAIN.ts has targets for labels, Toy_TEST.ts classes"):
        load("ucr:Toy", tmp_path)
    write(tmp_path, f"{classes}1,2:1\n1,3:2\n1,4:1\n", f"{classes}1,2:3,4:1\n", suffix="ts")
    with pytest.raises(ValueError, match=r"Toy_TRAIN.ts has 1 channel\(s\), Toy_TEST.ts 2"):
        load("ucr:Toy", tmp_path)


def test_regression(tmp_path: Path) -> None:
    header = "@univariate true\n@targetlabel true\n@data\n"
    rows = "".join(f"{i},{i + 1}:{i / 2}\n" for i in range(10))
    task = load("ucr:Toy", write(tmp_path, header + rows, header + "1,9:2.5\n", suffix="ts"))
    assert (task.spec.problem_type, task.spec.metric, task.spec.labels, task.spec.num_labels) == (
        "regression",
        "rmse",
        None,
        1,
    )
    assert task.sizes == {"train": 8, "validation": 2, "test": 1}
    assert sorted(all_ids(task)) == list(range(11))
    train = task.splits["train"]["label"][:]
    assert train.dtype == np.float32
    assert task.spec.chance == pytest.approx(abs(train.mean() - 2.5))
    write(tmp_path, header + "1,2:3\n2,2:3\n", header + "1,9:2.5\n", suffix="ts")
    with pytest.raises(ValueError, match=r"Toy_TRAIN.ts has the single target 3;"):
        load("ucr:Toy", tmp_path)
    write(tmp_path, header + "1,2:3\n2,2:x\n", header + "1,9:2.5\n", suffix="ts")
    with pytest.raises(ValueError, match=r"Toy_TRAIN.ts, row 5: the target 'x' is no finite number"):
        load("ucr:Toy", tmp_path)


@shared
@pytest.mark.parametrize("suffix", ["ts", "txt"])
def test_gunpoint_is_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    for part in ("TRAIN", "TEST"):
        file_name = f"GunPoint_{part}.{suffix}"
        shutil.copy(SHARED / "ucr" / "GunPoint" / file_name, tmp_path / file_name)
    task, shipped = load("ucr:GunPoint", tmp_path), load("ucr:GunPoint")
    assert task.spec.labels == shipped.spec.labels
    for split in shipped.splits:
        for column in ("values", "label", "example_id"):
            found, expected = task.splits[split][column][:], shipped.splits[split][column][:]
            # The older archive has one digit less.
            np.testing.assert_allclose(found, expected, atol=1e-6 if suffix == "txt" else 0, rtol=0)


@shared
def test_1nn_on_italy_power_demand() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    splits = load("ucr:ItalyPowerDemand", SHARED / "ucr").splits
    inputs = {name: split["values"][:][..., 0] for name, split in splits.items()}
    model = KNeighborsClassifier(1).fit(
        np.concatenate([inputs["train"], inputs["validation"]]),
        np.concatenate([splits["train"]["label"][:], splits["validation"]["label"][:]]),
    )
    assert model.score(inputs["test"], splits["test"]["label"][:]) == pytest.approx(0.9553, abs=5e-5)


@shared
@pytest.mark.parametrize(
    ("name", "sizes", "channels", "lengths", "labels"),
    [
        ("JapaneseVowels", (216, 54, 370), 12, (7, 29), tuple("123456789")),
        ("BasicMotions", (32, 8, 40), 6, (100, 100), ("Badminton", "Running", "Standing", "Walking")),
        ("Covid3Month", (112, 28, 61), 1, (84, 84), None),
    ],
)
def test_real_sets(name: str, sizes: tuple, channels: int, lengths: tuple, labels: tuple | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = load(f"ucr:{name}", SHARED / "ts")
    assert tuple(task.sizes.values()) == sizes
    assert (task.spec.num_channels, task.spec.labels, task.spec.length) == (channels, labels, lengths[1])
    found = [row["values"] for split in task.splits.values() for row in split]
    assert {len(series) for series in found} >= set(lengths)
    assert all(series.shape[1] == channels and series.dtype == np.float32 for series in found)
    assert sorted(all_ids(task)) == list(range(sum(sizes)))
