"""`lra-text`: reviews from folders, CSV, Parquet and a stand-in for the Hub; validation, units, each bad input."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverscratch.tasks import Task
from neverscratch.tasks.lra_text import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "manpages"
TEXTS = {
    part: [(f'{part} {label} {index}: "fine",<br />\nno? é', label) for label in (0, 1) for index in range(number)]
    for part, number in (("train", 20), ("test", 3))
}
Rows = dict[str, list[tuple[str, int]]]


def write_folder(base: Path, rows: Rows = TEXTS) -> Path:
    for part, examples in rows.items():
        for index, (text, label) in enumerate(examples):
            folder = base / part / ("neg", "pos")[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:03d}_7.txt").write_bytes(text.encode())
    return base


def write_csv(folder: Path, rows: Rows = TEXTS, words: tuple[str, str] = ("0", "1"), header: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, examples in rows.items():
        with open(folder / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header or ("text", "label"))
            writer.writerows((text, words[label]) for text, label in examples)
    return folder


def write_parquet(folder: Path, rows: Rows = TEXTS, pattern: str = "{}.parquet") -> Path:
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    for part, examples in rows.items():
        pd.DataFrame(examples, columns=["text", "label"]).to_parquet(folder / pattern.format(part))
    return folder


def contents(task: Task) -> dict[str, list[tuple[str, int, int]]]:
    return {
        part: list(zip(split["text"][:], split["label"][:], split["example_id"][:]))
        for part, split in task.splits.items()
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Task:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load("lra-text", write_folder(tmp_path_factory.mktemp("imdb")))


def test_a_tenth_of_train_is_held_out_stratified(reference: Task) -> None:
    assert reference.sizes == {"train": 36, "validation": 4, "test": 6}
    assert reference.splits["validation"]["label"][:].count(1) == 2
    ids = [example_id for rows in contents(reference).values() for _, _, example_id in rows]
    assert sorted(ids) == list(range(46))
    # Fixed for ever.
    assert reference.splits["validation"]["example_id"][:] == [4, 9, 22, 32]
    expected = [*TEXTS["train"], *TEXTS["test"]]
    for rows in contents(reference).values():
        assert all(expected[example_id] == (text, label) for text, label, example_id in rows)


def test_description(reference: Task) -> None:
    spec = reference.spec
    assert (spec.modality, spec.unit, spec.min_count, spec.max_length) == ("text", "bytes", 1, 4096)
    assert (spec.labels, spec.chance, spec.is_pair) == (("neg", "pos"), 0.5, False)
    assert spec.length == max(len(text.encode()) for part in TEXTS.values() for text, _ in part)
    assert "The training part of 40 is split 36 for training and 4 for validation" in spec.notes
    assert reference.options == {"unit": "bytes", "max_length": 4096, "validation": "held-out"}
    assert reference.splits["train"].column_names == ["text", "label", "example_id"]


@pytest.mark.parametrize("place", ["aclImdb", "aclImdb_v1/aclImdb"])
def test_places_of_the_archive(tmp_path: Path, reference: Task, place: str) -> None:
    base = write_folder(tmp_path / place)
    (base / "train" / "unsup").mkdir()
    (base / "train" / "unsup" / "0_0.txt").write_text("no label")
    (base / "train" / "neg" / "notes.md").write_text("no review")
    task = load("lra-text", tmp_path)
    assert contents(task) == contents(reference)
    assert task.files == (str(base / "train"), str(base / "test"))
    assert "(unsup) are left out" in task.spec.notes


@pytest.mark.parametrize("words", [("0", "1"), ("neg", "pos"), ("Negative", "Positive"), ("0.0", "1.0")])
def test_csv(tmp_path: Path, reference: Task, words: tuple[str, str]) -> None:
    assert contents(load("lra-text", write_csv(tmp_path, words=words))) == contents(reference)


@pytest.mark.parametrize(
    ("place", "pattern"), [("", "{}.parquet"), ("plain_text", "{}-00000-of-00001.parquet"), ("data", "{}.parquet")]
)
def test_parquet(tmp_path: Path, reference: Task, place: str, pattern: str) -> None:
    write_parquet(tmp_path / place, pattern=pattern)
    assert contents(load("lra-text", tmp_path)) == contents(reference)


def test_long_texts_and_other_columns_of_a_csv(tmp_path: Path) -> None:
    rows = {"train": [("long" * 50_000, 0), ("b", 1), ("c", 0), ("d", 1), ("NA", 0), ("e", 1)], "test": [("f", 0)]}
    write_csv(tmp_path, rows)
    for path in tmp_path.glob("*.csv"):
        lines = path.read_text().splitlines()
        path.write_text("\ufeff" + "\n".join(f"{index or 'id'},{line}" for index, line in enumerate(lines)))
    task = load("lra-text", tmp_path)
    assert sorted(text[:4] for split in task.splits.values() for text in split["text"][:]) == [
        "NA",
        "b",
        "c",
        "d",
        "e",
        "f",
        "long",
    ]
    assert task.spec.length == 4096


def test_a_validation_file_is_used(tmp_path: Path) -> None:
    task = load("lra-text", write_csv(tmp_path, {**TEXTS, "validation": [("of its own", 1)]}))
    assert task.sizes == {"train": 40, "validation": 1, "test": 6}
    assert contents(task)["validation"] == [("of its own", 1, 40)]
    assert "Train, validation and test as in the files." in task.spec.notes


def test_validation_on_the_test_part_is_said_once(tmp_path: Path, reference: Task) -> None:
    with pytest.warns(UserWarning) as caught:
        task = load("lra-text", write_folder(tmp_path), validation="test")
    assert [str(warning.message) for warning in caught] == [
        "lra-text: validation is the test part, as in the papers; what is selected on it has seen the test set."
    ]
    assert task.options["validation"] == "test" and "Validation is the test part itself" in task.spec.notes
    assert task.sizes == {"train": 40, "validation": 6, "test": 6}
    found = contents(task)
    assert [row[:2] for row in found["validation"]] == [row[:2] for row in found["test"]]
    assert found["test"] == contents(reference)["test"]
    ids = [example_id for rows in found.values() for _, _, example_id in rows]
    assert len(set(ids)) == len(ids)


def test_units(tmp_path: Path) -> None:
    write_folder(tmp_path)
    longest = max(len(text) for part in TEXTS.values() for text, _ in part)
    task = load("lra-text", tmp_path, unit="characters")
    assert (task.spec.unit, task.spec.min_count, task.spec.length) == ("characters", 15, longest)
    task = load("lra-text", tmp_path, unit="characters", min_count=2, max_length=10)
    assert (task.spec.min_count, task.spec.max_length, task.spec.length) == (2, 10, 10)
    assert task.options == {"unit": "characters", "min_count": 2, "max_length": 10, "validation": "held-out"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "symbols"}, "unit='symbols' is unknown; use 'bytes' or 'characters'."),
        ({"min_count": 15}, "min_count=15 is for unit='characters'"),
        ({"max_length": True}, "max_length=True is out of range"),
        ({"validation": "tests"}, "validation='tests' is unknown; use 'held-out' or 'test'."),
        ({"hub": "stanfordnlp/imdb"}, "reads either data_dir, a folder, or hub, a set on the Hub, but both were given"),
    ],
)
def test_bad_options_are_refused_before_files_are_looked_for(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("lra-text", tmp_path / "nowhere", **options)


def test_neither_folder_nor_hub() -> None:
    with pytest.raises(ValueError, match="but neither was given"):
        load("lra-text", None)


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load("lra-text", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="Missing in .*: train/pos, train/neg, test/pos .*aclImdb/.*train.csv"):
        load("lra-text", tmp_path)
    write_folder(tmp_path / "one" / "aclImdb", {"train": TEXTS["train"], "test": [("only good ones", 1)]})
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: aclImdb/test/neg; each must be a folder"):
        load("lra-text", tmp_path / "one")
    (tmp_path / "one" / "aclImdb" / "test" / "neg").mkdir()
    with pytest.raises(FileNotFoundError, match=r"aclImdb/test/neg in .* holds no \.txt file"):
        load("lra-text", tmp_path / "one")
    write_csv(tmp_path / "two", {"train": TEXTS["train"]})
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: test\.csv, beside train\.csv\."):
        load("lra-text", tmp_path / "two")


def test_empty_files_and_wrong_bytes_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    path = tmp_path / "train" / "pos" / "021_7.txt"
    path.write_bytes(b"one\ntwo \xff")
    with pytest.raises(ValueError, match="train/pos/021_7.txt, line 2: byte 0xff is not UTF-8"):
        load("lra-text", tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match="train/pos/021_7.txt is empty"):
        load("lra-text", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.csv has no column text and no column label; the columns found are none."),
        ("review,label\na,0\n", "train.csv has no column text; the columns found are 'review', 'label'."),
        ("text,label\n", "train.csv holds no review"),
        ("text,label\na,0\nb,1,2\n", "train.csv, line 3: 3 fields where the header has 2; put texts with commas"),
        ("text,label\na,0\nb,-1\n", "train.csv, line 3: label '-1' is unknown; use 0 or neg, 1 or pos"),
        ("text,label\na,0\n,1\n", "train.csv, line 3: the text is empty; remove the row."),
        ('text,label\na,0\n"b,1\n', "train.csv, line 3: unexpected end of data; the file may be cut off."),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    write_csv(tmp_path)
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("lra-text", tmp_path)


def test_bad_bytes_of_a_csv_and_bad_parquet(tmp_path: Path) -> None:
    write_csv(tmp_path / "csv")
    (tmp_path / "csv" / "test.csv").write_bytes(b"text,label\na,0\n\xe9,1\n")
    with pytest.raises(ValueError, match="test.csv, line 3: byte 0xe9 is not UTF-8"):
        load("lra-text", tmp_path / "csv")
    write_parquet(tmp_path / "parquet")
    path = tmp_path / "parquet" / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="train.parquet is cut off or no Parquet file"):
        load("lra-text", tmp_path / "parquet")
    import pandas as pd

    pd.DataFrame({"text": ["a", None], "label": [0, 1]}).to_parquet(path)
    with pytest.raises(ValueError, match="train.parquet, row 2: the text is empty"):
        load("lra-text", tmp_path / "parquet")
    pd.DataFrame({"sentence": ["a"], "label": [0]}).to_parquet(path)
    with pytest.raises(ValueError, match="train.parquet has no column text; the columns found are 'sentence', 'label'"):
        load("lra-text", tmp_path / "parquet")


def test_too_few_labels_and_repeats(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the training part of lra-text has the single label 'pos'"):
        load("lra-text", write_csv(tmp_path / "one", {**TEXTS, "train": [("a", 1), ("b", 1)]}))
    with pytest.raises(ValueError, match="so few that holding 1 out for validation leaves none of a label"):
        load("lra-text", write_csv(tmp_path / "two", {**TEXTS, "train": [("a", 0), ("b", 1)]}))
    repeated = {**TEXTS, "test": [*TEXTS["test"], *TEXTS["train"]]}
    with pytest.warns(UserWarning, match="36 of 46 in test occur in train, too; 4 of 46 in test occur in validation"):
        load("lra-text", write_csv(tmp_path / "three", repeated))


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Task) -> None:
    import datasets

    write_parquet(tmp_path)
    files = {part: str(tmp_path / f"{part}.parquet") for part in ("train", "test")}
    found = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name: asked.append(name) or found)
    task = load("lra-text", None, hub="stanfordnlp/imdb")
    assert contents(task) == contents(reference)
    assert asked == ["stanfordnlp/imdb"]
    assert task.options["hub"] == "stanfordnlp/imdb" and task.files == ("hub:stanfordnlp/imdb",)
    assert task.spec.source == "https://huggingface.co/datasets/stanfordnlp/imdb"
    found = datasets.DatasetDict({"train": found["train"]})
    with pytest.raises(ValueError, match="hub='stanfordnlp/imdb' has the splits train; train and test are needed"):
        load("lra-text", None, hub="stanfordnlp/imdb")


def test_hub_that_cannot_be_reached() -> None:
    with pytest.raises(
        ValueError, match=r"hub='nobody/nothing' cannot be loaded \(.*\); check the name and the network"
    ):
        load("lra-text", None, hub="nobody/nothing")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of raw data is not there")
def test_plain_baseline_on_real_texts() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    task = load("lra-text", SHARED)
    assert task.sizes == {"train": 372, "validation": 53, "test": 107}
    train, test = task.splits["train"], task.splits["test"]
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), max_features=20_000, sublinear_tf=True)
    inputs = vectorizer.fit_transform([text[:4096] for text in train["text"][:]])
    model = LogisticRegression(C=30, max_iter=1000).fit(inputs, train["label"][:])
    assert model.score(vectorizer.transform([text[:4096] for text in test["text"][:]]), test["label"][:]) >= 0.94
    assert np.bincount(test["label"][:]).tolist() == [54, 53]
