"""Read a finished study folder into typed records. Nothing here writes, trains or imports a model.

A study folder holds `study.json`, `baselines.json`, `examples.npz` and one folder per run,
`<model>/<arm>/seed-<n>/`. A run counts when its `run.json` and `metrics.json` are whole; anything less is left out and
named in `Study.problems`, so that a report of an interrupted study says what it lacks instead of failing. A run whose
folder is there, which is written whole, and cannot be read, is damaged and not merely unfinished.
"""

from __future__ import annotations

import csv
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCRATCH, MATCHED, SPT = "scratch", "scratch-matched", "spt"

# The order of arms in every table and picture; other arms follow as the study lists them.
KNOWN_ARMS = (SCRATCH, MATCHED, SPT)


@dataclass(frozen=True)
class Stage:
    """One training of a run: `pretrain` or `finetune`; `arguments` are its settings as the recipe gave them."""

    name: str
    steps: int
    examples_seen: int | None = None
    flops: float | None = None
    seconds: float | None = None
    objective: str | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LogEntry:
    """One line of `log.jsonl`; `total_step` counts the steps of earlier stages too."""

    stage: str
    total_step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Predictions:
    """The test split as one run saw it: ids in ascending order, and whether each prediction equals its label."""

    example_ids: NDArray[np.int64]
    correct: NDArray[np.bool_]


@dataclass(frozen=True)
class Run:
    """One (model, arm, seed) of a study; values the folder does not give are `None`."""

    model: str
    arm: str
    seed: int
    path: Path
    metric: str
    train: float | None
    validation: float | None
    test: float
    train_loss: float | None
    selected_step: int | None
    still_improving: bool
    selection: str | None
    parameters: int | None
    stages: tuple[Stage, ...]
    pretrain_metrics: Mapping[str, float]
    seeds: Mapping[str, int]
    source: str | None
    keys: tuple[str, ...] = ()
    recipe: str = field(repr=False, default="")
    log: tuple[LogEntry, ...] = field(repr=False, default=())
    predictions: Predictions | None = field(repr=False, default=None)

    def steps(self, stage: str | None = None) -> int:
        """Optimiser steps of one stage, or of all of them."""
        return sum(s.steps for s in self.stages if stage in (None, s.name))

    def total(self, quantity: str, stage: str | None = None) -> float | None:
        """Sum of `examples_seen`, `flops` or `seconds` over stages; `None` if a stage does not give it."""
        values = [getattr(s, quantity) for s in self.stages if stage in (None, s.name)]
        return None if any(v is None for v in values) else sum(values)


@dataclass(frozen=True)
class Baseline:
    """A plain method on the same data, for one seed."""

    name: str
    test: float
    validation: float | None
    seed: int | None
    note: str = ""


@dataclass(frozen=True)
class Example:
    """A masked example and what the pretrained model of one family filled in, each (L,) or (L, channels)."""

    model: str
    original: NDArray[Any]
    mask: NDArray[np.bool_]
    reconstruction: NDArray[Any]
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Study:
    """A study folder as far as it is finished."""

    path: Path
    name: str
    task: Mapping[str, Any]
    models: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    missing: tuple[tuple[str, str, int], ...]
    damaged: Mapping[tuple[str, str, int], str]
    """Which of the missing runs are there but cannot be read, and why."""
    problems: tuple[str, ...]
    baselines: tuple[Baseline, ...]
    examples: tuple[Example, ...]
    info: Mapping[str, Any]

    @property
    def metric(self) -> str:
        return str(self.task.get("metric", "accuracy"))

    @property
    def greater_is_better(self) -> bool:
        return bool(self.task.get("greater_is_better", True))

    def get(self, model: str, arm: str, seed: int) -> Run | None:
        return next((r for r in self.runs if (r.model, r.arm, r.seed) == (model, arm, seed)), None)

    def select(self, model: str | None = None, arm: str | None = None) -> tuple[Run, ...]:
        """Runs of a model and/or an arm, in the study's order."""
        return tuple(r for r in self.runs if model in (None, r.model) and arm in (None, r.arm))


def order_arms(arms: Iterable[str]) -> tuple[str, ...]:
    """Known arms in their fixed order, then the others as given."""
    given = list(dict.fromkeys(arms))
    return tuple([a for a in KNOWN_ARMS if a in given] + [a for a in given if a not in KNOWN_ARMS])


