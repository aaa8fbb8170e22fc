"""`lra-retrieval`: the published layout with quotes in the texts, its options, each bad input, and a plain baseline."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverscratch.tasks.lra_retrieval import FILES, PLACES, load

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "pairs"
# What CSV's quoting would glue together, a line separator that ends no line, a carriage return, two-byte characters.
TRAIN = [
    ("1.0", 'He said "no', "the \u2028 first\rtext"),
    ("0.0", '"', 'a "quoted" word'),
    ("1", "Ünïcödé", "b'bytes'"),
    ("0", "plain", "NA"),
]
OTHERS = ([("1.0", "one", "two")], [("0.0", "three", "four"), ("1.0", "five", "six")])


def to_line(pair: tuple[str, str, str]) -> str:
    label, text, other = pair
    return "\t".join((label, "P00-1000", "P00-1001", text, other))


def write(folder: Path, train: list[str] | None = None, end: str = "\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parts = (train or [to_line(pair) for pair in TRAIN], *([to_line(pair) for pair in part] for part in OTHERS))
    for name, lines in zip(FILES, parts, strict=True):
        (folder / name).write_bytes("".join(line + end for line in lines).encode())
    return folder


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_texts_come_back_as_they_were(tmp_path: Path, end: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load("lra-retrieval", write(tmp_path, end=end))
    train = task.splits["train"]
    assert train.column_names == ["text", "text_pair", "label", "example_id"]
    assert list(zip(train["text"][:], train["text_pair"][:])) == [pair[1:] for pair in TRAIN]
    assert train["label"][:] == [1, 0, 1, 0]
    assert [split["example_id"][:] for split in task.splits.values()] == [[0, 1, 2, 3], [4], [5, 6]]
    assert task.spec.labels == ("0", "1") and task.spec.is_pair and task.spec.chance == 0.5
    assert task.files == tuple(str(tmp_path / name) for name in FILES)
    assert load("lra-retrieval", tmp_path).splits["train"][:] == train[:]


def test_units_and_lengths(tmp_path: Path) -> None:
    write(tmp_path, [to_line(("1", "ü" * 30, "b")), to_line(("0", "c", "d"))])
    spec = load("lra-retrieval", tmp_path).spec
    assert (spec.unit, spec.min_count, spec.max_length, spec.length) == ("bytes", 1, 4000, 60)
    task = load("lra-retrieval", tmp_path, unit="characters", min_count=2, max_length=20)
    assert (task.spec.unit, task.spec.min_count, task.spec.max_length, task.spec.length) == ("characters", 2, 20, 20)
    assert task.options == {"unit": "characters", "min_count": 2, "max_length": 20}
    # The papers' vocabulary of this task has every character of train.
    assert load("lra-retrieval", tmp_path, unit="characters").spec.min_count == 1
    # Whole texts are handed out.
    assert len(task.splits["train"]["text"][0]) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "words"}, "unit='words' is unknown; use 'bytes' or 'characters'."),
        ({"min_count": 3}, "min_count=3 is for unit='characters'"),
        ({"unit": "characters", "min_count": 0}, "min_count=0 is out of range; use a whole number from 1 up."),
        ({"max_length": 0.5}, "max_length=0.5 is out of range"),
    ],
)
def test_bad_options_are_refused_before_files_are_looked_for(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("lra-retrieval", tmp_path / "nowhere", **options)


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_the_release_is_read_and_named(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / place)
    assert load("lra-retrieval", tmp_path).files == tuple(str(folder / name) for name in FILES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.0\ta\tb", r"new_aan_pairs.train.tsv, line 5: 3 fields, a label and two ids, so the texts are missing"),
        ("1.0\ta\tb\ttext", "train.tsv, line 5: 4 fields in place of 5"),
        ("1.0\ta\tb\ttext\tmore\tmost", "train.tsv, line 5: 6 fields in place of 5"),
        ("label\ta\tb\ttext\tmore", "line 5: label 'label' is unknown; it must be 0 or 1"),
        ("0.5\ta\tb\ttext\tmore", "line 5: label '0.5' is unknown"),
        ("nan\ta\tb\ttext\tmore", "line 5: label 'nan' is unknown"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("lra-retrieval", write(tmp_path, [*map(to_line, TRAIN), line]))


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    with open(tmp_path / FILES[1], "ab") as file:
        file.write(b"1.0\ta\tb\tone\ttw\xe9\n")
    with pytest.raises(ValueError, match="new_aan_pairs.eval.tsv, line 2: byte 0xe9 is not UTF-8"):
        load("lra-retrieval", tmp_path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    write(tmp_path / "aan")
    (tmp_path / "aan" / FILES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: aan/new_aan_pairs\.eval\.tsv\. "):
        load("lra-retrieval", tmp_path)
    (tmp_path / "aan" / FILES[1]).write_text("")
    with pytest.raises(ValueError, match="new_aan_pairs.eval.tsv is empty"):
        load("lra-retrieval", tmp_path)


def test_files_with_ids_only_are_told_from_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "new_aan_pairs.train.only_ids.tsv").write_text("1.0\ta\tb\n")
    with pytest.raises(
        FileNotFoundError, match="new_aan_pairs.train.only_ids.tsv holds labels and ids only: the texts"
    ):
        load("lra-retrieval", tmp_path)


def test_pairs_with_an_empty_text_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, [*map(to_line, TRAIN), to_line(("1.0", "", "x")), to_line(("0.0", "last", "one"))])
    with pytest.warns(UserWarning, match="pairs of which one text is empty are left out: 1 of train."):
        task = load("lra-retrieval", tmp_path)
    assert task.splits["train"]["example_id"][:] == [0, 1, 2, 3, 5]
    assert task.splits["validation"]["example_id"][:] == [6]
    assert "left out: 1 of train" in task.spec.notes


def test_pairs_in_two_parts_are_counted_in_either_order(tmp_path: Path) -> None:
    write(tmp_path, [to_line(("1", "six", "five")), to_line(("0", "three", "four")), to_line(("1", "one", "four"))])
    with pytest.warns(UserWarning, match="lra-retrieval: some inputs.*2 of 2 in test occur in train, too"):
        load("lra-retrieval", tmp_path)


def test_single_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the training part of lra-retrieval has the single label '1'"):
        load("lra-retrieval", write(tmp_path, [to_line(("1", "a", "b"))]))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of raw data is not there")
def test_plain_baselines_on_real_texts() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    task = load("lra-retrieval", SHARED)
    assert task.sizes == {"train": 372, "validation": 53, "test": 107}
    train, test = task.splits["train"], task.splits["test"]
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 4)).fit([*train["text"], *train["text_pair"]])

    def cosines(split: Any) -> np.ndarray:
        first, second = (vectorizer.transform(split[name][:]) for name in ("text", "text_pair"))
        return np.asarray(first.multiply(second).sum(axis=1)).ravel()

    known, labels = cosines(train), np.array(train["label"][:])
    threshold = max(known, key=lambda value: ((known >= value) == labels).mean())
    targets = np.array(test["label"][:])
    assert max(targets.mean(), 1 - targets.mean()) == pytest.approx(0.551, abs=5e-4)
    # 100 of 107.
    assert ((cosines(test) >= threshold) == targets).mean() >= 0.9345
