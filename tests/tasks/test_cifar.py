"""`lra-image` and `scifar`: the three layouts, the split, the conversions, hostile pickles, each bad input."""

import io
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from neverscratch.tasks import Task
from neverscratch.tasks.cifar import (
    BATCHES,
    COLOUR_SCALE,
    ENTRIES,
    GREY_SCALE,
    KNOWN_LABELS,
    PlainUnpickler,
    load,
    load_pickle,
    random_split_order,
)

NAMES = [name for names in BATCHES.values() for name in names]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def pictures(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)


def write_batches(
    folder: Path, per_batch: int = 4, protocol: int = 2, meta: bool = True
) -> tuple[np.ndarray, list[int]]:
    """Six batches as published; all pictures and labels in order."""
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    pixels = pictures(6 * per_batch)
    labels = [row * 7 % 10 for row in range(len(pixels))]
    flat = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    for index, name in enumerate(NAMES):
        rows = slice(index * per_batch, (index + 1) * per_batch)
        batch = {b"data": flat[rows], b"labels": labels[rows], b"batch_label": name.encode(), b"filenames": [b"x.png"]}
        (place / name).write_bytes(pickle.dumps(batch, protocol))
    if meta:
        names = {b"label_names": [f"{name}s".encode() for name in KNOWN_LABELS]}
        (place / "batches.meta").write_bytes(pickle.dumps(names, protocol))
    return pixels, labels


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write_folders(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), per_class: int = 6) -> Path:
    for seed, part in enumerate(("train", "test")):
        for index, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for row, pixels in enumerate(pictures(per_class, seed=10 * seed + index)):
                (folder / part / name / f"{row}.png").write_bytes(png(pixels))
    return folder


def write_parquet(
    folder: Path, labels: tuple[list[Any], list[Any]], column: str = "img", feature: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """A training and a test file; their pictures."""
    import datasets

    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed, (part, values) in enumerate(zip(("train", "test"), labels, strict=True)):
        pixels = pictures(len(values), seed)
        rows = {column: [{"bytes": png(one), "path": None} for one in pixels], "label": values}
        split = datasets.Dataset.from_dict(rows)
        if feature is not None:
            split = split.cast_column("label", feature).cast_column(column, datasets.Image())
        split.to_parquet(str(folder / f"{part}-00000-of-00001.parquet"))
        found.append(pixels)
    return found[0], found[1]


def rows_by_id(task: Task) -> dict[int, tuple[np.ndarray, int]]:
    return {
        int(row["example_id"]): (np.asarray(row["image"]), int(row["label"]))
        for split in task.splits.values()
        for row in split
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_batches_in_colour(tmp_path: Path, protocol: int) -> None:
    pixels, labels = write_batches(tmp_path, protocol=protocol)
    task = load("scifar", tmp_path)
    assert task.sizes == {"train": 18, "validation": 2, "test": 4}
    rows = rows_by_id(task)
    assert sorted(rows) == list(range(24))
    for row, (image, label) in rows.items():
        assert image.shape == (32, 32, 3)
        np.testing.assert_array_equal(image, pixels[row])
        assert label == labels[row]
    assert task.splits["test"]["example_id"][:].tolist() == [20, 21, 22, 23]
    assert task.spec.labels == tuple(f"{name}s" for name in KNOWN_LABELS)
    assert (task.spec.num_channels, task.spec.length, task.spec.scale) == (3, 1024, COLOUR_SCALE)
    assert "S4 code base." in task.spec.notes and len(task.files) == 7


def test_the_validation_part_is_that_of_random_split(tmp_path: Path) -> None:
    import torch

    write_batches(tmp_path, meta=False)
    task = load("lra-image", tmp_path)
    parts = torch.utils.data.random_split(list(range(20)), (18, 2), generator=torch.Generator().manual_seed(42))
    for name, part in zip(("train", "validation"), parts, strict=True):
        assert task.splits[name]["example_id"][:].tolist() == sorted(part)
    assert task.spec.labels == KNOWN_LABELS
    # As torch draws them on every machine.
    assert (
        random_split_order(50_000)[:3].tolist()
        == torch.randperm(50_000, generator=torch.Generator().manual_seed(42))[:3].tolist()
    )


def test_grey_and_levels(tmp_path: Path) -> None:
    pixels, _ = write_batches(tmp_path)
    task = load("lra-image", tmp_path)
    for row, (image, _) in rows_by_id(task).items():
        np.testing.assert_array_equal(image, np.asarray(Image.fromarray(pixels[row]).convert("L")))
    assert (task.spec.num_levels, task.spec.scale, task.options) == (None, GREY_SCALE, {"levels": False})
    levels = load("lra-image", tmp_path / "cifar-10-batches-py", levels=True)
    assert (levels.spec.num_levels, levels.spec.scale, levels.options) == (256, None, {"levels": True})
    with pytest.raises(ValueError, match="levels='yes' is neither true nor false"):
        load("lra-image", tmp_path, levels="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a colour is no level"):
        load("scifar", tmp_path, levels=True)


def test_python_2_batches(tmp_path: Path) -> None:
    """The published batches were written by Python 2: keys are byte strings, numpy's modules have the old names."""
    write_batches(tmp_path)
    expected = pictures(1, seed=9)[0]
    pixels = expected.transpose(2, 0, 1).tobytes()
    # {'data': ndarray, 'labels': [3]} in protocol 2, strings as BINSTRING.
    text = b"T" + len(pixels).to_bytes(4, "little") + pixels
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + text
        + b"tb"
    )
    old = b"\x80\x02}(U\x04data" + array + b"U\x06labels]K\x03au."
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(old)
    test = load("scifar", tmp_path).splits["test"]
    assert len(test) == 1 and int(test[0]["label"]) == 3
    np.testing.assert_array_equal(test[0]["image"], expected)


class Hostile:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("function", [os.system, eval, getattr, np.load, pickle.loads])
def test_hostile_pickles_are_refused(tmp_path: Path, function: Any, protocol: int) -> None:
    write_batches(tmp_path)
    trap = tmp_path / "trap"
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps({"data": Hostile(function, f"touch {trap}"), "labels": [1]}, protocol))
    with pytest.raises(ValueError, match="data_batch_3 is no pickle of plain numpy arrays .it asks for .*can run code"):
        load("scifar", tmp_path)
    assert not trap.exists()


