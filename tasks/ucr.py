"""`ucr:<Name>`: univariate series in the `.tsv` layout of the 2018 UCR archive. GunPoint is shipped (`gunpoint`).

A file has one series a line, without header: label, then the values, separated by tabs. Series shorter than the
longest end in NaN; these trailing NaN are cut off and their number is noted, so such series have unequal lengths. A NaN
followed by a number is a missing value and refused.

The archive has no validation part. A fifth of its training part is held out, stratified and always the same; the rest
is `train`. At least one series of every class stays in `train`. The archive's test part is untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .base import Task, TaskEntry, TaskSpec, stratified_order

VALIDATION_SHARE = 0.2
VALIDATION_SEED = 0
OTHER_FORMATS = (".txt", ".ts", ".arff", ".csv")

LICENSE = "No formal licence; the UCR archive is free for research and asks to be cited"
CITATION = (
    "H. A. Dau, A. Bagnall, K. Kamgar, C.-C. M. Yeh, Y. Zhu, S. Gharghabi, C. A. Ratanamahatana, E. Keogh (2019). "
    "The UCR Time Series Archive. IEEE/CAA Journal of Automatica Sinica 6(6). arXiv:1810.07758."
)
SOURCE = "UCR Time Series Classification Archive (2018), https://www.cs.ucr.edu/~eamonn/time_series_data_2018/"
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
        title="Any set of the UCR archive",
        modality="values",
        length="file",
        classes="file",
        sizes="as published, a fifth of train held out",
        metric="accuracy",
        chance=None,
        license=LICENSE,
        source=SOURCE,
        layout="<Name>_TRAIN.tsv and <Name>_TEST.tsv, there or in <Name>/",
    ),
}


@dataclass
class TsvFile:
    """One file's series, in file order.

    Attributes:
        name: The file's name, for messages.
        values: Series of shape (length, 1), float32.
        labels: Label of each series as written, whole numbers without a fraction ("1.0" is "1").
        rows: Line number of each series, from 1.
        num_trimmed: How many series ended in NaN.
    """

    name: str
    values: list[np.ndarray]
    labels: list[str]
    rows: list[int]
    num_trimmed: int


def find_files(name: str, data_dir: Path) -> tuple[Path, Path]:
    """Return the training and the test file of set `name`, in `data_dir/name/` or in `data_dir` itself.

    Raises:
        FileNotFoundError: If `data_dir` is no folder, or with the names of the missing files.
        ValueError: If the set is there in another format only.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(f"data_dir={str(data_dir)!r} is not a folder; give the folder that holds {name}/.")
    file_names = [f"{name}_{part}.tsv" for part in ("TRAIN", "TEST")]
    for folder in (data_dir / name, data_dir):
        if all((folder / file_name).is_file() for file_name in file_names):
            return folder / file_names[0], folder / file_names[1]

    others = sorted(
        {
            path.relative_to(data_dir).as_posix()
            for folder in (data_dir / name, data_dir)
            for file_name in file_names
            for path in (folder / file_name).parent.glob(f"{Path(file_name).stem}.*")
            if path.suffix.lower() in OTHER_FORMATS
        }
    )
    has_tsv = any((folder / file_name).exists() for folder in (data_dir / name, data_dir) for file_name in file_names)
    if others and not has_tsv:
        raise ValueError(
            f"{name} is in {data_dir} only as {', '.join(others)}; only the .tsv layout of the 2018 UCR archive can be "
            f"read: {name}/{file_names[0]} and {name}/{file_names[1]}."
        )
    # Name what is missing where most of the set is; the archive's own place when nothing is there.
    in_place = any((data_dir / file_name).exists() for file_name in file_names)
    prefix = "" if in_place and not (data_dir / name).is_dir() else f"{name}/"
    missing = [prefix + file_name for file_name in file_names if not (data_dir / prefix / file_name).is_file()]
    raise FileNotFoundError(
        f"Missing in {data_dir}: {', '.join(missing)}. Both files may lie in {name}/ or directly in the folder."
    )


def _canonical_label(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if np.isfinite(number) and number == int(number) else text


def sort_labels(labels: set[str]) -> list[str]:
    """Sort by number if every label is one, else as text."""
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)


