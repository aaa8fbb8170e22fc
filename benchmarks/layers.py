"""Time and peak memory of our layers beside other people's, and beside what is possible.

    python benchmarks/layers.py [--peer-s4 DIR] [--rows NAME,...] [--repeats N] [--json FILE]

Without `--rows` every row of the speed table runs, then the overview of all families; a row's name may be a pattern,
such as "s4d-*". DIR is a checkout of https://github.com/state-spaces/s4, whose files models/s4/s4d.py and s4.py are
read (they need einops and scipy). Each thing lives in a fresh process; the processes of a row take turns, one run each,
so that ratios are of neighbours in time. Printed are median and (least - greatest) of times, and of ratios by pairs.
Memory is the peak of the resident set while running, without imports, parameters and inputs (see measure.py).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from measure import CLOCKS, Unavailable, Worker, ask

Spec = dict[str, Any]

BASE: Spec = {
    "part": "mixer",
    "backward": True,
    "hidden": 256,
    "state": 64,
    "batch": 8,
    "length": 4096,
    "layers": 4,
    "bidirectional": False,
}
ORIGINALS = {"s4d": "original s4d", "s4": "original s4"}
OTHERS = ("plain s4d", "original s4d", "original s4", "hf bert", "hf modernbert", "hf mamba", "floor")
# Families that work on chunks or blocks of a fixed size.
LOCAL = ("transformer", "mega", "s5", "lru")
# Fields of the layer that takes sequences of 1k to 64k: blocks where they are a choice, and what is made for a length
# made for the longest. The table is for 64 states; 1,024, the default of DLR, are most of its work (docs/models.md).
TOKEN_FIELDS: dict[str, Spec] = {
    "transformer": {"attention_window": 128, "position_embedding_type": "none"},
    "mega": {"chunk_size": 128},
    "dlr": {"d_state": 64},
    **{family: {"kernel_length": 65536} for family in ("dss", "sgconv", "mrconv")},
}
# What has no kernel or no layer of its own; the rest says itself what it is not.
PARTS_OF = {"floor": ("mixer",), "plain s4d": ("kernel", "mixer")}
PARTS_OF |= dict.fromkeys(("hf bert", "hf modernbert", "hf mamba", "wrapped", "hybrid"), ("layer", "stack"))


@dataclass(frozen=True)
class Target:
    """A number to reach: `quantity` of subject `top` over that of `bottom`, or of `top` alone in `unit`."""

    quantity: str
    top: str
    bottom: str | None
    must: float
    aim: float
    at_least: bool = True
    unit: str = ""

    def met(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound


@dataclass(frozen=True)
class Row:
    """Things that take turns, by label, and what is asked of them."""

    name: str
    title: str
    specs: dict[str, Spec]
    targets: tuple[Target, ...] = ()
    same_shape: bool = True


def speed_rows() -> list[Row]:
    """The rows against other implementations of the same function."""
    layers = {
        # name: (batch, time must, aim, memory must, aim)
        "s4d-layer": ("s4d", 8, (2.5, 2.9), (2.0, 3.0)),
        "s4-layer": ("s4", 8, (4.5, 6.0), (6.0, 9.0)),
        "s4d-layer-b1": ("s4d", 1, (8.0, 15.0), None),
        "s4-layer-b1": ("s4", 1, (8.0, 15.0), None),
    }
    rows = []
    for name, (family, batch, time, memory) in layers.items():
        pair = {"ours": BASE | {"subject": family, "batch": batch}}
        pair["original"] = pair["ours"] | {"subject": ORIGINALS[family]}
        targets = [Target("time", "original", "ours", *time)]
        if memory:
            targets.append(Target("memory", "original", "ours", *memory))
        rows.append(Row(name, f"{family}: layer against the original, B={batch}", pair, tuple(targets)))
    for family, length, must, aim in (("s4d", 4096, 20, 40), ("s4", 4096, 7, 15), ("s4", 16384, 25, 40)):
        ours = BASE | {"subject": family, "part": "kernel", "hidden": 128, "length": length}
        pair = {"ours": ours, "original": ours | {"subject": ORIGINALS[family]}}
        target = Target("time", "original", "ours", must, aim)
        rows.append(Row(f"{family}-kernel-{length}", f"{family}: kernel alone, L={length}", pair, (target,)))
    for family, must, aim in (("s4d", 1.15, 1.05), ("s4", 1.5, 1.25)):
        pair = {"ours": BASE | {"subject": family}, "floor": BASE | {"subject": "floor"}}
        target = Target("time", "ours", "floor", must, aim, at_least=False)
        rows.append(Row(f"{family}-floor", f"{family}: layer against its floor", pair, (target,)))
    return rows


def attention_rows() -> list[Row]:
    """The Transformer against HF BERT: 3 layers, 4 heads, feed-forward of 4 times the width."""
    rows = []
    for name, ragged, must, aim in (("transformer-full", 0, 1.0, 1.05), ("transformer-ragged", 8, 1.5, 1.9)):
        ours = BASE | {"part": "stack", "length": 1024, "layers": 3, "bidirectional": True, "ragged": ragged}
        pair = {"ours": ours | {"subject": "transformer"}, "hf bert": ours | {"subject": "hf bert"}}
        title = "8 batches, lengths uniform on [1, 1024]" if ragged else "full-length batch of 1024"
        rows.append(Row(name, f"transformer: {title}", pair, (Target("time", "hf bert", "ours", must, aim),)))
    return rows


def step_rows() -> list[Row]:
    rows = []
    for family, part, must, aim in (("s4d", "core", 60, 30), ("s4d", "step", 120, 80), ("s4", "core", 200, 100)):
        spec = BASE | {"subject": family, "part": part, "batch": 1, "length": 1, "backward": False}
        target = Target("time", "ours", None, must, aim, at_least=False, unit="us")
        title = "recurrence alone" if part == "core" else "whole block"
        rows.append(Row(f"{family}-{part}", f"{family}: one step, {title}, N=64 H=256 B=1", {"ours": spec}, (target,)))
    return rows


def token_rows(families: list[str]) -> list[Row]:
    """65,536 tokens in sequences of 1k to 64k: the time of one layer should hardly depend on the length."""
    rows = []
    lengths = {"1k": 1024, "4k": 4096, "16k": 16384, "64k": 65536}
    for family in families:
        if family in ("hybrid", "wrapped"):
            continue
        is_local = family in LOCAL
        base = BASE | {"subject": family, "bidirectional": True, "fields": TOKEN_FIELDS.get(family, {})}
        specs = {label: base | {"length": length, "batch": 65536 // length} for label, length in lengths.items()}
        bounds = (1.3, 1.3) if is_local else (2.0, 2.0)
        targets = tuple(Target("time", label, "1k", *bounds, at_least=False) for label in ("4k", "16k", "64k"))
        title = f"{family}{' (chunks or blocks)' if is_local else ''}: 65,536 tokens as sequences of 1k to 64k"
        rows.append(Row(f"tokens-{family}", title, specs, targets, same_shape=False))
    return rows


def overview_rows(families: list[str], sizes: Spec) -> list[Row]:
    """Everything beside everything, without targets."""
    rows = []
    for part in ("kernel", "mixer", "layer", "stack"):
        for backward in (False, True):
            base = BASE | {"length": 1024, "batch": 2} | sizes | {"part": part, "backward": backward}
            # BERT and ModernBERT look both ways, Mamba and the original S4D do not; ours do what the paper's did.
            specs = {
                name: base | {"subject": name, "bidirectional": name in ("hf bert", "hf modernbert", "transformer")}
                for name in [*families, *OTHERS]
                if part in PARTS_OF.get(name, (part,))
            }
            mode = "forward and backward" if backward else "forward"
            name = f"overview-{part}-{'both' if backward else 'forward'}"
            rows.append(Row(name, f"{part}, {mode}, B={base['batch']} L={base['length']} H={base['hidden']}", specs))
    return rows


def all_rows(families: list[str], sizes: Spec) -> list[Row]:
    return [
        *speed_rows(),
        *attention_rows(),
        *step_rows(),
        *token_rows(families),
        Row("plain-kernel", "s4d: kernel against the plain sum over all powers", plain_pair("kernel")),
        Row("plain-layer", "s4d: layer against the plain layer", plain_pair("mixer")),
        Row("plain-errors", "s4d: largest errors of ours and of the plain form, float32", {}),
        Row("import", "import of neverscratch.modeling beyond that of transformers' PreTrainedModel", {}),
        *overview_rows(families, sizes),
    ]


def plain_pair(part: str) -> dict[str, Spec]:
    ours = BASE | {"subject": "s4d", "part": part, "bidirectional": True}
    return {"ours": ours, "plain": ours | {"subject": "plain s4d"}}


def shrink(row: Row) -> Row:
    """The same row at sizes that take no time, to see that it runs."""
    small = {"hidden": 16, "state": 8, "layers": 2}

    def shrunk(spec: Spec) -> Spec:
        return spec | small | {"batch": min(2, spec["batch"]), "length": max(1, spec["length"] // 64)}

    return replace(row, specs={label: shrunk(spec) for label, spec in row.specs.items()})


def measure(row: Row, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Label -> "seconds" (a list), "memory" and "shape", or "unavailable"."""
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers = {}
        for label, spec in row.specs.items():
            extra = {"peer_s4": arguments.peer_s4, "clock": arguments.clock}
            worker = stack.enter_context(Worker(spec | extra, arguments.threads))
            # Waiting here makes them warm up one after the other.
            try:
                results[label] = worker.start() | {"seconds": []}
                workers[label] = worker
            except Unavailable as reason:
                results[label] = {"unavailable": str(reason)}
        for _ in range(arguments.repeats):
            for label, worker in list(workers.items()):
                try:
                    results[label]["seconds"].append(worker.seconds())
                except Unavailable as reason:
                    results[label] = {"unavailable": str(reason)}
                    del workers[label]
    return results


