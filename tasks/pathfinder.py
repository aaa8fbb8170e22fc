"""`lra-pathfinder`, `lra-pathx`, `lra-pathx256`: do two discs lie at the ends of one dashed curve? (Long Range Arena)

The pictures come from a folder that the user has: `pathfinder<R>/<level>/` of the release with `imgs/<batch>/*.png` and
`metadata/<batch>.npy`, or a set that `make` of `generation.py` has written. The release holds two nested levels of
folders and in both a `pathfinder128`, which are not the same; the inner one is taken, as in the S4 code base.

There is no published split. It is 80/10/10 by torch's `random_split` with seed 42 over the order of the metadata, as in
the S4 code base, so that the parts are the same pictures.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec, nearest
from .cache import cached_split, fingerprint
from .cifar import SHARD_FILES, decode_picture, finish, picture_example, picture_features, random_split_order
from .files import LRA_CITATION, check_folder
from .generation import is_generated, load_generated, read_manifest

VERSION = 1
SIZES = {"lra-pathfinder": 32, "lra-pathfinder64": 64, "lra-pathx": 128, "lra-pathx256": 256}
# Level -> its folder; the number is that of the dashes of a curve.
LEVELS = {"hard": "curv_contour_length_14", "intermediate": "curv_contour_length_9", "easy": "curv_baseline"}
LABELS = ("0", "1")
SCALE = ((127.5, 127.5),)
# Beside the batches' own metadata, the generator may write all of it once more.
_GATHERED = "combined"
_MAX_NAMED = 3

LICENSE = "No formal licence for the pictures; code of the Long Range Arena Apache-2.0, of their generator MIT"
CITATION = (
    "D. Linsley, J. Kim, V. Veerabadran, C. Windolf, T. Serre (2018). Learning long-range spatial dependencies with "
    f"horizontal gated recurrent units. NeurIPS. arXiv:1805.08315. {LRA_CITATION}"
)
SOURCE = "lra_release.gz of the Long Range Arena, https://github.com/google-research/long-range-arena"


def _entry(name: str, title: str) -> TaskEntry:
    size = SIZES[name]
    return TaskEntry(
        title=title,
        modality="image",
        length=size * size,
        classes=2,
        sizes="160,000/20,000/20,000",
        metric="accuracy",
        chance=0.5,
        license=LICENSE,
        source=SOURCE,
        layout=(
            f"pathfinder{size}/<level>/ with imgs/ and metadata/ (give lra_release/, the one in it, pathfinder{size}/ "
            f"or the level's folder), or a generated set"
        ),
        options={
            "level": f"hard (default), intermediate or easy: {', '.join(LEVELS.values())}",
            "levels": "false (default): real values from -1 to 1; true: 256 grey levels as ids",
        },
        can_generate=True,
    )


ENTRIES = {
    "lra-pathfinder": _entry("lra-pathfinder", "Pathfinder (Long Range Arena)"),
    "lra-pathfinder64": _entry("lra-pathfinder64", "Pathfinder at 64 x 64"),
    "lra-pathx": _entry("lra-pathx", "Path-X (Long Range Arena)"),
    "lra-pathx256": _entry("lra-pathx256", "Path-256"),
}


@dataclass(frozen=True)
class Row:
    """A line of the metadata: folder below the level's, file name, label 0 or 1."""

    folder: str
    name: str
    label: int


@dataclass(frozen=True)
class Index:
    """Everything that the metadata list, empty files apart.

    Attributes:
        names: Path of each picture below the level's folder.
        labels: (pictures,) int8.
        empty: Paths of empty files.
        unlisted: Number of files beside the pictures that no metadata list.
        stamp: Hash of names, sizes and times of change of the picture files.
        files: The metadata files, by number.
    """

    names: list[str]
    labels: np.ndarray
    empty: list[str]
    unlisted: int
    stamp: str
    files: list[Path]


@dataclass(frozen=True)
class Shard:
    """Some picture files, with labels and ids."""

    names: tuple[str, ...]
    labels: tuple[int, ...]
    ids: tuple[int, ...]


