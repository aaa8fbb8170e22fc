"""Arrays, series files and folders of texts, sounds and images of a user."""

from __future__ import annotations

import io
import re
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .own_rows import MIXED_DOWN, REPAIRED, TRIMMED, Source, check_series, check_text, decode, make_example, sound_of
from .own_splits import split_word

SERIES_SUFFIXES = (".ts", ".arff", ".tsv")
ARRAY_SUFFIXES = (".npy", ".npz")
FOLDER_KINDS = {
    "text": (".txt",),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
    "image": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm", ".webp"),
}
_KIND_OF = {suffix: kind for kind, suffixes in FOLDER_KINDS.items() for suffix in suffixes}


# Arrays. A shard is (file or files, key of x, key of y, first row, one past the last).

ARRAY_ROWS = 4096


def read_array(path: Path, key: str | None = None) -> np.ndarray:
    """An array of a `.npy` (mapped into memory) or a `.npz`; never unpickles.

    Raises:
        ValueError: If the file is cut off, no array, or holds Python objects.
    """
    what = path.name if key is None else f"{path.name}, array {key!r}"
    try:
        if key is None:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[key]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if "pickle" in str(error) or "Object arrays" in str(error):
            raise ValueError(
                f"{what} holds Python objects or is no numpy file, and is not opened: unpickling runs code; save plain "
                f"numbers, for series of unequal length as Parquet or JSON lines."
            ) from None
        raise ValueError(f"{what} is cut off or damaged ({error}); save it again.") from None


def array_keys(path: Path) -> list[str]:
    """Names of the arrays in a `.npz`."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return list(arrays.files)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is cut off or no .npz file ({error}); save it again.") from None


def array_name(text: str) -> tuple[str, str] | None:
    """Part and role ("x", "y" or "group") that an array's name says it has: `x_train`, `trainx`, `y`; or None."""
    bare = text.lower()
    if bare in ("group", "groups"):
        return "train", "group"
    match = re.fullmatch(r"(?:(x|y)(?:[_-]?([a-z]+))?|([a-z]+?)[_-]?(x|y))", bare)
    if match is None:
        return None
    role, word = match[1] or match[4], match[2] or match[3]
    part = "train" if word is None else split_word(word)
    return None if part is None else (part, role)


def array_source(data: Path, options: dict[str, Any]) -> Source:
    """How to read x and y of each part, from a `.npz` or a folder of `.npy`.

    Raises:
        ValueError: If x or y is missing, or their shapes do not fit.
    """
    refuse_columns(options, "arrays have names of their own", ", and call an array of groups groups")
    if data.is_file() and data.suffix.lower() == ".npy":
        raise ValueError(
            f"{data.name} is one array; give the folder that holds x.npy and y.npy, or a .npz with x and y."
        )
    in_folder = data.is_dir()
    names = (
        {path.stem: path for path in sorted(data.glob("*.npy"))} if in_folder else dict.fromkeys(array_keys(data), data)
    )
    found: dict[str, dict[str, tuple[Path, str | None]]] = {}
    for name, path in names.items():
        place = array_name(name)
        if place is not None:
            found.setdefault(place[0], {})[place[1]] = (path, None if in_folder else name)
    for part, roles in found.items():
        for role in ("x", "y"):
            if role not in roles:
                raise ValueError(f"{data.name}: {role} of {part} is missing; arrays found: {', '.join(names)}.")
    if "train" not in found:
        raise ValueError(
            f"{data.name} has no arrays x and y (or x_train and y_train ...); arrays found: "
            f"{', '.join(names) or 'none'}."
        )
    shards = {}
    for part, roles in found.items():
        x, y = (read_array(*roles[role]) for role in ("x", "y"))
        _check_arrays(x, y, f"{data.name} ({part})")
        if "group" in roles and read_array(*roles["group"]).shape != (len(x),):
            raise ValueError(f"{data.name} ({part}): group must hold one value for each of the {len(x)} series.")
        step = ARRAY_ROWS if in_folder else len(x)
        shards[part] = [
            (roles["x"], roles["y"], roles.get("group"), start, min(start + step, len(x)))
            for start in range(0, len(x), step)
        ]
    files = sorted({path for roles in found.values() for path, _ in roles.values()})
    return Source("values", shards, array_examples, {"missing": options["missing"]}, files)


