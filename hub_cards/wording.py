"""Numbers to words: the rules by which a study's page says what its runs do and do not show.

Every sentence follows from the numbers by the rules in this file, so no study can be presented better than another.
All functions return plain text; the templates escape it.

The answer for one model compares self-pretraining (`spt`) with `scratch` and with `scratch-matched`; each comparison is
`higher`, `lower` or `unclear` (`statistics.Contrast.verdict`), and `judge` combines the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from .formats import Scale, format_about, format_count, join_words, seeds_word, spell
from .runs import MATCHED, MEND, SCRATCH, SPT, Study, scrub
from .statistics import Contrast, Interval, corrected_interval, gain, gap, gap_change, mean_total, sign_test

Kind = Literal["helped", "helped-unmatched", "extra-training", "longer-better", "hurt", "unclear", "missing"]

# The page's section on settings; where a sentence names it so, the templates make it a link.
PROTOCOL = "data and protocol, below"


@dataclass(frozen=True)
class ModelAnswer:
    """What the runs say about self-pretraining for one model."""

    model: str
    kind: Kind
    over_scratch: Contrast | None
    over_matched: Contrast | None
    matched_over_scratch: Contrast | None
    text: str


@dataclass(frozen=True)
class Answer:
    """What a page says: what is compared, one line, the setting, a line for each model, what to bear in mind, and one
    line to open each later section."""

    lead: str
    headline: str
    setting: str
    models: tuple[ModelAnswer, ...]
    more_training: str
    gaps: tuple[str, ...]
    costs: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(over_scratch: Contrast | None, over_matched: Contrast | None) -> Kind:
    """One word for a model from the comparison of spt with scratch and with scratch-matched.

    ============ =============== =================
    over scratch over matched    kind
    ============ =============== =================
    none         any             missing
    lower        any             hurt
    any other    lower           longer-better
    higher       higher          helped
    higher       unclear         extra-training
    higher       none            helped-unmatched
    unclear      not lower       unclear
    ============ =============== =================
    """
    if over_scratch is None:
        return "missing"
    if over_scratch.verdict == "lower":
        return "hurt"
    if over_matched is not None and over_matched.verdict == "lower":
        return "longer-better"
    if over_scratch.verdict == "unclear":
        return "unclear"
    if over_matched is None:
        return "helped-unmatched"
    return "helped" if over_matched.verdict == "higher" else "extra-training"


def answer(study: Study) -> Answer:
    """Apply every rule of this file to a study."""
    scale = Scale(study.metric)
    models = tuple(_answer_model(study, model, scale) for model in study.models if study.select(model))
    return Answer(
        lead=_lead(study, [m.model for m in models]),
        headline=headline(study, models),
        setting=_setting(study),
        models=models,
        more_training=_more_training(study, models, scale),
        gaps=tuple(_gaps(study, scale)),
        costs=tuple(_costs(study, [m.model for m in models])),
        warnings=tuple(list_warnings(study, models)),
    )


# What a family is, for a reader who does not know its name.
_FAMILIES = {
    "transformer": "self-attention between all steps of the sequence",
    "s4": "a state-space model, diagonal plus low rank",
    "s4d": "a diagonal state-space model",
    "dss": "a diagonal state-space model with a softmax over the lags",
    "dlr": "a diagonal linear recurrence shared by all features",
    "s5": "one state-space model of all features, by a parallel scan",
    "lru": "a linear recurrent unit",
    "mega": "moving averages and gated attention",
    "sgconv": "a global convolution of several scales",
    "mrconv": "a sum of convolutions of doubling length",
}
# More than so many names are only named.
_MOST_GLOSSED = 3
# More than so many pairs of models are only counted.
_MOST_PAIRS = 2


def _lead(study: Study, models: Sequence[str]) -> str:
    entries = (study.info.get("recipe") or {}).get("models") or {}
    glossed = []
    for model in models:
        gloss = _FAMILIES.get(str((entries.get(model) or {}).get("family", model)))
        glossed.append(f"{model} ({gloss})" if gloss and len(models) <= _MOST_GLOSSED else model)
    return (
        "Self-pretraining: before a network learns the labels, it learns to predict hidden parts of the same training "
        f"inputs, without labels. Here it is tried on {join_words(glossed)}, each trained in these ways (arms):"
    )


def headline(study: Study, models: Sequence[ModelAnswer]) -> str:
    """One sentence: models of the same kind share a clause.

    Where one model was helped and another is unclear, their gains must not be read as different if they are not.
    """
    scale = Scale(study.metric)
    groups: dict[Kind, list[ModelAnswer]] = {}
    for model in models:
        groups.setdefault(model.kind, []).append(model)
    clauses: list[str] = []
    kind_of_interval = "95% t interval over seeds, uncorrected: "
    for kind, text in _CLAUSES.items():
        figures = []
        for model in groups.get(kind, []):
            shown, words = _decisive(model)
            if shown is not None and shown.paired.interval is not None:
                name = f"{model.model} " if len(groups[kind]) > 1 else ""
                interval = f"({kind_of_interval}{scale.interval(shown.paired.interval)})"
                figures.append(f"{name}{scale.difference(shown.paired.mean)}{scale.unit} {words} {interval}")
                kind_of_interval = ""
        if kind in groups:
            names = join_words(m.model for m in groups[kind])
            clause = text.format(names=names, seeds=_who_cannot_tell(groups[kind]))
            clauses.append(": ".join([clause, ", ".join(figures)]) if figures else clause)
    clauses += _same_gain(study, groups, scale)
    number, lost = lost_when_corrected(models)
    if lost:
        clauses.append(
            f"corrected for {spell(number)} comparisons, what is said of {join_words(lost)} is no longer clear"
        )
    text = "; ".join(clauses) + "."
    return text[0].upper() + text[1:]


def _decisive(model: ModelAnswer) -> tuple[Contrast | None, str]:
    """The comparison whose figure stands in the headline: that at equal steps, unless the other one decides."""
    if model.kind == "hurt" or model.over_matched is None:
        return model.over_scratch, "over scratch"
    return model.over_matched, "at equal steps"


def lost_when_corrected(models: Sequence[ModelAnswer]) -> tuple[int, dict[str, Interval]]:
    """How many comparisons the headline makes, and the corrected intervals of verdicts that do not survive it."""
    decisive = [(model, _decisive(model)[0]) for model in models]
    number = sum(contrast is not None for _, contrast in decisive)
    lost = {}
    for model, contrast in decisive:
        if number > 1 and contrast is not None and model.kind in ("helped", "helped-unmatched", "hurt"):
            corrected = corrected_interval(contrast.paired, number)
            if corrected is not None and not corrected.excludes_zero:
                lost[model.model] = corrected
    return number, lost


def _same_gain(study: Study, groups: dict[Kind, list[ModelAnswer]], scale: Scale) -> list[str]:
    pairs = [(helped, other) for helped in groups.get("helped", []) for other in groups.get("unclear", [])]
    changes = [(helped, other, gap_change(study, helped.model, other.model, SPT, MATCHED)) for helped, other in pairs]
    same = [(helped, other, change) for helped, other, change in changes if change and change.verdict == "unclear"]
    if len(same) > _MOST_PAIRS:
        share = "any pair" if len(same) == len(pairs) else f"{spell(len(same))} of {len(pairs)} pairs"
        return [f"nor whether it helps one of the former more than one of the latter, for {share} of them"]
    return [
        f"nor whether it helps {helped.model} more than {other.model}: difference of the two gains "
        f"{brief(change, scale)}"
        for helped, other, change in same
    ]


_CLAUSES: dict[Kind, str] = {
    "helped": "with these settings self-pretraining helped {names}",
    "helped-unmatched": "self-pretraining beat training from scratch for {names}, with more steps and no arm to "
    "match them",
    "extra-training": "for {names} self-pretraining beat training from scratch, but not clearly the same number "
    "of steps from scratch",
    "longer-better": "for {names} training longer from scratch did better than self-pretraining",
    "hurt": "with these settings self-pretraining hurt {names}",
    "missing": "for {names} the runs needed to judge self-pretraining are missing",
    "unclear": "{seeds} cannot tell whether self-pretraining helps {names}",
}


def _who_cannot_tell(models: Sequence[ModelAnswer]) -> str:
    counts = {m.over_scratch.paired.n for m in models if m.over_scratch is not None}
    by_seeds = all(m.over_scratch is not None and not _seeds_agree(m.over_scratch) for m in models)
    return seeds_word(counts.pop()) if len(counts) == 1 and by_seeds else "these runs"


def _setting(study: Study) -> str:
    scale = Scale(study.metric)
    sizes = study.task.get("sizes") or {}
    train = study.task.get("train_size") or sizes.get("train")
    test = sizes.get("test")
    title = study.task.get("title") or study.task["name"]
    data = f": {format_count(train)} training and {format_count(test)} test examples" if train and test else ""
    if data and (study.info.get("recipe") or {}).get("train_size"):
        data += " (each seed draws its own subset of the training split)"
    counts = {len(study.select(m, a)) for m in study.models for a in study.arms if study.select(m, a)}
    seeds = seeds_word(max(counts)) if len(counts) == 1 else f"up to {seeds_word(max(counts))}"
    direction = "" if study.greater_is_better else " (less is better; gains are signed so that + is better)"
    unit = "in percentage points" if scale.is_share else "in its unit"
    return (
        f"{title}{data}, {seeds} per model and arm. {scale.name.capitalize()} in this summary is on the test "
        f"split{direction}; gains are {unit}, mean and 95% t interval over seeds."
    )


def _answer_model(study: Study, model: str, scale: Scale) -> ModelAnswer:
    over_scratch = gain(study, model, SPT, SCRATCH)
    over_matched = gain(study, model, SPT, MATCHED)
    matched_over_scratch = gain(study, model, MATCHED, SCRATCH)
    kind = judge(over_scratch, over_matched)
    parts = [
        f"{brief(c, scale)} {words}"
        for c, words in ((over_scratch, "over scratch"), (over_matched, "at equal steps"))
        if c is not None
    ]
    if kind == "missing":
        absent = [arm for arm in (SPT, SCRATCH) if not study.select(model, arm)]
        why = f"there is no finished {join_words(absent)} run" if absent else "no seed has both arms"
        parts.append(f"whether self-pretraining helps cannot be said, as {why}")
        text = ", ".join(parts)
    else:
        text = f"{', '.join(parts)}: {_verdict_words(kind, over_scratch, over_matched)}"
    return ModelAnswer(model, kind, over_scratch, over_matched, matched_over_scratch, text)


def _verdict_words(kind: Kind, over_scratch: Contrast | None, over_matched: Contrast | None) -> str:
    words = {
        "helped": "helped",
        "helped-unmatched": "higher, with more steps and no arm to match them",
        "extra-training": "higher than scratch, at equal steps cannot tell",
        "longer-better": "training longer from scratch did better",
        "hurt": "hurt",
    }
    return words.get(kind) or why_unclear(over_scratch if over_scratch is not None else over_matched)


def why_unclear(contrast: Contrast | None) -> str:
    """What keeps a contrast from telling: few seeds, few test examples, or a coincidence."""
    if contrast is None:
        return "cannot tell"
    interval = contrast.paired.interval
    if interval is None:
        return "one seed cannot tell"
    if all(d == 0 for d in contrast.paired.differences):
        return "no difference"
    if contrast.verdict != "unclear" or not interval.excludes_zero:
        return "cannot tell"
    if contrast.bootstrap is None:
        return "cannot tell (equal differences in every seed are chance, not certainty)"
    return "cannot tell (the test split is too small: the interval that resamples it too includes 0)"


def _seeds_agree(contrast: Contrast) -> bool:
    interval = contrast.paired.interval
    return interval is not None and interval.excludes_zero


def brief(contrast: Contrast, scale: Scale) -> str:
    """Mean and 95% t interval of a contrast, in a few characters."""
    interval = contrast.paired.interval
    mean = scale.difference(contrast.paired.mean)
    return f"{mean} (one seed, no interval)" if interval is None else f"{mean} ({scale.interval(interval)})"


def reading(contrast: Contrast) -> str:
    """The last cell of a contrast's table row."""
    paired = contrast.paired
    if paired.n == 1:
        return "one seed: cannot tell"
    if all(d == 0 for d in paired.differences):
        return "no difference"
    verdict = {"higher": "higher", "lower": "lower", "unclear": "cannot tell"}[contrast.verdict]
    count = f"{paired.positive} of {paired.n} up"
    sign = f"; sign test p = {paired.sign_p:.3f}" if paired.n >= 6 and paired.sign_p is not None else ""
    return f"{verdict} ({count}{sign})"