def find_level(name: str, level: str, data_dir: Path) -> tuple[Path, Path | None]:
    """The level's folder, and the copy beside it that was not taken, if any.

    Raises:
        FileNotFoundError: If there is none; says which levels are there.
        ValueError: If `data_dir` is the folder of another size or level.
    """
    size, wanted = SIZES[name], LEVELS[level]
    root, whole = f"pathfinder{size}", data_dir.resolve()
    for folder in (whole, whole.parent):
        other = re.fullmatch(r"pathfinder(\d+)", folder.name)
        if other and folder.name != root:
            raise ValueError(
                f"data_dir={str(data_dir)!r} is of size {other[1]}, but {name} needs {root}/; give that folder."
            )
    if (data_dir / "metadata").is_dir():
        known = {folder: one for one, folder in LEVELS.items()}
        if known.get(whole.name, level) != level:
            raise ValueError(
                f"data_dir={str(data_dir)!r} holds level {known[whole.name]!r}, but level={level!r} was asked for; "
                f"give the folder {wanted}, or set level={known[whole.name]!r}."
            )
        return data_dir, None
    outer = ["", root, f"pathfinder/{root}"]
    # The innermost come first.
    places = [f"lra_release/lra_release/{root}", f"lra_release/{root}", *outer]
    found = [data_dir / place / wanted for place in places if (data_dir / place / wanted / "metadata").is_dir()]
    if found:
        return found[0], found[1] if len(found) > 1 else None
    others = [one for one, folder in LEVELS.items() for place in places if (data_dir / place / folder).is_dir()]
    hint = f" There is level {', '.join(map(repr, dict.fromkeys(others)))}." if others else ""
    raise FileNotFoundError(
        f"{data_dir} holds no {root}/{wanted}/metadata/; give lra_release/, the lra_release/ in it, {root}/ or "
        f"{root}/{wanted}/.{hint}"
    )


def read_metadata(path: Path) -> list[Row]:
    """The lines of a metadata file: text, as in the release, or a true npy file, as the generator writes it.

    Raises:
        ValueError: With file and line.
    """
    raw, where = path.read_bytes(), f"metadata/{path.name}"
    if raw.startswith(b"\x93NUMPY"):
        try:
            table = np.load(io.BytesIO(raw), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{where} is damaged, or holds pickled objects, which are not opened as they can run code ({error}); "
                f"write it as text: a picture a line."
            ) from None
        if table.ndim != 2 or table.dtype.kind not in "US":
            raise ValueError(f"{where} is an array of {table.dtype} {table.shape}; needed is a table of text.")
        lines = [[str(one, "utf-8", "replace") if isinstance(one, bytes) else str(one) for one in row] for row in table]
    else:
        try:
            lines = [line.split() for line in raw.decode("utf-8").splitlines()]
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise ValueError(f"{where}, line {line}: neither text in UTF-8 nor an npy file; get it again.") from None
    rows = [_row(fields, f"{where}, line {number}") for number, fields in enumerate(lines, start=1) if fields]
    if not rows:
        raise ValueError(f"{where} is empty; expected a picture a line: folder, file, number, label and so on.")
    return rows


def _row(fields: Sequence[str], where: str) -> Row:
    if len(fields) < 4:
        raise ValueError(f"{where}: {len(fields)} fields, but folder, file, number and label are needed.")
    folder, name, _, label = fields[:4]
    if label not in LABELS:
        raise ValueError(f"{where}: label {label!r} is neither 0 nor 1.")
    place = PurePosixPath(folder) / name
    if place.is_absolute() or ".." in place.parts:
        raise ValueError(f"{where}: {place} lies outside the folder of the level.")
    return Row(folder, name, int(label))


