"""Heads beyond what the common suite asks of every family: regression in the targets' own units."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from neverscratch.modeling import FAMILIES
from neverscratch.modeling.modeling_s4d import S4DForSequenceClassification

FIELDS = {"num_channels": 1, "hidden_size": 8, "num_hidden_layers": 1, "d_state": 8, "num_labels": 1}


def model(**fields):
    torch.manual_seed(0)
    config = FAMILIES["s4d"](**FIELDS, problem_type="regression", **fields)
    return S4DForSequenceClassification(config).eval()


def test_regression_answers_in_the_units_of_its_targets_and_learns_in_scaled_ones():
    x, labels = torch.randn(3, 10, 1), torch.tensor([70.0, 80.0, 95.0])
    plain, scaled = model(), model(label_mean=80.0, label_std=5.0)
    scaled.load_state_dict(plain.state_dict())
    raw = plain(input_values=x).logits
    output = scaled(input_values=x, labels=labels)
    torch.testing.assert_close(output.logits, raw * 5 + 80)
    torch.testing.assert_close(output.loss, (raw[:, 0] - (labels - 80) / 5).square().mean())


def test_half_precision_keeps_the_digits_of_targets_far_from_zero():
    scaled = model(label_mean=4000.0, label_std=1.0).bfloat16()
    logits = scaled(input_values=torch.randn(3, 10, 1)).logits
    assert logits.dtype == torch.float32 and (logits != 4000.0).all()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_deviation_that_is_none_is_refused(value):
    with pytest.raises(StrictDataclassError, match="label_std"):
        FAMILIES["s4d"](**FIELDS, label_std=value)


def test_mean_pooling_holds_long_sequences_in_half_precision():
    from neverscratch.modeling.blocks import SequencePooling

    pooling = SequencePooling(FAMILIES["s4d"](**FIELDS))
    hidden = torch.full((1, 70_000, 8), 2.0, dtype=torch.float16)
    mask = torch.ones(1, 70_000, dtype=torch.bool)
    mask[:, -1] = False
    assert torch.equal(pooling(hidden, mask), torch.full((1, 8), 2.0, dtype=torch.float16))