def _check_arrays(x: np.ndarray, y: np.ndarray, where: str) -> None:
    if x.ndim not in (2, 3) or x.dtype.kind not in "iufb":
        raise ValueError(
            f"{where}: x has shape {x.shape} and type {x.dtype}; it must hold numbers, (series, steps) or (series, "
            f"steps, channels)."
        )
    if len(x) != len(y):
        raise ValueError(f"{where}: x has {len(x)} series and y {len(y)} labels; each series needs one.")
    if not len(x):
        raise ValueError(f"{where}: x holds no series.")
    if y.ndim == 2 and y.shape[1] > 1 and not np.isin(y, (0, 1)).all():
        raise ValueError(
            f"{where}: y has shape {y.shape}; with several columns each must be 0 or 1, one for each label."
        )
    if y.ndim not in (1, 2):
        raise ValueError(f"{where}: y has shape {y.shape}; it must be (series,), or (series, labels) of 0 and 1.")


def array_examples(shards: list[Any], missing: str | None, channels: int | None = None) -> Iterator[dict[str, Any]]:
    """The series of arrays."""
    for x_place, y_place, group_place, start, end in shards:
        x, y = read_array(*x_place), read_array(*y_place)
        groups = None if group_place is None else read_array(*group_place)
        for row in range(start, end):
            where = f"{x_place[0].name}, series {row + 1}"
            value, flags = check_series(x[row], where, missing, None, channels)
            label: Any = y[row]
            if y.ndim == 2:
                label = label[0] if y.shape[1] == 1 else np.flatnonzero(label)
            group = None if groups is None else groups[row]
            yield make_example("values", value, label, where, flags=flags, group=group)


# Series files of the archives.


def series_source(parts: dict[str, list[Any]], options: dict[str, Any]) -> Source:
    """How to read the series files of each part."""
    refuse_columns(options, "files of series have none")
    from .series_files import iter_series

    files = [path for shards in parts.values() for path in shards]
    is_regression, _ = iter_series(files[0])
    source = Source("values", dict(parts), series_examples, {"missing": options["missing"]}, files)
    if is_regression:
        source.problem = "regression"
    return source


def series_examples(shards: list[Any], missing: str | None, channels: int | None = None) -> Iterator[dict[str, Any]]:
    """The series of series files."""
    from .series_files import iter_series

    for path in shards:
        # Their reader cuts NaN off the end by itself where the format pads with them.
        _, cases = iter_series(path, missing if missing in ("interpolate", "zero") else "refuse")
        for case in cases:
            where = f"{path.name}, row {case.row}"
            value, flags = check_series(case.values, where, missing, None, channels)
            flags |= (TRIMMED if case.is_trimmed else 0) | (REPAIRED if case.num_filled else 0)
            yield make_example("values", value, case.label, where, flags=flags)


# Folders: a file is an example, its folder the label. A shard is (file, label).


def refuse_columns(options: dict[str, Any], what: str, hint: str = "") -> None:
    """Raise if an option names a column of a table and there is no table: it would have no effect."""
    for name in ("input", "label", "split", "group", "id", "time"):
        if options[name] is not None:
            raise ValueError(f"the option {name} names a column of a table, but {what}; leave it out{hint}.")