def read_tsv(path: Path) -> TsvFile:
    """Read one file.

    Raises:
        ValueError: With the row (line number from 1) of the first series that cannot be used.
    """
    file = TsvFile(path.name, [], [], [], 0)
    num_fields = None
    for row, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.rstrip("\t\r\n ").split("\t")
        if len(fields) < 2:
            raise ValueError(f"{path.name}, row {row}: no tab in {line[:40]!r}; expected a label, a tab and values.")
        num_fields = num_fields or len(fields)
        if len(fields) != num_fields:
            raise ValueError(
                f"{path.name}, row {row}: {len(fields) - 1} values where the first row has {num_fields - 1}; "
                f"fill shorter series with NaN at the end."
            )
        label = _canonical_label(fields[0].strip())
        if label.lower() in ("", "nan", "?"):
            raise ValueError(f"{path.name}, row {row}: the label is missing; every series needs one.")
        series = np.empty(len(fields) - 1, dtype=np.float64)
        for column, text in enumerate(fields[1:]):
            try:
                series[column] = float(text)
            except ValueError:
                raise ValueError(
                    f"{path.name}, row {row}, value {column + 1}: {text!r} is not a number; "
                    f"write numbers, and NaN only to fill up the end of a shorter series."
                ) from None
        known = np.flatnonzero(~np.isnan(series))
        if len(known) == 0:
            raise ValueError(f"{path.name}, row {row}: the series is empty or all NaN; remove the row.")
        trimmed = series[: known[-1] + 1]
        if not np.isfinite(trimmed).all():
            column = int(np.flatnonzero(~np.isfinite(trimmed))[0]) + 1
            raise ValueError(
                f"{path.name}, row {row}, value {column}: {fields[column]} inside the series; "
                f"missing and infinite values are not supported, fill them in or remove the row."
            )
        file.num_trimmed += len(trimmed) < len(series)
        file.values.append(trimmed.astype(np.float32)[:, None])
        file.labels.append(label)
        file.rows.append(row)
    if not file.values:
        raise ValueError(f"{path.name} holds no series; expected one a line: a label, then the values.")
    return file


def validation_mask(labels: np.ndarray) -> np.ndarray:
    """Return which training series are held out for validation, bool, (num_series,)."""
    order = stratified_order(labels, len(labels), VALIDATION_SEED)
    # The last of each class in this order always stays in train.
    last = {labels[index]: index for index in order}
    candidates = [index for index in order if last[labels[index]] != index]
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[candidates[: max(1, round(VALIDATION_SHARE * len(labels)))]] = True
    return held_out


def load(name: str, data_dir: Path | None = None) -> Task:
    """Load the set: columns `values` (length, 1) float32, `label`, `example_id` (training file first, then test)."""
    import datasets

    set_name = name.removeprefix("ucr:")
    folder = Path(__file__).parent / "data" / "ucr" if data_dir is None else data_dir
    train_path, test_path = find_files(set_name, folder)
    train, test = read_tsv(train_path), read_tsv(test_path)

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
    targets = np.array([label_ids[label] for label in train.labels])
    held_out = validation_mask(targets)
    if not held_out.any():
        raise ValueError(
            f"{train.name} has {len(targets)} series for {len(labels)} labels, so that none can be held out for "
            f"validation; give at least one label a second series."
        )

    lengths = [len(series) for series in (*train.values, *test.values)]
    features = datasets.Features(
        {
            "values": datasets.Array2D((lengths[0] if len(set(lengths)) == 1 else None, 1), "float32"),
            "label": datasets.ClassLabel(names=labels),
            "example_id": datasets.Value("int64"),
        }
    )

    def build(file: TsvFile, rows: np.ndarray, offset: int) -> datasets.Dataset:
        columns = {
            "values": [file.values[row] for row in rows],
            "label": [label_ids[file.labels[row]] for row in rows],
            "example_id": rows + offset,
        }
        return datasets.Dataset.from_dict(columns, features=features)

    splits = datasets.DatasetDict(
        {
            "train": build(train, np.flatnonzero(~held_out), 0),
            "validation": build(train, np.flatnonzero(held_out), 0),
            "test": build(test, np.arange(len(test.values)), len(train.values)),
        }
    )
    notes = (
        f"The archive's training part of {len(targets)} is split {len(targets) - held_out.sum()} for training and "
        f"{held_out.sum()} for validation (stratified, fixed); its test part is untouched. Values as published."
    )
    if len(set(lengths)) > 1:
        num_trimmed = train.num_trimmed + test.num_trimmed
        notes += f" Lengths {min(lengths)} to {max(lengths)}; NaN cut off the end of {num_trimmed} series."
    spec = TaskSpec(
        name=name,
        title=f"{set_name} (UCR archive)",
        modality="values",
        num_channels=1,
        labels=tuple(labels),
        num_levels=None,
        length=max(lengths),
        metric="accuracy",
        greater_is_better=True,
        chance=1 / len(labels),
        license=LICENSE,
        citation=CITATION,
        source=SOURCE,
        version=1,
        notes=notes,
    )
    return Task(spec, splits.with_format("numpy"))
