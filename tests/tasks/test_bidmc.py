"""`bidmc-*`: the archive's split, the pooled one from both layouts, and files that cannot be used."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import Task
from neverscratch.tasks.bidmc import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")
HEADER = "# a comment\n@problemName BIDMC32HR\n@univariate false\n@dimensions 2\n@targetlabel true\n@data\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def case(number: float) -> str:
    return f"{number},1,2:{number},3,4:{number + 0.5}\n"


def write_ts(folder: Path, train: str | None = None, test: str | None = None, code: str = "HR") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    train = "".join(case(i) for i in range(20)) if train is None else train
    test = "".join(case(i) for i in range(20, 30)) if test is None else test
    (folder / f"BIDMC32{code}_TRAIN.ts").write_text(HEADER + train)
    (folder / f"BIDMC32{code}_TEST.ts").write_text(HEADER + test)
    return folder


def write_arrays(folder: Path, code: str = "HR") -> Path:
    place = folder / code / "reshuffle"
    place.mkdir(parents=True)
    for part, start, num in (("train", 0, 14), ("valid", 14, 3), ("test", 17, 3)):
        x = np.arange(start, start + num)[:, None, None] + np.zeros((num, 5, 2))
        np.save(place / f"{part}x.npy", x)
        np.save(place / f"{part}y.npy", x[:, 0, 0] + 0.5)
    return folder


def all_ids(task: Task) -> list[int]:
    return [int(i) for split in task.splits.values() for i in split["example_id"][:]]


@pytest.mark.parametrize("place", ["", "HR", "BIDMC32HR"])
def test_the_archive(tmp_path: Path, place: str) -> None:
    write_ts(tmp_path / "data" / place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load("bidmc-hr", tmp_path / "data")
    assert task.sizes == {"train": 16, "validation": 4, "test": 10}
    assert sorted(all_ids(task)) == list(range(30))
    # Blocks of neighbours, always the same.
    ids = task.splits["validation"]["example_id"][:].tolist()
    assert [second - first for first, second in zip(ids[::2], ids[1::2])] == [1, 1]
    assert ids == load("bidmc-hr", tmp_path / "data").splits["validation"]["example_id"][:].tolist()
    row = task.splits["test"][0]
    assert row["values"].tolist() == [[20, 20], [1, 3], [2, 4]] and row["values"].dtype == np.float32
    assert row["label"] == 20.5 and row["example_id"] == 20
    assert (task.spec.problem_type, task.spec.metric, task.spec.num_channels) == ("regression", "rmse", 2)
    train, test = (task.splits[part]["label"][:] for part in ("train", "test"))
    assert train.dtype == np.float32
    assert task.spec.chance == pytest.approx(np.sqrt(np.mean((test - train.mean()) ** 2)))
    assert task.options == {"split": "archive", "missing": "refuse"}


def test_both_files_pooled(tmp_path: Path) -> None:
    write_ts(tmp_path / "RR", code="RR")
    with pytest.warns(UserWarning, match="bidmc-rr: the pooled split has windows of one patient in several parts"):
        task = load("bidmc-rr", tmp_path, split="pooled")
    assert task.sizes == {"train": 21, "validation": 4, "test": 5}
    assert sorted(all_ids(task)) == list(range(30))
    assert all(row["label"] == row["example_id"] + 0.5 for split in task.splits.values() for row in split)


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="pooled"):
        task = load("bidmc-spo2", write_arrays(tmp_path, "SpO2"))
    assert task.sizes == {"train": 14, "validation": 3, "test": 3}
    assert task.splits["test"][0]["values"].tolist() == [[17, 17]] * 5
    assert task.splits["validation"]["label"][:].tolist() == [14.5, 15.5, 16.5]
    assert all_ids(task) == list(range(20))
    assert task.options["split"] == "pooled"
    with pytest.raises(FileNotFoundError, match="BIDMC32SpO2_TRAIN.ts, BIDMC32SpO2_TEST.ts; split='pooled' can read"):
        load("bidmc-spo2", tmp_path, split="archive")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (case(1) * 9 + "1,?,3:1,2,3:4\n" + case(2), "TRAIN.ts, row 16, channel 1, value 2: ? inside the series"),
        (case(1) * 9 + "1,2,3:1,2,3:nan\n", "TRAIN.ts, row 16: the label is missing"),
        (case(1) * 9 + "1,2,3:1,2,3:soon\n", "TRAIN.ts, row 16: the target 'soon' is no finite number"),
        (case(1) * 9 + "1,2:1,2:3\n", "TRAIN.ts, row 16: 2 steps of 2 channels where the first window has 3 of 2"),
        (case(1) * 9 + "1,2,3:1,2\n", "TRAIN.ts, row 16: 1 channels and a label where the header says 2"),
        (case(1) * 9, "TRAIN.ts holds 9 windows; at least 10 are needed."),
        ("", "TRAIN.ts holds no series"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, train: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load("bidmc-hr", write_ts(tmp_path, train))
    assert message in str(error.value)


def test_missing_values_are_filled_in_on_demand(tmp_path: Path) -> None:
    write_ts(tmp_path, test="1,?,3:?,2,3:4\n")
    task = load("bidmc-hr", tmp_path, missing="interpolate")
    assert task.splits["test"][0]["values"].tolist() == [[1, 2], [2, 2], [3, 3]]


def test_unusable_arrays_are_refused(tmp_path: Path) -> None:
    place = write_arrays(tmp_path) / "HR" / "reshuffle"
    good = np.load(place / "validx.npy")
    for bad, message in (
        (np.swapaxes(good, 1, 2), r"validx.npy has shape \(3, 2, 5\); expected \(windows, steps, channels\)"),
        (good[:2], r"validy.npy has shape \(3,\); expected \(2,\), one target a window of validx.npy"),
        (np.where(good == 15, np.nan, good), r"validx.npy, row 1, step 0, channel 0 \(all from 0\): nan"),
        (good[:, :4], "The windows differ in shape"),
    ):
        np.save(place / "validx.npy", bad)
        with pytest.warns(UserWarning), pytest.raises(ValueError, match=message):
            load("bidmc-hr", tmp_path)
    np.save(place / "validx.npy", np.array([{}]), allow_pickle=True)
    with (
        pytest.warns(UserWarning),
        pytest.raises(ValueError, match="validx.npy cannot be read as a .npy file of numbers"),
    ):
        load("bidmc-hr", tmp_path)
    (place / "validx.npy").unlink()
    with pytest.raises(FileNotFoundError, match="for a pooled split HR/reshuffle/validx.npy"):
        load("bidmc-hr", tmp_path)


def test_missing_files_and_options(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="Missing in .*: BIDMC32HR_TRAIN.ts, BIDMC32HR_TEST.ts, or for a pooled"
    ):
        load("bidmc-hr", tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere' is not a folder"):
        load("bidmc-hr", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="split='random' is unknown; use 'archive' or 'pooled'."):
        load("bidmc-hr", tmp_path, split="random")


@shared
def test_plain_baselines_on_a_real_signal() -> None:
    from sklearn.ensemble import RandomForestRegressor

    task = load("bidmc-hr", SHARED / "bidmc_like")
    assert sum(task.sizes.values()) == 54 and task.sizes["test"] == 16
    assert (task.spec.length, task.spec.num_channels) == (4000, 2)
    values, labels = {}, {}
    for part, names in (("train", ("train", "validation")), ("test", ("test",))):
        values[part] = np.concatenate([task.splits[name]["values"][:] for name in names])
        labels[part] = np.concatenate([task.splits[name]["label"][:] for name in names])
    mean = np.sqrt(np.mean((labels["test"] - labels["train"].mean()) ** 2))
    assert mean == pytest.approx(3.94, abs=0.01)
    spectra = {
        part: np.log1p(np.abs(np.fft.rfft(x - x.mean(1, keepdims=True), axis=1))[:, :400].reshape(len(x), -1))
        for part, x in values.items()
    }
    forest = RandomForestRegressor(200, random_state=0).fit(spectra["train"], labels["train"])
    error = np.sqrt(np.mean((forest.predict(spectra["test"]) - labels["test"]) ** 2))
    assert error == pytest.approx(3.07, abs=0.05)
