"""Run one stage: behind local workers, the command line and `accelerate launch -m neverscratch.recipes.train`.

A stage is a JSON-able dictionary (`stage_spec`), keyed by the hash of its contents. Its folder is written as
`<key>.tmp` and renamed when it is whole, so a stage exists completely or not at all.
"""

import csv
import functools
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import PartialState
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, TrainingArguments

from neverscratch.modeling import AUTO_CLASSES, FAMILIES
from neverscratch.tasks.metrics import score_logits

from . import config as recipe_config
from .data import KeptRows, StageData, check_objective, prepare
from .objectives import IGNORE, make_objective
from .trainer import WHOLE, NonFiniteError, StageTrainer, optimizer_groups
from .transfer import transfer_backbone

Spec = dict[str, Any]
# The files whose text decides the numbers of a stage; a change of any of them makes a new key.
_NUMERIC_FILES = {
    "recipes": ("data", "objectives", "symbols", "trainer", "train", "transfer"),
    "modeling": None,
    "tasks": None,
}
# Training examples from which the most frequent symbol is found.
MOST_COUNTED = 10_000


@functools.cache
def versions() -> dict[str, str]:
    """Versions that a run records and a stage key depends on."""
    names = ("neverscratch", "torch", "transformers", "accelerate", "datasets", "numpy", "scikit-learn")
    return {name: version(name) for name in names}


