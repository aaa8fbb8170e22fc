"""Means, paired differences and intervals over the runs of a study.

Two kinds of interval stand side by side, because they answer different questions.

* The **t interval over seeds** asks: were the study repeated with new seeds, where would the mean difference lie? It
  covers what the seed decides: initial weights, order, masks and, if only some training data is used, which.
  It treats the test split as fixed. It takes the differences as roughly normal, which three of them cannot show.
* The **bootstrap over test examples and seeds** asks: were both the test examples and the seeds others from the same
  sources? It covers the finite test split. With few seeds it is too narrow: resampling n seeds finds only (n - 1)/n of
  their variance, a third less for n = 3.

Neither covers other hyper-parameters, another validation/test split of the data, or other data. None is corrected for
looking at several comparisons; `corrected_interval` does that for the comparisons at equal steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .runs import Study

Verdict = Literal["higher", "lower", "unclear"]
# What lies below this share of the measurements is rounding: it is zero, and has no sign to judge or to print.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation (n - 1; `None` for one value) and range of some values."""

    n: int
    mean: float
    sd: float | None
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at the given confidence."""

    low: float
    high: float
    confidence: float = 0.95

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Paired:
    """Differences between two measurements of the same seeds.

    Attributes:
        seeds: The seeds both sides have, ascending.
        differences: One per seed.
        interval: 95% t interval of the mean difference; `None` for fewer than two seeds.
        sign_p: Two-sided exact sign test, zeros left out; `None` if all are zero. With three seeds it cannot fall
            below 0.25, with five not below 0.0625, so it can reach 0.05 only from six seeds on.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    sd: float | None
    interval: Interval | None
    sign_p: float | None

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def positive(self) -> int:
        return sum(d > 0 for d in self.differences)

    @property
    def negative(self) -> int:
        return sum(d < 0 for d in self.differences)


@dataclass(frozen=True)
class Term:
    """One side of a contrast: the test metric of a model's arm, added or (sign -1) taken away."""

    sign: int
    model: str
    arm: str


@dataclass(frozen=True)
class Contrast:
    """A signed sum of arms, paired by seed; positive = better, also for metrics where less is better."""

    terms: tuple[Term, ...]
    paired: Paired
    bootstrap: Interval | None

    @property
    def verdict(self) -> Verdict:
        """`higher` or `lower` only if the t interval excludes 0 and the bootstrap, where there is one, agrees.

        Differences that are all equal give a t interval of no width. That is chance (accuracies come in steps of one
        example), not certainty, so such a contrast is judged by the bootstrap alone and is unclear without one.
        """
        interval = self.paired.interval
        if interval is None or not interval.excludes_zero:
            return "unclear"
        if self.bootstrap is None:
            if not self.paired.sd:
                return "unclear"
        elif not self.bootstrap.excludes_zero or (self.bootstrap.low > 0) != (interval.low > 0):
            return "unclear"
        return "higher" if interval.low > 0 else "lower"


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and range; needs at least one value."""
    if not values:
        raise ValueError("There are no values to summarise; give at least one.")
    mean = _without_rounding(math.fsum(values) / len(values), values)
    return Summary(len(values), mean, _sd(values, mean), min(values), max(values))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t interval of the mean, n - 1 degrees of freedom; `None` for fewer than two values.

    For n = 3 the half-width is 4.30 standard errors, so a mean must be about 2.5 standard deviations from 0 to count.
    """
    summary = summarise(values)
    if summary.sd is None:
        return None
    half = float(stats.t.ppf(0.5 + confidence / 2, summary.n - 1)) * summary.sd / math.sqrt(summary.n)
    low, high = (_without_rounding(end, values) for end in (summary.mean - half, summary.mean + half))
    return Interval(low, high, confidence)


def corrected_interval(paired: Paired, comparisons: int, confidence: float = 0.95) -> Interval | None:
    """The t interval of one of `comparisons` means, at a confidence that holds for all of them together (Bonferroni).

    `None` for fewer than two seeds, and for differences that are all equal: no width stays none at any confidence.
    """
    if comparisons < 1:
        raise ValueError(f"{comparisons} comparisons cannot be corrected for; give 1 or more.")
    return t_interval(paired.differences, 1 - (1 - confidence) / comparisons) if paired.sd else None


def sign_test(differences: Sequence[float]) -> float | None:
    """Two-sided exact sign test against a fair coin, zeros left out; `None` if nothing is left."""
    signs = [d > 0 for d in differences if d != 0]
    return float(stats.binomtest(sum(signs), len(signs)).pvalue) if signs else None


def paired_differences(left: Mapping[int, float], right: Mapping[int, float]) -> Paired | None:
    """`left - right` for each seed both have; `None` if they share no seed."""
    seeds = sorted(set(left) & set(right))
    if not seeds:
        return None
    return paired_summary({s: left[s] - right[s] for s in seeds}, max(abs(v[s]) for v in (left, right) for s in seeds))


