"""`data make`, `data check` and a comparison on what was made, as one types them."""

import shlex
import sys

import pytest

from neverscratch.recipes.cli import main
from neverscratch.tasks import list_tasks, task_entry


def call(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["neverscratch", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def test_make_check_compare(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "list ops"
    make = ("data", "make", "lra-listops", "--out", folder, "--size", 50, "--seed", 3)
    options = [
        word for name, value in (("min_length", 5), ("max_length", 40)) for word in ("--option", f"{name}={value}")
    ]
    assert call(monkeypatch, *make, *options) == 0
    shown = capsys.readouterr().out
    assert shlex.split(shown)[-5:] == ["data", "check", "lra-listops", "--data-dir", str(folder)]
    assert call(monkeypatch, "data", "check", "lra-listops", "--data-dir", folder) == 0
    shown = capsys.readouterr().out
    assert "train       48 examples" in shown and "10 classes, metric accuracy (chance 0.1)" in shown
    budget = [word for stage in ("pretrain", "finetune") for word in ("--set", f"{stage}.max_steps=2")]
    out = tmp_path / "runs"
    compare = (
        "compare",
        "lra-listops",
        "--data-dir",
        folder,
        "--models",
        "s4d",
        "--seeds",
        1,
        "--jobs",
        1,
        "--out",
        out,
    )
    assert call(monkeypatch, *compare, *budget) == 0
    assert (out / "report.html").is_file() and (out / "s4d" / "spt" / "seed-0" / "tokenizer.json").is_file()
    # A checkpoint of symbols brings a tokenizer; it is not for pictures.
    words = ("--from", out / "s4d" / "spt" / "seed-0", "--out", tmp_path / "again", "--set", "finetune.max_steps=2")
    assert call(monkeypatch, "finetune", "digits", *words) == 1
    assert "reads texts or symbols, but digits holds images; give" in capsys.readouterr().err
    assert call(monkeypatch, "finetune", "lra-listops", "--data-dir", folder, *words) == 0
    assert (tmp_path / "again" / "tokenizer.json").is_file()
    # The same folder with other settings is refused, and stays.
    assert call(monkeypatch, *make) == 1
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check", "lra-listop"], "Did you mean 'lra-listops'"),
        (["data", "check", "lra-listops"], "Give --data-dir, the folder that holds its files"),
        (["data", "check", "digits", "--data-dir", "x"], "error: --data-dir 'x' was given, but digits comes"),
        (
            ["data", "check", "ucr:Foo", "--data-dir", "nowhere"],
            "error: --data-dir 'nowhere' is not a folder; give the",
        ),
        (["data", "check", "ucr:Foo", "--data-dir", "."], "Missing in .: Foo/"),
        (["data", "check", "own"], "needs --data, the file or folder, or the name owner/name"),
        (["data", "check", "own", "--data", "t.csv"], "name it in --label. Its columns: x, y2"),
        (["data", "check", "own", "--data", "t.csv", "--label", "z"], "has no column 'z' (--label)"),
        (
            ["data", "check", "own", "--data", "t.csv", "--label", "y2", "--option", "split=z"],
            "'z' (--option split=...)",
        ),
        (
            ["data", "check", "own", "--data", "gaps.csv", "--label", "y"],
            "or give --option missing=interpolate, zero or trim",
        ),
        (["data", "check", "own", "--data", "t.csv", "--option", "metric=x"], "--option metric='x' is unknown"),
        (["compare", "digits", "--train-size", "9999"], "error: --train-size 9999 is more than the 1257 training"),
        (["compare", "digits", "--train-size", "9999"], "or leave it out for all."),
        (["data", "make", "lra-listops", "--out", "x", "--size", "5"], "error: --size 5 is too small"),
        (
            ["data", "make", "lra-listops", "--out", "x", "--option", "max_length=1"],
            "error: --option max_length=1",
        ),
        (["data", "check", "digits", "--option", "level"], "not of the form KEY=VALUE"),
        (["data", "check", "digits", "--option", "levle=1"], "has no option 'levle'"),
        (["data", "make", "digits", "--out", "x"], "digits"),
        (["compare", "lra-pathfinder", "--option", "levl=easy"], "has no option 'levl'. Did you mean 'level'"),
        (["compare", "lra-pathfinder", "--data-dir", "nowhere"], "is not a folder"),
    ],
)
def test_bad_words_are_refused(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,y2\n1,a\n")
    (tmp_path / "gaps.csv").write_text("x,x2,y\n" + "1,2,a\n3,4,b\n" * 20 + "1,,a\n")
    assert call(monkeypatch, *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error
    # One stop at the end, and no way out that this command does not have.
    assert error.endswith(".\n") and ".." not in error.replace("...", "").replace("/..", "") and "--out" not in error
    assert not (tmp_path / "x").exists() and not (tmp_path / "runs").exists()


def test_every_task_is_listed_with_where_its_data_come_from(monkeypatch, capsys):
    assert call(monkeypatch, "list", "tasks") == 0
    # Wrapped to the terminal.
    shown = " ".join(capsys.readouterr().out.split())
    for name in list_tasks():
        entry = task_entry(name)
        assert f"{name} " in shown and entry.title in shown and entry.license in shown and entry.layout in shown


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_of_tasks_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert call(monkeypatch, "list", "tasks") == 0
    shown = capsys.readouterr().out
    # Only an address that is longer than the line stays whole.
    assert all(len(line) <= columns or "://" in line for line in shown.splitlines())
    assert [name for name in list_tasks() if not any(line.startswith(name) for line in shown.splitlines())] == []
