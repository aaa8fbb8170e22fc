"""A study: one recipe run along models, arms and seeds, with shared stages, and one report at the end.

Finished work is kept whatever happens: a stage exists completely or not at all, a run folder likewise, and the same
command goes on where it stopped.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from neverscratch.tasks import Task, TaskSpec, load_task, training_subset
from neverscratch.tasks.system import check_writable

from . import baselines, train
from .config import ARMS, Recipe, derive_seed
from .data import check_lengths, check_objective, data_digest
from .workers import Plan, Run, StudyError, execute

Spec = dict[str, Any]


def expand(recipe: Recipe, models: list[str], arms: list[str], seeds: list[int], data: str | None = None) -> list[Run]:
    """All runs of a study, seed by seed, so that whole comparisons finish early.

    Args:
        data: Digest of the task's examples (`data_digest`), part of every stage's key.
    """
    return [
        Run(model, arm, seed, _stages(recipe, model, arm, seed, data))
        for seed in seeds
        for model in models
        for arm in arms
    ]


def _stages(recipe: Recipe, model: str, arm: str, seed: int, data: str | None) -> tuple[Spec, ...]:
    pretrain_steps = recipe.stage("pretrain", model).max_steps
    finetune_steps = recipe.stage("finetune", model).max_steps
    if arm == "spt":
        first = train.stage_spec(recipe, model, "pretrain", seed, pretrain_steps, data=data)
        source = train.stage_key(first)
        return first, train.stage_spec(recipe, model, "finetune", seed, finetune_steps, source, data)
    steps = {"scratch": finetune_steps, "scratch-matched": pretrain_steps + finetune_steps}[arm]
    return (train.stage_spec(recipe, model, "finetune", seed, steps, data=data),)


def run_study(
    recipe: Recipe,
    models: list[str],
    arms: list[str],
    seeds: list[int],
    study_dir: str | Path,
    *,
    name: str,
    jobs: int = 2,
    command: str = "",
    replace: bool = False,
    report: Callable[[Path], None] | None = None,
) -> None:
    """Train what is missing and write the run folders, baselines and `study.json`.

    Args:
        jobs: Worker processes, each with `recipe.num_threads` threads; the digits do not depend on it.
        command: What the user typed, recorded in `study.json`.
        replace: Whether a comparison with other settings in the same folder may be trained anew.
        report: Called with the folder once there is something to report, also when runs failed, and before another
            process can work in it.

    Raises:
        ValueError: the settings, the data or the folder cannot be used; nothing was trained.
        StudyError: some runs failed, or another process works in the same folder.
        KeyboardInterrupt: passed on after the workers have stopped; finished stages are kept.
    """
    study_dir = Path(study_dir)
    task, subsets = check_study(recipe, models, arms, seeds, study_dir, replace)
    spec = subsets[seeds[0]].spec
    data = data_digest(task)
    runs = expand(recipe, models, arms, seeds, data)
    study_dir.mkdir(parents=True, exist_ok=True)
    with _locked(study_dir):
        todo = [run for run in runs if not run.is_done(study_dir)]
        done = len(runs) - len(todo)
        print(f"{name}: {len(runs)} runs ({done} done), {jobs} at a time, results in {study_dir}", flush=True)
        earlier = _earlier_runs(study_dir, recipe, runs, data)
        record = _study_record(recipe, runs + earlier, spec, subsets[seeds[0]])
        write_json(study_dir / "study.json", {"study": name, "command": command, "jobs": jobs, **record})
        for seed in {run.seed for run in earlier} - subsets.keys():
            subsets[seed] = _subset(task, recipe, seed)
        _write_baselines(dict(sorted(subsets.items())), study_dir)
        plan = Plan(todo, len(runs), study_dir / "stages", lambda run: _publish_and_tell(run, recipe, study_dir))
        try:
            _train_missing(plan, jobs, recipe.num_threads)
        except StudyError:
            if report is not None and any(study_dir.glob("*/*/seed-*/run.json")):
                _write_examples(runs, study_dir)
                report(study_dir)
            raise
        _write_examples(runs, study_dir)
        _prune(study_dir)
        if report is not None:
            report(study_dir)


@contextmanager
def _locked(study_dir: Path) -> Iterator[None]:
    try:
        lock = FileLock(study_dir / ".lock").acquire(timeout=0)
    except Timeout:
        raise StudyError(f"Another process is working in {study_dir}; wait for it, or choose another --out.") from None
    with lock:
        yield


def _train_missing(plan: Plan, jobs: int, num_threads: int) -> None:
    failures = execute(plan, jobs, num_threads) if plan.runs else []
    if failures:
        lines = [f"{len(failures)} of {plan.total_runs} runs failed; the others are kept.", *failures]
        raise StudyError("\n".join(lines))


def check_study(
    recipe: Recipe, models: list[str], arms: list[str], seeds: list[int], study_dir: Path, replace: bool
) -> tuple[Task, dict[int, Task]]:
    """Load the task, and check all that can be checked without training.

    Returns:
        The whole task, and it with the training subset of each seed.

    Raises:
        ValueError: the settings, the data or the folder cannot be used; nothing was written.
    """
    _check_folder(study_dir, recipe, replace)
    # Once for all seeds: to look through a folder of many files takes seconds.
    task = load_task(recipe.task, **recipe.task_options)
    subsets = {seed: _subset(task, recipe, seed) for seed in seeds}
    check_objective(recipe.objective, subsets[seeds[0]].spec)
    check_lengths(subsets[seeds[0]].splits, subsets[seeds[0]].spec)
    runs = expand(recipe, models, arms, seeds[:1])
    for stage in {f"{run.model}/{s['stage']}": s for run in runs for s in run.stages}.values():
        train.check_arguments(stage)
    return task, subsets


def _subset(task: Task, recipe: Recipe, seed: int) -> Task:
    return training_subset(task, recipe.train_size, derive_seed(seed, "split"))


def _check_folder(folder: Path, recipe: Recipe, replace: bool) -> None:
    """Refuse a folder that holds something else, and one whose results would be replaced unasked."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder as --out.")
    check_writable(folder)
    # Our lock and files broken off while they were written begin with a dot.
    if not folder.is_dir() or all(path.name.startswith(".") for path in folder.iterdir()):
        return
    record = train.read_json(folder / "study.json")
    if record is not None and isinstance(record.get("recipe"), dict) and isinstance(record.get("runs"), list):
        old, new = record["recipe"], recipe.model_dump(mode="json")
        # Which models are compared by default changes no run, nor whether a value came from the file or by hand.
        keys = (old.keys() | new.keys()) - {"default_models", "changes"}
        changed = sorted(key for key in keys if old.get(key) != new.get(key))
        if changed and not replace:
            raise ValueError(
                f"{folder} holds a comparison with other settings ({', '.join(changed)}); "
                "give another folder with --out, or --replace to train this one anew."
            )
    elif not (folder / "stages").is_dir() or not (folder / "baselines.json").is_file():
        raise ValueError(f"{folder} is not empty and holds no comparison; give a new or empty folder as --out.")


