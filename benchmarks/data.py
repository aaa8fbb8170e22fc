"""Seconds and memory from the start of a process to its first training step, on data of some size made here.

    python benchmarks/data.py [--only NAME,...] [--rows N] [--images N] [--series N] [--shares S,...] [--folder DIR]
                              [--json FILE]

Each set is made at half and at full size (`--shares`). On each, a fresh process does what `neverscratch finetune` does
until the first step is due: once with an empty cache (cold) and once more (warm).

Memory is the peak over time of all its processes together, pages that they share counted once (Linux' PSS, looked at
ten times a second), and the peak of the first one alone. Pages of memory-mapped files count as well, although the
system takes them back when it needs them.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import resident

# What is wanted: of each second start in seconds, and of all processes together in bytes.
MOST_SECONDS, MOST_BYTES = 10.0, 1.5 * 2**30


def make_listops(folder: Path, rows: int, length: int = 2048) -> dict[str, Any]:
    """The published layout with `rows` lists of `length` symbols in all, 96% of them to train."""
    random = np.random.default_rng(0)
    held_out = max(2, rows // 50)
    for part, count in (("train", rows - 2 * held_out), ("val", held_out), ("test", held_out)):
        with open(folder / f"basic_{part}.tsv", "w", encoding="utf-8") as file:
            file.write("Source\tTarget\n")
            for row in range(count):
                symbols = random.integers(0, 10, length).astype("U4")
                # Lists of six digits, side by side in one that holds everything.
                starts = np.arange(1, length - 9, 8)
                symbols[starts], symbols[starts + 7] = "[MAX", "]"
                symbols[0], symbols[-1] = "[SM", "]"
                file.write(f"{' '.join(symbols.tolist())}\t{row % 10}\n")
    return {"data_dir": folder}


def make_pathfinder(folder: Path, images: int, different: int = 2000) -> dict[str, Any]:
    """The layout of the release with pictures of 32 x 32, of which so many are different: what costs are the files."""
    from PIL import Image

    random = np.random.default_rng(0)
    files = []
    for _ in range(min(different, images)):
        file = io.BytesIO()
        lit = random.random((32, 32)) > 0.8
        Image.fromarray((lit * random.integers(1, 256, (32, 32))).astype(np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    level = folder / "pathfinder32" / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    for batch, start in enumerate(range(0, images, 1000)):
        (level / f"imgs/{batch}").mkdir(parents=True)
        names = [f"sample_{number}.png" for number in range(min(1000, images - start))]
        for name in names:
            (level / f"imgs/{batch}" / name).write_bytes(files[random.integers(len(files))])
        lines = [f"imgs/{batch} {name} {number} {number % 2} 1 2\n" for number, name in enumerate(names)]
        (level / f"metadata/{batch}.npy").write_text("".join(lines), encoding="utf-8")
    return {"data_dir": folder}


def make_text(folder: Path, rows: int) -> dict[str, Any]:
    """JSON lines of texts of some 2,000 characters, with a label."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, size)) for size in random.integers(2, 9, 5000)])
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as file:
        for row in range(rows):
            file.write(json.dumps({"text": " ".join(random.choice(words, 340)), "label": "ab"[row % 2]}) + "\n")
    return {"data": folder / "texts.jsonl"}


def make_series(folder: Path, series: int, steps: int = 16_384) -> dict[str, Any]:
    """`x.npy`, (series, steps) float32, and `y.npy` of three classes."""
    values = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (series, steps))
    random = np.random.default_rng(0)
    for row in range(series):
        values[row] = random.standard_normal(steps)
    values.flush()
    np.save(folder / "y.npy", np.arange(series) % 3)
    return {"data": folder}


@dataclass(frozen=True)
class Case:
    """A set: the task that reads it, and how it is made, `make(folder, size) -> options of the task`."""

    task: str
    make: Callable[[Path, int], dict[str, Any]]
    size: str
    """The argument that says how many examples it has."""


CASES = {
    "lra-listops": Case("lra-listops", make_listops, "rows"),
    "lra-pathfinder": Case("lra-pathfinder", make_pathfinder, "images"),
    "own-text": Case("own", make_text, "rows"),
    "own-series": Case("own", make_series, "series"),
}


