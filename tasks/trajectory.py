"""`trajectory`: a toy task in which only products of neighbouring points carry the label. Made in memory, from a seed.

An example is a path of points in the plane (or in `dim` dimensions). Each coordinate is a stationary autoregression of
order one, x_t = phi x_(t-1) + sqrt(1 - phi^2) e_t, and the label says which of two phi was at work. Every path is
centred and divided by the root of its mean squared radius. Each single point is normal with the same variance for both
labels, so that a model must learn to look at neighbours; `lag_products` is the classifier that does so by hand.

`kind="turning-walk"` is the negative control: unit steps whose heading turns left or right. The turn shows at every
lag, so that looking at neighbours is not needed, and self-pretraining has nothing to teach.

The task after "Towards Understanding Self-Pretraining" (arXiv 2605.21070), whose own generator is not published: both
generators, their sizes and their numbers are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .base import SPLITS, Task, TaskEntry, TaskSpec, check_seed

VERSION = 1
KINDS = ("ou", "turning-walk")
TURNS = ("right", "left")
_LENGTH, _DIM, _PHI = 32, 2, (0.5, 0.8)
_SIZES = {"num_train": 1000, "num_validation": 2000, "num_test": 2000}
_WALK = {"omega": 0.3, "hold": 0.3, "noise": 0.05}

ENTRIES = {
    "trajectory": TaskEntry(
        title="Toy trajectories",
        modality="values",
        length=_LENGTH,
        classes=2,
        sizes="1,000/2,000/2,000",
        metric="accuracy",
        chance=0.5,
        license="None needed: made by this package",
        source="made in memory from a seed, after arXiv:2605.21070",
        options={
            "kind": "'ou' (default): correlated paths; 'turning-walk': the negative control",
            "length": f"points in a path; {_LENGTH} by default",
            "dim": f"coordinates of a point, for 'ou'; {_DIM} by default",
            "phi": f"correlation of neighbours for each label, for 'ou'; {list(_PHI)} by default, from 0 to below 1",
            "omega": f"turn in each step in radians, for 'turning-walk'; {_WALK['omega']} by default",
            "hold": f"deviation of the heading in each step, for 'turning-walk'; {_WALK['hold']} by default",
            "noise": f"deviation of what is added to each point, for 'turning-walk'; {_WALK['noise']} by default",
            "num_train": "training examples; 1000 by default",
            "num_validation": "validation examples; 2000 by default",
            "num_test": "test examples; 2000 by default",
            "seed": "of the data; 0 by default",
        },
    ),
}


def random_stream(seed: int, part: int) -> np.random.RandomState:
    """Random numbers of a part of the data; the same in every version of numpy."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, part])))


def ou_trajectory(
    num: int, length: int, phi: Sequence[float], dim: int, random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Correlated paths.

    Args:
        num: Number of paths.
        length: Points in a path, at least 2.
        phi: Correlation of neighbours for label 0 and label 1, each from 0 to below 1. With opposite signs the two
            labels would cancel in what masked points tell of their neighbours.
        dim: Coordinates of a point.
        random: Source of random numbers.

    Returns:
        Paths (num, length, dim) float32, and labels (num,).
    """
    labels = random.randint(0, 2, num)
    weight = np.asarray(phi, dtype=np.float64)[labels][:, None]  # (num, 1)
    noise = random.standard_normal((length, num, dim))
    points = np.empty((length, num, dim))
    points[0] = noise[0]
    for step in range(1, length):
        points[step] = weight * points[step - 1] + np.sqrt(1 - weight**2) * noise[step]
    return normalised(points.swapaxes(0, 1)), labels


def turning_walk(
    num: int, length: int, omega: float, hold: float, noise: float, random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Walks of unit steps that turn right (label 0) or left (1) by `omega` a step; the negative control.

    Args:
        num: Number of walks.
        length: Points in a walk, at least 2.
        omega: Turn in each step, radians.
        hold: Deviation of the heading in each step, radians.
        noise: Deviation of what is added to each point once the walk is centred and scaled.
        random: Source of random numbers.

    Returns:
        Walks (num, length, 2) float32, and labels (num,).
    """
    labels = random.randint(0, 2, num)
    turns = (2 * labels - 1)[:, None] * omega + hold * random.standard_normal((num, length))
    heading = random.uniform(0, 2 * np.pi, (num, 1)) + np.cumsum(turns, axis=1)
    points = normalised(np.cumsum(np.stack([np.cos(heading), np.sin(heading)], axis=-1), axis=1))
    return (points + noise * random.standard_normal(points.shape)).astype(np.float32), labels


def normalised(points: np.ndarray) -> np.ndarray:
    """Paths (num, length, dim) centred and divided by the root of their mean squared radius, float32."""
    centred = points - points.mean(axis=1, keepdims=True)
    radius = np.sqrt((centred**2).sum(axis=-1, keepdims=True).mean(axis=1, keepdims=True))
    return (centred / radius).astype(np.float32)


def lag_products(paths: np.ndarray, lag: int = 1) -> np.ndarray:
    """Mean inner product of points `lag` steps apart, (num,); with `lag=1` the score of the reference classifier."""
    return (paths[:, :-lag] * paths[:, lag:]).sum(axis=-1).mean(axis=1)


def turn_products(paths: np.ndarray, lag: int = 1) -> np.ndarray:
    """Mean sine of the turn between steps of a path in the plane `lag` apart, (num,): positive is left."""
    steps = np.diff(paths, axis=1)
    first, second = steps[:, :-lag], steps[:, lag:]
    return (first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]).mean(axis=1)


