import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from neverscratch.recipes.objectives import IGNORE, MASK, make_objective, masked_positions


def token_examples(lengths=(7, 5, 7)):
    generator = np.random.default_rng(0)
    return [
        {"input_ids": generator.integers(3, 20, length), "labels": 1, "example_id": 10 + row}
        for row, length in enumerate(lengths)
    ]


def value_examples(lengths=(7, 5, 7), channels=2):
    generator = np.random.default_rng(0)
    return [
        {"input_values": generator.normal(size=(n, channels)).astype(np.float32), "labels": 1, "example_id": 10 + row}
        for row, n in enumerate(lengths)
    ]


def test_masks_depend_on_nothing_but_seed_epoch_and_example():
    ids, lengths = np.array([3, 4, 5]), np.array([50, 30, 50])
    masks = masked_positions(0, 0, ids, lengths, 0.5)
    alone = masked_positions(0, 0, ids[1:2], lengths[1:2], 0.5)
    np.testing.assert_array_equal(masks[1, :30], alone[0])
    assert not masks[1, 30:].any()
    np.testing.assert_array_equal(masks[::-1], masked_positions(0, 0, ids[::-1], lengths[::-1], 0.5))
    for seed, epoch in ((1, 0), (0, 1)):
        assert (masks != masked_positions(seed, epoch, ids, lengths, 0.5)).mean() > 0.3


@pytest.mark.parametrize("ratio", [0.1, 0.15, 0.5])
def test_masks_are_independent_bernoulli_draws(ratio):
    ids = np.arange(400)
    masks = np.stack([masked_positions(7, epoch, ids, np.full(400, 256), ratio) for epoch in range(4)]).astype(float)
    count = masks.size
    assert abs(masks.mean() - ratio) < 5 * np.sqrt(ratio * (1 - ratio) / count)
    centred = masks - ratio
    # Neighbouring positions, neighbouring examples and neighbouring epochs do not follow one another.
    pairs = (
        (centred[..., :-1], centred[..., 1:]),
        (centred[:, :-1], centred[:, 1:]),
        (centred[:-1], centred[1:]),
    )
    for first, second in pairs:
        assert abs((first * second).mean()) < 5 * ratio * (1 - ratio) / np.sqrt(first.size)


def test_every_sequence_has_a_masked_position():
    masks = masked_positions(0, 0, np.arange(500), np.full(500, 3), 0.01)
    assert (masks.sum(1) >= 1).all()
    assert masked_positions(0, 0, np.array([0]), np.array([1]), 0.01).all()


def test_masked_tokens_hide_and_score_the_same_positions():
    examples = token_examples()
    batch = make_objective("masked_tokens", 0, 0.5)(examples)
    scored = batch["labels"] != IGNORE
    torch.testing.assert_close(scored, batch["input_ids"] == MASK)
    for row, example in enumerate(examples):
        ids = torch.from_numpy(example["input_ids"])
        shown = torch.where(
            scored[row, : len(ids)], batch["labels"][row, : len(ids)], batch["input_ids"][row, : len(ids)]
        )
        torch.testing.assert_close(shown, ids)
    assert not scored[batch["attention_mask"] == 0].any()


def test_equal_lengths_need_no_attention_mask():
    assert "attention_mask" not in make_objective("masked_tokens", 0, 0.5)(token_examples((6, 6)))


def test_next_token_scores_everything_but_padding():
    objective = make_objective("next_token", 0)
    batch = objective(token_examples((4, 2)))
    assert objective.num_items(batch) == 3 + 1


def test_masked_values_keep_clean_labels_and_mask_all_channels_at_once():
    examples = value_examples()
    objective = make_objective("masked_values", 0, 0.5)
    batch = objective(examples)
    assert batch["bool_masked_pos"].shape == (3, 7)
    assert batch["input_values"].dtype == torch.float32
    torch.testing.assert_close(batch["labels"], batch["input_values"])
    assert objective.num_items(batch) == batch["bool_masked_pos"].sum()
    assert not batch["bool_masked_pos"][batch["attention_mask"] == 0].any()


def test_epochs_bring_fresh_masks_and_evaluation_keeps_its_own():
    from types import SimpleNamespace

    objective = make_objective("masked_tokens", 0, 0.5)
    evaluation = objective.for_evaluation()
    examples = token_examples((64, 64))
    first, fixed = objective(examples)["labels"], evaluation(examples)["labels"]
    # Three batches, two of them accumulated: two optimiser steps an epoch.
    args = SimpleNamespace(gradient_accumulation_steps=2)
    objective.on_epoch_begin(args, SimpleNamespace(global_step=3), None, train_dataloader=range(3))
    assert objective.epoch == 1
    assert (objective(examples)["labels"] != first).any()
    torch.testing.assert_close(evaluation(examples)["labels"], fixed)
    torch.testing.assert_close(objective.for_evaluation()(examples)["labels"], fixed)


def test_value_metrics_equal_those_of_the_whole_split():
    objective = make_objective("masked_values", 0, 0.5)
    batch = objective(value_examples((7, 5, 6), channels=1))
    logits = torch.randn(3, 7, 1)
    outputs = type("Outputs", (), {"logits": logits})
    halves = [objective.example_sums(outputs, batch)[:1], objective.example_sums(outputs, batch)[1:]]
    metrics = objective.metrics(torch.cat(halves).numpy())
    masked = batch["bool_masked_pos"]
    truth, predicted = batch["labels"][masked].numpy(), logits[masked].numpy()
    assert metrics["masked_r2"] == pytest.approx(r2_score(truth, predicted))
    assert metrics["masked_mae"] == pytest.approx(mean_absolute_error(truth, predicted))
    assert metrics["masked_mse"] == pytest.approx(mean_squared_error(truth, predicted))


def test_what_stands_in_padding_does_not_reach_the_metrics():
    objective = make_objective("masked_values", 0, 0.5)
    batch = objective(value_examples((7, 3)))
    outputs = type("Outputs", (), {"logits": torch.zeros(2, 7, 2)})
    clean = objective.example_sums(outputs, batch)
    batch["labels"][1, 3:] = torch.nan
    torch.testing.assert_close(objective.example_sums(outputs, batch), clean)


def test_token_metrics_count_masked_positions_only():
    objective = make_objective("masked_tokens", 0, 0.5)
    batch = objective(token_examples())
    logits = torch.nn.functional.one_hot(batch["labels"].clamp(min=0), 20).float() * 50
    metrics = objective.metrics(objective.example_sums(type("Outputs", (), {"logits": logits}), batch).numpy())
    assert metrics["masked_accuracy"] == 1.0
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)


def test_unknown_objective():
    with pytest.raises(ValueError, match="'masked_token'.*Did you mean 'masked_tokens'"):
        make_objective("masked_token", 0)
