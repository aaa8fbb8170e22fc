"""Every rule of the page's words, each by a study made to trigger it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_study import write_study

from neverscratch.hub_cards.formats import Scale, format_flops, format_seconds, join_words, seeds_word
from neverscratch.hub_cards.runs import read_study
from neverscratch.hub_cards.statistics import Interval
from neverscratch.hub_cards.wording import Answer, answer

LOW, MIDDLE, HIGH = [280, 285, 282], [305, 309, 308], [335, 339, 336]
WIDE = [270, 330, 300]


def read(folder: Path, *args: Any, **kwargs: Any) -> Answer:
    return answer(read_study(write_study(folder, *args, **{"baselines": {}, **kwargs})))


def arms(scratch: list[int], matched: list[int] | None, spt: list[int]) -> dict[str, dict[str, list[int]]]:
    return {"net": {"scratch": scratch, **({"scratch-matched": matched} if matched else {}), "spt": spt}}


@pytest.mark.parametrize(
    ("counts", "kind", "headline"),
    [
        (
            arms(LOW, MIDDLE, HIGH),
            "helped",
            "With these settings self-pretraining helped net: +8.1 points at equal steps (95% t interval over seeds, "
            "uncorrected: +7.4 to +8.9)",
        ),
        (arms(LOW, None, HIGH), "helped-unmatched", "beat training from scratch for net, with more steps and no arm"),
        (arms(LOW, HIGH, HIGH), "extra-training", "but not clearly the same number of steps from scratch"),
        (arms(LOW, HIGH, MIDDLE), "longer-better", "training longer from scratch did better than self-pretraining"),
        (arms(WIDE, HIGH, LOW), "longer-better", "training longer from scratch did better than self-pretraining"),
        (arms(MIDDLE, HIGH, LOW), "hurt", "With these settings self-pretraining hurt net"),
        (arms(WIDE, MIDDLE, HIGH), "unclear", "Three seeds cannot tell whether self-pretraining helps net: "),
        (arms(LOW, LOW, WIDE), "unclear", "Three seeds cannot tell whether self-pretraining helps net: "),
    ],
)
def test_headline(tmp_path: Path, counts, kind, headline):
    found = read(tmp_path / "s", counts)
    assert found.models[0].kind == kind
    assert headline in found.headline


def test_headline_groups_models(tmp_path: Path):
    by_arm = arms(LOW, MIDDLE, HIGH)["net"]
    found = read(tmp_path / "s", {"a": by_arm, "b": {**by_arm, "spt": WIDE}, "c": by_arm})
    figure = "+8.1 points at equal steps"
    assert found.headline == (
        f"With these settings self-pretraining helped a and c: a {figure} (95% t interval over seeds, uncorrected: "
        f"+7.4 to +8.9), c {figure} (+7.4 to +8.9); three seeds cannot tell whether self-pretraining helps b: "
        "\u22122.0 points at equal steps (\u221221.4 to +17.3); nor whether it helps a more than b: difference of the "
        "two gains +10.2 (\u22129.1 to +29.5); nor whether it helps c more than b: difference of the two gains +10.2 "
        "(\u22129.1 to +29.5)."
    )


def test_headline_is_silent_on_gains_that_differ(tmp_path: Path):
    counts = {"a": arms(LOW, LOW, HIGH)["net"], "b": arms(LOW, LOW, [283, 284, 282])["net"]}
    found = read(tmp_path / "s", counts)
    assert [m.kind for m in found.models] == ["helped", "unclear"]
    assert "nor whether" not in found.headline


def test_clear_gain(tmp_path: Path):
    text = read(tmp_path / "s", arms(LOW, MIDDLE, HIGH)).models[0].text
    assert (
        text.startswith("+15.1 (+14.") and ") over scratch, +8.1 (+" in text and text.endswith("at equal steps: helped")
    )


def test_clear_loss(tmp_path: Path):
    text = read(tmp_path / "s", arms(HIGH, HIGH, LOW)).models[0].text
    assert text.startswith("\u221215.1 (\u2212") and text.endswith(": hurt")


def test_interval_with_zero_cannot_tell(tmp_path: Path):
    text = read(tmp_path / "s", arms(LOW, LOW, WIDE)).models[0].text
    assert text.startswith("+4.9 (\u2212") and text.endswith("at equal steps: cannot tell")


def test_small_test_split_cannot_tell(tmp_path: Path):
    found = read(tmp_path / "s", arms([300, 310, 305], [300, 310, 305], [305, 316, 312]))
    assert "cannot tell (the test split is too small" in found.models[0].text
    assert "no difference" not in found.models[0].text
    assert "These runs cannot tell whether self-pretraining helps net" in found.headline


def test_one_seed_cannot_tell(tmp_path: Path):
    found = read(tmp_path / "s", arms([280], [290], [340]))
    assert "+16.7 (one seed, no interval) over scratch" in found.models[0].text
    assert found.models[0].text.endswith("one seed cannot tell")
    assert found.headline == "One seed cannot tell whether self-pretraining helps net."
    assert any("One seed shows one outcome" in w for w in found.warnings)


def test_no_difference_at_all(tmp_path: Path):
    found = read(tmp_path / "s", arms(LOW, LOW, LOW))
    assert found.models[0].text == "0.0 (0.0 to 0.0) over scratch, 0.0 (0.0 to 0.0) at equal steps: no difference"
    assert found.models[0].kind == "unclear"


def test_missing_arms(tmp_path: Path):
    found = read(tmp_path / "s", {"net": {"scratch": LOW}})
    assert "the runs needed to judge self-pretraining are missing" in found.headline
    assert "there is no finished spt run" in found.models[0].text
    assert found.costs == () and "not measured" in found.more_training


def test_more_training(tmp_path: Path):
    cases = {
        "not the 2,300 steps tried here; more were not tested.": arms(LOW, MIDDLE, HIGH),
        "yes, and more, with 2,300 steps.": arms(LOW, HIGH, MIDDLE),
        "that cannot be ruled out.": arms(LOW, HIGH, HIGH),
    }
    for index, (text, counts) in enumerate(cases.items()):
        assert read(tmp_path / str(index), counts).more_training == f"net: {text}"


def test_lead_says_what_is_compared(tmp_path: Path):
    lead = read(tmp_path / "s", {"s4d": arms(LOW, LOW, LOW)["net"], "own": arms(LOW, LOW, LOW)["net"]}).lead
    assert "without labels" in lead and "s4d (a diagonal state-space model) and own," in lead


def test_correction_for_several_comparisons(tmp_path: Path):
    by_arm = arms(LOW, [300, 308, 304], [320, 324, 328])["net"]
    wide = {**by_arm, "spt": WIDE}
    found = read(tmp_path / "s", {"a": {**by_arm, "spt": [330, 330, 346]}, "b": wide})
    assert found.models[0].kind == "helped"
    warning = [w for w in found.warnings if "Bonferroni" in w]
    assert len(warning) == 1 and "two comparisons, one for each model" in warning[0]
    assert "corrected for two comparisons, what is said of a is no longer clear" in found.headline
    assert "includes 0 for a (\u2212" in warning[0] and "evidence, not proof" in warning[0]
    # A gain that stands the correction, and a single comparison, need no such line.
    for name, counts in (("t", {"a": arms(LOW, MIDDLE, HIGH)["net"], "b": wide}), ("u", {"a": by_arm})):
        found = read(tmp_path / name, counts)
        assert not any("Bonferroni" in w for w in found.warnings) and "corrected for" not in found.headline


def test_perfect_training_is_overfitting(tmp_path: Path):
    assert any("fits its training set perfectly" in w for w in read(tmp_path / "s", arms(LOW, LOW, HIGH)).warnings)
    flags = (("net", "scratch", 0),)  # such a run has a training accuracy of 97%
    warnings = read(tmp_path / "t", arms(LOW, LOW, HIGH), still_improving=flags).warnings
    assert not any("fits its training set perfectly" in w for w in warnings)


def test_gaps_before_and_after(tmp_path: Path):
    counts = {"a": {"scratch": LOW, "spt": MIDDLE}, "b": {"scratch": MIDDLE, "spt": HIGH}}
    text = read(tmp_path / "s", counts).gaps[0]
    assert text.startswith("b over a: from scratch +6.9 (+") and "), higher; after self-pretraining +8.1 (+" in text
    assert "; change +1.2 (" in text and text.endswith("cannot tell.")


def test_cost(tmp_path: Path):
    (text,) = read(tmp_path / "s", arms(LOW, MIDDLE, HIGH)).costs
    assert "2,300 steps instead of 1,500 (1.53 times)" in text
    assert (
        "1.53 times the FLOPs" in text and "about 1.5 times the time" in text and "about 33\u00a0s instead of" in text
    )


def test_costs_that_differ_are_told_apart(tmp_path: Path):
    counts = {"a": arms(LOW, LOW, LOW)["net"], "b": arms(LOW, LOW, LOW)["net"]}
    folder = write_study(tmp_path / "s", counts)
    assert len(answer(read_study(folder)).costs) == 1
    for path in folder.glob("b/spt/*/run.json"):
        raw = json.loads(path.read_text())
        raw["stages"][0]["flops"] *= 3
        path.write_text(json.dumps(raw))
    costs = answer(read_study(folder)).costs
    assert [("a run of a" in c, "a run of b" in c) for c in costs] == [(True, False), (False, True)]


def test_warns_when_scratch_was_still_improving(tmp_path: Path):
    flags = (("net", "scratch", 0), ("net", "scratch", 2), ("net", "scratch-matched", 1), ("net", "spt", 1))
    warnings = read(tmp_path / "s", arms(LOW, MIDDLE, HIGH), still_improving=flags).warnings
    assert (
        "Still improving when training stopped: 2 of 3 scratch runs of net and 1 of 3 scratch-matched runs of net. "
        "Their accuracy is not final, so a gain over them may only show that they were stopped early."
    ) in warnings
    assert any("1 of 3 spt runs of net. More supervised steps" in w for w in warnings)
    assert not any("Still improving" in w for w in read(tmp_path / "t", arms(LOW, MIDDLE, HIGH)).warnings)


def test_baseline_ahead_of_every_network(tmp_path: Path):
    warnings = read(tmp_path / "s", baselines={"logistic regression": [0.945, 0.94], "1-NN": [0.85]}).warnings
    assert warnings[0].startswith("On the same training data logistic regression (94.2%) beats every network here")
    assert "1-NN (85.0%) beats 4 of the 6 network rows" in warnings[1]
    assert not any("beat" in w for w in read(tmp_path / "t", baselines={"majority class": [0.1]}).warnings)


def test_says_that_nothing_was_tuned(tmp_path: Path):
    assert any("not tuned for each model and arm" in w and "sign" in w for w in read(tmp_path / "s").warnings)


def test_few_seeds_caveat_stops_at_six(tmp_path: Path):
    few = [w for w in read(tmp_path / "s").warnings if w.startswith("Three seeds are few")]
    assert len(few) == 1 and "even three wins of three give p\u00a0=\u00a00.25 in a sign test" in few[0]
    six = [280, 285, 282, 279, 281, 288]
    assert not any("seeds are few" in w for w in read(tmp_path / "t", arms(six, six, six)).warnings)


def test_chance_level(tmp_path: Path):
    warnings = read(tmp_path / "s", arms([36, 40, 34], [300, 301, 303], [320, 322, 321])).warnings
    assert any("No better than chance (10.0%): net scratch." in w for w in warnings)


def test_equal_differences_are_explained(tmp_path: Path):
    warnings = read(tmp_path / "s", arms([280, 290, 285], [281, 290, 285], [330, 340, 335])).warnings
    assert any("Every seed gave the same difference for net over scratch." in w for w in warnings)


def test_missing_runs_are_counted(tmp_path: Path):
    found = read(tmp_path / "s", arms(LOW, MIDDLE, [320, -1, 330]))
    assert any(w.startswith("1 of 9 runs is not finished (net/spt/seed-1)") for w in found.warnings)
    assert found.setting == (
        "Digits: 300 training and 360 test examples, up to three seeds per model and arm. Accuracy in this summary is "
        "on the test split; gains are in percentage points, mean and 95% t interval over seeds."
    )


def test_budgets_that_do_not_match(tmp_path: Path):
    folder = write_study(tmp_path / "s", arms(LOW, MIDDLE, HIGH))
    for seed in (0, 1):
        path = folder / f"net/scratch-matched/seed-{seed}/run.json"
        raw = json.loads(path.read_text())
        raw["stages"][0].update(steps=1900, flops=raw["stages"][0]["flops"] / 2)
        path.write_text(json.dumps(raw))
    warnings = answer(read_study(folder)).warnings
    assert any("net scratch-matched differ in length (1,900 and 2,300 steps)" in w for w in warnings)
    assert any("they are not matched" in w for w in warnings)
    assert any("matched in steps, not in FLOPs" in w for w in warnings)


def test_runs_of_different_recipes_are_named(tmp_path: Path):
    folder = write_study(tmp_path / "s", arms(LOW, MIDDLE, HIGH))
    (folder / "net/spt/seed-1/recipe.yaml").write_text("# net, spt, seed 1\ntask: digits\nmask_ratio: 0.4\n")
    (folder / "net/scratch/seed-1/recipe.yaml").write_text("# net, scratch, seed 1\ntask: digits\n")
    found = [w for w in answer(read_study(folder)).warnings if "different recipes" in w]
    assert len(found) == 1 and found[0].startswith("Runs of net spt were made")


def test_direction_is_said_when_less_is_better(tmp_path: Path):
    found = read(tmp_path / "s", arms(LOW, MIDDLE, HIGH), task={"metric": "mae", "greater_is_better": False})
    assert "less is better" in found.setting and "points" not in found.models[0].text
    assert found.models[0].kind == "hurt"


def test_numbers_as_words():
    scale = Scale("accuracy")
    assert (scale.value(0.8594), scale.difference(-0.008), scale.difference(0.00001)) == ("85.9%", "\u22120.8", "0.0")
    assert scale.value(None) == "\u2013" and Scale("mae").difference(0.1234) == "+0.123"
    assert scale.interval(Interval(-0.0003, 0.0081)) == "\u22120.03 to +0.8"
    assert [format_flops(x) for x in (None, 0, 9.999e11, 1.5)] == [
        "\u2013",
        "0",
        "1.00\u00a0\u00b7\u00a010¹²",
        "1.50\u00a0\u00b7\u00a010⁰",
    ]
    assert [format_seconds(x) for x in (8.14, 240, 7200)] == ["8.1\u00a0s", "4.0\u00a0min", "2.0\u00a0h"]
    assert [join_words(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert [seeds_word(n) for n in (1, 3, 12)] == ["one seed", "three seeds", "12 seeds"]