def _more_training(study: Study, models: Sequence[ModelAnswer], scale: Scale) -> str:
    """The answer for every model; a `no` holds only for the number of steps that was tried."""
    parts = []
    for m in models:
        steps = mean_total(study, m.model, MATCHED, "steps")
        if m.over_matched is None or steps is None:
            parts.append(f"{m.model}: not measured, as there is no pair of spt and scratch-matched runs")
            continue
        start = {
            "higher": f"not the {format_count(steps)} steps tried here; more were not tested",
            "lower": f"yes, and more, with {format_count(steps)} steps",
            "unclear": "that cannot be ruled out",
        }[m.over_matched.verdict]
        parts.append(f"{m.model}: {start}")
    return "; ".join(parts) + "."


def _gaps(study: Study, scale: Scale) -> list[str]:
    sentences = []
    for other, model in combinations([m for m in study.models if study.select(m)], 2):
        parts: list[tuple[str, str]] = []
        for found, words in (
            (gap(study, model, other, SCRATCH), "from scratch"),
            (gap(study, model, other, SPT), "after self-pretraining"),
            (gap_change(study, model, other, SPT, SCRATCH), "change"),
        ):
            if found is not None:
                verdict = {"higher": "higher", "lower": "lower", "unclear": why_unclear(found)}[found.verdict]
                parts.append((f"{words} {brief(found, scale)}", verdict))
        verdicts = {verdict for _, verdict in parts}
        if len(verdicts) == 1:
            texts = [text for text, _ in parts]
            sentences.append(f"{model} over {other}: {'; '.join(texts)}: {verdicts.pop()}.")
        elif parts:
            sentences.append(f"{model} over {other}: {'; '.join(f'{text}, {verdict}' for text, verdict in parts)}.")
    return sentences


