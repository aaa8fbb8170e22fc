"""Write synthetic study folders in the layout that recipes write, with numbers chosen by the test."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"train": 300, "validation": 180, "test": 360}
P, F = 800, 1500

# Test accuracies by model, arm and seed, as counts out of 360.
REALISTIC: dict[str, dict[str, list[int]]] = {
    "transformer": {"scratch": [290, 281, 299], "scratch-matched": [298, 283, 301], "spt": [295, 324, 309]},
    "s4d": {"scratch": [296, 304, 299], "scratch-matched": [299, 306, 300], "spt": [317, 325, 322]},
}


def write_study(
    folder: Path,
    counts: dict[str, dict[str, list[int]]] | None = None,
    *,
    seeds: list[int] | None = None,
    still_improving: tuple[tuple[str, str, int], ...] = (),
    baselines: dict[str, list[float]] | None = None,
    task: dict[str, Any] | None = None,
    spread_errors: bool = True,
    modality: str = "image",
    log: bool = True,
    complete: bool = False,
) -> Path:
    """Write a whole study folder and return it.

    Args:
        counts: Right test answers out of `SIZES["test"]`, by model, arm and seed; a negative count leaves the run out.
        complete: Whether to write what older studies lack: the recipe, the platform, every stage's arguments and the
            accuracy of a plain guess.
        spread_errors: Whether each run errs on examples of its own (`True`) or on the first of a fixed order.
    """
    counts = counts or REALISTIC
    seeds = seeds if seeds is not None else list(range(max(len(v) for arms in counts.values() for v in arms.values())))
    arms = list(dict.fromkeys(arm for by_arm in counts.values() for arm in by_arm))
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "name": "digits",
        "title": "Digits",
        "modality": modality,
        "num_channels": 1,
        "labels": [str(n) for n in range(10)],
        "num_levels": 17,
        "length": 64,
        "metric": "accuracy",
        "greater_is_better": True,
        "chance": 0.1,
        "license": "CC BY 4.0",
        "citation": "Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI.",
        "source": "scikit-learn's load_digits: 8x8 images read row by row",
        "version": 1,
        "problem_type": "single_label_classification",
        "notes": "",
        "train_size": SIZES["train"],
        "sizes": SIZES,
        **(task or {}),
    }
    study = {
        "study": spec["name"],
        "task": spec,
        "models": list(counts),
        "arms": arms,
        "seeds": seeds,
        "command": "neverscratch compare digits",
        "versions": {"torch": "2.13.0", "transformers": "5.24.0", "python": "3.11.9"},
        "commit": "abc1234",
        "num_threads": 1,
        "jobs": 2,
    }
    if complete:
        study["platform"] = {"python": "3.11.9", "system": "Linux x86_64", "cpus": 2}
        study["recipe"] = {
            "task": spec["name"],
            "train_size": SIZES["train"],
            "mask_ratio": 0.5,
            "models": {m: {"family": m, "config": {"hidden_size": 64, f"only_{m}": True}} for m in counts},
        }
    _dump(folder / "study.json", study)
    if baselines is None:
        baselines = {
            "1-NN (Euclidean)": [0.931, 0.925, 0.939],
            "logistic regression": [0.942, 0.936, 0.947],
            "majority class": [0.103, 0.103, 0.103],
        }
    rows = [
        {"name": name, "test": value, "validation": value, "seed": seed}
        for name, values in baselines.items()
        for seed, value in enumerate(values)
    ]
    (folder / "baselines.json").write_text(json.dumps(rows), encoding="utf-8")
    for model, by_arm in counts.items():
        for arm, values in by_arm.items():
            for seed, count in zip(seeds, values, strict=False):
                if count >= 0:
                    flag = (model, arm, seed) in still_improving
                    _write_run(folder, spec, model, arm, seed, count, flag, spread_errors, log)
                    if complete:
                        _complete_run(folder / model / arm / f"seed-{seed}", model)
    _write_examples(folder, list(counts), modality)
    return folder


def _write_run(
    study: Path, spec: dict[str, Any], model: str, arm: str, seed: int, count: int, flag: bool, spread: bool, log: bool
) -> None:
    folder = study / model / arm / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    metric = spec["metric"]
    stages = []
    cost = 1.0 if model == "transformer" else 1.4
    if arm == "spt":
        stages.append(_stage("pretrain", P, cost, "masked_tokens", seed))
    stages.append(_stage("finetune", P + F if arm == "scratch-matched" else F, cost, "classification", seed))
    _dump(
        folder / "run.json",
        {
            "model": model,
            "arm": arm,
            "seed": seed,
            "model_type": f"neverscratch_{model}",
            "parameters": 36_000 if model == "transformer" else 29_000,
            "source": f"{model} of the lean loop; one layer fewer than the paper's",
            "stages": stages,
            "seeds": {"init": 11 + seed, "order": 12 + seed, "mask": 13 + seed, "split": 14 + seed},
            "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
            "commit": "abc1234",
            "num_threads": 1,
            "selection": "last",
        },
    )
    test = count / SIZES["test"]
    metrics: dict[str, Any] = {
        "metric": metric,
        "train": {metric: 0.97 if flag else 1.0, "loss": 0.11 if flag else 0.0021},
        "validation": {metric: round(180 * test) / 180},
        "test": {metric: test},
        "selected_step": stages[-1]["steps"],
        "still_improving": flag,
    }
    if arm == "spt":
        metrics["pretrain"] = {"masked_accuracy": 0.41 + 0.01 * seed, "loss": 1.43}
    _dump(folder / "metrics.json", metrics)
    if log:
        lines = _log(stages, metric, test, np.random.default_rng(100 * seed + len(model) + len(arm)))
        (folder / "log.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    rng = np.random.default_rng([seed, len(model), len(arm)] if spread else [0])
    wrong = set(rng.permutation(SIZES["test"])[: SIZES["test"] - count].tolist())
    with (folder / "predictions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["example_id", "label", "prediction"])
        for index in range(SIZES["test"]):
            label = index % 10
            writer.writerow([1437 + index, label, (label + 1) % 10 if index in wrong else label])
    (folder / "recipe.yaml").write_text("task: digits\n", encoding="utf-8")
    (folder / "preprocessor_config.json").write_text("{}\n", encoding="utf-8")


def _complete_run(folder: Path, model: str) -> None:
    info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for stage in info["stages"]:
        # Nine batches of 32 and one of 12 make an epoch of 300.
        stage["examples_seen"] = stage["steps"] * 30
        stage["arguments"] = {
            "max_steps": stage["steps"],
            "learning_rate": 0.003,
            "per_device_train_batch_size": 32,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.1,
            "ssm_learning_rate": 0.001 if model == "s4d" else 0.002,
        }
    _dump(folder / "run.json", info)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if "pretrain" in metrics:
        metrics["pretrain"]["guess_accuracy"] = 0.33
        _dump(folder / "metrics.json", metrics)


def _stage(name: str, steps: int, cost: float, objective: str, seed: int) -> dict[str, Any]:
    return {
        "name": name,
        "key": f"{name}-{seed}",
        "steps": steps,
        "examples_seen": steps * 32,
        "flops": cost * steps * 4.1e8,
        "seconds": cost * steps * 0.0101 + 0.1 * seed,
        "objective": objective,
        "learning_rate": 0.003,
        "batch_size": 32,
    }


def _log(stages: list[dict[str, Any]], metric: str, final: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for stage in stages:
        steps, name = stage["steps"], stage["name"]
        start, floor, pace = (2.8, 1.4, 180) if name == "pretrain" else (2.3, 0.002, 130)
        for step in range(steps // 100, steps + 1, steps // 100):
            loss = (floor + (start - floor) * math.exp(-step / pace)) * math.exp(0.1 * rng.normal())
            lines.append({"stage": name, "step": step, "loss": loss, "learning_rate": 0.003})
            if step % (steps // 10) == 0:
                level = final * (1 - 0.8 * math.exp(-step / 200))
                key = "eval_masked_accuracy" if name == "pretrain" else f"eval_{metric}"
                lines.append({"stage": name, "step": step, "eval_loss": 1.1 * loss, key: level})
    return lines


def _write_examples(folder: Path, models: list[str], modality: str) -> None:
    rng = np.random.default_rng(5)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if modality == "image":
        from sklearn.datasets import load_digits

        original = load_digits().images[7].reshape(-1).astype(np.int64)
        arrays["shape"] = np.array([8, 8])
    else:
        original = np.sin(np.linspace(0, 9, 150)) + 0.05 * rng.normal(size=150)
    for model in models:
        mask = rng.random(len(original)) < 0.5
        if modality != "image":
            mask = np.repeat(rng.random(15) < 0.5, 10)
        noise = rng.normal(scale=1.6 if modality == "image" else 0.1, size=len(original))
        guess = original + noise
        if modality == "image":
            guess = np.clip(np.round(guess), 0, 16).astype(np.int64)
        arrays |= {f"{model}/original": original, f"{model}/mask": mask, f"{model}/reconstruction": guess}
    np.savez(folder / "examples.npz", **arrays)  # type: ignore[arg-type]


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
