"""Baselines: published numbers, and what is said when one cannot run."""

from pathlib import Path

import numpy as np
import pytest

from neverscratch.recipes.baselines import baseline_scores
from neverscratch.tasks import Task, TaskSpec, load_task


def scores(task: Task) -> dict[str, dict]:
    found = baseline_scores(task.spec, *(task.splits[name] for name in ("train", "validation", "test")))
    assert [set(entry) for entry in found] == [{"name", "validation", "test", "note"}] * len(found)
    return {entry["name"]: entry for entry in found}


def test_digits() -> None:
    found = scores(load_task("digits"))
    assert list(found) == ["majority class", "1-NN (Euclidean)", "logistic regression"]
    assert found["majority class"]["test"] == pytest.approx(0.1)
    assert found["1-NN (Euclidean)"]["test"] == pytest.approx(0.978, abs=5e-4)
    # 0.967 is the plain one below; the choice of C on validation costs one of 360 here.
    assert found["logistic regression"]["test"] == pytest.approx(0.967, abs=4e-3)
    assert found["logistic regression"]["note"].startswith("C=10, chosen on validation among 0.001, 0.01")


def test_digits_plain_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    splits = load_task("digits").splits
    inputs = {name: split["image"][:].reshape(len(split), 64) / 16 for name, split in splits.items()}
    model = LogisticRegression(max_iter=1000).fit(inputs["train"], splits["train"]["label"][:])
    assert model.score(inputs["test"], splits["test"]["label"][:]) == pytest.approx(0.967, abs=5e-4)


def test_gunpoint() -> None:
    found = scores(load_task("gunpoint"))
    assert found["majority class"]["test"] == pytest.approx(74 / 150)
    # On the official 50 training series it is 0.913; a fifth of them is held out here.
    assert found["1-NN (Euclidean)"]["test"] == pytest.approx(0.853, abs=5e-4)
    assert found["logistic regression"]["test"] > 0.7


@pytest.mark.filterwarnings("ignore:The .* training examples")
def test_subset_with_absent_labels() -> None:
    found = scores(load_task("digits", train_size=5))
    assert 0.1 < found["logistic regression"]["test"] < 0.6
    alone = scores(load_task("digits", train_size=1))
    assert alone["logistic regression"]["test"] is None
    assert alone["logistic regression"]["note"] == "left out: the training examples have a single label"


def test_unequal_lengths_are_explained(tmp_path: Path) -> None:
    rows = "1\t1\t2\n2\t3\tNaN\n1\t5\t6\n2\t7\t8\n2\t7\t9\n2\t8\t9\n"
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Toy_{part}.tsv").write_text(rows)
    found = scores(load_task("ucr:Toy", tmp_path))
    assert found["majority class"]["test"] == pytest.approx(4 / 6)
    for name in ("1-NN (Euclidean)", "logistic regression"):
        assert found[name]["validation"] is None and found[name]["test"] is None
        assert found[name]["note"] == "left out: the sequences have unequal lengths, and it needs one fixed length"


def toy(modality: str, problem_type: str = "single_label_classification", **fields) -> TaskSpec:
    labels = None if problem_type == "regression" else ("a", "b")
    metric = "rmse" if labels is None else "accuracy"
    return TaskSpec(
        name="toy", title="", modality=modality, num_channels=1, labels=labels, num_levels=None, length=20,
        metric=metric, greater_is_better=labels is not None, chance=0.5, license="", citation="", source="",
        version=1, problem_type=problem_type, **fields,
    )  # fmt: skip


def found(spec: TaskSpec, split: dict) -> dict[str, dict]:
    return {entry["name"]: entry for entry in baseline_scores(spec, split, split, split)}


def test_regression() -> None:
    x = np.random.default_rng(0).normal(size=(40, 20, 1))
    target = 3 * x[:, 2, 0] + 100
    scores = found(toy("values", "regression"), {"values": x, "label": target})
    assert list(scores) == ["mean of the training targets", "ridge regression"]
    assert scores["mean of the training targets"]["test"] == pytest.approx(target.std())
    assert scores["ridge regression"]["test"] < 0.1 * target.std()


def test_texts_symbols_and_pairs() -> None:
    label = np.array([0, 1] * 10)
    texts = ["abab cd", "xyz xyz"] * 10
    scores = found(toy("text", unit="bytes"), {"text": texts, "label": label})
    assert list(scores) == ["majority class", "logistic regression on character n-grams"]
    assert scores["logistic regression on character n-grams"]["test"] == 1.0
    symbols = {"tokens": [text.split() for text in texts], "label": label}
    assert found(toy("tokens", unit="symbols"), symbols)["logistic regression on symbol n-grams"]["test"] == 1.0
    pairs = {"text": texts, "text_pair": ["xyz xyz"] * 20, "label": label}
    assert (
        found(toy("text", unit="bytes", is_pair=True), pairs)["logistic regression on character n-grams"]["test"] == 1
    )


def test_audio() -> None:
    time = np.arange(4000) / 8000
    clips = [(8000 * np.sin(2 * np.pi * f * time)).astype(np.int16) for f in (300, 2000) * 5]
    scores = found(toy("audio"), {"audio": clips, "label": np.array([0, 1] * 5)})
    assert scores["logistic regression on the spectrum"]["test"] == 1.0


def test_large_training_parts_and_several_labels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neverscratch.recipes.baselines.MOST_NUMBERS", 10)
    split = {"values": np.zeros((4, 20, 1)), "label": np.array([0, 1, 0, 1])}
    scores = found(toy("values"), split)
    assert scores["logistic regression"]["note"].startswith("left out: the training part is too large")
    assert found(toy("values", "multi_label_classification"), split) == {}
