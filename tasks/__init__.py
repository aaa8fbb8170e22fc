"""Tasks: raw examples in fixed splits, and what is needed to judge a model on them.

    from neverscratch.tasks import load_task
    task = load_task("digits", train_size=300)
    task.spec.labels, task.splits["train"][0]["image"]

Importing this package is cheap; data and the libraries that read them are loaded by `load_task`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from .base import METRICS, Task, TaskEntry, TaskSpec, check_seed, check_train_size, nearest, training_subset

# Name -> module. A module has `ENTRIES`, name -> TaskEntry, and `load(name, data_dir, **options) -> Task`.
_MODULES = {
    "digits": "digits",
    "gunpoint": "ucr",
    "ucr:<Name>": "ucr",
    "own": "own",
    "lra-listops": "lra_listops",
    "lra-text": "lra_text",
    "lra-retrieval": "lra_retrieval",
    "lra-image": "cifar",
    "scifar": "cifar",
    "lra-pathfinder": "pathfinder",
    "lra-pathfinder64": "pathfinder",
    "lra-pathx": "pathfinder",
    "lra-pathx256": "pathfinder",
    "speech-commands-35": "speech_commands",
    "speech-commands-10": "speech_commands",
    "bidmc-hr": "bidmc",
    "bidmc-rr": "bidmc",
    "bidmc-spo2": "bidmc",
    "trajectory": "trajectory",
}
_ALIASES = {"gunpoint": "ucr:GunPoint"}
# Tasks whose examples come with the package or one of its dependencies.
_SHIPPED = ("digits", "ucr:GunPoint")
_COMMON_OPTIONS = ("train_size", "split_seed")
_UCR_NAME = re.compile(r"ucr:[A-Za-z0-9_-]+")


def list_tasks() -> list[str]:
    """Return the names `load_task` takes; `ucr:<Name>` stands for every set of the UCR archive."""
    return list(_MODULES)


def task_entry(name: str) -> TaskEntry:
    """What is known of a task without its files; `name` is one of `list_tasks()`, or ucr:<the name of a set>."""
    return _module(name).ENTRIES[_listed(name)]


def _listed(name: str) -> str:
    """The name under which a task is listed."""
    if name in _MODULES:
        return name
    full_name = resolve_task_name(name)
    return "ucr:<Name>" if full_name.startswith("ucr:") else full_name


def _module(name: str) -> Any:
    return importlib.import_module(f".{_MODULES[_listed(name)]}", __name__)


def resolve_task_name(name: str) -> str:
    """Return the task's full name (`gunpoint` is `ucr:GunPoint`), or refuse an unknown one. Loads nothing.

    Raises:
        ValueError: With the known names and the nearest one.
    """
    if isinstance(name, str):
        full_name = _ALIASES.get(name, name)
        if full_name in _MODULES and "<" not in full_name:
            return full_name
        if _UCR_NAME.fullmatch(full_name):
            return full_name
    hint = nearest(str(name), [*_MODULES, *_ALIASES.values()])
    raise ValueError(f"There is no task {name!r}.{hint} Known tasks: {', '.join(_MODULES)}.")


def check_task(name: str, data_dir: str | Path | None = None, **options: Any) -> None:
    """Refuse what `load_task` would refuse before it looks at any data. Loads nothing.

    Raises:
        ValueError: For an unknown name or option, an option out of range, or a missing `data_dir`.
    """
    full_name = resolve_task_name(name)
    entry = task_entry(full_name)
    known = (*entry.options, *_COMMON_OPTIONS)
    for option in options:
        if option not in known:
            raise ValueError(
                f"Task {name!r} has no option {option!r}.{nearest(option, [*known, 'data_dir'])} "
                f"Its options: {', '.join(known)} and data_dir."
            )
    check_seed("split_seed", options.get("split_seed", 0))
    if options.get("train_size") is not None:
        check_train_size(options["train_size"])
    is_elsewhere = full_name in _SHIPPED or not entry.layout or any(options.get(key) for key in ("hub", "data"))
    if data_dir is None and not is_elsewhere:
        if "data" in entry.options:
            raise ValueError(f"Task {name!r} needs the option data, {entry.options['data']}: {entry.layout}.")
        hint = nearest(full_name, _SHIPPED) if full_name.lower() in map(str.lower, _SHIPPED) else ""
        raise ValueError(
            f"Task {name!r} is not shipped with this package.{hint} Give data_dir, the folder that holds its files: "
            f"{entry.layout}."
        )


def load_task(name: str, data_dir: str | Path | None = None, **options: Any) -> Task:
    """Load a task's description and raw splits. Nothing is downloaded.

    Args:
        name: One of `list_tasks()`, for example "digits" or "ucr:ECG200".
        data_dir: Folder with the published files, for tasks that are not shipped.
        **options: For every task `train_size` (number or share of the training examples, None = all) and `split_seed`
            (which subset, 0 by default); see `training_subset`.

    Returns:
        The task, with the splits `train`, `validation` and `test`.

    Raises:
        ValueError: For an unknown name or option, an option out of range, or data that cannot be used.
        FileNotFoundError: With the names of the missing files.
    """
    check_task(name, data_dir, **options)
    train_size, split_seed = options.pop("train_size", None), options.pop("split_seed", 0)
    full_name = resolve_task_name(name)
    task = _module(full_name).load(full_name, None if data_dir is None else Path(data_dir), **options)
    return training_subset(task, train_size, split_seed)


def __getattr__(name: str) -> Any:
    # `metrics` needs `evaluate` and scikit-learn, so it is imported on first use.
    if name in ("load_metric", "score_logits"):
        return getattr(importlib.import_module(".metrics", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "METRICS",
    "Task",
    "TaskEntry",
    "TaskSpec",
    "check_task",
    "list_tasks",
    "load_metric",
    "load_task",
    "resolve_task_name",
    "score_logits",
    "task_entry",
    "training_subset",
]