@functools.cache
def code_digest() -> str:
    """A hash of the code that decides numbers, so that stages of different code are never mixed."""
    digest = hashlib.sha256()
    for package, stems in _NUMERIC_FILES.items():
        folder = Path(str(resources.files(f"neverscratch.{package}")))
        for path in sorted(folder.glob("*.py")):
            if stems is None or path.stem in stems:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def commit() -> str | None:
    """The git commit of the code, with `-dirty` when files differ from it; None outside a checkout of this project."""
    folder = Path(str(resources.files("neverscratch.recipes"))).resolve().parent
    if not (folder / ".git").exists() or not (folder / "recipes" / "train.py").exists():
        return None
    try:
        head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run(
            ["git", "-C", folder, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")


def stage_spec(
    recipe: recipe_config.Recipe,
    model: str,
    stage: str,
    seed: int,
    max_steps: int,
    source: str | None = None,
    data: str | None = None,
) -> Spec:
    """The resolved inputs of one stage.

    Args:
        stage: "pretrain" or "finetune".
        max_steps: Optimiser steps of this stage.
        source: Key of the pretraining stage, or the folder or Hub id of a checkpoint; None = random weights.
        data: Digest of the task's examples (`data_digest`), so that other data under the same name are not taken for
            these; None where nothing is kept for later.
    """
    settings = recipe.stage(stage, model)  # type: ignore[arg-type]
    entry = recipe.models[model]
    purposes = recipe_config.SEED_PURPOSES if recipe.train_size is not None else recipe_config.SEED_PURPOSES[:-1]
    return {
        "stage": stage,
        "task": {"name": recipe.task, "options": recipe.task_options, "train_size": recipe.train_size, "data": data},
        "objective": recipe.objective if stage == "pretrain" else "classification",
        "mask_ratio": recipe.mask_ratio if stage == "pretrain" else None,
        "family": entry.family,
        "config": entry.config,
        "arguments": {**settings.arguments(), "max_steps": max_steps},
        "ssm_learning_rate": settings.ssm_learning_rate,
        "select": recipe.select,
        "source": source,
        "seeds": {purpose: recipe_config.derive_seed(seed, purpose) for purpose in purposes},
        "num_threads": recipe.num_threads,
        "versions": versions(),
        "code": code_digest(),
    }


def stage_key(spec: Spec) -> str:
    """A hash of everything a stage depends on."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def is_main_process() -> bool:
    return PartialState().is_main_process


def wait_for_everyone() -> None:
    PartialState().wait_for_everyone()


def is_done(folder: Path) -> bool:
    """Whether a stage's folder is whole: its record is written last, and its weights must still be readable."""
    return read_json(folder / "stage.json") is not None and has_weights(folder)


def has_weights(folder: Path) -> bool:
    """Whether the weights are there and as long as their header says."""
    paths = list(folder.glob("*.safetensors"))
    try:
        for path in paths:
            with safe_open(path, "pt") as weights:
                weights.keys()
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError):
        return False
    return bool(paths)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when it is not there, cut off or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def discard(folder: Path) -> None:
    """Remove a folder that is taken for whole as long as it stands: renamed first, so that it is never half there."""
    if folder.is_dir():
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def run(spec: Spec, stages_dir: str | Path, progress: Callable[[int], None] | None = None) -> Path:
    """Run a stage unless its folder exists, and return the folder.

    Raises:
        ValueError: bad settings or data, or training met a number that is not finite; nothing half-written is left.
    """
    stages = Path(stages_dir)
    final = stages / stage_key(spec)
    work = stages / f"{final.name}.tmp"
    torch.set_num_threads(spec["num_threads"])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    distributed = PartialState(cpu=not torch.accelerator.is_available())
    if distributed.is_main_process:
        stages.mkdir(parents=True, exist_ok=True)
    distributed.wait_for_everyone()
    if distributed.num_processes > 1:
        # Ranks of one launch share the stage, so no lock: rank 0 alone writes and renames.
        return _run_locked(spec, work, final, progress, distributed)
    with FileLock(stages / f".{final.name}.lock"):
        return _run_locked(spec, work, final, progress, distributed)


def _run_locked(
    spec: Spec, work: Path, final: Path, progress: Callable[[int], None] | None, distributed: PartialState
) -> Path:
    if is_done(final):
        return final
    resumable = spec["arguments"].get("save_strategy", "no") != "no" and spec["select"] == "last"
    if distributed.is_main_process and not resumable:
        shutil.rmtree(work, ignore_errors=True)
    distributed.wait_for_everyone()
    work.mkdir(parents=True, exist_ok=True)
    try:
        record = _train(spec, work, final.parent, progress)
    except ValueError:
        if distributed.is_main_process and not resumable:
            shutil.rmtree(work, ignore_errors=True)
        raise
    distributed.wait_for_everyone()
    if distributed.is_main_process:
        shutil.rmtree(work / "checkpoints", ignore_errors=True)
        (work / "stage.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        discard(final)
        work.rename(final)
    distributed.wait_for_everyone()
    return final


def source_folder(spec: Spec, stages_dir: Path) -> str | Path | None:
    """Where the weights come from: a stage of this study, another checkpoint, or nowhere."""
    if spec["source"] is None:
        return None
    local = stages_dir / spec["source"]
    return local if local.is_dir() else spec["source"]


def model_config(spec: Spec, data: StageData, source: str | Path | None) -> Any:
    """The checkpoint's configuration, or the recipe's fields with the inputs of the task; labels are the task's."""
    task: dict[str, Any] = {"problem_type": data.spec.problem_type}
    if spec["objective"] == "classification":
        task["is_pair"] = data.spec.is_pair
    if data.spec.labels is None:
        task["num_labels"] = 1
        if spec["objective"] == "classification":
            targets = data.splits["train"]["labels"].astype(np.float64)
            # Constant targets have no scale.
            task["label_mean"], task["label_std"] = float(targets.mean()), float(targets.std()) or 1.0
    else:
        # A checkpoint of a regression would scale the logits of the classes.
        task["label_mean"], task["label_std"] = 0.0, 1.0
        task["id2label"] = dict(enumerate(data.spec.labels))
        task["label2id"] = {label: index for index, label in enumerate(data.spec.labels)}
    if source is not None:
        return AutoConfig.from_pretrained(source, trust_remote_code=False, **task)
    if data.vocab_size is not None:
        task["vocab_size"] = data.vocab_size
    else:
        task["num_channels"] = data.spec.num_channels
    return FAMILIES[spec["family"]](**{**task, **recipe_config.resolve_lengths(spec["config"], data.spec.length)})


def build_model(spec: Spec, data: StageData, source: str | Path | None) -> Any:
    """The model at its start: random weights from the init seed, then the backbone of the source, if there is one.

    The head of a fine-tuned model starts exactly as that of the scratch arm with the same seed.
    """
    objective = make_objective(spec["objective"], 0, spec["mask_ratio"])
    config = model_config(spec, data, source)
    config.architectures = None
    torch.manual_seed(spec["seeds"]["init"])
    model = AUTO_CLASSES[objective.head].from_config(config)
    if source is not None:
        transfer_backbone(model, source)
    return model


def describe_model(recipe: recipe_config.Recipe, model: str, stage: str) -> str:
    """A table of the parameters of a model at its start, and of how the optimiser of that stage treats them."""
    spec = stage_spec(recipe, model, stage, seed=0, max_steps=1, source=None)
    task = spec["task"]
    data = prepare(task["name"], task["options"], task["train_size"], spec["seeds"].get("split", 0), None)
    built = build_model(spec, data, None)
    arguments, parameters = spec["arguments"], dict(built.named_parameters())
    groups = optimizer_groups(
        built, arguments["learning_rate"], arguments.get("weight_decay", 0.0), spec["ssm_learning_rate"]
    )
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    total = sum(parameter.numel() for parameter in parameters.values())
    lines = [f"{type(built).__name__}: {total:,} parameters, {stage} on {recipe.task}"]
    lines.append(f"{'group':<10} {'learning rate':>13} {'decay':>8} {'trained':>7}   {'shape':<16} parameter")
    for group in [*groups, {"group": "frozen", "names": frozen, "lr": 0.0, "weight_decay": 0.0}]:
        for name in group["names"]:
            parameter = parameters[name]
            trained, shape = "yes" if parameter.requires_grad else "no", "x".join(map(str, parameter.shape))
            lines.append(
                f"{group['group']:<10} {group['lr']:>13g} {group['weight_decay']:>8g} {trained:>7}   {shape:<16} {name}"
            )
    return "\n".join(lines)


def training_arguments(spec: Spec, folder: Path, metric: str, greater_is_better: bool) -> TrainingArguments:
    steps = spec["arguments"]["max_steps"]
    defaults: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": max(1, round(steps / 10)),
        "logging_steps": max(1, round(steps / 100)),
        "save_strategy": "no",
        "per_device_eval_batch_size": 256,
    }
    best = spec["select"] == "best" and spec["stage"] == "finetune"
    if best:
        defaults.update(save_strategy="steps", save_steps=defaults["eval_steps"], save_total_limit=1)
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        **{**defaults, **spec["arguments"]},
        seed=spec["seeds"]["order"],
        data_seed=spec["seeds"]["order"],
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
        label_names=["labels"],
        load_best_model_at_end=best,
        metric_for_best_model=metric if best else None,
        greater_is_better=greater_is_better if best else None,
        ddp_find_unused_parameters=False,
    )