def _earlier_runs(folder: Path, recipe: Recipe, runs: list[Run], data: str) -> list[Run]:
    """Runs of an earlier call with the same settings but other models, arms or seeds: they stay in the report."""
    entries = (train.read_json(folder / "study.json") or {}).get("runs")
    named = {(run.model, run.arm, run.seed) for run in runs}
    earlier = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            model, arm, seed, keys = (entry[name] for name in ("model", "arm", "seed", "keys"))
        except (KeyError, TypeError):
            # The record was damaged, and is written anew.
            continue
        if (model, arm, seed) not in named and model in recipe.models and arm in ARMS:
            run = expand(recipe, [model], [arm], [seed], data)[0]
            earlier += [run] if run.keys == keys and run.is_done(folder) else []
    return earlier


def _study_record(recipe: Recipe, runs: list[Run], spec: TaskSpec, subset: Task) -> dict[str, Any]:
    arms = [arm for arm in ARMS if any(run.arm == arm for run in runs)]
    task = {**spec.to_dict(), "train_size": recipe.train_size, "sizes": subset.sizes, "options": recipe.task_options}
    return {
        "task": task,
        "recipe": recipe.model_dump(mode="json"),
        "models": [model for model in recipe.models if any(run.model == model for run in runs)],
        "arms": arms,
        "arm_descriptions": {arm: ARMS[arm] for arm in arms},
        "seeds": sorted({run.seed for run in runs}),
        # A run folder with other keys was made with other settings, code or data, and does not belong to this study.
        "runs": [{"model": run.model, "arm": run.arm, "seed": run.seed, "keys": run.keys} for run in runs],
        "versions": train.versions(),
        "commit": train.commit(),
        "platform": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
        },
        "num_threads": recipe.num_threads,
    }


