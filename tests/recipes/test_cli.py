import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import resources

import pytest
import torch
import yaml
from filelock import FileLock
from safetensors.torch import load_file
from tiny_recipe import RAW
from transformers import AutoModelForSequenceClassification

from neverscratch.modeling import AUTO_CLASSES, FAMILIES
from neverscratch.recipes.cli import main


def call(*arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["neverscratch", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(RAW))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "digist"], "Did you mean 'digits'"),
        (["compare", "digits", "--models", "s4dd"], "Unknown model 's4dd'. Did you mean 's4d'"),
        (["compare", "digits", "--arms", "scratch,stp"], "Unknown arm 'stp'. Did you mean 'spt'"),
        (["compare", "digits", "--arms", ","], "--arms is empty"),
        (["compare", "digits", "--set", "finetune.lerning_rate=1"], "Did you mean 'learning_rate'"),
        (["compare", "digits", "--set", "nonsense"], "not of the form"),
        (["pretrain", "digits", "--model", "s4dd", "--out", "x"], "Did you mean 's4d'"),
        (["finetune", "digits", "--from", "scratch", "--out", "x"], "--from scratch needs --model"),
        (["finetune", "digits", "--from", "./nowhere", "--out", "x"], "is no folder and no Hub id"),
        (["finetune", "digits", "--from", ".", "--out", "x"], "holds no config.json"),
        (["compare", "digits", "--set", "task=digist", "--dry-run"], "Did you mean 'digits'"),
        (
            ["compare", "digits", "--set", "task_options.data_dirr=x"],
            "has no option 'data_dirr'. Did you mean '--data-dir'",
        ),
        (["compare", "digits", "--set", "task_options.train_size=3"], "set --train-size instead"),
        (["compare", "digits", "--set", "finetune.ignore_data_skip=true"], "decided by the study"),
        (["compare", "digits", "--set", "models.s4d.overrides.finetune.max_steps=3"], "part of the budget"),
        (["list", "modles"], "Did you mean 'models'"),
    ],
)
def test_wrong_names_are_refused_before_any_data_is_loaded(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("neverscratch.tasks.load_task", lambda *args, **kwargs: pytest.fail("data were loaded"))
    assert call(*arguments, monkeypatch=monkeypatch) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error and error.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["compare", "--seeds", "0"], ["compare", "--bogus"], ["bogus"]])
def test_wrong_usage_exits_with_two(arguments, monkeypatch):
    assert call(*arguments, monkeypatch=monkeypatch) == 2


