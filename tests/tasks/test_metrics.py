"""Metrics: right numbers, absent classes, no files."""

import math
import socket
from pathlib import Path

import evaluate
import numpy as np
import pytest

from neverscratch.tasks import METRICS, load_metric, score_logits


def test_names_with_and_without_prefix() -> None:
    for name in METRICS:
        assert load_metric(name).metric_name == load_metric(f"eval_{name}").metric_name == name
    with pytest.raises(ValueError) as error:
        load_metric("eval_acuracy")
    assert str(error.value) == (
        "There is no metric 'eval_acuracy'. Did you mean 'accuracy'? "
        "Known metrics: accuracy, f1_macro, roc_auc, rmse, r2."
    )


def test_they_are_evaluate_metrics() -> None:
    metric = load_metric("accuracy")
    assert isinstance(metric, evaluate.Metric)
    metric.add_batch(predictions=[0, 1], references=[0, 1])
    metric.add_batch(predictions=[1], references=[0])
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}
    both = evaluate.combine([load_metric("accuracy"), load_metric("f1_macro")])
    assert set(both.compute(predictions=[0, 1], references=[0, 0])) == {"accuracy", "f1_macro"}


def test_values() -> None:
    compute = {name: load_metric(name).compute for name in METRICS}
    predictions, references = [0, 1, 1, 0], [0, 1, 0, 0]
    assert compute["accuracy"](predictions=predictions, references=references)["accuracy"] == 0.75
    assert compute["f1_macro"](predictions=predictions, references=references)["f1_macro"] == pytest.approx(
        (2 / 3 + 0.8) / 2
    )
    assert compute["rmse"](predictions=[1.0, 3.0], references=[1.0, 1.0])["rmse"] == pytest.approx(math.sqrt(2))
    assert compute["r2"](predictions=[1.0, 2.0, 4.0], references=[1.0, 2.0, 3.0])["r2"] == pytest.approx(0.5)


def test_absent_classes() -> None:
    # Class 2 occurs nowhere: it does not count. A class that is only predicted counts as 0.
    assert score_logits("f1_macro", np.eye(3)[[0, 1]], [0, 1]) == 1.0
    assert score_logits("f1_macro", np.eye(3)[[0, 2]], [0, 0]) == pytest.approx((2 / 3 + 0) / 2)
    assert score_logits("roc_auc", np.eye(3)[[0, 1, 1]], [0, 1, 1]) == 1.0
    assert math.isnan(score_logits("roc_auc", np.eye(3)[[0, 1]], [1, 1]))
    assert math.isnan(score_logits("roc_auc", np.eye(2)[[0, 1]], [1, 1]))


def test_roc_auc_equals_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    random = np.random.RandomState(0)
    logits, references = random.randn(60, 3), random.randint(0, 3, 60)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert score_logits("roc_auc", logits, references) == pytest.approx(
        roc_auc_score(references, probabilities, multi_class="ovr")
    )
    binary = (references > 0).astype(int)
    assert score_logits("roc_auc", logits[:, :2], binary) == pytest.approx(
        roc_auc_score(binary, logits[:, 1] - logits[:, 0])
    )
    with pytest.raises(ValueError, match=r"roc_auc takes one score for each class, \(examples, classes\)"):
        score_logits("roc_auc", np.zeros((4, 1)), [0, 1, 0, 1])


def test_score_logits_takes_raw_output() -> None:
    assert score_logits("eval_accuracy", [[0.1, 2.0], [3.0, 0.0]], [1, 1]) == 0.5
    assert score_logits("rmse", [[1.0], [3.0]], [1.0, 1.0]) == pytest.approx(math.sqrt(2))


def test_nothing_is_written_and_the_hub_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))
    for name in METRICS:
        score_logits(name, np.eye(2) if METRICS[name] and name != "r2" else [0.0, 1.0], [0, 1])
    assert list(tmp_path.iterdir()) == []