def threshold_accuracy(
    train_scores: np.ndarray, train_labels: np.ndarray, scores: np.ndarray, labels: np.ndarray
) -> float:
    """Accuracy of the best threshold on the training scores, in either direction, on other scores."""
    order = np.argsort(train_scores, kind="stable")
    ranked, ones = train_scores[order], np.cumsum(train_labels[order])
    # Above the k-th score is label 1: right are the zeros up to k and the ones after it.
    right = (np.arange(1, len(ones) + 1) - ones) + (ones[-1] - ones)
    upward, downward = int(right.argmax()), int(right.argmin())
    is_up = right[upward] >= len(ones) - right[downward]
    cut = ranked[upward if is_up else downward]
    return float(np.mean((scores > cut) == (np.asarray(labels) == (1 if is_up else 0))))


def reference_accuracy(task: Task, lag: int = 1) -> float:
    """Test accuracy of the reference classifier: a threshold on `lag_products`, fitted on the training part."""
    train, test = task.splits["train"], task.splits["test"]
    scores = [lag_products(np.stack(list(split["values"])), lag) for split in (train, test)]
    return threshold_accuracy(scores[0], np.asarray(train["label"][:]), scores[1], np.asarray(test["label"][:]))


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}={value!r} is out of range; use a whole number from {least} up.")
    return int(value)


def _number(name: str, value: Any, least: float, below: float) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not least <= value < below:
        limits = f"from {least:g}" + (f" to below {below:g}" if np.isfinite(below) else " up")
        raise ValueError(f"{name}={value!r} is out of range; use a number {limits}.")
    return float(value)


def check_options(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a generator, filled in.

    Raises:
        ValueError: For one out of range, or one of the other generator.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; use one of {', '.join(map(repr, KINDS))}.")
    own, other = (("phi", "dim"), tuple(_WALK)) if kind == "ou" else (tuple(_WALK), ("phi", "dim"))
    for name in other:
        if given[name] is not None:
            raise ValueError(
                f"{name}={given[name]!r} is not for kind={kind!r}, whose own options are {', '.join(own)}."
            )
    if kind == "turning-walk":
        return {
            name: default if given[name] is None else _number(name, given[name], 0.0, np.inf)
            for name, default in _WALK.items()
        }
    phi = _PHI if given["phi"] is None else given["phi"]
    if not isinstance(phi, Sequence) or isinstance(phi, str) or len(phi) != 2 or phi[0] == phi[1]:
        raise ValueError(f"phi={phi!r} is out of range; give two different numbers from 0 to below 1, one a label.")
    dim = _DIM if given["dim"] is None else _count("dim", given["dim"], 1)
    return {"phi": [_number("phi", value, 0.0, 1.0) for value in phi], "dim": dim}


def load(
    name: str = "trajectory",
    data_dir: Path | None = None,
    *,
    kind: str = "ou",
    length: int = _LENGTH,
    dim: int | None = None,
    phi: Sequence[float] | None = None,
    omega: float | None = None,
    hold: float | None = None,
    noise: float | None = None,
    num_train: int = _SIZES["num_train"],
    num_validation: int = _SIZES["num_validation"],
    num_test: int = _SIZES["num_test"],
    seed: int = 0,
) -> Task:
    """Make the paths: columns `values` (length, dim) float32, `label`, `example_id` (train, validation, test).

    Raises:
        ValueError: For an option out of range, or a `data_dir`, as nothing is read.
    """
    if data_dir is not None:
        raise ValueError(f"data_dir={str(data_dir)!r} was given, but {name} is made in memory; leave it out.")
    own = check_options(kind, {"phi": phi, "dim": dim, "omega": omega, "hold": hold, "noise": noise})
    length, seed = _count("length", length, 3), check_seed("seed", seed)
    sizes = {"num_train": num_train, "num_validation": num_validation, "num_test": num_test}
    sizes = {key: _count(key, value, 1) for key, value in sizes.items()}
    make = ou_trajectory if kind == "ou" else turning_walk
    parts = [make(num, length, **own, random=random_stream(seed, part)) for part, num in enumerate(sizes.values())]
    entry = ENTRIES["trajectory"]
    settings = ", ".join(f"{key} {value}" for key, value in own.items())
    labels = tuple(f"phi={value:g}" for value in own["phi"]) if kind == "ou" else TURNS
    spec = TaskSpec(
        name=name,
        title=entry.title if kind == "ou" else f"{entry.title} (turning walk)",
        modality="values",
        num_channels=parts[0][0].shape[2],
        labels=labels,
        num_levels=None,
        length=length,
        metric=entry.metric,
        greater_is_better=True,
        chance=0.5,
        license=entry.license,
        citation="After: Towards Understanding Self-Pretraining. arXiv:2605.21070.",
        source=entry.source,
        version=VERSION,
        notes=f"Generator {kind}: {settings}, seed {seed}; generator and numbers are ours, not the paper's.",
    )
    return Task(spec, _splits(parts, labels), {"kind": kind, "length": length, **own, **sizes, "seed": seed})


def _splits(parts: list[tuple[np.ndarray, np.ndarray]], labels: tuple[str, ...]) -> Any:
    import datasets

    features = datasets.Features(
        {
            "values": datasets.Array2D(parts[0][0].shape[1:], "float32"),
            "label": datasets.ClassLabel(names=list(labels)),
            "example_id": datasets.Value("int64"),
        }
    )
    splits, start = {}, 0
    for split, (paths, ids) in zip(SPLITS, parts, strict=True):
        columns = {"values": paths, "label": ids, "example_id": np.arange(start, start + len(ids))}
        splits[split] = datasets.Dataset.from_dict(columns, features=features)
        start += len(ids)
    return datasets.DatasetDict(splits).with_format("numpy")