def paired_summary(differences: Mapping[int, float], scale: float | None = None) -> Paired:
    """Statistics of differences already taken, keyed by seed.

    `scale` is the largest measurement that went into them, `None` for the largest difference: differences that are
    equal but for rounding at that scale are made equal, since it would hide exact ties.
    """
    seeds = tuple(sorted(differences))
    scale = max(abs(d) for d in differences.values()) if scale is None else scale
    digits = -math.floor(math.log10(_ROUNDING * scale)) if _ROUNDING * scale > 0 else 0
    values = tuple(round(differences[s], digits) + 0.0 if scale else 0.0 for s in seeds)
    summary = summarise(values)
    return Paired(seeds, values, summary.mean, summary.sd, t_interval(values), sign_test(values))


def crossed_bootstrap(
    scores: NDArray[np.float64], resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval | None:
    """Percentile interval of the mean of `scores` (seeds, examples), resampling seeds and examples independently.

    Seeds and examples are crossed (every seed is tested on the same examples), so a resample draws rows and columns
    with replacement, each on its own; the pairing within an example and within a seed is kept because `scores` holds
    differences. `None` for fewer than two seeds or examples. The same `seed` gives the same interval.

    Columns that are equal are drawn together as one multinomial count, which is the same distribution and makes the
    cost independent of the number of test examples.

    Source: Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1(2). Such intervals are slightly wide,
    but with few seeds the seeds' own part is too narrow, see the module's docstring.
    """
    num_seeds, num_examples = scores.shape
    if num_seeds < 2 or num_examples < 2:
        return None
    rng = np.random.default_rng(seed)
    patterns, counts = np.unique(scores, axis=1, return_counts=True)  # (S, K), (K,)
    rows = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=resamples) / num_seeds  # (R, S)
    columns = rng.multinomial(num_examples, counts / num_examples, size=resamples) / num_examples  # (R, K)
    means = np.einsum("rk,rk->r", rows @ patterns, columns)
    tail = (1 - confidence) / 2
    low, high = (_without_rounding(float(end), patterns.ravel()) for end in np.quantile(means, [tail, 1 - tail]))
    return Interval(low, high, confidence)


def mean_total(study: Study, model: str, arm: str, quantity: str, stage: str | None = None) -> float | None:
    """Mean over seeds of `steps`, `examples_seen`, `flops` or `seconds`; `None` if a run does not give it."""
    runs = study.select(model, arm)
    values = [float(r.steps(stage)) if quantity == "steps" else r.total(quantity, stage) for r in runs]
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def contrast(study: Study, terms: Sequence[Term]) -> Contrast | None:
    """Signed sum of arms for every seed that has all of them; `None` if no seed has.

    The bootstrap is given for accuracy, when all runs involved have predictions of the same test examples.
    """
    orientation = 1.0 if study.greater_is_better else -1.0
    differences: dict[int, float] = {}
    scale = 0.0
    scores: list[NDArray[np.float64]] | None = []
    ids: NDArray[np.int64] | None = None
    for seed in study.seeds:
        runs = [study.get(term.model, term.arm, seed) for term in terms]
        whole = [run for run in runs if run is not None]
        if len(whole) < len(terms):
            continue
        scale = max(scale, *(abs(run.test) for run in whole))
        differences[seed] = orientation * math.fsum(t.sign * r.test for t, r in zip(terms, whole, strict=True))
        predictions = [r.predictions for r in whole]
        row: NDArray[np.float64] | None = None
        for term, prediction in zip(terms, predictions, strict=True):
            if prediction is None or (ids is not None and not np.array_equal(ids, prediction.example_ids)):
                scores = None
                break
            ids = prediction.example_ids
            part = term.sign * prediction.correct.astype(np.float64)
            row = part if row is None else row + part
        if scores is not None and row is not None:
            scores.append(row)
    if not differences:
        return None
    usable = study.metric == "accuracy" and scores
    bootstrap = crossed_bootstrap(np.stack(scores)) if usable and scores else None
    return Contrast(tuple(terms), paired_summary(differences, scale), bootstrap)


def gain(study: Study, model: str, arm: str, over: str) -> Contrast | None:
    """How much better `arm` is than `over`, for one model, paired by seed."""
    return contrast(study, [Term(1, model, arm), Term(-1, model, over)])


def gap(study: Study, model: str, other: str, arm: str) -> Contrast | None:
    """How much better `model` is than `other` in one arm, paired by seed (same data and order, other weights)."""
    return contrast(study, [Term(1, model, arm), Term(-1, other, arm)])


def gap_change(study: Study, model: str, other: str, arm: str, before: str) -> Contrast | None:
    """How the gap between two models in `arm` differs from the gap in `before`: a difference of differences."""
    return contrast(study, [Term(1, model, arm), Term(-1, other, arm), Term(-1, model, before), Term(1, other, before)])


def _sd(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    # Equal values whose mean is rounded must not look as if they varied.
    return _without_rounding(math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), values)


def _without_rounding(result: float, values: Sequence[float] | NDArray[np.float64]) -> float:
    """`result`, or 0 where it is no more than the rounding of the `values` that it was computed from."""
    return 0.0 if abs(result) <= _ROUNDING * float(np.max(np.abs(values))) else result
