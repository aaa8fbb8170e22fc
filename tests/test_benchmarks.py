"""The benchmark runs, at sizes that take no time; what it measures is not looked at."""

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from neverscratch.tasks import load_task

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load_script(name):
    """A script as a module; it imports neither torch nor ours, as the measuring is done in other processes."""
    sys.path.insert(0, str(FOLDER))
    try:
        description = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(description)
        sys.modules[name] = module
        description.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def layers():
    yield from load_script("layers")


@pytest.fixture(scope="module")
def data():
    yield from load_script("data")


def test_targets_are_consistent(layers):
    rows = layers.all_rows(["s4d", "s4", "transformer"], {})
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        for target in row.targets:
            assert target.top in row.specs and (target.bottom is None or target.bottom in row.specs)
            assert target.met(target.aim, target.must) and target.met(target.aim, target.aim)


def test_marks(layers):
    row = layers.Row("toy", "", {})
    faster = layers.Target("time", "original", "ours", 2.0, 3.0)
    results = {"original": {"seconds": [4.0, 9.0, 5.0]}, "ours": {"seconds": [2.0, 3.0, 2.0]}}
    # Pair by pair: 2, 3 and 2.5.
    line = layers.judge(row, faster, layers.ratios(faster, results))
    assert line["measured"] == [2.0, 3.0, 2.5] and line["mark"] == "must"
    assert layers.judge(row, faster, [1.9])["mark"] == "MISS" and layers.judge(row, faster, [3.0])["mark"] == "aim"
    slower = layers.Target("time", "ours", None, 60, 30, at_least=False, unit="us")
    assert layers.ratios(slower, {"ours": {"seconds": [4e-5]}}) == pytest.approx([40.0])
    assert [layers.judge(row, slower, [x])["mark"] for x in (61.0, 40.0, 30.0)] == ["MISS", "must", "aim"]


def test_no_such_row(layers):
    with pytest.raises(SystemExit, match="--rows s4e names no row; there are s4d-layer"):
        layers.choose(layers.all_rows([], {}), "s4d-*,s4e")


def test_floor_is_timed_and_the_original_is_missed(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "layers.py"), "--quick", "--repeats", "2", "--json", str(report)]
    command += ["--rows", "s4d-floor,s4d-kernel-4096", "--peer-s4", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    report = json.loads(report.read_text())
    assert report["about"]["torch"] in result.stdout and "QUICK" in result.stdout
    for label in ("ours", "floor"):
        floor = report["measured"]["s4d-floor"][label]
        assert len(floor["seconds"]) == 2 and min(floor["seconds"]) > 0
        assert floor["shape"] == [2, 64, 16]
    lines = {line["row"]: line for line in report["targets"]}
    assert len(lines["s4d-floor"]["measured"]) == 2
    assert lines["s4d-kernel-4096"]["mark"] == "not available"
    assert "s4d.py does not exist" in lines["s4d-kernel-4096"]["reason"]
    assert "not available:" in result.stdout


@pytest.mark.parametrize("name", ["lra-listops", "lra-pathfinder", "own-text", "own-series"])
def test_sets_to_measure_are_what_their_tasks_read(data, name, tmp_path, monkeypatch):
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    case = data.CASES[name]
    # Pictures are few different ones, so the task rightly says that some stand in two parts.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(more than one part|no training example has)")
        task = load_task(case.task, **case.make(tmp_path / "set", 60))
    assert sum(task.sizes.values()) == 60 and min(task.sizes.values()) > 0
    at_least = {"lra-listops": 2048, "lra-pathfinder": 1024, "own-text": 1500, "own-series": 16384}
    assert task.spec.length >= at_least[name]


def test_both_starts_on_a_set_are_measured(data, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "data.py"), "--only", "lra-pathfinder", "--images", "40", "--shares", "1"]
    command += ["--folder", str(tmp_path), "--json", str(report)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(report.read_text())["lra-pathfinder"]
    assert found["size"] == 40 and found["cache"] > 40 * 1024
    for start in (found["cold"], found["warm"]):
        assert start["seconds"] > 0 and start["peak_of_first"] > 100 * 2**20
        # Looked at now and then, and shared pages count in part.
        assert 0 < start["peak"] < 2 * start["peak_of_first"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    good = {"seconds": data.MOST_SECONDS, "peak": data.MOST_BYTES - 1, "peak_of_first": 1}
    for changed, mark in (({}, "met"), ({"seconds": 10.1}, "MISS"), ({"peak": data.MOST_BYTES}, "MISS")):
        assert data.line("x", {"size": 1, "cold": good, "warm": good | changed, "cache": 1}).endswith(mark)


def test_a_start_that_fails_says_why(data, tmp_path):
    with pytest.raises(SystemExit, match="is not a folder"):
        data.start("lra-listops", {"data_dir": tmp_path / "nothing"}, tmp_path)
