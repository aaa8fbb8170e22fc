"""Large data sets, read once: Arrow files that are memory-mapped, so that memory stays flat however many examples.

A data set is prepared by several processes with one progress bar and kept under a fingerprint of everything it depends
on: the version of the loader, its options, and the name, size and time of change of each source file. Half-written
files are never taken for whole ones (`datasets` writes to a folder of another name and renames it).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets

# Fewer shards than this for each process do not pay for starting it.
_SHARDS_PER_PROCESS = 4
# The disk is full, a quota is used up, a file may not become so large, or nothing may be written at all.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def cache_folder() -> Path:
    """Where prepared data lie: the folder named by `NEVERSCRATCH_CACHE`, or a folder in the cache of `datasets`."""
    import datasets

    named = os.environ.get("NEVERSCRATCH_CACHE")
    return Path(named).expanduser() if named else Path(datasets.config.HF_DATASETS_CACHE) / "neverscratch"


def fingerprint(task: str, version: int, files: Iterable[Path], **options: Any) -> str:
    """A key of a data set that is made of `files`: other files, options or code give another."""
    import datasets

    seen = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
    parts = [task, version, datasets.__version__, sorted(options.items()), seen]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def default_num_proc(num_shards: int) -> int:
    """Processes worth starting for so many shards."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, num_shards // _SHARDS_PER_PROCESS))


def cached_split(
    examples: Callable[..., Iterator[dict[str, Any]]],
    shards: Sequence[Any],
    features: datasets.Features,
    key: str,
    part: str,
    *,
    constants: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
) -> datasets.Dataset:
    """A data set from a generator of examples, prepared once.

    Args:
        examples: `examples(shards, **constants)` yields the examples of some shards in order. It runs in other
            processes: a function of a module, not a closure.
        shards: What is shared out among the processes, such as file names or ranges; the order of the rows is theirs.
        features: Types of the columns.
        key: From `fingerprint`; the same one does for all parts.
        part: Name of the split.
        constants: Passed to each call.
        num_proc: Processes; None for as many as are worth it. The rows do not depend on it.

    Raises:
        ValueError: With the sentence that `examples` raised.
        OSError: If the cache cannot be written, with the way out.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError

    folder = cache_folder()
    # Lists are shared out; a list among the constants would be too.
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in (constants or {}).items()}
    with tempfile.TemporaryDirectory() as scratch:
        complaint = Path(scratch) / "complaint"
        kwargs = {"shards": list(shards), "examples": examples, "constants": frozen, "complaint": str(complaint)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return datasets.Dataset.from_generator(
                _complaining,
                features=features,
                cache_dir=str(folder),
                gen_kwargs=kwargs,
                num_proc=(num_proc or default_num_proc(len(shards))) if len(shards) > 1 else None,
                fingerprint=f"{key}-{part}",
                split=datasets.NamedSplit(part),
            )
        except DatasetGenerationError as error:
            if complaint.exists():
                raise ValueError(complaint.read_text(encoding="utf-8")) from None
            cause = error.__cause__ or error
            # Other errors of the system are those of files that are read, and name them.
            if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
                raise _not_written(folder, cause) from None
            raise cause from None
        except OSError as error:
            raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> OSError:
    return OSError(
        f"the data cannot be prepared in {folder} ({error.strerror or error}); make room or set NEVERSCRATCH_CACHE to "
        f"a folder that can be written"
    )


def _complaining(
    shards: list[Any], examples: Callable[..., Iterator[dict[str, Any]]], constants: dict[str, Any], complaint: str
) -> Iterator[dict[str, Any]]:
    """`examples`, whose sentence about bad data is kept: it would be lost on the way from another process."""
    try:
        yield from examples(shards, **constants)
    except ValueError as error:
        Path(complaint).write_text(str(error), encoding="utf-8")
        raise
