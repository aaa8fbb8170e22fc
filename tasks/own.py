"""`own`: a user's own data, from a file, a folder, or a set of the Hub that is named.

    load_task("own", data="heart.csv", label="rhythm")
    load_task("own", data="recordings/", problem="classification")

Parts are taken as they are given: files or folders named train, validation (or val, valid, dev) and test, or a column
that names the part. Those that are missing are held out of train: a fifth for testing, a tenth for validation,
stratified by class, the same on every machine. Labels come back as they were written.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import METRICS, SPLITS, Task, TaskEntry, TaskSpec, check_seed, nearest
from .cache import cached_split, fingerprint
from .own_find import FORMATS, find_source
from .own_rows import CONSTANT, MISSING, MIXED_DOWN, REPAIRED, TRIMMED, Source
from .own_splits import PROBLEMS, Targets, assign, check_parts, decide_targets
from .survey import input_lengths

if TYPE_CHECKING:
    import datasets

VERSION = 1
# Smaller files are read at once, larger ones go through memory-mapped files.
SMALL_BYTES = 32 * 2**20
UNITS = ("bytes", "characters")
_FITTING = {
    "single_label_classification": ("accuracy", "f1_macro", "roc_auc"),
    "multi_label_classification": ("f1_macro", "accuracy", "roc_auc"),
    "regression": ("rmse", "r2"),
}

_PROBLEM = dict(zip(_FITTING, ("classification", "multi_label", "regression"), strict=True))

OPTIONS = {
    "data": "the file or folder, or the name owner/name of a set of the Hub",
    "input": "column(s) of the input, commas between them, * for any letters (default: all numbers, or the one text)",
    "label": "column of the label (default: label, labels, class, target or y)",
    "split": "column that says train, validation or test (default: split, if there is one and no files are named so)",
    "group": "column of what must not be in two parts, such as the patient (default: none)",
    "id": "long tables: column of the series (default: a row is an example)",
    "time": "long tables: column to sort the steps by (default: in the order of the rows)",
    "problem": "auto (default), classification, regression or multi_label",
    "separator": "between several labels in one text (; by default)",
    "metric": "accuracy, f1_macro, roc_auc, rmse or r2 (default: accuracy, several labels: f1_macro, numbers: rmse)",
    "missing": "NaN and infinite values: interpolate, zero, or trim (NaN at the end); by default they are refused",
    "unit": "of texts: bytes (default) or characters",
    "max_length": "longest input that models get (default: no limit)",
    "sampling_rate": "in Hz, if lists of whole numbers are sound (default: they are plain series)",
    "holdout_seed": "which examples are held out where parts are missing (0)",
    "format": "csv, parquet ..., where a folder holds the same data in several (default: none)",
    "subset": "configuration of a set of the Hub (default: none)",
}

ENTRIES = {
    "own": TaskEntry(
        title="Your own data",
        modality="file",
        length="file",
        classes="file",
        sizes="as given, or a fifth for test and a tenth for validation held out",
        metric="accuracy",
        chance=None,
        license="your own",
        source="your own file, folder or set of the Hub",
        layout="CSV, Parquet, JSON lines, .npz or x.npy and y.npy, or folders of texts, sounds or images by class",
        options=OPTIONS,
    )
}


def _check_options(options: dict[str, Any]) -> None:
    choices = {"problem": PROBLEMS, "metric": tuple(METRICS), "missing": MISSING, "unit": UNITS, "format": FORMATS}
    for name, allowed in choices.items():
        value = options[name]
        if value is not None and value not in allowed:
            raise ValueError(f"{name}={value!r} is unknown.{nearest(str(value), allowed)} Use {', '.join(allowed)}.")
        if value is None and name in ("problem", "unit"):
            raise ValueError(f"{name}=None is unknown. Use {', '.join(allowed)}.")
    for name in ("max_length", "sampling_rate"):
        value = options[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name}={value!r} is no length; use a whole number from 1 up, or leave it out.")
    if not isinstance(options["separator"], str) or not options["separator"]:
        raise ValueError(f"separator={options['separator']!r} is no text; use one such as ';'.")
    check_seed("holdout_seed", options["holdout_seed"])


def _know_first(source: Source) -> None:
    """Look at the first example: channels, shape and modality hold for all."""
    shards = source.shards["train"][:1]
    if not shards:
        raise ValueError("The training part holds no examples; every part needs at least one.")
    first = next(source.examples(shards, **source.constants))
    source.modality = next(iter(first))
    value = first[source.modality]
    if source.modality == "values":
        source.shape = (source.fixed_length, value.shape[1])
        source.constants["channels"] = value.shape[1]
    elif source.modality == "audio":
        source.shape = (None, 1)
    elif source.modality == "image":
        source.shape = value.shape
        if "plan" in source.constants:
            source.constants["plan"] = replace(source.constants["plan"], shape=value.shape)
        else:
            source.constants["shape"] = value.shape


def _num_bytes(source: Source) -> int:
    parts = [item for shards in source.shards.values() for item in shards if hasattr(item, "data")]
    return sum(path.stat().st_size for path in source.files) + sum(part.data.nbytes for part in parts)


def _read(source: Source) -> dict[str, datasets.Dataset]:
    """The examples of each part, not yet divided."""
    import datasets

    _know_first(source)
    if _num_bytes(source) > SMALL_BYTES:
        seen = [getattr(item, "_fingerprint", "") for shards in source.shards.values() for item in shards]
        return {
            part: cached_split(
                source.examples,
                shards,
                source.features(),
                fingerprint("own", VERSION, source.files, how=repr(source.constants), sets=seen),
                part,
                constants=source.constants,
            )
            for part, shards in source.shards.items()
        }
    rows = {part: list(source.examples(shards, **source.constants)) for part, shards in source.shards.items()}
    if source.modality in ("values", "audio"):
        lengths = {len(row[source.modality]) for part in rows.values() for row in part}
        source.shape = (lengths.pop() if len(lengths) == 1 else None, source.shape[1])
    features = source.features()
    for part, found in rows.items():
        if not found:
            raise ValueError(f"The {part} part holds no examples; every part needs at least one.")
    return {
        part: datasets.Dataset.from_dict({name: [row[name] for row in found] for name in features}, features=features)
        for part, found in rows.items()
    }


def load(
    name: str = "own",
    data_dir: Path | None = None,
    *,
    data: str | Path | None = None,
    input: str | list[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    id: str | None = None,
    time: str | None = None,
    problem: str = "auto",
    separator: str = ";",
    metric: str | None = None,
    missing: str | None = None,
    unit: str = "bytes",
    max_length: int | None = None,
    sampling_rate: int | None = None,
    holdout_seed: int = 0,
    format: str | None = None,
    subset: str | None = None,
) -> Task:
    """Load the data; `OPTIONS` says what each option does. `data` is looked for in `data_dir`, if that is given.

    Raises:
        FileNotFoundError: If there is no such file, folder or set of the Hub.
        ValueError: If the data cannot be used: with file, row and column, and what to do.

    Warns:
        UserWarning: If an input is in two parts.
    """
    options = {key: value for key, value in locals().items() if key not in ("name", "data_dir", "data")}
    _check_options(options)
    if (data is None and data_dir is None) or (data is not None and not str(data).strip()):
        raise ValueError("Task 'own' needs the option data: a file, a folder, or owner/name of a set of the Hub.")
    source = find_source("" if data is None else str(data), data_dir, options)
    by_part = _read(source)
    order = [part for part in SPLITS if part in by_part]
    meta = {
        key: [item for part in order for item in by_part[part].with_format(None)[key][:]]
        for key in ("names", "is_list", "group", "part", "digest", "flags")
    }
    wanted = source.problem or problem if problem == "auto" else problem
    targets = decide_targets(meta["names"], any(meta["is_list"]), wanted, separator)
    groups = meta["group"] if any(item is not None for item in meta["group"]) else None
    given = np.array([part for part in order for _ in range(len(by_part[part]))], dtype=object)
    if meta["part"][0] is not None:
        given = np.array(meta["part"], dtype=object)
    absent = [part for part in SPLITS if not (given == part).any()]
    if "train" in absent:
        raise ValueError(f"Column {split or 'split'!r} names no training row; models need a training part.")
    parts = assign(given, absent, targets, groups, holdout_seed)
    check_parts(parts, targets, groups, bool(absent))

    splits = _splits([by_part[part] for part in order], source.modality, targets, parts)
    notes = [_split_note(parts, absent, targets, groups is not None, holdout_seed), targets.note, *source.notes]
    notes += _flag_notes(np.array(meta["flags"]))
    notes += _warn_of_copies(np.array(meta["digest"]), parts)
    where = str(data if data is not None else data_dir)
    spec = _spec(name, where, source, targets, splits, parts, options, [note for note in notes if note])
    read = sorted({str(path) for path in source.files}) or [where]
    used = {"data": where, **_used(options, spec, bool(absent))}
    return Task(spec, splits, used, tuple(read) if len(read) <= 10 else (where,))


def _used(options: dict[str, Any], spec: TaskSpec, held_out: bool) -> dict[str, Any]:
    """The options that had a say, with the problem that was decided on."""
    used = {key: value for key, value in options.items() if value is not None}
    used["problem"] = _PROBLEM[spec.problem_type]
    idle = {
        "holdout_seed": not held_out,
        "unit": spec.modality != "text",
        "separator": used["problem"] != "multi_label",
    }
    return {key: value for key, value in used.items() if not idle.get(key, False)}


def _splits(read: list[datasets.Dataset], modality: str, targets: Targets, parts: np.ndarray) -> datasets.DatasetDict:
    """The examples with label and example_id, divided by `parts`."""
    import datasets

    feature: Any = datasets.Value("float32")
    if targets.problem_type == "single_label_classification":
        feature = datasets.ClassLabel(names=list(targets.names or ()))
    elif targets.problem_type == "multi_label_classification":
        feature = datasets.List(datasets.Value("float32"), length=len(targets.names or ()))
    values = targets.values if targets.values.ndim == 1 else targets.values.tolist()
    whole = datasets.concatenate_datasets([part.select_columns([modality]) for part in read])
    whole = whole.add_column("label", values, feature=feature)
    whole = whole.add_column("example_id", np.arange(len(parts)), feature=datasets.Value("int64"))
    splits = datasets.DatasetDict({part: whole.select(np.flatnonzero(parts == part)) for part in SPLITS})
    return splits if modality in ("text", "tokens") else splits.with_format("numpy")


def _split_note(parts: np.ndarray, absent: list[str], targets: Targets, has_groups: bool, seed: int) -> str:
    sizes = "/".join(f"{(parts == part).sum():,}" for part in SPLITS)
    if not absent:
        return f"Parts as given, {sizes}."
    how = "whole groups" if has_groups else "at random" if targets.strata is None else "stratified by class"
    return f"{sizes}: {' and '.join(absent)} held out of the training examples ({how}, holdout_seed={seed})."


def _flag_notes(flags: np.ndarray) -> list[str]:
    said = {
        CONSTANT: "series are constant",
        REPAIRED: "series had NaN or infinite values, which are filled in",
        TRIMMED: "series lost NaN at their end",
        MIXED_DOWN: "recordings had several channels, which are averaged",
    }
    return [f"{count:,} {text}." for bit, text in said.items() if (count := int((flags & bit > 0).sum()))]


def _warn_of_copies(digests: np.ndarray, parts: np.ndarray) -> list[str]:
    """Count inputs that an earlier part holds too."""
    train, validation, test = (digests[parts == part] for part in SPLITS)
    copies = int(np.isin(validation, train).sum() + np.isin(test, np.concatenate([train, validation])).sum())
    if not copies:
        return []
    warnings.warn(
        f"{copies:,} inputs of validation and test are also in an earlier part, so scores look better than they are; "
        f"remove them, or name what they share in group.",
        stacklevel=3,
    )
    return [f"{copies:,} inputs of validation and test are also in an earlier part."]


def _chance(metric: str, targets: Targets, parts: np.ndarray) -> float:
    """Score of a guess that does not look at the input; for numbers, of the mean of train."""
    if metric in ("roc_auc", "r2"):
        return 0.5 if metric == "roc_auc" else 0.0
    if metric == "rmse":
        guess = targets.values[parts == "train"].mean()
        return float(np.sqrt(np.mean((targets.values[parts == "test"] - guess) ** 2)))
    return 0.5 if targets.problem_type == "multi_label_classification" else 1 / len(targets.names or ())


def _spec(
    name: str,
    where: str,
    source: Source,
    targets: Targets,
    splits: datasets.DatasetDict,
    parts: np.ndarray,
    options: dict[str, Any],
    notes: list[str],
) -> TaskSpec:
    fitting = _FITTING[targets.problem_type]
    metric = options["metric"] or fitting[0]
    if metric not in fitting:
        raise ValueError(
            f"metric={metric!r} does not fit {targets.problem_type}; use {' or '.join(fitting)}, or change problem."
        )
    channels = {
        "values": source.shape[1:2],
        "image": (source.shape[2] if len(source.shape) == 3 else 1,),
        "audio": (1,),
    }
    spec = TaskSpec(
        name=name,
        title=f"Your own data ({Path(where).name or where})",
        modality=source.modality,
        num_channels=channels[source.modality][0] if source.modality in channels else None,
        labels=targets.names,
        num_levels=None,
        length=1,
        metric=metric,
        greater_is_better=METRICS[metric],
        chance=_chance(metric, targets, parts),
        license="Not stated: the user's own data",
        citation="",
        source=where,
        version=VERSION,
        problem_type=targets.problem_type,
        unit={"text": options["unit"], "tokens": "symbols"}.get(source.modality),
        max_length=options["max_length"],
        sampling_rate=source.sampling_rate,
    )
    if source.modality == "values" and source.shape[0] is not None:
        lengths = np.full(len(parts), source.shape[0])
    else:
        lengths = np.concatenate([input_lengths(split, spec) for split in splits.values()])
    longest = int(lengths.max())
    if lengths.min() != longest:
        notes.append(f"Lengths {lengths.min():,} to {longest:,}.")
    limit = options["max_length"]
    if limit is not None and longest > limit:
        count = int((lengths > limit).sum())
        notes.append(f"{count:,} of {len(lengths):,} inputs are longer than {limit:,} and lose their end.")
        longest = limit
    return replace(spec, length=longest, notes=" ".join(notes))
