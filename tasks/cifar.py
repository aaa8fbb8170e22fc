"""`lra-image` and `scifar`: CIFAR-10 read pixel by pixel, in grey (Long Range Arena) or in colour.

The pictures come from a folder that the user has: the python batches of the published archive, Parquet files as on the
Hub, or folders of PNG files. Pickles can run code, so only those that hold plain numpy arrays are opened.

CIFAR-10 has no validation part. A tenth of its training part is held out by torch's `random_split` with seed 42, which
is what the S4 code base does; from the python batches these are the same pictures.

The first part of this file is shared by the tasks that are read from picture files.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec
from .cache import cached_split, fingerprint
from .files import (
    LRA_CITATION,
    bytes_digest,
    check_folder,
    check_labels,
    open_parquet,
    reading_parquet,
    warn_of_repeats,
)

if TYPE_CHECKING:
    import datasets

SPLIT_SEED = 42
# Prepared beside the examples and taken off again: a hash of the picture.
DIGEST = "digest"
# Pictures of a shard of files.
SHARD_FILES = 500
# What PIL turns into 8-bit grey or colour without loss of range.
_PLAIN_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


def random_split_order(number: int) -> np.ndarray:
    """The permutation of `range(number)` that torch's `random_split` cuts into parts, with seed 42."""
    import torch

    return torch.randperm(number, generator=torch.Generator().manual_seed(SPLIT_SEED)).numpy()


def decode_picture(raw: bytes, where: str, size: int, mode: str) -> np.ndarray:
    """The pixels of a picture file.

    Args:
        raw: The file.
        where: Its name, for messages.
        size: Width and height that it must have.
        mode: "L" for grey, (size, size), or "RGB", (size, size, 3).

    Returns:
        The pixels, uint8.

    Raises:
        ValueError: If it is broken, of another size, or has more than 8 bits a channel.
    """
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(raw))
        picture.load()
    # A damaged file may raise nearly anything in PIL: OSError, SyntaxError, ValueError, struct.error ...
    except Exception as error:
        raise ValueError(f"{where} is no readable picture ({error}); replace or remove it.") from None
    if picture.size != (size, size):
        raise ValueError(
            f"{where} is {picture.width} x {picture.height} pixels, where {size} x {size} are needed; "
            f"give the folder of the right size."
        )
    if picture.mode not in _PLAIN_MODES:
        raise ValueError(f"{where} has pixels of the kind {picture.mode!r}; save it with 8 bits a channel.")
    return np.asarray(picture if picture.mode == mode else picture.convert(mode))


def picture_features(size: int, labels: Sequence[str], colour: bool = False) -> datasets.Features:
    """Types of the columns of pictures, with the hash."""
    import datasets

    image = datasets.Array3D((size, size, 3), "uint8") if colour else datasets.Array2D((size, size), "uint8")
    return datasets.Features(
        {
            "image": image,
            "label": datasets.ClassLabel(names=list(labels)),
            "example_id": datasets.Value("int64"),
            DIGEST: datasets.Value("int64"),
        }
    )


def picture_example(pixels: np.ndarray, label: int, example_id: int) -> dict[str, Any]:
    """A row with the columns of `picture_features`."""
    return {"image": pixels, "label": label, "example_id": example_id, DIGEST: bytes_digest(pixels.tobytes())}


def finish(name: str, labels: Sequence[str], prepared: Mapping[str, datasets.Dataset]) -> datasets.DatasetDict:
    """The splits as a task hands them out, after checks of labels and of pictures that occur in two splits."""
    import datasets

    columns = {
        column: {part: split.data.column(column).to_numpy() for part, split in prepared.items()}
        for column in ("label", DIGEST)
    }
    check_labels(name, labels, columns["label"])
    warn_of_repeats(name, columns[DIGEST])
    splits = {part: split.remove_columns(DIGEST) for part, split in prepared.items()}
    return datasets.DatasetDict(splits).with_format("numpy")


# What follows is CIFAR-10 alone.

