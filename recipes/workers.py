"""Local workers: spawned processes that train the missing stages of a study, each once, in the order of the plan."""

import io
import multiprocessing
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from neverscratch.tasks.system import uninterrupted

from . import train

Spec = dict[str, Any]


class StudyError(RuntimeError):
    """Some runs of a study failed; the others are kept."""


@dataclass(frozen=True)
class Run:
    """One (model, arm, seed) and the stages it consists of, the pretraining first."""

    model: str
    arm: str
    seed: int
    stages: tuple[Spec, ...]

    @property
    def keys(self) -> list[str]:
        return [train.stage_key(spec) for spec in self.stages]

    def folder(self, study_dir: Path) -> Path:
        return study_dir / self.model / self.arm / f"seed-{self.seed}"

    def is_done(self, study_dir: Path) -> bool:
        """Whether the run folder is whole and was made from exactly these stages."""
        folder = self.folder(study_dir)
        record, metrics = train.read_json(folder / "run.json"), train.read_json(folder / "metrics.json")
        try:
            keys = [stage["key"] for stage in record["stages"]]  # type: ignore[index]
            lines = len((folder / "predictions.csv").read_text(encoding="utf-8").splitlines())
            whole = metrics["metric"] in metrics["test"]  # type: ignore[index]
            whole = whole and lines == 1 + record["sizes"]["test"]  # type: ignore[index]
        except (OSError, ValueError, TypeError, KeyError):
            return False
        return whole and keys == self.keys and train.has_weights(folder)


@dataclass(frozen=True)
class Plan:
    """The runs that are not done yet, and what to do with each once its stages exist.

    `publish` gets a run whose stages are whole, and returns the line to show for it.
    """

    runs: list[Run]
    total_runs: int
    stages_dir: Path
    publish: Callable[[Run], str]


def execute(plan: Plan, jobs: int, num_threads: int) -> list[str]:
    """Train the missing stages in a pool of spawned workers.

    Args:
        jobs: Worker processes.
        num_threads: Threads of each; the digits of a run depend on it.

    Returns:
        One line for each run that failed.

    Raises:
        StudyError: a worker process died.
        KeyboardInterrupt: passed on after the workers were stopped.
    """
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    # Read when a worker starts: every run computes with the same number of threads, and freed memory stays with the
    # process (glibc), as giving it back and faulting it in again takes a fifth of a small model's step.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(num_threads))
    settings = threads | dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(2**30))
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    workers, others = min(jobs, len(plan.runs)), set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(reports, os.getpid()))
    try:
        return _Scheduler(plan, pool, workers, reports).drain()
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_reports: Any = None


def _start_worker(reports: Any, parent: int) -> None:
    global _reports
    _reports = reports
    # Otherwise its first bar, shown or not, makes a semaphore, which is reported as leaked when the worker is stopped.
    tqdm.set_lock(threading.RLock())
    # What loading the data has to say, the parent has said.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"neverscratch\.")

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)

    # A worker whose parent was killed must not go on training.
    threading.Thread(target=watch, daemon=True).start()


def _run_stage(spec: Spec, stages_dir: str) -> None:
    key = train.stage_key(spec)
    train.run(spec, stages_dir, progress=lambda step: _reports.put((key, step)))


class _Scheduler:
    """Hands out stages in the order of the plan, as soon as a worker is free and what they start from exists."""

    def __init__(self, plan: Plan, pool: ProcessPoolExecutor, workers: int, reports: Any) -> None:
        self.plan, self.pool, self.workers, self.reports = plan, pool, workers, reports
        self.waiting = list(plan.runs)
        self.running: dict[Future, str] = {}
        self.broken: dict[str, str] = {}
        self.failures: list[str] = []
        specs = {train.stage_key(spec): spec for run in plan.runs for spec in run.stages}
        self.steps = {key: spec["arguments"]["max_steps"] for key, spec in specs.items()}
        self.seen = {key: self.steps[key] if self._is_done(key) else 0 for key in specs}
        self.names = {key: f"{run.model}/{run.arm}/{run.seed}" for run in plan.runs for key in run.keys}
        self.bar = tqdm(
            total=sum(self.steps.values()),
            initial=sum(self.seen.values()),
            bar_format="{percentage:3.0f}% |{bar:20}| {desc} [{elapsed}, {remaining} left]",
            smoothing=0.05,
            mininterval=0.5,
            dynamic_ncols=True,
            ascii=False,
            # In a log file a bar is noise: there, `_show` prints a line now and then.
            file=None if sys.stderr.isatty() else io.StringIO(),
        )
        self.shown = time.monotonic()

    def drain(self) -> list[str]:
        try:
            with self.bar:
                self._settle()
                while self.running:
                    finished, _ = wait(self.running, timeout=0.5, return_when=FIRST_COMPLETED)
                    for key, step in self._messages():
                        self._advance(key, step)
                    for future in finished:
                        self._collect(future)
                    self._settle()
        except BrokenProcessPool:
            raise StudyError(
                "A worker process died (out of memory, or killed). Finished stages are kept: "
                "run the same command again, with --jobs 1 if memory is short."
            ) from None
        return self.failures

    def _is_done(self, key: str) -> bool:
        return train.is_done(self.plan.stages_dir / key)

    def _messages(self) -> Iterator[tuple[str, int]]:
        while True:
            try:
                yield self.reports.get_nowait()
            except queue.Empty:
                return

    def _advance(self, key: str, step: int) -> None:
        self.bar.update(max(0, step - self.seen[key]))
        self.seen[key] = max(step, self.seen[key])

    def _collect(self, future: Future) -> None:
        key = self.running.pop(future)
        try:
            future.result()
        except BrokenProcessPool:
            raise
        # Whatever a stage died of, the other runs go on; it is reported at the end.
        except Exception as error:
            self.broken[key] = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        self._advance(key, self.steps[key])

    def _settle(self) -> None:
        """Publish whole runs, drop broken ones, and give free workers the next stages."""
        for run in list(self.waiting):
            broken = next((key for key in run.keys if key in self.broken), None)
            missing = next((index for index, key in enumerate(run.keys) if not self._is_done(key)), None)
            if broken is not None:
                self.waiting.remove(run)
                self.failures.append(f"  {run.model}/{run.arm}/seed-{run.seed}: {self.broken[broken]}")
            elif missing is None:
                self.waiting.remove(run)
                self._say(self.plan.publish(run))
            elif len(self.running) < self.workers and run.keys[missing] not in self.running.values():
                # The parent decides about Ctrl-C.
                with uninterrupted():
                    future = self.pool.submit(_run_stage, run.stages[missing], str(self.plan.stages_dir))
                self.running[future] = run.keys[missing]
        self._show()

    def _show(self) -> None:
        done = self.plan.total_runs - len(self.waiting) - len(self.failures)
        names = ", ".join(self.names[key] for key in self.running.values())
        self.bar.set_description_str(f"{done}/{self.plan.total_runs} runs done, now {names or '...'}")
        if not sys.stderr.isatty() and time.monotonic() - self.shown > 10:
            self.shown = time.monotonic()
            print(self.bar, file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        if sys.stderr.isatty():
            self.bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)
