"""What every head of every family must do. A family is tested by being listed in `neverscratch.modeling`."""

import copy
import dataclasses
import json
import logging
import math
import re
import subprocess
import sys

import pytest
import torch
from common import (
    CASES,
    LOSS_CASES,
    POSITION_CASES,
    REFUSED,
    VOCAB,
    Case,
    assert_same,
    container,
    gradients,
    pad,
    result,
)
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Trainer, TrainingArguments

from neverscratch.modeling import AUTO_CLASSES, FAMILIES, parameter_groups, unknown_fields

FAMILY_NAMES = list(FAMILIES)
BY_CASE = pytest.mark.parametrize("case", CASES, ids=str)


def classifier(family: str, kind: str = "values", bidirectional: bool = True) -> Case:
    return Case(family, "AutoModelForSequenceClassification", kind, bidirectional)


@BY_CASE
def test_saving_and_loading_is_exact(case, tmp_path):
    model, inputs = case.model(), case.inputs()
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[case.auto].from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert_same(dict(model.named_parameters()), dict(loaded.named_parameters()))
    assert_same(dict(model.named_buffers()), dict(loaded.named_buffers()))
    assert torch.equal(result(model(**inputs)), result(loaded(**inputs)))


def test_a_fresh_process_gives_the_same_logits(tmp_path):
    cases = [classifier(family) for family in FAMILIES]
    for case in cases:
        model, folder = case.model(), tmp_path / case.family
        model.save_pretrained(folder)
        inputs = case.inputs()["input_values"]
        save_file({"input": inputs, "logits": model(input_values=inputs).logits.detach()}, folder / "expected.bin")
    code = """
import sys, torch
import neverscratch.modeling
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    expected = load_file(folder + "/expected.bin")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(model(input_values=expected["input"]).logits, expected["logits"]), folder
"""
    folders = [str(tmp_path / case.family) for case in cases]
    subprocess.run([sys.executable, "-P", "-c", code, *folders], check=True, cwd=tmp_path)


@pytest.mark.parametrize("case", LOSS_CASES, ids=str)
def test_backbone_and_head_load_into_each_other(case, tmp_path):
    model = case.model(seed=1)
    model.save_pretrained(tmp_path / "head")
    backbone, info = AUTO_CLASSES["AutoModel"].from_pretrained(tmp_path / "head", output_loading_info=True)
    assert not info["missing_keys"]
    assert_same(model.model.state_dict(), backbone.state_dict())

    backbone.save_pretrained(tmp_path / "backbone")
    again, info = AUTO_CLASSES[case.auto].from_pretrained(tmp_path / "backbone", output_loading_info=True)
    assert_same(model.model.state_dict(), again.model.state_dict())
    assert info["missing_keys"] and all(not key.startswith("model.") for key in info["missing_keys"])
    assert not info["unexpected_keys"]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_pretrained_model_opens_as_a_classifier_with_other_labels(family, tmp_path):
    pretrained = Case(family, "AutoModelForPreTraining", "values", True).model(seed=1)
    pretrained.save_pretrained(tmp_path)
    auto = AUTO_CLASSES["AutoModelForSequenceClassification"]
    model, info = auto.from_pretrained(tmp_path, num_labels=7, output_loading_info=True)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert model.classifier.weight.shape[0] == 7
    bound = 16**-0.5
    assert 0.4 * bound < model.classifier.weight.std().item() < 0.75 * bound
    assert model.classifier.weight.abs().max().item() <= bound


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_linear_layers_start_by_fan_in_and_embeddings_by_initializer_range(family):
    case = Case(family, "AutoModelForMaskedLM", "tokens", True)
    model = case.model(hidden_size=64, initializer_range=0.02)
    for name, module in model.named_modules():
        # A wrapped model starts by its own rules.
        if isinstance(module, torch.nn.Linear) and ".backbone." not in name:
            bound = module.in_features**-0.5
            assert module.weight.abs().max().item() <= bound, name
            assert abs(module.weight.std().item() / bound - 3**-0.5) < 0.1, name
    assert abs(model.get_input_embeddings().weight.std().item() - 0.02) < 0.004


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_missing_tensor_leaves_the_others_alone(family, tmp_path):
    case = classifier(family)
    model = case.model(seed=1, pooling="attention", **container(family, norm_type="batch"))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        save_file({k: v for k, v in tensors.items() if k != name}, tmp_path / "model.safetensors", {"format": "pt"})
        loaded, info = AUTO_CLASSES[case.auto].from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == {name}
        state = {k: v for k, v in loaded.state_dict().items() if k != name}
        assert_same({k: v for k, v in tensors.items() if k != name}, state)
        assert_same(
            {k: v for k, v in model.named_buffers() if k not in tensors},
            {k: v for k, v in loaded.named_buffers() if k not in tensors},
        )
        new = loaded.state_dict()[name]
        assert new.isfinite().all() and new.abs().max() < 100, name