VERSION = 1
SIZE = 32
KNOWN_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
META = "batches.meta"
GREY_SCALE = ((122.6, 61.0),)
COLOUR_SCALE = ((125.3, 63.0), (123.0, 62.1), (113.9, 66.7))
LICENSE = "No formal licence; free for research, cite Krizhevsky 2009"
CITATION = "A. Krizhevsky (2009). Learning Multiple Layers of Features from Tiny Images. University of Toronto."
SOURCE = "CIFAR-10, https://www.cs.toronto.edu/~kriz/cifar.html"
LAYOUT = (
    "cifar-10-batches-py/ as published, Parquet files train*.parquet and test*.parquet (there, in data/ or in "
    "plain_text/), or train/<class>/*.png and test/<class>/*.png"
)
_COMMON: dict[str, Any] = {
    "modality": "image",
    "length": SIZE * SIZE,
    "classes": 10,
    "sizes": "45,000/5,000/10,000",
    "metric": "accuracy",
    "chance": 0.1,
    "license": LICENSE,
    "source": SOURCE,
    "layout": LAYOUT,
}
ENTRIES = {
    "lra-image": TaskEntry(
        title="Image (Long Range Arena)",
        options={"levels": "false (default): real values, normalised as in the papers; true: 256 grey levels as ids"},
        **_COMMON,
    ),
    "scifar": TaskEntry(title="Sequential CIFAR-10 in colour", **_COMMON),
}


@dataclass(frozen=True)
class Block:
    """Some examples that lie together: a pickled batch, a row group of a Parquet file, or a run of picture files.

    Attributes:
        path: The file; the part's folder for picture files.
        count: Number of examples.
        start: `example_id` of the first one.
        group: Number of the row group.
        columns: Names of the columns of picture and label, of a Parquet file.
        label_ids: Label as written -> its id.
        items: Class and file name of each picture file.
        rows: Which of its examples belong to the split that is made.
    """

    path: Path
    count: int
    start: int = 0
    group: int = 0
    columns: tuple[str, str] = ("", "")
    label_ids: Mapping[Any, int] = field(default_factory=dict)
    items: tuple[tuple[str, str], ...] = ()
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Source:
    """What was found in `data_dir`.

    Attributes:
        kind: "python batches", "Parquet files" or "PNG files".
        labels: Label names in the order of the ids.
        blocks: The examples of "train" and "test", in order.
        files: Everything the examples depend on.
        shown: The same for people.
    """

    kind: str
    labels: tuple[str, ...]
    blocks: Mapping[str, list[Block]]
    files: tuple[Path, ...]
    shown: tuple[str, ...]


class _PlainDtype:
    """Stands for a numpy dtype in a pickle."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.dtype = np.dtype(code.decode("latin1") if isinstance(code, bytes) else code)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it holds an array of {self.dtype}")

    def __setstate__(self, state: Sequence[Any]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _PlainArray:
    """Stands for a numpy array in a pickle: real ones take structures from it that could do harm."""

    array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, kind, by_column, raw = state
        self.fill(raw.encode("latin1") if isinstance(raw, str) else raw, kind, shape, "F" if by_column else "C")

    def fill(self, raw: Any, kind: _PlainDtype, shape: tuple[int, ...], order: Any) -> _PlainArray:
        """Take bytes, type and shape."""
        self.array = np.frombuffer(raw, dtype=kind.dtype).reshape(shape, order=order)
        return self


def _begin_array(*_: Any) -> _PlainArray:
    return _PlainArray()


def _whole_array(raw: Any, kind: _PlainDtype, shape: tuple[int, ...], order: str) -> _PlainArray:
    return _PlainArray().fill(raw, kind, shape, order)


def _encode_latin(text: str, encoding: str) -> bytes:
    # How pickles of protocol 2 spell bytes; other codecs could unpack a bomb.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the codec {encoding}")
    return text.encode("latin1")


_PICKLE_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _PlainArray,
    ("numpy", "dtype"): _PlainDtype,
    ("_codecs", "encode"): _encode_latin,
    # numpy 2 renamed the folder.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _begin_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _whole_array for core in ("core", "_core")},
}


class PlainUnpickler(pickle.Unpickler):
    """Opens pickles of dicts, lists, numbers, texts and arrays of numbers; calls nothing that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name in a pickle."""
        if (module, name) not in _PICKLE_NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _PICKLE_NAMES[module, name]


def load_pickle(path: Path) -> dict[str, Any]:
    """The dict in a pickle, with text keys.

    Raises:
        ValueError: If it asks for anything but plain data and numpy arrays, is damaged, or holds no dict.
    """
    if not path.stat().st_size:
        raise ValueError(f"{path.name} is empty; unpack the archive again.")
    try:
        with open(path, "rb") as file:
            found = PlainUnpickler(file, encoding="latin1").load()
    # A damaged pickle may raise nearly anything.
    except Exception as error:
        raise ValueError(
            f"{path.name} is no pickle of plain numpy arrays ({error}), and nothing else is opened, as a pickle can "
            f"run code; unpack the published archive again."
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds a {type(found).__name__}, not a dict; unpack the published archive again.")
    names = [key.decode("latin1") if isinstance(key, bytes) else str(key) for key in found]
    values = [value.array if isinstance(value, _PlainArray) else value for value in found.values()]
    return dict(zip(names, values, strict=True))


def load_batch(path: Path, num_labels: int) -> tuple[np.ndarray, list[int]]:
    """Pictures (N, 32, 32, 3) uint8 and labels of a python batch."""
    batch = load_pickle(path)
    absent = [key for key in ("data", "labels") if key not in batch]
    if absent:
        found = ", ".join(sorted(batch))
        raise ValueError(f"{path.name} has no {' and no '.join(absent)}; found {found}. Give the batches of CIFAR-10.")
    data, labels = batch["data"], batch["labels"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIZE**2:
        shape = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"{path.name}: data is {shape}, where uint8 (N, {3 * SIZE**2}) is needed.")
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(labels, list) or len(labels) != len(data) or not len(data):
        raise ValueError(f"{path.name} has {len(data)} pictures, but not one label for each; unpack the archive again.")
    for row, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < num_labels:
            raise ValueError(f"{path.name}, row {row}: label {label!r} is no whole number from 0 to {num_labels - 1}.")
    # All of red come first, then all of green and of blue.
    return data.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1), labels


def _find_pickles(folder: Path, data_dir: Path) -> Source:
    names = [name for part in BATCHES.values() for name in part]
    missing = [(folder / name).relative_to(data_dir).as_posix() for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"Missing in {data_dir}: {', '.join(missing)}. Unpack the whole archive of CIFAR-10.")
    labels: tuple[str, ...] = KNOWN_LABELS
    files = [folder / name for name in names]
    if (folder / META).is_file():
        files.append(folder / META)
        stored = load_pickle(folder / META).get("label_names")
        if not isinstance(stored, list) or not stored:
            raise ValueError(f"{META} has no list label_names; unpack the archive again, or remove this file.")
        labels = tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in stored)
    blocks: dict[str, list[Block]] = {}
    for part, batches in BATCHES.items():
        counts = [len(load_batch(folder / name, len(labels))[1]) for name in batches]
        blocks[part] = [Block(folder / name, count) for name, count in zip(batches, counts, strict=True)]
    return Source("python batches", labels, blocks, tuple(files), tuple(str(path) for path in files))


def _stored_names(schema: Any, column: str) -> list[str] | None:
    """Label names that `datasets` wrote into a Parquet file."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        names = about["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    # Old versions wrote a dict of numbers and names.
    return [str(name) for name in (names.values() if isinstance(names, dict) else names)]


