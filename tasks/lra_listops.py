"""`lra-listops`: nested lists of MIN, MAX, MED and SM over digits; the label is the value (Long Range Arena).

The published files are `basic_{train,val,test}.tsv` with the header Source, Target; an input has blanks between all its
symbols. The release also has parentheses around each step of the tree. They say nothing that the brackets do not say
and are dropped, as by every reader: with them an input is three times as long. Some readers write the closing bracket
as X.

A folder of generated lists (`neverscratch data make`) is read in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec
from .cache import cached_split, fingerprint
from .files import (
    DIGEST,
    LRA_CITATION,
    check_folder,
    check_labels,
    find_folder,
    numbers,
    read_lines,
    text_digest,
    warn_of_repeats,
    without_measures,
)
from .generation import is_generated, load_generated, read_manifest

if TYPE_CHECKING:
    import datasets

VERSION = 1
LABELS = tuple(str(digit) for digit in range(10))
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
VOCABULARY = (*LABELS, *OPERATORS, CLOSE)
MAX_LENGTH = 2048
FILES = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
# The release unpacks to two nested levels. Papers take the inner one.
PLACES = (
    "", "listops", "listops-1000",
    "lra_release/lra_release/listops-1000", "lra_release/listops-1000",
    "lra_release/lra_release/listops", "lra_release/listops",
)  # fmt: skip
_COLUMNS = ["Source", "Target"]
_PUBLISHED = (96_000, 2_000, 2_000)
# Written symbol -> ours, or "" for what is dropped. One object for each, so that a batch of lists takes little room.
_SYMBOLS = {**{symbol: symbol for symbol in VOCABULARY}, "X": CLOSE, "(": "", ")": ""}

ENTRIES = {
    "lra-listops": TaskEntry(
        title="ListOps (Long Range Arena)",
        modality="tokens",
        length=MAX_LENGTH,
        classes=10,
        sizes="96,000/2,000/2,000",
        metric="accuracy",
        chance=0.1,
        license="Apache-2.0, as the code of the Long Range Arena that made it",
        source="lra_release.gz of the Long Range Arena, https://github.com/google-research/long-range-arena",
        layout=(
            "basic_train.tsv, basic_val.tsv and basic_test.tsv, there, in listops/, in listops-1000/ or in "
            "lra_release/ as unpacked; or generated lists"
        ),
        can_generate=True,
    ),
}


def parse_list(source: str, place: str) -> list[str]:
    """The symbols of a list without parentheses.

    Raises:
        ValueError: Beginning with `place`, for an unknown symbol, an empty list, or one that is cut off.
    """
    try:
        symbols = [symbol for symbol in map(_SYMBOLS.__getitem__, source.split()) if symbol]
    except KeyError as error:
        raise ValueError(
            f"{place}: symbol {error.args[0]!r} is unknown; the symbols are {' '.join(VOCABULARY)} (or X for the "
            f"last) and parentheses, separated by blanks."
        ) from None
    if not symbols:
        raise ValueError(f"{place}: the list is empty; remove the line.")
    opened, closed = sum(map(symbols.count, OPERATORS)), symbols.count(CLOSE)
    if opened != closed:
        raise ValueError(f"{place}: {opened} lists are opened and {closed} closed; the file may be damaged or cut off.")
    return symbols


def read_listops(shards: Sequence[str], start: int) -> Iterator[dict[str, Any]]:
    """The examples of files, one a line, numbered from `start`."""
    example_id = start
    for path in map(Path, shards):
        lines = read_lines(path)
        header = next(lines, (1, ""))[1].strip().split("\t")
        if header != _COLUMNS:
            raise ValueError(
                f"{path.name} must begin with the header Source, Target, separated by a tab; found "
                f"{', '.join(repr(name[:40]) for name in header)}."
            )
        first = example_id
        for number, line in lines:
            if not line.strip():
                continue
            place = f"{path.name}, line {number}"
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != len(_COLUMNS):
                raise ValueError(f"{place}: {len(fields)} fields in place of 2 (Source, Target); the file is damaged.")
            label = fields[1].strip()
            if label not in LABELS:
                raise ValueError(f"{place}: target {label[:40]!r} is no digit; it must be 0 to 9.")
            symbols = parse_list(fields[0], place)
            digest = text_digest(" ".join(symbols))
            yield {"tokens": symbols, "label": int(label), "example_id": example_id, DIGEST: digest}
            example_id += 1
        if example_id == first:
            raise ValueError(f"{path.name} holds no example below its header; get the file again.")


def longest_list(split: datasets.Dataset) -> int:
    """Number of symbols of the longest list; the lists themselves are not read."""
    import pyarrow.compute as pc

    return max(pc.max(pc.list_value_length(chunk)).as_py() or 0 for chunk in split.data.column("tokens").chunks)


def _published(folder: Path) -> datasets.DatasetDict:
    import datasets

    paths = [folder / name for name in FILES]
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "label": datasets.ClassLabel(names=list(LABELS)),
            "example_id": datasets.Value("int64"),
            DIGEST: datasets.Value("int64"),
        }
    )
    splits, start = datasets.DatasetDict(), 0
    for part, path in zip(SPLITS, paths, strict=True):
        key = fingerprint("lra-listops", VERSION, paths)
        splits[part] = cached_split(read_listops, [str(path)], features, key, part, constants={"start": start})
        start += len(splits[part])
    return splits


def _spec(name: str, length: int, max_length: int, notes: str, source: str) -> TaskSpec:
    entry = ENTRIES["lra-listops"]
    return TaskSpec(
        name=name,
        title=entry.title,
        modality="tokens",
        num_channels=None,
        labels=LABELS,
        num_levels=None,
        length=min(length, max_length),
        metric=entry.metric,
        greater_is_better=True,
        chance=0.1,
        license=entry.license,
        citation=(
            "N. Nangia and S. R. Bowman (2018). ListOps: A Diagnostic Dataset for Latent Tree Learning. NAACL Student "
            f"Research Workshop. arXiv:1804.06028. As a task for long sequences: {LRA_CITATION}"
        ),
        source=source,
        version=VERSION,
        notes=notes,
        unit="symbols",
        vocabulary=VOCABULARY,
        max_length=max_length,
    )


def _load_made(name: str, folder: Path) -> Task:
    """A folder of generated lists."""
    manifest = read_manifest(folder)
    if manifest.get("task") != "lra-listops":
        raise ValueError(f"{folder} holds generated examples of {manifest.get('task')!r}, not of {name}; give another.")
    splits = load_generated(folder)
    check_labels(name, LABELS, {part: np.asarray(split["label"][:]) for part, split in splits.items()})
    notes = (
        f"Generated, not the published examples: {manifest['size']:,} lists from seed {manifest['seed']}, generator "
        f"version {manifest['generator_version']}, options {manifest['options']}; no list occurs twice."
    )
    longest = max(longest_list(split) for split in splits.values())
    # A list that is cut has no value, so ones that were made longer than the published ones stay whole.
    spec = _spec(name, longest, max(longest, MAX_LENGTH), notes, "the generator of this package")
    return Task(spec, splits, {}, (str(folder),))


def load(name: str = "lra-listops", data_dir: Path | None = None) -> Task:
    """Load the lists: columns `tokens` (symbols without parentheses), `label` 0 .. 9, `example_id`.

    Raises:
        ValueError: For files that cannot be used, with file and line.
        FileNotFoundError: With the names of the missing files.
    """
    check_folder(name, data_dir)
    assert data_dir is not None
    if is_generated(data_dir):
        return _load_made(name, data_dir)
    import datasets

    folder = find_folder(name, data_dir, PLACES, FILES)
    parts = _published(folder)
    check_labels(name, LABELS, {part: numbers(split, "label") for part, split in parts.items()})
    warn_of_repeats(name, {part: numbers(split, DIGEST) for part, split in parts.items()})
    sizes = tuple(len(split) for split in parts.values())
    notes = "Splits as in the files" if sizes == _PUBLISHED else "Splits as in the files, not of the release's sizes"
    notes += ". Parentheses are dropped, nothing else."
    longest = max(longest_list(split) for split in parts.values())
    spec = _spec(name, longest, MAX_LENGTH, notes, ENTRIES["lra-listops"].source)
    splits = datasets.DatasetDict({part: without_measures(split) for part, split in parts.items()})
    return Task(spec, splits, {}, tuple(str(folder / file_name) for file_name in FILES))
