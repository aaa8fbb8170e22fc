"""`ucr:<Name>`: sets of the UCR, UEA and regression archives, from `.tsv`, `.ts`, `.txt` or `.arff` files.

GunPoint is shipped (`gunpoint`). Series have one or several channels and equal or unequal lengths; `series_files.py`
says what the formats are. Where a folder has a set in several formats, the first of the four is read. Missing values
are refused with their place unless `missing` says how to fill them in.

The archives have no validation part. A fifth of the training part is held out, always the same and stratified where
labels are classes; the rest is `train`. At least one series of every class stays there. The test part is untouched.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import Task, TaskEntry, TaskSpec, stratified_order
from .series_files import FORMATS, MISSING_HELP, SeriesFile, check_missing, read_series, sort_labels

if TYPE_CHECKING:
    import datasets

VALIDATION_SHARE = 0.2
VALIDATION_SEED = 0
OTHER_FORMATS = (".csv", ".mat", ".npy", ".npz", ".parquet", ".zip")

LICENSE = "No formal licence; the UCR archive is free for research and asks to be cited"
CITATION = (
    "H. A. Dau, A. Bagnall, K. Kamgar, C.-C. M. Yeh, Y. Zhu, S. Gharghabi, C. A. Ratanamahatana, E. Keogh (2019). "
    "The UCR Time Series Archive. IEEE/CAA Journal of Automatica Sinica 6(6). arXiv:1810.07758."
)
SOURCE = "UCR Time Series Classification Archive (2018), https://www.cs.ucr.edu/~eamonn/time_series_data_2018/"
OTHER_LICENSE = "No formal licence; the UCR, UEA and regression archives are free for research and ask to be cited"
OTHER_CITATION = (
    f"{CITATION} For several channels: A. Bagnall et al. (2018). The UEA multivariate time series classification "
    "archive. arXiv:1811.00075. For regression: C. W. Tan, C. Bergmeir, F. Petitjean, G. I. Webb (2021). Time series "
    "extrinsic regression. Data Mining and Knowledge Discovery 35. arXiv:2006.10996. And the set's own authors."
)
OTHER_SOURCE = f"{SOURCE}; UEA and regression archives, https://www.timeseriesclassification.com"
ENTRIES = {
    "gunpoint": TaskEntry(
        title="GunPoint (UCR archive)",
        modality="values",
        length=150,
        classes=2,
        sizes="40/10/150",
        metric="accuracy",
        chance=0.5,
        license=LICENSE,
        source=SOURCE,
    ),
    "ucr:<Name>": TaskEntry(
        title="Any set of the UCR, UEA or regression archive",
        modality="values",
        length="file",
        classes="file",
        sizes="as published, a fifth of train held out",
        metric="accuracy",
        chance=None,
        license=OTHER_LICENSE,
        source=OTHER_SOURCE,
        layout="<Name>_TRAIN and <Name>_TEST as .tsv, .ts, .txt or .arff, there or in <Name>/",
        options={"missing": MISSING_HELP},
    ),
}


def find_files(name: str, data_dir: Path) -> tuple[Path, Path]:
    """Return the training and the test file of set `name`, in `data_dir/name/` or in `data_dir` itself.

    Raises:
        FileNotFoundError: If `data_dir` is no folder, or with the names of the missing files.
        ValueError: If the set is there in another format only.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(f"data_dir={str(data_dir)!r} is not a folder; give the folder that holds {name}/.")
    folders = (data_dir / name, data_dir)
    pairs = {suffix: [f"{name}_{part}{suffix}" for part in ("TRAIN", "TEST")] for suffix in FORMATS}
    for suffix in FORMATS:
        for folder in folders:
            if all((folder / file_name).is_file() for file_name in pairs[suffix]):
                return folder / pairs[suffix][0], folder / pairs[suffix][1]

    begun = [suffix for suffix in FORMATS if any((f / n).exists() for f in folders for n in pairs[suffix])]
    others = sorted(
        path.relative_to(data_dir).as_posix()
        for folder in folders
        for path in (folder.glob(f"{name}_T*.*") if folder.is_dir() else ())
        if path.suffix.lower() in OTHER_FORMATS and path.stem in (f"{name}_TRAIN", f"{name}_TEST")
    )
    file_names = pairs[begun[0] if begun else FORMATS[0]]
    if others and not begun:
        raise ValueError(
            f"{name} is in {data_dir} only as {', '.join(others)}; the formats that can be read are "
            f"{', '.join(FORMATS)}, such as {name}/{file_names[0]} and {name}/{file_names[1]}."
        )
    # Name what is missing where most of the set is; the archive's own place when nothing is there.
    in_place = any((data_dir / file_name).exists() for file_name in file_names)
    prefix = "" if in_place and not (data_dir / name).is_dir() else f"{name}/"
    missing = [prefix + file_name for file_name in file_names if not (data_dir / prefix / file_name).is_file()]
    raise FileNotFoundError(
        f"Missing in {data_dir}: {', '.join(missing)}. Both files may lie in {name}/ or directly in the folder."
    )


