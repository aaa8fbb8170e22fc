"""Data sets that are made here: shards from seeds, several processes, and going on after an interruption.

    from neverscratch.tasks.generation import load_generated, make
    make("lra-pathx", "data/pathx", size=200_000, seed=0, num_proc=8)
    splits = load_generated("data/pathx")

A folder holds `manifest.json` (what was asked for, all parameters, sizes), a README and Arrow files of `shard_size`
examples each, which `datasets` maps into memory without a copy. Each file has a random stream of its own, drawn from
(seed, task, split, number of the file): the bytes do not depend on the number of processes, and the training part of
one request begins like that of a larger one. A file is written as `<name>.<process>.tmp` and renamed when whole, so a
run that was killed leaves whole files only, and the same call goes on where it stopped.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .base import SPLITS, check_seed, nearest
from .system import check_room, check_writable, replacing, shown_bytes, uninterrupted

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

Tick = Callable[[int], Any]

_MODULES = {
    "lra-listops": "generate_listops",
    "lra-pathfinder": "generate_pathfinder",
    "lra-pathfinder64": "generate_pathfinder",
    "lra-pathx": "generate_pathfinder",
    "lra-pathx256": "generate_pathfinder",
}
MANIFEST = "manifest.json"
_LOCK = ".lock"
# Replacements of duplicates that may be duplicates again, in a row, before the set is called too small.
_MAX_CLASHES = 10_000
# Of two labels drawn like coins, so many training examples hold both, but for one set in 32,768.
_LEAST_TRAINED = 16


@dataclass(frozen=True, kw_only=True)
class Maker:
    """How one data set is made.

    Attributes:
        name: Name of the task.
        title: The name for people.
        version: Raised whenever the same request would give other examples.
        shares: Share of training, validation and test examples.
        published_size: Number of examples of the published set.
        shard_size: Examples of a file unless the caller says otherwise.
        bytes_per_example: Rough size of an example in a file.
        options: Option name -> (default, meaning).
        check: `check(options) -> options`, refusing values out of range; gets every option.
        parameters: `parameters(options)`: all numbers that the examples depend on, for the manifest.
        features: `features(options)`: types of the columns without `example_id`.
        rows: `rows(options, random, count, tick)`: a table of `count` examples; calls `tick(n)` after each n of them.
        keys: `keys(table)`: 64-bit hash of each example, where no example may occur twice; None to allow that.
        description: What it is, its source and its parameters' source, for the manifest and the README.
        differences: In what it differs from the published set.
    """

    name: str
    title: str
    version: int
    shares: tuple[float, float, float]
    published_size: int
    shard_size: int
    bytes_per_example: int
    options: Mapping[str, tuple[Any, str]]
    check: Callable[[dict[str, Any]], dict[str, Any]]
    parameters: Callable[[dict[str, Any]], dict[str, Any]]
    features: Callable[[dict[str, Any]], datasets.Features]
    rows: Callable[[dict[str, Any], np.random.Generator, int, Tick], pa.Table]
    keys: Callable[[pa.Table], np.ndarray] | None = None
    description: str = ""
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shard:
    """One file: `count` examples of a split, whose first has the id `start`."""

    name: str
    split: str
    index: int
    start: int
    count: int


@dataclass(frozen=True)
class Plan:
    """A request with everything filled in; small enough to be sent to other processes."""

    name: str
    size: int
    seed: int
    shard_size: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def maker(self) -> Maker:
        return maker(self.name)

    def split_sizes(self) -> dict[str, int]:
        """Examples of each split; validation and test are rounded, training gets the rest."""
        _, validation, test = (round(self.size * share) for share in self.maker.shares)
        return dict(zip(SPLITS, (self.size - validation - test, validation, test)))

    def is_readable(self) -> bool:
        """Whether every split has examples, and training enough of them to hold more than one label."""
        train, validation, test = self.split_sizes().values()
        return train >= _LEAST_TRAINED and validation >= 1 and test >= 1

    def shards(self) -> list[Shard]:
        """All files, in the order of the examples."""
        shards, first = [], 0
        for split, size in self.split_sizes().items():
            number = -(-size // self.shard_size)
            for index in range(number):
                start = index * self.shard_size
                name = f"{split}-{index:05d}-of-{number:05d}.arrow"
                shards.append(Shard(name, split, index, first + start, min(self.shard_size, size - start)))
            first += size
        return shards

    def random(self, *place: int) -> np.random.Generator:
        """The random stream of one place, such as (split, number of the file)."""
        key = np.random.SeedSequence([self.seed, zlib.crc32(self.name.encode()), *place])
        return np.random.Generator(np.random.Philox(key))

    def request(self) -> dict[str, Any]:
        """What decides every byte."""
        return {
            "task": self.name,
            "generator_version": self.maker.version,
            "size": self.size,
            "seed": self.seed,
            "shard_size": self.shard_size,
            "options": self.options,
            "parameters": self.maker.parameters(self.options),
        }

    def manifest(self, complete: bool) -> dict[str, Any]:
        """What `manifest.json` says."""
        known = self.maker
        files = self.shards()
        return {
            "task": self.name,
            "title": known.title,
            **self.request(),
            "splits": {
                split: {"examples": size, "files": [shard.name for shard in files if shard.split == split]}
                for split, size in self.split_sizes().items()
            },
            "description": known.description,
            "differences": list(known.differences),
            "complete": complete,
        }


def generated_names() -> list[str]:
    """Names that `make` takes."""
    return list(_MODULES)


def maker(name: str) -> Maker:
    """How the data set `name` is made.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    if name not in _MODULES:
        raise ValueError(
            f"There is no generator for {name!r}.{nearest(str(name), _MODULES)} Known ones: {', '.join(_MODULES)}."
        )
    return importlib.import_module(f".{_MODULES[name]}", __package__).MAKERS[name]


