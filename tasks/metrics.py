"""Metrics over scikit-learn behind the interface of `evaluate`, without the Hub and without cache files.

A metric is computed once over a whole split; a mean of batch means is another number.
"""

from __future__ import annotations

from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from .base import METRICS, nearest


class LocalMetric(evaluate.Metric):
    """Base of the metrics here: keeps everything in memory and writes no file."""

    # What `predictions` are: "label" (ids), "scores" (one number a class) or "value".
    kind: ClassVar[str] = "label"
    metric_name: ClassVar[str] = ""
    description: ClassVar[str] = ""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("keep_in_memory", True)
        super().__init__(**kwargs)

    def _build_data_dir(self) -> str:
        # The parent makes a folder in the user's cache here, which these metrics never use.
        return ""

    def _info(self) -> evaluate.MetricInfo:
        integer, number = datasets.Value("int64"), datasets.Value("float64")
        predictions = {"label": integer, "scores": datasets.List(number), "value": number}[self.kind]
        references = number if self.kind == "value" else integer
        return evaluate.MetricInfo(
            description=self.description,
            citation="",
            inputs_description="predictions and references, one for each example.",
            features=datasets.Features({"predictions": predictions, "references": references}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {self.metric_name: float(self.score(np.asarray(predictions), np.asarray(references)))}

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        """Return the metric of whole arrays."""
        raise NotImplementedError


class Accuracy(LocalMetric):
    """Share of examples whose predicted label is right."""

    metric_name = "accuracy"
    description = "Share of examples whose predicted label is right."

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        from sklearn.metrics import accuracy_score

        return accuracy_score(references, predictions)


class F1Macro(LocalMetric):
    """Unweighted mean of the classes' F1, over the classes that occur in references or predictions."""

    metric_name = "f1_macro"
    description = "Unweighted mean of the classes' F1, over the classes that occur in references or predictions."

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        from sklearn.metrics import f1_score

        return f1_score(references, predictions, average="macro", zero_division=0)


class RocAuc(LocalMetric):
    """Area under the ROC curve from one score a class, (examples, classes).

    With two classes it is that of the second class's score minus the first's. With more, it is the unweighted mean of
    one-against-rest over the classes that occur among the references. NaN if no class can be told from another, that
    is, if all references are equal.
    """

    kind = "scores"
    metric_name = "roc_auc"
    description = "Area under the ROC curve; one-against-rest mean over the classes that occur, when there are several."

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score

        if predictions.ndim != 2 or predictions.shape[1] < 2:
            raise ValueError(
                f"roc_auc takes one score for each class, (examples, classes), but got shape {predictions.shape}."
            )
        if predictions.shape[1] == 2:
            columns = {1: predictions[:, 1] - predictions[:, 0]}
        else:
            columns = dict(enumerate(predictions.T))
        present = [label for label in columns if 0 < np.sum(references == label) < len(references)]
        if not present:
            return float("nan")
        return float(np.mean([roc_auc_score(references == label, columns[label]) for label in present]))


class Rmse(LocalMetric):
    """Root of the mean squared error."""

    kind = "value"
    metric_name = "rmse"
    description = "Root of the mean squared error, in units of the target."

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        from sklearn.metrics import root_mean_squared_error

        return root_mean_squared_error(references, predictions)


class R2(LocalMetric):
    """Share of the references' variance that is explained; NaN for fewer than two examples."""

    kind = "value"
    metric_name = "r2"
    description = "Share of the references' variance that is explained."

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        from sklearn.metrics import r2_score

        return r2_score(references, predictions) if len(references) > 1 else float("nan")


_CLASSES: dict[str, type[LocalMetric]] = {
    metric.metric_name: metric for metric in (Accuracy, F1Macro, RocAuc, Rmse, R2)
}
assert set(_CLASSES) == set(METRICS)


def load_metric(name: str, **kwargs: Any) -> LocalMetric:
    """Return a metric by name, with or without the prefix `eval_`.

    Args:
        name: One of accuracy, f1_macro, roc_auc, rmse, r2.
        **kwargs: Passed on to `evaluate.Metric`.

    Raises:
        ValueError: With the known names and the nearest one.
    """
    bare = name.removeprefix("eval_") if isinstance(name, str) else name
    if bare not in _CLASSES:
        hint = nearest(str(bare), METRICS)
        raise ValueError(f"There is no metric {name!r}.{hint} Known metrics: {', '.join(METRICS)}.")
    return _CLASSES[bare](**kwargs)


def _several_labels(name: str, logits: np.ndarray, references: np.ndarray) -> float:
    """A metric of several labels at once: macro means over the labels; accuracy counts examples with no label wrong."""
    from sklearn.metrics import f1_score, roc_auc_score

    predictions = logits > 0
    if name == "accuracy":
        return float((predictions == references).all(axis=1).mean())
    if name == "f1_macro":
        return float(f1_score(references, predictions, average="macro", zero_division=0.0))
    # Of a label that all or none have there is no curve.
    told = references.any(axis=0) & ~references.all(axis=0)
    return float(roc_auc_score(references[:, told], logits[:, told], average="macro")) if told.any() else float("nan")


def score_logits(name: str, logits: Any, references: Any) -> float:
    """Compute a metric straight from a model's output on a whole split.

    Args:
        name: Metric name, as for `load_metric`.
        logits: (examples, classes) for classification, (examples,) or (examples, 1) for regression.
        references: Label ids or target values, (examples,); for several labels at once, 0 or 1, (examples, classes).
    """
    metric = load_metric(name)
    logits = np.asarray(logits, dtype=np.float64)
    if np.ndim(references) == 2 and metric.kind != "value":
        return _several_labels(metric.metric_name, logits, np.asarray(references) > 0.5)
    if metric.kind == "label":
        predictions = logits.argmax(-1)
    elif metric.kind == "scores":
        # Softmax, since raw logits of different examples are not on one scale.
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        predictions = shifted / shifted.sum(-1, keepdims=True)
    else:
        predictions = logits.reshape(len(logits))
    return metric.compute(predictions=predictions, references=np.asarray(references))[metric.metric_name]
