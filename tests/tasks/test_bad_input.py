"""Files that are broken as files break, in every layout: one sentence, a status of one, and nothing left behind.

What each loader says of its own columns, labels, lists and values stands with its tests (`test_<loader>.py`, for own
data `test_own_readers.py`: columns, rows, missing values, unseen labels, copies, UTF-8, archives with `../`); what a
cache that cannot be written says, in `test_expectations.py`. Here is what is the same for all of them, as it is met at
the command line, and values that every loader of their kind must refuse or count.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bidmc import case, write_ts
from test_bidmc import write_arrays as write_bidmc_arrays
from test_cifar import write_batches, write_folders
from test_cifar import write_parquet as write_pictures
from test_lra_listops import write as write_listops
from test_lra_retrieval import write as write_pairs
from test_lra_text import write_csv, write_folder
from test_lra_text import write_parquet as write_reviews
from test_own import wav, wide
from test_pathfinder import HARD
from test_pathfinder import write as write_pathfinder
from test_speech_commands import write as write_words
from test_ucr import write as write_series

from neverscratch.recipes.cli import main


def write_ucr(folder: Path, suffix: str) -> None:
    head = "@problemName Toy\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 2\n"
    rows = ["0.5 1.5", "1.0 2.0", "0.0 -9", "3 4", "3 5", "7 8"]
    if suffix in ("tsv", "txt"):
        lines = [f"{i % 2 + 1} {row}".replace(" ", "\t" if suffix == "tsv" else "  ") for i, row in enumerate(rows)]
    elif suffix == "ts":
        head += "@classLabel true 1 2\n@data\n"
        lines = [head + f"{rows[0].replace(' ', ',')}:1"]
        lines += [f"{row.replace(' ', ',')}:{i % 2 + 1}" for i, row in enumerate(rows[1:], 1)]
    else:
        head = "@relation Toy\n@attribute a numeric\n@attribute b numeric\n@attribute target {1,2}\n@data\n"
        lines = [head + f"{rows[0].replace(' ', ',')},1"]
        lines += [f"{row.replace(' ', ',')},{i % 2 + 1}" for i, row in enumerate(rows[1:], 1)]
    text = "\n".join(lines) + "\n"
    test = text.replace("0.5", "0.25").replace("7", "6")
    write_series(folder, text, test, suffix=suffix)


def write_long(folder: Path) -> None:
    lines = [f"{row},{step},{row + step / 2},{'ab'[row % 2]}" for row in range(20) for step in range(3)]
    (folder / "x.csv").write_text("\n".join(["id,time,value,label", *lines]) + "\n")


def write_jsonl(folder: Path) -> None:
    rows = [json.dumps({"x": [row, row / 2, 1.5], "label": "ab"[row % 2]}) for row in range(20)]
    (folder / "x.jsonl").write_text("\n".join(rows) + "\n")


def write_table(folder: Path) -> None:
    import pandas as pd

    rows = [([float(row), row / 2], "ab"[row % 2]) for row in range(20)]
    pd.DataFrame(rows, columns=["x", "label"]).to_parquet(folder / "x.parquet")


def write_arrays(folder: Path) -> None:
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    np.save(folder / "y.npy", np.arange(20) % 2)


def write_npz(folder: Path) -> None:
    np.savez(folder / "x.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)


def write_bidmc_part(folder: Path, **arrays: np.ndarray) -> None:
    """The arrays of a pooled split, some of them replaced."""
    write_bidmc_arrays(folder)
    for name, array in arrays.items():
        np.save(folder / "HR" / "reshuffle" / f"{name}.npy", array)


def write_binary_reviews(folder: Path) -> None:
    import pandas as pd

    for part in ("train", "test"):
        pd.DataFrame({"text": [b"one", b"two"], "label": [0, 1]}).to_parquet(folder / f"{part}.parquet")


def write_targets(folder: Path, *targets: float) -> None:
    lines = [f"{row},{row / 2},{target}" for row, target in enumerate([*targets, *np.arange(30) + 0.5])]
    (folder / "x.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")


def write_drawings(folder: Path) -> None:
    """Grey pictures and one in colour."""
    from PIL import Image

    for row in range(20):
        path = folder / "ab"[row % 2] / f"{row:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB" if row == 7 else "L", (3, 3)).save(path)


def write_texts(folder: Path) -> None:
    for row in range(20):
        (folder / "ab"[row % 2]).mkdir(exist_ok=True)
        (folder / "ab"[row % 2] / f"{row}.txt").write_text(f"text {row}")


def write_sounds(folder: Path) -> None:
    for row in range(20):
        (folder / "ab"[row % 2]).mkdir(exist_ok=True)
        wav(folder / "ab"[row % 2] / f"{row}.wav", np.arange(50 + row).astype("<i2"))


DIR, OWN = "--data-dir", "--data"
# Layout -> task, the flag that takes the folder, what writes good files into it, and the file that is then broken.
LAYOUTS: dict[str, tuple[str, str, Callable[[Path], Any], str]] = {
    "listops": ("lra-listops", DIR, write_listops, "basic_train.tsv"),
    "text folders": ("lra-text", DIR, write_folder, "train/pos/020_7.txt"),
    "text csv": ("lra-text", DIR, write_csv, "train.csv"),
    "text parquet": ("lra-text", DIR, write_reviews, "train.parquet"),
    "pairs": ("lra-retrieval", DIR, write_pairs, "new_aan_pairs.train.tsv"),
    "cifar batches": ("lra-image", DIR, write_batches, "cifar-10-batches-py/data_batch_2"),
    "cifar parquet": (
        "scifar",
        DIR,
        lambda folder: write_pictures(folder, ([3, 1] * 6, [1, 3])),
        "train-00000-of-00001.parquet",
    ),
    "picture folders": ("scifar", DIR, write_folders, "train/cat/3.png"),
    "pathfinder": ("lra-pathfinder", DIR, lambda folder: write_pathfinder(folder / HARD), f"{HARD}/metadata/2.npy"),
    "speech commands": ("speech-commands-10", DIR, write_words, "yes/00000001_nohash_0.wav"),
    "bidmc ts": ("bidmc-hr", DIR, write_ts, "BIDMC32HR_TRAIN.ts"),
    "bidmc npy": ("bidmc-hr", DIR, write_bidmc_arrays, "HR/reshuffle/validx.npy"),
    **{
        f"ucr {suffix}": ("ucr:Toy", DIR, lambda folder, suffix=suffix: write_ucr(folder, suffix), f"Toy_TEST.{suffix}")
        for suffix in ("tsv", "txt", "ts", "arff")
    },
    "own wide csv": ("own", OWN, lambda folder: wide(folder / "x.csv"), "x.csv"),
    "own long csv": ("own", OWN, write_long, "x.csv"),
    "own jsonl": ("own", OWN, write_jsonl, "x.jsonl"),
    "own parquet": ("own", OWN, write_table, "x.parquet"),
    "own npy": ("own", OWN, write_arrays, "x.npy"),
    "own npz": ("own", OWN, write_npz, "x.npz"),
    "own texts": ("own", OWN, write_texts, "a/4.txt"),
    "own sounds": ("own", OWN, write_sounds, "a/4.wav"),
}
WORDS = {
    "own long csv": ["--input", "value", "--label", "label", "--option", "id=id", "--option", "time=time"],
    "own jsonl": ["--input", "x", "--label", "label"],
    "own parquet": ["--input", "x", "--label", "label"],
    "own wide csv": ["--label", "label"],
}


def noise(size: int) -> bytes:
    """Bytes that are no format, no text and no number."""
    return bytes(np.random.default_rng(0).integers(128, 192, size, dtype=np.uint8))


# How a file breaks -> what is left of its bytes; None for a file that is gone.
BREAKS: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "cut off": lambda old: old[: len(old) * 2 // 3 + 1],
    "of other bytes": lambda old: noise(len(old)),
    "with a wrong byte": lambda old: old[: len(old) // 2] + b"\xff\xfe" + old[len(old) // 2 :],
}
# What stays readable, with a word of it or as it is: one file fewer of many, a text or a sound that is another one, and
# pictures that no metadata list.
READABLE = {
    "text folders": {"gone", "cut off"},
    "picture folders": {"gone"},
    "pathfinder": {"gone", "cut off"},
    "speech commands": {"gone", "with a wrong byte"},
    "bidmc npy": {"with a wrong byte"},
    "own texts": {"gone", "cut off"},
    "own sounds": {"gone", "with a wrong byte"},
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Type `data check` of a layout in a folder; its status and all it printed."""
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))

    def check(layout: str, folder: Path) -> tuple[int, str]:
        task, flag, _, _ = LAYOUTS[layout]
        words = ["neverscratch", "data", "check", task, flag, str(folder), *WORDS.get(layout, [])]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), "".join(capsys.readouterr())

    return check


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(layout: str, folder: Path) -> Path:
    folder.mkdir()
    LAYOUTS[layout][2](folder)
    return folder / LAYOUTS[layout][3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_good_files_are_read(layout: str, run: Any, tmp_path: Path) -> None:
    assert made(layout, tmp_path / "data").is_file()
    status, shown = run(layout, tmp_path / "data")
    assert status == 0, shown


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_broken_file_is_one_sentence(layout: str, how: str, run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = made(layout, folder)
    left = BREAKS[how](path.read_bytes())
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    before = contents(folder)
    status, shown = run(layout, folder)
    assert "Traceback" not in shown and contents(folder) == before
    assert "listed in no metadata" in shown or layout != "pathfinder" or how not in READABLE[layout]
    if how in READABLE.get(layout, ()):
        assert status == 0
        return
    errors = [line for line in shown.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(errors) == 1 and errors[0].endswith((".", "?"))
    # Of a file that is gone nobody knows the exact name.
    assert path.name in errors[0] or (how == "gone" and ("issing" in errors[0] or "empty folder" in errors[0]))
    # Another part may have been prepared as a whole; nothing half-written is left.
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and path.suffix == ".incomplete"]


# Values that can be read but not learned from -> layout whose words are typed, what writes them, and the sentence.
VALUES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "arrays, target of 1e300": (
        "bidmc npy",
        lambda folder: write_bidmc_part(folder, testy=np.array([1.0, 1e300, 2.0])),
        "testy.npy, row 1 (from 0): the target 1e+300 is no finite 32-bit number; correct it or remove the row.",
    ),
    "arrays, one target": (
        "bidmc npy",
        lambda folder: write_bidmc_part(folder, trainy=np.full(14, 70.0)),
        "the training part of bidmc-hr has the single target 70; there is nothing to learn from it.",
    ),
    "windows, one target": (
        "bidmc ts",
        lambda folder: write_ts(folder, "".join(f"1,2,{row}:3,4,5:70\n" for row in range(20))),
        "the training part of bidmc-hr has the single target 70; there is nothing to learn from it.",
    ),
    "own, target of 1e300": (
        "own wide csv",
        lambda folder: write_targets(folder, 1e300),
        "The target 1e+300 is too large for 32-bit floats; rescale the targets, or correct it.",
    ),
    "reviews of bytes": (
        "text parquet",
        write_binary_reviews,
        "train.parquet, row 1: the text is of the type bytes; save the column as text.",
    ),
    "own pictures in grey and colour": (
        "own sounds",
        write_drawings,
        "b/07.png has shape (3, 3, 3) where the first image has (3, 3); give all pictures one size and kind of colour.",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_cannot_be_learned_from(name: str, run: Any, tmp_path: Path) -> None:
    layout, write, sentence = VALUES[name]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    status, shown = run(layout, tmp_path / "data")
    errors = [line for line in shown.splitlines() if line.startswith("error: ")]
    assert status == 1 and errors == [f"error: {sentence}"]


@pytest.mark.parametrize(
    ("layout", "write"),
    [
        ("bidmc ts", lambda folder: write_ts(folder, test=case(1) + case(50) + case(51))),
        ("bidmc npy", lambda folder: write_bidmc_part(folder, testx=np.full((3, 5, 2), 1.0))),
    ],
)
def test_windows_that_stand_in_two_parts_are_counted(
    layout: str, write: Callable[[Path], Any], run: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    status, shown = run(layout, folder)
    count = 1 if layout == "bidmc ts" else 3
    assert status == 0 and shown.count("stand in more than one part") == 1
    assert f"{count} of 3 in test occur in train, too" in shown


def test_labels_that_training_never_shows_are_one_warning(run: Any, tmp_path: Path) -> None:
    folder = write_listops(tmp_path / "data", ["[MAX 4 3 ]\t4", "[MIN 4 3 ]\t3"])
    status, shown = run("listops", folder)
    (warning,) = [line for line in shown.splitlines() if "no training example" in line]
    assert status == 0 and warning == (
        "warning: lra-listops: the validation part has the label(s) 2, the test part 5, which no training example has."
    )


def test_a_disk_that_fills_up_is_one_sentence_and_what_it_left_is_never_used(run: Any, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: both fail while the data are being written."""
    made("speech commands", tmp_path / "data")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        status, shown = run("speech commands", tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (error,) = [line for line in shown.splitlines() if line.startswith("error: ")]
    assert (
        status == 1
        and "Traceback" not in shown
        and error.startswith(f"error: the data cannot be prepared in {tmp_path / 'cache'} (")
    )
    assert "make room or set NEVERSCRATCH_CACHE" in error
    status, shown = run("speech commands", tmp_path / "data")
    assert status == 0 and "train       20 examples" in shown