def make(
    name: str,
    out: str | Path,
    size: int | None = None,
    seed: int = 0,
    num_proc: int = 1,
    shard_size: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Make a data set, or go on with one that was broken off.

    Args:
        name: One of `generated_names()`.
        out: Folder for the files; new, empty, or one that the same call began.
        size: Number of examples of all three splits together; None for that of the published set.
        seed: Any whole number from 0 up.
        num_proc: Processes. The bytes do not depend on it.
        shard_size: Examples of a file; the random streams hang on it. None for the default of the task.
        progress: Whether to say what will be made, and to show a bar.
        options: Options of the task, see `maker(name).options`.

    Returns:
        The folder.

    Raises:
        ValueError: For arguments out of range, or a folder that holds something else.
        OSError: If the folder cannot be written or the disk is too small.
    """
    plan = _plan(name, size, seed, shard_size, options)
    _check_count("num_proc", num_proc)
    out = Path(out)
    if not (out / MANIFEST).exists():
        # Before anything grows with the size.
        check_writable(out)
        _check_room(out, plan, plan.size)
    with _locked(out):
        written = _check_folder(out, plan)
        pending = _pending(out, plan, bool(written.get("complete")))
        if pending or not written.get("complete"):
            try:
                _fill(out, plan, pending, num_proc, progress)
            except BaseException:
                _clear_unless_begun(out)
                raise
        _remove_traces(out)
    return out


def _pending(out: Path, plan: Plan, complete: bool) -> list[Shard]:
    """The files to make. One that was lost after the end takes the others with it, where duplicates count."""
    shards = plan.shards()
    pending = [shard for shard in shards if not (out / shard.name).exists()]
    if pending and complete and plan.maker.keys is not None:
        return [shard for shard in shards if shard in pending or not (out / f"{shard.name}.keys").exists()]
    return pending


def _fill(out: Path, plan: Plan, pending: list[Shard], num_proc: int, progress: bool) -> None:
    """Make the files that are missing, then the manifest."""
    for leftover in out.glob("*.tmp"):
        leftover.unlink(missing_ok=True)
    remaining = sum(shard.count for shard in pending)
    _check_room(out, plan, remaining)
    if progress and remaining:
        size = shown_bytes(remaining * plan.maker.bytes_per_example)
        print(f"Making {remaining} examples of {plan.name}, about {size}, in {out}", file=sys.stderr, flush=True)
    _write_text(out / MANIFEST, json.dumps(plan.manifest(False), indent=2) + "\n")
    with _bar(plan, pending, progress) as bar:
        if num_proc == 1 or len(pending) <= 1:
            for shard in pending:
                write_shard(plan, shard, out, bar.update)
        else:
            _share_out(plan, pending, out, min(num_proc, len(pending)), bar.update)
    if plan.maker.keys is not None:
        _replace_duplicates(plan, out)
    _write_text(out / "README.md", _readme(plan))
    _write_text(out / MANIFEST, json.dumps(plan.manifest(True), indent=2) + "\n")


def _clear_unless_begun(out: Path) -> None:
    """Leave nothing of a run that ended before its first file was whole: its request stands in nobody's way."""
    if not any(out.glob("*.arrow")):
        for path in (*out.glob("*.tmp"), *out.glob("*.arrow.keys"), out / MANIFEST):
            path.unlink(missing_ok=True)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a folder that `make` has finished.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it cannot be read, or the folder is not finished.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {MANIFEST}; give a folder that `make` has written.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        splits, complete = manifest["splits"], manifest["complete"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a manifest of generated data ({error!r}); make the data again.") from None
    names = [name for split in splits.values() for name in split["files"]]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {len(missing)} of its {len(names)} files, the first being {missing[0]}; "
            f"call the generator again with the same request (size={manifest['size']}, seed={manifest['seed']})."
        )
    if not complete:
        raise ValueError(
            f"{folder} is not finished; call the generator again with the same request "
            f"(size={manifest['size']}, seed={manifest['seed']})."
        )
    return manifest


def is_generated(folder: str | Path) -> bool:
    """Whether `make` has written, or begun, this folder."""
    return (Path(folder) / MANIFEST).is_file()


def load_generated(folder: str | Path) -> datasets.DatasetDict:
    """The train, validation and test examples of a folder that `make` has written, mapped into memory.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        ValueError: If the folder is not finished, a file is damaged, or a split is empty.
    """
    import datasets
    import pyarrow as pa

    manifest = read_manifest(folder)
    splits = {}
    for split, entry in manifest["splits"].items():
        if not entry["files"]:
            raise ValueError(f"{folder} has no {split} examples; make a larger size than {manifest['size']}.")
        parts = []
        for name in entry["files"]:
            try:
                parts.append(datasets.Dataset.from_file(str(Path(folder) / name)))
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(
                    f"{Path(folder) / name} is damaged ({error}); delete it and call the generator again."
                ) from None
        found = sum(len(part) for part in parts)
        if found != entry["examples"]:
            raise ValueError(
                f"{folder} has {found} {split} examples in place of {entry['examples']}; delete it and make it again."
            )
        whole = datasets.concatenate_datasets(parts) if len(parts) > 1 else parts[0]
        splits[split] = whole.with_format("numpy") if "image" in whole.column_names else whole
    return datasets.DatasetDict(splits)


def write_shard(plan: Plan, shard: Shard, out: Path, tick: Tick) -> None:
    """Make one file and, where no example may occur twice, the file of its hashes beside it."""
    known = plan.maker
    table = known.rows(plan.options, plan.random(SPLITS.index(shard.split), shard.index), shard.count, tick)
    if known.keys is not None:
        with replacing(out / f"{shard.name}.keys") as path, open(path, "wb") as file:
            np.save(file, known.keys(table))
    _write_table(plan, shard, out, table)


def _plan(name: str, size: Any, seed: Any, shard_size: Any, options: dict[str, Any]) -> Plan:
    """The request, checked."""
    known = maker(name)
    for option in options:
        if option not in known.options:
            raise ValueError(
                f"{option!r} is no option of {name}.{nearest(option, known.options)} "
                f"Its options: {', '.join(known.options)}."
            )
    filled = {option: options.get(option, default) for option, (default, _) in known.options.items()}
    size = known.published_size if size is None else size
    _check_count("size", size)
    if shard_size is not None:
        _check_count("shard_size", shard_size)
    plan = Plan(name, int(size), check_seed("seed", seed), int(shard_size or known.shard_size), known.check(filled))
    if not plan.is_readable():
        least = next(n for n in itertools.count(plan.size) if replace(plan, size=n).is_readable())
        raise ValueError(
            f"size={size} is too small for training, validation and test examples of every label; use {least} or more."
        )
    return plan


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r} is out of range; use a whole number from 1 up.")


