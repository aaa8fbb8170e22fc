"""Making data sets: the same bytes however it goes, and nothing half-written."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import datasets
import numpy as np
import pytest

from neverscratch.tasks import generation, load_task, system
from neverscratch.tasks.base import SPLITS
from neverscratch.tasks.generation import generated_names, is_generated, load_generated, make, maker

# Short trees, of which many are equal.
SHORT = {"min_length": 3, "max_length": 10, "max_depth": 3}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make_short(out: Path, **changes) -> Path:
    return make("lra-listops", out, **{"size": 500, "shard_size": 100, "progress": False, **SHORT, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return make_short(tmp_path_factory.mktemp("made") / "out")


def test_bytes_hang_on_the_seed_and_not_on_the_processes(undisturbed, tmp_path):
    assert contents(make_short(tmp_path / "two", num_proc=2)) == contents(undisturbed)
    other = contents(make_short(tmp_path / "other", seed=1))
    assert not any(other[name] == whole for name, whole in contents(undisturbed).items())


def test_folder_loads(undisturbed):
    assert is_generated(undisturbed)
    splits = load_generated(undisturbed)
    assert {name: len(split) for name, split in splits.items()} == {"train": 480, "validation": 10, "test": 10}
    ids = np.concatenate([splits[name]["example_id"] for name in SPLITS])
    assert ids.tolist() == list(range(500))
    assert splits["train"].features["label"] == datasets.ClassLabel(names=[str(digit) for digit in range(10)])
    row = splits["test"][0]
    assert set(row) == {"tokens", "label", "example_id"} and isinstance(row["tokens"][0], str)
    # Mapped, not copied to a cache.
    assert Path(splits["train"].cache_files[0]["filename"]).parent == undisturbed


def test_manifest_and_readme(undisturbed):
    assert sorted(path.suffix for path in undisturbed.iterdir()) == [*7 * [".arrow"], ".json", ".md"]
    manifest = json.loads((undisturbed / "manifest.json").read_text())
    assert manifest["task"] == "lra-listops" and manifest["generator_version"] == 1 and manifest["complete"]
    assert manifest["size"] == 500 and manifest["seed"] == 0
    assert manifest["parameters"]["max_depth"] == 3 and manifest["options"]["max_args"] == 10
    assert manifest["splits"]["validation"] == {"examples": 10, "files": ["validation-00000-of-00001.arrow"]}
    assert manifest["differences"]
    assert "size: 500, seed: 0" in (undisturbed / "README.md").read_text()


@pytest.mark.parametrize("name", generated_names())
def test_published_sizes(name):
    known = maker(name)
    plan = generation.Plan(name, known.published_size, 0, known.shard_size, {})
    wanted = (96_000, 2_000, 2_000) if name == "lra-listops" else (160_000, 20_000, 20_000)
    assert tuple(plan.split_sizes().values()) == wanted
    shards = plan.shards()
    assert sum(shard.count for shard in shards) == known.published_size and shards[-1].count == known.shard_size
    assert len(shards) <= 200


def test_training_part_begins_like_that_of_a_larger_set(tmp_path):
    small = load_generated(make("lra-listops", tmp_path / "a", 100, shard_size=50, progress=False, max_length=600))
    large = load_generated(make("lra-listops", tmp_path / "b", 300, shard_size=50, progress=False, max_length=600))
    assert large["train"]["tokens"][:50] == small["train"]["tokens"][:50]


def test_no_example_twice(undisturbed):
    splits = load_generated(undisturbed)
    trees = [tuple(tokens) for name in SPLITS for tokens in splits[name]["tokens"]]
    assert len(set(trees)) == 500
    # That took some replacing.
    plan = generation.Plan("lra-listops", 500, 0, 100, {**SHORT, "max_args": 10})
    drawn = [
        tuple(tokens)
        for shard in plan.shards()
        for tokens in plan.maker.rows(
            plan.options, plan.random(SPLITS.index(shard.split), shard.index), shard.count, lambda number: None
        )["tokens"].to_pylist()
    ]
    assert len(set(drawn)) < 500
    # First comers stay where they are.
    seen: set[tuple[str, ...]] = set()
    for before, after in zip(drawn, trees):
        assert before in seen or before == after
        seen.add(before)


def test_too_few_different_examples(tmp_path):
    with pytest.raises(ValueError, match=r"has hardly more than \d+ different examples, too few for size=5000"):
        make_short(tmp_path / "out", size=5000, max_length=5, max_depth=2, max_args=2, min_length=0)


RUN = """
if __name__ == "__main__":
    import sys
    from neverscratch.tasks.generation import make
    make("lra-listops", sys.argv[1], 2000, shard_size=25, num_proc=int(sys.argv[2]), progress=False)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return make("lra-listops", tmp_path_factory.mktemp("made") / "whole", 2000, shard_size=25, progress=False)