def probe(task: str, settings: list[str]) -> None:
    """Be the measured process: fine-tune until the first step is due, and print the peak of this process in bytes."""
    from neverscratch.recipes import train
    from neverscratch.recipes.config import load_recipe
    from neverscratch.recipes.trainer import StageTrainer

    class FirstStep(BaseException):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise FirstStep

    StageTrainer.training_step = stop  # type: ignore[method-assign, assignment]
    spec = train.stage_spec(load_recipe(task, settings), "s4d", "finetune", seed=0, max_steps=10)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(FirstStep):
        train.run(spec, folder)
        raise SystemExit("the stage ended without a step")
    print(json.dumps({"peak_of_first": resident("VmHWM")}), flush=True)


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def proportional(pid: int) -> int:
    """Bytes of a process and all below it, shared pages counted once; 0 where the system does not tell."""
    total = 0
    for one in _family(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def start(task: str, options: dict[str, Any], cache: Path) -> dict[str, float]:
    """Run `probe` in a process of its own: seconds until its reply, and memory."""
    words = [f"task_options.{name}={json.dumps(str(value))}" for name, value in options.items()]
    command = [sys.executable, __file__, "--probe", json.dumps([task, words])]
    environment = os.environ | {
        "NEVERSCRATCH_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment)
        peak, done = 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.1):
                peak = max(peak, proportional(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout
        reply, seconds = process.stdout.readline(), time.perf_counter() - began
        code = process.wait()
        done.set()
        watcher.join()
        if code or not reply:
            complaints.seek(0)
            raise SystemExit(f"{task}: the process ended with code {code}.\n{complaints.read()[-4000:]}")
    return {"seconds": seconds, "peak": peak, **json.loads(reply)}


def measure(case: Case, size: int, root: Path) -> dict[str, Any]:
    """Make a set, and start twice on it."""
    with tempfile.TemporaryDirectory(dir=root) as folder, tempfile.TemporaryDirectory(dir=root) as cache:
        options = case.make(Path(folder), size)
        found = {name: start(case.task, options, Path(cache)) for name in ("cold", "warm")}
        kept = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    return {"size": size, **found, "cache": kept}


def line(name: str, found: dict[str, Any]) -> str:
    cold, warm = found["cold"], found["warm"]
    peaks = [cold["peak"], cold["peak_of_first"] or 0, warm["peak"], found["cache"]]
    is_met = warm["seconds"] <= MOST_SECONDS and max(cold["peak"], warm["peak"]) < MOST_BYTES
    shown = "".join(f"{peak / 2**20:>12,.0f}" for peak in peaks)
    return (
        f"{name:<16}{found['size']:>9,}{cold['seconds']:>8.1f}{warm['seconds']:>8.1f}{shown}  "
        f"{'met' if is_met else 'MISS'}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        return probe(*json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="names, with commas")
    parser.add_argument("--rows", type=int, default=100_000, help="lists and texts (default 100,000)")
    parser.add_argument("--images", type=int, default=20_000, help="pictures (default 20,000)")
    parser.add_argument("--series", type=int, default=2_000, help="series (default 2,000)")
    parser.add_argument("--shares", default="0.5,1", help="shares of these sizes to measure (default 0.5,1)")
    parser.add_argument(
        "--folder", type=Path, help="where sets and caches are made and removed (default: as the system)"
    )
    parser.add_argument("--json", help="file for the results")
    arguments = parser.parse_args()
    names, shares = arguments.only.split(","), [float(share) for share in arguments.shares.split(",")]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--only {','.join(unknown)} names no set; there are {', '.join(CASES)}")
    results: dict[str, list[dict[str, Any]]] = {}
    print(f"{'':<25}{'seconds':>16}{'MiB: all':>12}{'first':>12}{'all, warm':>12}{'cache':>12}")
    print(f"{'set':<16}{'size':>9}{'cold':>8}{'warm':>8}")
    for name in names:
        for share in shares:
            size = round(share * getattr(arguments, CASES[name].size))
            results.setdefault(name, []).append(measure(CASES[name], size, arguments.folder))
            print(line(name, results[name][-1]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
