"""Write the model card (README.md) of one run from its files; nothing is looked up on the Hub."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .formats import Scale, format_count, format_flops, format_seconds
from .report import render
from .runs import MATCHED, SCRATCH, SPT, Run, read_object, read_run, scrub

# The last line of a card we wrote: a hash of all that stands above it, so that an edit by hand shows.
_MARKER = re.compile(r"\n?<!-- neverscratch-card sha256:([0-9a-f]{64}) -->\s*\Z")
_TASK_TYPES = {
    "image": ("image-classification", "Image Classification"),
    "text": ("text-classification", "Text Classification"),
    "tokens": ("text-classification", "Text Classification"),
    "audio": ("audio-classification", "Audio Classification"),
    "values": ("time-series-classification", "Time Series Classification"),
}
_ARMS = {
    SCRATCH: "trained on the labels from random weights",
    MATCHED: "trained on the labels from random weights, for as many steps as self-pretraining and finetuning together",
    "pretrain": "self-pretrained on the training inputs, without labels; its classification head is new and untrained",
    SPT: "self-pretrained on the inputs of the same training data, then finetuned on its labels",
}
_EXAMPLES = {
    "image": "an image as an array of shape (height, width), or with channels last",
    "values": "a series as an array of shape (length,) or (length, channels)",
    "text": "a string",
    "tokens": "a list of symbols",
    "audio": "a recording as an array of shape (samples,)",
}


def write_card(run_dir: str | Path) -> Path | None:
    """Write `README.md` into a run folder.

    A card that was edited by hand, or that we did not write, is left as it is.

    Returns:
        The card's path, or `None` if one was left alone (with a warning).

    Raises:
        ValueError: the folder is no finished run.
    """
    path = Path(run_dir) / "README.md"
    if path.is_file() and not is_generated(path.read_text(encoding="utf-8")):
        warnings.warn(
            f"{path} was edited by hand and is kept; delete or rename it to have it written anew.", stacklevel=2
        )
        return None
    path.write_text(render_card(run_dir), encoding="utf-8", newline="")
    return path


def is_generated(card: str) -> bool:
    """Whether a card is ours and unchanged since it was written; line endings do not count."""
    card = card.replace("\r\n", "\n")
    found = _MARKER.search(card)
    return found is not None and _digest(card[: found.start()]) == found[1]


def render_card(run_dir: str | Path) -> str:
    """The card's text: metadata with the results of the saved weights, then what a reader needs to use and "
    "repeat it."""
    folder = Path(run_dir).resolve()
    try:
        info, metrics = read_object(folder / "run.json"), read_object(folder / "metrics.json")
        metric = metrics.get("metric")
        if metric is None and "pretrain" not in metrics:
            raise ValueError("metrics.json names no metric")
        run, _ = read_run(
            folder,
            metric,
            str(info.get("model") or folder.parent.parent.name),
            str(info.get("arm") or folder.parent.name),
            int(info.get("seed") or 0),
        )
    except ValueError as error:
        if all((folder / name).is_file() for name in ("run.json", "metrics.json")):
            raise ValueError(f"{run_dir} is damaged ({error}); copy it again, or train it again.") from None
        raise ValueError(
            f"{run_dir} is no finished run ({error}); give a folder with run.json and metrics.json, as in "
            "runs/digits/s4d/spt/seed-0."
        ) from None
    study = _study_of(folder, run)
    # A run outside a study knows its task by name only.
    task = dict(study.get("task") or {"name": str(info.get("task") or "unknown"), "sizes": info.get("sizes") or {}})
    data = _metadata(run, task)
    context = _context(run, task, study, info, str(data.model_name))
    body = f"---\n{data.to_yaml()}\n---\n\n{render('card.md.jinja', context)}".rstrip("\n") + "\n"
    return f"{body}\n<!-- neverscratch-card sha256:{_digest(body)} -->\n"