def check_arguments(spec: Spec) -> None:
    """Build the `TrainingArguments` once, so that what they refuse is refused before anything is trained."""
    try:
        training_arguments(spec, Path("unused"), "eval_loss", False)
    except (ValueError, TypeError, ImportError, KeyError, OSError) as error:
        raise ValueError(f"{spec['stage']}: {' '.join(str(error).split())}") from None


def _train(spec: Spec, work: Path, stages_dir: Path, progress: Callable[[int], None] | None) -> dict[str, Any]:
    started = time.perf_counter()
    task, source = spec["task"], source_folder(spec, stages_dir)
    data = prepare(task["name"], task["options"], task["train_size"], spec["seeds"].get("split", 0), source)
    check_objective(spec["objective"], data.spec)
    supervised = spec["objective"] == "classification"
    if not supervised:
        data = replace(data, splits={part: split.members() for part, split in data.splits.items()})
    model = build_model(spec, data, source)
    objective = make_objective(spec["objective"], spec["seeds"]["mask"], spec["mask_ratio"])
    trainer = StageTrainer(
        model=model,
        args=training_arguments(spec, work, f"eval_{data.spec.metric}", data.spec.greater_is_better),
        train_dataset=KeptRows(data.splits["train"]),
        eval_dataset=KeptRows(data.splits["validation"]),
        processing_class=data.processor,
        objective=objective,
        class_metrics=_class_metrics(data) if supervised else None,
        ssm_learning_rate=spec["ssm_learning_rate"],
        progress=progress,
    )
    resume = _last_whole_checkpoint(work / "checkpoints", trainer.is_world_process_zero())
    trained = time.perf_counter()
    trainer.train(resume_from_checkpoint=resume)
    seconds = time.perf_counter() - trained
    _check_trained(trainer)
    scores = _supervised_scores(trainer, data, work) if supervised else _reconstruction_scores(trainer, data)
    if trainer.is_world_process_zero():
        trainer.save_model(str(work))
        data.processor.save_pretrained(work)
        (work / "training_args.bin").unlink(missing_ok=True)
        _write_log(trainer.state.log_history, spec["stage"], work / "log.jsonl")
        if not supervised:
            _write_example(trainer, data, work / "example.npz")
    return {
        "spec": spec,
        "steps": trainer.state.global_step,
        "examples_seen": _examples_seen(trainer),
        "batch_size": trainer.args.train_batch_size
        * trainer.args.gradient_accumulation_steps
        * trainer.args.world_size,
        "world_size": trainer.args.world_size,
        "flops": trainer.state.total_flos,
        "parameters": model.num_parameters(),
        "model_type": model.config.model_type,
        "scores": scores,
        "sizes": {part: len(split) for part, split in data.splits.items()},
        "commit": commit(),
        "seconds": seconds,
        "seconds_total": time.perf_counter() - started,
    }


