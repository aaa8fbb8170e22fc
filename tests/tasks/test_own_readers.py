"""`own`: each kind of bad input is one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import warnings
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neverscratch.tasks.base import SPLITS
from neverscratch.tasks.own import ENTRIES, load
from neverscratch.tasks.own_files import array_name
from neverscratch.tasks.own_splits import split_of_name


def refuse(data: Path, message: str, error: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(error) as caught:
        load(data=data, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def csv(path: Path, text: str, header: str = "p0,p1,label\n") -> Path:
    path.write_text(header + text, encoding="utf-8")
    return path


GOOD = "".join(f"{i},{i / 2},{'ab'[i % 2]}\n" for i in range(20))


def test_options_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "missing.csv"
    refuse(path, "problem='regresion' is unknown. Did you mean 'regression'? Use auto,", problem="regresion")
    refuse(path, "metric='acuracy' is unknown. Did you mean 'accuracy'?", metric="acuracy")
    refuse(path, "missing='drop' is unknown.", missing="drop")
    refuse(path, "unit='tokens' is unknown.", unit="tokens")
    refuse(path, "format='xls' is unknown.", format="xls")
    refuse(path, "max_length=0 is no length", max_length=0)
    refuse(path, "holdout_seed=-1 is not a seed", holdout_seed=-1)
    refuse(path, "separator='' is no text", separator="")
    with pytest.raises(ValueError, match="Task 'own' needs the option data"):
        load()
    import inspect

    own = {name for name in inspect.signature(load).parameters if name not in ("name", "data_dir")}
    assert own == set(ENTRIES["own"].options)


def test_files_that_are_not_there_empty_or_of_another_kind(tmp_path: Path) -> None:
    refuse(tmp_path / "no.csv", "is no file or folder; give a file (csv, parquet,", FileNotFoundError)
    refuse(tmp_path, "is an empty folder")
    for name in ("x.csv", "x.parquet", "x.jsonl", "x.npz", "x.tsv"):
        (tmp_path / name).write_bytes(b"")
        refuse(tmp_path / name, f"{name} is empty; give a file with examples")
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    refuse(tmp_path / "x.xlsx", "x.xlsx is of no kind that can be read")


def test_archives_are_never_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("../outside.csv", GOOD)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive_file:
        member = tarfile.TarInfo("../outside.csv")
        archive_file.addfile(member, io.BytesIO())
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress(b"packed"))
    for name in ("x.zip", "x.tar.gz", "x.parquet.gz"):
        refuse(tmp_path / name, f"{name} is an archive; unpack it and give the file or folder inside.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.parquet.gz", "x.tar.gz", "x.zip"]
    assert not (tmp_path.parent / "outside.csv").exists()


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"v": [[1.0, 2.0]] * 20, "label": ["a", "b"] * 10}), whole)
    (tmp_path / "x.parquet").write_bytes(whole.read_bytes()[:-30])
    refuse(tmp_path / "x.parquet", "x.parquet is cut off or no Parquet file")
    np.savez(tmp_path / "whole.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    (tmp_path / "x.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    refuse(tmp_path / "x.npz", "x.npz is cut off or no .npz file")
    noise = "".join(f"{value},{value},{'ab'[i % 2]}\n" for i, value in enumerate(np.random.RandomState(0).randn(3000)))
    packed = gzip.compress(f"p0,p1,label\n{noise}".encode())
    for size in (30, len(packed) // 2, len(packed) - 4):
        (tmp_path / "x.csv.gz").write_bytes(packed[:size])
        refuse(tmp_path / "x.csv.gz", "x.csv.gz is cut off or no gzip file")
        (tmp_path / "x.jsonl.gz").write_bytes(packed[: size // 2])
        refuse(tmp_path / "x.jsonl.gz", "x.jsonl.gz")
    (tmp_path / "x.csv.gz").write_text("no gzip")
    refuse(tmp_path / "x.csv.gz", "x.csv.gz is cut off or no gzip file")


def test_columns(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", GOOD)
    refuse(
        path,
        "x.csv has no column 'lable' (the option label). Did you mean 'label'? Its columns: p0, p1, label.",
        label="lable",
    )
    refuse(path, "x.csv has no column 'p7' (the option input). Did you mean 'p1'?", input="p0,p7")
    refuse(path, "x.csv has no column 'who' (the option group).", group="who")
    refuse(path, "column 'label' is both input and label", input="p0,label")
    refuse(
        csv(path, GOOD, "p0,p1,kind\n"), "x.csv has no column label; name it in the option label. Its columns: p0, p1,"
    )
    refuse(csv(path, GOOD, "p0,target,label\n"), "has several columns that may be the label (target, label)")
    refuse(csv(path, GOOD, "p0,p0,label\n"), "the header has 'p0' more than once")
    refuse(csv(path, "a\nb\n", "label\n"), "has no column but the label")
    wide = ",".join(f"p{i}" for i in range(50))
    refuse(csv(path, "1," * 50 + "a\n", f"{wide},kind\n"), "p18, p19 and 31 more")


def test_other_parts_must_have_the_same_columns(tmp_path: Path) -> None:
    csv(tmp_path / "train.csv", GOOD)
    csv(tmp_path / "test.csv", GOOD, "p0,q1,label\n")
    refuse(tmp_path, "test.csv has no column 'p1' (as in the first file).")
    csv(tmp_path / "other_test.csv", GOOD)
    refuse(tmp_path, "holds files of several sets (")
    (tmp_path / "other_test.csv").unlink()
    csv(tmp_path / "train.jsonl", GOOD)
    refuse(tmp_path, "holds the training part as .csv, .jsonl; choose one in the option format.")


def test_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    refuse(csv(path, ""), "x.csv has a header and no rows")
    refuse(csv(path, "1,2,a\n"), "Every label is 'a'; a classification needs at least two classes.")
    refuse(csv(path, "1,2,a\n2,3,b\n"), "2 example(s) cannot be divided into train and test and validation")
    refuse(csv(path, GOOD + "1,2\n"), "x.csv, row 21: 2 field(s) where the header has 3")
    refuse(csv(path, GOOD + "1,2,a,b\n"), "x.csv, row 21: 4 field(s) where the header has 3")
    refuse(csv(path, GOOD + "1,x,a\n"), "x.csv, row 21, column 'p1': 'x' is not a number")
    refuse(csv(path, "1,x,a\n" + GOOD), "x.csv, row 1, column 'p1': 'x' is not a number")
    refuse(csv(path, GOOD + '1,"1,5",a\n'), "x.csv, row 21, column 'p1': '1,5' is not a number")
    refuse(csv(path, GOOD + "1,2,\n"), "x.csv, row 21: the label is missing")
    refuse(csv(path, GOOD + "1,2,NaN\n"), "x.csv, row 21: the label is missing")
    refuse(csv(path, GOOD + "1,2,c\n"), "Label 'c' has a single example, so none can be held out")
    refuse(
        csv(path, GOOD.replace("\n", ",\n"), "p0,p1,label,who\n"),
        "x.csv, row 1: the group (who) is missing",
        group="who",
    )


def test_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    header = "p0,p1,p2,label\n"
    good = "".join(f"{i},{i / 2},{i / 4},{'ab'[i % 2]}\n" for i in range(20))
    cases = {
        "1,,3,a\n": "x.csv, row 21, column 'p1': a missing value (NaN); correct it, or give missing=interpolate",
        "1,2,NA,a\n": "x.csv, row 21, column 'p2': a missing value (NaN)",
        "1,inf,3,a\n": "x.csv, row 21, column 'p1': the value inf",
        "-inf,1,3,a\n": "x.csv, row 21, column 'p0': the value -inf",
        ",nan,,a\n": "x.csv, row 21: every value is NaN; such a series says nothing",
        "1,1e39,3,a\n": "x.csv, row 21, column 'p1': 1e+39 is too large for 32-bit floats",
    }
    for line, message in cases.items():
        refuse(csv(path, good + line, header), message)
    refuse(csv(path, good + ",,,a\n", header), "every value is NaN", missing="zero")

    def repaired(line: str, missing: str) -> list[float]:
        task = load(data=csv(path, good + line, header), missing=missing)
        assert "1 series" in task.spec.notes and task.options["missing"] == missing
        return (
            next(row for split in task.splits.values() for row in split if row["example_id"] == 20)["values"]
            .ravel()
            .tolist()
        )

    assert repaired("1,,3,a\n", "interpolate") == [1, 2, 3]
    assert repaired(",5,inf,a\n", "interpolate") == [5, 5, 5]
    assert repaired("1,,3,a\n", "zero") == [1, 0, 3]
    assert repaired("1,5,,a\n", "trim") == [1, 5]
    refuse(csv(path, good + "1,,3,a\n", header), "column 'p1': a missing value", missing="trim")


def test_constant_and_single_step_series_are_fine(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "".join(f"{i},{i},{'ab'[i % 2]}\n" for i in range(20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "20 series are constant." in load(data=path).spec.notes
        assert load(data=path, input="p0").spec.length == 1
        assert "constant" not in load(data=path, input="p0").spec.notes


def test_any_number_is_data(tmp_path: Path) -> None:
    values = ["-9", "-1e9", "999", "0", "-100", "1e-30", "3.4e38"]
    path = csv(tmp_path / "x.csv", "".join(f"{v},{i},{'ab'[i % 2]}\n" for i, v in enumerate(values * 2)))
    task = load(data=path)
    seen = {int(row["example_id"]): row["values"][0, 0] for split in task.splits.values() for row in split}
    assert [seen[i] for i in range(7)] == [np.float32(v) for v in values]


def test_labels_that_training_never_sees(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        csv(tmp_path / f"{part}.csv", f"{len(part)},1,a\n{len(part)},2,b\n" + ("7,7,rare\n" if part == "val" else ""))
    refuse(tmp_path, "Label(s) 'rare' occur only in validation or test, never in train")
    csv(tmp_path / "train.csv", "1,1,rare\n2,2,rare\n")
    csv(tmp_path / "test.csv", "5,5,rare\n")
    csv(tmp_path / "val.csv", "6,6,rare\n")
    refuse(tmp_path, "Every label is 'rare'")


def test_copies_across_parts_are_counted(tmp_path: Path) -> None:
    csv(tmp_path / "train.csv", "1,1,a\n2,2,b\n2,2,b\n")
    csv(tmp_path / "val.csv", "1,1,a\n3,3,b\n")
    csv(tmp_path / "test.csv", "3,3,a\n2,2,b\n4,4,b\n")
    with pytest.warns(UserWarning, match="^3 inputs of validation and test are also in an earlier part") as caught:
        task = load(data=tmp_path)
    assert len(caught) == 1 and "3 inputs of validation and test" in task.spec.notes


def test_longer_than_the_limit_is_counted(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "".join(f"{'w' * (i + 1)},{'ab'[i % 2]}\n" for i in range(20)), "text,label\n")
    task = load(data=path, max_length=15)
    assert task.spec.length == task.spec.max_length == 15
    assert max(len(text) for split in task.splits.values() for text in split["text"][:]) == 20
    assert "5 of 20 inputs are longer than 15 and lose their end." in task.spec.notes


def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"text,label\ngood,a\nna\xefve,b\n")
    refuse(path, "x.csv, line 3: byte 21 (0xef) is no UTF-8; save the file as UTF-8.")
    path.write_bytes(b"text,label\n" + b"good,a\nfine,b\n" * 200_000 + b"na\xefve,b\n")
    refuse(path, "x.csv, line 400002: byte 3 (0xef) is no UTF-8")
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a", "label": 1}\n{"text": "\xff", "label": 2}\n')
    refuse(path, "x.jsonl, line 2: byte 11 (0xff) is no UTF-8")
    folder = tmp_path / "texts"
    for name in ("a/1.txt", "a/2.txt", "b/1.txt", "b/2.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"one\ntwo \xe9\n" if name == "b/2.txt" else b"fine")
    refuse(folder, "b/2.txt, line 2: byte 9 (0xe9) is no UTF-8")
    (folder / "b" / "2.txt").write_bytes(b"")
    refuse(folder, "b/2.txt: the text is empty")


def test_texts_in_tables(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    good = "".join(f'"a ""quoted"",\nword {i}",{"ab"[i % 2]}\n' for i in range(20))
    task = load(data=csv(path, good, "text,label\n"))
    assert sorted(text for split in task.splits.values() for text in split["text"][:])[0] == 'a "quoted",\nword 0'
    refuse(csv(path, good + ",a\n", "text,label\n"), "x.csv, row 21: the text is empty")
    task = load(data=csv(path, good + f"{'long ' * 100_000},a\n" + good.replace("word", "term"), "text,label\n"))
    assert task.spec.length == 500_000
    refuse(csv(path, f"{'long ' * 100_000},a\n" + good + "a,b,c\n", "text,label\n"), "x.csv, row 22: 3 field(s)")


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    good = [{"v": [[i, 1], [2, 3]], "label": "ab"[i % 2]} for i in range(20)]

    def lines(*more: Any) -> Path:
        path.write_text("".join(json.dumps(row) + "\n" for row in [*good, *more]))
        return path

    refuse(lines({"v": [[1, 2, 3]], "label": "a"}), "x.jsonl, line 21: 3 channel(s) where the first series has 2")
    refuse(lines({"v": [[1, 2], [3]], "label": "a"}), "x.jsonl, line 21: the steps have unequal numbers of channels")
    refuse(lines({"v": [[1, "x"]], "label": "a"}), "x.jsonl, line 21: 'x' stands among the values")
    refuse(lines({"v": "word", "label": "a"}), "x.jsonl, line 21: 'word' stands among the values")
    refuse(lines({"v": [], "label": "a"}), "x.jsonl, line 21: the series has no values")
    refuse(lines({"label": "a"}), "x.jsonl, line 21: the series is missing")
    refuse(lines({"v": [[1, 2]]}), "x.jsonl, line 21: the label is missing")
    refuse(lines({"v": [[1, 2]], "label": {"a": 1}}), "x.jsonl, line 21: the label is a dict")
    refuse(lines({"v": [[1, 2]], "label": 3}), "x.jsonl, line 21: label 3 is a number where those before are a word")
    refuse(lines({"v": [[1, None]], "label": "a"}), "x.jsonl, line 21, step 1, channel 2: a missing value (NaN)")
    path = lines({"v": [[1, float("nan")]], "label": "a"}, {"v": [[2, 1]], "label": "a"})
    refuse(path, "step 1, channel 2: a missing value (NaN)")
    refuse(path, "channel 2 has no finite value to interpolate from", missing="interpolate")
    assert "1 series had NaN or infinite values, which are filled in." in load(data=path, missing="zero").spec.notes
    refuse(lines([1, 2]), "x.jsonl, line 21: a list, but each line must hold one object")
    path.write_text(path.read_text() + '{"v": [1')
    refuse(path, "x.jsonl, line 21: a list")
    path.write_text('{"v": [1], "label": "a"}\n{"v": [1')
    refuse(path, "x.jsonl, line 2: no JSON (")
    path.write_text("\n\n")
    refuse(path, "x.jsonl holds no rows")
    texts = [{"t": "word", "label": i % 2} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*texts, {"t": 7, "label": 1}]))
    refuse(path, "x.jsonl, line 5: a text is expected, but this is a int")


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    labels = ["a", "b"] * 4

    def table(**columns: Any) -> Path:
        pq.write_table(pa.table({**columns, "label": labels}), path)
        return path

    refuse(table(v=[[1.0]] * 7 + [[]]), "x.parquet, row 8: the series has no values")
    refuse(table(v=[[1.0]] * 7 + [None]), "x.parquet, row 8: the series is missing")
    refuse(table(v=[[1.0, None]] * 8), "x.parquet, row 1, step 2: a missing value (NaN)")
    refuse(table(v=[[[1.0, 2.0]]] * 7 + [[[1.0]]]), "x.parquet, row 8: 1 channel(s) where the first series has 2")
    refuse(table(v=[[[1.0, 2.0]]] * 7 + [[[1.0, 2.0], [1.0]]]), "row 8: the steps have unequal numbers of channels")
    refuse(table(u=[[1.0]] * 8, v=[[1.0, 2.0]] * 8), "row 1: the channels have unequal lengths (u 1, v 2)", input="u,v")
    refuse(table(u=[1.0] * 8, v=["x"] * 8), "the input columns u (number), v (text) do not go together", input="u,v")
    refuse(table(v=[[1.0, 2.5]] * 8), "sound is a list of whole numbers between -32768 and 32767", sampling_rate=8000)
    pq.write_table(pa.table({"v": pa.array([], pa.list_(pa.float32())), "label": pa.array([], pa.string())}), path)
    refuse(path, "x.parquet holds no rows")
    pq.write_table(pa.table({"v": [[float(i)] for i in range(8)], "label": [0.1, 0.2] * 4}), path)
    assert load(data=path, problem="classification").spec.labels == ("0.1", "0.2")


def test_sounds_and_images_in_a_table(tmp_path: Path) -> None:
    from PIL import Image

    def sound(rate: int = 8000) -> bytes:
        data = io.BytesIO()
        with wave.open(data, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.arange(rate // 1000, dtype="<i2").tobytes())
        return data.getvalue()

    def image(size: int = 3) -> bytes:
        data = io.BytesIO()
        Image.new("RGB", (size, 2), (1, 2, 3)).save(data, "PNG")
        return data.getvalue()

    def table(cells: list[bytes | None]) -> Path:
        column = [{"bytes": cell, "path": f"{i}"} for i, cell in enumerate(cells)]
        pq.write_table(pa.table({"x": column, "label": ["a", "b"] * (len(cells) // 2)}), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    with pytest.warns(UserWarning, match="in an earlier part"):
        sounds, images = load(data=table([sound()] * 10)), load(data=table([image()] * 10))
    assert (sounds.spec.modality, sounds.spec.sampling_rate, sounds.spec.length) == ("audio", 8000, 8)
    assert (images.spec.modality, images.spec.num_channels, images.spec.length) == ("image", 3, 6)
    assert images.splits["train"][0]["image"].shape == (2, 3, 3)
    refuse(table([sound()] * 9 + [sound(16000)]), "x.parquet, row 10 has 16000 Hz where the first row has 8000 Hz")
    refuse(table([image()] * 9 + [image(4)]), "row 10 has shape (2, 4, 3) where the first image has (2, 3, 3)")
    refuse(table([image()] * 9 + [sound()]), "row 10: sounds and images stand in one column")
    refuse(table([image()] * 9 + [None]), "row 10: the table holds only the name of a sound or image")
    refuse(table([image()] * 9 + [image()[:40]]), "row 10 is no whole image")


def test_arrays(tmp_path: Path) -> None:
    x, y = np.zeros((8, 3)), np.arange(8) % 2
    path = tmp_path / "x.npz"

    def arrays(**named: Any) -> Path:
        np.savez(path, **named)
        return path

    refuse(arrays(x=x), "x.npz: y of train is missing; arrays found: x.")
    refuse(arrays(inputs=x, y=y), "x.npz: x of train is missing; arrays found: inputs, y.")
    refuse(arrays(inputs=x), "x.npz has no arrays x and y (or x_train and y_train ...); arrays found: inputs.")
    refuse(arrays(x=x, y=y[:7]), "x.npz (train): x has 8 series and y 7 labels")
    refuse(arrays(x=x[0], y=y), "x has shape (3,) and type float64; it must hold numbers")
    refuse(arrays(x=x[:0], y=y[:0]), "x holds no series")
    refuse(arrays(x=x, y=np.full((8, 2), 3)), "with several columns each must be 0 or 1")
    refuse(arrays(x=x[:, :0], y=y), "x.npz, series 1: the series has no values")
    refuse(arrays(x=np.array([[1, 2], [3]] * 4, dtype=object), y=y), "holds Python objects")
    bad = x.copy()
    bad[5, 1] = np.nan
    refuse(arrays(x=bad, y=y), "x.npz, series 6, step 2: a missing value (NaN)")
    bad[:] = np.nan
    refuse(arrays(x=bad, y=y), "series 1: every value is NaN")
    with pytest.warns(UserWarning, match="in an earlier part"):
        task = load(data=arrays(x=x, y=np.eye(2, dtype=int)[y]))
    assert task.spec.problem_type == "multi_label_classification" and task.spec.labels == ("0", "1")
    np.save(tmp_path / "x.npy", x)
    refuse(tmp_path / "x.npy", "x.npy is one array; give the folder that holds x.npy and y.npy")
    (tmp_path / "x.npz").unlink()
    refuse(tmp_path, "y of train is missing; arrays found: x.")
    (tmp_path / "y.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-60])
    refuse(tmp_path, "y.npy is cut off or damaged")


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("no data")
    refuse(tmp_path, "holds neither data files nor class folders with texts, sounds or images (found readme.md)")
    for label in "ab":
        (tmp_path / label).mkdir()
        for index in range(4):
            (tmp_path / label / f"{index}.txt").write_text(f"{label}{index}")
    assert sum(load(data=tmp_path).sizes.values()) == 8
    (tmp_path / "b" / "4.wav").write_bytes(b"RIFF")
    refuse(tmp_path, "holds audio (b/4.wav) and text (a/0.txt); a data set has one kind of input")
    (tmp_path / "b" / "4.wav").unlink()
    (tmp_path / "train").mkdir()
    refuse(tmp_path, "train holds no class folders with texts, sounds or images")
    (tmp_path / "train").rmdir()
    csv(tmp_path / "one.csv", GOOD)
    assert load(data=tmp_path).spec.modality == "values"
    csv(tmp_path / "two.csv", GOOD)
    refuse(tmp_path, "holds several files (one.csv, two.csv); name one in data")


def test_sounds_that_cannot_be_read(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for index in range(4):
            with wave.open(str(tmp_path / label / f"{index}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(8000)
                file.writeframes(np.arange(50 + index, dtype="<i2").tobytes())
    path = tmp_path / "b" / "3.wav"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    refuse(tmp_path, "b/3.wav is cut off: 86 of 106 bytes of samples")
    path.write_bytes(b"")
    refuse(tmp_path, "b/3.wav is empty")
    try:
        import soundfile  # noqa: F401
    except ImportError:
        path.write_bytes(b"fLaC" + bytes(100))
        refuse(
            tmp_path,
            'b/3.wav is no 16-bit WAV file (file does not start with RIFF id); pip install "neverscratch[audio]"',
        )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
    refuse(tmp_path, "b/3.wav: the recording has no samples")
    path.unlink()
    (tmp_path / "validation_list.txt").write_text("a/0.wav\nb/3.wav\n")
    (tmp_path / "testing_list.txt").write_text("b/1.wav\n")
    refuse(tmp_path, "validation_list.txt lists 1 file(s) that are missing: b/3.wav", FileNotFoundError)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.csv", "train"),
        ("GunPoint_TEST.tsv", "test"),
        ("pairs.eval.tsv", "validation"),
        ("train-00000-of-00002.parquet", "train"),
        ("my valid set.jsonl", "validation"),
        ("testx.npy", "test"),
        ("trainy.npy", "train"),
        ("brain_scans.csv", None),
        ("train_and_test.csv", None),
        ("latest.csv", None),
    ],
)
def test_the_part_in_a_name(name: str, part: str | None) -> None:
    assert split_of_name(Path(name)) == part


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("x", ("train", "x")),
        ("Y", ("train", "y")),
        ("X_test", ("test", "x")),
        ("val-y", ("validation", "y")),
        ("trainx", ("train", "x")),
        ("groups", ("train", "group")),
        ("index", None),
        ("arr_0", None),
        ("max", None),
    ],
)
def test_the_role_in_a_name(name: str, place: tuple[str, str] | None) -> None:
    assert array_name(name) == place


def test_numbered_files_are_one_part(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for index in range(count):
            rows = pa.table({"v": [[float(index), i, len(part)] for i in range(10)], "label": [0, 1] * 5})
            pq.write_table(rows, tmp_path / f"{part}-{index:05d}-of-{count:05d}.parquet")
    task = load(data=tmp_path)
    assert task.sizes == {"train": 18, "validation": 2, "test": 10} and set(task.splits) == set(SPLITS)


def test_labels_that_look_alike_are_pointed_out(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "".join(f"{i},{i / 2},{['yes', 'no', 'Yes '][i % 3]}\n" for i in range(30)))
    with pytest.warns(UserWarning, match="1 label.s. are written in more than one way, such as 'Yes ' and 'yes'"):
        assert load(data=path).spec.labels == ("Yes ", "no", "yes")


def test_files_of_other_habits(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    text = "p0,p1,label\n" + GOOD
    path.write_bytes(text.replace("\n", "\r").encode())
    refuse(path, "x.csv: a line ends in a bare carriage return")
    path.write_bytes(text.encode("utf-16"))
    refuse(path, "x.csv, line 1: byte 1 (0xff) is no UTF-8")
    path.write_text(text.replace(",", ";").replace(".", ","))
    refuse(path, "x.csv, column 'p1': numbers such as '0,0' have a decimal comma; write a point.")
    path.write_text(text.replace("\n", "\n\n").replace("label\n", "label\n\n"))
    assert sum(load(data=path).sizes.values()) == 20
    path.write_text("".join(line + ",\n" for line in text.splitlines()))
    assert load(data=path).spec.length == 2
    # Documents longer than what is looked at first.
    path.write_text("text,label\n" + "".join(f"{i}{'x' * 3_000_000},{'ab'[i % 2]}\n" for i in range(6)))
    assert load(data=path).spec.length == 3_000_001
    path = tmp_path / "x.jsonl"
    path.write_text('{"t": "a\\ud800", "label": 1}\n')
    refuse(path, "x.jsonl, line 1: character 2 is half a surrogate pair")
    path.write_text(json.dumps({"v": [10**400, 1], "label": 1}) + "\n")
    refuse(path, "x.jsonl, line 1: a whole number is too large for 32-bit floats")
    with pytest.raises(ValueError, match="needs the option data"):
        load(data="")


@pytest.mark.parametrize("option", ["input", "label", "split", "group", "id", "time"])
def test_columns_are_refused_where_there_is_no_table(tmp_path: Path, option: str) -> None:
    """A group that is not heeded would put one patient into train and test."""
    np.savez(
        tmp_path / "x.npz", x=np.zeros((20, 3)) + np.arange(20)[:, None], y=np.arange(20) % 2, patient=np.arange(20)
    )
    refuse(tmp_path / "x.npz", f"the option {option} names a column of a table", **{option: "patient"})
    for row in range(20):
        (tmp_path / "texts" / "ab"[row % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / "ab"[row % 2] / f"{row}.txt").write_text(f"text {row}")
    refuse(tmp_path / "texts", f"the option {option} names a column of a table", **{option: "patient"})


def test_hidden_and_foreign_files_of_class_folders_are_no_examples(tmp_path: Path) -> None:
    for row in range(20):
        (tmp_path / "ab"[row % 2]).mkdir(exist_ok=True)
        (tmp_path / "ab"[row % 2] / f"{row}.txt").write_text(f"text {row}")
    (tmp_path / "a" / "._0.txt").write_bytes(b"\0\5\x16\7 Mac OS X")
    (tmp_path / "a" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "a" / ".ipynb_checkpoints" / "0.txt").write_text("text 0 once more")
    (tmp_path / "b" / "notes.md").write_text("not an example")
    task = load(data=tmp_path)
    assert sum(task.sizes.values()) == 20 and "Left out: b/notes.md." in task.spec.notes
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x.md").write_text("a class of its own")
    refuse(tmp_path, "c holds no text, sound or picture that can be read, but x.md; convert its 1 file(s)")


def test_a_part_in_another_format_is_not_left_out_in_silence(tmp_path: Path) -> None:
    csv(tmp_path / "train.csv", GOOD)
    (tmp_path / "test.jsonl").write_text('{"p0": 1, "p1": 2, "label": "a"}\n')
    refuse(tmp_path, "holds test.jsonl beside a training part in .csv; save both in one format")
    assert load(data=tmp_path, format="csv").sizes["train"] < 20