def read_tsv(path: Path) -> SeriesFile:
    """Read one `.tsv` file, as `read_series` does."""
    return read_series(path)


def validation_mask(labels: np.ndarray) -> np.ndarray:
    """Return which training series are held out for validation, bool, (num_series,). `labels` are classes."""
    order = stratified_order(labels, len(labels), VALIDATION_SEED)
    # The last of each class in this order always stays in train.
    last = {labels[index]: index for index in order}
    candidates = [index for index in order if last[labels[index]] != index]
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[candidates[: max(1, round(VALIDATION_SHARE * len(labels)))]] = True
    return held_out


def regression_mask(num_series: int) -> np.ndarray:
    """Return which training series are held out where labels are targets: a fixed random fifth, (num_series,)."""
    held_out = np.zeros(num_series, dtype=bool)
    size = max(1, round(VALIDATION_SHARE * num_series))
    held_out[stratified_order(None, num_series, VALIDATION_SEED)[:size]] = True
    return held_out


def _class_ids(train: SeriesFile, test: SeriesFile) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Label names, ids of the training file and ids of the test file."""
    labels = sort_labels(set(train.labels))
    if len(labels) < 2:
        raise ValueError(f"{train.name} has the single label {labels[0]!r}; a classification task needs at least two.")
    label_ids = {label: index for index, label in enumerate(labels)}
    for label, row in zip(test.labels, test.rows, strict=True):
        if label not in label_ids:
            raise ValueError(
                f"{test.name}, row {row}: label {label!r} never occurs in {train.name}, whose labels are "
                f"{', '.join(labels)}; correct it or remove its rows."
            )
    train_ids, test_ids = (np.array([label_ids[label] for label in file.labels]) for file in (train, test))
    return labels, train_ids, test_ids


def _check_pair(train: SeriesFile, test: SeriesFile) -> None:
    """Refuse two files that do not belong together."""
    if train.is_regression != test.is_regression:
        kinds = ["targets" if file.is_regression else "classes" for file in (train, test)]
        raise ValueError(f"{train.name} has {kinds[0]} for labels, {test.name} {kinds[1]}; give files of one set.")
    channels = [file.values[0].shape[1] for file in (train, test)]
    if channels[0] != channels[1]:
        raise ValueError(
            f"{train.name} has {channels[0]} channel(s), {test.name} {channels[1]}; give files of one set."
        )


def warn_of_repeated_series(name: str, train: SeriesFile, test: SeriesFile) -> None:
    """Warn once, with the count, of series of the training file that occur in the test file, too."""
    known = {(series.shape, series.tobytes()) for series in train.values}
    count = sum((series.shape, series.tobytes()) in known for series in test.values)
    if count:
        warnings.warn(
            f"{name}: {count} of {len(test.values)} test series occur in {train.name}, too; they are kept.",
            stacklevel=3,
        )


def load(name: str, data_dir: Path | None = None, *, missing: str = "refuse") -> Task:
    """Load the set: columns `values` (length, channels) float32, `label`, `example_id` (training file first).

    Raises:
        ValueError: For an unknown `missing`, or files that cannot be used.
        FileNotFoundError: With the names of the missing files.
    """
    check_missing(missing)
    set_name = name.removeprefix("ucr:")
    folder = Path(__file__).parent / "data" / "ucr" if data_dir is None else data_dir
    paths = find_files(set_name, folder)
    train, test = (read_series(path, missing) for path in paths)
    _check_pair(train, test)
    labels: list[str] | None = None
    if train.is_regression:
        targets, test_targets = train.targets, test.targets
        if len(set(targets.tolist())) < 2:
            raise ValueError(f"{train.name} has the single target {targets[0]:g}; there is nothing to learn from it.")
        held_out = regression_mask(len(targets))
    else:
        labels, targets, test_targets = _class_ids(train, test)
        held_out = validation_mask(targets)
    if not held_out.any():
        raise ValueError(
            f"{train.name} has {len(targets)} series for {len(labels or ())} labels, so that none can be held out for "
            f"validation; give at least one label a second series."
        )
    warn_of_repeated_series(name, train, test)
    splits = _splits(train, test, labels, targets, test_targets, held_out)
    chance = 1 / len(labels) if labels else rmse_of_mean(targets[~held_out], test_targets)
    spec = _spec(name, train, test, labels, held_out, chance)
    # The default is left out: results of sets without missing values are the same with and without the option.
    options = {} if missing == "refuse" else {"missing": missing}
    return Task(spec, splits.with_format("numpy"), options, tuple(map(str, paths)))


def rmse_of_mean(train: np.ndarray, test: np.ndarray) -> float:
    """Root of the mean squared error on `test` of always predicting the mean of `train`."""
    return float(np.sqrt(np.mean((np.asarray(test, np.float64) - np.mean(train, dtype=np.float64)) ** 2)))


def _splits(
    train: SeriesFile,
    test: SeriesFile,
    labels: list[str] | None,
    targets: np.ndarray,
    test_targets: np.ndarray,
    held_out: np.ndarray,
) -> datasets.DatasetDict:
    import datasets

    lengths = {len(series) for series in (*train.values, *test.values)}
    features = datasets.Features(
        {
            "values": datasets.Array2D(
                (lengths.pop() if len(lengths) == 1 else None, train.values[0].shape[1]), "float32"
            ),
            "label": datasets.ClassLabel(names=labels) if labels else datasets.Value("float32"),
            "example_id": datasets.Value("int64"),
        }
    )

    def build(file: SeriesFile, ids: np.ndarray, rows: np.ndarray, offset: int) -> datasets.Dataset:
        columns: dict[str, Any] = {
            "values": [file.values[row] for row in rows],
            "label": [ids[row] for row in rows],
            "example_id": rows + offset,
        }
        return datasets.Dataset.from_dict(columns, features=features)

    return datasets.DatasetDict(
        {
            "train": build(train, targets, np.flatnonzero(~held_out), 0),
            "validation": build(train, targets, np.flatnonzero(held_out), 0),
            "test": build(test, test_targets, np.arange(len(test.values)), len(train.values)),
        }
    )


def _spec(
    name: str, train: SeriesFile, test: SeriesFile, labels: list[str] | None, held_out: np.ndarray, chance: float
) -> TaskSpec:
    lengths = [len(series) for series in (*train.values, *test.values)]
    notes = (
        f"The archive's training part of {len(held_out)} is split {len(held_out) - held_out.sum()} for training and "
        f"{held_out.sum()} for validation ({'stratified' if labels else 'at random'}, fixed); its test part is "
        f"untouched. Values as published."
    )
    if len(set(lengths)) > 1:
        notes += f" Lengths {min(lengths)} to {max(lengths)}"
        num_trimmed = train.num_trimmed + test.num_trimmed
        notes += f"; NaN cut off the end of {num_trimmed} series." if num_trimmed else "."
    if train.num_filled + test.num_filled:
        notes += f" {train.num_filled + test.num_filled:,} missing values filled in."
    set_name = name.removeprefix("ucr:")
    # Only what the 2018 archive itself publishes bears its citation alone.
    is_plain = train.name.endswith(".tsv")
    return TaskSpec(
        name=name,
        title=f"{set_name} (UCR archive)" if is_plain else f"{set_name} (UCR, UEA or regression archive)",
        modality="values",
        num_channels=train.values[0].shape[1],
        labels=None if labels is None else tuple(labels),
        num_levels=None,
        length=max(lengths),
        metric="accuracy" if labels else "rmse",
        greater_is_better=labels is not None,
        chance=chance,
        license=LICENSE if is_plain else OTHER_LICENSE,
        citation=CITATION if is_plain else OTHER_CITATION,
        source=SOURCE if is_plain else OTHER_SOURCE,
        version=1,
        problem_type="single_label_classification" if labels else "regression",
        notes=notes,
    )
