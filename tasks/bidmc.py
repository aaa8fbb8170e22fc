"""`bidmc-hr`, `bidmc-rr`, `bidmc-spo2`: heart rate, breaths and oxygen saturation from 32 s of two signals.

Windows of 4,000 steps with two channels (PPG and ECG at 125 Hz) from the archive of time series regression, in one of
two splits that are not comparable with each other:

- `archive`: its own training and test file (`BIDMC32HR_TRAIN.ts` ...). Validation is held out of the training file in
  contiguous blocks: it is cut into ten, of which two are drawn by a fixed seed. Neighbouring windows, which may come
  from one recording, thus stay together.
- `pooled`: both files together, shuffled 70/15/15, as papers on S4 do: from their `.npy` files as they are, or, where
  only the `.ts` files are there, with scikit-learn's seeds 0 and 1. Windows of a patient then stand in several parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec
from .cache import cached_split, fingerprint
from .files import DIGEST, bytes_digest, warn_of_repeats
from .series_files import MISSING_HELP, check_missing, fill_missing, iter_series, target
from .ucr import rmse_of_mean

if TYPE_CHECKING:
    import datasets

VERSION = 1
NUM_BLOCKS, NUM_HELD_OUT_BLOCKS, VALIDATION_SEED = 10, 2, 0
SPLIT_KINDS = ("archive", "pooled")
CITATION = (
    "M. A. F. Pimentel et al. (2017). Toward a Robust Estimation of Respiratory Rate From Pulse Oximeters. IEEE "
    "Transactions on Biomedical Engineering 64(8). As regression sets: C. W. Tan, C. Bergmeir, F. Petitjean, "
    "G. I. Webb (2021). Time series extrinsic regression. Data Mining and Knowledge Discovery 35. arXiv:2006.10996."
)


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Attributes:
        code: As in the files' names.
        title: For people.
        unit: Of the target.
        record: Of the set on Zenodo.
    """

    code: str
    title: str
    unit: str
    record: int


TARGETS = {
    "bidmc-hr": Target("HR", "heart rate", "beats a minute", 4001463),
    "bidmc-rr": Target("RR", "respiratory rate", "breaths a minute", 4001456),
    "bidmc-spo2": Target("SpO2", "oxygen saturation", "per cent", 4001464),
}


def _entry(kind: Target) -> TaskEntry:
    return TaskEntry(
        title=f"BIDMC {kind.title}",
        modality="values",
        length=4000,
        classes="target",
        sizes="7,949 in all: the archive's split, a fifth of train held out; or pooled, 70/15/15",
        metric="rmse",
        chance=None,
        license="Open Data Commons Attribution (BIDMC, PhysioNet); CC BY 4.0 (the archive)",
        source=f"BIDMC32{kind.code}, time series extrinsic regression archive, https://zenodo.org/record/{kind.record}",
        layout=(
            f"BIDMC32{kind.code}_TRAIN.ts and BIDMC32{kind.code}_TEST.ts, there, in {kind.code}/ or in "
            f"BIDMC32{kind.code}/; or {kind.code}/reshuffle/ with trainx.npy, trainy.npy, validx.npy ..."
        ),
        options={
            "split": (
                "'archive': its training and test file; 'pooled': both together, shuffled, which mixes patients; by "
                "default 'archive', or 'pooled' where only the .npy files of a pooled split are there"
            ),
            "missing": MISSING_HELP,
        },
    )


ENTRIES = {name: _entry(kind) for name, kind in TARGETS.items()}


