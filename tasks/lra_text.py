"""`lra-text`: sentiment of IMDB reviews, read byte by byte or character by character (Long Range Arena).

The reviews come from a folder that the user has: text files as in the published archive, or CSV or Parquet files with
the columns text and label; or from the Hub, only if `hub` names the set. Reviews are left as they are.

IMDB has no validation part. By default a tenth of its training part is held out, stratified and always the same. The
papers look at the test part instead, which `validation="test"` repeats.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec, stratified_order
from .cache import cached_split, fingerprint
from .files import (
    DIGEST,
    LRA_CITATION,
    check_folder,
    check_labels,
    check_unit,
    decode,
    longest_text,
    numbers,
    open_parquet,
    read_lines,
    reading_parquet,
    text_features,
    text_measures,
    warn_of_repeats,
    without_measures,
)

if TYPE_CHECKING:
    import datasets

VERSION = 1
LABELS = ("neg", "pos")
MAX_LENGTH = 4096
MIN_COUNT = 15
VALIDATION_SHARE = 0.1
VALIDATION_SEED = 0
# Files of one shard: opening them is the work, and a process is worth it for some thousands.
_FILES_PER_SHARD = 1000
_WORDS = {"0": 0, "1": 1, "neg": 0, "pos": 1, "negative": 0, "positive": 1}
_TEXT_FOLDERS = ("", "aclImdb", "aclImdb_v1/aclImdb")
_TABLE_FOLDERS = ("", "plain_text", "data")

ENTRIES = {
    "lra-text": TaskEntry(
        title="Text (Long Range Arena: IMDB reviews)",
        modality="text",
        length=MAX_LENGTH,
        classes=2,
        sizes="22,500/2,500/25,000, validation held out of train",
        metric="accuracy",
        chance=0.5,
        license="No formal licence; free for research, cite Maas et al. 2011",
        source="IMDB reviews (Maas et al. 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
        layout=(
            "train/pos, train/neg, test/pos and test/neg with .txt files, there or in aclImdb/; or train and test as "
            ".csv or .parquet with the columns text and label"
        ),
        options={
            "unit": "'bytes' (default) or 'characters'",
            "min_count": f"characters that occur less often in train are unknown ones; {MIN_COUNT} by default",
            "max_length": f"what is longer is cut off; {MAX_LENGTH} by default, the Long Range Arena has 4000",
            "validation": (
                "'held-out' (default): a validation file or else a fixed tenth of train; 'test': the test part, as "
                "in the papers, whose selection thus sees it"
            ),
            "hub": "name of the set on the Hub, such as stanfordnlp/imdb, in place of data_dir; this downloads it",
        },
    ),
}


@dataclass
class Source:
    """Where the reviews are.

    Attributes:
        reader: Yields the examples of shards.
        shards: Of each part ("train", "test", perhaps "validation").
        paths: Every file of each part, for the key of the cache.
        files: For people.
        notes: Whatever is to be said.
    """

    reader: Any
    shards: dict[str, list[Any]]
    paths: dict[str, list[Path]]
    files: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def _example(text: str, label: int, example_id: int) -> dict[str, Any]:
    return {"text": text, "label": label, "example_id": example_id, **text_measures(text)}


def read_text_files(shards: Sequence[Any], start: int) -> Iterator[dict[str, Any]]:
    """The reviews of files; a shard is a sequence of (row, path, label)."""
    for row, path, label in (entry for shard in shards for entry in shard):
        name = "/".join(Path(path).parts[-3:])
        text = decode(Path(path).read_bytes(), name)
        if not text:
            raise ValueError(f"{name} is empty; every review needs a character, remove the file.")
        yield _example(text, label, start + row)


def read_tables(shards: Sequence[Any], start: int) -> Iterator[dict[str, Any]]:
    """The reviews of CSV, Parquet or Arrow files; a shard is the sequence of a part's files."""
    row = start
    for path in (Path(path) for shard in shards for path in shard):
        rows = {".csv": _csv_rows, ".parquet": _parquet_rows, ".arrow": _arrow_rows}[path.suffix](path)
        for place, text, raw_label in rows:
            label = _WORDS.get(_canonical(raw_label))
            if label is None:
                raise ValueError(
                    f"{path.name}, {place}: label {raw_label!r} is unknown; use 0 or neg, 1 or pos, and leave out "
                    f"reviews without a label."
                )
            if not text:
                raise ValueError(f"{path.name}, {place}: the text is empty; remove the row.")
            if not isinstance(text, str):
                raise ValueError(
                    f"{path.name}, {place}: the text is of the type {type(text).__name__}; save the column as text."
                )
            yield _example(text, label, row)
            row += 1
    if row == start:
        raise ValueError(f"{Path(shards[0][0]).name} holds no review; expected the columns text and label and rows.")


