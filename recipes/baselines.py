"""Plain baselines on the same raw examples, so that a table shows what a sequence model has to beat."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..tasks.base import METRICS, SPLITS, TaskSpec
from ..tasks.metrics import score_logits

# Strengths tried: inverse ones for logistic regression, plain ones for ridge regression.
GRID = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
MAX_ITERATIONS = 1000
# Larger training parts are left out: these baselines hold all examples in memory, and take longer than the models then.
# The 45,000 pictures of CIFAR-10 and the 8,000 windows of BIDMC are below, the 160,000 pictures of Pathfinder are not.
MOST_NUMBERS = 7 * 10**7
# A clip's spectrum is averaged over so many bands of frequency and stretches of time.
BANDS, STRETCHES = 32, 8

Splits = dict[str, Any]
Entry = dict[str, Any]


class LeftOut(Exception):
    """Why a baseline cannot run on these data."""


def flat_inputs(spec: TaskSpec, split: Any) -> np.ndarray | None:
    """Return a split's raw inputs as (examples, steps * channels) float64, or None if lengths differ."""
    arrays = [np.asarray(array, dtype=np.float64) for array in split[spec.modality][:]]
    if len({array.shape for array in arrays}) != 1:
        return None
    return np.stack(arrays).reshape(len(arrays), -1)


def flat_features(spec: TaskSpec, splits: Splits) -> dict[str, np.ndarray]:
    if spec.length * (spec.num_channels or 1) * len(splits["train"]["label"]) > MOST_NUMBERS:
        raise LeftOut("the training part is too large for a model that holds it in memory")
    flat = {part: flat_inputs(spec, split) for part, split in splits.items()}
    inputs = {part: array for part, array in flat.items() if array is not None}
    if len(inputs) != len(splits) or len({array.shape[1] for array in inputs.values()}) != 1:
        raise LeftOut("the sequences have unequal lengths, and it needs one fixed length")
    return inputs


def spectrum_features(spec: TaskSpec, splits: Splits) -> dict[str, np.ndarray]:
    """Logarithm of the mean magnitude in bands of frequency and stretches of time, (examples, bands * stretches)."""

    def features(clip: np.ndarray) -> np.ndarray:
        parts = np.array_split(np.asarray(clip, dtype=np.float64).ravel(), STRETCHES)
        spectra = [np.abs(np.fft.rfft(part, n=max(len(part), 2 * BANDS))) for part in parts]
        return np.log1p([[band.mean() for band in np.array_split(spectrum, BANDS)] for spectrum in spectra]).ravel()

    return {part: np.stack([features(clip) for clip in split["audio"]]) for part, split in splits.items()}


def _texts(spec: TaskSpec, split: Any, column: str) -> list[str]:
    limit = spec.max_length
    if spec.modality == "tokens":
        return [" ".join(symbols[:limit]) for symbols in split[column]]
    return [text[:limit] for text in split[column]]


def _vectorizer(spec: TaskSpec) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    if spec.modality == "tokens":
        return TfidfVectorizer(token_pattern=r"\S+", lowercase=False, ngram_range=(1, 2), sublinear_tf=True)
    return TfidfVectorizer(
        analyzer="char", lowercase=False, ngram_range=(1, 4), sublinear_tf=True, max_features=200_000
    )


def ngram_features(spec: TaskSpec, splits: Splits) -> dict[str, Any]:
    """TF-IDF of n-grams, one to four characters or one to two symbols; of a pair, the cosine between its members."""
    if len(splits["train"]["label"]) * min(spec.length, spec.max_length or spec.length) > MOST_NUMBERS:
        raise LeftOut("the training part is too large for a model that holds it in memory")
    vectorizer, name = _vectorizer(spec), spec.modality
    if not spec.is_pair:
        vectorizer.fit(_texts(spec, splits["train"], name))
        return {part: vectorizer.transform(_texts(spec, split, name)) for part, split in splits.items()}
    vectorizer.fit([*_texts(spec, splits["train"], name), *_texts(spec, splits["train"], f"{name}_pair")])
    features = {}
    for part, split in splits.items():
        first, second = (vectorizer.transform(_texts(spec, split, column)) for column in (name, f"{name}_pair"))
        features[part] = np.asarray(first.multiply(second).sum(axis=1)).reshape(-1, 1)
    return features


# Kind of input -> the name of its regression baseline, and what that is computed on.
_FEATURES: dict[str, tuple[str, Callable[[TaskSpec, Splits], dict[str, Any]]]] = {
    "values": ("", flat_features),
    "image": ("", flat_features),
    "audio": (" on the spectrum", spectrum_features),
    "text": (" on character n-grams", ngram_features),
    "tokens": (" on symbol n-grams", ngram_features),
}