def _costs(study: Study, models: Sequence[str]) -> list[str]:
    """Self-pretraining's cost against scratch: one sentence if the models' ratios agree within a tenth, else one each.

    Models without both arms are left out.
    """
    ratios: dict[str, dict[str, float]] = {}
    for model in models:
        steps, base = mean_total(study, model, SPT, "steps"), mean_total(study, model, SCRATCH, "steps")
        if steps and base:
            ratios[model] = {"steps": steps, "of": base}
            for quantity in ("flops", "seconds"):
                spt, scratch = mean_total(study, model, SPT, quantity), mean_total(study, model, SCRATCH, quantity)
                if spt and scratch:
                    ratios[model][quantity] = spt / scratch
    if not ratios:
        return []
    first = next(iter(ratios.values()))
    agree = all(
        r.keys() == first.keys()
        and (r["steps"], r["of"]) == (first["steps"], first["of"])
        and all(abs(r[q] / first[q] - 1) <= 0.1 for q in first)
        for r in ratios.values()
    )
    return [_cost(study, ratios)] if agree else [_cost(study, {m: r}, m) for m, r in ratios.items()]


def _cost(study: Study, ratios: dict[str, dict[str, float]], model: str | None = None) -> str:
    first = next(iter(ratios.values()))
    parts = [
        f"{format_count(first['steps'])} steps instead of {format_count(first['of'])} "
        f"({first['steps'] / first['of']:.2f} times)"
    ]
    for quantity, name in (("flops", "FLOPs"), ("seconds", "time")):
        if quantity in first:
            digits = 2 if quantity == "flops" else 1
            values = sorted({f"{r[quantity]:.{digits}f}" for r in ratios.values()})
            span = values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
            if quantity == "seconds":
                span = "about " + span
            parts.append(f"{span} times the {name}")
    times = [
        f"about {format_about(spt)} instead of {format_about(scratch)}" + ("" if model else f" for {m}")
        for m in ratios
        if (spt := mean_total(study, m, SPT, "seconds")) and (scratch := mean_total(study, m, SCRATCH, "seconds"))
    ]
    who = f"a run of {model}" if model else "a run"
    return f"With self-pretraining {who} takes {join_words(parts)}" + (f": {join_words(times)}." if times else ".")