def _parquet_columns(path: Path) -> tuple[Any, tuple[str, str]]:
    """An opened file, and its columns of picture and label."""
    import pyarrow as pa

    file = open_parquet(path)
    found = file.schema_arrow.names
    image = next((name for name in ("img", "image") if name in found), None)
    if image is None or "label" not in found:
        raise ValueError(f"{path.name} has the columns {', '.join(found)}; needed are img (or image) and label.")
    kind = file.schema_arrow.field(image).type
    if not (pa.types.is_binary(kind) or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)):
        raise ValueError(
            f"{path.name}: column {image} is {kind}; needed is a picture's file, as binary or {{bytes, path}}."
        )
    return file, (image, "label")


def _find_parquet(parts: Mapping[str, list[Path]]) -> Source:
    seen: dict[str, dict[Any, str]] = {}
    stored: list[str] | None = None
    blocks: dict[str, list[Block]] = {}
    for part, paths in parts.items():
        blocks[part], seen[part] = [], {}
        for path in paths:
            file, columns = _parquet_columns(path)
            stored = stored or _stored_names(file.schema_arrow, columns[1])
            with reading_parquet(path):
                labels_found = file.read(columns=[columns[1]]).column(0).unique().to_pylist()
            for label in labels_found:
                if label is None:
                    raise ValueError(f"{path.name}: some rows have no label; give each one, or remove them.")
                seen[part].setdefault(label, path.name)
            groups = range(file.metadata.num_row_groups)
            blocks[part] += [
                Block(path, file.metadata.row_group(group).num_rows, group=group, columns=columns) for group in groups
            ]
    everything = {**seen["test"], **seen["train"]}
    are_numbers = all(isinstance(label, int) for label in everything)
    if are_numbers and (stored or max(everything, default=-1) < len(KNOWN_LABELS)):
        # Numbers are ids where names are known.
        names = stored or list(KNOWN_LABELS)
        label_ids: dict[Any, int] = {number: number for number in range(len(names))}
    else:
        ordered = sorted(seen["train"], key=None if are_numbers else str)
        names, label_ids = [str(label) for label in ordered], {label: row for row, label in enumerate(ordered)}
    for label, where in everything.items():
        if label not in label_ids:
            raise ValueError(f"{where}: label {label!r} is none of those of the training part: {', '.join(names)}.")
    blocks = {part: [replace(block, label_ids=label_ids) for block in found] for part, found in blocks.items()}
    files = tuple(path for paths in parts.values() for path in paths)
    return Source("Parquet files", tuple(names), blocks, files, tuple(str(path) for path in files))