def read_study(study_dir: str | Path) -> Study:
    """Read a study folder.

    Runs that are missing, damaged or not named by `study.json` are left out and listed in `missing`, `damaged` and
    `problems`.

    Raises:
        ValueError: the folder does not exist, is no study, or holds no finished run.
    """
    path = Path(study_dir)
    info = _read_study_json(path)
    problems: list[str] = []

    def names(key: str) -> tuple[str, ...]:
        return tuple(str(value) for value in info.get(key) or ())

    folders = [tuple(p.parts[-3:]) for p in path.glob("*/*/seed-*")]
    models = names("models") or tuple(sorted({model for model, _, _ in folders}))
    arms = order_arms(names("arms") or sorted({arm for _, arm, _ in folders}))
    on_disk = {number for _, _, seed in folders if (number := _seed(seed)) is not None}
    seeds = tuple(sorted({int(seed) for seed in info.get("seeds") or on_disk}))
    task: dict[str, Any] = dict(info.get("task") or {})
    task.setdefault("name", info.get("study", path.name))

    places = list(product(models, arms, seeds))
    runs, missing, damaged = _read_runs(path, info, places, task, problems)
    listed = {(model, arm, f"seed-{seed}") for model, arm, seed in places}
    others = sorted("/".join(parts) for parts in folders if _seed(parts[2]) is not None and parts not in listed)
    if others:
        problems.append(
            f"{len(others)} run folders are not part of this study.json and were left out: {_some(others)}."
        )
    if not runs and damaged:
        raise ValueError(f"{path} holds no run that can be read ({len(missing)} expected): {problems[0]}")
    if not runs:
        detail = " " + problems[0] if problems else ""
        command = info.get("command")
        mend = f"run `{command}` to fill it." if command else "run the study first."
        raise ValueError(f"{path} holds no finished run ({len(missing)} expected); {mend}{detail}")
    baselines = _read_baselines(path / "baselines.json", problems)
    examples = _read_examples(path / "examples.npz", models, problems)
    return Study(
        path=path,
        name=str(info.get("study", path.name)),
        task=task,
        models=models,
        arms=arms,
        seeds=seeds,
        runs=tuple(runs),
        missing=tuple(missing),
        damaged=damaged,
        problems=tuple(problems),
        baselines=baselines,
        examples=examples,
        info=info,
    )


