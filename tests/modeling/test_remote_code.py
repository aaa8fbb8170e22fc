"""A saved folder opens from its own code, where this package does not exist."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import Case, result
from safetensors.torch import save_file

import neverscratch.modeling
from neverscratch.modeling import FAMILIES, HEADS, LongSequenceFeatureExtractor

FOLDER = Path(neverscratch.modeling.__file__).parent

# Runs in an isolated interpreter: opens each folder and compares, then opens a pretrained one as a classifier.
PROBE = """
import importlib.util, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "neverscratch":
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import torch, transformers
from safetensors.torch import load_file
torch.set_num_threads(1)
report = {}
for folder, auto, pretrained in json.loads(sys.argv[1]):
    Auto = getattr(transformers, auto)
    model = Auto.from_pretrained(folder, trust_remote_code=True).eval()
    expected = load_file(folder + "/expected.bin")
    got = expected.pop("result")
    outputs = model(**expected)
    same = torch.equal(outputs.logits if "logits" in outputs else outputs.last_hidden_state, got)
    model.save_pretrained(folder + "/again")
    again = Auto.from_pretrained(folder + "/again", trust_remote_code=True)
    same_again = all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    report[folder] = {"same": same, "again": same_again, "module": type(model).__module__}
    if pretrained:
        classifier, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=True, num_labels=5, output_loading_info=True
        )
        report[folder]["missing"] = sorted(info["missing_keys"])
    if auto == "AutoModelForSequenceClassification" and "input_values" in expected:
        pipe = transformers.pipeline(model=folder, trust_remote_code=True)
        report[folder]["pipeline"] = [found["label"] for found in pipe(list(expected["input_values"].numpy()))]
print("REPORT" + json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Save every head of every family, open all of them in one isolated process, and return what it saw."""
    root, folders = tmp_path_factory.mktemp("remote"), []
    for family in FAMILIES:
        for auto in HEADS:
            kinds = {"AutoModelForPreTraining": ["values"], "AutoModelForSequenceClassification": ["tokens", "values"]}
            for kind in kinds.get(auto, ["tokens"]):
                case = Case(family, auto, kind, auto != "AutoModelForCausalLM")
                model, inputs = case.model(), case.inputs()
                inputs.pop("labels", None)
                # A dot and a hyphen in the name, as model names have them.
                folder = root / f"{family}.v1-{auto}-{kind}"
                model.save_pretrained(folder)
                if kind == "values":
                    values = inputs["input_values"].numpy()
                    LongSequenceFeatureExtractor(num_channels=values.shape[-1]).save_pretrained(folder)
                with torch.no_grad():
                    save_file({**inputs, "result": result(model(**inputs))}, folder / "expected.bin")
                folders.append((str(folder), auto, auto == "AutoModelForPreTraining"))
    empty = tmp_path_factory.mktemp("empty")
    probe = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, json.dumps(folders)], cwd=empty, capture_output=True, text=True
    )
    assert probe.returncode == 0, probe.stderr[-4000:]
    return json.loads(probe.stdout.split("REPORT")[1])


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("auto", list(HEADS))
def test_logits_are_the_same_without_our_package(report, family, auto):
    found = [seen for folder, seen in report.items() if Path(folder).name.startswith(f"{family}.v1-{auto}-")]
    assert found
    for seen in found:
        assert seen["module"].startswith("transformers_modules.")
        assert seen["same"] and seen["again"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_pretrained_folder_opens_as_a_classifier_with_only_the_head_new(report, family):
    seen = next(seen for folder, seen in report.items() if f"{family}.v1-AutoModelForPreTraining" in folder)
    assert seen["missing"] == ["classifier.bias", "classifier.weight"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_pipeline_travels_with_the_classifier(report, family):
    case = Case(family, "AutoModelForSequenceClassification", "values", True)
    seen = next(s for f, s in report.items() if f"{family}.v1-AutoModelForSequenceClassification-values" in f)
    best = case.model()(input_values=case.inputs()["input_values"]).logits.argmax(-1)
    assert seen["pipeline"] == [f"LABEL_{int(index)}" for index in best]


def test_each_modeling_file_names_files_that_exist():
    """transformers collects the code by pattern, in text and docstrings too, so each name must be a sibling."""
    from transformers.dynamic_module_utils import get_relative_import_files

    for path in FOLDER.glob("*.py"):
        if path.name != "__init__.py":
            assert all(Path(found).is_file() for found in get_relative_import_files(str(path))), path.name


def test_config_and_model_files_define_what_the_auto_map_promises():
    for config_class in FAMILIES.values():
        for reference in config_class.remote_code_map().values():
            module, _, name = reference.partition(".")
            tree = ast.parse((FOLDER / f"{module}.py").read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
