from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_study import SIZES, P, write_study

from neverscratch.hub_cards.runs import order_arms, read_study, scrub


def test_reads_a_whole_study(tmp_path: Path):
    study = read_study(write_study(tmp_path / "s", still_improving=(("s4d", "scratch", 2),)))
    assert len(study.runs) == 18 and not study.missing and not study.problems
    assert study.arms == ("scratch", "scratch-matched", "spt") and study.seeds == (0, 1, 2)
    run = study.get("s4d", "spt", 1)
    assert run is not None
    assert (run.steps("pretrain"), run.steps("finetune"), run.steps()) == (800, 1500, 2300)
    assert run.total("examples_seen") == 2300 * 32
    assert run.test == 325 / 360 and run.selected_step == 1500
    assert run.predictions is not None and run.predictions.correct.sum() == 325
    assert [r.seed for r in study.select("s4d", "scratch") if r.still_improving] == [2]
    # finetuning of spt starts where its pretraining stopped
    steps = {stage: [e.total_step for e in run.log if e.stage == stage] for stage in ("pretrain", "finetune")}
    assert max(steps["pretrain"]) == P < min(steps["finetune"]) and max(steps["finetune"]) == 2300
    assert {e.model for e in study.examples} == {"transformer", "s4d"} and study.examples[0].shape == (8, 8)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_no_study(tmp_path: Path, make):
    make(tmp_path / "x")
    with pytest.raises(ValueError, match=r"(not a folder|no study\.json).*runs/digits"):
        read_study(tmp_path / "x")


def test_parent_of_a_study_is_helped(tmp_path: Path):
    write_study(tmp_path / "digits")
    with pytest.raises(ValueError, match="did you mean .*digits"):
        read_study(tmp_path)


def test_empty_study_names_the_command(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [-1, -1]}}, seeds=[0, 1])
    with pytest.raises(ValueError, match=r"no finished run \(2 expected\); run `neverscratch compare digits`"):
        read_study(folder)


def test_broken_study_json(tmp_path: Path):
    folder = write_study(tmp_path / "s")
    (folder / "study.json").write_text('{"study": ')
    with pytest.raises(ValueError, match="s: study.json is cut off or no JSON; run the study's command again"):
        read_study(folder)


def test_half_written_runs_are_skipped_and_named(tmp_path: Path):
    folder = write_study(tmp_path / "s")
    (folder / "s4d/spt/seed-0/metrics.json").write_text('{"metric": "accuracy", "te')
    (folder / "s4d/spt/seed-1/run.json").unlink()
    metrics = folder / "s4d/spt/seed-2/metrics.json"
    raw = json.loads(metrics.read_text())
    raw["test"]["accuracy"] = float("nan")
    metrics.write_text(json.dumps(raw))
    study = read_study(folder)
    assert len(study.runs) == 15 and len(study.missing) == 3
    text = "\n".join(study.problems)
    assert "Run s4d/spt/seed-0 is damaged (metrics.json is cut off or no JSON)" in text
    assert "Run s4d/spt/seed-1 is damaged (run.json is missing)" in text
    assert "Run s4d/spt/seed-2 is damaged (metrics.json has no finite test accuracy" in text
    assert {place for place in study.damaged} == set(study.missing)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("metrics.json", [1], "metrics.json holds a list where an object is expected"),
        ("metrics.json", {"test": [0.9]}, "test in metrics.json is a list where an object is expected"),
        ("metrics.json", {"train": "good"}, "train in metrics.json is a text where an object is expected"),
        ("metrics.json", {"pretrain": 3}, "pretrain in metrics.json is a number where an object is expected"),
        ("metrics.json", {"test": {"accuracy": "0.9"}}, "metrics.json has no finite test accuracy"),
        ("run.json", {"stages": {"name": "finetune"}}, "stages in run.json is an object where a list is expected"),
        ("run.json", {"stages": [3]}, "stages in run.json holds a number where an object is expected"),
        ("run.json", {"stages": [{"steps": "many"}]}, "steps in run.json is no whole number"),
        ("run.json", {"stages": [{"steps": 3, "arguments": 3}]}, "arguments in run.json is a number where an object"),
        ("run.json", {"seeds": [1]}, "seeds in run.json is a list where an object is expected"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, name, change, reason):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300, 301], "spt": [310, 311]}})
    path = folder / "a/spt/seed-1" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change} if isinstance(change, dict) else change))
    study = read_study(folder)
    assert len(study.runs) == 3 and list(study.damaged) == [("a", "spt", 1)]
    (problem,) = study.problems
    assert problem.startswith(f"Run a/spt/seed-1 is damaged ({reason}")
    assert problem.endswith("and was left out; delete its folder and call the study's command again.")


def test_a_study_of_damaged_runs_says_so(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300, 301]}})
    for path in folder.glob("*/*/*/run.json"):
        path.write_text("{")
    with pytest.raises(
        ValueError, match=r"no run that can be read \(2 expected\).*seed-0 is damaged \(run.json is cut"
    ):
        read_study(folder)


def test_runs_outside_the_study_are_left_out(tmp_path: Path):
    folder = write_study(tmp_path / "s")
    info = json.loads((folder / "study.json").read_text())
    info["seeds"] = [0, 1]
    (folder / "study.json").write_text(json.dumps(info))
    (folder / "stages" / "0123abc").mkdir(parents=True)
    (folder / "s4d" / "spt" / "seed-0.tmp").mkdir()
    study = read_study(folder)
    assert len(study.runs) == 12
    assert any("6 run folders are not part of this study.json" in p for p in study.problems)


def test_predictions_that_contradict_the_metrics_are_named(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300]}})
    path = folder / "a/scratch/seed-0/predictions.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-20]) + "\n")
    assert any("predictions.csv gives a test accuracy" in p for p in read_study(folder).problems)


def test_odd_files_do_not_stop_the_reader(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300]}, "b": {"scratch": [301]}})
    (folder / "baselines.json").write_text("[1]")
    (folder / "examples.npz").write_bytes(b"PK nonsense")
    (folder / "a/scratch/seed-0/predictions.csv").write_text("id,label\n1,2\n")
    (folder / "a/scratch/seed-0/log.jsonl").write_text(
        '{"stage": "finetune", "step": 15, "loss": 2.0}\n{"stage": "fine'
    )
    (folder / "b/scratch/seed-0/log.jsonl").unlink()
    study = read_study(folder)
    assert len(study.runs) == 2 and study.baselines == () and study.examples == ()
    run = study.get("a", "scratch", 0)
    assert run is not None and run.predictions is None and len(run.log) == 1
    assert len(study.problems) == 5


def test_predictions_are_sorted_by_example(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300]}})
    path = folder / "a/scratch/seed-0/predictions.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(rows)]) + "\n")
    run = read_study(folder).runs[0]
    assert run.predictions is not None
    assert np.array_equal(run.predictions.example_ids, np.arange(1437, 1437 + SIZES["test"]))


def test_order_of_arms():
    assert order_arms(["spt", "qk-only", "scratch-matched", "scratch"]) == (
        "scratch",
        "scratch-matched",
        "spt",
        "qk-only",
    )


def test_scrub_hides_homes_and_tokens():
    text = scrub(
        f"compare --out {Path.home()}/x --data /home/someone/d '/Users/Some One/e' hf_abcdefghijkl /data/home/ok"
    )
    assert "someone" not in text and "hf_a" not in text and "/data/home/ok" in text and "--out ~/x" in text
