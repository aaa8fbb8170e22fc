"""How errors are told at the command line."""

import errno
import shutil

import pytest

from neverscratch.recipes.errors import as_flags, os_sentence, unknown_name


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("data_dir='/a/b' is not a folder", "--data-dir '/a/b' is not a folder"),
        ("Give data_dir, the folder", "Give --data-dir, the folder"),
        ("Did you mean 'data_dir'?", "Did you mean '--data-dir'?"),
        ("with a smaller num_proc.", "with a smaller --num-proc."),
        ("name it in the option label.", "name it in --label."),
        ("choose one in the option format.", "choose one in --option format=..."),
        ("set missing=interpolate, zero or trim", "set --option missing=interpolate, zero or trim"),
        ("same request (size=50, seed=3).", "same request (--size 50, --seed 3)."),
        # What only looks like a name stays.
        ("/data_dir/x is empty", "/data_dir/x is empty"),
        ("see data_dir/x and x/data_dir", "see data_dir/x and x/data_dir"),
        ("--set task_options.data_dir=3", "--set task_options.data_dir=3"),
        ("--set train_size=0: greater", "--set train_size=0: greater"),
        ("tiny.yaml: train_size: greater than 0", "tiny.yaml: train_size: greater than 0"),
        ("--option format=x is unknown", "--option format=x is unknown"),
        ("d_state=7 is odd; unit=1 and the option foo", "d_state=7 is odd; unit=1 and the option foo"),
        ("a label and its data", "a label and its data"),
    ],
)
def test_names_become_the_flags_that_people_type(message, told):
    assert as_flags(message, ["format", "missing", "label"]) == told


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("lr", "Did you mean 'learning_rate'?"),
        ("batch_size", "Did you mean 'per_device_eval_batch_size' or 'per_device_train_batch_size'?"),
        ("weight", "Did you mean 'weight_decay'?"),
        ("lerning_rate", "Did you mean 'learning_rate'?"),
        # Too many have this word in them: the nearest alone.
        ("steps", "Did you mean 'max_steps'?"),
        ("xyzzy", None),
    ],
)
def test_short_forms_find_the_whole_name(given, hint):
    known = ["learning_rate", "lr_scheduler_type", "max_steps", "eval_steps", "save_steps", "logging_steps"]
    known += ["per_device_train_batch_size", "per_device_eval_batch_size", "weight_decay"]
    told = unknown_name("training argument", given, known)
    assert told.startswith(f"Unknown training argument '{given}'. {hint or 'Known:'}")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError("Missing in x: a.csv."), "Missing in x: a.csv."),
        (OSError("needs 3 GB"), "needs 3 GB."),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "Permission denied: a/b."),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device."),
        (shutil.Error([("a", "b", "[Errno 28] No space left")]), "[Errno 28] No space left."),
    ],
)
def test_what_the_system_says_is_one_sentence(error, told):
    assert os_sentence(error) == told