def list_warnings(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    """What a reader must bear in mind, most weighty first; each rule is one function and adds at most a few lines."""
    found: list[str] = []
    for rule in (
        _baselines_ahead,
        _still_improving,
        _at_chance,
        _overfitted,
        _several_comparisons,
        _not_tuned,
        _few_seeds,
        _equal_differences,
        _budgets,
        _gone,
    ):
        found += rule(study, models)
    return found


def _baselines_ahead(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    scale = Scale(study.metric)
    sign = 1 if study.greater_is_better else -1
    by_name: dict[str, list[float]] = {}
    for baseline in study.baselines:
        by_name.setdefault(baseline.name, []).append(baseline.test)
    cells = {
        (m.model, a): math.fsum(v) / len(v)
        for m in models
        for a in study.arms
        if (v := [r.test for r in study.select(m.model, a)])
    }
    best = max(sign * value for value in cells.values())
    ahead, partly = [], []
    for name, values in by_name.items():
        mean = math.fsum(values) / len(values)
        beaten = sum(sign * mean > sign * value for value in cells.values())
        if sign * mean > best:
            ahead.append(f"{name} ({scale.value(mean)})")
        elif beaten:
            partly.append(f"{name} ({scale.value(mean)}) beats {beaten} of the {len(cells)} network rows")
    lines = []
    if ahead:
        verb = "beats" if len(ahead) == 1 else "beat"
        lines.append(
            f"On the same training data {join_words(ahead)} {verb} every network here (best mean "
            f"{scale.value(sign * best)}): none of these networks is the method to choose for this task as set up."
        )
    if partly:
        lines.append(f"Plain baselines on the same training data: {join_words(partly)}.")
    return lines


def _still_improving(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    lines = []
    for arms, effect in (
        (
            (SCRATCH, MATCHED),
            "Their accuracy is not final, so a gain over them may only show that they were stopped early.",
        ),
        ((SPT,), "More supervised steps may raise them further."),
    ):
        parts = []
        for model in models:
            for arm in arms:
                runs = study.select(model.model, arm)
                count = sum(r.still_improving for r in runs)
                if count:
                    parts.append(f"{count} of {len(runs)} {arm} runs of {model.model}")
        if parts:
            text = effect.replace("accuracy", Scale(study.metric).name)
            lines.append(f"Still improving when training stopped: {join_words(parts)}. {text}")
    return lines


def _at_chance(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    chance, test = study.task.get("chance"), (study.task.get("sizes") or {}).get("test")
    if not isinstance(chance, (int, float)) or not 0 < chance < 1 or study.metric != "accuracy":
        return []
    # Two standard errors of the accuracy that guessing would get on this test split.
    margin = 2 * math.sqrt(chance * (1 - chance) / test) if test else 0.02
    parts = []
    for model in models:
        for arm in study.arms:
            values = [r.test for r in study.select(model.model, arm)]
            if values and math.fsum(values) / len(values) <= chance + margin:
                parts.append(f"{model.model} {arm}")
    if not parts:
        return []
    return [
        f"No better than chance ({Scale(study.metric).value(chance)}): {join_words(parts)}. These did not learn the "
        "task, so comparisons with them say little."
    ]


def _overfitted(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    """Every network knows its training set by heart: what is left to gain is generalisation."""
    if not Scale(study.metric).is_share or not all(r.train is not None and r.train >= 1 for r in study.runs):
        return []
    return [
        f"Every network fits its training set perfectly (training {Scale(study.metric).name} 100% in every run), so "
        "scratch is limited by overfitting. Stronger regularisation was not tried and might close the gap."
    ]


def _several_comparisons(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    """Verdicts that would not hold once the number of comparisons is accounted for."""
    scale = Scale(study.metric)
    number, lost = lost_when_corrected(models)
    if not lost:
        return []
    names = join_words(f"{name} ({scale.interval(interval)})" for name, interval in lost.items())
    return [
        f"Corrected for {spell(number)} comparisons, one for each model (Bonferroni), the interval includes 0 for "
        f"{names}: treat that as evidence, not proof."
    ]


def _not_tuned(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    if changes := (study.info.get("recipe") or {}).get("changes"):
        return [
            f"Set by hand: {scrub(', '.join(changes))}. How these were chosen is not on record; others can change the "
            f"size of a gain and even its sign (the rest: {PROTOCOL})."
        ]
    return [
        "Settings were not tuned for each model and arm; others can change the size of a gain and even its sign (how "
        f"they were chosen: {PROTOCOL})."
    ]


def _few_seeds(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    number = max((len(study.select(m.model, a)) for m in models for a in study.arms), default=0)
    if number == 1:
        return ["One seed shows one outcome, and nothing of how much it would vary; run more (--seeds 3 or more)."]
    if number >= 6 or number < 1:
        return []
    p = sign_test([1.0] * number)
    return [
        f"{seeds_word(number).capitalize()} are few: the t interval takes gains to be spread normally, which "
        f"{spell(number)} cannot show, and even {spell(number)} wins of {spell(number)} give p\u00a0=\u00a0{p:.2g} "
        "in a sign test."
    ]


def _equal_differences(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    flat = []
    for m in models:
        for name, c in ((f"over {SCRATCH}", m.over_scratch), (f"over {MATCHED}", m.over_matched)):
            if c is not None and c.paired.n > 1 and c.paired.sd == 0 and c.paired.mean != 0:
                flat.append(f"{m.model} {name}")
    if not flat:
        return []
    return [
        f"Every seed gave the same difference for {join_words(flat)}. That is a coincidence of a test split counted "
        "in whole examples: the t interval has no width there and cannot be corrected for several comparisons; "
        "read the bootstrap interval."
    ]


def _budgets(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    lines = []
    for m in models:
        for arm in study.arms:
            if len({r.recipe for r in study.select(m.model, arm)}) > 1:
                lines.append(
                    f"Runs of {m.model} {arm} were made with different recipes (recipe.yaml), so their mean mixes "
                    "settings; the study's command brings them up to date."
                )
            steps = sorted({r.steps() for r in study.select(m.model, arm)})
            if len(steps) > 1:
                listed = join_words(format_count(s) for s in steps)
                lines.append(f"Runs of {m.model} {arm} differ in length ({listed} steps), so their mean mixes budgets.")
        spt, matched = mean_total(study, m.model, SPT, "steps"), mean_total(study, m.model, MATCHED, "steps")
        if spt and matched and spt != matched:
            lines.append(
                f"For {m.model}, scratch-matched has {format_count(matched)} steps and spt {format_count(spt)}: they "
                "are not matched."
            )
        spt, matched = mean_total(study, m.model, SPT, "flops"), mean_total(study, m.model, MATCHED, "flops")
        if spt and matched and abs(spt / matched - 1) > 0.1:
            lines.append(
                f"For {m.model}, spt and scratch-matched are matched in steps, not in FLOPs: spt used "
                f"{spt / matched:.2f} times as many."
            )
    return lines


def _gone(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    if not study.missing:
        return []
    total = len(study.models) * len(study.arms) * len(study.seeds)
    unfinished = [f"{m}/{a}/seed-{s}" for m, a, s in study.missing if (m, a, s) not in study.damaged]
    damaged = [f"{m}/{a}/seed-{s}: {reason}" for (m, a, s), reason in study.damaged.items()]
    found = []
    for names, words, mend in ((unfinished, "not finished", ""), (damaged, "damaged", f"; {MEND}")):
        if names:
            verb = "is" if len(names) == 1 else "are"
            listed = ", ".join(names[:4]) + (", \u2026" if len(names) > 4 else "")
            found.append(f"{len(names)} of {total} runs {verb} {words} ({listed}){mend}")
    means = (
        "Means use the runs there are, so arms may rest on different seeds; differences use only seeds that have both"
    )
    return [f"{'. '.join(found)}. {means} sides."]
