from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from synthetic_study import SIZES, write_study

from neverscratch.hub_cards.runs import read_study
from neverscratch.hub_cards.statistics import (
    Interval,
    contrast,
    corrected_interval,
    crossed_bootstrap,
    gain,
    gap,
    gap_change,
    paired_differences,
    paired_summary,
    sign_test,
    summarise,
    t_interval,
)


def test_summary_by_hand():
    summary = summarise([1.0, 2.0, 6.0])
    assert summary.mean == 3.0
    assert summary.sd == pytest.approx(math.sqrt((4 + 1 + 9) / 2), abs=1e-15)
    assert (summary.n, summary.minimum, summary.maximum) == (3, 1.0, 6.0)


def test_one_value_has_no_spread_and_no_interval():
    assert summarise([0.5]).sd is None
    assert t_interval([0.5]) is None
    with pytest.raises(ValueError, match="no values"):
        summarise([])


@pytest.mark.parametrize("values", [[-0.8, 11.4, 2.2], [1.0, 2.0], [0.3, 0.1, 0.4, 0.1, 0.5, 0.9]])
def test_t_interval_agrees_with_scipy(values):
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    interval = t_interval(values)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert interval.excludes_zero == (stats.ttest_1samp(values, 0.0).pvalue < 0.05)


def test_t_interval_of_three_is_4_30_standard_errors_wide():
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval is not None
    assert (interval.high - interval.low) / 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_bonferroni_agrees_with_the_t_test():
    paired = paired_summary({0: 6.9, 1: 7.8, 2: 4.2})
    p = stats.ttest_1samp(paired.differences, 0.0).pvalue
    for comparisons in (1, 2, 5):
        corrected = corrected_interval(paired, comparisons)
        expected = stats.ttest_1samp(paired.differences, 0.0).confidence_interval(1 - 0.05 / comparisons)
        assert corrected is not None and (corrected.low, corrected.high) == pytest.approx(tuple(expected), rel=1e-12)
        assert corrected.excludes_zero == (p * comparisons < 0.05)
    assert corrected_interval(paired, 1) == paired.interval
    once, twice = corrected_interval(paired, 1), corrected_interval(paired, 2)
    assert once is not None and once.excludes_zero and twice is not None and not twice.excludes_zero


def test_nothing_to_correct():
    assert corrected_interval(paired_summary({0: 0.1}), 2) is None
    assert corrected_interval(paired_summary({0: 0.1, 1: 0.1}), 2) is None
    with pytest.raises(ValueError, match="0 comparisons"):
        corrected_interval(paired_summary({0: 0.1, 1: 0.2}), 0)


@pytest.mark.parametrize(
    ("differences", "expected"), [([1, 2, 3], 0.25), ([1, 1, -1, 0], 1.0), ([1] * 6, 2 / 64), ([0, 0], None)]
)
def test_sign_test(differences, expected):
    assert sign_test(differences) == (None if expected is None else pytest.approx(expected))


def test_sign_test_needs_six_seeds_for_five_per_cent():
    assert sign_test([1.0] * 5) > 0.05 > sign_test([1.0] * 6)


def test_paired_differences_use_shared_seeds_only():
    paired = paired_differences({0: 0.9, 1: 0.8, 3: 0.7}, {0: 0.8, 1: 0.9, 2: 0.5})
    assert paired is not None
    assert paired.seeds == (0, 1)
    assert paired.differences == pytest.approx((0.1, -0.1))
    assert (paired.positive, paired.negative, paired.n) == (1, 1, 2)
    assert paired_differences({0: 1.0}, {1: 1.0}) is None


def test_rounding_is_no_difference():
    paired = paired_differences({0: 0.1 + 0.2, 1: 0.5}, {0: 0.3, 1: 0.5})
    assert paired is not None and paired.differences == (0.0, 0.0) and paired.sd == 0.0 and paired.sign_p is None


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-15])
def test_ends_of_rounding_size_are_zero(scale):
    # A third of one example up in one seed and down in another: resamples that cancel leave rounding, not a gain.
    rng, sign = np.random.default_rng(0), np.array([-1.0, 1.0, 1.0, 1.0])
    ends = []
    for _ in range(300):
        scores = np.zeros((3, 150))
        for row in scores:
            row[rng.choice(12, size=5)] = scale * rng.choice(sign, size=5)
        interval = crossed_bootstrap(scores, resamples=500)
        assert interval is not None
        ends += [interval.low, interval.high]
    # One example less in one seed is the smallest step there is.
    assert 0.0 in ends and all(end == 0 or abs(end) > 0.9 * scale / 450 / 100 for end in ends)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-15])