def metadata_files(folder: Path) -> list[Path]:
    """The metadata files of a level's folder, sorted by number.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If one has no number for a name.
    """
    found = [path for path in (folder / "metadata").glob("*.npy") if path.stem != _GATHERED and path.name[0] != "."]
    for path in found:
        if not re.fullmatch(r"[0-9]+", path.stem):
            raise ValueError(
                f"metadata/{path.name} in {folder} has no number for a name, such as 0.npy; rename or remove it."
            )
    if not found:
        raise FileNotFoundError(f"{folder / 'metadata'} holds no file such as 0.npy; unpack the whole release.")
    return sorted(found, key=lambda path: int(path.stem))


def build_index(folder: Path) -> Index:
    """List the pictures, in the order of the metadata. Each folder of pictures is looked through once.

    Raises:
        FileNotFoundError: With the first of the pictures that are missing, and their number.
        ValueError: For metadata that cannot be used.
    """
    files = metadata_files(folder)
    names: list[str] = []
    empty: list[str] = []
    missing: list[str] = []
    labels = bytearray()
    stamp = hashlib.blake2b(digest_size=16)
    listed, sizes = None, {}
    present: dict[str, int] = {}
    for path in files:
        for row in read_metadata(path):
            if row.folder != listed:
                listed, sizes = row.folder, _sizes(folder / row.folder)
                present[listed] = len(sizes)
            place = f"{row.folder}/{row.name}"
            size, changed = sizes.get(row.name, (-1, 0))
            if size <= 0:
                (missing if size < 0 else empty).append(place)
                continue
            names.append(place)
            labels.append(row.label)
            stamp.update(f"{place} {row.label} {size} {changed}\n".encode())
    if missing:
        shown = ", ".join(missing[:_MAX_NAMED]) + (", ..." if len(missing) > _MAX_NAMED else "")
        raise FileNotFoundError(
            f"{len(missing):,} pictures that the metadata list are missing in {folder}: {shown}. "
            f"Unpack the whole release."
        )
    parents = {PurePosixPath(place).parent for place in present}
    for place in (path.relative_to(folder).as_posix() for parent in parents for path in (folder / parent).iterdir()):
        if place not in present and (folder / place).is_dir() and place != "metadata":
            present[place] = len(_sizes(folder / place))
    unlisted = max(0, sum(present.values()) - len(names) - len(empty))
    return Index(names, np.frombuffer(bytes(labels), dtype=np.int8), empty, unlisted, stamp.hexdigest(), files)


