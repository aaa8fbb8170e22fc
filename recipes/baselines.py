"""Plain baselines on the same raw examples, so that a table shows what a sequence model has to beat."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..tasks.base import METRICS, TaskSpec
from ..tasks.metrics import score_logits

# Inverse regularisation strengths tried for logistic regression.
C_GRID = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
MAX_ITERATIONS = 1000


def flat_inputs(spec: TaskSpec, split: Any) -> np.ndarray | None:
    """Return a split's raw inputs as (examples, steps * channels) float64, or None if lengths differ."""
    arrays = [np.asarray(array, dtype=np.float64) for array in split[spec.modality][:]]
    if len({array.shape for array in arrays}) != 1:
        return None
    return np.stack(arrays).reshape(len(arrays), -1)


def baseline_scores(spec: TaskSpec, train: Any, validation: Any, test: Any) -> list[dict[str, Any]]:
    """Score simple classifiers on a task's raw splits.

    - Majority class: the most frequent label of the training part, always.
    - 1-NN (Euclidean): the label of the nearest training example, on the raw values.
    - Logistic regression: values standardised by the training part; the strength C is chosen on validation.

    Args:
        spec: The task's description; single-label classification.
        train: Training examples, a `datasets.Dataset` (or any mapping of columns).
        validation: Validation examples.
        test: Test examples.

    Returns:
        One entry a baseline: `name`, `validation` and `test` (values of `spec.metric`), `note` (what was chosen). A
        baseline that cannot run has None for both values and its reason as note.
    """
    if spec.problem_type != "single_label_classification":
        raise ValueError(
            f"Baselines are for single-label classification, but {spec.name} is {spec.problem_type}; leave them out."
        )
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train_labels, validation_labels, test_labels = (
        np.asarray(split["label"][:]) for split in (train, validation, test)
    )

    def score(model: Any, inputs: np.ndarray, references: np.ndarray) -> float:
        # Labels absent from training get the probability 0.
        probabilities = np.zeros((len(inputs), spec.num_labels))
        probabilities[:, model.classes_] = model.predict_proba(inputs)
        with np.errstate(divide="ignore"):
            return score_logits(spec.metric, np.log(probabilities), references)

    def entry(name: str, model: Any, inputs: dict[str, np.ndarray], note: str = "") -> dict[str, Any]:
        return {
            "name": name,
            "validation": score(model, inputs["validation"], validation_labels),
            "test": score(model, inputs["test"], test_labels),
            "note": note,
        }

    nothing = {"validation": np.zeros((len(validation_labels), 1)), "test": np.zeros((len(test_labels), 1))}
    majority = DummyClassifier().fit(np.zeros((len(train_labels), 1)), train_labels)
    majority_name = (spec.labels or ())[int(majority.predict(nothing["test"][:1])[0])]
    scores = [entry("majority class", majority, nothing, f"always {majority_name!r}")]

    def skip(name: str, reason: str) -> None:
        scores.append({"name": name, "validation": None, "test": None, "note": f"left out: {reason}"})

    nearest_name, regression_name = "1-NN (Euclidean)", "logistic regression"
    splits = {"train": train, "validation": validation, "test": test}
    flat = {name: flat_inputs(spec, split) for name, split in splits.items()}
    inputs = {name: array for name, array in flat.items() if array is not None}
    if len({array.shape[1] for array in inputs.values()}) != 1 or len(inputs) != 3:
        for name in (nearest_name, regression_name):
            skip(name, "the sequences have unequal lengths, and it needs one fixed length")
        return scores

    nearest = KNeighborsClassifier(n_neighbors=1, algorithm="brute").fit(inputs["train"], train_labels)
    scores.append(entry(nearest_name, nearest, inputs))

    if len(np.unique(train_labels)) < 2:
        skip(regression_name, "the training examples have a single label")
        return scores
    best: tuple[float, float, Any] | None = None
    with warnings.catch_warnings():
        # The weakest regularisation may not settle on separable data, which does not matter for its choice.
        warnings.simplefilter("ignore")
        for strength in sorted(C_GRID, key=lambda strength: abs(np.log(strength))):
            model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MAX_ITERATIONS))
            model.fit(inputs["train"], train_labels)
            value = score(model, inputs["validation"], validation_labels)
            value = value if METRICS[spec.metric] else -value
            # On a tie, which small validation parts often give, the strength nearest to 1 stays.
            if best is None or value > best[0]:
                best = (value, strength, model)
    assert best is not None
    grid = ", ".join(f"{strength:g}" for strength in C_GRID)
    scores.append(entry(regression_name, best[2], inputs, f"C={best[1]:g}, chosen on validation among {grid}"))
    return scores