def baseline_scores(spec: TaskSpec, train: Any, validation: Any, test: Any) -> list[Entry]:
    """Score simple models on a task's raw splits.

    Classification:
    - Majority class: the most frequent label of the training part, always.
    - 1-NN (Euclidean), of series and images of one length: the label of the nearest training example, on raw values.
    - Logistic regression, on values standardised by the training part, n-grams or a spectrum; C chosen on validation.
    Regression: the mean of the training targets, and ridge regression on the same features, alpha chosen on validation.

    Args:
        spec: The task's description.
        train: Training examples, a `datasets.Dataset` (or any mapping of columns).
        validation: Validation examples.
        test: Test examples.

    Returns:
        One entry a baseline: `name`, `validation` and `test` (values of `spec.metric`), `note` (what was chosen). A
        baseline that cannot run has None for both values and its reason as note. Several labels have no baseline.
    """
    splits = dict(zip(SPLITS, (train, validation, test), strict=True))
    if spec.problem_type == "multi_label_classification":
        return []
    scorer = _RegressionScorer if spec.labels is None else _ClassScorer
    score = scorer(spec, splits)
    scores = [score.guess()]
    suffix, make_features = _FEATURES[spec.modality]
    names = [score.linear_name + suffix]
    if make_features is flat_features and spec.labels is not None:
        names.insert(0, "1-NN (Euclidean)")
    try:
        features = make_features(spec, splits)
    except LeftOut as reason:
        return scores + [_left_out(name, str(reason)) for name in names]
    for name in names:
        try:
            scores.append(score.nearest(name, features) if name.startswith("1-NN") else score.linear(name, features))
        except LeftOut as reason:
            scores.append(_left_out(name, str(reason)))
    return scores


def _left_out(name: str, reason: str) -> Entry:
    return {"name": name, "validation": None, "test": None, "note": f"left out: {reason}"}


class _Scorer:
    """Fits models on the training part and scores the other two."""

    linear_name: str

    def __init__(self, spec: TaskSpec, splits: Splits) -> None:
        self.spec = spec
        self.targets = {part: np.asarray(split["label"][:]) for part, split in splits.items()}
        self.nothing = {part: np.zeros((len(targets), 1)) for part, targets in self.targets.items()}

    def outputs(self, model: Any, inputs: Any) -> np.ndarray:
        """What a network's logits would be."""
        raise NotImplementedError

    def linear_model(self, strength: float) -> Any:
        raise NotImplementedError

    def score(self, model: Any, inputs: dict[str, Any], part: str) -> float:
        return score_logits(self.spec.metric, self.outputs(model, inputs[part]), self.targets[part])

    def entry(self, name: str, model: Any, inputs: dict[str, Any], note: str = "") -> Entry:
        values = {part: self.score(model, inputs, part) for part in ("validation", "test")}
        return {"name": name, **values, "note": note}

    def linear(self, name: str, inputs: dict[str, Any]) -> Entry:
        """A linear model whose strength of regularisation is chosen on validation."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if len(np.unique(self.targets["train"])) < 2:
            raise LeftOut("the training examples have a single label")
        best: tuple[float, float, Any] | None = None
        with warnings.catch_warnings():
            # The weakest regularisation may not settle on separable data, which does not matter for its choice.
            warnings.simplefilter("ignore")
            for strength in sorted(GRID, key=lambda strength: abs(np.log(strength))):
                model = self.linear_model(strength)
                # N-grams are sparse and have a scale already.
                if isinstance(inputs["train"], np.ndarray):
                    model = make_pipeline(StandardScaler(), model)
                model.fit(inputs["train"], self.targets["train"])
                value = self.score(model, inputs, "validation")
                value = value if METRICS[self.spec.metric] else -value
                # On a tie, which small validation parts often give, the strength nearest to 1 stays.
                if best is None or value > best[0]:
                    best = (value, strength, model)
        assert best is not None
        grid = ", ".join(f"{strength:g}" for strength in GRID)
        letter = "alpha" if self.spec.labels is None else "C"
        return self.entry(name, best[2], inputs, f"{letter}={best[1]:g}, chosen on validation among {grid}")


class _ClassScorer(_Scorer):
    linear_name = "logistic regression"

    def outputs(self, model: Any, inputs: Any) -> np.ndarray:
        # Labels absent from training get the probability 0.
        probabilities = np.zeros((inputs.shape[0], self.spec.num_labels))
        probabilities[:, model.classes_] = model.predict_proba(inputs)
        with np.errstate(divide="ignore"):
            return np.log(probabilities)

    def guess(self) -> Entry:
        from sklearn.dummy import DummyClassifier

        majority = DummyClassifier().fit(self.nothing["train"], self.targets["train"])
        name = (self.spec.labels or ())[int(majority.predict(self.nothing["test"][:1])[0])]
        return self.entry("majority class", majority, self.nothing, f"always {name!r}")

    def nearest(self, name: str, inputs: dict[str, Any]) -> Entry:
        from sklearn.neighbors import KNeighborsClassifier

        model = KNeighborsClassifier(n_neighbors=1, algorithm="brute").fit(inputs["train"], self.targets["train"])
        return self.entry(name, model, inputs)

    def linear_model(self, strength: float) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=strength, max_iter=MAX_ITERATIONS)


class _RegressionScorer(_Scorer):
    linear_name = "ridge regression"

    def outputs(self, model: Any, inputs: Any) -> np.ndarray:
        return model.predict(inputs).reshape(-1, 1)

    def guess(self) -> Entry:
        from sklearn.dummy import DummyRegressor

        mean = DummyRegressor().fit(self.nothing["train"], self.targets["train"])
        value = float(np.mean(self.targets["train"]))
        return self.entry("mean of the training targets", mean, self.nothing, f"always {value:.4g}")

    def nearest(self, name: str, inputs: dict[str, Any]) -> Entry:
        raise NotImplementedError

    def linear_model(self, strength: float) -> Any:
        from sklearn.linear_model import Ridge

        return Ridge(alpha=strength)