def _check_folder(out: Path, plan: Plan) -> dict[str, Any]:
    """The manifest that is there, or {}; refuses a folder that holds something else."""
    path = out / MANIFEST
    if not path.exists():
        others = sorted(file.name for file in out.iterdir() if file.name != _LOCK and file.suffix != ".tmp")
        if others:
            raise ValueError(f"{out} holds other files already ({others[0]}); give a new folder.")
        return {}
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} cannot be read; delete {out} and call again.") from None
    asked = json.loads(json.dumps(plan.request()))
    found = {key: written.get(key) for key in asked}
    if found != asked:
        key = next(key for key in asked if found[key] != asked[key])
        raise ValueError(
            f"{out} was made with {key}={found[key]!r}, but {key}={asked[key]!r} is asked for; "
            f"give another folder, or delete this one."
        )
    return written


def _check_room(out: Path, plan: Plan, examples: int) -> None:
    check_room(out, examples * plan.maker.bytes_per_example, f"{plan.name} with {examples} examples")


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other runs out of the folder; a lock ends with the process that holds it."""
    from filelock import FileLock, Timeout

    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(out / _LOCK).acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another run is writing into {out}; wait for it, or give another folder.") from None
    try:
        yield
    finally:
        lock.lock.release()
        (out / _LOCK).unlink(missing_ok=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _write_table(plan: Plan, shard: Shard, out: Path, table: pa.Table) -> None:
    """Write the examples with their ids, in the form that `datasets` maps into memory."""
    import datasets
    import pyarrow as pa

    assert table.num_rows == shard.count
    features = datasets.Features({**plan.maker.features(plan.options), "example_id": datasets.Value("int64")})
    ids = pa.array(np.arange(shard.start, shard.start + shard.count, dtype=np.int64))
    columns = [ids if name == "example_id" else table.column(name).combine_chunks() for name in features]
    schema = features.arrow_schema
    with replacing(out / shard.name) as part:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


@contextmanager
def _bar(plan: Plan, pending: list[Shard], progress: bool) -> Iterator[Any]:
    from tqdm.auto import tqdm

    done = plan.size - sum(shard.count for shard in pending)
    with tqdm(total=plan.size, initial=done, desc=plan.name, unit=" examples", disable=not progress) as bar:
        yield bar


def _share_out(plan: Plan, pending: list[Shard], out: Path, num_proc: int, tick: Tick) -> None:
    """Make files in several processes, each of which is handed the next one when it has finished one."""
    # A forked copy of a process with threads (torch's, say) may hang, so fresh processes it is.
    context = multiprocessing.get_context("spawn")
    queue = list(reversed(pending))
    workers: dict[Any, Any] = {}
    try:
        for _ in range(num_proc):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, plan, out), daemon=True)
            with uninterrupted():
                process.start()
            theirs.close()
            workers[ours] = process
            ours.send(queue.pop())
        while workers:
            for pipe in cast(list[Any], wait(list(workers))):
                try:
                    kind, value = pipe.recv()
                    if kind == "done":
                        pipe.send(queue.pop() if queue else None)
                except (EOFError, ConnectionError):
                    raise RuntimeError(
                        "a process that makes examples has died (it may have been killed for want of memory); "
                        "the files that are whole are kept: call again, with a smaller num_proc."
                    ) from None
                if kind == "tick":
                    tick(value)
                elif kind == "error":
                    raise value
                elif kind == "end":
                    workers.pop(pipe).join()
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()
            # One that is stopped halfway through a file does not come to clean up after itself.
            for part in out.glob(f"*.{process.pid}.tmp"):
                part.unlink(missing_ok=True)


def _work(pipe: Any, plan: Plan, out: Path) -> None:
    """A process: make the files that come in, until None comes or the pipe is closed at the other end."""
    try:
        while (shard := pipe.recv()) is not None:
            try:
                write_shard(plan, shard, out, lambda number: pipe.send(("tick", number)))
            except (ValueError, OSError) as error:
                pipe.send(("error", error))
                return
            pipe.send(("done", shard.name))
        pipe.send(("end", None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _replace_duplicates(plan: Plan, out: Path) -> None:
    """Replace each example that an earlier one equals by one from a stream of its own.

    What is replaced by what depends on the hashes of the files as they were first written, which stay beside them
    until the end: a run that is killed in here does the same again.
    """
    import pyarrow as pa

    shards = plan.shards()
    hashes = np.concatenate([np.load(out / f"{shard.name}.keys") for shard in shards])
    _, first = np.unique(hashes, return_index=True)
    repeated = np.setdiff1d(np.arange(len(hashes)), first)
    if not len(repeated):
        return
    taken = set(hashes[first].tolist())
    fresh = _fresh_rows(plan, taken, len(repeated))
    for shard in shards:
        here = [place for place, row in enumerate(repeated) if shard.start <= row < shard.start + shard.count]
        if not here:
            continue
        with pa.memory_map(str(out / shard.name)) as source:
            table = pa.ipc.open_stream(source).read_all()
        table = table.drop_columns("example_id")
        rows = [table.slice(index, 1) for index in range(shard.count)]
        for place in here:
            rows[repeated[place] - shard.start] = fresh[place].cast(table.schema)
        _write_table(plan, shard, out, pa.concat_tables(rows).combine_chunks())


def _fresh_rows(plan: Plan, taken: set[int], count: int) -> list[pa.Table]:
    """`count` examples, one row each, whose hashes are not among `taken` and differ from each other."""
    known = plan.maker
    assert known.keys is not None
    fresh: list[pa.Table] = []
    clashes = batch = 0
    while len(fresh) < count:
        # A fourth place, which no file has.
        table = known.rows(plan.options, plan.random(len(SPLITS), batch), 256, lambda _: None)
        batch += 1
        for row, key in enumerate(known.keys(table).tolist()):
            clashes = clashes + 1 if key in taken else 0
            if key not in taken and len(fresh) < count:
                taken.add(key)
                fresh.append(table.slice(row, 1))
        if clashes >= _MAX_CLASHES:
            raise ValueError(
                f"{plan.name} with {plan.options} has hardly more than {len(taken)} different examples, too few for "
                f"size={plan.size}; ask for fewer, or for longer ones."
            )
    return fresh


def _remove_traces(out: Path) -> None:
    for path in out.glob("*.keys"):
        path.unlink()


def _readme(plan: Plan) -> str:
    """A README for people; its head tells the Hub which files are which split."""
    manifest = plan.manifest(True)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split, entry in manifest["splits"].items():
        if entry["files"]:
            lines += [f"  - split: {split}", f"    path: {split}-*.arrow"]
    lines += ["---", f"# {manifest['title']}, generated", "", manifest["description"], ""]
    lines += ["Read it with `neverscratch.tasks.generation.load_generated(folder)`.", ""]
    lines += [f"- task: {plan.name}, generator version {manifest['generator_version']}"]
    lines += [f"- size: {plan.size}, seed: {plan.seed}, examples of a file: {plan.shard_size}"]
    lines += [f"- {split}: {entry['examples']} examples" for split, entry in manifest["splits"].items()]
    lines += [f"- {key}: {value}" for key, value in manifest["parameters"].items()]
    lines += ["", "Where it differs from the published set:", ""]
    lines += [f"- {difference}" for difference in manifest["differences"]]
    return "\n".join(lines) + "\n"