def _metadata(run: Run, task: Mapping[str, Any]) -> ModelCardData:
    task_type, task_name = _TASK_TYPES.get(str(task.get("modality")), ("other", "Sequence Classification"))
    values = [(split, value) for split, value in _scores(run) if split != "train"]
    results = [
        EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type=str(task["name"]),
            dataset_name=str(task.get("title") or task["name"]),
            dataset_split=split,
            metric_type=run.metric,
            metric_name=f"{split.capitalize()} {run.metric.replace('_', ' ')}",
            metric_value=float(value),
        )
        for split, value in values
    ]
    tags = ["neverscratch", "long-sequence", "sequence-classification", run.model, str(task["name"]).replace(":", "-")]
    return ModelCardData(
        license="apache-2.0",
        library_name="transformers",
        tags=[*tags, "self-pretraining" if run.arm in (SPT, "pretrain") else "from-scratch"],
        metrics=[run.metric] if run.metric else None,
        model_name=f"{run.model}-{str(task['name']).replace(':', '-')}-{run.arm}-seed-{run.seed}",
        eval_results=results or None,
    )


def _context(
    run: Run, task: Mapping[str, Any], study: Mapping[str, Any], info: Mapping[str, Any], name: str
) -> dict[str, Any]:
    scale = Scale(run.metric)
    sizes = task.get("sizes") or {}
    results = [(split, scale.value(value), repr(float(value))) for split, value in _scores(run)]
    stages = [
        {
            "name": s.name,
            "objective": (s.objective or "\u2013").replace("_", " "),
            "steps": format_count(s.steps),
            "batch_size": "\u2013" if s.batch_size is None else str(s.batch_size),
            "learning_rate": "\u2013" if s.learning_rate is None else f"{s.learning_rate:g}",
            "flops": format_flops(s.flops),
            "seconds": format_seconds(s.seconds),
        }
        for s in run.stages
    ]
    versions = info.get("versions") or study.get("versions") or {}
    command = study.get("command") or info.get("command")
    processor = "AutoFeatureExtractor" if (run.path / "preprocessor_config.json").is_file() else "AutoTokenizer"
    if not (run.path / "tokenizer.json").is_file():
        processor = "AutoFeatureExtractor"
    return {
        "name": name,
        "model": run.model,
        "arm": run.arm,
        "arm_text": _ARMS.get(run.arm, "see recipe.yaml for how it was trained"),
        "seed": run.seed,
        "parameters": None if run.parameters is None else format_count(run.parameters),
        "title": str(task.get("title") or task["name"]),
        "source_of_data": task.get("source"),
        "data_license": task.get("license"),
        "citation": task.get("citation"),
        "sizes": ", ".join(f"{format_count(n)} {split}" for split, n in sizes.items()),
        "labels": [str(label) for label in task.get("labels") or ()],
        "metric": scale.name,
        "pretrain_results": [(k.replace("_", " "), repr(float(v))) for k, v in run.pretrain_metrics.items()],
        "results": results,
        "selected_step": None if run.selected_step is None else format_count(run.selected_step),
        "selection": run.selection,
        "still_improving": run.still_improving,
        "stages": stages,
        "source": None if run.source is None else scrub(run.source),
        "changes": scrub(", ".join(map(str, info.get("changes") or ()))),
        "seeds": ", ".join(f"{k} {v}" for k, v in run.seeds.items()),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
        "commit": info.get("commit") or study.get("commit"),
        "num_threads": info.get("num_threads") or study.get("num_threads"),
        "command": None if command is None else scrub(str(command)),
        "processor": processor,
        "problem": _optional_json(run.path / "config.json").get("problem_type"),
        "example": _EXAMPLES.get(str(task.get("modality")), "one raw example of the task"),
    }


def _scores(run: Run) -> list[tuple[str, float]]:
    """The metric by split, without those that were not measured."""
    values = (("test", run.test), ("validation", run.validation), ("train", run.train))
    return [(split, value) for split, value in values if value is not None and math.isfinite(value)]


def _study_of(folder: Path, run: Run) -> dict[str, Any]:
    """The `study.json` above a run that lies in its place of a study; empty for a run by itself."""
    if folder.parts[-3:] != (run.model, run.arm, f"seed-{run.seed}"):
        return {}
    return _optional_json(folder.parents[2] / "study.json")


def _optional_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.rstrip("\n").encode()).hexdigest()