def test_rounding_is_relative_to_the_measurements(scale):
    # 0.3 - 0.2 and 0.2 - 0.1 differ by rounding, and so does their difference from 0.1.
    left, right = {0: 0.3, 1: 0.2, 2: 0.8}, {0: 0.2, 1: 0.1, 2: 0.7}
    equal = paired_differences({s: v * scale for s, v in left.items()}, {s: v * scale for s, v in right.items()})
    assert equal is not None and equal.sd == 0.0 and equal.interval is not None
    assert equal.interval.high == equal.interval.low == pytest.approx(0.1 * scale)
    sums = paired_differences(
        {s: v * scale for s, v in {0: 0.1, 1: 0.2, 2: 0.3}.items()}, {0: 0.0, 1: 0.0, 2: 0.6 * scale}
    )
    assert sums is not None and sums.mean == 0.0


def test_bootstrap_is_seeded_and_agrees_with_plain_resampling():
    rng = np.random.default_rng(3)
    scores = rng.integers(-1, 2, size=(4, 50)).astype(float)
    interval = crossed_bootstrap(scores, resamples=20_000)
    assert interval == crossed_bootstrap(scores, resamples=20_000)
    assert interval is not None
    means = [scores[np.ix_(rng.integers(4, size=4), rng.integers(50, size=50))].mean() for _ in range(20_000)]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.012)


def test_bootstrap_covers_the_test_examples():
    # Seeds that agree on every example leave only the variance of the examples.
    row = np.zeros(400)
    row[:40] = 1.0
    interval = crossed_bootstrap(np.stack([row] * 3))
    assert interval is not None
    half = 1.96 * math.sqrt(0.1 * 0.9 / 400)
    assert (interval.low, interval.high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.004)
    assert crossed_bootstrap(row[None]) is None


def test_contrasts_of_a_study(tmp_path: Path):
    counts = {"a": {"scratch": [300, 310], "spt": [330, 334]}, "b": {"scratch": [306, 304], "spt": [312, 322]}}
    study = read_study(write_study(tmp_path / "s", counts))
    size = SIZES["test"]
    found = gain(study, "a", "spt", "scratch")
    assert found is not None and found.paired.differences == pytest.approx((30 / size, 24 / size))
    before, after = gap(study, "b", "a", "scratch"), gap(study, "b", "a", "spt")
    change = gap_change(study, "b", "a", "spt", "scratch")
    assert before is not None and before.paired.differences == pytest.approx((6 / size, -6 / size))
    assert after is not None and change is not None
    assert change.paired.differences == pytest.approx(
        tuple(y - x for x, y in zip(before.paired.differences, after.paired.differences, strict=True))
    )
    for item in (found, before, after, change):
        assert item.bootstrap is not None
        assert item.bootstrap.low < item.paired.mean < item.bootstrap.high
    assert gain(study, "a", "spt", "scratch-matched") is None


def test_less_is_better_turns_the_sign(tmp_path: Path):
    counts = {"a": {"scratch": [300, 310], "spt": [200, 220]}}
    study = read_study(write_study(tmp_path / "s", counts, task={"metric": "mae", "greater_is_better": False}))
    found = gain(study, "a", "spt", "scratch")
    assert found is not None and found.paired.mean > 0 and found.bootstrap is None


def test_verdict_needs_both_intervals(tmp_path: Path):
    # Seeds agree closely, but on 360 test examples a gain of one example is no news.
    small = read_study(write_study(tmp_path / "a", {"a": {"scratch": [300, 310, 305], "spt": [301, 311, 306]}}))
    found = gain(small, "a", "spt", "scratch")
    assert found is not None and found.paired.interval is not None and found.paired.interval.excludes_zero
    assert found.bootstrap is not None and not found.bootstrap.excludes_zero
    assert found.verdict == "unclear"
    large = read_study(write_study(tmp_path / "b", {"a": {"scratch": [280, 285, 281], "spt": [330, 333, 331]}}))
    found = gain(large, "a", "spt", "scratch")
    assert found is not None and found.verdict == "higher"
    back = contrast(large, [t.__class__(-t.sign, t.model, t.arm) for t in found.terms])
    assert back is not None and back.verdict == "lower"


def test_equal_differences_without_predictions_are_unclear(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [280, 290, 285], "spt": [330, 340, 335]}})
    found = gain(read_study(folder), "a", "spt", "scratch")
    assert found is not None and found.paired.sd == 0.0 and found.verdict == "higher"
    for path in folder.glob("*/*/*/predictions.csv"):
        path.unlink()
    found = gain(read_study(folder), "a", "spt", "scratch")
    assert found is not None and found.bootstrap is None and found.verdict == "unclear"


def test_interval_touching_zero_does_not_exclude_it():
    assert not Interval(0.0, 1.0).excludes_zero
    assert paired_summary({0: 0.0, 1: 0.0}).interval == Interval(0.0, 0.0)
