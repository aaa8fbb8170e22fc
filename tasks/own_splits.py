"""Which of a user's examples train, validate and test, and what their labels are."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .base import SPLITS, stratified_order

PROBLEMS = ("auto", "classification", "regression", "multi_label")
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
_PART = {word: part for part, words in SPLIT_WORDS.items() for word in words}
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def split_word(text: str) -> str | None:
    """The part that a word names ("val" is "validation"), or None."""
    return _PART.get(text.strip().lower())


def split_of_name(path: Path) -> str | None:
    """The part that a file's name says it holds: `train.csv`, `GunPoint_TEST.ts`, `pairs.eval.tsv`, `trainx.npy`."""
    stem = path.name.split(".")[0] if path.suffix != ".tsv" else path.stem
    words = [word for word in re.split(r"[^a-z]+", path.name.lower()) if word]
    found = {_PART[word] for word in words if word in _PART}
    if not found and path.suffix == ".npy" and stem[-1:].lower() in ("x", "y"):
        found = {_PART[stem[:-1].lower()]} if stem[:-1].lower() in _PART else set()
    return found.pop() if len(found) == 1 else None


def is_number(text: str) -> bool:
    """Whether a label is a finite number in plain or exponent notation."""
    return bool(_NUMBER.fullmatch(text)) and bool(np.isfinite(float(text)))


def canonical(name: str) -> str:
    """A number without a needless fraction: "1.0" and "1e0" are "1"; other names as they are."""
    if not re.search(r"[.eE]", name):
        return name
    value = float(name)
    return str(int(value)) if value == int(value) else name


def sorted_names(names: Iterable[str]) -> list[str]:
    """By number if all are numbers, else as text."""
    distinct = set(names)
    return sorted(distinct, key=lambda name: (float(name), name)) if all(map(is_number, distinct)) else sorted(distinct)


@dataclass(frozen=True)
class Targets:
    """Labels of all examples.

    Attributes:
        problem_type: As in `TaskSpec`.
        names: Label names, or None for regression.
        values: Ids (N,) int64, targets (N,) float32, or 0 and 1 for each label (N, labels) float32.
        note: What was decided, and how to change it.
    """

    problem_type: str
    names: tuple[str, ...] | None
    values: np.ndarray
    note: str = ""

    @property
    def strata(self) -> np.ndarray | None:
        """Classes to spread evenly over the splits, or None."""
        return self.values if self.problem_type == "single_label_classification" else None