@BY_CASE
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(case, side):
    model, inputs = case.model(), case.inputs()
    padded = pad(inputs, 16, side)
    expected, got = result(model(**inputs)), result(model(**padded))
    if case.is_per_position:
        got = got[:, :11] if side == "right" else got[:, 5:]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert_same(gradients(model, inputs), gradients(model, padded), tolerance=2e-5)


@BY_CASE
def test_a_mask_of_ones_is_no_mask(case):
    model, inputs = case.model(), case.inputs()
    mask = torch.ones(3, 11)
    assert torch.equal(result(model(**inputs)), result(model(**inputs, attention_mask=mask)))


@BY_CASE
def test_a_sequence_does_not_depend_on_its_batch(case):
    model = case.model()
    lengths = (11, 5, 1, 8)
    rows = [case.inputs(batch=1, length=11, seed=seed) for seed in range(4)]
    rows = [
        {k: v[:, :n] if v.dim() > 1 else v for k, v in row.items() if k != "labels"} for row, n in zip(rows, lengths)
    ]
    padded = [pad(row, 11, "left" if i % 2 else "right") for i, row in enumerate(rows)]
    batch = {key: torch.cat([row[key] for row in padded]) for key in padded[0]}
    together = result(model(**batch))
    for i, row in enumerate(rows):
        got = together[i : i + 1]
        if case.is_per_position:
            got = got[:, batch["attention_mask"][i].bool()]
        torch.testing.assert_close(got, result(model(**row)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", POSITION_CASES, ids=str)
def test_direction(case):
    model, inputs = case.model(), case.inputs()
    inputs.pop("labels", None)
    changed = {key: x.clone() for key, x in inputs.items()}
    name = "input_ids" if case.kind == "tokens" else "input_values"
    changed[name][:, 7] = 4 if case.kind == "tokens" else 9.0
    if "bool_masked_pos" in inputs:
        inputs["bool_masked_pos"][:, 7] = changed["bool_masked_pos"][:, 7] = False
    if case.kind == "tokens":
        inputs[name][:, 7] = 5
    difference = (result(model(**inputs)) - result(model(**changed))).abs().amax(-1)
    assert (difference[:, 7:] > 1e-4).all()
    if case.bidirectional:
        assert (difference[:, :7] > 1e-6).all()
    else:
        assert (difference[:, :7] < 1e-5).all()


@BY_CASE
def test_gradient_checkpointing_gives_the_same_gradients(case):
    model, inputs = case.model(**container(case.name, norm_type="batch")), case.inputs()
    model.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    plain = gradients(model, inputs)
    moved = {k: v.clone() for k, v in model.named_buffers()}
    model.load_state_dict(state)
    model.activation_checkpointing_enable()
    assert_same(plain, gradients(model, inputs))
    assert_same(moved, dict(model.named_buffers()))


@BY_CASE
def test_every_parameter_gets_a_gradient(case):
    model = case.model(pooling="attention")
    model.train()
    found = gradients(model, case.inputs())
    assert found.keys() == dict(model.named_parameters()).keys()
    zero = {name for name, grad in found.items() if not grad.any()}
    allowed = {name for name in zero if name.endswith("mask_vector") and "bool_masked_pos" not in case.inputs()}
    # Softmax does not notice a constant added to all scores of a query.
    allowed |= {name for name in zero if name.endswith("k_proj.bias")}
    assert zero == allowed


@BY_CASE
def test_half_precision(case, tmp_path):
    model, inputs = case.model(), case.inputs()
    expected = result(model(**inputs))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            outputs = model(**inputs)
        assert result(outputs).isfinite().all()
        assert (result(outputs) - expected).abs().mean() < 0.05 * expected.abs().mean() + 0.01
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[case.auto].from_pretrained(tmp_path, dtype=torch.bfloat16)
    outputs = loaded(**inputs)
    assert result(outputs).isfinite().all() and result(outputs).dtype == torch.bfloat16
    names = {module: name for name, module in loaded.named_modules()}
    exact = {f"{names[module]}.{leaf}" for module, leaf in loaded.tensors_in_float32()}
    assert exact >= set(loaded.ssm_parameter_names())
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == (torch.float32 if name in exact else torch.bfloat16), name
    # A new one is drawn in float32 and cast.
    torch.manual_seed(0)
    drawn = AUTO_CLASSES[case.auto].from_config(case.config(), dtype=torch.bfloat16)
    assert_same(dict(drawn.named_parameters()), dict(case.model().to(torch.bfloat16).named_parameters()))
    # A cast in memory leaves them alone, too.
    states = {name: parameter.clone() for name, parameter in model.named_parameters() if name in exact}
    for dtype in (torch.bfloat16, torch.float16):
        cast = copy.deepcopy(model).to(dtype)
        assert (result(cast(**inputs)) - expected).abs().mean() < 0.05 * expected.abs().mean() + 0.01
        assert_same(states, {name: parameter for name, parameter in cast.named_parameters() if name in exact})


@pytest.mark.parametrize(
    ("name", "fields", "leaves"),
    [
        ("sgconv", {}, {"kernel_norm"}),
        ("mrconv", {}, {"running_mean", "running_var"}),
        ("s4d", {"norm_type": "batch"}, {"running_mean", "running_var"}),
        (
            "hybrid",
            {"mixers": [{"type": kind, "kernel_length": 64, "sub_kernel_size": 4} for kind in ("sgconv", "mrconv")]},
            {"kernel_norm", "running_mean", "running_var"},
        ),
    ],
    # Not by family: this is about what only some of them have.
    ids=["norm of a kernel", "statistics of branches", "statistics of a norm", "all inside another"],
)
def test_buffers_that_half_precision_would_spoil_stay_in_float32(name, fields, leaves, tmp_path):
    case = classifier(name)
    model, inputs = case.model(**fields), case.inputs()
    model.train()(**inputs)
    expected = {key: x.clone() for key, x in model.named_buffers() if key.rpartition(".")[2] in leaves}
    assert {key.rpartition(".")[2] for key in expected} == leaves
    model.eval().save_pretrained(tmp_path)
    logits = model(**inputs).logits
    loaded = AUTO_CLASSES[case.auto].from_pretrained(tmp_path, dtype=torch.bfloat16)
    for cast in (loaded, copy.deepcopy(model).to(torch.bfloat16), copy.deepcopy(model).half()):
        assert_same(expected, {key: x for key, x in cast.named_buffers() if key in expected})
        assert cast.classifier.weight.dtype in (torch.bfloat16, torch.float16)
        assert (cast(**inputs).logits - logits).abs().max() < 0.05 * logits.abs().max() + 0.01
        assert cast.train()(**inputs).loss.isfinite()
        cast.eval()
    assert all(x.dtype == torch.float64 for x in copy.deepcopy(model).double().buffers())


def items(case: Case, inputs: dict) -> int:
    """What is counted in a batch."""
    if case.auto == "AutoModelForPreTraining":
        return (
            int(inputs["bool_masked_pos"].sum()) if "bool_masked_pos" in inputs else inputs["labels"][:, 1:, 0].numel()
        )
    labels = inputs["labels"][:, 1:] if case.auto == "AutoModelForCausalLM" else inputs["labels"]
    return int((labels != -100).sum())


@pytest.mark.parametrize("case", LOSS_CASES, ids=str)
def test_accumulating_gradients_changes_nothing(case):
    model, inputs = case.model(), case.inputs(batch=4)
    whole = gradients(model, inputs)
    kwargs = {"num_items_in_batch": torch.tensor(items(case, inputs))}
    model.zero_grad()
    parts = [gradients(model, {k: v[i : i + 1] for k, v in inputs.items()}, 1, **kwargs) for i in range(4)]
    assert_same(whole, {name: sum(part[name] for part in parts) for name in whole}, tolerance=1e-5)


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification", "single_label_classification"])
def test_accumulating_under_the_trainer(problem_type, tmp_path):
    case = classifier("transformer", "tokens")
    inputs = case.inputs(batch=8)["input_ids"]
    labels = (
        torch.randint(0, 2, (8, 3)).float() if problem_type != "single_label_classification" else torch.arange(8) % 3
    )
    check_trainer(case, [{"input_ids": x, "labels": y} for x, y in zip(inputs, labels)], tmp_path, problem_type)


def test_accumulating_under_the_trainer_with_uneven_masks(tmp_path):
    case = Case("transformer", "AutoModelForMaskedLM", "tokens", True)
    inputs = case.inputs(batch=8)
    inputs["labels"][::2, 3:] = -100
    rows = [{"input_ids": x, "labels": y} for x, y in zip(inputs["input_ids"], inputs["labels"])]
    check_trainer(case, rows, tmp_path, None)


def test_the_trainer_does_not_count_real_values_as_labels(tmp_path):
    """Its own count of the labels, all of them, would divide the loss by far too much."""
    case = Case("transformer", "AutoModelForPreTraining", "values", True)
    inputs = case.inputs(batch=8)
    inputs["bool_masked_pos"][:, 4:] = False
    inputs["bool_masked_pos"][:, :4] = True
    rows = [{name: x[row] for name, x in inputs.items()} for row in range(8)]
    check_trainer(case, rows, tmp_path, None)
    model = case.model()
    args = TrainingArguments(str(tmp_path), max_steps=1, per_device_train_batch_size=8, use_cpu=True, report_to="none")
    trainer = Trainer(model, args, train_dataset=rows)
    expected = model(**inputs).loss.item()
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-5)


def check_trainer(case, rows, folder, problem_type):
    weights = []
    for accumulate in (1, 4):
        model = case.model(problem_type=problem_type)
        args = TrainingArguments(
            str(folder),
            max_steps=2,
            per_device_train_batch_size=8 // accumulate,
            gradient_accumulation_steps=accumulate,
            optim="sgd",
            learning_rate=0.1,
            use_cpu=True,
            max_grad_norm=0.0,
            save_strategy="no",
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        )
        Trainer(model, args, train_dataset=rows).train()
        weights.append({name: p.detach() for name, p in model.named_parameters()})
    assert_same(*weights, tolerance=1e-5)
    assert not torch.equal(weights[0]["model.final_norm.norm.weight"], torch.ones(16))


@BY_CASE
def test_outputs_on_request(case):
    model, inputs = case.model(), case.inputs()
    outputs = model(**inputs, output_hidden_states=True)
    assert [tuple(h.shape) for h in outputs.hidden_states] == [(3, 11, 16)] * 3
    as_tuple = model(**inputs, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[-1], result(outputs))


@pytest.mark.parametrize("case", POSITION_CASES, ids=str)
def test_recorded_states_stay_in_place_under_left_padding(case):
    model, inputs = case.model(), case.inputs()
    plain = model(**inputs, output_hidden_states=True).hidden_states
    left = model(**pad(inputs, 16, "left"), output_hidden_states=True).hidden_states
    for expected, got in zip(plain, left):
        torch.testing.assert_close(got[:, 5:], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("kind", ["tokens", "values"])
@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
def test_all_heads_start_from_the_same_backbone(family, kind, bidirectional):
    models = [c.model(seed=3) for c in CASES if (c.name, c.kind, c.bidirectional) == (family, kind, bidirectional)]
    backbones = [getattr(model, "model", model).state_dict() for model in models]
    for other in backbones[1:]:
        assert_same(backbones[0], other)
    different = Case(family, "AutoModel", kind, bidirectional).model(seed=4).state_dict()
    assert any(not torch.equal(x, different[name]) for name, x in backbones[0].items())


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_resizing_and_tying_embeddings(family, tied, tmp_path):
    case = Case(family, "AutoModelForMaskedLM", "tokens", True)
    model = case.model(tie_word_embeddings=tied)
    model.resize_token_embeddings(VOCAB + 5)
    assert model.config.vocab_size == VOCAB + 5
    logits = model(input_ids=torch.full((1, 4), VOCAB + 4)).logits
    assert logits.shape[-1] == VOCAB + 5
    model.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    loaded = AUTO_CLASSES[case.auto].from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) is tied
    assert torch.equal(loaded(input_ids=torch.full((1, 4), VOCAB + 4)).logits, logits)


@BY_CASE
def test_config_survives_json(case, tmp_path):
    config = case.config(id2label={0: "cat", 1: "dog", 2: "fox"}, label2id={"cat": 0, "dog": 1, "fox": 2})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    written = json.loads((tmp_path / "config.json").read_text())
    assert set(written["auto_map"]) >= {"AutoConfig", *AUTO_CLASSES}
    for name, value in config.to_dict().items():
        if name != "_name_or_path":
            assert loaded.to_dict()[name] == value, name


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_compiled_logits_agree(family):
    torch._dynamo.reset()
    case = classifier(family, "tokens")
    model, inputs = case.model(), case.inputs()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-4)
    padded = pad(inputs, 16, "left")
    torch.testing.assert_close(compiled(**padded).logits, model(**padded).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_parameter_groups_cover_each_parameter_once(family, tmp_path):
    case = classifier(family)
    model = case.model()
    model.save_pretrained(tmp_path)
    for m in (model, AUTO_CLASSES[case.auto].from_pretrained(tmp_path)):
        groups = parameter_groups(m)
        assert sorted(name for group in groups.values() for name in group) == sorted(
            name for name, _ in m.named_parameters()
        )
        assert groups["ssm"] == m.ssm_parameter_names()
    leaves = {leaf for module in model.modules() for leaf in getattr(module, "ssm_parameters", ())}
    assert {name.rsplit(".", 1)[-1] for name in model.ssm_parameter_names()} == leaves


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("pooling", ["mean", "max", "last", "first", "attention"])
def test_pooling_knows_the_length(family, pooling):
    case = classifier(family)
    model, inputs = case.model(pooling=pooling), case.inputs()
    for side in ("left", "right"):
        got = model(**pad(inputs, 16, side)).logits
        torch.testing.assert_close(got, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("kind", ["tokens", "values"])
def test_pairs(family, kind):
    case = classifier(family, kind)
    model, inputs = case.model(is_pair=True), case.inputs(batch=6)
    name = "input_ids" if kind == "tokens" else "input_values"
    single = pad({name: inputs[name]}, 14, "left")
    pairs = {key: x.unflatten(0, (3, 2)) for key, x in single.items()}
    outputs = model(**pairs, labels=inputs["labels"][:3])
    states = model.model(**{name: inputs[name]}).last_hidden_state.mean(1)
    a, b = states[0::2], states[1::2]
    expected = model.classifier(torch.cat([a, b, a * b, a - b], dim=-1))
    torch.testing.assert_close(outputs.logits, expected, atol=1e-5, rtol=1e-5)
    assert outputs.logits.shape == (3, 3) and outputs.loss.isfinite()
    with pytest.raises(ValueError, match=r"shape \(batch, 2, length, ...\)"):
        model(**{name: inputs[name][:, :3]})


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_generating_is_taking_the_best_token_again_and_again(family, tmp_path):
    model = Case(family, "AutoModelForCausalLM", "tokens", False).model()
    prompt = torch.randint(3, VOCAB, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    got = model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False)
    for row, start in ((0, 0), (1, 2)):
        tokens = prompt[row : row + 1, start:]
        for _ in range(6):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(got[row, start:], tokens[0])
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES["AutoModelForCausalLM"].from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False), got)
    assert model.generate(prompt, attention_mask=mask, max_new_tokens=3, num_beams=3).shape == (2, 8)
    if ("step", family) in REFUSED:
        with pytest.raises(ValueError, match="use_cache=True is not possible"):
            model.generate(prompt, max_new_tokens=2, use_cache=True)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_input_that_is_none_is_refused(family):
    model = Case(family, "AutoModelForMaskedLM", "tokens", True).model()
    for shape in ((0, 5), (2, 0)):
        with pytest.raises(ValueError, match="give at least one sequence of at least one step"):
            model(input_ids=torch.zeros(shape, dtype=torch.long))
    for wrong in (VOCAB, -1):
        with pytest.raises(ValueError, match=f"{wrong}, but the model has vocab_size={VOCAB}: ids start at 0"):
            model(input_ids=torch.tensor([[wrong, wrong]]))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_ids_that_are_no_whole_numbers_are_refused(family):
    case = Case(family, "AutoModelForMaskedLM", "tokens", True)
    with pytest.raises(
        ValueError, match=r"input_ids are torch.float32, but ids are whole numbers; give input_ids.long"
    ):
        case.model()(input_ids=case.inputs()["input_ids"].float())


