"""Examples a second that the generators make on one core, beside what the originals reach and what we ask for.

    python benchmarks/generators.py [--seconds S] [--only NAME,...] [--json FILE]

Each set is made in this process, with no bar, into no folder: rows only, in shards of the usual size until `--seconds`
of processor time are used. Both processor and wall time are printed; if they differ by much, the machine was busy.
"""

import argparse
import json
import time

import numpy as np

from neverscratch.tasks.generation import generated_names, maker

# Examples a second on one core: of the original generator (measured elsewhere, once), and wanted.
ORIGINAL = {"lra-listops": 324, "lra-pathfinder": 7.7, "lra-pathx": 0.55, "lra-pathx256": 8.1}
WANTED = {"lra-listops": 3000, "lra-pathfinder": 100, "lra-pathx": 20, "lra-pathx256": 30}


def measure(name: str, seconds: float) -> dict[str, float]:
    """Make shards until the time is used; examples a second of processor and of wall time."""
    known = maker(name)
    options = {option: default for option, (default, _) in known.options.items()}
    known.rows(options, np.random.Generator(np.random.Philox(0)), 2, lambda number: None)  # imports and tables
    count = shard = 0
    wall, processor = time.perf_counter(), time.process_time()
    while time.process_time() - processor < seconds:
        shard += 1
        table = known.rows(options, np.random.Generator(np.random.Philox(shard)), known.shard_size, lambda number: None)
        if known.keys is not None:
            known.keys(table)
        count += table.num_rows
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return {"examples": count, "per_processor_second": count / processor, "per_second": count / wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time for each set (default 5)")
    parser.add_argument("--only", default=",".join(generated_names()), help="names, with commas")
    parser.add_argument("--json", help="file for the results")
    arguments = parser.parse_args()
    results = {}
    print(f"{'set':<18}{'processor /s':>14}{'wall /s':>12}{'wanted':>10}{'original':>10}")
    for name in arguments.only.split(","):
        found = results[name] = measure(name, arguments.seconds)
        print(
            f"{name:<18}{found['per_processor_second']:>14.1f}{found['per_second']:>12.1f}"
            f"{WANTED.get(name, '-'):>10}{ORIGINAL.get(name, '-'):>10}",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
