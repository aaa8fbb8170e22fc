"""What a user's `data` is: a file, a folder in one of several layouts, or a set of the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .own_columns import CSV_SUFFIXES, JSON_SUFFIXES, TABLE_SUFFIXES, suffix_of
from .own_files import ARRAY_SUFFIXES, SERIES_SUFFIXES, array_source, class_files, folder_source, series_source
from .own_rows import Source
from .own_splits import SPLIT_WORDS, split_of_name, split_word

ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".bz2", ".xz", ".7z", ".rar", ".zst")
# Of the older UCR archive; elsewhere a text, so it is taken for series only where it is asked for.
OLD_SERIES = ".txt"
FORMATS = tuple(suffix[1:] for suffix in (*TABLE_SUFFIXES, *SERIES_SUFFIXES, *ARRAY_SUFFIXES, OLD_SERIES))
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DATA_SUFFIXES = (*TABLE_SUFFIXES, *SERIES_SUFFIXES, *ARRAY_SUFFIXES)


def find_source(data: str, root: Path | None, options: dict[str, Any]) -> Source:
    """Say how to read `data`, a path (from `root` if given) or, where nothing is on disk by this name, a Hub set.

    Raises:
        FileNotFoundError: If there is neither.
        ValueError: If its layout cannot be told.
    """
    path = Path(data).expanduser() if root is None else root / data
    if path.is_file():
        return _file_source(path, options)
    if path.is_dir():
        return _dir_source(path, options)
    if root is None and HUB_ID.fullmatch(data) and suffix_of(path) not in (*_DATA_SUFFIXES, *ARCHIVES):
        return _hub_source(data, options)
    raise FileNotFoundError(
        f"data={str(path)!r} is no file or folder; give a file ({', '.join(FORMATS)}), a folder, or the name of a set "
        f"of the Hub, owner/name."
    )


def _check_file(path: Path) -> None:
    """Refuse archives, empty files and kinds that cannot be read."""
    endings = {suffix.lower() for suffix in path.suffixes[-2:]}
    is_packed = path.suffix.lower() == ".gz" and suffix_of(path) not in (*CSV_SUFFIXES, *JSON_SUFFIXES)
    if path.suffix.lower() in ARCHIVES or ".tar" in endings or is_packed:
        raise ValueError(f"{path.name} is an archive; unpack it and give the file or folder inside.")
    if not path.stat().st_size:
        raise ValueError(f"{path.name} is empty; give a file with examples.")
    if suffix_of(path) not in (*_DATA_SUFFIXES, OLD_SERIES):
        raise ValueError(
            f"{path.name} is of no kind that can be read; give one of {', '.join(FORMATS)}, or a folder of text, "
            f"sound or image files."
        )


def _file_source(path: Path, options: dict[str, Any]) -> Source:
    _check_file(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return array_source(path, options)
    return _files_source({"train": [path]}, options)


def _files_source(parts: dict[str, list[Any]], options: dict[str, Any]) -> Source:
    from .own_tables import table_source

    for paths in parts.values():
        for path in paths:
            _check_file(path)
    first = parts["train"][0]
    if suffix_of(first) in (*SERIES_SUFFIXES, OLD_SERIES) and not _is_table(first, options):
        return series_source(parts, options)
    return table_source(parts, options)


def _is_table(path: Path, options: dict[str, Any]) -> bool:
    """Whether a `.tsv` has a header: those of the archives have numbers only after the label."""
    if suffix_of(path) != ".tsv":
        return False
    with path.open("rb") as file:
        cells = file.readline().decode("utf-8", "replace").rstrip("\r\n").split("\t")
    named = {options[option] for option in ("label", "input", "id")} - {None}
    return bool(named & set(cells)) or "label" in [cell.lower() for cell in cells]


def _dir_source(folder: Path, options: dict[str, Any]) -> Source:
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    if not entries:
        raise ValueError(f"{folder} is an empty folder; give one that holds files.")
    inside = {split_word(entry.name): entry for entry in entries if entry.is_dir() and split_word(entry.name)}
    if "train" in inside:
        return _split_folders(folder, {str(part): entry for part, entry in inside.items()}, options)
    wanted = options["format"]
    readable = (OLD_SERIES,) if f".{wanted}" == OLD_SERIES else _DATA_SUFFIXES
    files = [entry for entry in entries if entry.is_file() and suffix_of(entry) in readable]
    if wanted is not None:
        files = [path for path in files if suffix_of(path) == f".{wanted}"]
        if not files:
            raise ValueError(f"{folder} holds no .{wanted} file; leave format out to see what it holds.")
    by_suffix: dict[str, dict[str, list[Path]]] = {}
    for path in files:
        part = split_of_name(path)
        if part is not None:
            by_suffix.setdefault(suffix_of(path), {}).setdefault(part, []).append(path)
    complete = {suffix: parts for suffix, parts in by_suffix.items() if "train" in parts}
    if len(complete) > 1:
        raise ValueError(
            f"{folder} holds the training part as {', '.join(sorted(complete))}; choose one in the option format."
        )
    if ".npy" in complete or (not complete and any(path.suffix == ".npy" for path in files)):
        return array_source(folder, options)
    if complete:
        chosen, parts = next(iter(complete.items()))
        for suffix, others in by_suffix.items():
            unread = [path.name for part, paths in others.items() if part not in parts for path in paths]
            if suffix != chosen and unread and wanted is None:
                raise ValueError(
                    f"{folder} holds {unread[0]} beside a training part in {chosen}; save both in one format, or "
                    f"leave {unread[0]} out by the option format={chosen[1:]}."
                )
        _check_one_set(folder, parts)
        return _files_source(parts, options)
    if by_suffix:
        shown = ", ".join(path.name for parts in by_suffix.values() for paths in parts.values() for path in paths)
        raise FileNotFoundError(f"{folder} holds {shown}, but no file named train; add it.")
    if len(files) == 1:
        return _file_source(files[0], options)
    if len(files) > 1:
        raise ValueError(
            f"{folder} holds several files ({', '.join(path.name for path in files[:6])}); name one in data, or name "
            f"them train, validation and test."
        )
    classes, skipped = class_files(folder, folder)
    if not classes:
        loose = [entry.name for entry in entries if entry.is_file()][:3]
        found = f" (found {', '.join(loose)})" if loose else ""
        raise ValueError(
            f"{folder} holds neither data files nor class folders with texts, sounds or images{found}; lay it out as "
            f"train.csv ..., <class>/*.txt or train/<class>/*.txt."
        )
    return folder_source(folder, {"train": classes}, skipped, options)


def _check_one_set(folder: Path, parts: dict[str, list[Path]]) -> None:
    """Refuse files of different sets, such as A_TRAIN.tsv and B_TEST.tsv; numbered files of one set are fine."""
    words = "|".join(sorted({word for group in SPLIT_WORDS.values() for word in group}, key=len, reverse=True))
    rest = {
        re.sub(rf"{words}|\d+|[^a-z]|of", "", path.name.lower()): path for paths in parts.values() for path in paths
    }
    if len(rest) > 1:
        shown = ", ".join(sorted(path.name for path in rest.values()))
        raise ValueError(f"{folder} holds files of several sets ({shown}); give each set a folder of its own.")


def _split_folders(root: Path, inside: dict[str, Path], options: dict[str, Any]) -> Source:
    files = {
        part: [path for path in sorted(folder.iterdir()) if path.is_file() and suffix_of(path) in _DATA_SUFFIXES]
        for part, folder in inside.items()
    }
    if any(files.values()):
        empty = [part for part, found in files.items() if not found]
        if empty:
            raise FileNotFoundError(
                f"{inside[empty[0]]} holds no data file, but others do; add it or remove the folder."
            )
        return _files_source({part: list(found) for part, found in files.items()}, options)
    parts, skipped = {}, []
    for part, folder in inside.items():
        parts[part], left_out = class_files(folder, root)
        skipped += left_out
        if not parts[part]:
            raise ValueError(f"{folder} holds no class folders with texts, sounds or images; expected <class>/<file>.")
    return folder_source(root, parts, sorted(set(skipped)), options)


def _hub_source(name: str, options: dict[str, Any]) -> Source:
    """The parts of a set of the Hub. This is the only place that may go to the network, and only for a name given."""
    import datasets

    from .own_tables import table_source

    try:
        loaded = datasets.load_dataset(name, name=options["subset"])
    except Exception as error:
        raise FileNotFoundError(
            f"data={name!r} is no file or folder, and it cannot be loaded from the Hub either "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); correct "
            f"the name."
        ) from error
    found = {"train": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    if len(found) == 1:
        found = {"train": next(iter(found.values()))}
    parts: dict[str, list[Any]] = {}
    for split, data in found.items():
        part = split_word(split)
        if part is not None:
            for column, feature in data.features.items():
                if isinstance(feature, (datasets.Audio, datasets.Image)):
                    data = data.cast_column(column, type(feature)(decode=False))
            parts.setdefault(part, []).append(data)
    if "train" not in parts:
        raise ValueError(f"{name} has the parts {', '.join(found)}, but none called train.")
    source = table_source(parts, options)
    left_out = [split for split in found if split_word(split) is None]
    source.notes += [f"Part {', '.join(left_out)} is left out."] if left_out else []
    return source
