import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from filelock import FileLock, Timeout
from safetensors.torch import load_file
from tiny_recipe import RAW
from transformers import AutoFeatureExtractor, AutoModelForSequenceClassification

from neverscratch.recipes import study, train
from neverscratch.recipes.config import ARMS, parse_recipe
from neverscratch.recipes.data import data_digest
from neverscratch.recipes.study import Run, StudyError, expand, run_study
from neverscratch.tasks import load_task

TIMING = {"seconds"}


def numbers(folder: Path) -> dict:
    """Everything a study found out, without what depends on the clock."""
    found = {}
    for path in sorted(folder.glob("*/*/seed-*")):
        name = str(path.relative_to(folder))
        run = json.loads((path / "run.json").read_text())
        stages = [{key: value for key, value in stage.items() if key not in TIMING} for stage in run["stages"]]
        found[name] = (
            stages,
            run["seeds"],
            (path / "metrics.json").read_text(),
            (path / "log.jsonl").read_text(),
            (path / "predictions.csv").read_text(),
            {key: tensor.tolist() for key, tensor in load_file(path / "model.safetensors").items()},
        )
    found["baselines"] = (folder / "baselines.json").read_text()
    return found


def run_tiny(folder, seeds=(0,), jobs=1, raw=RAW, models=("transformer", "s4d"), arms=tuple(ARMS)):
    run_study(parse_recipe(raw, "tiny"), list(models), list(arms), list(seeds), folder, name="tiny", jobs=jobs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The tiny comparison, undisturbed, one job."""
    folder = tmp_path_factory.mktemp("study") / "tiny"
    run_tiny(folder)
    return folder


def test_the_three_arms_train_for_the_steps_they_promise(recipe):
    runs = expand(recipe, ["s4d"], list(ARMS), [0, 1])
    steps = {run.arm: [spec["arguments"]["max_steps"] for spec in run.stages] for run in runs}
    assert steps == {"scratch": [12], "spt": [8, 12], "scratch-matched": [20]}
    assert [(run.arm, run.seed) for run in runs] == [(arm, seed) for seed in (0, 1) for arm in ARMS]
    for seed in (0, 1):
        seeds = [spec["seeds"] for run in runs if run.seed == seed for spec in run.stages]
        assert all(each == seeds[0] for each in seeds)


def test_a_run_folder_is_complete_and_opens(finished):
    folder = finished / "s4d" / "spt" / "seed-0"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "recipe.yaml", "run.json", "metrics.json", "log.jsonl", "predictions.csv", "config.json", "model.safetensors",
        "preprocessor_config.json", "modeling_s4d.py",
    }  # fmt: skip
    assert not {"stage.json", "checkpoints", "training_args.bin"} & names
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label[3] == "3"
    processor = AutoFeatureExtractor.from_pretrained(folder)
    task = train.prepare("digits", {}, 40, 0)
    logits = model(**processor([[[5] * 8] * 8])).logits
    assert logits.shape == (1, len(task.spec.labels))
    record = json.loads((folder / "run.json").read_text())
    assert [stage["name"] for stage in record["stages"]] == ["pretrain", "finetune"]
    assert record["seeds"].keys() == {"init", "order", "mask", "split"}
    assert {"torch", "transformers", "neverscratch"} <= record["versions"].keys()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {"train", "validation", "test", "pretrain", "selected_step", "still_improving"} <= metrics.keys()
    resolved = parse_recipe(yaml.safe_load((folder / "recipe.yaml").read_text()), "recipe.yaml")
    assert list(resolved.models) == ["s4d"]
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [entry["stage"] for entry in log] == sorted((entry["stage"] for entry in log), reverse=True)


def test_published_finetunings_are_not_kept_twice(finished):
    kept = [path.name for path in (finished / "stages").iterdir()]
    pretrained = [
        json.loads((finished / model / "spt" / "seed-0" / "run.json").read_text())["stages"][0]["key"]
        for model in ("transformer", "s4d")
    ]
    assert sorted(kept) == sorted(pretrained)


def test_two_jobs_give_the_digits_of_one(finished, tmp_path):
    run_tiny(tmp_path / "tiny", jobs=2)
    assert numbers(tmp_path / "tiny") == numbers(finished)


def test_a_second_call_trains_nothing(finished, monkeypatch):
    before = numbers(finished)
    monkeypatch.setattr(study, "execute", lambda *args: pytest.fail("trained again"))
    run_tiny(finished)
    assert numbers(finished) == before


def test_more_seeds_reuse_what_is_there(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    stamp = (tmp_path / "tiny/s4d/spt/seed-0/run.json").stat().st_mtime_ns
    run_tiny(tmp_path / "tiny", seeds=(0, 1), models=("s4d",), arms=("spt",))
    assert (tmp_path / "tiny/s4d/spt/seed-0/run.json").stat().st_mtime_ns == stamp
    assert (tmp_path / "tiny/s4d/spt/seed-1/run.json").is_file()
    assert (tmp_path / "tiny/transformer/scratch/seed-0/run.json").is_file()


def test_changed_settings_replace_the_runs(finished, recipe, raw_recipe):
    data = data_digest(load_task("digits"))
    run = expand(recipe, ["s4d"], ["spt"], [0], data)[0]
    assert run.is_done(finished)
    assert not expand(recipe, ["s4d"], ["spt"], [0], "other data")[0].is_done(finished)
    raw_recipe["finetune"]["learning_rate"] = 2.0e-2
    assert not expand(parse_recipe(raw_recipe, "x"), ["s4d"], ["spt"], [0], data)[0].is_done(finished)


@pytest.mark.parametrize(
    "broken",
    [
        "examples.npz",
        "baselines.json",
        "study.json",
        "s4d/spt/seed-0/run.json",
        "s4d/spt/seed-0/metrics.json",
    ],
)
def test_a_file_cut_in_half_heals(finished, tmp_path, broken):
    shutil.copytree(finished, tmp_path / "tiny")
    path = tmp_path / "tiny" / broken
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    run_tiny(tmp_path / "tiny")
    assert numbers(tmp_path / "tiny") == numbers(finished)
    with np.load(tmp_path / "tiny" / "examples.npz") as healed, np.load(finished / "examples.npz") as whole:
        assert set(healed.files) == set(whole.files)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "mine"
    (folder / "stages" / "my_experiment").mkdir(parents=True)
    (folder / "stages" / "my_experiment" / "data.bin").write_text("precious")
    (folder / "study.json").write_text("{}")
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match="is not empty and holds no comparison"):
        run_tiny(folder)
    assert sorted(folder.rglob("*")) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        run_tiny(tmp_path / "file")


def test_other_settings_do_not_replace_results_unasked(finished, raw_recipe, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    raw_recipe["train_size"] = 50
    with pytest.raises(ValueError, match=r"other settings \(train_size\); give another folder"):
        run_tiny(tmp_path / "tiny", raw=raw_recipe)
    assert numbers(tmp_path / "tiny") == numbers(finished)


def test_a_part_of_the_models_keeps_the_others_in_the_study(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    run_tiny(tmp_path / "tiny", models=("s4d",), arms=("spt",))
    record = json.loads((tmp_path / "tiny" / "study.json").read_text())
    assert record["models"] == ["transformer", "s4d"] and len(record["runs"]) == 6


def test_fewer_seeds_keep_the_baselines_of_the_others(tmp_path):
    run_tiny(tmp_path / "tiny", seeds=(0, 1), models=("s4d",), arms=("scratch",))
    before = (tmp_path / "tiny" / "baselines.json").read_text()
    run_tiny(tmp_path / "tiny", seeds=(0,), models=("s4d",), arms=("scratch",))
    assert (tmp_path / "tiny" / "baselines.json").read_text() == before


def test_a_kill_while_the_first_file_is_written_does_not_lock_the_folder(tmp_path, monkeypatch):
    folder = tmp_path / "tiny"

    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run_tiny(folder, models=("s4d",), arms=("scratch",))
    assert any(path.suffix == ".tmp" for path in folder.iterdir())
    run_tiny(folder, models=("s4d",), arms=("scratch",))
    assert (folder / "s4d/scratch/seed-0/run.json").is_file()


def test_weights_and_predictions_that_were_cut_are_made_again(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    weights = tmp_path / "tiny/s4d/scratch/seed-0/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    predictions = tmp_path / "tiny/transformer/scratch/seed-0/predictions.csv"
    predictions.write_text("".join(predictions.read_text().splitlines(keepends=True)[:50]))
    run_tiny(tmp_path / "tiny")
    assert numbers(tmp_path / "tiny") == numbers(finished)


def test_lost_weights_of_a_run_or_a_stage_are_trained_again(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    shutil.rmtree(tmp_path / "tiny" / "transformer")
    (tmp_path / "tiny/s4d/spt/seed-0/model.safetensors").unlink()
    for weights in (tmp_path / "tiny" / "stages").glob("*/model.safetensors"):
        weights.unlink()
    run_tiny(tmp_path / "tiny", models=("s4d",))
    assert numbers(tmp_path / "tiny")["s4d/spt/seed-0"] == numbers(finished)["s4d/spt/seed-0"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"test": [1]}', '{"stages": 3, "model_type": "x"}'])
@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
def test_a_damaged_record_of_a_run_is_not_taken_for_done(finished, recipe, tmp_path, name, content):
    folder = shutil.copytree(finished, tmp_path / "tiny")
    run = expand(recipe, ["s4d"], ["scratch"], [0], data_digest(load_task("digits")))[0]
    assert run.is_done(folder)
    (run.folder(folder) / name).write_text(content)
    assert not run.is_done(folder)
    # Nor does it stop the clearing away at the end.
    study._prune(folder)


@pytest.mark.parametrize("content", [{"recipe": [], "runs": []}, {"recipe": {}, "runs": 3}, {"runs": [3]}])
def test_a_damaged_study_json_is_written_anew(finished, recipe, tmp_path, content):
    folder = shutil.copytree(finished, tmp_path / "tiny")
    (folder / "study.json").write_text(json.dumps(content))
    run_study(recipe, ["s4d"], ["scratch"], [0], folder, name="tiny")
    assert [entry["arm"] for entry in json.loads((folder / "study.json").read_text())["runs"]] == ["scratch"]


def test_study_json_names_the_stages_of_every_run(finished):
    record = json.loads((finished / "study.json").read_text())
    for entry in record["runs"]:
        run = json.loads((finished / entry["model"] / entry["arm"] / f"seed-{entry['seed']}" / "run.json").read_text())
        assert [stage["key"] for stage in run["stages"]] == entry["keys"]
    assert len(record["runs"]) == 6


def test_the_recipe_of_a_run_states_the_steps_that_ran(finished):
    matched = yaml.safe_load((finished / "s4d/scratch-matched/seed-0/recipe.yaml").read_text())
    assert matched["finetune"]["max_steps"] == 20


def test_an_objective_that_does_not_fit_the_data_is_refused_before_training(raw_recipe, tmp_path):
    raw_recipe["objective"] = "masked_values"
    with pytest.raises(
        ValueError, match="masked_values does not fit task digits, whose inputs are tokens; use masked_t"
    ):
        run_tiny(tmp_path / "tiny", raw=raw_recipe)
    assert not (tmp_path / "tiny").exists()


def test_the_data_are_read_once_for_all_seeds(recipe, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(study, "load_task", lambda name, **options: read.append(name) or load_task(name, **options))
    whole, subsets = study.check_study(recipe, ["s4d"], ["scratch"], [0, 1, 2], tmp_path, False)
    assert read == ["digits"] and whole.sizes["train"] == 1257 and list(subsets) == [0, 1, 2]
    ids = [tuple(subset.splits["train"]["example_id"]) for subset in subsets.values()]
    assert {len(found) for found in ids} == {40} and len(set(ids)) == 3


def test_arguments_that_transformers_refuses_are_refused_before_training(raw_recipe, tmp_path):
    raw_recipe["select"] = "best"
    raw_recipe["finetune"]["eval_steps"] = 5
    with pytest.raises(ValueError, match="finetune: .*round multiple"):
        run_tiny(tmp_path / "tiny", raw=raw_recipe)
    assert not (tmp_path / "tiny").exists()


CHILD = """
import json, sys
sys.path.insert(0, {tests!r})
from test_study import run_tiny
if __name__ == "__main__":
    run_tiny({folder!r}, jobs=2)
"""


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("first stage runs", marks=pytest.mark.slow),
        "first stage done",
        pytest.param("first run published", marks=pytest.mark.slow),
        "half of the runs",
    ],
)
def test_a_study_killed_at_any_moment_ends_with_the_same_digits(finished, tmp_path, moment):
    folder = tmp_path / "tiny"
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(tests=str(Path(__file__).parent), folder=str(folder)))
    reached = {
        "first stage runs": lambda: any((folder / "stages").glob("*.tmp")),
        "first stage done": lambda: any((folder / "stages").glob("*/stage.json")),
        "first run published": lambda: any(folder.glob("*/*/seed-0/run.json")),
        "half of the runs": lambda: len(list(folder.glob("*/*/seed-0/run.json"))) >= 3,
    }[moment]
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not reached() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.poll() is None, "the study ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    run_tiny(folder, jobs=2)
    assert numbers(folder) == numbers(finished)
    assert not list(folder.rglob("*.tmp"))


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    folder = tmp_path / "tiny"
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(tests=str(Path(__file__).parent), folder=str(folder)))
    child = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not any((folder / "stages").glob("*.tmp")) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.poll() is None, "the study ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 20
    alive = True
    while alive and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            alive = False
    assert not alive


def test_a_failing_run_is_reported_and_the_others_are_kept(raw_recipe, tmp_path):
    raw_recipe["models"]["transformer"]["overrides"] = {"finetune": {"learning_rate": 1.0e38, "warmup_steps": 0}}
    with pytest.raises(StudyError, match=r"(?s)1 of 2 runs failed.*transformer/scratch/seed-0: .*Step \d+"):
        run_tiny(tmp_path / "tiny", raw=raw_recipe, arms=("scratch",))
    assert (tmp_path / "tiny/s4d/scratch/seed-0/run.json").is_file()
    assert not (tmp_path / "tiny/transformer/scratch/seed-0").exists()


def test_two_studies_in_one_folder_are_refused(recipe, tmp_path):
    with FileLock(tmp_path / ".lock"):
        with pytest.raises(StudyError, match="Another process is working in"):
            run_study(recipe, ["s4d"], ["scratch"], [0], tmp_path, name="tiny", report=pytest.fail)


def test_the_page_is_written_while_the_folder_is_locked(finished, recipe, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "tiny")
    seen = []

    def report(study_dir):
        with pytest.raises(Timeout):
            FileLock(study_dir / ".lock").acquire(timeout=0)
        seen.append(study_dir)

    run_study(recipe, ["s4d"], ["scratch"], [0], folder, name="tiny", report=report)
    assert seen == [folder]


def test_a_half_written_run_folder_is_not_taken_for_done(finished, recipe, tmp_path):
    run = expand(recipe, ["s4d"], ["scratch"], [0])[0]
    folder = run.folder(tmp_path)
    folder.mkdir(parents=True)
    assert not run.is_done(tmp_path)
    (folder / "run.json").write_text("{")
    assert not run.is_done(tmp_path)
    assert isinstance(run, Run)