def ratios(target: Target, results: dict[str, dict[str, Any]]) -> list[float] | str:
    """What the target is about, once for each repeat (memory: once), or why there is no such number."""
    for label in (target.top, target.bottom):
        if label is not None and "unavailable" in results[label]:
            return results[label]["unavailable"]
    top = results[target.top]
    if target.bottom is None:
        return [seconds * 1e6 for seconds in top["seconds"]]
    bottom = results[target.bottom]
    if target.quantity == "memory":
        return [top["memory"] / max(1, bottom["memory"])]
    return [a / b for a, b in zip(top["seconds"], bottom["seconds"], strict=True)]


def spread(values: list[float], form: str) -> str:
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({format(min(values), form)} - {format(max(values), form)})"


def judge(row: Row, target: Target, values: list[float] | str) -> dict[str, Any]:
    """One line of the table of targets."""
    what = target.quantity
    if target.bottom is not None:
        what += f" {target.top} / {target.bottom}"
    line: dict[str, Any] = {"row": row.name, "what": what, "must": target.must, "aim": target.aim}
    line["sign"] = ">=" if target.at_least else "<="
    if isinstance(values, str):
        return line | {"mark": "not available", "reason": values}
    middle = statistics.median(values)
    mark = "aim" if target.met(middle, target.aim) else "must" if target.met(middle, target.must) else "MISS"
    return line | {"measured": values, "unit": target.unit, "mark": mark}


