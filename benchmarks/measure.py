"""Time and peak memory of one thing in a process of its own, which waits for its turn.

A `Worker` starts this file as a script with a description of what to build (see `subjects.py`). The script builds it,
runs it twice to measure memory and to warm up, and then runs it once for each line it reads, so that several workers
can take turns: whatever slows the machine down meets all of them alike.

Memory is the peak of the resident set during the two runs beyond what the process held just before them, that is
without imports, parameters and inputs. Linux lets a process reset its peak; elsewhere the peak of the whole life of the
process is taken, which is the same unless building took more than running.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident(field: str) -> int | None:
    """VmRSS (now) or VmHWM (peak) of this process in bytes, or None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(sizes[field]) * 1024


def trim() -> None:
    """Give memory that earlier work has freed back to the system, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def peak_memory(run: Callable[[], None]) -> int:
    """Bytes that two runs need at most beyond what is there before them."""
    import resource

    gc.collect()
    trim()
    before = resident("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = None
    unit = 1 if sys.platform == "darwin" else 1024
    whole_life = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    run()
    run()
    if before is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - whole_life
    return max(0, (resident("VmHWM") or 0) - before)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Unavailable(Exception):
    """What was asked for does not exist here; the message says why."""


class Failed(Unavailable):
    """The process ended by itself; what it said stands in the error stream."""


class Worker:
    """A process that holds one built thing; use as a context manager."""

    def __init__(self, spec: dict[str, Any], threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__, json.dumps(spec | {"threads": threads})]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.spec = spec

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # Without input the process ends by itself.
        try:
            if self.process.stdin:
                self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process ended with code {self.process.wait()}")
        return json.loads(line)

    def start(self) -> dict[str, Any]:
        """Wait until the thing is built and warm.

        Returns:
            "memory" in bytes, and the "shape" of the output.

        Raises:
            Unavailable: If it cannot be built here.
            Failed: If the process died, as all methods.
        """
        report = self.read()
        if "unavailable" in report:
            raise Unavailable(report["unavailable"])
        return report

    def seconds(self) -> float:
        """Run once."""
        assert self.process.stdin
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(f"the process ended with code {self.process.wait()}") from error
        return self.read()["seconds"]


def ask(spec: dict[str, Any]) -> dict[str, Any]:
    """The answer of a process that only answers."""
    with Worker(spec, threads=1) as worker:
        return worker.start()


def serve(spec: dict[str, Any]) -> None:
    """Be the process behind a `Worker`."""
    replies = os.fdopen(os.dup(1), "w")
    # Whatever libraries print goes to the error stream, so that only replies stand in the pipe.
    os.dup2(2, 1)

    def reply(**fields: Any) -> None:
        print(json.dumps(fields), file=replies, flush=True)

    import subjects

    try:
        if "ask" in spec:
            reply(**subjects.ANSWERS[spec["ask"]](spec))
            return
        subject = subjects.build(spec)
        subject.warm_up()
    except Unavailable as reason:
        reply(unavailable=str(reason))
        return
    memory = peak_memory(subject.run)
    reply(memory=memory, shape=subject.shape)
    clock = CLOCKS[spec["clock"]]
    for _ in sys.stdin:
        gc.collect()
        start = clock()
        subject.run()
        reply(seconds=(clock() - start) / subject.steps)


if __name__ == "__main__":
    # By its name, so that there is one class Unavailable and not two.
    import measure

    measure.serve(json.loads(sys.argv[1]))
