"""`speech-commands-35` and `speech-commands-10`: spoken words of up to a second, as samples at 16 kHz.

The clips come from a folder that the user has, with a folder for each word and the two official lists; what is in
neither list is for training. Clips are padded with zeros at the end to 16,000 samples, as the papers do; longer ones
are cut and counted. `_background_noise_` holds no words and is left out.

`variant="s4"` repeats the ten words of the papers on S4: clips of any other length are dropped, the official lists are
not used, and the rest is split 70/15/15 at random, stratified, with scikit-learn's seeds 0 and 1. A speaker then occurs
in several parts. Which clip falls where hangs on the order of the files, which the papers left to the file system; ours
is sorted, so that the parts are drawn by their rule but are not theirs clip by clip.
"""

from __future__ import annotations

import warnings
import wave
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec
from .cache import cached_split, fingerprint
from .files import DIGEST, bytes_digest, check_folder, check_labels, numbers, read_lines, warn_of_repeats
from .own_files import read_sound

if TYPE_CHECKING:
    import datasets

VERSION = 1
RATE = LENGTH = 16_000
VARIANTS = ("official", "s4")
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
TEN = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ANIMALS, _NAMES = ("bird", "cat", "dog"), ("marvin", "sheila")
_OTHERS = ("backward", "bed", "follow", "forward", "happy", "house", "learn", "tree", "visual", "wow")
THIRTY_FIVE = tuple(sorted((*TEN, *_DIGITS, *_ANIMALS, *_NAMES, *_OTHERS)))
WORDS = {"speech-commands-35": THIRTY_FIVE, "speech-commands-10": TEN}
_PLACES = ("", "speech_commands_v0.02", "speech_commands")
_CLIPS_PER_SHARD = 1000
_NUM_SAMPLES = "num_samples"
# At most so many names in a message.
_NAMED = 3


def _entry(name: str, sizes: str) -> TaskEntry:
    num_words = len(WORDS[name])
    options = {
        "pad": f"True (default): zeros at the end of shorter clips, to {LENGTH:,}; False: each in its own length",
        "words": f"'official' (default): all {num_words} words must be there; 'found': those of them that are there",
    }
    if num_words == 10:
        options["variant"] = (
            "'official' (default): the official lists; 's4': clips of other lengths dropped, 70/15/15 at random, "
            "speakers mixed"
        )
    return TaskEntry(
        title=f"Speech Commands, {num_words} words",
        modality="audio",
        length=LENGTH,
        classes=num_words,
        sizes=sizes,
        metric="accuracy",
        chance=1 / num_words,
        license="CC BY 4.0",
        source="Speech Commands v0.02, http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
        layout="a folder of .wav files for each word, validation_list.txt and testing_list.txt, there or in "
        "speech_commands_v0.02/",
        options=options,
    )


ENTRIES = {
    "speech-commands-35": _entry("speech-commands-35", "84,843/9,981/11,005"),
    "speech-commands-10": _entry("speech-commands-10", "the clips of ten words in the official lists; s4: 34,975"),
}


def read_clip(path: Path) -> np.ndarray:
    """Samples (length,), int16.

    Raises:
        ValueError: If the file is no sound with one channel at 16 kHz, is cut off, or has no samples.
    """
    name = "/".join(path.parts[-2:])
    samples, rate, is_mixed = read_sound(path, name)
    if is_mixed:
        raise ValueError(f"{name} has more than one channel; one is needed, convert the clips or get them again.")
    if rate != RATE:
        raise ValueError(
            f"{name} has {rate:,} samples a second; {RATE:,} are needed, convert the clips or get them again."
        )
    return samples


def read_clips(shards: Sequence[Any], pad: bool) -> Iterator[dict[str, Any]]:
    """The clips of files; a shard is a sequence of (example_id, path, label)."""
    for example_id, path, label in (entry for shard in shards for entry in shard):
        samples = read_clip(Path(path))
        num, digest = len(samples), bytes_digest(samples.tobytes())
        samples = samples[:LENGTH]
        if pad and len(samples) < LENGTH:
            samples = np.pad(samples, (0, LENGTH - len(samples)))
        yield {
            "audio": samples,
            "label": label,
            "example_id": example_id,
            _NUM_SAMPLES: num,
            DIGEST: digest,
        }


def num_samples(path: Path) -> int:
    """Length of a clip by its header, or 0 where it has none."""
    try:
        with wave.open(str(path)) as file:
            return file.getnframes()
    except (OSError, EOFError, wave.Error):
        return 0


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def find_folder(name: str, data_dir: Path | None) -> Path:
    """The folder that holds the words: that of several where most of them are."""
    check_folder(name, data_dir)
    assert data_dir is not None

    def has(place: str) -> int:
        return sum((data_dir / place / item).exists() for item in (*LISTS.values(), *THIRTY_FIVE))

    return data_dir / max(_PLACES, key=has)