def _find_pictures(data_dir: Path) -> Source:
    classes, files = {}, []
    blocks: dict[str, list[Block]] = {}
    for part in BATCHES:
        folders = sorted(path for path in (data_dir / part).iterdir() if path.is_dir() and path.name[0] != ".")
        classes[part] = [path.name for path in folders]
        items = []
        for folder in folders:
            pictures = sorted(path for path in folder.glob("*.png") if path.name[0] != ".")
            if not pictures:
                raise FileNotFoundError(f"{part}/{folder.name}/ in {data_dir} holds no .png file; remove or fill it.")
            items += [(folder.name, path.name) for path in pictures]
            files += pictures
        runs = [tuple(items[first : first + SHARD_FILES]) for first in range(0, len(items), SHARD_FILES)]
        blocks[part] = [Block(data_dir / part, len(run), items=run) for run in runs]
    for name in classes["test"]:
        if name not in classes["train"]:
            raise ValueError(f"test/{name}/ in {data_dir} has no train/{name}/; training would not know its label.")
    label_ids = {name: row for row, name in enumerate(classes["train"])}
    blocks = {part: [replace(block, label_ids=label_ids) for block in found] for part, found in blocks.items()}
    shown = tuple(str(data_dir / part) for part in BATCHES)
    return Source("PNG files", tuple(classes["train"]), blocks, tuple(files), shown)


def find_source(data_dir: Path) -> Source:
    """Which layout lies in `data_dir`, and its examples with their ids.

    Raises:
        FileNotFoundError: If there is none, or with the names of what is missing.
        ValueError: For files that cannot be used.
    """
    source = None
    for folder in (data_dir / "cifar-10-batches-py", data_dir):
        if source is None and any((folder / name).is_file() for names in BATCHES.values() for name in names):
            source = _find_pickles(folder, data_dir)
    for folder in (data_dir, data_dir / "data", data_dir / "plain_text"):
        parts = {part: sorted(folder.glob(f"{part}*.parquet")) for part in BATCHES} if source is None else {}
        if any(parts.values()):
            missing = [f"{part}*.parquet" for part, paths in parts.items() if not paths]
            if missing:
                raise FileNotFoundError(f"Missing in {folder}: {', '.join(missing)}.")
            source = _find_parquet(parts)
    if source is None and any((data_dir / part).is_dir() for part in BATCHES):
        missing = [f"{part}/" for part in BATCHES if not (data_dir / part).is_dir()]
        if missing:
            raise FileNotFoundError(f"Missing in {data_dir}: {', '.join(missing)} with a folder for each class.")
        source = _find_pictures(data_dir)
    if source is None:
        packed = sorted(path.name for path in data_dir.glob("cifar-10*.gz"))
        hint = f" Unpack {packed[0]} first." if packed else ""
        raise FileNotFoundError(f"{data_dir} holds no CIFAR-10; needed are {LAYOUT}.{hint}")
    start = 0
    blocks: dict[str, list[Block]] = {}
    for part, found in source.blocks.items():
        blocks[part] = []
        for block in found:
            blocks[part].append(replace(block, start=start))
            start += block.count
        if not sum(block.count for block in found):
            raise ValueError(f"the {part} part in {data_dir} has no picture.")
    return replace(source, blocks=blocks)


def _read_block(block: Block, num_labels: int) -> Iterator[tuple[Any, int, str]]:
    """Picture (pixels, or the bytes of a file), label and name of those examples of a block that are wanted."""
    if block.items:
        for row in block.rows:
            class_name, file_name = block.items[row]
            path = block.path / class_name / file_name
            yield path.read_bytes(), block.label_ids[class_name], f"{block.path.name}/{class_name}/{file_name}"
    elif block.label_ids:
        image, label = block.columns
        file = _parquet_columns(block.path)[0]
        with reading_parquet(block.path):
            table = file.read_row_group(block.group, columns=[image, label])
        pictures, labels = table.column(image), table.column(label)
        for row in block.rows:
            raw = pictures[row].as_py()
            raw = raw["bytes"] if isinstance(raw, dict) else raw
            where = f"{block.path.name}, row {row} of row group {block.group}"
            if raw is None:
                raise ValueError(f"{where} holds no picture itself; save the set with the pictures inside.")
            yield raw, block.label_ids[labels[row].as_py()], where
    else:
        pixels, numbers = load_batch(block.path, num_labels)
        for row in block.rows:
            yield pixels[row], numbers[row], block.path.name