@pytest.mark.parametrize("num_proc, sent", [(1, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGINT)])
def test_killed_run_goes_on(whole, tmp_path, num_proc, sent):
    script, out = tmp_path / "run.py", tmp_path / "out"
    script.write_text(RUN)
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), str(num_proc)], start_new_session=True, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 120
    while len(list(out.glob("*.arrow"))) < 2:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    assert process.wait(60) != 0
    done = {path.name: path.stat().st_mtime_ns for path in out.glob("*.arrow")}
    assert 2 <= len(done) < 81
    if sent == signal.SIGINT:
        assert not list(out.glob("*.tmp"))
    with pytest.raises(FileNotFoundError, match=r"lacks \d+ of its 81 files.*call the generator again"):
        load_generated(out)

    make("lra-listops", out, 2000, shard_size=25, progress=False)
    assert contents(out) == contents(whole)
    assert all((out / name).stat().st_mtime_ns == changed for name, changed in done.items())


def test_stopped_while_replacing_duplicates(undisturbed, tmp_path, monkeypatch):
    out, write, calls = tmp_path / "out", generation._write_table, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 9:  # seven files, one replacement
            raise KeyboardInterrupt
        write(*arguments)

    monkeypatch.setattr(generation, "_write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        make_short(out)
    with pytest.raises(ValueError, match="is not finished; call the generator again"):
        load_generated(out)
    monkeypatch.undo()
    assert contents(make_short(out)) == contents(undisturbed)
    # A finished one is left alone.
    monkeypatch.setattr(generation, "write_shard", stop)
    make_short(out)


def test_dead_process_is_noticed(undisturbed, tmp_path, monkeypatch):
    import multiprocessing

    @contextmanager
    def kill_one(*arguments):
        class Bar:
            def update(self, number):
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

        yield Bar()

    monkeypatch.setattr(generation, "_bar", kill_one)
    with pytest.raises(RuntimeError, match="has died .* call again, with a smaller num_proc"):
        make_short(tmp_path / "out", num_proc=2, size=20_000, max_length=2000)
    assert not multiprocessing.active_children()


def test_error_in_another_process_is_passed_on(tmp_path):
    # No tree of two levels is that long; each process gives up after 20 million.
    plan = {"size": 200, "min_length": 12, "max_length": 20, "max_depth": 2, "max_args": 10}
    with pytest.raises(ValueError, match=r"none had more than min_length=12 and fewer than max_length=20 tokens"):
        make_short(tmp_path / "out", num_proc=2, **plan)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"size": 600}, r"was made with size=500, but size=600 is asked for; give another folder"),
        ({"seed": 1}, r"was made with seed=0, but seed=1"),
        ({"shard_size": 50}, r"was made with shard_size=100, but shard_size=50"),
        ({"max_length": 11}, r"was made with options=.*'max_length': 10.* but options=.*'max_length': 11"),
    ],
)
def test_other_request_is_refused(undisturbed, changes, sentence):
    before = contents(undisturbed)
    with pytest.raises(ValueError, match=sentence):
        make_short(undisturbed, **changes)
    assert contents(undisturbed) == before


