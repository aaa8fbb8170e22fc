"""`lra-retrieval`: are two papers of the ACL Anthology linked by a citation? Pairs of texts (Long Range Arena, AAN).

The published files are `new_aan_pairs.{train,eval,test}.tsv`: no header, five fields separated by tabs (label, two ids,
two texts), no quoting. A double quote is a character like any other; readers that take it for CSV's glue and break
lines. Whole texts are handed out; `max_length` is where they are cut later.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec
from .cache import cached_split, fingerprint
from .files import (
    DIGEST,
    LRA_CITATION,
    SHORTEST,
    check_folder,
    check_labels,
    check_unit,
    find_folder,
    longest_text,
    numbers,
    read_lines,
    text_features,
    text_measures,
    warn_of_repeats,
    without_measures,
)

if TYPE_CHECKING:
    import datasets

VERSION = 1
LABELS = ("0", "1")
MAX_LENGTH = 4000
MIN_COUNT = 1
FILES = ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv")
# The release unpacks to two nested levels. Papers take the inner one.
PLACES = ("", "aan", "tsv_data", "lra_release/lra_release/tsv_data", "lra_release/tsv_data")
_FIELDS = ("label", "id1", "id2", "text1", "text2")
_PUBLISHED_TRAIN = 147_086

ENTRIES = {
    "lra-retrieval": TaskEntry(
        title="Retrieval (Long Range Arena: pairs of AAN papers)",
        modality="text",
        length=MAX_LENGTH,
        classes=2,
        sizes="147,086/18,090/17,437",
        metric="accuracy",
        chance=0.5,
        license="No formal licence; papers of the ACL Anthology, those before 2016 CC BY-NC-SA 3.0",
        source="lra_release.gz of the Long Range Arena, https://github.com/google-research/long-range-arena",
        layout=(
            "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv, there, in aan/, in tsv_data/ "
            "or in lra_release/ as unpacked"
        ),
        options={
            "unit": "'bytes' (default) or 'characters'",
            "min_count": f"characters that occur less often in train are unknown ones; {MIN_COUNT} by default",
            "max_length": f"what is longer is cut off, in each text; {MAX_LENGTH} by default",
        },
    ),
}


def _label(text: str, place: str) -> int:
    """0 or 1 from text such as "1.0"."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in (0.0, 1.0):
        raise ValueError(f"{place}: label {text[:40]!r} is unknown; it must be 0 or 1 (0.0 and 1.0 are the same).")
    return int(value)


def read_pairs(shards: Sequence[str], start: int) -> Iterator[dict[str, Any]]:
    """The pairs of files, one a line, numbered from `start`. Pairs with an empty text are among them."""
    example_id = start
    for path in map(Path, shards):
        first = example_id
        for number, line in read_lines(path):
            line = line.removesuffix("\n").removesuffix("\r")
            if not line:
                continue
            place = f"{path.name}, line {number}"
            fields = line.split("\t")
            if len(fields) == 3:
                raise ValueError(
                    f"{place}: 3 fields, a label and two ids, so the texts are missing (as in the *.only_ids.tsv "
                    f"files); use the {path.name} of lra_release.gz, with {', '.join(_FIELDS)}."
                )
            if len(fields) != len(_FIELDS):
                raise ValueError(
                    f"{place}: {len(fields)} fields in place of {len(_FIELDS)} ({', '.join(_FIELDS)}, separated by "
                    f"tabs); the file may be damaged or cut off."
                )
            label, _, _, text, pair = fields
            yield {
                "text": text,
                "text_pair": pair,
                "label": _label(label, place),
                "example_id": example_id,
                **text_measures(text, pair),
            }
            example_id += 1
        if example_id == first:
            raise ValueError(f"{path.name} is empty; expected one pair a line: {', '.join(_FIELDS)}.")


