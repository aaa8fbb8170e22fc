"""A study: one recipe run along models, arms and seeds, with shared stages, and one report at the end.

Finished work is kept whatever happens: a stage exists completely or not at all, a run folder likewise, and the same
command goes on where it stopped.
"""

import hashlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from . import train
from .baselines import baseline_scores
from .config import ARMS, Recipe, derive_seed
from .data import load_subset
from .workers import Plan, Run, StudyError, execute

Spec = dict[str, Any]


def expand(recipe: Recipe, models: list[str], arms: list[str], seeds: list[int]) -> list[Run]:
    """All runs of a study, seed by seed, so that whole comparisons finish early."""
    return [
        Run(model, arm, seed, _stages(recipe, model, arm, seed)) for seed in seeds for model in models for arm in arms
    ]


def _stages(recipe: Recipe, model: str, arm: str, seed: int) -> tuple[Spec, ...]:
    pretrain_steps = recipe.stage("pretrain", model).max_steps
    finetune_steps = recipe.stage("finetune", model).max_steps
    if arm == "spt":
        first = train.stage_spec(recipe, model, "pretrain", seed, pretrain_steps)
        return first, train.stage_spec(recipe, model, "finetune", seed, finetune_steps, train.stage_key(first))
    steps = {"scratch": finetune_steps, "scratch-matched": pretrain_steps + finetune_steps}[arm]
    return (train.stage_spec(recipe, model, "finetune", seed, steps),)


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
) -> None:
    """Train what is missing and write the run folders, baselines and `study.json`.

    Args:
        jobs: Worker processes, each with `recipe.num_threads` threads; the digits do not depend on it.
        command: What the user typed, recorded in `study.json`.

    Raises:
        StudyError: some runs failed, or another process works in the same folder.
        KeyboardInterrupt: passed on after the workers have stopped; finished stages are kept.
    """
    runs, study_dir = expand(recipe, models, arms, seeds), Path(study_dir)
    study_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(study_dir / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise StudyError(f"Another process is working in {study_dir}; wait for it, or choose another --out.") from None
    with lock:
        todo = [run for run in runs if not run.is_done(study_dir)]
        done = len(runs) - len(todo)
        print(f"{name}: {len(runs)} runs ({done} done), {jobs} at a time, results in {study_dir}", flush=True)
        sizes, spec = _baselines(recipe, seeds, study_dir)
        _write_json(
            study_dir / "study.json",
            {
                "study": name,
                "task": {
                    **spec.to_dict(),
                    "train_size": recipe.train_size,
                    "sizes": sizes,
                    "options": recipe.task_options,
                },
                "recipe": recipe.model_dump(mode="json"),
                "models": models,
                "arms": arms,
                "arm_descriptions": {arm: ARMS[arm] for arm in arms},
                "seeds": seeds,
                "command": command,
                "versions": train.versions(),
                "commit": train.commit(),
                "platform": {
                    "python": platform.python_version(),
                    "system": f"{platform.system()} {platform.machine()}",
                    "cpus": os.cpu_count(),
                },
                "num_threads": recipe.num_threads,
                "jobs": jobs,
            },
        )
        plan = Plan(todo, len(runs), study_dir / "stages", lambda run: _publish_and_tell(run, recipe, study_dir))
        failures = execute(plan, jobs, recipe.num_threads) if todo else []
        _write_examples(runs, study_dir)
        if failures:
            raise StudyError(
                "\n".join([f"{len(failures)} of {len(runs)} runs failed; the others are kept.", *failures])
            )
        _prune(study_dir)


def _baselines(recipe: Recipe, seeds: list[int], study_dir: Path) -> tuple[dict[str, int], Any]:
    """Plain classifiers on each seed's training subset, for scale. Also returns the split sizes and the task's spec."""
    path = study_dir / "baselines.json"
    inputs = [recipe.task, recipe.task_options, recipe.train_size, seeds, train.versions(), train.code_digest()]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        known = all(row["inputs"] == digest for row in rows)
    except (OSError, ValueError, TypeError, KeyError):
        known = False
    subsets = [
        load_subset(recipe.task, recipe.task_options, recipe.train_size, derive_seed(seed, "split"))
        for seed in (seeds[:1] if known else seeds)
    ]
    if not known:
        rows = []
        for seed, subset in zip(seeds, subsets, strict=True):
            parts = subset.splits
            if subset.spec.problem_type != "single_label_classification":
                continue
            scores = baseline_scores(subset.spec, parts["train"], parts["validation"], parts["test"])
            rows += [{**score, "seed": seed, "inputs": digest} for score in scores]
        _write_json(path, rows)
    return {part: len(split) for part, split in subsets[0].splits.items()}, subsets[0].spec


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
    if source is not None and Path(source).is_dir():
        source = str(Path(source).resolve())
    spec = train.stage_spec(recipe, model, stage, seed, steps, source)
    arm = "pretrain" if stage == "pretrain" else "scratch" if source is None else "spt"
    run = Run(model, arm, seed, (spec,))
    stages_dir = folder.with_name(folder.name + ".stages")
    with tqdm(total=steps, unit="step", disable=int(os.environ.get("RANK", "0")) > 0) as bar:
        train.run(spec, stages_dir, progress=lambda step: bar.update(step - bar.n))
    if train.is_main_process():
        publish_run(run, recipe, stages_dir, folder)
        shutil.rmtree(stages_dir, ignore_errors=True)
    train.wait_for_everyone()
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


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
    work = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(work, ignore_errors=True)
    last = stages_dir / run.keys[-1]
    shutil.copytree(last, work, ignore=shutil.ignore_patterns("stage.json", "log.jsonl", "example.npz", "checkpoints"))
    records = [json.loads((stages_dir / key / "stage.json").read_text(encoding="utf-8")) for key in run.keys]
    with (work / "log.jsonl").open("w", encoding="utf-8") as log:
        for key in run.keys:
            log.write((stages_dir / key / "log.jsonl").read_text(encoding="utf-8"))
    _write_json(work / "metrics.json", _metrics(records))
    _write_json(work / "run.json", _run_record(run, recipe, records))
    (work / "recipe.yaml").write_text(_resolved_recipe(run, recipe), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
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
    }


def _resolved_recipe(run: Run, recipe: Recipe) -> str:
    """The recipe of this run alone: one model, its overrides applied, and the arm and seed."""
    resolved = recipe.model_dump(mode="json")
    for stage in ("pretrain", "finetune"):
        resolved[stage] = recipe.stage(stage, run.model).model_dump(mode="json")
    resolved["models"] = {run.model: {**resolved["models"][run.model], "overrides": {}}}
    header = f"# {run.model}, {run.arm}, seed {run.seed}\n"
    return header + yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=110)


def _write_examples(runs: list[Run], study_dir: Path) -> None:
    """One masked example with its reconstruction for each model, from its first pretrained seed."""
    arrays: dict[str, Any] = {}
    path = study_dir / "examples.npz"
    if path.is_file():
        with np.load(path) as old:
            arrays = dict(old)
    for run in reversed(runs):
        example = study_dir / "stages" / run.keys[0] / "example.npz"
        if run.arm == "spt" and example.is_file():
            with np.load(example) as found:
                for name in found.files:
                    arrays["shape" if name == "shape" else f"{run.model}/{name}"] = found[name]
    if arrays:
        np.savez(path, **arrays)


def _prune(study_dir: Path) -> None:
    """Drop stages that are not needed any more: published fine-tunings, and those of settings that no run has now."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in study_dir.glob("*/*/seed-*/run.json")]
    needed = {stage["key"] for record in records for stage in record["stages"][:-1]}
    for path in (study_dir / "stages").glob("*"):
        if path.is_dir() and path.name not in needed:
            shutil.rmtree(path, ignore_errors=True)
    for path in (study_dir / "stages").glob(".*.lock"):
        path.unlink(missing_ok=True)


def _write_json(path: Path, content: Any) -> None:
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)
