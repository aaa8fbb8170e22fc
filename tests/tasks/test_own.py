"""`own`: every form of a user's data, their splits and labels, and plain baselines on real sets."""

from __future__ import annotations

import gzip
import json
import warnings
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverscratch.tasks import Task
from neverscratch.tasks.own import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")


def wide(path: Path, rows: int = 30, steps: int = 4, labels: tuple[str, ...] = ("a", "b"), offset: int = 0) -> Path:
    """A wide CSV whose step s of row r is r + s / 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join([*(f"p{step}" for step in range(steps)), "label"])]
    for row in range(offset, offset + rows):
        lines.append(",".join([*(f"{row + step / 10}" for step in range(steps)), labels[row % len(labels)]]))
    path.write_text("\n".join(lines) + "\n")
    return path


def all_ids(task: Task) -> list[int]:
    return [int(item) for split in task.splits.values() for item in split["example_id"][:]]


def rows(task: Task) -> dict[int, tuple[Any, Any]]:
    """example_id -> (input, label name or target) over all splits."""
    found = {}
    for split in task.splits.values():
        for row in split:
            label = row["label"] if task.spec.labels is None else task.spec.labels[int(row["label"])]
            found[int(row["example_id"])] = (row[task.spec.modality], label)
    return found


def wav(path: Path, samples: np.ndarray, rate: int = 8000, channels: int = 1, width: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def test_wide_csv(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load(data=wide(tmp_path / "x.csv"))
    assert task.sizes == {"train": 21, "validation": 3, "test": 6}
    assert sorted(all_ids(task)) == list(range(30))
    assert (task.spec.modality, task.spec.length, task.spec.num_channels) == ("values", 4, 1)
    assert task.spec.labels == ("a", "b") and task.spec.chance == 0.5 and task.spec.metric == "accuracy"
    first = task.splits["train"][0]
    assert first["values"].shape == (4, 1) and first["values"].dtype == np.float32
    for index, (values, label) in rows(task).items():
        np.testing.assert_allclose(values[:, 0], index + np.arange(4) / 10, rtol=1e-6)
        assert label == "ab"[index % 2]
    assert "holdout_seed=0" in task.spec.notes
    assert task.options == {"data": str(tmp_path / "x.csv"), "problem": "classification", "holdout_seed": 0}
    assert np.bincount(task.splits["test"]["label"][:]).tolist() == [3, 3]


def test_what_is_held_out_is_fixed_for_ever(tmp_path: Path) -> None:
    path = wide(tmp_path / "x.csv")
    first, again, other = load(data=path), load(data=path), load(data=path, holdout_seed=1)
    assert first.splits["test"]["example_id"][:].tolist() == [0, 1, 4, 10, 13, 27]
    assert first.splits["validation"]["example_id"][:].tolist() == [5, 9, 28]
    assert again.splits["test"]["example_id"][:].tolist() == first.splits["test"]["example_id"][:].tolist()
    assert other.splits["test"]["example_id"][:].tolist() != first.splits["test"]["example_id"][:].tolist()


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("Training", "validation", "testing"), ("x_train", "x_dev", "x_test")]
)
@pytest.mark.parametrize("inside", [False, True])
def test_parts_by_name(tmp_path: Path, names: tuple[str, str, str], inside: bool) -> None:
    for part, (name, size) in enumerate(zip(names, (8, 4, 6), strict=True)):
        folder = name.removeprefix("x_")
        wide(tmp_path / folder / "data.csv" if inside else tmp_path / f"{name}.csv", size, offset=100 * part)
    task = load(data=tmp_path)
    assert task.sizes == {"train": 8, "validation": 4, "test": 6}
    assert task.splits["test"]["values"][:][0, 0, 0] == 200
    assert sorted(all_ids(task)) == list(range(18)) and "as given" in task.spec.notes
    assert "holdout_seed" not in task.options


def test_only_what_is_missing_is_held_out(tmp_path: Path) -> None:
    wide(tmp_path / "train.csv", 20)
    wide(tmp_path / "test.csv", 6, offset=100)
    task = load(data=tmp_path)
    assert task.sizes == {"train": 18, "validation": 2, "test": 6}
    assert task.splits["test"]["example_id"][:].tolist() == list(range(20, 26))
    with pytest.raises(FileNotFoundError, match="but no file named train"):
        (tmp_path / "train.csv").unlink()
        load(data=tmp_path)


def test_a_column_that_says_the_part(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    words = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    path.write_text("v,split,label\n" + "".join(f"{i},{word},{'ab'[i % 2]}\n" for i, word in enumerate(words)))
    task = load(data=path)
    assert {part: split["example_id"][:].tolist() for part, split in task.splits.items()} == {
        "train": [0, 1, 2, 3],
        "validation": [4, 5],
        "test": [6, 7],
    }
    assert task.spec.length == 1
    path.write_text(path.read_text().replace("split", "fold"))
    assert load(data=path, split="fold").sizes == {"train": 4, "validation": 2, "test": 2}
    path.write_text(path.read_text().replace("val", "holdout"))
    with pytest.raises(ValueError, match="x.csv, row 5, column 'fold': 'holdout' names no part; write train"):
        load(data=path, split="fold")


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_never_divided(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.csv"
    random = np.random.RandomState(seed)
    people = random.randint(0, 25, 200)
    lines = [f"{i},{i % 7},p{people[i]},{'ab'[i % 2]}\n" for i in range(200)]
    path.write_text("v,w,patient,label\n" + "".join(lines))
    task = load(data=path, group="patient", input="v,w", holdout_seed=seed)
    sides = {part: {people[i] for i in split["example_id"][:]} for part, split in task.splits.items()}
    assert not sides["train"] & sides["test"] and not sides["train"] & sides["validation"]
    assert not sides["validation"] & sides["test"]
    assert 25 <= task.sizes["test"] <= 55 and 8 <= task.sizes["validation"] <= 35
    assert "whole groups" in task.spec.notes
    with pytest.raises(ValueError, match="2 group.s. cannot be divided into train, test, validation without"):
        path.write_text("v,patient,label\n" + "".join(f"{i},p{i % 2},{'ab'[i % 2]}\n" for i in range(9)))
        load(data=path, group="patient")


def test_groups_of_given_parts_are_checked(tmp_path: Path) -> None:
    for name, who in (("train", "xy"), ("val", "zz"), ("test", "yw")):
        (tmp_path / f"{name}.csv").write_text(f"v,who,label\n{len(name)}1,{who[0]},a\n{len(name)}2,{who[1]},b\n")
    with pytest.raises(ValueError, match="1 group.s. are in more than one part, among them 'y'"):
        load(data=tmp_path, group="who")


@pytest.mark.parametrize("sign", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark(tmp_path: Path, sign: str) -> None:
    path = wide(tmp_path / "x.csv")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_text().replace(",", sign).replace("\n", "\r\n").encode())
    task = load(data=path)
    assert task.spec.length == 4 and task.spec.labels == ("a", "b")


def test_columns_keep_their_order_and_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,b,label,a,age,note\n" + "".join(f"{i},1,{i % 2},2,{i},n\n" for i in range(12)))
    with pytest.raises(ValueError, match="more than one column may be the input: id .number., b .number."):
        load(data=path)
    with pytest.warns(UserWarning, match="inputs of validation and test are also in an earlier part"):
        assert load(data=path, input="b,a").splits["train"][0]["values"].ravel().tolist() == [1, 2]
        assert load(data=path, input=["a", "b"]).splits["train"][0]["values"].ravel().tolist() == [2, 1]
    assert load(data=path, input="a*").spec.length == 2
    path.write_text("id,b,label\n" + "".join(f"{i},{i / 2},{i % 2}\n" for i in range(12)))
    task = load(data=path)
    assert (
        task.spec.length == 1
        and "Column 'id' is left out, as its name says that it counts the rows." in task.spec.notes
    )


def test_long_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = []
    for series in range(12):
        for step in reversed(range(3 + series % 2)):
            lines.append(f"s{series},{step},{series},{series + step / 10},{'ab'[series % 2]}\n")
    path.write_text("who,when,v1,v2,label\n" + "".join(lines))
    task = load(data=path, id="who", time="when", input="v1,v2")
    assert sum(task.sizes.values()) == 12 and task.spec.num_channels == 2 and task.spec.length == 4
    for index, (values, label) in rows(task).items():
        assert values.shape == (3 + index % 2, 2) and label == "ab"[index % 2]
        np.testing.assert_allclose(values[:, 1], index + np.arange(3 + index % 2) / 10, rtol=1e-6)
    # Rows of a series may stand anywhere, and times be dates.
    days = ["2024-01-05", "2024-01-03", "2024-01-04"]
    mixed = [f"{day},s{i},{i + day / 10},{'ab'[i % 2]}\n" for day in range(3) for i in range(12)]
    for day, date in enumerate(days):
        mixed = [line.replace(f"{day},", f"{date},", 1) if line.startswith(f"{day},") else line for line in mixed]
    path.write_text("when,who,v,label\n" + "".join(mixed))
    values, _ = rows(load(data=path, id="who", time="when", input="v"))[4]
    np.testing.assert_allclose(values.ravel(), [4.1, 4.2, 4.0], rtol=1e-6)


def test_long_tables_that_contradict_themselves(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def refuse(lines: str, message: str, **options: Any) -> None:
        path.write_text("id,t,v,label\n" + lines)
        with pytest.raises(ValueError) as error:
            load(data=path, id="id", time="t", input="v", **options)
        assert message in str(error.value)

    refuse("1,0,5,a\n1,1,6,a\n1,0,7,a\n2,0,1,b\n", "row 3: id '1' has time 0 more than once; keep one row")
    refuse("1,0,5,a\n1,1,6,b\n", "x.csv, id '1': column 'label' holds 'a' and 'b'; it must be the same")
    refuse("1,0,5,a\n,1,6,b\n", "x.csv, row 2: the id (id) is missing")
    refuse("1,,5,a\n1,1,6,a\n", "x.csv, row 1: the time (t) is missing")
    refuse("1,soon,5,a\n1,late,6,a\n", "column 't' holds texts such as 'soon'; write times as numbers")
    refuse("1,0,5,a\n1,1,,a\n2,0,3,b\n", "x.csv, id '1', column 'v (step 2)': a missing value (NaN)")
    refuse("1,0,5,a\n1,1,x,a\n2,0,3,b\n", "x.csv, row 2, column 'v': 'x' is not a number")
    with pytest.raises(ValueError, match="name that of the series in the option id, too"):
        load(data=path, time="t", input="v")


def records(count: int = 24) -> list[dict[str, Any]]:
    return [{"series": [[i, s] for s in range(2 + i % 3)], "kind": "xyz"[i % 3], "n": i} for i in range(count)]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "jsonl.gz"])
def test_lists_of_unequal_length_with_channels(tmp_path: Path, form: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"x.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(records()), path)
    else:
        text = "\n".join(json.dumps(record) for record in records())
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    task = load(data=path, input="series", label="kind")
    assert task.spec.num_channels == 2 and task.spec.length == 4 and "Lengths 2 to 4." in task.spec.notes
    for index, (values, label) in rows(task).items():
        assert values.shape == (2 + index % 3, 2) and (values[:, 0] == index).all() and label == "xyz"[index % 3]


def test_lists_as_channels_fixed_lists_and_words(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    table = {
        "u": pa.array([[i, 1.5] for i in range(12)], pa.list_(pa.float32(), 2)),
        "v": [[i, 2] for i in range(12)],
        "words": [["(", f"w{i}"] for i in range(12)],
        "label": pa.array(["a", "b"] * 6).dictionary_encode(),
    }
    pq.write_table(pa.table(table), path)
    task = load(data=path, input="u,v")
    values, label = rows(task)[3]
    assert values.tolist() == [[3, 3], [1.5, 2]] and label == "b"
    symbols = load(data=path, input="words")
    assert (symbols.spec.modality, symbols.spec.unit) == ("tokens", "symbols") and rows(symbols)[5][0] == ["(", "w5"]


@pytest.mark.parametrize("form", ["folder", "parts", "npz"])
def test_arrays(tmp_path: Path, form: str) -> None:
    x, y = np.arange(60.0).reshape(15, 2, 2), np.array(["-1", "1", "1"] * 5)
    if form == "folder":
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y.astype(int))
    elif form == "parts":
        for part, cut in (("train", slice(0, 9)), ("valid", slice(9, 12)), ("test", slice(12, 15))):
            np.save(tmp_path / f"{part}x.npy", x[cut])
            np.save(tmp_path / f"{part}y.npy", y[cut].astype(int))
    else:
        np.savez(tmp_path / "d.npz", X=x, y=y, groups=np.arange(15) // 2)
    task = load(data=tmp_path / "d.npz" if form == "npz" else tmp_path)
    assert task.spec.labels == ("-1", "1") and task.spec.num_channels == 2
    assert sorted(all_ids(task)) == list(range(15))
    assert rows(task)[4][0].tolist() == x[4].tolist()
    if form == "parts":
        assert task.sizes == {"train": 9, "validation": 3, "test": 3}
    if form == "npz":
        ids = {part: {i // 2 for i in split["example_id"][:].tolist()} for part, split in task.splits.items()}
        assert not ids["train"] & (ids["validation"] | ids["test"])


@pytest.mark.parametrize("inside", [False, True])
def test_text_folders(tmp_path: Path, inside: bool) -> None:
    for part in ("train", "val", "test") if inside else (".",):
        for label in ("pos", "neg"):
            for index in range(2 if inside else 8):
                path = tmp_path / part / label / f"{index}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{part} {label} {index} é\n", encoding="utf-8")
    task = load(data=tmp_path, unit="characters")
    assert task.spec.labels == ("neg", "pos") and task.spec.unit == "characters"
    assert rows(task)[0] == (f"{'train' if inside else '.'} neg 0 é\n", "neg")
    assert sum(task.sizes.values()) == (12 if inside else 16)
    assert task.spec.length == max(len(text) for text, _ in rows(task).values())


def test_sound_folders(tmp_path: Path) -> None:
    for index in range(12):
        samples = np.arange(index, index + 20 + index, dtype="<i2")
        wav(tmp_path / ("yes" if index % 2 else "no") / f"{index:02d}.wav", samples)
    wav(tmp_path / "_background_noise_" / "n.wav", np.zeros(99, dtype="<i2"))
    task = load(data=tmp_path)
    assert (task.spec.modality, task.spec.sampling_rate, task.spec.labels) == ("audio", 8000, ("no", "yes"))
    assert task.spec.length == 31 and "Left out: _background_noise_." in task.spec.notes
    sound, label = rows(task)[6]
    assert sound.dtype == np.float32 and label == "yes"
    np.testing.assert_array_equal(sound[:, 0] * 2**15, np.arange(1, 22))
    wav(tmp_path / "no" / "00.wav", np.array([10, 20, 30, 50], dtype="<i2"), channels=2)
    task = load(data=tmp_path)
    assert "1 recordings had several channels, which are averaged." in task.spec.notes
    assert (rows(task)[0][0] * 2**15).ravel().tolist() == [15, 40]
    wav(tmp_path / "yes" / "01.wav", np.zeros(9, dtype="<i2"), rate=16000)
    with pytest.raises(ValueError, match="yes/01.wav has 16000 Hz where the first file has 8000 Hz; resample it"):
        load(data=tmp_path)


def test_image_folders(tmp_path: Path) -> None:
    from PIL import Image

    for index in range(10):
        path = tmp_path / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((3, 5), index, dtype=np.uint8)).save(path)
    task = load(data=tmp_path)
    assert (task.spec.modality, task.spec.num_channels, task.spec.length) == ("image", 1, 15)
    assert rows(task)[1][0].tolist() == np.full((3, 5), 2).tolist()
    Image.new("L", (4, 4)).save(tmp_path / "b" / "9.png")
    with pytest.raises(ValueError, match=r"b/9.png has shape \(4, 4\) where the first image has \(3, 5\)"):
        load(data=tmp_path)
    Image.new("I;16", (5, 3)).save(tmp_path / "b" / "9.png")
    with pytest.raises(ValueError, match="more than 8 bits a pixel"):
        load(data=tmp_path)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["up", "down"], ("down", "up")),
        (["-1", "1"], ("-1", "1")),
        (["10", "2", "7"], ("2", "7", "10")),
        (["1.0", "2.0000e+00"], ("1", "2")),
        (["007", "7"], ("007", "7")),
        (["NA", "null"], ("NA", "null")),
        (["True", "False"], ("False", "True")),
        (["é, x", 'say "y"'], ('say "y"', "é, x")),
    ],
)
def test_labels_come_back(tmp_path: Path, written: list[str], expected: tuple[str, ...]) -> None:
    path = tmp_path / "x.csv"
    quoted = ['"' + label.replace('"', '""') + '"' for label in written]
    path.write_text("v,label\n" + "".join(f"{i},{quoted[i % len(quoted)]}\n" for i in range(12 * len(quoted))), "utf-8")
    assert load(data=path).spec.labels == expected


def test_numbers_are_classes_or_targets(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def with_labels(labels: list[Any], **options: Any) -> Task:
        path.write_text("v,target\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
        return load(data=path, **options)

    halves = with_labels([i / 2 for i in range(40)])
    assert halves.spec.labels is None and halves.spec.metric == "rmse" and not halves.spec.greater_is_better
    assert "so this is regression (problem=classification makes them classes)" in halves.spec.notes
    assert halves.splits["train"].features["label"].dtype == "float32"
    targets = halves.splits["test"]["label"][:]
    guess = halves.splits["train"]["label"][:].mean()
    assert halves.spec.chance == pytest.approx(np.sqrt(np.mean((targets - guess) ** 2)), rel=1e-5)
    assert with_labels([i % 21 for i in range(100)]).spec.problem_type == "regression"
    assert with_labels([i % 20 for i in range(100)]).spec.problem_type == "single_label_classification"
    assert with_labels([i % 2 for i in range(20)], problem="regression", metric="r2").spec.chance == 0.0
    assert with_labels([i % 2 + 0.5 for i in range(20)], problem="classification").spec.labels == ("0.5", "1.5")
    for options, message in (
        ({"metric": "rmse"}, "metric='rmse' does not fit single_label_classification; use accuracy or f1_macro"),
        ({"problem": "regression", "metric": "accuracy"}, "metric='accuracy' does not fit regression"),
    ):
        with pytest.raises(ValueError, match=message):
            with_labels([i % 2 for i in range(20)], **options)
    with pytest.raises(ValueError, match="The label 'x' is no number, as problem='regression' needs"):
        with_labels([1, 2, "x", 4], problem="regression")
    message = "The label 'inf' stands among numbers such as 0.5; correct it or remove its row"
    with pytest.raises(ValueError, match=message):
        with_labels([*(i + 0.5 for i in range(30)), "inf"])
    with pytest.raises(ValueError, match="Every target is 3; there is nothing to predict"):
        with_labels([3] * 9, problem="regression")
    with pytest.raises(ValueError, match="a label of its own"):
        with_labels([f"word{i}" for i in range(9)])


def test_several_labels(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"v": [i], "label": [["a"], ["a", "b"], []][i % 3]}) + "\n" for i in range(12)))
    task = load(data=path)
    assert task.spec.problem_type == "multi_label_classification" and task.spec.labels == ("a", "b")
    index = task.splits["train"]["example_id"][:].tolist().index(4)
    assert task.splits["train"]["label"][:][index].tolist() == [1, 1]
    csv = tmp_path / "x.csv"
    csv.write_text("v,label\n" + "".join(f"{i},{['a', 'a; b', 'b'][i % 3]}\n" for i in range(12)))
    assert load(data=csv, problem="multi_label").spec.labels == ("a", "b")
    assert load(data=csv).spec.labels == ("a", "a; b", "b")
    csv.write_text(csv.read_text().replace(";", "|"))
    assert load(data=csv, problem="multi_label", separator="|").spec.labels == ("a", "b")
    with pytest.raises(ValueError, match="problem='regression' cannot take"):
        load(data=path, problem="regression")


def test_a_set_of_the_hub_only_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(path: str, **options: Any) -> datasets.DatasetDict:
        asked.append((path, options))
        if path != "org/reviews":
            raise ConnectionError("no network\nlong trace")
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
        )
        parts = {
            part: datasets.Dataset.from_dict(
                {"text": [f"{part} {i}" for i in range(8)], "label": [i % 2 for i in range(8)]}, features=features
            )
            for part in ("train", "test", "unsupervised")
        }
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    task = load(data="org/reviews", subset="plain")
    assert task.spec.labels == ("neg", "pos") and task.sizes == {"train": 7, "validation": 1, "test": 8}
    assert "Part unsupervised is left out." in task.spec.notes and asked == [("org/reviews", {"name": "plain"})]
    wide(tmp_path / "org" / "reviews" / "data.csv")
    assert load(data="org/reviews").spec.modality == "values" and len(asked) == 1
    with pytest.raises(FileNotFoundError, match="cannot be loaded from the Hub either .ConnectionError: no network."):
        load(data="org/other")
    for missing in ("nothing.csv", "org/file.csv", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="is no file or folder; give a file"):
            load(data=missing)
    assert len(asked) == 2


def test_parquet_of_datasets_with_names_and_arrays(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"v": datasets.Array2D((3, 2), "float32"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    values = np.random.RandomState(0).randn(20, 3, 2).astype(np.float32)
    made = datasets.Dataset.from_dict({"v": list(values), "label": [0, 1] * 10}, features=features)
    made.to_parquet(str(tmp_path / "x.parquet"))
    task = load(data=tmp_path / "x.parquet")
    assert task.spec.labels == ("no", "yes") and task.spec.num_channels == 2
    for index, (series, label) in rows(task).items():
        np.testing.assert_array_equal(series, values[index])
        assert label == ("no", "yes")[index % 2]


def test_large_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))
    path = wide(tmp_path / "x.csv", rows=1200)
    at_once = load(data=path)
    monkeypatch.setattr("neverscratch.tasks.own.SMALL_BYTES", 0)
    streamed = load(data=path)
    assert streamed.sizes == at_once.sizes == {"train": 840, "validation": 120, "test": 240}
    for part, split in at_once.splits.items():
        assert streamed.splits[part].features == split.features
        for name in split.column_names:
            np.testing.assert_array_equal(streamed.splits[part][name][:], split[name][:])
    path.write_text(path.read_text().replace("1100.1", "oops"))
    with pytest.raises(ValueError, match="x.csv, row 1101, column 'p1': 'oops' is not a number"):
        load(data=path)


def _make(form: str, folder: Path) -> dict[str, Any]:
    """Forty examples in one of the forms; the options to load them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.RandomState(0)
    count = 40
    labels = ["ab"[i % 2] for i in range(count)]
    if form in ("texts", "sounds", "images"):
        _make_files(form, folder, labels)
        return {"data": folder}
    if form == "npy":
        np.save(folder / "x.npy", random.randn(count, 5, 2))
        np.save(folder / "y.npy", np.arange(count) % 2)
        return {"data": folder}
    if form == "long":
        lines = [f"{i},{step},{random.randn()},{labels[i]}\n" for step in range(3) for i in range(count)]
        (folder / "x.csv").write_text("id,t,v,label\n" + "".join(lines))
        return {"data": folder / "x.csv", "id": "id", "time": "t"}
    if form == "several":
        written = [{"v": random.randn(2 + i % 2).tolist(), "label": [["a"], ["a", "b"]][i % 2]} for i in range(count)]
        (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
        return {"data": folder / "x.jsonl"}
    columns: dict[str, Any] = {"v": [random.randn(3 + i % 2, 2).tolist() for i in range(count)]}
    options: dict[str, Any] = {"data": folder / "x.parquet"}
    if form == "words":
        columns = {"v": [["(", f"w{i}", ")"] for i in range(count)]}
    elif form == "samples":
        columns = {"v": [random.randint(-99, 99, 4 + i % 2).tolist() for i in range(count)]}
        options["sampling_rate"] = 8000
    pq.write_table(pa.table({**columns, "label": labels}), folder / "x.parquet")
    return options


def _make_files(form: str, folder: Path, labels: list[str]) -> None:
    from PIL import Image

    random = np.random.RandomState(0)
    for index, label in enumerate(labels):
        path = folder / label / f"{index:02d}"
        path.parent.mkdir(exist_ok=True)
        if form == "texts":
            path.with_suffix(".txt").write_text(f"text {index}")
        elif form == "sounds":
            wav(path.with_suffix(".wav"), random.randint(-99, 99, 5 + index % 3).astype("<i2"))
        else:
            Image.fromarray(random.randint(0, 255, (3, 2, 3)).astype(np.uint8)).save(path.with_suffix(".png"))


@pytest.mark.parametrize(
    "form", ["texts", "sounds", "images", "npy", "long", "several", "lists", "words", "samples", "hub"]
)
def test_blocks_and_at_once_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    import datasets

    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    options = _make("lists" if form == "hub" else form, folder)
    if form == "hub":
        read = datasets.Dataset.from_parquet(str(options["data"]), cache_dir=str(tmp_path / "hub"))
        monkeypatch.setattr(datasets, "load_dataset", lambda path, name: datasets.DatasetDict(train=read))
        options["data"] = "org/name"
    at_once = load(**options)
    monkeypatch.setattr("neverscratch.tasks.own.SMALL_BYTES", 0)
    streamed, again = load(**options), load(**options)
    assert at_once.sizes == streamed.sizes == {"train": 28, "validation": 4, "test": 8}
    assert at_once.spec == streamed.spec == again.spec
    for part, split in at_once.splits.items():
        for row, other, third in zip(split, streamed.splits[part], again.splits[part], strict=True):
            for name in split.column_names:
                np.testing.assert_array_equal(row[name], other[name])
                np.testing.assert_array_equal(row[name], third[name])


@shared
def test_digits_and_their_baselines() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    tasks = {form: load(data=SHARED / "digits", format=form) for form in ("csv", "parquet")}
    for task in tasks.values():
        assert task.sizes == {"train": 1257, "validation": 180, "test": 360} and task.spec.length == 64
    assert tasks["csv"].spec.labels == tuple(f"digit_{i}" for i in range(10))
    assert tasks["parquet"].spec.labels == tuple(map(str, range(10)))
    for part, split in tasks["csv"].splits.items():
        np.testing.assert_array_equal(split["values"][:], tasks["parquet"].splits[part]["values"][:])
        np.testing.assert_array_equal(split["label"][:], tasks["parquet"].splits[part]["label"][:])
    x = {part: split["values"][:][..., 0] for part, split in task.splits.items()}
    y = {part: split["label"][:] for part, split in task.splits.items()}
    assert KNeighborsClassifier(1).fit(x["train"], y["train"]).score(x["test"], y["test"]) == pytest.approx(
        0.978, abs=6e-3
    )
    model = LogisticRegression(max_iter=2000).fit(x["train"] / 16, y["train"])
    assert model.score(x["test"] / 16, y["test"]) == pytest.approx(0.967, abs=1e-2)


@shared
def test_texts_and_their_baselines() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    sections = load(data=SHARED / "debian_sections")
    assert sections.sizes == {"train": 3200, "validation": 400, "test": 400} and len(sections.spec.labels or ()) == 8
    pages = load(data=SHARED / "manpages", input="text")
    assert pages.sizes == {"train": 372, "validation": 53, "test": 107}
    assert pages.spec.length == 95_654 and pages.spec.labels == ("0", "1")
    for task, expected in ((sections, 0.875), (pages, 0.953)):
        model = make_pipeline(
            TfidfVectorizer(analyzer="char", ngram_range=(1, 4), sublinear_tf=True),
            LogisticRegression(C=10, max_iter=500),
        )
        x = {part: [text[:4096] for text in split["text"][:]] for part, split in task.splits.items()}
        model.fit(x["train"], task.splits["train"]["label"][:])
        assert model.score(x["test"], task.splits["test"]["label"][:]) > expected - 0.03


@shared
def test_sounds() -> None:
    import pyarrow.parquet as pq

    calls = load(data=SHARED / "spoken_language", input="audio", label="language", sampling_rate=8000)
    assert calls.sizes == {"train": 154, "validation": 22, "test": 44} and calls.spec.labels == ("en", "fr")
    assert (calls.spec.modality, calls.spec.sampling_rate, calls.spec.length) == ("audio", 8000, 8000)
    written = pq.read_table(SHARED / "spoken_language" / "test.parquet")["audio"].to_pylist()
    for sound, samples in zip(calls.splits["test"]["audio"][:], written, strict=True):
        assert sound.dtype == np.float32
        np.testing.assert_array_equal(sound[:, 0] * 2**15, samples)
    series = load(data=SHARED / "spoken_language", input="audio", label="language")
    assert series.spec.modality == "values" and series.spec.num_channels == 1
    words = load(data=SHARED / "speech_commands")
    assert words.sizes == {"train": 100, "validation": 20, "test": 30} and len(words.spec.labels or ()) == 10
    assert words.spec.sampling_rate == 16000 and words.spec.length == 14_864


@shared
@pytest.mark.parametrize("form", ["tsv", "ts", "txt"])
def test_gunpoint_in_each_format(form: str) -> None:
    task = load(data=SHARED / "ucr" / "GunPoint", format=form)
    assert task.sizes == {"train": 45, "validation": 5, "test": 150} and task.spec.labels == ("1", "2")
    assert _nearest_neighbour(task) == pytest.approx(0.9133, abs=5e-5)


def _nearest_neighbour(task: Task) -> float:
    from sklearn.neighbors import KNeighborsClassifier

    parts = [task.splits[part] for part in ("train", "validation")]
    model = KNeighborsClassifier(1).fit(
        np.concatenate([part["values"][:][..., 0] for part in parts]),
        np.concatenate([part["label"][:] for part in parts]),
    )
    return model.score(task.splits["test"]["values"][:][..., 0], task.splits["test"]["label"][:])


@shared
def test_series_of_the_archives() -> None:
    power = load(data=SHARED / "ucr" / "ItalyPowerDemand")
    assert power.sizes == {"train": 60, "validation": 7, "test": 1029}
    assert _nearest_neighbour(power) == pytest.approx(0.9553, abs=5e-5)
    vowels = load(data=SHARED / "ts" / "JapaneseVowels")
    assert sum(vowels.sizes.values()) == 640 and vowels.sizes["test"] == 370
    assert (vowels.spec.num_channels, vowels.spec.length, vowels.spec.num_labels) == (12, 29, 9)
    motions = load(data=SHARED / "ts" / "BasicMotions")
    assert motions.spec.labels == ("Badminton", "Running", "Standing", "Walking")
    assert (motions.spec.num_channels, motions.spec.length, motions.sizes["test"]) == (6, 100, 40)
    with pytest.warns(UserWarning, match="3 inputs of validation and test are also in an earlier part"):
        covid = load(data=SHARED / "ts" / "Covid3Month")
    assert covid.spec.labels is None and covid.spec.metric == "rmse" and covid.sizes["test"] == 61
    heart = load(data=SHARED / "bidmc_like" / "HR")
    assert heart.spec.problem_type == "regression" and heart.spec.num_channels == 2 and heart.spec.length == 4000
    every = np.concatenate([heart.splits[part]["label"][:] for part in ("train", "validation")])
    test = heart.splits["test"]["label"][:]
    assert np.sqrt(np.mean((test - every.mean()) ** 2)) == pytest.approx(3.94, abs=0.05)


def test_series_files_with_gaps_and_headers(tmp_path: Path) -> None:
    lines = [f"{i % 2}\t{i}\t{i + 1}\t{'NaN' if i == 3 else i}" for i in range(20)]
    (tmp_path / "x.tsv").write_text("\n".join(lines) + "\n")
    task = load(data=tmp_path / "x.tsv")
    assert rows(task)[3][0].ravel().tolist() == [3, 4] and "1 series lost NaN at their end." in task.spec.notes
    lines[5] = "1\t5\tNaN\t9"
    (tmp_path / "x.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="x.tsv, row 6, value 2: NaN inside the series"):
        load(data=tmp_path / "x.tsv")
    task = load(data=tmp_path / "x.tsv", missing="interpolate")
    assert rows(task)[5][0].ravel().tolist() == [5, 7, 9] and "1 series had NaN" in task.spec.notes
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "".join(f"some words {i}\t{'ab'[i % 2]}\n" for i in range(20)))
    assert load(data=tmp_path / "x.tsv").spec.modality == "text"