def test_pickles_of_objects_and_codecs_are_refused(tmp_path: Path) -> None:
    import codecs

    path = tmp_path / "batch"
    for value in (
        np.array([object], dtype=object),
        np.zeros(2, dtype=[("a", "O")]),
        Hostile(codecs.encode, "x", "zip"),
    ):
        path.write_bytes(pickle.dumps({"data": value}, 2))
        with pytest.raises(ValueError, match="batch is no pickle of plain numpy arrays"):
            load_pickle(path)
    for array in (np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">i4"), np.zeros((0, 2), dtype=bool)):
        for protocol in (2, 3, 4, 5):
            raw = pickle.dumps({"data": array}, protocol)
            if array.size:
                path.write_bytes(raw)
                np.testing.assert_array_equal(load_pickle(path)["data"], array)
    assert PlainUnpickler(io.BytesIO(pickle.dumps([1, "a", None]))).load() == [1, "a", None]


@pytest.mark.parametrize("place", ["", "data", "plain_text"])
def test_parquet_of_the_hub(tmp_path: Path, place: str) -> None:
    import datasets

    label = datasets.ClassLabel(names=list(reversed(KNOWN_LABELS)))
    train, test = write_parquet(tmp_path / place, ([0, 1] * 6, [1, 0]), feature=label)
    task = load("scifar", tmp_path)
    assert task.sizes == {"train": 10, "validation": 2, "test": 2}
    assert task.spec.labels == tuple(reversed(KNOWN_LABELS))
    for row, (image, number) in rows_by_id(task).items():
        np.testing.assert_array_equal(image, train[row] if row < 12 else test[row - 12])
        assert number == ([0, 1] * 6 + [1, 0])[row]
    assert "other pictures than there" in task.spec.notes