@pytest.mark.parametrize("what", ["models", "recipes", "tasks"])
def test_list(what, monkeypatch, capsys):
    assert call("list", what, monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert {"models": "s4d", "recipes": "gunpoint", "tasks": "digits"}[what] in shown


def test_the_full_name_of_a_task_finds_its_recipe(monkeypatch, capsys):
    assert call("compare", "ucr:GunPoint", "--dry-run", monkeypatch=monkeypatch) == 0
    assert "400 + 600 steps" in capsys.readouterr().out


def test_a_dry_run_shows_steps_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert call("compare", "digits", "--models", "s4d", "--dry-run", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "800 + 1500 steps" in shown and "2300 steps" in shown and "transformer" not in shown
    assert not any(tmp_path.iterdir())


def test_a_dry_run_refuses_what_the_run_refuses(recipe_file, monkeypatch, capsys, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").touch()
    for arguments, message in (
        (["--train-size", 99999], "--train-size 99999 is more than the 1257 training examples"),
        (["--set", "objective=masked_values"], "objective masked_values does not fit task digits"),
        (["--set", "finetune.lr_scheduler_type=nonsense"], "nonsense"),
        (["--out", full], "is not empty and holds no comparison"),
    ):
        told = []
        for dry in ([], ["--dry-run"]):
            given = ["--out", tmp_path / "out", *arguments, *dry]
            assert call("compare", recipe_file, *given, monkeypatch=monkeypatch) == 1
            told.append(capsys.readouterr().err)
        assert message in told[0] and told[0] == told[1]
    assert not (tmp_path / "out").exists()


def test_default_models_are_compared_unless_told_otherwise(tmp_path, monkeypatch, capsys):
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({**RAW, "default_models": ["s4d"]}))
    for arguments, shown in (([], {"s4d"}), (["--models", "all"], {"s4d", "transformer"})):
        assert call("compare", path, "--dry-run", *arguments, monkeypatch=monkeypatch) == 0
        assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == shown
    path.write_text(yaml.safe_dump({**RAW, "default_models": ["s4dd"]}))
    assert call("compare", path, "--dry-run", monkeypatch=monkeypatch) == 1
    assert "default_models: Unknown model 's4dd'. Did you mean 's4d'" in capsys.readouterr().err


def test_show_lists_each_parameter_with_its_rate_and_decay(recipe_file, monkeypatch, capsys):
    arguments = ["show", recipe_file, "--model", "s4d", "--set", "finetune.weight_decay=0.05"]
    assert call(*arguments, monkeypatch=monkeypatch) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("S4DForSequenceClassification: ") and "finetune on digits" in head
    rows = {row.split()[-1]: row.split()[:4] for row in rows}
    assert rows["model.layers.0.mixer.log_dt"] == ["ssm", "0.001", "0", "yes"]
    assert rows["classifier.weight"] == ["decay", "0.01", "0.05", "yes"]
    assert rows["classifier.bias"] == ["no_decay", "0.01", "0", "yes"]
    assert call("show", recipe_file, "--model", "s4d", "--stage", "tune", monkeypatch=monkeypatch) == 1
    assert "Unknown stage 'tune'" in capsys.readouterr().err


def test_pretrain_then_finetune_needs_only_the_folder(recipe_file, tmp_path, monkeypatch, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert call("pretrain", recipe_file, "--model", "s4d", "--out", first, monkeypatch=monkeypatch) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "first"}
    assert call("finetune", recipe_file, "--from", first, "--out", second, monkeypatch=monkeypatch) == 0
    assert "accuracy" in capsys.readouterr().out
    model = AutoModelForSequenceClassification.from_pretrained(second)
    assert model.config.model_type == "neverscratch_s4d"
    record = json.loads((second / "run.json").read_text())
    assert record["arm"] == "finetune" and record["checkpoint"] == str(first)
    assert [stage["name"] for stage in record["stages"]] == ["pretrain", "finetune"]
    assert (second / "README.md").is_file()
    assert call("finetune", recipe_file, "--from", first, "--out", second, monkeypatch=monkeypatch) == 1
    assert "exists already" in capsys.readouterr().err
    wrong = ["finetune", recipe_file, "--from", first, "--model", "transformer", "--out", tmp_path / "third"]
    assert call(*wrong, monkeypatch=monkeypatch) == 1
    assert "holds a s4d" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", "half", "model.safetensors is not a whole file of weights"),
        ("model.safetensors", b"", "model.safetensors is not a whole file of weights"),
        ("model.safetensors", None, "holds no model.safetensors"),
        ("model.safetensors.index.json", b'{"weight_map": {"x": "model-1.safetensors"}}', "no model-1.safetensors"),
        ("config.json", b"{ no", "config.json is empty, cut off or no JSON object"),
        ("config.json", b"\xff\xfe", "config.json is empty, cut off or no JSON object"),
        ("config.json", b"[1]", "config.json is empty, cut off or no JSON object"),
        ("config.json", b"{}", "holds a model of type None"),
        ("config.json", b'{"model_type": "neverscratch_s9"}', "holds a model of type 'neverscratch_s9'"),
        (
            "config.json",
            b'{"model_type": "neverscratch_s4d", "vocab_size": 9, "d_state": 7}',
            "d_state=7 is not a positive even",
        ),
        ("run.json", b"{", "run.json is empty, cut off or no JSON object"),
        ("run.json", b'{"stages": 3, "seeds": {}}', "run.json does not say which stages"),
        ("preprocessor_config.json", b"", "preprocessor_config.json is empty, cut off"),
        ("preprocessor_config.json", None, "holds no preprocessor_config.json and no tokenizer.json"),
        ("preprocessor_config.json", b'{"modality": "values"}', "reads series of values, but digits holds images"),
        (
            "preprocessor_config.json",
            b'{"modality": "image", "image_shape": [9, 9]}',
            "images of 9 x 9, but digits holds images of 64",
        ),
    ],
)
def test_a_broken_checkpoint_is_refused_in_one_sentence(
    file, content, message, recipe_file, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "first"
    config = FAMILIES["s4d"](vocab_size=20, hidden_size=16, num_hidden_layers=1, d_state=8)
    AUTO_CLASSES["AutoModelForMaskedLM"].from_config(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"modality": "image", "image_shape": [8, 8]}')
    (folder / "run.json").write_text('{"stages": [], "seeds": {}}')
    path = folder / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-100] if content == "half" else content)
    arguments = ["finetune", recipe_file, "--from", folder, "--out", tmp_path / "second"]
    assert call(*arguments, monkeypatch=monkeypatch) == 1
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert message in error
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "first"}