def show(line: dict[str, Any]) -> str:
    bounds = f"must {line['sign']} {line['must']:<6g} aim {line['sign']} {line['aim']:<6g}"
    measured = "-"
    if "measured" in line:
        form = ".1f" if line["unit"] == "us" else ".2f"
        measured = f"{spread(line['measured'], form)} {line['unit']}"
    return f"{line['row']:20} {line['what']:28} {measured:30} {bounds} {line['mark']}"


def run_row(row: Row, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure and print a row.

    Returns:
        What was measured, by label, and the lines for the table of targets.
    """
    print(f"\n{row.name}: {row.title}", flush=True)
    results = measure(row, arguments)
    for label, result in results.items():
        if "unavailable" in result:
            print(f"    {label:16} not available: {result['unavailable']}", flush=True)
            continue
        milliseconds = [1e3 * seconds for seconds in result["seconds"]]
        time = spread(milliseconds, ".4f" if max(milliseconds) < 1 else ".1f")
        print(f"    {label:16} {time:32} ms   {result['memory'] / 2**20:8.1f} MiB", flush=True)
    shapes = {label: result["shape"] for label, result in results.items() if "shape" in result}
    if row.same_shape and any(shape != next(iter(shapes.values())) for shape in shapes.values()):
        raise RuntimeError(f"{row.name} compares outputs of different shapes: {shapes}.")
    lines = [judge(row, target, ratios(target, results)) for target in row.targets]
    for line in lines:
        print(f"  {show(line)}", flush=True)
    return results, lines


def run_import(row: Row, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Seconds that our models' import adds, each time in a fresh interpreter."""
    code = (
        "import time; from transformers import PreTrainedModel; start = time.perf_counter(); "
        "import neverscratch.modeling; print(time.perf_counter() - start)"
    )
    print(f"\n{row.name}: {row.title}", flush=True)
    command = [sys.executable, "-c", code]
    # Outside this folder: a script's own folder would come first among those searched.
    root = Path(__file__).parents[1]
    seconds = [
        float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout)
        for _ in range(arguments.repeats + 1)
    ]
    # The first one may have had to compile the files.
    target = Target("seconds", "ours", None, 0.3, 0.3, at_least=False, unit="s")
    line = judge(row, target, seconds[1:])
    print(f"  {show(line)}", flush=True)
    return {"ours": {"seconds": seconds[1:]}}, [line]