def decide_targets(raw: Sequence[Sequence[str]], has_lists: bool, problem: str, separator: str) -> Targets:
    """Class ids, numbers or several labels, from the labels as read.

    Raises:
        ValueError: If the labels do not fit `problem`, or there is a single class.
    """
    if has_lists and problem not in ("auto", "multi_label"):
        raise ValueError(f"The labels are lists, which problem={problem!r} cannot take; use problem='multi_label'.")
    if has_lists or problem == "multi_label":
        return _several(raw, has_lists, separator)
    names = [name for (name,) in raw]
    numeric = all(is_number(name) for name in set(names))
    note = ""
    if problem == "auto":
        problem = "classification"
        _refuse_words_among_fractions(names)
        distinct = set(map(canonical, set(names))) if numeric else set()
        fractions = [name for name in distinct if float(name) != int(float(name))]
        most = max(20, len(names) // 10)
        if fractions or len(distinct) > most:
            problem = "regression"
            why = f"such as {sorted_names(fractions)[0]}" if fractions else f"with {len(distinct)} distinct values"
            note = f"The labels are numbers {why}, so this is regression (problem=classification makes them classes)."
    if problem == "regression":
        if not numeric:
            odd = next(name for name in names if not is_number(name))
            raise ValueError(
                f"The label {odd!r} is no number, as problem='regression' needs; correct it, or leave problem out."
            )
        with np.errstate(over="ignore"):
            targets = np.array([float(name) for name in names]).astype(np.float32)
        if not np.isfinite(targets).all():
            large = float(names[int(np.argmin(np.isfinite(targets)))])
            raise ValueError(
                f"The target {large:g} is too large for 32-bit floats; rescale the targets, or correct it."
            )
        if np.ptp(targets) == 0:
            raise ValueError(f"Every target is {targets[0]:g}; there is nothing to predict.")
        return Targets("regression", None, targets, note)
    names = [canonical(name) for name in names] if numeric else names
    labels = sorted_names(names)
    if len(labels) < 2:
        raise ValueError(f"Every label is {labels[0]!r}; a classification needs at least two classes.")
    if len(labels) == len(names) > 2:
        raise ValueError(
            f"Each of the {len(names)} examples has a label of its own, so there is nothing to learn; is label the "
            f"right column? For numbers to predict, set problem=regression."
        )
    _warn_of_lookalikes(labels)
    ids = {label: index for index, label in enumerate(labels)}
    return Targets("single_label_classification", tuple(labels), np.array([ids[name] for name in names]), note)


def _warn_of_lookalikes(labels: Sequence[str]) -> None:
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(label.strip().casefold(), []).append(label)
    pairs = [found for found in alike.values() if len(found) > 1]
    if pairs:
        warnings.warn(
            f"{len(pairs)} label(s) are written in more than one way, such as {' and '.join(map(repr, pairs[0]))}; "
            f"they "
            f"count as different classes, write them alike if they are one.",
            stacklevel=4,
        )


def _refuse_words_among_fractions(names: Sequence[str]) -> None:
    distinct = set(names)
    fractions = [name for name in distinct if is_number(name) and float(name) % 1]
    words = sorted(name for name in distinct if not is_number(name))
    if words and 2 * len(fractions) > len(distinct):
        raise ValueError(
            f"The label {words[0]!r} stands among numbers such as {sorted_names(fractions)[0]}; correct it or remove "
            f"its row, or set problem=classification to take every label as a word."
        )


def _several(raw: Sequence[Sequence[str]], has_lists: bool, separator: str) -> Targets:
    sets = raw if has_lists else [[part.strip() for part in name.split(separator) if part.strip()] for (name,) in raw]
    found = {name for names in sets for name in names}
    if found and all(map(is_number, found)):
        sets = [[canonical(name) for name in names] for names in sets]
    labels = sorted_names(name for names in sets for name in names)
    if len(labels) < 2:
        raise ValueError(f"Only {len(labels)} label is in the lists of labels; several labels need at least two.")
    ids = {label: index for index, label in enumerate(labels)}
    values = np.zeros((len(sets), len(labels)), dtype=np.float32)
    for row, names in enumerate(sets):
        values[row, [ids[name] for name in names]] = 1
    return Targets("multi_label_classification", tuple(labels), values)


def assign(
    parts: np.ndarray, missing: Sequence[str], targets: Targets, groups: Sequence[str | None] | None, seed: int
) -> np.ndarray:
    """Hold the missing parts out of "train", always the same for one seed.

    A fifth of the examples tests and a tenth validates, stratified by class; every class keeps an example in train.

    Args:
        parts: Part of each example as it was given, (N,).
        missing: "validation", "test" or both.
        targets: Of all examples.
        groups: Group of each example, or None: no group is divided.
        seed: Any whole number from 0 up.

    Raises:
        ValueError: If there are too few examples or groups, or a class has a single example.
    """
    parts = parts.copy()
    rows = np.flatnonzero(parts == "train")
    shares = {"test": TEST_SHARE, "validation": VALIDATION_SHARE}
    wanted = [part for part in ("test", "validation") if part in missing]
    if not wanted:
        return parts
    if len(rows) < len(wanted) + 1:
        raise ValueError(
            f"{len(rows)} example(s) cannot be divided into train and {' and '.join(wanted)}; give more, or files "
            f"named train, validation and test."
        )
    if groups is not None:
        own = np.array(groups)[rows]
        parts[rows] = _assign_groups(own, targets, rows, {part: shares[part] for part in wanted}, seed)
        return parts
    order = _holdout_order(rows, targets, seed)
    start = 0
    for place, part in enumerate(wanted):
        left = len(wanted) - place - 1
        size = min(max(1, round(shares[part] * len(rows))), len(order) - start - left)
        if size < 1:
            raise ValueError(
                f"{len(rows)} examples of {len(targets.names or ())} labels leave none for {part}; give more "
                f"examples, or files named train, validation and test."
            )
        parts[rows[order[start : start + size]]] = part
        start += size
    return parts


def _holdout_order(rows: np.ndarray, targets: Targets, seed: int) -> np.ndarray:
    """Places in `rows`, in the order in which they are held out; an example of each class is never among them."""
    labels = None if targets.strata is None else targets.strata[rows]
    order = stratified_order(labels, len(rows), seed)
    if labels is None:
        return order[:-1]
    ids, counts = np.unique(labels, return_counts=True)
    if (counts < 2).any():
        single = (targets.names or ())[int(ids[counts < 2][0])]
        raise ValueError(
            f"Label {single!r} has a single example, so none can be held out for validation or test; add examples, "
            f"remove its row, or give files named train, validation and test."
        )
    # The last of each class in this order always stays in train.
    last = {labels[index]: index for index in order}
    return np.array([index for index in order if last[labels[index]] != index])


def _assign_groups(
    groups: np.ndarray, targets: Targets, rows: np.ndarray, shares: dict[str, float], seed: int
) -> np.ndarray:
    """Whole groups to parts, so that sizes and classes come as near to the shares as a greedy choice brings them."""
    names, members = np.unique(groups, return_inverse=True)
    wanted = ["train", *shares]
    if len(names) < len(wanted):
        raise ValueError(
            f"{len(names)} group(s) cannot be divided into {', '.join(wanted)} without one on both sides; "
            f"at least {len(wanted)} are needed."
        )
    strata = targets.strata
    classes = np.zeros(len(rows), dtype=np.int64) if strata is None else strata[rows]
    counts = np.zeros((len(names), int(classes.max()) + 1))
    np.add.at(counts, (members, classes), 1)
    total = np.maximum(counts.sum(axis=0), 1)
    share = np.array([1 - sum(shares.values()), *shares.values()])
    have = np.zeros((len(wanted), counts.shape[1]))
    order = stratified_order(None, len(names), seed)
    # Large groups first: the small ones then even out what these leave.
    order = order[np.argsort(-counts.sum(axis=1)[order], kind="stable")]
    chosen = np.zeros(len(names), dtype=np.int64)
    for group in order:
        before = ((have / total - share[:, None]) ** 2).sum(axis=1)
        after = (((have + counts[group]) / total - share[:, None]) ** 2).sum(axis=1)
        chosen[group] = int(np.argmin(after - before))
        have[chosen[group]] += counts[group]
    for place in range(len(wanted)):
        if not (chosen == place).any():
            spare = [group for group in order[::-1] if (chosen == chosen[group]).sum() > 1]
            chosen[spare[0]] = place
    return np.array(wanted)[chosen[members]]


def check_parts(parts: np.ndarray, targets: Targets, groups: Sequence[str | None] | None, held_out: bool) -> None:
    """Refuse labels that training never sees, and groups on both sides.

    Raises:
        ValueError: With their names.
    """
    for part in SPLITS:
        if not (parts == part).any():
            raise ValueError(f"The {part} part holds no examples; every part needs at least one.")
    if groups is not None:
        sides: dict[str, set[str]] = {}
        for group, part in zip(groups, parts, strict=True):
            sides.setdefault(str(group), set()).add(str(part))
        both = sorted(group for group, seen in sides.items() if len(seen) > 1)
        if both:
            raise ValueError(
                f"{len(both)} group(s) are in more than one part, among them {both[0]!r}; keep each in one."
            )
    if targets.names is None:
        return
    if targets.problem_type == "single_label_classification":
        seen_ids = set(targets.values[parts == "train"].tolist())
    else:
        seen_ids = set(np.flatnonzero(targets.values[parts == "train"].any(axis=0)).tolist())
    unseen = [name for index, name in enumerate(targets.names) if index not in seen_ids]
    if unseen:
        mend = "another holdout_seed may do" if held_out else "correct the rows or move some to train"
        raise ValueError(
            f"Label(s) {', '.join(map(repr, unseen))} occur only in validation or test, never in train; {mend}."
        )
    if targets.problem_type == "single_label_classification" and len(seen_ids) < 2:
        raise ValueError(
            f"The training part has the single label {targets.names[seen_ids.pop()]!r}; it needs at least two."
        )
