"""Runs of former settings, and files cut in half."""

import json

from synthetic_study import write_study

from neverscratch.hub_cards import read_study, write_report


def test_runs_of_other_settings_are_not_compared(tmp_path):
    folder = write_study(tmp_path / "study")
    study = read_study(folder)
    record = json.loads((folder / "study.json").read_text())
    record["runs"] = [
        {"model": run.model, "arm": run.arm, "seed": run.seed, "keys": list(run.keys)} for run in study.runs
    ]
    (folder / "study.json").write_text(json.dumps(record))
    assert len(read_study(folder).runs) == len(study.runs)
    record["runs"][0]["keys"] = ["another"]
    (folder / "study.json").write_text(json.dumps(record))
    again = read_study(folder)
    assert len(again.runs) == len(study.runs) - 1
    assert any("made with other settings, code or data" in problem for problem in again.problems)


def test_a_cut_examples_file_costs_the_picture_only(tmp_path):
    folder = write_study(tmp_path / "study")
    path = folder / "examples.npz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    write_report(folder)
    assert any("examples.npz could not be read" in problem for problem in read_study(folder).problems)