def run_errors(row: Row, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    print(f"\n{row.name}: {row.title}", flush=True)
    sizes = BASE | ({"hidden": 16, "length": 64} if arguments.quick else {}) | {"bidirectional": True}
    answer = ask(sizes | {"ask": "plain errors"})
    for name, error in answer["errors"].items():
        print(f"    {name:16} kernel against float64, relative to the feature's largest value: {error:.1e}")
    print(f"    outputs of the two layers differ by at most {answer['difference']:.1e}", flush=True)
    return answer, []


SPECIAL: dict[str, Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "import": run_import,
    "plain-errors": run_errors,
}


def machine() -> dict[str, str]:
    """What the numbers depend on, apart from the code."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=root).stdout.strip()

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    changed = " with uncommitted changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return {"cpu": f"{cpu}, {os.cpu_count()} cores", "commit": (git("rev-parse", "--short", "HEAD") or "-") + changed}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-s4", metavar="DIR", help="a checkout of state-spaces/s4")
    parser.add_argument("--rows", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: processor time, for busy machines",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE as well")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all of it runs; proves nothing")
    for name in ("length", "batch", "hidden", "state"):
        parser.add_argument(f"--{name}", type=int, help="size of the overview")
    arguments = parser.parse_args(words)
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    if arguments.peer_s4:
        arguments.peer_s4 = str(Path(arguments.peer_s4).resolve())
    return arguments


def choose(rows: list[Row], patterns: str) -> list[Row]:
    """The rows that are asked for; a word that names none of them is an error."""
    words = [word for word in patterns.split(",") if word]
    for word in words:
        if not any(fnmatch(row.name, word) for row in rows):
            raise SystemExit(f"--rows {word} names no row; there are {', '.join(row.name for row in rows)}.")
    return [row for row in rows if any(fnmatch(row.name, word) for word in words)]


def main() -> None:
    arguments = parse()
    about = machine() | ask({"ask": "describe"})
    sizes = {name: getattr(arguments, name) for name in ("length", "batch", "hidden", "state")}
    rows = all_rows(about["families"], {name: size for name, size in sizes.items() if size is not None})
    rows = choose(rows, arguments.rows)
    if arguments.list:
        print("\n".join(f"{row.name:24} {row.title}" for row in rows))
        return
    versions = f"torch {about['torch']}, transformers {about['transformers']}"
    print(f"cpu {about['cpu']}; {arguments.threads} thread(s); commit {about['commit']}")
    print(f"{versions}; float32, {arguments.repeats} repeats, {arguments.clock} time")
    print("unless said: forward and backward, H=256 N=64 B=8 L=4096, one direction, no dropout, GLU output")
    if arguments.quick:
        print("QUICK: tiny sizes, so the marks mean nothing")
    measured, lines = {}, []
    for row in rows:
        run = SPECIAL.get(row.name, run_row)
        measured[row.name], row_lines = run(shrink(row) if arguments.quick else row, arguments)
        lines += row_lines
    if lines:
        print("\ntargets")
        print("\n".join(show(line) for line in lines))
    if arguments.json:
        keep = {key: value for key, value in vars(arguments).items() if key not in ("json", "list")}
        report = {"about": about | keep, "measured": measured, "targets": lines}
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