def _read_study_json(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give one that `neverscratch compare` wrote, as in runs/digits.")
    if not (path / "study.json").is_file():
        inner = sorted(p.parent.name for p in path.glob("*/study.json"))
        hint = f"; did you mean {path / inner[0]}?" if inner else ", as in runs/digits."
        raise ValueError(f"{path} has no study.json, so it is no study folder; give one that `compare` wrote{hint}")
    try:
        return read_object(path / "study.json")
    except _Unreadable as error:
        raise ValueError(f"{path}: {error}; run the study's command again to rewrite it.") from None


_Place = tuple[str, str, int]
# How pages and messages tell people to replace a damaged run.
MEND = "delete its folder and call the study's command again"


def _read_runs(
    path: Path, info: Mapping[str, Any], places: Iterable[_Place], task: Mapping[str, Any], problems: list[str]
) -> tuple[list[Run], list[_Place], dict[_Place, str]]:
    """The runs of a study that can be used, the places (model, arm, seed) of those that cannot, and what is damaged."""
    metric = str(task.get("metric", "accuracy"))
    # The stages that the study's present settings lead to; runs of former settings must not be compared with them.
    expected = {(r["model"], r["arm"], int(r["seed"])): tuple(r["keys"]) for r in info.get("runs") or ()}
    runs: list[Run] = []
    missing: list[_Place] = []
    damaged: dict[_Place, str] = {}
    for place in places:
        if expected and place not in expected:
            continue
        model, arm, seed = place
        name = f"{model}/{arm}/seed-{seed}"
        if not (path / name).is_dir():
            missing.append(place)
            continue
        try:
            run, notes = read_run(path / name, metric, model, arm, seed)
        except _Unreadable as error:
            missing.append(place)
            damaged[place] = str(error)
            problems.append(f"Run {name} is damaged ({error}) and was left out; {MEND}.")
            continue
        if expected.get(place, run.keys) != run.keys:
            missing.append(place)
            problems.append(
                f"Run {name} was left out: it was made with other settings, code or data than the study has now."
            )
            continue
        runs.append(run)
        problems += [f"Run {name}: {note}." for note in notes]
    return runs, missing, damaged


def read_run(folder: Path, metric: str | None, model: str, arm: str, seed: int) -> tuple[Run, list[str]]:
    """One run folder, and notes on what it lacks.

    With `metric=None` a run that was only pretrained is read too; its `test` is NaN.

    Raises:
        ValueError: `run.json` or `metrics.json` is missing, broken or without a finite test value.
    """
    info, metrics = read_object(folder / "run.json"), read_object(folder / "metrics.json")
    parts = {part: _part(metrics, part, "metrics.json") for part in ("train", "validation", "test", "pretrain")}
    test = math.nan if metric is None else _number(parts["test"].get(metric))
    if test is None:
        found = ", ".join(parts["test"]) or "nothing"
        raise _Unreadable(f"metrics.json has no finite test {metric} (it has {found})")
    raw_stages = _part(info, "stages", "run.json", list)
    stages = [_read_stage(raw) for raw in raw_stages]
    notes: list[str] = []
    log = _read_log(folder / "log.jsonl", stages, notes)
    predictions = _read_predictions(folder / "predictions.csv", notes)
    if predictions is not None and metric == "accuracy" and abs(float(predictions.correct.mean()) - test) > 1e-6:
        share = float(predictions.correct.mean())
        notes.append(f"predictions.csv gives a test accuracy of {share:.4f}, metrics.json {test:.4f}")
    train_loss = _number(parts["train"].get("loss"))
    if train_loss is None:
        losses = [e.values["loss"] for e in log if e.stage == "finetune" and "loss" in e.values]
        train_loss = losses[-1] if losses else None
    parameters, selected_step = _number(info.get("parameters")), _number(metrics.get("selected_step"))
    pretrain = {k: v for k, raw in parts["pretrain"].items() if (v := _number(raw)) is not None}
    run = Run(
        model=model,
        arm=arm,
        seed=seed,
        path=folder,
        metric=metric or "",
        train=_number(parts["train"].get(metric)),
        validation=_number(parts["validation"].get(metric)),
        test=test,
        train_loss=train_loss,
        selected_step=None if selected_step is None else int(selected_step),
        still_improving=bool(metrics.get("still_improving", False)),
        selection=info.get("selection"),
        parameters=None if parameters is None else int(parameters),
        stages=tuple(stages),
        pretrain_metrics=pretrain,
        seeds=_part(info, "seeds", "run.json"),
        source=None if info.get("source") is None else str(info["source"]),
        keys=tuple(str(raw.get("key")) for raw in raw_stages),
        recipe=_read_recipe(folder),
        log=log,
        predictions=predictions,
    )
    return run, notes


def _read_stage(raw: Any) -> Stage:
    if not isinstance(raw, dict):
        raise _Unreadable(f"stages in run.json holds {_kind(raw)} where an object is expected")
    steps = raw.get("steps", 0)
    if not isinstance(steps, int):
        raise _Unreadable("steps in run.json is no whole number")
    examples_seen, batch_size = _number(raw.get("examples_seen")), _number(raw.get("batch_size"))
    return Stage(
        name=str(raw.get("name", "finetune")),
        steps=steps,
        examples_seen=None if examples_seen is None else int(examples_seen),
        flops=_number(raw.get("flops")),
        seconds=_number(raw.get("seconds")),
        objective=raw.get("objective"),
        learning_rate=_number(raw.get("learning_rate")),
        batch_size=None if batch_size is None else int(batch_size),
        arguments=_part(raw, "arguments", "run.json"),
    )


def scrub(text: str) -> str:
    """The text without home folders and access tokens: pages and cards are made to be shared."""
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=/|$|\s)", "~", text)
    text = re.sub(r"(?<![\w.])/(?:home|Users)/[^/\s'\"]+", "~", text)
    return re.sub(r"\bhf_[A-Za-z0-9_]{8,}", "hf_…", text)


class _Unreadable(ValueError):
    """A file of a run is missing or broken; the message goes on the page."""


def _seed(folder: str) -> int | None:
    tail = folder.removeprefix("seed-")
    return int(tail) if tail.isdigit() else None


