import pytest
import torch
from torch.utils.data import Dataset
from transformers import TrainingArguments

from neverscratch.modeling import AUTO_CLASSES, FAMILIES
from neverscratch.recipes.objectives import make_objective
from neverscratch.recipes.trainer import StageTrainer, count_flops, optimizer_groups

SIZES = {"hidden_size": 16, "num_hidden_layers": 1}


def tiny(head, family="s4d", **fields):
    own = {"d_state": 8} if family == "s4d" else {"num_attention_heads": 2, "intermediate_size": 32}
    config = FAMILIES[family](**{"vocab_size": 20, **SIZES, **own, **fields})
    torch.manual_seed(0)
    return AUTO_CLASSES[head].from_config(config)


class Examples(Dataset):
    """Sequences of very different lengths, so that micro-batches hold very different numbers of scored positions."""

    def __init__(self, values, labels, size):
        generator = torch.Generator().manual_seed(0)
        self.rows = []
        for row, length in enumerate((30, 3, 9, 2, 25, 4, 8, 5)[:size]):
            if values:
                inputs = {"input_values": torch.randn(length, 2, generator=generator).numpy()}
            else:
                inputs = {"input_ids": torch.randint(3, 20, (length,), generator=generator).numpy()}
            self.rows.append({**inputs, "labels": labels[row], "example_id": row})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


CASES = {
    "masked_tokens": ("masked_tokens", {}, [0] * 8),
    "next_token": ("next_token", {"bidirectional": False}, [0] * 8),
    "masked_values l1": ("masked_values", {"vocab_size": None, "num_channels": 2}, [0] * 8),
    "masked_values mse": (
        "masked_values",
        {"vocab_size": None, "num_channels": 2, "reconstruction_loss": "mse"},
        [0] * 8,
    ),
    "next_value": ("next_value", {"vocab_size": None, "num_channels": 2, "bidirectional": False}, [0] * 8),
    "single label": (
        "classification",
        {"num_labels": 3, "problem_type": "single_label_classification"},
        [0, 1, 2, 0, 1, 2, 0, 1],
    ),
    "multi label": (
        "classification",
        {"num_labels": 2, "problem_type": "multi_label_classification"},
        [[float(i % 2), float(i % 3 == 0)] for i in range(8)],
    ),
    "regression": ("classification", {"num_labels": 1, "problem_type": "regression"}, [float(i) for i in range(8)]),
}


@pytest.mark.parametrize("family", ["transformer", "s4d"])
@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize("case", CASES)
def test_one_batch_equals_batches_of_two_accumulated(case, family, size, tmp_path):
    """With five examples the last batch of the epoch holds one."""
    objective_name, fields, labels = CASES[case]

    def gradients(batch_size, accumulation):
        objective = make_objective(objective_name, 0, 0.5)
        model = tiny(objective.head, family, **fields)
        trainer = StageTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=batch_size,
                gradient_accumulation_steps=accumulation,
                max_steps=1,
                learning_rate=1.0e-2,
                # Plain SGD: the step is the gradient.
                optim="sgd",
                lr_scheduler_type="constant",
                max_grad_norm=0.0,
                train_sampling_strategy="sequential",
                remove_unused_columns=False,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=Examples("input_values" in str(fields) or fields.get("num_channels"), labels, size),
            objective=objective,
        )
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        trainer.train()
        return {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}

    whole, parts = gradients(8, 1), gradients(2, -(-size // 2))
    assert any(step.abs().max() > 1e-6 for step in whole.values())
    for name, step in whole.items():
        torch.testing.assert_close(
            parts[name], step, rtol=1e-4, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_state_space_parameters_have_their_own_group_without_decay():
    model = tiny("AutoModelForMaskedLM")
    groups = {group["group"]: group for group in optimizer_groups(model, 1e-2, 0.1, 1e-3)}
    names = [name for group in groups.values() for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    leaves = {name.rpartition(".")[2] for name in groups["ssm"]["names"]}
    assert {"log_dt", "log_A_real", "A_imag"} <= leaves
    assert groups["ssm"]["lr"] == 1e-3 and groups["ssm"]["weight_decay"] == 0.0
    assert groups["decay"]["lr"] == 1e-2 and groups["decay"]["weight_decay"] == 0.1
    assert groups["no_decay"]["weight_decay"] == 0.0
    assert all("bias" not in name and "norm" not in name for name in groups["decay"]["names"])


def test_the_state_space_rate_is_never_above_the_global_one():
    groups = {group["group"]: group for group in optimizer_groups(tiny("AutoModelForMaskedLM"), 1e-4, 0.0, 1e-3)}
    assert groups["ssm"]["lr"] == 1e-4
    groups = {group["group"]: group for group in optimizer_groups(tiny("AutoModelForMaskedLM"), 1e-2, 0.0, None)}
    assert groups["ssm"]["lr"] == 1e-2


def test_flops_are_counted_without_touching_the_model():
    model = tiny("AutoModelForSequenceClassification", "transformer", num_labels=3)
    batch = {"input_ids": torch.randint(3, 20, (4, 10)), "labels": torch.tensor([0, 1, 2, 0])}
    state = torch.random.get_rng_state()
    flops = count_flops(model, batch)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    # Per token: projections 4 x 16 x 16 and feed-forward 2 x 16 x 32, two operations each, three passes in all.
    matrices = 4 * 10 * (4 * 16 * 16 + 2 * 16 * 32) * 2 * 3
    # Scores and weighted sums: two products of 10 x 10 x 16 for each sequence; backward four, and one recomputed.
    attention = 4 * (10 * 10 * 16) * 2 * (2 + 5)
    head = 4 * 16 * 3 * 2 * 3
    assert flops == pytest.approx(matrices + attention + head, rel=0.01)
    doubled = count_flops(model, {"input_ids": batch["input_ids"].repeat(2, 1), "labels": batch["labels"].repeat(2)})
    assert doubled == 2 * flops


def test_attention_counts_the_same_whatever_computes_it():
    batch = {"input_ids": torch.randint(3, 20, (1, 512)), "labels": torch.tensor([0])}
    counts = {}
    for implementation in ("sdpa", "eager"):
        model = tiny("AutoModelForSequenceClassification", "transformer", num_labels=3)
        model.set_attn_implementation(implementation)
        counts[implementation] = count_flops(model, batch)
    # The fused kernel computes the scores a second time in the backward: seven products instead of six.
    assert counts["eager"] < counts["sdpa"] < 7 / 6 * counts["eager"]


def test_fft_convolutions_are_counted():
    model = tiny("AutoModelForSequenceClassification", num_labels=3)
    long = torch.randint(3, 20, (1, 2048))
    flops = count_flops(model, {"input_ids": long, "labels": torch.tensor([0])})
    # Output projection 16 -> 32, two operations, three passes; the transforms come on top.
    assert flops > 2048 * 16 * 32 * 2 * 3 * 1.5