def _canonical(label: Any) -> str:
    text = str(label).strip().lower()
    return text.removesuffix(".0")


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [name for name in ("text", "label") if name not in columns]
    if missing:
        raise ValueError(
            f"{path.name} has no column {' and no column '.join(missing)}; the columns found are "
            f"{', '.join(map(repr, columns)) or 'none'}. Name them text and label."
        )


def _csv_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    limit = csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    try:
        columns = next(reader, [])
        _check_columns(path, columns)
        text, label = columns.index("text"), columns.index("label")
        for fields in reader:
            place = f"line {reader.line_num}"
            if not fields:
                continue
            if len(fields) != len(columns):
                raise ValueError(
                    f"{path.name}, {place}: {len(fields)} fields where the header has {len(columns)}; put texts with "
                    f"commas in double quotes."
                )
            yield place, fields[text], fields[label]
    except csv.Error as error:
        raise ValueError(f"{path.name}, line {reader.line_num}: {error}; the file may be cut off.") from None
    finally:
        csv.field_size_limit(limit)


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any, Any]]:
    row = 0
    with open_parquet(path) as file, reading_parquet(path):
        _check_columns(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1000, columns=["text", "label"]):
            for text, label in zip(batch.column("text").to_pylist(), batch.column("label").to_pylist()):
                row += 1
                yield f"row {row}", text, label


def _arrow_rows(path: Path) -> Iterator[tuple[str, Any, Any]]:
    import datasets

    split = datasets.Dataset.from_file(str(path))
    row = 0
    for batch in split.select_columns(["text", "label"]).iter(batch_size=1000):
        for text, label in zip(batch["text"], batch["label"]):
            row += 1
            yield f"row {row}", text, label


def find_source(data_dir: Path) -> Source:
    """Where the reviews are in a folder.

    Raises:
        FileNotFoundError: If it is no folder, or with the names of what is missing.
    """
    check_folder("lra-text", data_dir)
    for place in _TEXT_FOLDERS:
        base = data_dir / place
        if (base / "train").is_dir() or (base / "test").is_dir():
            return _text_folder(base, data_dir)
    for place in _TABLE_FOLDERS:
        found = {part: _table_files(data_dir / place, part) for part in ("train", "test", "validation")}
        if found["train"] or found["test"]:
            return _tables(found, data_dir, data_dir / place)
    raise FileNotFoundError(
        f"Missing in {data_dir}: train/pos, train/neg, test/pos and test/neg with .txt files (there or in aclImdb/), "
        f"or train.csv and test.csv, or train.parquet and test.parquet."
    )