def test_other_task_is_refused(undisturbed):
    with pytest.raises(ValueError, match="was made with task='lra-listops', but task='lra-pathx'"):
        make("lra-pathx", undisturbed, 20)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"name": "lra-pathxx"}, r"There is no generator for 'lra-pathxx'. Did you mean 'lra-pathx'\? Known ones:"),
        ({"size": 0}, r"size=0 is out of range; use a whole number from 1 up"),
        ({"size": 1.5}, r"size=1.5 is out of range"),
        ({"num_proc": 0}, r"num_proc=0 is out of range"),
        ({"shard_size": -1}, r"shard_size=-1 is out of range"),
        ({"seed": -1}, r"seed=-1 is not a seed"),
        (
            {"max_len": 3},
            r"'max_len' is no option of lra-listops. Did you mean 'max_length'\? Its options: min_length,",
        ),
    ],
)
def test_bad_arguments(tmp_path, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**{"name": "lra-listops", "out": tmp_path / "out", "size": 30, **arguments})
    assert not (tmp_path / "out").exists()


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds other files already \(thesis.txt\); give a new folder"):
        make_short(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt"]
    with pytest.raises(ValueError, match="is a file; give a folder"):
        make_short(tmp_path / "thesis.txt")


def test_two_runs_do_not_meet(tmp_path):
    with generation._locked(tmp_path):
        with pytest.raises(ValueError, match="another run is writing into"):
            make_short(tmp_path)


def test_small_disk_is_noticed_first(tmp_path, monkeypatch):
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: _Usage)
    with pytest.raises(OSError, match=r"needs about 3.4 GB, but .* has 1.0 kB free; make room or ask for a smaller"):
        make("lra-pathx", tmp_path / "out")
    with pytest.raises(OSError, match=r"needs about 3.2 MB, but .* has 1.0 kB free"):
        make_short(tmp_path / "out")
    assert not (tmp_path / "out").exists()


class _Usage:
    free = 1000


def test_damaged_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no manifest.json; give a folder that `make` has written"):
        load_generated(tmp_path)
    out = make_short(tmp_path / "out")
    shard = out / "train-00001-of-00005.arrow"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"train-00001-of-00005.arrow is damaged"):
        load_generated(out)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks 1 of its 7 files, the first being train-00001-of-00005.arrow"):
        load_generated(out)
    make_short(out)
    assert shard.read_bytes() == whole and len(load_generated(out)["train"]) == 480

    (out / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not a manifest of generated data"):
        load_generated(out)
    with pytest.raises(ValueError, match="cannot be read; delete"):
        make_short(out)


@pytest.mark.parametrize(("name", "least"), [("lra-listops", 26), ("lra-pathfinder", 20), ("lra-pathx256", 20)])
def test_a_set_too_small_to_be_read_is_refused(tmp_path, name, least):
    for size in (1, 3, 5, least - 1):
        with pytest.raises(ValueError, match=rf"size={size} is too small .*; use {least} or more"):
            make(name, tmp_path / "out", size=size)
    assert not (tmp_path / "out").exists()
    assert generation._plan(name, least, 0, None, {}).size == least


def test_the_smallest_set_can_be_read(tmp_path):
    load_generated(make_short(tmp_path / "out", size=26))
    assert load_task("lra-listops", tmp_path / "out").sizes == {"train": 24, "validation": 1, "test": 1}


def test_empty_split_is_named(tmp_path):
    out = make_short(tmp_path / "out")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["splits"]["validation"] = {"examples": 0, "files": []}
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="has no validation examples; make a larger size than 500"):
        load_generated(out)


def test_a_huge_set_is_refused_before_its_files_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(generation.Plan, "shards", lambda plan: pytest.fail("the files were listed"))
    with pytest.raises(OSError, match=r"lra-pathx with 10000000000000 examples needs about 169,280 TB, but .* free"):
        make("lra-pathx", tmp_path / "out", size=10**13)
    assert not (tmp_path / "out").exists()


def test_the_size_on_disk_is_told_before_the_first_example(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generation, "write_shard", lambda *args: pytest.fail("too late"))
    with pytest.raises(pytest.fail.Exception):
        make_short(tmp_path / "out", progress=True)
    assert "Making 500 examples of lra-listops, about 3.2 MB, in" in capsys.readouterr().err


def test_benchmark_runs(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "generators.py"
    command = [sys.executable, str(script), "--seconds", "0.01", "--only", "lra-listops"]
    run = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, check=True)
    assert "lra-listops" in run.stdout and "3000" in run.stdout
    assert json.loads((tmp_path / "out.json").read_text())["lra-listops"]["per_second"] > 0