def find_words(name: str, folder: Path, words: str) -> list[str]:
    """The words of the task that have a folder, sorted.

    Raises:
        FileNotFoundError: With the names of the missing folders, unless `words` is "found".
        ValueError: If fewer than two are there.

    Warns:
        UserWarning: Of folders that are no word of the task with all words.
    """
    present = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
    missing = [word for word in WORDS[name] if word not in present]
    found = [word for word in WORDS[name] if word in present]
    if missing and (words == "official" or not found):
        raise FileNotFoundError(
            f"Missing in {folder}: the folders {', '.join(f'{word}/' for word in missing)}. {name} has "
            f"{len(WORDS[name])} words; unpack the whole archive, or take what is there with words='found'."
        )
    if len(found) < 2:
        raise ValueError(f"{folder} holds the single word {found[0]!r} of {name}; at least two are needed.")
    strangers = [word for word in present if word not in THIRTY_FIVE]
    if strangers:
        warnings.warn(
            f"{name}: {len(strangers)} folder(s) are no word of Speech Commands and are left out: {_some(strangers)}.",
            stacklevel=3,
        )
    return found


def read_list(folder: Path, file_name: str, words: Sequence[str]) -> set[str]:
    """The clips, as word/file.wav, that a list names among `words`.

    Raises:
        FileNotFoundError: With the names of the list, or of the clips that it names but are not there.
        ValueError: For a line that names no clip, or bytes that are no UTF-8.
    """
    path = folder / file_name
    if not path.is_file():
        raise FileNotFoundError(f"Missing in {folder}: {file_name}, which says which clips are held out.")
    chosen, known = [], set(words)
    for row, line in read_lines(path):
        line = line.strip()
        word, _, clip = line.partition("/")
        if line and (not clip.endswith(".wav") or "/" in clip):
            raise ValueError(f"{file_name}, line {row}: {line[:60]!r} names no clip; expected word/file.wav.")
        if word in known:
            chosen.append(line)
    missing = [clip for clip in chosen if not (folder / clip).is_file()]
    if missing:
        raise FileNotFoundError(
            f"Missing in {folder}: {_some(missing)}, named in {file_name}; unpack the whole archive again."
        )
    return set(chosen)


def official_parts(folder: Path, clips: Sequence[str], words: Sequence[str]) -> tuple[dict[str, list[int]], str]:
    """Indices into `clips` of each part by the official lists, and what is to be said."""
    lists = {part: read_list(folder, file_name, words) for part, file_name in LISTS.items()}
    both = sorted(lists["validation"] & lists["test"])
    if both:
        raise ValueError(f"{_some(both)} stand in both lists; unpack {' and '.join(LISTS.values())} again.")
    parts: dict[str, list[int]] = {part: [] for part in SPLITS}
    for index, clip in enumerate(clips):
        parts["validation" if clip in lists["validation"] else "test" if clip in lists["test"] else "train"].append(
            index
        )
    for part, indices in parts.items():
        if not indices:
            reason = f"{LISTS[part]} names none of its words" if part in LISTS else "the lists name every clip"
            raise ValueError(f"the {part} part has no clip: {reason}; unpack the whole archive again.")
    return parts, "Official lists."


def s4_parts(folder: Path, clips: Sequence[str]) -> tuple[dict[str, list[int]], str]:
    """Indices into `clips` of each part as in the papers on S4, and what is to be said."""
    from sklearn.model_selection import train_test_split

    kept = np.array([index for index, clip in enumerate(clips) if num_samples(folder / clip) == LENGTH], dtype=np.int64)
    if len(kept) == 0:
        raise ValueError(
            f"variant='s4' drops clips that are not exactly {LENGTH:,} samples long, and none of {len(clips):,} is; "
            f"use variant='official'."
        )
    labels = np.array([clips[index].partition("/")[0] for index in kept])
    try:
        train, rest, _, others = train_test_split(kept, labels, test_size=0.3, random_state=0, stratify=labels)
        validation, test = train_test_split(rest, test_size=0.5, random_state=1, stratify=others)
    except ValueError as error:
        raise ValueError(f"{len(kept)} clips of {LENGTH:,} samples are too few for variant='s4' ({error}).") from None
    parts = {"train": train, "validation": validation, "test": test}
    return {part: sorted(rows.tolist()) for part, rows in parts.items()}, (
        f"Variant s4: {len(clips) - len(kept):,} clips that are not {LENGTH:,} samples long dropped; stratified random "
        f"70/15/15 (scikit-learn, seeds 0 and 1), so that a speaker occurs in several parts."
    )


