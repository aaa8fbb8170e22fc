"""The benchmark runs, at sizes that take no time; what it measures is not looked at."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def layers():
    """The script as a module; it imports neither torch nor ours, as the measuring is done in other processes."""
    sys.path.insert(0, str(FOLDER))
    try:
        description = importlib.util.spec_from_file_location("layers", FOLDER / "layers.py")
        module = importlib.util.module_from_spec(description)
        sys.modules["layers"] = module
        description.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("layers", None)


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
