"""`lra-listops`: both layouts of the published files, every place of the release, generated lists, each bad input."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import Task
from neverscratch.tasks.generate_listops import VOCABULARY as GENERATED_VOCABULARY
from neverscratch.tasks.generation import make
from neverscratch.tasks.lra_listops import ENTRIES, FILES, PLACES, VOCABULARY, load

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "lra_format"
WITH = ["( ( ( [MAX 4 ) 3 ) ] )\t4", "( ( ( [MIN 4 ) ( ( ( [SM 9 ) 3 ) ] ) ) ] )\t2", "( ( ( [MED 4 ) 7 ) ] )\t5"]
WITHOUT = ["[MAX 4 3 ]\t4", "[MIN 4 [SM 9 3 X X\t2", "[MED 4 7 ]\t5"]
TOKENS = [["[MAX", "4", "3", "]"], ["[MIN", "4", "[SM", "9", "3", "]", "]"], ["[MED", "4", "7", "]"]]
OTHERS = (["[SM 1 1 ]\t2"], ["[SM 2 2 ]\t4", "5\t5"])


def write(folder: Path, train: list[str] = WITHOUT, end: str = "\r\n", header: str = "Source\tTarget") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(FILES, (train, *OTHERS), strict=True):
        (folder / name).write_bytes("".join(line + end for line in (header, *lines)).encode())
    return folder


def value(tokens: list[str]) -> int:
    """What a list is worth."""
    apply = {"[MIN": min, "[MAX": max, "[MED": np.median, "[SM": lambda args: sum(args) % 10}
    stack: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens:
        if token in apply:
            stack.append((token, []))
        elif token == "]":
            name, args = stack.pop()
            stack[-1][1].append(int(apply[name](args)))
        else:
            stack[-1][1].append(int(token))
    ((_, result),) = stack
    return result[0]


def check_values(task: Task) -> None:
    for split in task.splits.values():
        assert [value(tokens) for tokens in split["tokens"][:]] == split["label"][:]


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("lines", [WITH, WITHOUT])
def test_both_layouts_and_line_ends_give_the_same(tmp_path: Path, lines: list[str], end: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load("lra-listops", write(tmp_path, lines, end))
    assert task.splits["train"]["tokens"][:] == TOKENS
    assert task.splits["train"].column_names == ["tokens", "label", "example_id"]
    assert [split["example_id"][:] for split in task.splits.values()] == [[0, 1, 2], [3], [4, 5]]
    assert task.splits["test"].features["label"].names == list(task.spec.labels or ()) == list("0123456789")
    assert (task.spec.unit, task.spec.vocabulary, task.spec.max_length) == ("symbols", VOCABULARY, 2048)
    assert (task.spec.length, task.spec.modality) == (7, "tokens")
    check_values(task)
    again = load("lra-listops", tmp_path)
    assert again.splits["train"][:] == task.splits["train"][:]


def test_symbols_are_fifteen_in_the_order_of_the_generator() -> None:
    assert len(VOCABULARY) == 15
    assert VOCABULARY == GENERATED_VOCABULARY


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_the_release_is_read_and_named(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / place)
    assert load("lra-listops", tmp_path).files == tuple(str(folder / name) for name in FILES)


def test_of_two_nested_copies_the_inner_one_is_read(tmp_path: Path) -> None:
    write(tmp_path / "lra_release" / "listops-1000")
    inner = write(tmp_path / "lra_release" / "lra_release" / "listops-1000")
    assert load("lra-listops", tmp_path).files[0] == str(inner / FILES[0])


def test_blank_lines_at_the_end_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path, [*WITHOUT, ""])
    path = tmp_path / FILES[0]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load("lra-listops", tmp_path).sizes == {"train": 3, "validation": 1, "test": 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[MAX 4 [AVG 1 ] ]\t4", r"basic_train.tsv, line 5: symbol '\[AVG' is unknown; the symbols are 0 1 .* \[SM \]"),
        ("[MAX 4 12 ]\t4", "line 5: symbol '12' is unknown"),
        ("[MAX 4 3 ]", r"line 5: 1 fields in place of 2 \(Source, Target\)"),
        ("[MAX 4 3 ]\t4\t4", "line 5: 3 fields in place of 2"),
        ("[MAX 4 3 ]\t10", "line 5: target '10' is no digit; it must be 0 to 9."),
        ("[MAX 4 3 ]\t", "line 5: target '' is no digit"),
        ("( )\t1", "line 5: the list is empty; remove the line."),
        ("( [MAX 4 [MIN 3 ]\t4", "line 5: 2 lists are opened and 1 closed; the file may be damaged or cut off."),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("lra-listops", write(tmp_path, [*WITHOUT, line]))


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    with open(tmp_path / FILES[2], "ab") as file:
        file.write(b"[MAX 4 \xff ]\t4\n")
    with pytest.raises(ValueError, match="basic_test.tsv, line 4: byte 0xff is not UTF-8"):
        load("lra-listops", tmp_path)


def test_wrong_header_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="basic_train.tsv must begin with the header Source, Target.*'Src', 'Target'"):
        load("lra-listops", write(tmp_path, header="Src\tTarget"))
    write(tmp_path)
    (tmp_path / FILES[1]).write_text("Source\tTarget\n")
    with pytest.raises(ValueError, match="basic_val.tsv holds no example below its header"):
        load("lra-listops", tmp_path)
    (tmp_path / FILES[1]).write_text("")
    with pytest.raises(ValueError, match="basic_val.tsv must begin with the header"):
        load("lra-listops", tmp_path)


def test_missing_files_are_named_where_the_others_are(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="Missing in .*: basic_train.tsv, basic_val.tsv, basic_test.tsv.*listops/"
    ):
        load("lra-listops", tmp_path)
    write(tmp_path / "listops")
    (tmp_path / "listops" / FILES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"Missing in .*: listops/basic_val\.tsv\. "):
        load("lra-listops", tmp_path)
    with pytest.raises(FileNotFoundError, match="'.*nowhere' is not a folder"):
        load("lra-listops", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="lra-listops needs data_dir"):
        load("lra-listops", None)


def test_single_label_is_refused_and_unseen_labels_and_repeats_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the training part of lra-listops has the single label '4'"):
        load("lra-listops", write(tmp_path, ["[MAX 4 3 ]\t4"]))
    write(tmp_path, ["[MAX 4 3 ]\t4", "( ( ( [SM 1 ) 1 ) ] )\t2"])
    with pytest.warns(UserWarning) as caught:
        task = load("lra-listops", tmp_path)
    unseen, repeats = (str(warning.message) for warning in caught)
    assert unseen == "lra-listops: the test part has the label(s) 5, which no training example has."
    assert "1 of 1 in validation occur in train, too" in repeats
    assert len(task.splits["validation"]) == 1


def test_generated_lists_are_read(tmp_path: Path) -> None:
    make("lra-listops", tmp_path / "made", size=100, seed=3, progress=False, min_length=5, max_length=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A small set may lack a label.
        task = load("lra-listops", tmp_path / "made")
    assert task.sizes == {"train": 96, "validation": 2, "test": 2}
    assert "Generated" in task.spec.notes and "seed 3" in task.spec.notes
    assert task.spec.length == max(len(tokens) for split in task.splits.values() for tokens in split["tokens"][:])
    assert task.files == (str(tmp_path / "made"),)
    check_values(task)


def test_entry_says_that_it_can_be_generated() -> None:
    assert ENTRIES["lra-listops"].can_generate


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of raw data is not there")
def test_real_sample() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load("lra-listops", SHARED)
    assert task.sizes == {"train": 40, "validation": 10, "test": 10}
    lengths = [len(tokens) for split in task.splits.values() for tokens in split["tokens"][:]]
    assert min(lengths) >= 500 and max(lengths) == task.spec.length < 2000
    check_values(task)