def _check_options(name: str, pad: Any, words: Any, variant: Any) -> None:
    if not isinstance(pad, bool):
        raise ValueError(f"pad={pad!r} is unknown; use True or False.")
    if words not in ("official", "found"):
        raise ValueError(f"words={words!r} is unknown; use 'official' or 'found'.")
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is unknown; use 'official' or 's4'.")
    if variant == "s4" and name != "speech-commands-10":
        raise ValueError(f"variant='s4' is for speech-commands-10; with {name} the papers use the official lists, too.")


def load(
    name: str, data_dir: Path | None = None, *, pad: bool = True, words: str = "official", variant: str = "official"
) -> Task:
    """Load the clips: columns `audio` (length,) of 16 bits, `label`, `example_id` (place in the sorted files).

    Raises:
        ValueError: For an option out of range, or data that cannot be used.
        FileNotFoundError: With the names of what is missing.
    """
    import datasets

    _check_options(name, pad, words, variant)
    folder = find_folder(name, data_dir)
    labels = find_words(name, folder, words)
    clips = sorted(f"{word}/{path.name}" for word in labels for path in (folder / word).glob("*.wav"))
    empty = sorted(set(labels) - {clip.partition("/")[0] for clip in clips})
    if empty:
        raise FileNotFoundError(f"Missing in {folder}: the folders {_some(empty)} hold no .wav file.")
    parts, notes = s4_parts(folder, clips) if variant == "s4" else official_parts(folder, clips, labels)
    options = {"pad": pad, "words": words, "variant": variant}
    prepared = {part: _prepare(name, folder, clips, labels, parts[part], part, options) for part in SPLITS}
    check_labels(name, labels, {part: numbers(split, "label") for part, split in prepared.items()})
    warn_of_repeats(name, {part: numbers(split, DIGEST) for part, split in prepared.items()})
    notes += _length_notes(name, prepared, pad)
    if len(labels) < len(WORDS[name]):
        notes += f" Only {len(labels)} of its {len(WORDS[name])} words are there: {', '.join(labels)}."
    longest = (
        LENGTH if pad else max(min(LENGTH, int(numbers(split, _NUM_SAMPLES).max())) for split in prepared.values())
    )
    splits = datasets.DatasetDict(
        {part: split.remove_columns([_NUM_SAMPLES, DIGEST]) for part, split in prepared.items()}
    )
    return Task(_spec(name, labels, longest, notes), splits.with_format("numpy"), options, (str(folder),))


def _prepare(
    name: str,
    folder: Path,
    clips: Sequence[str],
    labels: Sequence[str],
    rows: Sequence[int],
    part: str,
    options: Mapping[str, Any],
) -> datasets.Dataset:
    import datasets

    features = datasets.Features(
        {
            "audio": datasets.List(datasets.Value("int16"), length=LENGTH if options["pad"] else -1),
            "label": datasets.ClassLabel(names=list(labels)),
            "example_id": datasets.Value("int64"),
            _NUM_SAMPLES: datasets.Value("int64"),
            DIGEST: datasets.Value("int64"),
        }
    )
    ids = {word: index for index, word in enumerate(labels)}
    entries = [(row, str(folder / clips[row]), ids[clips[row].partition("/")[0]]) for row in rows]
    shards = [tuple(entries[start : start + _CLIPS_PER_SHARD]) for start in range(0, len(entries), _CLIPS_PER_SHARD)]
    # The ids of the clips belong to the key: a file that was added or removed elsewhere moves them.
    key = fingerprint(name, VERSION, [Path(path) for _, path, _ in entries], ids=list(rows), **options)
    return cached_split(read_clips, shards, features, key, part, constants={"pad": options["pad"]})


def _length_notes(name: str, parts: Mapping[str, datasets.Dataset], pad: bool) -> str:
    lengths = np.concatenate([numbers(split, _NUM_SAMPLES) for split in parts.values()])
    shorter, longer = int((lengths < LENGTH).sum()), int((lengths > LENGTH).sum())
    if longer:
        warnings.warn(
            f"{name}: {longer:,} of {len(lengths):,} clips are longer than {LENGTH:,} samples and are cut there.",
            stacklevel=3,
        )
    notes = f" {shorter:,} of {len(lengths):,} clips are shorter than {LENGTH:,} samples"
    notes += ", filled up with zeros at the end." if pad else " and stay so."
    return notes + (f" {longer:,} longer ones are cut." if longer else "")


def _spec(name: str, labels: Sequence[str], longest: int, notes: str) -> TaskSpec:
    entry = ENTRIES[name]
    return TaskSpec(
        name=name,
        title=entry.title,
        modality="audio",
        num_channels=1,
        labels=tuple(labels),
        num_levels=None,
        length=longest,
        metric=entry.metric,
        greater_is_better=True,
        chance=1 / len(labels),
        license=entry.license,
        citation="P. Warden (2018). Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition. "
        "arXiv:1804.03209.",
        source=entry.source,
        version=VERSION,
        notes=notes,
        sampling_rate=RATE,
    )