def _text_folder(base: Path, data_dir: Path) -> Source:
    folders = {part: [base / part / label for label in LABELS] for part in ("train", "test")}
    missing = [path for part in folders.values() for path in part if not path.is_dir()]
    if missing:
        names = ", ".join(path.relative_to(data_dir).as_posix() for path in missing)
        raise FileNotFoundError(f"Missing in {data_dir}: {names}; each must be a folder of .txt files.")
    source = Source(read_text_files, {}, {}, (str(base / "train"), str(base / "test")))
    for part, pair in folders.items():
        entries: list[tuple[int, str, int]] = []
        for label, folder in enumerate(pair):
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".txt")
            if not paths:
                name = folder.relative_to(data_dir).as_posix()
                raise FileNotFoundError(f"{name} in {data_dir} holds no .txt file; put one review in each.")
            entries += [(len(entries) + index, str(path), label) for index, path in enumerate(paths)]
        source.shards[part] = [
            tuple(entries[start : start + _FILES_PER_SHARD]) for start in range(0, len(entries), _FILES_PER_SHARD)
        ]
        source.paths[part] = [Path(path) for _, path, _ in entries]
    if (base / "train" / "unsup").is_dir():
        source.notes.append("The reviews without a label (unsup) are left out.")
    return source


def _table_files(folder: Path, part: str) -> list[Path]:
    for name in (f"{part}.csv", f"{part}.parquet"):
        if (folder / name).is_file():
            return [folder / name]
    return sorted(folder.glob(f"{part}-*-of-*.parquet"))


def _tables(found: Mapping[str, list[Path]], data_dir: Path, folder: Path) -> Source:
    for part, other in (("train", "test"), ("test", "train")):
        if not found[part]:
            name = (folder / f"{part}{found[other][0].suffix}").relative_to(data_dir).as_posix()
            raise FileNotFoundError(f"Missing in {data_dir}: {name}, beside {found[other][0].name}.")
    paths = {part: files for part, files in found.items() if files}
    shards = {part: [tuple(map(str, files))] for part, files in paths.items()}
    return Source(read_tables, shards, paths, tuple(str(path) for files in paths.values() for path in files))


def hub_source(hub: str) -> Source:
    """The set of this name on the Hub, downloaded if it is not in the cache of `datasets`.

    Raises:
        ValueError: If it cannot be had, or has other splits or columns.
    """
    import datasets

    try:
        found = datasets.load_dataset(hub)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"hub={hub!r} cannot be loaded ({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            f"check the name and the network, or give data_dir."
        ) from error
    if "train" not in found or "test" not in found:
        raise ValueError(f"hub={hub!r} has the splits {', '.join(found)}; train and test are needed.")
    paths = {}
    for part in ("train", "test", "validation"):
        if part in found:
            _check_columns(Path(f"hub={hub!r}, {part}"), found[part].column_names)
            paths[part] = [Path(file["filename"]) for file in found[part].cache_files]
    shards = {part: [tuple(map(str, files))] for part, files in paths.items()}
    return Source(read_tables, shards, paths, (f"hub:{hub}",))


def held_out_rows(labels: np.ndarray) -> np.ndarray:
    """Which training examples are held out for validation, bool, (examples,)."""
    held_out = np.zeros(len(labels), dtype=bool)
    size = max(1, round(VALIDATION_SHARE * len(labels)))
    held_out[stratified_order(labels, len(labels), VALIDATION_SEED)[:size]] = True
    if len(np.unique(labels[~held_out])) < len(np.unique(labels)):
        raise ValueError(
            f"the training part of lra-text has {len(labels)} reviews, so few that holding {size} out for validation "
            f"leaves none of a label; give each label at least two."
        )
    return held_out


def _prepare(source: Source, validation: str) -> dict[str, datasets.Dataset]:
    """Each part that is read, prepared; with validation="test" that part is read a second time under other ids."""
    order = ["train", *(["validation"] if "validation" in source.shards and validation != "test" else []), "test"]
    reads = [(part, part) for part in order] + ([("validation", "test")] if validation == "test" else [])
    every = [path for part in order for path in source.paths[part]]
    parts, start = {}, 0
    for part, origin in reads:
        key = fingerprint("lra-text", VERSION, every, origin=origin)
        features = text_features(LABELS)
        constants = {"start": start}
        parts[part] = cached_split(source.reader, source.shards[origin], features, key, part, constants=constants)
        start += len(parts[part])
    return parts


