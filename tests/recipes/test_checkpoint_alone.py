"""A run folder and a raw input are all that a prediction needs: no loader, no package of ours, names of labels back.

Each kind of input is trained for two steps, once. One isolated process, where `neverscratch` cannot be imported, then
opens the folders with the lines of their model cards and with `pipeline`, and is held to what the run itself said of
the loader's own rows.
"""

import ast
import csv
import json
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForSequenceClassification

from neverscratch.hub_cards.card import write_card
from neverscratch.recipes.config import load_recipe
from neverscratch.recipes.data import prepare
from neverscratch.recipes.objectives import make_objective
from neverscratch.recipes.study import run_single
from neverscratch.tasks import load_task
from neverscratch.tasks.generation import make

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "d_state": 8}
COUNT = 30

PROBE = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "neverscratch":
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import contextlib, io
import numpy as np, torch
from PIL import Image
from transformers import pipeline
torch.set_num_threads(1)
def read(path):
    return open(path, encoding="utf-8").read()
READERS = {"array": np.load, "image": Image.open, "string": read, "path": str}
report = {}
for name, (folder, kind, path) in json.loads(sys.argv[1]).items():
    example = READERS[kind](path)
    card = open(folder + "/README.md", encoding="utf-8").read()
    printed = io.StringIO()
    names = {"folder": folder, "example": example}
    with contextlib.redirect_stdout(printed):
        exec(card.split("```python")[1].split("```")[0], names)
    task = "text-classification" if kind == "string" else "sequence-classification"
    classify = pipeline(task, model=folder, trust_remote_code=True, device="cpu")
    several = classify([example, example], batch_size=2)
    report[name] = {
        "printed": printed.getvalue().strip(),
        "logits": names["model"](**names["processor"]([example], return_tensors="pt")).logits[0].tolist(),
        "pipeline": classify(example),
        "several": several,
        "modules": [type(names["model"]).__module__, type(names["processor"]).__module__],
    }