def _sizes(folder: Path) -> dict[str, tuple[int, int]]:
    """File name -> size in bytes and time of change, of all files of a folder; {} if there is no such folder."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found}


def split_indices(number: int) -> dict[str, np.ndarray]:
    """Sorted indices of each split: 10% for validation, 10% for test, at least one each, the rest for training."""
    if number < 3:
        raise ValueError(f"{number} pictures cannot be split in three; give at least 3.")
    held = max(1, int(0.1 * number))
    order = random_split_order(number)
    train = number - 2 * held
    parts = (order[:train], order[train : train + held], order[train + held :])
    return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}


def read_pictures(shards: Sequence[Shard], folder: str, size: int) -> Iterator[dict[str, Any]]:
    """Examples with the columns of `picture_features`."""
    for shard in shards:
        for name, label, example_id in zip(shard.names, shard.labels, shard.ids, strict=True):
            raw = Path(folder, name).read_bytes()
            yield picture_example(decode_picture(raw, f"{name} in {folder}", size, "L"), label, example_id)


def _shards(index: Index, rows: np.ndarray) -> list[Shard]:
    runs = [rows[first : first + SHARD_FILES] for first in range(0, len(rows), SHARD_FILES)]
    return [
        Shard(tuple(index.names[row] for row in run), tuple(index.labels[run].tolist()), tuple(run.tolist()))
        for run in runs
    ]


def _check_options(level: Any, levels: Any) -> None:
    if level not in LEVELS:
        raise ValueError(f"level={level!r} is unknown.{nearest(str(level), LEVELS)} Use one of {', '.join(LEVELS)}.")
    if not isinstance(levels, bool):
        raise ValueError(f"levels={levels!r} is neither true nor false; use one of them.")


def load(name: str, data_dir: Path | None = None, *, level: str = "hard", levels: bool = False) -> Task:
    """Load the pictures: `image` (R, R) uint8, `label` "0" or "1", `example_id` in the order of the metadata.

    Args:
        name: "lra-pathfinder" (R = 32), "lra-pathx" (128) or "lra-pathx256" (256).
        data_dir: The release, a folder in it, or a generated set.
        level: "hard", "intermediate" or "easy".
        levels: Whether models get the 256 grey levels as ids, not as real values.

    Raises:
        ValueError: For an option out of range, or files that cannot be used.
        FileNotFoundError: With what is missing.

    Warns:
        UserWarning: If files are empty or listed nowhere, or the release has a second copy.
    """
    _check_options(level, levels)
    check_folder(name, data_dir)
    assert data_dir is not None
    options = {"level": level, "levels": levels}
    if is_generated(data_dir):
        return _load_generated(name, data_dir, options)
    folder, other = find_level(name, level, data_dir)
    notes = f"Level {level} ({LEVELS[level]})."
    if other is not None:
        copies = f"{data_dir} holds two copies of {name}; {folder} is used, not {other}"
        warnings.warn(f"{copies}; give one of them as data_dir to choose.", stacklevel=3)
        notes += f" {copies}."
    index = build_index(folder)
    if index.empty:
        first = ", ".join(index.empty[:_MAX_NAMED])
        message = f"{len(index.empty)} empty picture file{'s' * (len(index.empty) > 1)} left out"
        warnings.warn(f"{name}: {message}, the first in {folder}: {first}.", stacklevel=3)
        notes += f" {message}."
    if index.unlisted:
        message = f"{index.unlisted:,} files in the folders of pictures are listed in no metadata and left out"
        warnings.warn(f"{name}: {message}; if metadata are missing or cut off, unpack the release again.", stacklevel=3)
        notes += f" {message}."
    size = SIZES[name]
    prepared = {}
    for part, rows in split_indices(len(index.names)).items():
        key = fingerprint(name, VERSION, index.files, pictures=index.stamp)
        constants = {"folder": str(folder), "size": size}
        features = picture_features(size, LABELS)
        shards = _shards(index, rows)
        prepared[part] = cached_split(read_pictures, shards, features, key, part, constants=constants)
    notes += (
        " Split 80/10/10 by torch's random_split with seed 42 over the order of the metadata, as in the S4 code base."
    )
    spec = _spec(name, options, SOURCE, VERSION, notes)
    return Task(spec, finish(name, LABELS, prepared), options, (str(folder),))


def _load_generated(name: str, data_dir: Path, options: dict[str, Any]) -> Task:
    """A set that `make` has written; it brings its own splits."""
    manifest = read_manifest(data_dir)
    made = {"task": manifest["task"], "level": manifest["options"].get("level", "hard")}
    for key, wanted in (("task", name), ("level", options["level"])):
        if made[key] != wanted:
            raise ValueError(
                f"{data_dir} was generated for {key} {made[key]!r}, but {wanted!r} was asked for; "
                f"ask for {made[key]!r}, or generate another folder."
            )
    splits = load_generated(data_dir).select_columns(["image", "label", "example_id"])
    request = ", ".join(f"{key} {manifest[key]}" for key in ("size", "seed", "generator_version"))
    notes = f"Generated, not the release's pictures ({request}). Level {options['level']}. Splits as generated."
    spec = _spec(name, options, "neverscratch's own generator", VERSION, notes)
    return Task(spec, splits, {**options, "generated": request}, (str(data_dir),))


def _spec(name: str, options: dict[str, Any], source: str, version: int, notes: str) -> TaskSpec:
    size = SIZES[name]
    return TaskSpec(
        name=name,
        title=ENTRIES[name].title,
        modality="image",
        num_channels=1,
        labels=LABELS,
        num_levels=256 if options["levels"] else None,
        length=size * size,
        metric="accuracy",
        greater_is_better=True,
        chance=0.5,
        license=LICENSE,
        citation=CITATION,
        source=source,
        version=version,
        notes=notes,
        scale=None if options["levels"] else SCALE,
    )