def _read_recipe(folder: Path) -> str:
    """The resolved recipe of a run without its comments, which name the seed."""
    try:
        lines = (folder / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if not line.startswith("#"))


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _number(value: Any) -> float | None:
    """A finite number, or `None`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or a ValueError that says in half a sentence what is there instead."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _Unreadable(f"{path.name} is missing") from None
    except (ValueError, OSError):
        raise _Unreadable(f"{path.name} is cut off or no JSON") from None
    if not isinstance(value, dict):
        raise _Unreadable(f"{path.name} holds {_kind(value)} where an object is expected")
    return value


def _part(whole: Mapping[str, Any], key: str, file: str, kind: type = dict) -> Any:
    """An object or a list inside a file; an empty one where there is none."""
    value = whole.get(key)
    if value is not None and not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise _Unreadable(f"{key} in {file} is {_kind(value)} where {wanted} is expected")
    return kind() if value is None else value


def _kind(value: Any) -> str:
    """What a JSON value is, in plain words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "nothing"}
    return names.get(type(value), "a number")


def _read_log(path: Path, stages: list[Stage], notes: list[str]) -> tuple[LogEntry, ...]:
    if not path.is_file():
        notes.append("log.jsonl is missing, so it has no learning curve")
        return ()
    offsets: dict[str, int] = {}
    before = 0
    for stage in stages:
        offsets.setdefault(stage.name, before)
        before += stage.steps
    entries: list[LogEntry] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            stage_name, step = str(raw["stage"]), int(raw["step"])
        except (ValueError, KeyError, TypeError):
            notes.append("log.jsonl has a line that is no log entry; its learning curve may be cut")
            continue
        values = {k: v for k, x in raw.items() if k != "step" and (v := _number(x)) is not None}
        entries.append(LogEntry(stage_name, offsets.get(stage_name, 0) + step, values))
    return tuple(entries)


def _read_predictions(path: Path, notes: list[str]) -> Predictions | None:
    if not path.is_file():
        notes.append("predictions.csv is missing, so it has no part in the intervals over test examples")
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(int(r["example_id"]), r["label"] == r["prediction"]) for r in csv.DictReader(file)]
    except (KeyError, ValueError, TypeError):
        notes.append("predictions.csv does not have the columns example_id,label,prediction, so it was not used")
        return None
    rows.sort()
    ids = np.array([r[0] for r in rows], dtype=np.int64)
    if not rows or len(np.unique(ids)) != len(ids):
        notes.append("predictions.csv is empty or names an example twice, so it was not used")
        return None
    return Predictions(ids, np.array([r[1] for r in rows], dtype=np.bool_))


def _read_baselines(path: Path, problems: list[str]) -> tuple[Baseline, ...]:
    if not path.is_file():
        problems.append("baselines.json is missing, so no plain baseline is shown.")
        return ()
    try:
        found = []
        for raw in json.loads(path.read_text(encoding="utf-8")):
            test, note = _number(raw.get("test")), str(raw.get("note") or "")
            if test is None and note and (left_out := f"Baseline {raw['name']} is {note}.") not in problems:
                problems.append(left_out)
            if test is not None:
                found.append(Baseline(str(raw["name"]), test, _number(raw.get("validation")), raw.get("seed"), note))
        return tuple(found)
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        problems.append("baselines.json could not be read, so no plain baseline is shown.")
        return ()


def _read_examples(path: Path, models: tuple[str, ...], problems: list[str]) -> tuple[Example, ...]:
    if not path.is_file():
        return ()
    found = []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            shape = tuple(int(n) for n in arrays["shape"]) if "shape" in arrays else None
            for model in models:
                if f"{model}/original" in arrays:
                    original, reconstruction = arrays[f"{model}/original"], arrays[f"{model}/reconstruction"]
                    mask = arrays[f"{model}/mask"].astype(bool)
                    if original.shape != reconstruction.shape or len(mask) != len(original):
                        raise ValueError("shapes differ")
                    if shape is not None and math.prod(shape) != original.size:
                        raise ValueError("shape does not fit")
                    found.append(Example(model, original, mask, reconstruction, shape))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        problems.append(f"examples.npz could not be read ({error}), so no masked example is shown.")
        return ()
    return tuple(found)