print("REPORT" + json.dumps(report))
"""


def own_series(folder: Path) -> dict:
    random = np.random.default_rng(0)
    np.save(folder / "x.npy", random.normal(5.0, 3.0, (COUNT, 20, 2)).astype(np.float32))
    np.save(folder / "y.npy", np.array(["flat", "steep"])[np.arange(COUNT) % 2])
    return {"data": str(folder)}


def own_targets(folder: Path) -> dict:
    random = np.random.default_rng(0)
    np.save(folder / "x.npy", random.normal(size=(COUNT, 20)).astype(np.float32))
    np.save(folder / "y.npy", 1000 + 50 * random.normal(size=COUNT))
    return {"data": str(folder)}


def own_texts(folder: Path, unit: str = "bytes") -> dict:
    rows = [{"text": f"Ein Bär, {number} mal <pad> {'süß' * (number % 5)}", "label": "ja" if number % 2 else "nein"}
            for number in range(COUNT)]  # fmt: skip
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"data": str(folder / "texts.jsonl"), "unit": unit}


def own_several(folder: Path) -> dict:
    # One label that nearly every text has, so that even two steps name one.
    rows = [{"text": f"Text {number}", "label": ["often", "a", "b"][: 1 + number % 3]} for number in range(COUNT)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"data": str(folder / "texts.jsonl")}


def own_characters(folder: Path) -> dict:
    return own_texts(folder, "characters")


def listops(folder: Path) -> dict:
    make("lra-listops", folder / "made", size=8 * COUNT, min_length=5, max_length=40)
    return {"data_dir": str(folder / "made")}


def own_pictures(folder: Path, shape: tuple[int, ...] = (6, 5, 3)) -> dict:
    random = np.random.default_rng(0)
    for number in range(COUNT):
        place = folder / ("day" if number % 2 else "night")
        place.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, shape).astype(np.uint8)).save(place / f"{number}.png")
    return {"data": str(folder)}


def own_sounds(folder: Path) -> dict:
    random = np.random.default_rng(0)
    for number in range(COUNT):
        place = folder / ("bark" if number % 2 else "meow")
        place.mkdir(exist_ok=True)
        with wave.open(str(place / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(random.integers(-(2**14), 2**14, 40 + number).astype("<i2").tobytes())
    return {"data": str(folder)}


def shipped(folder: Path) -> dict:
    return {}


# Name -> task, how its data are made, and as what an example is handed in.
CASES = {
    "shipped series": ("gunpoint", shipped, "array"),
    "series of two channels": ("own", own_series, "array"),
    "targets": ("own", own_targets, "array"),
    "bytes": ("own", own_texts, "string"),
    "several labels": ("own", own_several, "string"),
    "characters": ("own", own_characters, "string"),
    "symbols": ("lra-listops", listops, "string"),
    "levels": ("digits", shipped, "image"),
    "pictures": ("own", own_pictures, "image"),
    "sounds": ("own", own_sounds, "path"),
}


def write_example(value, modality: str, kind: str, path: Path) -> Path:
    """A raw input as a user has it."""
    if kind == "array":
        path = path.with_suffix(".npy")
        np.save(path, value)
    elif kind == "image":
        path = path.with_suffix(".png")
        Image.fromarray(np.asarray(value).astype(np.uint8)).save(path)
    elif kind == "string":
        path.write_text(" ".join(value) if modality == "tokens" else value, encoding="utf-8", newline="")
    else:
        path = path.with_suffix(".wav")
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            # The loader hands out real values between -1 and 1.
            file.writeframes(np.rint(np.asarray(value) * 2**15).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of each case what the run says of its first test example, and what the isolated process says."""
    root = tmp_path_factory.mktemp("alone")
    expected, asked = {}, {}
    for name, (task_name, make_data, kind) in CASES.items():
        place = root / name.replace(" ", "-")
        (place / "data").mkdir(parents=True)
        options = make_data(place / "data")
        words = [f"task_options.{key}={json.dumps(value)}" for key, value in options.items()]
        words += [f"models.s4d.config.{key}={value}" for key, value in TINY.items()]
        recipe = load_recipe(task_name, [*words, "finetune.max_steps=2"])
        run_single(recipe, "s4d", "finetune", 0, None, place / "run")
        write_card(place / "run")
        task = load_task(recipe.task, **options)
        row = prepare(recipe.task, options, None, 0, place / "run").splits["test"][0]
        batch = make_objective("classification", 0)([row])
        del batch["labels"]
        model = AutoModelForSequenceClassification.from_pretrained(place / "run").eval()
        with open(place / "run" / "predictions.csv", encoding="utf-8", newline="") as file:
            prediction = next(csv.DictReader(file))
        assert int(prediction["example_id"]) == row["example_id"]
        with torch.no_grad():
            logits = model(**batch).logits[0].tolist()
        found = {"logits": logits, "prediction": prediction["prediction"], "problem": task.spec.problem_type}
        expected[name] = found | {"labels": task.spec.labels}
        value = task.splits["test"][0][task.spec.modality]
        example = write_example(value, task.spec.modality, kind, place / "example")
        asked[name] = (str(place / "run"), kind, str(example))
    # `-I`: no path of ours, no settings of the user.
    probe = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, json.dumps(asked)],
        cwd=tmp_path_factory.mktemp("empty"), capture_output=True, text=True,
    )  # fmt: skip
    assert probe.returncode == 0, probe.stderr[-4000:]
    return expected, json.loads(probe.stdout.split("REPORT")[1])


@pytest.mark.parametrize("name", list(CASES))
def test_a_raw_input_gets_the_prediction_of_the_run(report, name):
    expected, seen = (found[name] for found in report)
    assert seen["modules"][0].startswith("transformers_modules.") and "neverscratch" not in seen["modules"][1]
    assert seen["logits"] == pytest.approx(expected["logits"], rel=1e-5, abs=1e-5)
    if expected["problem"] == "regression":
        assert float(seen["printed"]) == pytest.approx(float(expected["prediction"]), rel=1e-5)
        assert 500 < float(seen["printed"]) < 1500
    elif expected["problem"] == "multi_label_classification":
        assert ";".join(ast.literal_eval(seen["printed"])) == expected["prediction"]
        assert "often" in expected["prediction"]
    else:
        assert seen["printed"] == expected["prediction"] and seen["printed"] in expected["labels"]


@pytest.mark.parametrize("name", list(CASES))
def test_the_pipeline_says_the_same(report, name):
    expected, seen = (found[name] for found in report)
    found = seen["pipeline"][0] if isinstance(seen["pipeline"], list) else seen["pipeline"]
    if expected["problem"] == "regression":
        score = float(expected["prediction"])
    elif expected["problem"] == "multi_label_classification":
        score = float(torch.tensor(expected["logits"]).sigmoid().max())
    else:
        assert found["label"] == expected["prediction"]
        score = float(torch.tensor(expected["logits"]).softmax(-1).max())
    for one in (found, *seen["several"]):
        assert one["label"] == found["label"] and one["score"] == pytest.approx(score, rel=1e-5)