def _write_baselines(subsets: dict[int, Task], study_dir: Path) -> None:
    """Plain classifiers on each seed's training subset, for scale; kept as long as data and code are the same."""
    path = study_dir / "baselines.json"
    code = Path(baselines.__file__).read_text(encoding="utf-8")
    inputs = [{seed: data_digest(subset) for seed, subset in subsets.items()}, train.versions(), code]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if all(row["inputs"] == digest for row in rows) and {row["seed"] for row in rows} == set(subsets):
            return
    except (OSError, ValueError, TypeError, KeyError):
        pass
    rows = []
    for seed, subset in subsets.items():
        parts = (subset.splits[part] for part in ("train", "validation", "test"))
        scores = baselines.baseline_scores(subset.spec, *parts)
        rows += [{**score, "seed": seed, "inputs": digest} for score in scores]
    write_json(path, rows)


def run_single(recipe: Recipe, model: str, stage: str, seed: int, source: str | None, folder: Path) -> dict[str, Any]:
    """One stage as a run folder of its own, in this process or in every process of an `accelerate launch`.

    Args:
        stage: "pretrain" or "finetune".
        source: Folder or Hub id of a checkpoint to fine-tune from; None = random weights.
        folder: Where the run goes; must not exist.

    Returns:
        The metrics of the run.
    """
    steps = recipe.stage(stage, model).max_steps  # type: ignore[arg-type]
    local = None if source is None or not Path(source).is_dir() else Path(source).resolve()
    spec = train.stage_spec(recipe, model, stage, seed, steps, source if local is None else str(local))
    train.check_arguments(spec)
    arm = stage if stage == "pretrain" or source is not None else "scratch"
    run = Run(model, arm, seed, (spec,))
    stages_dir = folder.with_name(f".{folder.name}.stages")
    try:
        with tqdm(total=steps, unit="step", disable=int(os.environ.get("RANK", "0")) > 0) as bar:
            train.run(spec, stages_dir, progress=lambda step: bar.update(step - bar.n))
        if train.is_main_process():
            publish_run(run, recipe, stages_dir, folder)
            if source is not None:
                _record_source(folder, source, local)
        train.wait_for_everyone()
    finally:
        # A stage that saves checkpoints can be resumed by the same command.
        if train.is_main_process() and (folder.is_dir() or not any(stages_dir.glob("*.tmp/checkpoints/checkpoint-*"))):
            shutil.rmtree(stages_dir, ignore_errors=True)
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def _record_source(folder: Path, source: str, local: Path | None) -> None:
    """Say in `run.json` which checkpoint a run started from, and what training that checkpoint had before."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    record["checkpoint"] = source
    if local is not None and (local / "run.json").is_file():
        before = json.loads((local / "run.json").read_text(encoding="utf-8"))
        record["checkpoint_seeds"] = before["seeds"]
        record["stages"] = [*before["stages"], *record["stages"]]
    write_json(folder / "run.json", record)


def _publish_and_tell(run: Run, recipe: Recipe, study_dir: Path) -> str:
    folder = run.folder(study_dir)
    publish_run(run, recipe, study_dir / "stages", folder)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metric = metrics["metric"]
    score = metrics["validation"][metric]
    return f"  {run.model:<12} {run.arm:<16} seed {run.seed}: validation {metric} {score:.3f}"


# Run folders ---------------------------------------------------------------------------------------------------------


def publish_run(run: Run, recipe: Recipe, stages_dir: Path, folder: Path) -> None:
    """Make a run folder from finished stages: copied to a temporary name, completed, and renamed."""
    work = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(work, ignore_errors=True)
    last = stages_dir / run.keys[-1]
    shutil.copytree(last, work, ignore=shutil.ignore_patterns("stage.json", "log.jsonl", "example.npz", "checkpoints"))
    records = [json.loads((stages_dir / key / "stage.json").read_text(encoding="utf-8")) for key in run.keys]
    with (work / "log.jsonl").open("w", encoding="utf-8") as log:
        for key in run.keys:
            log.write((stages_dir / key / "log.jsonl").read_text(encoding="utf-8"))
    write_json(work / "metrics.json", _metrics(records))
    write_json(work / "run.json", _run_record(run, recipe, records))
    (work / "recipe.yaml").write_text(_resolved_recipe(run, recipe), encoding="utf-8")
    train.discard(folder)
    work.rename(folder)


def _metrics(records: list[dict[str, Any]]) -> dict[str, Any]:
    pretrained = {"pretrain": records[0]["scores"]["validation"]} if records[0]["spec"]["stage"] == "pretrain" else {}
    if records[-1]["spec"]["stage"] == "pretrain":
        return pretrained
    scores = dict(records[-1]["scores"])
    metric = next(name for name in scores["test"] if name != "loss")
    return {"metric": metric, **scores, **pretrained}


def _run_record(run: Run, recipe: Recipe, records: list[dict[str, Any]]) -> dict[str, Any]:
    last = records[-1]
    stages = [
        {
            "name": record["spec"]["stage"],
            "key": key,
            "objective": record["spec"]["objective"],
            "learning_rate": record["spec"]["arguments"]["learning_rate"],
            "arguments": record["spec"]["arguments"] | {"ssm_learning_rate": record["spec"]["ssm_learning_rate"]},
            **{
                name: record[name]
                for name in ("steps", "examples_seen", "batch_size", "flops", "seconds", "world_size")
            },
        }
        for key, record in zip(run.keys, records, strict=True)
    ]
    return {
        "model": run.model,
        "arm": run.arm,
        "seed": run.seed,
        "task": recipe.task,
        "model_type": last["model_type"],
        "parameters": last["parameters"],
        "source": recipe.models[run.model].source,
        "stages": stages,
        "sizes": last["sizes"],
        "seeds": last["spec"]["seeds"],
        "versions": last["spec"]["versions"],
        "commit": last["commit"],
        "num_threads": recipe.num_threads,
        "selection": recipe.select,
        "changes": recipe.changes,
    }


def _resolved_recipe(run: Run, recipe: Recipe) -> str:
    """The recipe of this run alone: its one model, and the steps that its stages took."""
    resolved = recipe.model_dump(mode="json")
    for stage in ("pretrain", "finetune"):
        resolved[stage] = recipe.stage(stage, run.model).model_dump(mode="json")
    for spec in run.stages:
        resolved[spec["stage"]]["max_steps"] = spec["arguments"]["max_steps"]
    resolved["models"] = {run.model: {**resolved["models"][run.model], "overrides": {}}}
    stages = " and ".join(spec["stage"] for spec in run.stages)
    header = f"# {run.model}, {run.arm}, seed {run.seed}: the stages that ran are {stages}.\n"
    if run.arm == "finetune":
        header += "# The architecture is that of the checkpoint it started from: see config.json.\n"
    return header + yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=110)


def _write_examples(runs: list[Run], study_dir: Path) -> None:
    """One masked example with its reconstruction for each model, from its first pretrained seed."""
    arrays: dict[str, Any] = {}
    path = study_dir / "examples.npz"
    try:
        with np.load(path) as old:
            arrays = dict(old)
    except (OSError, ValueError, zipfile.BadZipFile):
        pass
    for run in reversed(runs):
        example = study_dir / "stages" / run.keys[0] / "example.npz"
        if run.arm == "spt" and example.is_file():
            with np.load(example) as found:
                for name in found.files:
                    arrays["shape" if name == "shape" else f"{run.model}/{name}"] = found[name]
    if arrays:
        scratch = path.with_name(".examples.tmp.npz")
        np.savez(scratch, **arrays)
        scratch.replace(path)


def _prune(study_dir: Path) -> None:
    """After a whole study, drop stages that nobody needs: published, replaced by other settings, or broken off."""
    published, current = set(), {}
    for path in study_dir.glob("*/*/seed-*/run.json"):
        try:
            record = train.read_json(path) or {}
            keys = [stage["key"] for stage in record["stages"]]
            published.add(keys[-1])
            # A model and seed have one self-pretraining; under another key it is that of former settings.
            if len(keys) > 1:
                current[record["model_type"], record["seeds"]["init"]] = keys[0]
        except (KeyError, TypeError, IndexError):
            # A damaged run of another call decides nothing.
            continue
    for path in (study_dir / "stages").glob("*/stage.json"):
        stage, key = train.read_json(path), path.parent.name
        if stage is None or not re.fullmatch("[0-9a-f]{16}", key):
            continue
        if key in published or current.get((stage["model_type"], stage["spec"]["seeds"]["init"]), key) != key:
            train.discard(path.parent)
    hexadecimal = "[0-9a-f]" * 16
    patterns = (f"stages/{hexadecimal}.tmp", f"stages/.{hexadecimal}.*.tmp", "*/*/.seed-*.tmp")
    for leftover in [path for pattern in patterns for path in study_dir.glob(pattern)]:
        shutil.rmtree(leftover, ignore_errors=True)
    for lock in study_dir.glob("stages/.*.lock"):
        lock.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)