def _hold_out(name: str, parts: Mapping[str, datasets.Dataset]) -> tuple[dict[str, datasets.Dataset], str]:
    """Three parts from two, and what is to be said of them."""
    held_out = held_out_rows(numbers(parts["train"], "label"))
    digests = numbers(parts["train"], DIGEST)
    warn_of_repeats(
        name,
        {"train": digests[~held_out], "validation": digests[held_out], "test": numbers(parts["test"], DIGEST)},
    )
    whole = without_measures(parts["train"])
    splits = {
        "train": whole.select(np.flatnonzero(~held_out)),
        "validation": whole.select(np.flatnonzero(held_out)),
        "test": without_measures(parts["test"]),
    }
    return splits, (
        f"The training part of {len(held_out):,} is split {len(splits['train']):,} for training and "
        f"{len(splits['validation']):,} for validation (stratified, fixed); the test part is untouched."
    )


def _spec(name: str, options: Mapping[str, Any], longest: int, notes: str, hub: str | None) -> TaskSpec:
    entry = ENTRIES["lra-text"]
    return TaskSpec(
        name=name,
        title=entry.title,
        modality="text",
        num_channels=None,
        labels=LABELS,
        num_levels=None,
        length=min(options["max_length"], longest),
        metric=entry.metric,
        greater_is_better=True,
        chance=0.5,
        license=entry.license,
        citation=(
            "A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng, C. Potts (2011). Learning Word Vectors for "
            f"Sentiment Analysis. ACL. As a task for long sequences: {LRA_CITATION}"
        ),
        source=entry.source if hub is None else f"https://huggingface.co/datasets/{hub}",
        version=VERSION,
        notes=notes,
        unit=options["unit"],
        min_count=options.get("min_count", 1),
        max_length=options["max_length"],
    )


def load(
    name: str = "lra-text",
    data_dir: Path | None = None,
    *,
    unit: str = "bytes",
    min_count: int | None = None,
    max_length: int = MAX_LENGTH,
    validation: str = "held-out",
    hub: str | None = None,
) -> Task:
    """Load the reviews: columns `text`, `label` (neg, pos), `example_id` (training part first, neg before pos).

    Raises:
        ValueError: For an option out of range, or data that cannot be used.
        FileNotFoundError: With the names of what is missing.
    """
    import datasets

    options = check_unit(unit, min_count, max_length, MIN_COUNT)
    if validation not in ("held-out", "test"):
        raise ValueError(f"validation={validation!r} is unknown; use 'held-out' or 'test'.")
    if (hub is None) == (data_dir is None):
        given = "neither was given" if hub is None else "both were given"
        raise ValueError(f"{name} reads either data_dir, a folder, or hub, a set on the Hub, but {given}.")
    source = hub_source(hub) if hub is not None else find_source(data_dir)  # type: ignore[arg-type]
    parts = _prepare(source, validation)
    check_labels(name, LABELS, {part: numbers(split, "label") for part, split in parts.items()})
    if validation == "test":
        warnings.warn(
            f"{name}: validation is the test part, as in the papers; what is selected on it has seen the test set.",
            stacklevel=2,
        )
        # The same examples twice are what was asked for.
        warn_of_repeats(name, {part: numbers(parts[part], DIGEST) for part in ("train", "test")})
        splits = {part: without_measures(split) for part, split in parts.items()}
        notes = ["Validation is the test part itself, as in the papers."]
    elif "validation" in parts:
        warn_of_repeats(name, {part: numbers(split, DIGEST) for part, split in parts.items()})
        splits = {part: without_measures(split) for part, split in parts.items()}
        notes = ["Train, validation and test as in the files."]
    else:
        splits, note = _hold_out(name, parts)
        notes = [note]
    notes += [*source.notes, f"Texts as published, markup included, in {unit}."]
    spec = _spec(name, options, longest_text(list(parts.values()), unit), " ".join(notes), hub)
    options |= {"validation": validation, **({} if hub is None else {"hub": hub})}
    return Task(spec, datasets.DatasetDict({part: splits[part] for part in SPLITS}), options, source.files)