def _check_trained(trainer: StageTrainer) -> None:
    """The trainer looks at each step before it is taken; here at what the last one left."""
    if trainer.state.global_step < trainer.args.max_steps:
        raise ValueError(
            f"Training ended after {trainer.state.global_step} of {trainer.args.max_steps} steps; "
            "use more training examples or a smaller batch."
        )
    for name, parameter in trainer.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise NonFiniteError(f"After the last step {name} is not finite; lower the learning rate.")


def _last_whole_checkpoint(folder: Path, clean: bool) -> str | None:
    """The newest checkpoint that was written to its end; what was broken off is removed."""
    whole = [path for path in folder.glob("checkpoint-*") if (path / WHOLE).is_file()]
    for path in folder.glob("checkpoint-*"):
        if clean and path not in whole:
            shutil.rmtree(path)
    newest = max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def _class_metrics(data: StageData) -> Callable[[np.ndarray, np.ndarray], dict[str, float]]:
    names = dict.fromkeys([data.spec.metric, *(["rmse", "r2"] if data.spec.labels is None else [])])
    return lambda logits, labels: {name: score_logits(name, logits, labels) for name in names}


def _supervised_scores(trainer: StageTrainer, data: StageData, work: Path) -> dict[str, Any]:
    """Metrics of every split with the final weights. This is the only time the test split is measured."""
    scores: dict[str, Any] = {}
    for part in ("train", "validation", "test"):
        output = trainer.predict(data.splits[part], metric_key_prefix=part)
        own = (data.spec.metric, "loss")
        scores[part] = {name: output.metrics[f"{part}_{name}"] for name in own if f"{part}_{name}" in output.metrics}
        if part == "test" and trainer.is_world_process_zero():
            _write_predictions(data, output.predictions, output.label_ids, work / "predictions.csv")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    selected = trainer.state.global_step
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        selected = int(Path(trainer.state.best_model_checkpoint).name.rpartition("-")[2])
    return {
        **scores,
        "selected_step": selected,
        "final_train_loss": float(np.mean(losses[-max(1, len(losses) // 10) :])),
        "still_improving": _still_improving(losses, scores["train"].get("accuracy")),
    }


def _still_improving(losses: list[float], train_accuracy: float | None) -> bool:
    """Mean training loss of the last tenth below 0.95 of the tenth before, and not yet every training example right."""
    tenth = max(1, len(losses) // 10)
    if len(losses) < 2 * tenth or (train_accuracy is not None and train_accuracy >= 1.0):
        return False
    return bool(np.mean(losses[-tenth:]) < 0.95 * np.mean(losses[-2 * tenth : -tenth]))


def _reconstruction_scores(trainer: StageTrainer, data: StageData) -> dict[str, Any]:
    metrics = trainer.evaluate(KeptRows(data.splits["validation"]))
    timing = ("runtime", "per_second", "epoch")
    kept = {
        name.removeprefix("eval_"): value for name, value in metrics.items() if not any(word in name for word in timing)
    }
    return {"validation": kept | _guess(trainer, data)}


def _guess(trainer: StageTrainer, data: StageData) -> dict[str, float]:
    """For symbols: the accuracy of always answering the most frequent training symbol, at the same scored positions.

    Real values need no such reference, since an R2 of 0 is that of the mean.
    """
    if data.vocab_size is None:
        return {}
    train, validation = data.splits["train"], data.splits["validation"]
    counts = np.zeros(data.vocab_size, dtype=np.int64)
    for index in range(min(len(train), MOST_COUNTED)):
        counts += np.bincount(train[index]["input_ids"], minlength=data.vocab_size)
    objective, right, total = trainer.objective.for_evaluation(), 0, 0
    for start in range(0, len(validation), 64):
        batch = objective([validation[index] for index in range(start, min(start + 64, len(validation)))])
        labels = batch["labels"][:, int(objective.causal) :].numpy()
        right += int((labels == counts.argmax()).sum())
        total += int((labels != IGNORE).sum())
    return {"guess_accuracy": right / total}


def _examples_seen(trainer: StageTrainer) -> int:
    size, batch = len(trainer.train_dataset), trainer.args.train_batch_size * trainer.args.world_size
    batches_per_epoch = -(-size // batch)
    steps_per_epoch = -(-batches_per_epoch // trainer.args.gradient_accumulation_steps)
    epochs, rest = divmod(trainer.state.global_step, steps_per_epoch)
    return epochs * size + min(rest * batch * trainer.args.gradient_accumulation_steps, size)


def _write_log(history: list[dict[str, Any]], stage: str, path: Path) -> None:
    kept = ("loss", "learning_rate", "grad_norm")
    with path.open("w", encoding="utf-8") as file:
        for entry in history:
            values = {name: entry[name] for name in kept if name in entry}
            values |= {
                name: value
                for name, value in sorted(entry.items())
                if name.startswith("eval_") and "runtime" not in name and "per_second" not in name
            }
            if values:
                file.write(json.dumps({"stage": stage, "step": entry["step"], **values}) + "\n")


def _write_predictions(data: StageData, outputs: np.ndarray, references: np.ndarray, path: Path) -> None:
    names = data.spec.labels
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["example_id", "label", "prediction"])
        for example_id, reference, output in zip(data.splits["test"]["example_id"], references, outputs, strict=True):
            if names is None:
                writer.writerow([int(example_id), float(reference), float(np.squeeze(output))])
            elif np.ndim(reference) == 1:
                found = [";".join(np.array(names)[np.asarray(row) > 0]) for row in (reference - 0.5, output)]
                writer.writerow([int(example_id), *found])
            else:
                writer.writerow([int(example_id), names[int(reference)], names[int(output.argmax())]])


def _write_example(trainer: StageTrainer, data: StageData, path: Path) -> None:
    """The first validation example, its mask and the model's reconstruction of every position, in raw units."""
    objective = trainer.objective.for_evaluation()
    example = data.splits["validation"][0]
    batch = trainer._prepare_inputs(objective([example]))
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    with torch.no_grad():
        logits = model(**batch).logits[0].float().cpu()
    if data.spec.unit is not None:
        names = np.array(data.processor.convert_ids_to_tokens(list(range(data.vocab_size or 0))))
        original, predicted = names[example["input_ids"]], names[logits.argmax(-1).numpy()]
        mask = (batch["labels"][0] != IGNORE).cpu().numpy()
    elif "input_ids" in example:
        original = np.asarray(data.processor.decode(example["input_ids"]))
        # Only levels may be predicted here: the three special symbols are no grey level.
        predicted = logits[:, 3:].argmax(-1).numpy()
        mask = (batch["labels"][0] != IGNORE).cpu().numpy()
    else:
        original = np.asarray(data.processor.denormalize(example["input_values"]))
        predicted = np.asarray(data.processor.denormalize(logits.numpy()))
        mask = batch["bool_masked_pos"][0].cpu().numpy() if "bool_masked_pos" in batch else np.ones(len(original), bool)
    arrays = {"original": original, "mask": mask, "reconstruction": predicted}
    if data.image_shape is not None:
        arrays["shape"] = np.array(data.image_shape)
    np.savez(path, **arrays)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from .cli import main

    main()