def test_parquet_without_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a", ([3, 1] * 6, [1]), column="image")
    assert load("lra-image", tmp_path / "a").spec.labels == KNOWN_LABELS
    write_parquet(tmp_path / "b", ([100, 20] * 6, [20]))
    assert load("lra-image", tmp_path / "b").spec.labels == ("20", "100")
    write_parquet(tmp_path / "c", (["dog", "cat"] * 6, ["dog"]))
    task = load("lra-image", tmp_path / "c")
    assert task.spec.labels == ("cat", "dog") and task.splits["test"]["label"][:].tolist() == [1]
    write_parquet(tmp_path / "d", (["dog", "cat"] * 6, ["cow"]))
    with pytest.raises(ValueError, match="test-00000-of-00001.parquet: label 'cow' is none of .*: cat, dog"):
        load("lra-image", tmp_path / "d")
    write_parquet(tmp_path / "e", (["dog", "cat"] * 6, ["cat"]), column="picture")
    with pytest.raises(ValueError, match=r"has the columns picture, label; needed are img \(or image\) and label"):
        load("lra-image", tmp_path / "e")
    (tmp_path / "b" / "test-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="test-00000-of-00001.parquet is cut off or no Parquet file"):
        load("lra-image", tmp_path / "b")
    (tmp_path / "b" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"Missing in .*b: test\*\.parquet"):
        load("lra-image", tmp_path / "b")


def test_picture_folders(tmp_path: Path) -> None:
    task = load("scifar", write_folders(tmp_path))
    assert task.spec.labels == ("cat", "dog") and task.sizes == {"train": 10, "validation": 2, "test": 12}
    image, label = rows_by_id(task)[6 + 2]
    np.testing.assert_array_equal(image, pictures(6, seed=1)[2])
    assert label == 1 and task.files == (str(tmp_path / "train"), str(tmp_path / "test"))


def test_bad_picture_folders(tmp_path: Path) -> None:
    folder = write_folders(tmp_path)
    (folder / "test" / "cow").mkdir()
    with pytest.raises(FileNotFoundError, match=r"test/cow/ in .* holds no \.png file"):
        load("scifar", folder)
    (folder / "test" / "cow" / "1.png").write_bytes(png(pictures(1)[0]))
    with pytest.raises(ValueError, match="test/cow/ in .* has no train/cow/"):
        load("scifar", folder)
    (folder / "test" / "cow" / "1.png").rename(folder / "test" / "cat" / "0.png")
    (folder / "test" / "cow").rmdir()
    for raw, message in [
        (b"", "test/cat/1.png is no readable picture"),
        (png(pictures(1)[0])[:500], "test/cat/1.png is no readable picture"),
        (png(pictures(1)[0][:28]), "test/cat/1.png is 32 x 28 pixels, where 32 x 32 are needed"),
        (png(np.zeros((32, 32), dtype=np.uint16)), "test/cat/1.png has pixels of the kind 'I;16'"),
    ]:
        (folder / "test" / "cat" / "1.png").write_bytes(raw)
        with pytest.raises(ValueError, match=message):
            load("scifar", folder)


def test_one_class_and_pictures_in_two_parts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="single label 'cat'"):
        load("scifar", write_folders(tmp_path / "one", classes=("cat",)))
    folder = write_folders(tmp_path / "two")
    for name in ("cat", "dog"):
        (folder / "test" / name / "5.png").write_bytes((folder / "train" / name / "5.png").read_bytes())
    with pytest.warns(UserWarning, match="scifar: some inputs stand in more than one part"):
        load("scifar", folder)


def test_bad_batches(tmp_path: Path) -> None:
    write_batches(tmp_path)
    place = tmp_path / "cifar-10-batches-py"
    good = (place / "data_batch_2").read_bytes()
    flat = pictures(2).reshape(2, -1)
    for content, message in [
        ({"data": flat, "fine_labels": [1, 2]}, "data_batch_2 has no labels; found data, fine_labels"),
        ({"data": flat.astype(float), "labels": [1, 2]}, r"data is float64 \(2, 3072\), where uint8 \(N, 3072\)"),
        ({"data": flat[:, :5], "labels": [1, 2]}, r"data is uint8 \(2, 5\)"),
        ({"data": [1], "labels": [1]}, "data is list"),
        ({"data": flat, "labels": [1]}, "2 pictures, but not one label for each"),
        ({"data": flat, "labels": [1, 10]}, "data_batch_2, row 1: label 10 is no whole number from 0 to 9"),
        ([1], "data_batch_2 holds a list, not a dict"),
    ]:
        (place / "data_batch_2").write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=message):
            load("scifar", tmp_path)
    (place / "data_batch_2").write_bytes(good[:-100])
    with pytest.raises(ValueError, match="data_batch_2 is no pickle of plain numpy arrays"):
        load("scifar", tmp_path)
    (place / "data_batch_2").write_bytes(b"")
    with pytest.raises(ValueError, match="data_batch_2 is empty"):
        load("scifar", tmp_path)
    (place / "data_batch_2").unlink()
    (place / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py/data_batch_2, cifar-10-batches-py/test_batch"):
        load("scifar", tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lra-image needs data_dir"):
        load("lra-image")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load("lra-image", tmp_path / "absent")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="holds no CIFAR-10; .* Unpack cifar-10-python.tar.gz first"):
        load("lra-image", tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="test/ with a folder for each class"):
        load("lra-image", tmp_path)


def test_silent_and_the_same_again(tmp_path: Path) -> None:
    write_batches(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = load("lra-image", tmp_path), load("lra-image", tmp_path)
    for split, rows in first.splits.items():
        assert rows["image"][:].tobytes() == second.splits[split]["image"][:].tobytes()
        assert rows.column_names == ["image", "label", "example_id"]
    assert set(ENTRIES) == {"lra-image", "scifar"} and set(ENTRIES["lra-image"].options) == {"levels"}
