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


# ----------------------------------------------------------------------------------------------------------------------
# Labels


def classifier(num_labels, **fields):
    torch.manual_seed(0)
    return S4DForSequenceClassification(FAMILIES["s4d"](**FIELDS | {"num_labels": num_labels}, **fields)).eval()


def test_the_loss_is_the_mean_over_the_labels_that_count():
    x, labels = torch.randn(4, 10, 1), torch.tensor([2, -100, 0, -100])
    model = classifier(3)
    output = model(input_values=x, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[::2], labels[::2])
    torch.testing.assert_close(output.loss, expected)
    assert model(input_values=x, labels=torch.full((4,), -100)).loss == 0
    assert model(input_values=x, labels=labels[:, None]).loss == output.loss


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_labels_of_several_outputs_must_lie_as_the_logits_do(problem_type):
    x, labels = torch.randn(4, 10, 1), torch.rand(4, 3)
    model = classifier(3, problem_type=problem_type)
    assert model(input_values=x, labels=labels).loss.isfinite()
    for wrong in (labels.T, labels.flatten(), labels[:, None]):
        with pytest.raises(ValueError, match=r"takes one label per output, \(4, 3\), but got labels"):
            model(input_values=x, labels=wrong)


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 3)])
def test_single_labels_must_be_one_for_each_example(shape):
    with pytest.raises(ValueError, match="one class for each row"):
        classifier(3)(input_values=torch.randn(4, 10, 1), labels=torch.ones(shape, dtype=torch.long))


def test_one_number_for_each_example_may_lie_either_way():
    x, labels = torch.randn(4, 10, 1), torch.rand(4)
    model = classifier(1)
    assert model(input_values=x, labels=labels).loss == model(input_values=x, labels=labels[:, None]).loss


@pytest.mark.parametrize("num_labels", [0, -1])
def test_a_classifier_has_labels(num_labels):
    with pytest.raises(StrictDataclassError, match="num_labels=0, which must be at least 1"):
        FAMILIES["s4d"](**FIELDS | {"num_labels": num_labels})


def test_a_kind_of_labels_that_does_not_exist_is_refused():
    with pytest.raises(StrictDataclassError, match="'regresion' is unknown; use .*Did you mean regression"):
        FAMILIES["s4d"](**FIELDS, problem_type="regresion")
    model = classifier(1)
    model.config.problem_type = "regresion"
    with pytest.raises(ValueError, match="'regresion' is unknown"):
        model(input_values=torch.randn(4, 10, 1), labels=torch.rand(4))


@pytest.mark.parametrize("fields", [{"num_labels": 3}, {"num_labels": 1, "problem_type": "multi_label_classification"}])
def test_a_scale_of_targets_belongs_to_regression(fields):
    with pytest.raises(StrictDataclassError, match="which scale the targets of a regression, with problem_type"):
        FAMILIES["s4d"](**FIELDS | fields, label_std=2.0)
    assert FAMILIES["s4d"](**FIELDS | {"num_labels": 3}, problem_type="regression", label_mean=4.0).label_mean == 4.0


def test_several_labels_leave_out_those_of_minus_hundred():
    x, labels = torch.randn(4, 10, 1), torch.randint(0, 2, (4, 3)).float()
    model = classifier(3, problem_type="multi_label_classification")
    logits = model(input_values=x).logits
    labels[1, 2] = labels[3] = -100
    kept = labels != -100
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits[kept], labels[kept])
    torch.testing.assert_close(model(input_values=x, labels=labels).loss, expected)
    with pytest.raises(ValueError, match="reach from 0 to 7, but must be from 0 to 1; -100 is not counted"):
        model(input_values=x, labels=labels.masked_fill(~kept, 7.0))


@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_a_step_without_labels_has_no_loss(count):
    model, labels = classifier(3), torch.full((2,), -100)
    assert model(input_values=torch.randn(2, 5, 1), labels=labels, num_items_in_batch=count).loss == 0