@pytest.mark.parametrize(
    ("auto", "fields", "labels", "message"),
    [
        (
            "SequenceClassification",
            {},
            torch.tensor([0, 1, 3]),
            "from 0 to 3, but there are 3 classes: labels start at 0",
        ),
        ("SequenceClassification", {}, torch.tensor([0, -1, 1]), "from -1 to 1, but there are 3 classes"),
        (
            "SequenceClassification",
            {},
            torch.tensor([0, 1]),
            r"of shape \(2,\), but must be whole numbers of shape \(3,\)",
        ),
        ("MaskedLM", {}, torch.full((3, 11), VOCAB), f"but there are {VOCAB} classes"),
        ("MaskedLM", {}, torch.zeros(3, 11), r"labels are torch.float32 of shape \(3, 11\), but must be whole numbers"),
        ("PreTraining", {}, torch.zeros(3, 11, 1), r"labels have shape \(3, 11, 1\), but the reconstruction has"),
        (
            "PreTraining",
            {"num_channels": 1, "reconstruction_loss": "cross_entropy", "num_levels": 4},
            torch.full((3, 11), 4),
            "from 4 to 4, but there are 4 classes",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused(auto, fields, labels, message):
    kind = "values" if auto == "PreTraining" else "tokens"
    case = Case("s4d", "AutoModelForPreTraining" if kind == "values" else f"AutoModelFor{auto}", kind, True)
    inputs = case.inputs() | {"labels": labels}
    if fields:
        inputs["input_values"] = inputs["input_values"][..., :1]
    with pytest.raises(ValueError, match=message):
        case.model(**fields)(**inputs)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_batch_where_nothing_counts_has_no_loss(family):
    for case, nothing in (
        (Case(family, "AutoModelForMaskedLM", "tokens", True), {"labels": torch.full((3, 11), -100)}),
        (Case(family, "AutoModelForPreTraining", "values", True), {"bool_masked_pos": torch.zeros(3, 11).bool()}),
    ):
        model = case.model()
        assert model(**case.inputs() | nothing).loss == 0
        assert not any(grad.any() for grad in gradients(model, case.inputs() | nothing).values())


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_right_padding_is_refused_by_generation_with_what_to_do(family):
    model = Case(family, "AutoModelForCausalLM", "tokens", False).model()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match=r'on the left .*\(tokenizer.padding_side = "left"\)'):
        model.generate(torch.full((2, 3), 5), attention_mask=mask, max_new_tokens=2, do_sample=False)


@pytest.mark.parametrize(
    ("family", "field", "value", "was"),
    [("sgconv", "kernel_length", 128, 64), ("mrconv", "kernel_length", 128, 64), ("s4d", "d_state", 16, 8)],
    ids=["longer kernel", "longer branches", "more states"],
)
def test_weights_of_other_shapes_are_refused_by_the_field(family, field, value, was, tmp_path):
    case = Case(family, "AutoModel", "tokens", True)
    case.model().save_pretrained(tmp_path)
    message = f"do not fit a model with {field}={value} in place of {was}; leave that out"
    for given in ({field: value}, {"config": case.config(**{field: value})}):
        with pytest.raises(ValueError, match=message):
            AUTO_CLASSES["AutoModel"].from_pretrained(tmp_path, **given)
    AUTO_CLASSES["AutoModel"].from_pretrained(tmp_path, **{field: value}, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_embedded_input(family):
    case = classifier(family, "tokens")
    model, ids = case.model(), case.inputs()["input_ids"]
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(input_ids=ids).logits)
    padded = pad({"input_values": embedded}, 16, "left")
    got = model(inputs_embeds=padded["input_values"], attention_mask=padded["attention_mask"]).logits
    torch.testing.assert_close(got, model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("norm_type", ["layer", "rms", "batch"])
@pytest.mark.parametrize("tie_dropout", [True, False], ids=["tied", "free"])
def test_containers_train(family, pre_norm, norm_type, tie_dropout):
    case = classifier(family)
    options = {"pre_norm": pre_norm, "norm_type": norm_type, "tie_dropout": tie_dropout, "hidden_dropout_prob": 0.1}
    options = container(family, **options)
    model, inputs = case.model(**options, initializer_range=0.05), pad(case.inputs(), 13, "right")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(12):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_misspelt_field_is_found(family):
    found = unknown_fields(FAMILIES[family], ["hidden_size", "num_labels", "hiden_size", "zzz"])
    assert found == ["hiden_size", "zzz"]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_field_that_does_nothing_is_named_once(family, tmp_path, caplog):
    config, logger = Case(family, "AutoModel", "tokens", True).config(), "neverscratch.modeling.configuration_common"
    given = {name: value for name, value in config.to_dict().items() if name != "layer_types"}
    with caplog.at_level(logging.WARNING, logger=logger):
        # What transformers writes, and what the file of another version may hold, is no mistake.
        type(config)(**given, num_beams=1, bos_token_id=1, attn_implementation="eager", tokenizer_class="x")
        config.save_pretrained(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(written | {"later_field": 1}))
        assert AutoConfig.from_pretrained(tmp_path).later_field == 1
        assert not caplog.messages
        for _ in range(2):
            assert Case(family, "AutoModel", "tokens", True).config(initialiser_range=0.1).initialiser_range == 0.1
    expected = f"{type(config).__name__} has no field initialiser_range, so it has no effect; remove it."
    assert caplog.messages == [f"{expected} Did you mean initializer_range?"]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_special_tokens_are_in_the_vocabulary(family, tmp_path):
    case = Case(family, "AutoModelForMaskedLM", "tokens", True)
    for field, value in (
        ("pad_token_id", -1),
        ("mask_token_id", VOCAB),
        ("unk_token_id", 99),
        ("eos_token_id", [2, 99]),
    ):
        message = (
            rf"has {field}={re.escape(str(value))}, which is not in the vocabulary; use an id from 0 to {VOCAB - 1}"
        )
        with pytest.raises(StrictDataclassError, match=message):
            case.config(**{field: value})
    case.config(bos_token_id=None, eos_token_id=[1, 2])
    model = case.model(mask_token_id=VOCAB - 1)
    model.resize_token_embeddings(VOCAB + 2)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, mask_token_id=VOCAB + 1).mask_token_id == VOCAB + 1
    # None of them is needed by a model of two symbols, or of values.
    assert case.config(vocab_size=2).unk_token_id == 2
    Case(family, "AutoModel", "values", True).config(mask_token_id=99)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_numbers_make_sense(family):
    case = Case(family, "AutoModel", "tokens", True)
    names = [field.name for field in dataclasses.fields(FAMILIES[family]) if "float" in str(field.type)]
    assert {"layer_norm_eps", "initializer_range", "hidden_dropout_prob"} <= set(names)
    for name in names:
        # A mean may have any sign.
        for wrong in (math.nan, math.inf, -math.inf, *([] if name == "label_mean" else [-1.0])):
            with pytest.raises(StrictDataclassError, match=f"{name}={wrong}"):
                case.config(**{name: wrong})
    with pytest.raises(StrictDataclassError, match="has layer_norm_eps=0.0, which must be positive and finite"):
        case.config(layer_norm_eps=0.0)
    with pytest.raises(StrictDataclassError, match=r"has hidden_dropout_prob=1.0, which must be in \[0, 1\)"):
        case.config(hidden_dropout_prob=1.0)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_fields_are_checked(family):
    config_class = FAMILIES[family]
    own = [name for name in config_class.__annotations__ if name != "config"]
    assert own
    for name in [*own, "hidden_size", "norm_type"]:
        with pytest.raises(StrictDataclassError, match=name):
            config_class(vocab_size=VOCAB, **{name: "nonsense"})