def read_ts_cases(shards: Sequence[str], missing: str, shape: tuple[int, int], start: int) -> Iterator[dict[str, Any]]:
    """The windows of `.ts` files, each (length, channels) as `shape` says."""
    index = start
    for path in map(Path, shards):
        is_regression, cases = iter_series(path, missing)
        if not is_regression:
            raise ValueError(f"{path.name} has classes for labels; a file with @targetlabel true is needed.")
        for case in cases:
            if case.values.shape != shape:
                raise ValueError(
                    f"{path.name}, row {case.row}: {case.values.shape[0]} steps of {case.values.shape[1]} channels "
                    f"where the first window has {shape[0]} of {shape[1]}; all windows must be equal."
                )
            yield _example(case.values, target(path.name, case.row, case.label), index)
            index += 1


def read_arrays(
    shards: Sequence[tuple[int, int]], x: str, y: str, missing: str, start: int
) -> Iterator[dict[str, Any]]:
    """The windows of a pair of `.npy` files; a shard is a range of rows."""
    inputs, targets = open_arrays(Path(x), Path(y))
    for row in (row for first, end in shards for row in range(first, end)):
        window = np.asarray(inputs[row], dtype=np.float64)
        with np.errstate(over="ignore"):
            is_bad = np.isinf(window.astype(np.float32)) | (np.isnan(window) if missing == "refuse" else False)
        if is_bad.any():
            step, channel = (int(found[0]) for found in np.nonzero(is_bad))
            raise ValueError(
                f"{Path(x).name}, row {row}, step {step}, channel {channel} (all from 0): {window[step, channel]}; "
                f"correct it, or load missing values (NaN) with missing='interpolate' or missing='zero'."
            )
        if np.isnan(window).any():
            window = fill_missing(window, missing, f"{Path(x).name}, row {row}")
        label = float(targets[row])
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(np.float32(label))
        if not is_finite:
            raise ValueError(
                f"{Path(y).name}, row {row} (from 0): the target {label} is no finite 32-bit number; correct it or "
                f"remove the row."
            )
        yield _example(window.astype(np.float32), label, start + row)


def _example(window: np.ndarray, label: float, example_id: int) -> dict[str, Any]:
    """A row with the columns of `_features`."""
    digest = bytes_digest(window.tobytes())
    return {"values": window, "label": label, "example_id": example_id, DIGEST: digest}