def class_files(folder: Path, root: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Files of each class folder, sorted, and the names of the folders and files that are left out.

    Raises:
        ValueError: If a class has no file that can be read, or the folder holds several kinds of files, or files
            beside the class folders.
    """
    classes: dict[str, list[Path]] = {}
    skipped = []
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            continue
        if entry.name.startswith((".", "_")):
            skipped += [entry.name] if entry.name.startswith("_") else []
            continue
        # Hidden ones are copies and notes of other programs, not examples.
        seen = [
            path
            for path in sorted(entry.rglob("*"))
            if path.is_file() and not any(name.startswith(".") for name in path.relative_to(entry).parts)
        ]
        files = [path for path in seen if path.suffix.lower() in _KIND_OF]
        others = [path for path in seen if path.suffix.lower() not in _KIND_OF]
        if others and not files:
            raise ValueError(
                f"{entry} holds no text, sound or picture that can be read, but {others[0].name}; convert its "
                f"{len(others)} file(s), or move the folder away."
            )
        skipped += [f"{entry.name}/{path.relative_to(entry)}" for path in others]
        if files:
            classes[entry.name] = files
    kinds: dict[str, Path] = {}
    for path in (path for files in classes.values() for path in files):
        kinds.setdefault(_KIND_OF[path.suffix.lower()], path)
    if len(kinds) > 1:
        shown = " and ".join(f"{kind} ({path.relative_to(root)})" for kind, path in sorted(kinds.items()))
        raise ValueError(f"{folder} holds {shown}; a data set has one kind of input, move the others away.")
    return classes, skipped


def folder_kind(classes: dict[str, list[Path]]) -> str:
    """text, audio or image."""
    return _KIND_OF[next(iter(classes.values()))[0].suffix.lower()]


def folder_source(
    root: Path, parts: dict[str, dict[str, list[Path]]], skipped: list[str], options: dict[str, Any]
) -> Source:
    """How to read class folders; `validation_list.txt` and `testing_list.txt` beside them say what is held out."""
    refuse_columns(options, "class folders have none")
    kinds = {folder_kind(classes) for classes in parts.values()}
    if len(kinds) > 1:
        raise ValueError(f"{root} holds {' and '.join(sorted(kinds))} files; a data set has one kind of input.")
    kind = kinds.pop()
    shards = {part: [(path, label) for label in classes for path in classes[label]] for part, classes in parts.items()}
    more = f" and {len(skipped) - 5:,} more" if len(skipped) > 5 else ""
    notes = [f"Left out: {', '.join(skipped[:5])}{more}."] if skipped else []
    lists = [root / "validation_list.txt", root / "testing_list.txt"]
    if set(parts) == {"train"} and all(path.is_file() for path in lists):
        held_out = {}
        for part, path in zip(("validation", "test"), lists, strict=True):
            names = decode(path.read_bytes(), path.name).split()
            missing = [name for name in names if not (root / name).is_file()]
            if missing:
                raise FileNotFoundError(f"{path.name} lists {len(missing)} file(s) that are missing: {missing[0]} ...")
            held_out[part] = {root / name for name in names}
        everything = shards.pop("train")
        shards["train"] = [item for item in everything if not any(item[0] in named for named in held_out.values())]
        for part, named in held_out.items():
            shards[part] = [item for item in everything if item[0] in named]
        notes.append("Split by validation_list.txt and testing_list.txt.")
    files = [path for items in shards.values() for path, _ in items]
    constants: dict[str, Any] = {}
    rate = None
    if kind == "audio":
        rate = read_sound(files[0], str(files[0].relative_to(root)))[1]
        constants = {"rate": rate, "root": str(root)}
    else:
        constants = {"root": str(root)}
    examples = {"text": text_examples, "audio": audio_examples, "image": image_examples}[kind]
    return Source(kind, shards, examples, constants, files, sampling_rate=rate, notes=notes)


def text_examples(shards: list[Any], root: str) -> Iterator[dict[str, Any]]:
    """The texts of files."""
    for path, label in shards:
        where = str(path.relative_to(root))
        yield make_example("text", check_text(decode(path.read_bytes(), where), where), label, where)


def audio_examples(shards: list[Any], root: str, rate: int) -> Iterator[dict[str, Any]]:
    """The samples of sound files, one sampling rate for all."""
    for path, label in shards:
        where = str(path.relative_to(root))
        samples, own_rate, flags = read_sound(path, where)
        if own_rate != rate:
            raise ValueError(f"{where} has {own_rate} Hz where the first file has {rate} Hz; resample it.")
        yield make_example("audio", sound_of(samples), label, where, flags=flags)


def image_examples(shards: list[Any], root: str, shape: tuple[int, ...] | None = None) -> Iterator[dict[str, Any]]:
    """The pixels of image files, one size for all."""
    for path, label in shards:
        where = str(path.relative_to(root))
        pixels = read_image(path, where)
        _check_shape(pixels, shape, where)
        yield make_example("image", pixels, label, where)


def read_sound(source: Path | io.BytesIO, where: str) -> tuple[np.ndarray, int, int]:
    """Samples (L,) int16, sampling rate in Hz, and flags; several channels are averaged.

    16-bit WAV needs no other library; everything else needs soundfile.

    Raises:
        ValueError: If the file is cut off, empty, or needs soundfile.
    """
    try:
        with wave.open(str(source) if isinstance(source, Path) else source, "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            data = file.readframes(file.getnframes())
            expected = file.getnframes() * channels * width
    except (wave.Error, EOFError) as error:
        return _read_other_sound(source, where, str(error))
    if width != 2:
        return _read_other_sound(source, where, f"{8 * width}-bit samples")
    if len(data) < expected:
        raise ValueError(f"{where} is cut off: {len(data)} of {expected} bytes of samples; copy it again.")
    return _mono(np.frombuffer(data, dtype="<i2").reshape(-1, channels), where, rate)


def _mono(samples: np.ndarray, where: str, rate: int) -> tuple[np.ndarray, int, int]:
    if not len(samples):
        raise ValueError(f"{where}: the recording has no samples; remove the file.")
    if samples.shape[1] == 1:
        return samples[:, 0].astype(np.int16), rate, 0
    return np.rint(samples.mean(axis=1)).astype(np.int16), rate, MIXED_DOWN


def _read_other_sound(source: Path | io.BytesIO, where: str, why: str) -> tuple[np.ndarray, int, int]:
    if isinstance(source, Path) and not source.stat().st_size:
        raise ValueError(f"{where} is empty; remove the file or copy it again.")
    try:
        import soundfile
    except ImportError:
        raise ValueError(
            f'{where} is no 16-bit WAV file ({why}); pip install "neverscratch[audio]" reads other kinds, or convert '
            f"it."
        ) from None
    if not isinstance(source, Path):
        source.seek(0)
    try:
        samples, rate = soundfile.read(source, dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{where} cannot be read as sound ({error}); convert it or copy it again.") from None
    return _mono(samples, where, rate)


def read_image(source: Path | io.BytesIO, where: str) -> np.ndarray:
    """Pixels, uint8: (H, W) if the image is grey, else (H, W, 3).

    Raises:
        ValueError: If it is cut off or no image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(source) as image:
            if image.mode.startswith("I") or image.mode == "F":
                raise ValueError(f"{where} has more than 8 bits a pixel; convert it to 8 bits.")
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{where} is no whole image ({error}); copy it again or remove it.") from None


def _check_shape(pixels: np.ndarray, shape: tuple[int, ...] | None, where: str) -> None:
    """Refuse an image that is not like the first; None where it is the first."""
    if shape is not None and pixels.shape != tuple(shape):
        raise ValueError(
            f"{where} has shape {pixels.shape} where the first image has {tuple(shape)}; give all pictures one size "
            f"and kind of colour."
        )


def _is_sound(data: bytes) -> bool:
    return data[:4] in (b"RIFF", b"fLaC", b"OggS") or data[:3] == b"ID3"


def _embedded_bytes(cell: Any, where: str) -> bytes:
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not data:
        raise ValueError(f"{where}: the table holds only the name of a sound or image; its bytes must be in it.")
    return data


def embedded_rate(cell: Any, where: str) -> int | None:
    """Sampling rate of a sound whose bytes stand in a table; None for an image."""
    data = _embedded_bytes(cell, where)
    return read_sound(io.BytesIO(data), where)[1] if _is_sound(data) else None


def read_embedded(
    cell: Any, where: str, sampling_rate: int | None, shape: tuple[int, ...] | None
) -> tuple[str, np.ndarray, int]:
    """Modality, input and flags of a sound or image whose bytes stand in a table; all like the first.

    Raises:
        ValueError: If the bytes are missing or broken, or of another rate or shape than the first row's.
    """
    data = _embedded_bytes(cell, where)
    if _is_sound(data) != (sampling_rate is not None):
        raise ValueError(f"{where}: sounds and images stand in one column; a data set has one kind of input.")
    if sampling_rate is not None:
        samples, rate, flags = read_sound(io.BytesIO(data), where)
        if rate != sampling_rate:
            raise ValueError(f"{where} has {rate} Hz where the first row has {sampling_rate} Hz; resample it.")
        return "audio", sound_of(samples), flags
    pixels = read_image(io.BytesIO(data), where)
    _check_shape(pixels, shape, where)
    return "image", pixels, 0