def _prepare(folder: Path) -> dict[str, datasets.Dataset]:
    paths = [folder / name for name in FILES]
    features = text_features(LABELS, ("text", "text_pair"))
    parts, start = {}, 0
    for part, path in zip(SPLITS, paths, strict=True):
        key = fingerprint("lra-retrieval", VERSION, paths)
        parts[part] = cached_split(read_pairs, [str(path)], features, key, part, constants={"start": start})
        start += len(parts[part])
    return parts


def _without_empty(name: str, parts: dict[str, datasets.Dataset]) -> tuple[dict[str, datasets.Dataset], str]:
    """The parts without pairs that lack a text, and what is to be said of it."""
    kept = {part: np.flatnonzero(numbers(split, SHORTEST) > 0) for part, split in parts.items()}
    dropped = {part: len(split) - len(kept[part]) for part, split in parts.items()}
    splits = {
        part: without_measures(split).select(kept[part]) if dropped[part] else without_measures(split)
        for part, split in parts.items()
    }
    if not any(dropped.values()):
        return splits, ""
    counts = ", ".join(f"{count:,} of {part}" for part, count in dropped.items() if count)
    for part, split in splits.items():
        if not len(split):
            raise ValueError(f"{name}: every pair of the {part} part lacks a text; get the files again.")
    warnings.warn(f"{name}: pairs of which one text is empty are left out: {counts}.", stacklevel=3)
    return splits, f" Pairs with an empty text are left out: {counts}."


def load(
    name: str = "lra-retrieval",
    data_dir: Path | None = None,
    *,
    unit: str = "bytes",
    min_count: int | None = None,
    max_length: int = MAX_LENGTH,
) -> Task:
    """Load the pairs: columns `text`, `text_pair`, `label` (0, 1), `example_id`.

    Raises:
        ValueError: For an option out of range, or files that cannot be used, with file and line.
        FileNotFoundError: With the names of the missing files.
    """
    import datasets

    options = check_unit(unit, min_count, max_length, MIN_COUNT)
    parts, files = _read(name, data_dir)
    check_labels(name, LABELS, {part: numbers(split, "label") for part, split in parts.items()})
    warn_of_repeats(name, {part: numbers(split, DIGEST) for part, split in parts.items()})
    splits, left_out = _without_empty(name, parts)
    is_whole = len(parts["train"]) == _PUBLISHED_TRAIN
    notes = "Splits as in the files" if is_whole else "Splits as in the files, not of the release's sizes"
    notes += f". Read without quoting; texts as published, in {unit}.{left_out}"
    entry = ENTRIES["lra-retrieval"]
    spec = TaskSpec(
        name=name,
        title=entry.title,
        modality="text",
        num_channels=None,
        labels=LABELS,
        num_levels=None,
        length=min(options["max_length"], longest_text(list(parts.values()), unit)),
        metric=entry.metric,
        greater_is_better=True,
        chance=0.5,
        license=entry.license,
        citation=(
            "D. R. Radev, P. Muthukrishnan, V. Qazvinian, A. Abu-Jbara (2013). The ACL Anthology Network Corpus. "
            f"Language Resources and Evaluation 47. As a task for long sequences: {LRA_CITATION}"
        ),
        source=entry.source,
        version=VERSION,
        notes=notes,
        is_pair=True,
        unit=unit,
        min_count=options.get("min_count", 1),
        max_length=options["max_length"],
    )
    return Task(spec, datasets.DatasetDict(splits), options, files)


def _read(name: str, data_dir: Path | None) -> tuple[dict[str, datasets.Dataset], tuple[str, ...]]:
    """The prepared parts, and the names of their files."""
    check_folder(name, data_dir)
    assert data_dir is not None
    try:
        folder = find_folder(name, data_dir, PLACES, FILES)
    except FileNotFoundError as error:
        only_ids = [path for place in PLACES for path in sorted((data_dir / place).glob("new_aan_pairs*only_ids*.tsv"))]
        if not only_ids:
            raise
        found = only_ids[0].relative_to(data_dir).as_posix()
        raise FileNotFoundError(f"{error} {found} holds labels and ids only: the texts are missing from it.") from None
    return _prepare(folder), tuple(str(folder / file_name) for file_name in FILES)