def open_arrays(x: Path, y: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (rows, length, channels), left on the disk, and targets (rows,).

    Raises:
        ValueError: If a file is no plain array, or the shapes do not fit.
    """
    arrays = []
    for path in (x, y):
        try:
            arrays.append(np.load(path, mmap_mode="r", allow_pickle=False))
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(
                f"{path.name} cannot be read as a .npy file of numbers ({error}); it may be cut off or hold pickled "
                f"objects, save it again as a plain array."
            ) from None
    inputs, targets = arrays
    if inputs.ndim != 3 or inputs.shape[1] < inputs.shape[2] or 0 in inputs.shape:
        raise ValueError(
            f"{x.name} has shape {inputs.shape}; expected (windows, steps, channels), such as (N, 4000, 2)."
        )
    if targets.shape not in ((len(inputs),), (len(inputs), 1)):
        raise ValueError(
            f"{y.name} has shape {targets.shape}; expected ({len(inputs)},), one target a window of {x.name}."
        )
    if inputs.dtype.kind not in "fiu" or targets.dtype.kind not in "fiu":
        raise ValueError(f"{x.name} and {y.name} hold {inputs.dtype} and {targets.dtype}; expected real numbers.")
    return inputs, targets.reshape(-1)


def find_ts(code: str, data_dir: Path) -> tuple[list[Path], str]:
    """The training and the test file, or an empty list and the names of what is missing."""
    names = [f"BIDMC32{code}_{part}.ts" for part in ("TRAIN", "TEST")]
    places = ["", code, f"BIDMC32{code}"]
    present = {place: [name for name in names if (data_dir / place / name).is_file()] for place in places}
    place = max(places, key=lambda place: len(present[place]))
    missing = [(Path(place) / name).as_posix() for name in names if name not in present[place]]
    return ([] if missing else [data_dir / place / name for name in names]), ", ".join(missing)


def find_arrays(code: str, data_dir: Path) -> tuple[dict[str, tuple[Path, Path]], str]:
    """Inputs and targets of each part, or nothing and the names of what is missing."""
    places = [f"{code}/reshuffle", "reshuffle"]
    place = next((place for place in places if (data_dir / place).is_dir()), places[0])
    parts = dict(zip(SPLITS, ("train", "valid", "test")))
    found = {split: tuple(data_dir / place / f"{part}{axis}.npy" for axis in "xy") for split, part in parts.items()}
    missing = [path.relative_to(data_dir).as_posix() for pair in found.values() for path in pair if not path.is_file()]
    return ({} if missing else found), ", ".join(missing)  # type: ignore[return-value]


def held_out_rows(num_rows: int) -> np.ndarray:
    """Which rows of the training file are for validation, bool, (num_rows,): two of ten contiguous blocks."""
    order = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(VALIDATION_SEED))).permutation(NUM_BLOCKS)
    block = np.arange(num_rows) * NUM_BLOCKS // max(1, num_rows)
    return np.isin(block, order[:NUM_HELD_OUT_BLOCKS])


def pooled_rows(num_rows: int) -> dict[str, np.ndarray]:
    """Rows of each part of the shuffled whole: 70/15/15, by scikit-learn's seeds 0 and 1."""
    from sklearn.model_selection import train_test_split

    train, rest = train_test_split(np.arange(num_rows), test_size=0.3, random_state=0)
    validation, test = train_test_split(rest, test_size=0.5, random_state=1)
    return dict(zip(SPLITS, (train, validation, test), strict=True))


def _features(shape: tuple[int, int]) -> datasets.Features:
    import datasets

    return datasets.Features(
        {
            "values": datasets.Array2D(shape, "float32"),
            "label": datasets.Value("float32"),
            "example_id": datasets.Value("int64"),
            DIGEST: datasets.Value("int64"),
        }
    )


def from_ts(name: str, paths: Sequence[Path], split: str, missing: str) -> tuple[dict[str, datasets.Dataset], str]:
    """The parts of the archive's two files, and what is to be said of them."""
    import datasets

    first = next(iter_series(paths[0], missing)[1]).values.shape
    files, start = [], 0
    for part, path in zip(("train", "test"), paths, strict=True):
        features = _features(first)
        key = fingerprint(name, VERSION, [path], missing=missing, start=start, columns=list(features))
        constants = {"missing": missing, "shape": first, "start": start}
        files.append(cached_split(read_ts_cases, [str(path)], features, key, part, constants=constants))
        start += len(files[-1])
    train, test = files
    if len(train) < NUM_BLOCKS:
        raise ValueError(f"{paths[0].name} holds {len(train)} windows; at least {NUM_BLOCKS} are needed.")
    if split == "pooled":
        pooled = datasets.concatenate_datasets([train, test])
        parts = {part: pooled.select(rows) for part, rows in pooled_rows(len(pooled)).items()}
        return parts, "Training and test file together, shuffled 70/15/15 (scikit-learn, seeds 0 and 1)."
    held_out = held_out_rows(len(train))
    parts = {
        "train": train.select(np.flatnonzero(~held_out)),
        "validation": train.select(np.flatnonzero(held_out)),
        "test": test,
    }
    return parts, (
        f"The archive's training file of {len(train)} is split {len(parts['train'])} for training and "
        f"{len(parts['validation'])} for validation ({NUM_HELD_OUT_BLOCKS} of {NUM_BLOCKS} contiguous blocks, fixed); "
        f"its test file is untouched."
    )


def from_arrays(
    name: str, found: Mapping[str, tuple[Path, Path]], missing: str
) -> tuple[dict[str, datasets.Dataset], str]:
    """The parts of a pooled split that lies in `.npy` files, as they are."""
    parts, start, shapes = {}, 0, {}
    for part, (x, y) in found.items():
        inputs, _ = open_arrays(x, y)
        shapes[x.name] = inputs.shape[1:]
        if len(set(shapes.values())) > 1:
            raise ValueError(f"The windows differ in shape: {shapes}; give files of one set.")
        rows = [(first, min(first + 500, len(inputs))) for first in range(0, len(inputs), 500)]
        features = _features(inputs.shape[1:])
        key = fingerprint(name, VERSION, [x, y], missing=missing, start=start, columns=list(features))
        constants = {"x": str(x), "y": str(y), "missing": missing, "start": start}
        parts[part] = cached_split(read_arrays, rows, features, key, part, constants=constants)
        start += len(inputs)
    return parts, "The pooled split that lies in the folder's .npy files, as it is."


def load(name: str, data_dir: Path | None = None, *, split: str | None = None, missing: str = "refuse") -> Task:
    """Load the windows: columns `values` (4000, 2) float32, `label` float32 in its own unit, `example_id`.

    Raises:
        ValueError: For an option out of range, or data that cannot be used.
        FileNotFoundError: With the names of the missing files.

    Warns:
        UserWarning: If the split is pooled, or windows stand in more than one part.
    """
    import datasets

    check_missing(missing)
    if split is not None and split not in SPLIT_KINDS:
        raise ValueError(f"split={split!r} is unknown; use 'archive' or 'pooled'.")
    if data_dir is None:
        raise ValueError(f"{name} needs data_dir, the folder that holds {ENTRIES[name].layout}.")
    if not data_dir.is_dir():
        raise FileNotFoundError(f"data_dir={str(data_dir)!r} is not a folder; give the folder that holds the files.")
    code = TARGETS[name].code
    (paths, no_ts), (arrays, no_arrays) = find_ts(code, data_dir), find_arrays(code, data_dir)
    split = split or ("archive" if paths or not arrays else "pooled")
    if not paths and (split == "archive" or not arrays):
        alternative = (
            f", or for a pooled split {no_arrays}" if no_arrays else "; split='pooled' can read the .npy files"
        )
        raise FileNotFoundError(f"Missing in {data_dir}: {no_ts}{alternative}.")
    if split == "pooled":
        warnings.warn(
            f"{name}: the pooled split has windows of one patient in several parts; its numbers are not comparable "
            f"with those of the archive's own split.",
            stacklevel=2,
        )
    use_arrays = split == "pooled" and bool(arrays)
    parts, notes = from_arrays(name, arrays, missing) if use_arrays else from_ts(name, paths, split, missing)
    files = [path for pair in arrays.values() for path in pair] if use_arrays else paths
    splits = datasets.DatasetDict(parts).with_format("numpy")
    targets = np.unique(splits["train"]["label"][:])
    if len(targets) < 2:
        raise ValueError(
            f"the training part of {name} has the single target {targets[0]:g}; there is nothing to learn from it."
        )
    warn_of_repeats(name, {part: split[DIGEST][:] for part, split in splits.items()})
    splits = splits.remove_columns(DIGEST)
    spec = _spec(name, splits, f"{notes} Target in {TARGETS[name].unit}; values as published.")
    return Task(spec, splits, {"split": split, "missing": missing}, tuple(map(str, files)))


def _spec(name: str, splits: datasets.DatasetDict, notes: str) -> TaskSpec:
    entry = ENTRIES[name]
    length, channels = splits["train"].features["values"].shape
    labels = {part: np.asarray(splits[part]["label"][:]) for part in ("train", "test")}
    return TaskSpec(
        name=name,
        title=entry.title,
        modality="values",
        num_channels=channels,
        labels=None,
        num_levels=None,
        length=length,
        metric="rmse",
        greater_is_better=False,
        chance=rmse_of_mean(labels["train"], labels["test"]),
        license=entry.license,
        citation=CITATION,
        source=entry.source,
        version=VERSION,
        problem_type="regression",
        notes=notes,
    )