def read_blocks(shards: Sequence[Block], num_labels: int, colour: bool) -> Iterator[dict[str, Any]]:
    """Examples with the columns of `picture_features`."""
    from PIL import Image

    for block in shards:
        for row, (picture, label, where) in zip(block.rows, _read_block(block, num_labels), strict=True):
            if isinstance(picture, bytes):
                pixels = decode_picture(picture, where, SIZE, "RGB" if colour else "L")
            elif colour:
                pixels = np.ascontiguousarray(picture)
            else:
                pixels = np.asarray(Image.fromarray(np.ascontiguousarray(picture)).convert("L"))
            yield picture_example(pixels, label, block.start + row)


def _chosen(blocks: Sequence[Block], wanted: np.ndarray) -> list[Block]:
    """The blocks with those of their examples whose ids are in `wanted` (sorted), without empty ones."""
    found = []
    for block in blocks:
        first, last = np.searchsorted(wanted, (block.start, block.start + block.count))
        if last > first:
            found.append(replace(block, rows=tuple((wanted[first:last] - block.start).tolist())))
    return found


def split_ids(num_train: int, num_test: int) -> dict[str, np.ndarray]:
    """Sorted ids of each split; the training part comes first in the numbering."""
    if num_train < 2:
        raise ValueError("the training part has 1 picture, so that none can be held out for validation; add more.")
    order = random_split_order(num_train)
    # The product is cut off, not rounded, as in the S4 code base.
    kept = int(num_train * (1.0 - 0.1))
    test = np.arange(num_train, num_train + num_test)
    return dict(zip(SPLITS, (np.sort(order[:kept]), np.sort(order[kept:]), test), strict=True))


def load(name: str, data_dir: Path | None = None, *, levels: bool = False) -> Task:
    """Load the pictures: `image` (32, 32) uint8, or (32, 32, 3) for `scifar`; `label`; `example_id` in file order.

    Args:
        name: "lra-image" or "scifar".
        data_dir: Folder in one of the three layouts.
        levels: Whether models get the 256 grey levels as ids, not as real values; for `lra-image`.

    Raises:
        ValueError: For an option out of range, or files that cannot be used.
        FileNotFoundError: With what is missing.
    """
    colour = name == "scifar"
    if not isinstance(levels, bool):
        raise ValueError(f"levels={levels!r} is neither true nor false; use one of them.")
    if colour and levels:
        raise ValueError("levels=True was given for scifar, but a colour is no level; leave it out, or use lra-image.")
    check_folder(name, data_dir)
    assert data_dir is not None
    source = find_source(data_dir)
    numbers = {part: sum(block.count for block in blocks) for part, blocks in source.blocks.items()}
    prepared = {}
    for part, ids in split_ids(numbers["train"], numbers["test"]).items():
        blocks = _chosen(source.blocks["test" if part == "test" else "train"], ids)
        key = fingerprint("cifar10", VERSION, source.files, colour=colour)
        constants = {"num_labels": len(source.labels), "colour": colour}
        features = picture_features(SIZE, source.labels, colour)
        prepared[part] = cached_split(read_blocks, blocks, features, key, part, constants=constants)
    options = {} if colour else {"levels": levels}
    return Task(_spec(name, source, levels), finish(name, source.labels, prepared), options, source.shown)


def _spec(name: str, source: Source, levels: bool) -> TaskSpec:
    colour = name == "scifar"
    notes = (
        f"From {source.kind}. Validation is a tenth of the training part, taken by torch's random_split with seed 42 "
        f"as in the S4 code base"
    )
    notes += "." if source.kind == "python batches" else "; the order of these files gives other pictures than there."
    notes += " Row by row, a pixel a step."
    if not colour:
        notes += " Grey by PIL's mode L, which differs from that of TensorFlow by rounding."
    scale = COLOUR_SCALE if colour else None if levels else GREY_SCALE
    return TaskSpec(
        name=name,
        title=ENTRIES[name].title,
        modality="image",
        num_channels=3 if colour else 1,
        labels=source.labels,
        num_levels=256 if levels else None,
        length=SIZE * SIZE,
        metric="accuracy",
        greater_is_better=True,
        chance=1 / len(source.labels),
        license=LICENSE,
        citation=CITATION if colour else f"{CITATION} {LRA_CITATION}",
        source=SOURCE,
        version=VERSION,
        notes=notes,
        scale=scale,
    )
