import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_recipe import RAW
from transformers import AutoModel, AutoModelForSequenceClassification

from neverscratch.recipes import train
from neverscratch.recipes.config import parse_recipe
from neverscratch.recipes.train import run, stage_key, stage_spec
from neverscratch.recipes.trainer import WHOLE


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_equal_weights(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def spec_for(raw, objective, model, **arguments):
    """A pretraining stage of one of the four objectives on tokens (digits) or values (GunPoint)."""
    causal = objective.startswith("next")
    raw.update(objective=objective, mask_ratio=None if causal else 0.5)
    if objective.endswith(("value", "values")):
        raw.update(task="gunpoint", train_size=None)
        raw["models"]["transformer"]["config"]["max_position_embeddings"] = 150
    for entry in raw["models"].values():
        entry["config"]["bidirectional"] = not causal
    raw["pretrain"].update(arguments)
    recipe = parse_recipe(raw, "test")
    return stage_spec(recipe, model, "pretrain", 0, recipe.pretrain.max_steps)


@pytest.mark.parametrize("model", ["transformer", "s4d"])
@pytest.mark.parametrize("objective", ["masked_tokens", "next_token", "masked_values", "next_value"])
def test_a_killed_and_resumed_stage_equals_an_undisturbed_one(raw_recipe, tmp_path, objective, model):
    # Forty examples in batches of 16 make three steps an epoch: step 4 is in the middle of the second.
    spec = spec_for(raw_recipe, objective, model, save_strategy="steps", save_steps=4, max_steps=10, logging_steps=2)

    class Killed(Exception):
        pass

    def kill(step):
        raise Killed

    straight = run(spec, tmp_path / "straight")
    with pytest.raises(Killed):
        run(spec, tmp_path / "resumed", progress=kill)
    assert not (tmp_path / "resumed" / stage_key(spec)).exists()
    checkpoints = tmp_path / "resumed" / f"{stage_key(spec)}.tmp" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-4", "checkpoint-8"]
    # As if the process had died while it wrote the second checkpoint.
    (checkpoints / "checkpoint-8" / WHOLE).unlink()
    (checkpoints / "checkpoint-8" / "optimizer.pt").unlink()
    resumed = run(spec, tmp_path / "resumed")
    records = [json.loads((folder / "stage.json").read_text()) for folder in (straight, resumed)]
    for record in records:
        del record["seconds"], record["seconds_total"]
    assert records[0] == records[1]
    assert_equal_weights(straight, resumed)
    assert (straight / "log.jsonl").read_text() == (resumed / "log.jsonl").read_text()
    assert not (resumed / "checkpoints").exists()


def test_a_worker_that_has_run_other_stages_equals_a_fresh_process(recipe, tmp_path):
    spec = stage_spec(recipe, "s4d", "finetune", 0, 6)
    other = stage_spec(recipe, "transformer", "finetune", 3, 3)
    run(other, tmp_path / "here")
    torch.rand(17)
    here = run(spec, tmp_path / "here")
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    code = (
        "import json, sys; from neverscratch.recipes.train import run; "
        f"run(json.load(open({str(tmp_path / 'spec.json')!r})), {str(tmp_path / 'fresh')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    fresh = tmp_path / "fresh" / stage_key(spec)
    assert_equal_weights(here, fresh)
    assert (here / "predictions.csv").read_text() == (fresh / "predictions.csv").read_text()


def test_another_seed_changes_head_order_masks_and_subset(recipe):
    first, second = (stage_spec(recipe, "s4d", "finetune", seed, 6)["seeds"] for seed in (0, 1))
    assert all(first[purpose] != second[purpose] for purpose in ("init", "order", "mask", "split"))


def test_the_key_depends_on_every_input_but_not_on_unused_ones(recipe, raw_recipe):
    base = stage_spec(recipe, "s4d", "finetune", 0, 6)
    raw_recipe["finetune"]["weight_decay"] = 0.1
    raw_recipe["models"]["transformer"]["config"]["hidden_size"] = 32
    changed = stage_spec(parse_recipe(raw_recipe, "x"), "s4d", "finetune", 0, 6)
    assert stage_key(base) != stage_key(changed)
    assert stage_key(base) != stage_key(stage_spec(recipe, "s4d", "finetune", 0, 7))
    assert stage_key(base) == stage_key(stage_spec(recipe, "s4d", "finetune", 0, 6))
    raw_recipe["finetune"].pop("weight_decay")
    assert stage_key(base) == stage_key(stage_spec(parse_recipe(raw_recipe, "x"), "s4d", "finetune", 0, 6))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A pretraining stage and the fine-tuning that starts from it, for both families."""
    recipe = parse_recipe(RAW, "tiny")
    stages = tmp_path_factory.mktemp("stages")
    folders = {}
    for model in recipe.models:
        first = stage_spec(recipe, model, "pretrain", 0, 8)
        second = stage_spec(recipe, model, "finetune", 0, 6, stage_key(first))
        folders[model] = (run(first, stages), run(second, stages), first, second)
    return folders


@pytest.mark.parametrize("model", ["transformer", "s4d"])
def test_arms_share_their_start_and_only_the_backbone_is_transferred(pretrained, model):
    folder, _, first, second = pretrained[model]
    data = train.prepare("digits", {}, 40, second["seeds"]["split"])
    fresh = train.build_model(first, data, None)
    scratch = train.build_model({**second, "source": None}, data, None)
    warm = train.build_model(second, data, folder)
    for name, tensor in scratch.model.state_dict().items():
        assert torch.equal(tensor, fresh.model.state_dict()[name]), name
    for name, tensor in AutoModel.from_pretrained(folder).state_dict().items():
        assert torch.equal(tensor, warm.model.state_dict()[name]), name
    for name, tensor in scratch.classifier.state_dict().items():
        assert torch.equal(tensor, warm.classifier.state_dict()[name]), name


@pytest.mark.parametrize("model", ["transformer", "s4d"])
def test_a_pretrained_stage_opens_as_a_classifier_with_only_the_head_new(pretrained, model):
    folder = pretrained[model][0]
    _, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert set(info["unexpected_keys"]) == {"lm_head.weight", "lm_head.bias"}


def test_transfer_refuses_another_architecture(pretrained, raw_recipe):
    raw_recipe["models"]["s4d"]["config"]["num_hidden_layers"] = 2
    spec = stage_spec(parse_recipe(raw_recipe, "x"), "s4d", "finetune", 0, 6)
    data = train.prepare("digits", {}, 40, spec["seeds"]["split"])
    model = train.build_model(spec, data, None)
    with pytest.raises(ValueError, match="does not fit this model: .* tensors differ"):
        train.transfer_backbone(model, pretrained["s4d"][0])
    with pytest.raises(ValueError, match="holds a neverscratch_transformer"):
        train.transfer_backbone(model, pretrained["transformer"][0])


def test_predictions_hold_every_test_example_once_in_original_labels(pretrained):
    _, folder, _, spec = pretrained["s4d"]
    rows = [line.split(",") for line in (folder / "predictions.csv").read_text().splitlines()]
    assert rows[0] == ["example_id", "label", "prediction"]
    data = train.prepare("digits", {}, 40, spec["seeds"]["split"])
    assert [int(row[0]) for row in rows[1:]] == list(data.splits["test"]["example_id"])
    assert {row[1] for row in rows[1:]} == set(data.spec.labels)
    accuracy = np.mean([label == prediction for _, label, prediction in rows[1:]])
    assert json.loads((folder / "stage.json").read_text())["scores"]["test"]["accuracy"] == pytest.approx(accuracy)


def test_selecting_the_best_step_keeps_its_weights_and_says_so(raw_recipe, tmp_path):
    raw_recipe.update(select="best")
    raw_recipe["finetune"].update(max_steps=20, learning_rate=3.0e-2)
    spec = stage_spec(parse_recipe(raw_recipe, "x"), "s4d", "finetune", 0, 20)
    folder = run(spec, tmp_path)
    scores = json.loads((folder / "stage.json").read_text())["scores"]
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    curve = {entry["step"]: entry["eval_accuracy"] for entry in log if "eval_accuracy" in entry}
    assert curve[scores["selected_step"]] == max(curve.values()) == scores["validation"]["accuracy"]


def test_no_test_input_reaches_training(recipe, tmp_path, monkeypatch):
    """The test split is replaced by noise: weights, statistics and pretraining must not notice."""
    spec = stage_spec(recipe, "s4d", "pretrain", 0, 4)
    clean = run(spec, tmp_path / "clean")
    load = train.prepare.__globals__["load_task"]

    def with_planted_test(*args, **kwargs):
        task = load(*args, **kwargs)
        task.splits["test"] = task.splits["test"].map(lambda row: {"image": np.full((8, 8), 16, dtype=np.uint8)})
        return task

    monkeypatch.setitem(train.prepare.__globals__, "load_task", with_planted_test)
    planted = run(spec, tmp_path / "planted")
    assert_equal_weights(clean, planted)
    assert (clean / "preprocessor_config.json").read_text() == (planted / "preprocessor_config.json").read_text()


def test_a_loss_that_is_not_finite_stops_with_step_and_parameter(raw_recipe, tmp_path):
    raw_recipe["finetune"].update(learning_rate=1.0e38, lr_scheduler_type="constant", warmup_steps=0)
    spec = stage_spec(parse_recipe(raw_recipe, "x"), "transformer", "finetune", 0, 12)
    with pytest.raises(ValueError, match=r"Step \d+: the (training loss|gradient)"):
        run(spec, tmp_path)
    assert not (tmp_path / stage_key(spec)).exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_what_the_last_step_leaves_must_be_finite(raw_recipe, tmp_path):
    raw_recipe["finetune"].update(learning_rate=1.0e39, lr_scheduler_type="constant", warmup_steps=0, max_steps=1)
    spec = stage_spec(parse_recipe(raw_recipe, "x"), "s4d", "finetune", 0, 1)
    with pytest.raises(ValueError, match="After the last step .* is not finite"):
        run(spec, tmp_path)
    assert not (tmp_path / stage_key(spec)).exists()


def test_still_improving_looks_at_the_last_two_tenths():
    falling = [1.0 * 0.9**step for step in range(100)]
    assert train._still_improving(falling, 0.9)
    assert not train._still_improving(falling, 1.0)
    assert not train._still_improving([1.0] * 100, 0.9)
    assert not train._still_improving([1.0], 0.9)


def test_the_scale_of_a_regression_does_not_reach_the_classes_of_another_task(raw_recipe, tmp_path):
    recipe = parse_recipe(raw_recipe, "test")
    spec = stage_spec(recipe, "s4d", "finetune", 0, recipe.finetune.max_steps)
    data = train.prepare(recipe.task, {}, recipe.train_size, 0)
    config = train.model_config(spec, data, None)
    config.update({"num_labels": 1, "problem_type": "regression", "label_mean": 80.0, "label_std": 5.0})
    config.save_pretrained(tmp_path)
    again = train.model_config(spec, data, tmp_path)
    assert (again.label_mean, again.label_std, again.num_labels) == (0.0, 1.0, len(data.spec.labels))
