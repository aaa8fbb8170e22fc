"""What people who bring data expect of a tool like this, line by line, as they would meet it."""

from __future__ import annotations

import csv
import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoModelForSequenceClassification, AutoTokenizer

import neverscratch.tasks.lra_listops as listops
from neverscratch.recipes.cli import main
from neverscratch.recipes.data import KeptRows, prepare
from neverscratch.recipes.objectives import Classification
from neverscratch.tasks import list_tasks, load_task

# Labels as people have them: words, -1 and 1, from 1, and with gaps.
LABELS = {"words": ("no", "yes"), "signs": ("-1", "1"), "from one": ("1", "2"), "gaps": ("3", "7", "20")}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Type a command; its exit status and all it printed."""

    def call(*words: Any) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["neverscratch", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), "".join(capsys.readouterr())

    return call


def finetune(run: Any, *words: Any, out: str = "out", task: str = "own") -> Path:
    """Two steps of a small classifier from scratch; the folder of its checkpoint."""
    small = ("--set", "models.s4d.config.hidden_size=8", "--set", "finetune.max_steps=2")
    status, shown = run("finetune", task, "--from", "scratch", "--model", "s4d", "--out", out, *small, *words)
    assert status == 0, shown
    return Path(out)


def series(row: int, length: int = 6) -> np.ndarray:
    return np.random.default_rng(row).normal(size=length)


def write_wide(path: Path, labels: tuple[str, ...], num: int = 40) -> Path:
    lines = [",".join([*(f"{x:.3f}" for x in series(row)), labels[row % len(labels)]]) for row in range(num)]
    path.write_text("\n".join([",".join([*(f"t{step}" for step in range(6)), "label"]), *lines]) + "\n")
    return path


def write_form(form: str) -> tuple[Any, ...]:
    """Data in a form, with labels of a kind of their own, and the words that name them."""
    if form == "wide CSV":
        return "--data", write_wide(Path("x.csv"), LABELS["signs"]), "--label", "label"
    if form == "long CSV":
        lines = [f"{row},{t},{x:.3f},{LABELS['gaps'][row % 3]}" for row in range(40) for t, x in enumerate(series(row))]
        Path("x.csv").write_text("\n".join(["id,time,value,kind", *lines]) + "\n")
        return "--data", "x.csv", "--input", "value", "--label", "kind", "--option", "id=id", "--option", "time=time"
    if form == "numpy":
        labels = np.array([LABELS["words"][row % 2] for row in range(40)])
        np.savez("x.npz", x=np.stack([series(row) for row in range(40)]), y=labels)
        return "--data", "x.npz"
    if form == "ts":
        rows = [f"{','.join(map(str, series(row, 4 + row % 3)))}:{LABELS['from one'][row % 2]}" for row in range(40)]
        head = ["@problemName x", "@timeStamps false", "@univariate true", "@equalLength false", "@classLabel true 1 2"]
        Path("x_TRAIN.ts").write_text("\n".join([*head, "@data", *rows]) + "\n")
        return "--data", "x_TRAIN.ts"
    for row in range(40):
        folder = Path("texts") / LABELS["words"][row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{row}.txt").write_text(f"line {row} of a text")
    return "--data", "texts"


FORMS = {"wide CSV": "signs", "long CSV": "gaps", "numpy": "words", "ts": "from one", "text": "words"}


@pytest.mark.parametrize("form", FORMS)
def test_one_command_trains_on_own_data_and_answers_in_its_labels(form: str, run: Any) -> None:
    """Lines 1, 3 and 5: any form, any labels, which are in the predictions and in the model's config."""
    out = finetune(run, *write_form(form))
    expected = set(LABELS[FORMS[form]])
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert set(model.config.id2label.values()) == expected
    with (out / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows and {row["label"] for row in rows} | {row["prediction"] for row in rows} <= expected


def test_a_missing_column_is_answered_with_the_columns_found(run: Any) -> None:
    write_wide(Path("x.csv"), LABELS["words"])
    status, shown = run("data", "check", "own", "--data", "x.csv", "--label", "lable")
    assert status == 1 and "no column 'lable'" in shown and "label" in shown and "t0, t1, t2" in shown


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_label_that_training_never_saw_is_named(part: str, run: Any) -> None:
    Path("d").mkdir()
    for name in ("train", "validation", "test"):
        write_wide(Path("d") / f"{name}.csv", ("no", "yes", "never_seen") if name == part else ("no", "yes"))
    status, shown = run("data", "check", "own", "--data", "d", "--label", "label")
    assert status == 1 and "never_seen" in shown and part in shown


@pytest.mark.parametrize("channels", [1, 3])
def test_series_of_unequal_length_train_and_predict_without_padding_by_hand(channels: int, run: Any) -> None:
    rows = []
    for row in range(40):
        values = np.random.default_rng(row).normal(size=(channels, 3 + row % 5))
        rows.append(json.dumps({"x": values.T.tolist() if channels > 1 else values[0].tolist(), "label": row % 2}))
    Path("x.jsonl").write_text("\n".join(rows) + "\n")
    out = finetune(run, "--data", "x.jsonl", "--input", "x", "--label", "label")
    model, processor = (
        kind.from_pretrained(out) for kind in (AutoModelForSequenceClassification, AutoFeatureExtractor)
    )
    short, long = (np.random.default_rng(length).normal(size=(length, channels)) for length in (4, 7))
    together = model.eval()(**processor([short, long])).logits
    for alone, row in zip((short, long), together, strict=True):
        np.testing.assert_allclose(model(**processor([alone])).logits[0].detach(), row.detach(), atol=1e-5)


def test_a_missing_value_is_refused_with_its_row_or_handled_as_documented(run: Any) -> None:
    lines = write_wide(Path("x.csv"), LABELS["words"]).read_text().splitlines()
    lines[5] = ",".join(["nan", *lines[5].split(",")[1:]])
    Path("x.csv").write_text("\n".join(lines) + "\n")
    status, shown = run("data", "check", "own", "--data", "x.csv", "--label", "label")
    assert status == 1 and "x.csv, row 5" in shown and "t0" in shown and "--option missing=" in shown
    out = finetune(run, "--data", "x.csv", "--label", "label", "--option", "missing=interpolate")
    losses = [json.loads(line).get("loss") for line in (out / "log.jsonl").read_text().splitlines()]
    assert any(loss is not None for loss in losses) and all(np.isfinite(loss) for loss in losses if loss is not None)


@pytest.mark.parametrize("value", [-100.0, -1.0, 0.0, 1e6])
def test_any_real_number_is_data(value: float) -> None:
    """A series that holds what other tools take for padding is as long as it was, and another one than without it."""
    np.savez(
        "x.npz", x=np.stack([np.where(np.arange(6) == row % 6, value, series(row)) for row in range(40)]), y=[0, 1] * 20
    )
    data = prepare("own", {"data": "x.npz"}, None, 0)
    for example in KeptRows(data.splits["train"]):
        assert example["input_values"].shape == (6, 1) and np.isfinite(example["input_values"]).all()
    row = load_task("own", data="x.npz").splits["train"][0]["values"]
    other = np.where(np.asarray(row) == value, value + 1, row)
    encode = data.splits["train"].encode
    assert (encode(np.asarray(row)) != encode(other)).sum() == (np.asarray(row) == value).sum() == 1


def test_every_symbol_comes_back_from_encoding(run: Any) -> None:
    rows = [f"( ( [{op} {row % 10} ) 7 ] )\t{row % 10}" for row, op in enumerate(["MIN", "MAX", "MED", "SM"] * 10)]
    for name in listops.FILES:
        Path(name).write_text("\n".join(["Source\tTarget", *rows]) + "\n")
    tokenizer = AutoTokenizer.from_pretrained(finetune(run, "--data-dir", ".", task="lra-listops"))
    symbols = ["[MIN", "[MAX", "[MED", "[SM", "]", *map(str, range(10))]
    text = " ".join(symbols)
    assert tokenizer.decode(tokenizer(text)["input_ids"]).split() == symbols


def test_what_is_cut_is_counted_before(run: Any) -> None:
    write_wide(Path("x.csv"), LABELS["words"])
    words = ("--data", "x.csv", "--label", "label", "--option", "max_length=4")
    status, shown = run("data", "check", "own", *words)
    assert status == 0 and "28 of 28 will be cut at 4" in shown
    command = (
        "finetune",
        "own",
        "--from",
        "scratch",
        "--model",
        "s4d",
        "--out",
        "out",
        "--set",
        "finetune.max_steps=2",
    )
    status, shown = run(*command, *words)
    assert status == 0 and shown.count("longer than") == 1
    assert "40 of 40 sequences of own are longer than --option max_length=4 and lose their end" in shown


FOLDER_TASKS = [name for name in list_tasks() if name not in ("own", "digits", "gunpoint", "trajectory")]


@pytest.mark.parametrize("task", FOLDER_TASKS)
def test_benchmarks_name_missing_files_and_download_nothing(
    task: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("a loader opened a connection")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    Path("empty").mkdir()
    status, shown = run("data", "check", task.replace("<Name>", "ECG200"), "--data-dir", "empty")
    assert status == 1 and "empty" in shown and "Traceback" not in shown and "opened a connection" not in shown
    assert any(word in shown for word in ("Missing in", "holds no", "There is no"))


def test_the_variant_in_use_is_in_the_recipe_and_in_the_results(run: Any) -> None:
    write_wide(Path("x.csv"), LABELS["words"])
    small = [
        word
        for value in ("models.s4d.config.hidden_size=8", "finetune.max_steps=2", "pretrain.max_steps=2")
        for word in ("--set", value)
    ]
    words = ("--models", "s4d", "--arms", "scratch", "--seeds", 1, "--jobs", 1, "--option", "holdout_seed=5", *small)
    status, _ = run("compare", "own", "--data", "x.csv", "--label", "label", "--out", "out", *words)
    assert status == 0
    for name in ("report.md", "s4d/scratch/seed-0/recipe.yaml", "s4d/scratch/seed-0/README.md"):
        text = (Path("out") / name).read_text()
        assert "holdout_seed: 5" in text or "holdout_seed=5" in text, name


def test_no_script_of_a_data_set_is_run(run: Any) -> None:
    """A folder as sets of the Hub once were, whose data a script would make."""
    Path("d").mkdir()
    (Path("d") / "d.py").write_text("raise SystemExit('the script ran')")
    status, shown = run("data", "check", "own", "--data", "d", "--label", "label")
    assert status == 1 and "the script ran" not in shown and shown.startswith("error: ")
    write_wide(Path("d") / "d.csv", LABELS["words"])
    status, shown = run("data", "check", "own", "--data", "d", "--label", "label")
    assert status == 0 and "the script ran" not in shown


@pytest.mark.parametrize("form", ["wide CSV", "long CSV", "numpy", "ts"])
def test_batches_are_float32_of_batch_length_channels(form: str) -> None:
    words = write_form(form)
    options = {str(flag).strip("-"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    named = [word for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "--option"]
    options = {name: value for name, value in options.items() if name != "option"}
    options |= dict(str(word).split("=") for word in named)
    data = prepare("own", options, None, 0)
    split = data.splits["train"]
    batch = Classification()(split.__getitems__([0, 1, 2, 3]))
    longest = max(len(split[row]["input_values"]) for row in range(4))
    assert (batch["input_values"].dtype, batch["input_values"].shape) == (torch.float32, (4, longest, 1))


def files_below(*folders: str) -> set[str]:
    return {str(path) for folder in folders for path in Path(folder).rglob("*")}


def test_repeated_runs_leave_nothing_more(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    words = ("--data", write_wide(Path("x.csv"), LABELS["words"]), "--label", "label")
    before: set[str] = set()
    for attempt in range(3):
        assert run("data", "check", "own", *words)[0] == 0
        finetune(run, *words, out=f"out{attempt}")
        found = files_below("cache", "temporary")
        assert attempt == 0 or found == before
        before = found
    assert not files_below("temporary")
    assert {path.removeprefix("out1") for path in files_below("out1")} == {
        path.removeprefix("out2") for path in files_below("out2")
    }


def test_a_cache_that_takes_no_files_is_one_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"( [MIN {row % 10} 7 ] )\t{min(7, row % 10)}" for row in range(40)]
    for name in listops.FILES:
        Path(name).write_text("\n".join(["Source\tTarget", *rows]) + "\n")
    Path("file").write_text("")
    for folder in ("/proc/nowhere", "file"):
        monkeypatch.setenv("NEVERSCRATCH_CACHE", folder)
        status, shown = run("data", "check", "lra-listops", "--data-dir", ".")
        errors = [line for line in shown.splitlines() if line.startswith("error: ")]
        assert status == 1 and len(errors) == 1 and folder in errors[0] and "Traceback" not in shown
        assert "NEVERSCRATCH_CACHE" in errors[0]


def test_a_fraction_of_the_training_data(run: Any) -> None:
    write_wide(Path("x.csv"), ("a", "b", "c", "d"), num=80)
    options = {"data": "x.csv", "label": "label"}
    first, again, other = (prepare("own", options, 6, seed).splits["train"].example_ids.tolist() for seed in (0, 0, 1))
    assert len(first) == 6 and first == again != other
    with pytest.warns(UserWarning, match=r"label map stays whole, but raise train_size"):
        few = prepare("own", options, 2, 0)
    assert few.spec.labels == ("a", "b", "c", "d")
    out = finetune(run, "--data", "x.csv", "--label", "label", "--train-size", 2)
    assert AutoModelForSequenceClassification.from_pretrained(out).config.num_labels == 4