@pytest.mark.parametrize("command", ["compare", "pretrain", "finetune"])
@pytest.mark.parametrize("out", ["/proc/runs", "closed/runs", "file/runs"])
def test_a_folder_that_cannot_be_written_is_refused_first(command, out, recipe_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("neverscratch.recipes.data.load_task", lambda *args, **kwargs: pytest.fail("data were loaded"))
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    if out.startswith("closed"):
        # Permission bits do not stop an administrator, as whom tests may run.
        closed = PermissionError(errno.EACCES, "Permission denied", "closed/x")
        monkeypatch.setattr("tempfile.mkdtemp", lambda *args, **kwargs: (_ for _ in ()).throw(closed))
    model = {"compare": [], "pretrain": ["--model", "s4d"], "finetune": ["--from", "scratch", "--model", "s4d"]}[
        command
    ]
    assert call(command, recipe_file, *model, "--out", out, monkeypatch=monkeypatch) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {out} ") and error.endswith(
        ("; give another folder.", "is a file; give a folder.")
    )
    assert "Errno" not in error and sorted(p.name for p in tmp_path.iterdir()) == ["closed", "file", "tiny.yaml"]


def test_compare_writes_the_page_and_the_table(recipe_file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "runs"
    arguments = ["compare", recipe_file, "--seeds", 2, "--models", "s4d", "--out", out]
    assert call(*arguments, monkeypatch=monkeypatch) == 0
    assert "report.html" in capsys.readouterr().out
    assert {"report.html", "report.md", "results.csv", "figures", "study.json", "baselines.json"} <= set(
        os.listdir(out)
    )
    lines = (out / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3
    page = (out / "report.html").read_text()
    before = (out / "results.csv").read_bytes()
    assert call("report", out, monkeypatch=monkeypatch) == 0
    assert (out / "results.csv").read_bytes() == before
    assert "s4d" in page and "logistic regression" in page
    for run in out.glob("s4d/*/seed-*"):
        assert (run / "README.md").is_file()
    # A folder that another process works in is left alone, its page included.
    (out / "report.md").unlink()
    with FileLock(out / ".lock"):
        assert call(*arguments, monkeypatch=monkeypatch) == 1
    assert "Another process is working in" in capsys.readouterr().err and not (out / "report.md").exists()
    assert call(*arguments, monkeypatch=monkeypatch) == 0 and (out / "report.md").is_file()


# A terminal sends Ctrl-C to the whole group, workers included; a scheduler asks the process it knows to end.
@pytest.mark.parametrize(("sent", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)])
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_stopped_comparison_says_how_to_go_on_and_nothing_else(sent, send, moment, recipe_file, tmp_path):
    out = tmp_path / "runs"
    command = [sys.executable, "-m", "neverscratch.recipes.cli", "compare", str(recipe_file), "--out", str(out)]
    child = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell lets its background jobs ignore the signal, and the tests may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    # Workers start once the baselines are written, and are still at their imports shortly after.
    sign = {"starting": "baselines.json", "training": "stages/*/stage.json"}[moment]
    while not any(out.glob(sign)) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5 if moment == "starting" else 0)
    send(child.pid, sent)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 128 + sent
    lines = [line for line in error.splitlines() if line and not re.match(r"  \w+ +\S+ +seed|\d+%| *\d+% ", line)]
    assert lines == ["Stopped. Finished stages are kept; the same command goes on from there."]
    if moment == "starting":
        return
    assert any((out / "stages").glob("*/stage.json")) or any(out.glob("*/*/seed-0/run.json"))
    for stage in (out / "stages").glob("*"):
        assert stage.name.startswith(".") or stage.suffix == ".tmp" or (stage / "model.safetensors").is_file()


def test_report_refuses_a_folder_without_a_study(tmp_path, monkeypatch, capsys):
    assert call("report", tmp_path, monkeypatch=monkeypatch) == 1
    assert str(tmp_path) in capsys.readouterr().err


def launch(processes, *words):
    """`accelerate launch --cpu` silently starts one process: torchrun starts as many as asked."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    command += ["-m", "neverscratch.recipes.train", *map(str, words)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_two_processes_train_the_model_of_one(recipe_file, tmp_path, stage):
    source = ["--from", "scratch"] if stage == "finetune" else []
    # 48 examples are three steps of 16, or of two times 8: the same examples in every step.
    words = [stage, recipe_file, "--model", "s4d", "--train-size", 48, *source]
    launch(2, *words, "--out", tmp_path / "two", "--set", f"{stage}.per_device_train_batch_size=8")
    launch(1, *words, "--out", tmp_path / "one")
    record = json.loads((tmp_path / "two" / "run.json").read_text())["stages"][0]
    assert record["world_size"] == 2 and record["batch_size"] == 16
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(
            two[name], tensor, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    if stage == "finetune":
        ids = [
            [row.split(",")[0] for row in (tmp_path / name / "predictions.csv").read_text().splitlines()[1:]]
            for name in ("one", "two")
        ]
        assert ids[0] == ids[1] and len(set(ids[1])) == 360


def test_the_shipped_launcher_settings_start_two_processes():
    path = resources.files("neverscratch.recipes") / "accelerate" / "two_cpu_processes.yaml"
    settings = yaml.safe_load(path.read_text())
    assert settings["num_processes"] == 2 and settings["use_cpu"] and settings["distributed_type"] == "MULTI_GPU"
