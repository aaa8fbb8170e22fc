"""Numbers to words: the rules by which a study's page says what its runs do and do not show.

Every sentence follows from the numbers by the rules in this file, so no study can be presented better than another.
All functions return plain text; the templates escape it.

The answer for one model compares self-pretraining (`spt`) with `scratch` and with `scratch-matched`; each comparison is
`higher`, `lower` or `unclear` (`statistics.Contrast.verdict`), and `judge` combines the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from .runs import MATCHED, SCRATCH, SPT, Study
from .statistics import Contrast, Interval, gain, gap, gap_change

Kind = Literal["helped", "helped-unmatched", "extra-training", "longer-better", "hurt", "unclear", "missing"]

# Metrics that are shares of 1 and read better as per cent; their differences are percentage points.
SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "f1_macro", "precision", "recall"})
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MINUS = "\u2212"


@dataclass(frozen=True)
class Scale:
    """How values of a metric and their differences are written."""

    metric: str

    @property
    def is_share(self) -> bool:
        return self.metric in SHARES

    @property
    def name(self) -> str:
        return self.metric.replace("_", " ")

    def axis(self, split: str) -> str:
        return f"{split} {self.name}".capitalize()

    def value(self, value: float | None) -> str:
        if value is None:
            return "\u2013"
        return f"{100 * value:.1f}%" if self.is_share else _signed(f"{value:.4g}")

    def difference(self, value: float) -> str:
        """Signed, without unit."""
        text = f"{100 * value:+.1f}" if self.is_share else f"{value:+.3g}"
        # What rounds to nothing has no sign to show.
        return text.lstrip("+-") if float(text) == 0 else _signed(text)

    def spread(self, value: float | None) -> str:
        if value is None:
            return "\u2013"
        return f"{100 * value:.1f}" if self.is_share else f"{value:.3g}"

    @property
    def unit(self) -> str:
        """What follows a difference in a sentence."""
        return " points" if self.is_share else ""

    def interval(self, interval: Interval | None) -> str:
        if interval is None:
            return "\u2013"
        return f"{self._end(interval.low)} to {self._end(interval.high)}"

    def _end(self, value: float) -> str:
        """An interval's end; one that would be rounded to 0 keeps its sign, as the sign is what matters."""
        text = self.difference(value)
        return _signed(f"{100 * value:+.1g}") if self.is_share and float(_plain(text)) == 0 and value else text


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
    """The opening of a page: one line, the setting, a few sentences for each model, then what to bear in mind."""

    headline: str
    setting: str
    models: tuple[ModelAnswer, ...]
    more_training: tuple[str, ...]
    gaps: tuple[str, ...]
    costs: tuple[str, ...]
    warnings: tuple[str, ...]


def format_count(number: float) -> str:
    """An integer with thousands separated."""
    return f"{round(number):,}"


def format_flops(flops: float | None) -> str:
    """FLOPs with three digits and a power of ten."""
    if flops is None:
        return "\u2013"
    if flops <= 0:
        return "0"
    exponent = math.floor(math.log10(flops))
    mantissa = f"{flops / 10**exponent:.2f}"
    if mantissa == "10.00":
        mantissa, exponent = "1.00", exponent + 1
    superscript = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}\u00a0\u00b7\u00a010{superscript}"


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "\u2013"
    if seconds < 100:
        return f"{seconds:.1f}\u00a0s"
    return f"{seconds / 60:.1f}\u00a0min" if seconds < 6000 else f"{seconds / 3600:.1f}\u00a0h"


def join_words(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(words)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def spell(number: int) -> str:
    return _WORDS[number] if 0 <= number < len(_WORDS) else str(number)


def seeds_word(number: int) -> str:
    return f"{spell(number)} seed" + ("" if number == 1 else "s")


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
    costs = tuple(text for m in models if (text := _cost(study, m.model)))
    warnings = list_warnings(study, models)
    return Answer(
        headline=headline(models),
        setting=_setting(study),
        models=models,
        more_training=tuple(_more_training(m, scale) for m in models),
        gaps=tuple(_gaps(study, scale)),
        costs=costs,
        warnings=tuple(warnings),
    )


def headline(models: Sequence[ModelAnswer]) -> str:
    """One sentence: models of the same kind share a clause."""
    groups: dict[Kind, list[ModelAnswer]] = {}
    for model in models:
        groups.setdefault(model.kind, []).append(model)
    clauses = []
    for kind, text in _CLAUSES.items():
        if kind in groups:
            names = join_words(m.model for m in groups[kind])
            clauses.append(text.format(names=names, seeds=_who_cannot_tell(groups[kind])))
    text = "; ".join(clauses) + "."
    return text[0].upper() + text[1:]


_CLAUSES: dict[Kind, str] = {
    "helped": "with these settings self-pretraining helped {names}, by more than its extra steps explain",
    "helped-unmatched": "self-pretraining beat training from scratch for {names}, with more steps and no arm to "
    "match them",
    "extra-training": "for {names} self-pretraining beat training from scratch, but not clearly the same number "
    "of steps from scratch",
    "longer-better": "for {names} training longer from scratch did better than self-pretraining",
    "hurt": "with these settings self-pretraining hurt {names}",
    "unclear": "for {names} {seeds} cannot tell whether self-pretraining helps",
    "missing": "for {names} the runs needed to judge self-pretraining are missing",
}


def _who_cannot_tell(models: Sequence[ModelAnswer]) -> str:
    counts = {m.over_scratch.paired.n for m in models if m.over_scratch is not None}
    by_seeds = all(m.over_scratch is not None and not _seeds_agree(m.over_scratch) for m in models)
    return seeds_word(counts.pop()) if len(counts) == 1 and by_seeds else "these runs"


def _setting(study: Study) -> str:
    sizes = study.task.get("sizes") or {}
    train = study.task.get("train_size") or sizes.get("train")
    test = sizes.get("test")
    title = study.task.get("title") or study.task["name"]
    data = f": {format_count(train)} training and {format_count(test)} test examples" if train and test else ""
    counts = {len(study.select(m, a)) for m in study.models for a in study.arms if study.select(m, a)}
    seeds = seeds_word(max(counts)) if len(counts) == 1 else f"up to {seeds_word(max(counts))}"
    direction = "" if study.greater_is_better else " (less is better; gains are signed so that + is better)"
    return f"{title}{data}, {seeds} per model and arm; all figures are test {Scale(study.metric).name}{direction}."


def _answer_model(study: Study, model: str, scale: Scale) -> ModelAnswer:
    over_scratch = gain(study, model, SPT, SCRATCH)
    over_matched = gain(study, model, SPT, MATCHED)
    matched_over_scratch = gain(study, model, MATCHED, SCRATCH)
    kind = judge(over_scratch, over_matched)

    def mean(arm: str) -> str | None:
        values = [r.test for r in study.select(model, arm)]
        return scale.value(math.fsum(values) / len(values)) if values else None

    levels = [
        f"{value} {words}"
        for arm, words in (
            (SPT, "after self-pretraining (spt)"),
            (SCRATCH, "from scratch"),
            (MATCHED, "from scratch with as many steps as spt (scratch-matched)"),
        )
        if (value := mean(arm)) is not None
    ]
    sentences = [f"{join_words(levels) if levels else 'No run of the main arms'}."]
    sentences += [
        describe(c, scale, f"Over {arm}") for c, arm in ((over_scratch, SCRATCH), (over_matched, MATCHED)) if c
    ]
    if kind == "missing":
        absent = [arm for arm in (SPT, SCRATCH) if not study.select(model, arm)]
        why = f"there is no finished {join_words(absent)} run" if absent else "no seed has both arms"
        sentences.append(f"Whether self-pretraining helps cannot be said, as {why}.")
    return ModelAnswer(model, kind, over_scratch, over_matched, matched_over_scratch, " ".join(sentences))


def _seeds_agree(contrast: Contrast) -> bool:
    interval = contrast.paired.interval
    return interval is not None and interval.excludes_zero


def describe(contrast: Contrast, scale: Scale, what: str) -> str:
    """A sentence on a contrast: its mean, interval, count of seeds, and whether that is enough to tell."""
    paired = contrast.paired
    mean = f"{scale.difference(paired.mean)}{scale.unit}"
    interval = paired.interval
    if interval is None:
        return f"{what}: {mean}, but one seed gives no interval and cannot tell."
    if all(d == 0 for d in paired.differences):
        return f"{what}: no difference in {_all_of(paired.n)}."
    span = scale.interval(interval)
    count = paired.positive if paired.mean > 0 else paired.negative
    seeds = f"in {_all_of(paired.n)}" if count == paired.n else f"in {spell(count)} of {seeds_word(paired.n)}"
    side = "ahead" if paired.mean > 0 else "behind"
    if contrast.verdict != "unclear":
        verb = "a clear gain" if contrast.verdict == "higher" else "a clear loss"
        return f"{what}: {verb} of {mean} on average (95% interval {span}), {side} {seeds}."
    if not interval.excludes_zero:
        return (
            f"{what}: {mean} on average, {side} {seeds}, but the 95% interval ({span}) includes 0, so "
            f"{_cannot(paired.n)}."
        )
    if contrast.bootstrap is None:
        return (
            f"{what}: {mean} in every seed; equal differences give an interval of no width, which is chance rather "
            "than certainty, and without predictions.csv nothing else can tell."
        )
    return (
        f"{what}: {mean} on average, {side} {seeds}, but with the test examples resampled too the 95% interval "
        f"({scale.interval(contrast.bootstrap)}) includes 0, so the test split is too small to tell."
    )


def reading(contrast: Contrast) -> str:
    """The last cell of a contrast's table row."""
    paired = contrast.paired
    if paired.n == 1:
        return "one seed: cannot tell"
    if all(d == 0 for d in paired.differences):
        return "no difference"
    verdict = {"higher": "clearly higher", "lower": "clearly lower", "unclear": "cannot tell"}[contrast.verdict]
    count = f"{paired.positive} of {paired.n} up"
    sign = f"; sign test p = {paired.sign_p:.3f}" if paired.n >= 6 and paired.sign_p is not None else ""
    return f"{verdict} ({count}{sign})"


def _more_training(model: ModelAnswer, scale: Scale) -> str:
    over_matched, extra = model.over_matched, model.matched_over_scratch
    if over_matched is None:
        return f"{model.model}: not measured, as there is no pair of spt and scratch-matched runs."
    start = {
        "higher": "no",
        "lower": "yes, and more",
        "unclear": "that cannot be ruled out",
    }[over_matched.verdict]
    parts = [
        f"{model.model}: {start}.",
        describe(over_matched, scale, "Self-pretraining over scratch-matched, at equal steps"),
    ]
    if extra is not None:
        parts.append(describe(extra, scale, "The extra steps alone, scratch-matched over scratch"))
    return " ".join(parts)


def _gaps(study: Study, scale: Scale) -> list[str]:
    sentences = []
    for other, model in combinations([m for m in study.models if study.select(m)], 2):
        parts = []
        for arm, words in ((SCRATCH, "from scratch"), (SPT, "after self-pretraining")):
            if (found := gap(study, model, other, arm)) is not None:
                parts.append(describe(found, scale, f"{model} over {other}, {words}"))
        if (change := gap_change(study, model, other, SPT, SCRATCH)) is not None:
            parts.append(describe(change, scale, "Change of this gap from before to after"))
        if parts:
            sentences.append(" ".join(parts))
    return sentences


def mean_total(study: Study, model: str, arm: str, quantity: str, stage: str | None = None) -> float | None:
    """Mean over seeds of `steps`, `examples_seen`, `flops` or `seconds`; `None` if a run does not give it."""
    runs = study.select(model, arm)
    values = [float(r.steps(stage)) if quantity == "steps" else r.total(quantity, stage) for r in runs]
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _cost(study: Study, model: str) -> str:
    """Self-pretraining's cost against scratch, for one model; empty if an arm is missing."""
    steps, base = mean_total(study, model, SPT, "steps"), mean_total(study, model, SCRATCH, "steps")
    if not steps or not base:
        return ""
    parts = [f"{format_count(steps)} steps instead of {format_count(base)} ({steps / base:.2f} times as many)"]
    for quantity, name, form in (("flops", "FLOPs", format_flops), ("seconds", "time", format_seconds)):
        spt, scratch = mean_total(study, model, SPT, quantity), mean_total(study, model, SCRATCH, quantity)
        if spt and scratch:
            parts.append(f"{spt / scratch:.2f} times the {name} ({form(spt)} instead of {form(scratch)})")
    return f"With self-pretraining a run of {model} takes {join_words(parts)}."


def list_warnings(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    """What a reader must bear in mind, most weighty first; each rule is one function and adds at most a few lines."""
    found: list[str] = []
    for rule in (
        _baselines_ahead,
        _still_improving,
        _at_chance,
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
            f"{scale.value(sign * best)}). The networks are compared with one another; none is the method to choose "
            "for this task as set up."
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
        ((SPT,), "More finetuning may raise them further."),
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


def _not_tuned(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    return [
        "Hyper-parameters were not tuned for each model and arm; all arms of a model share one set of settings, chosen "
        "as data and protocol say below. "
        "Another learning rate, initial scale or regularisation can change the size of a gain and even its sign, and "
        "may suit one model or arm better than another. The result holds for these settings."
    ]


def _few_seeds(study: Study, models: Sequence[ModelAnswer]) -> list[str]:
    number = max((len(study.select(m.model, a)) for m in models for a in study.arms), default=0)
    if number == 1:
        return [
            "One seed shows one outcome and nothing about how much it would vary; run more seeds (--seeds 3 or more)."
        ]
    if number >= 6:
        return []
    return [
        f"{seeds_word(number).capitalize()} make a t interval wide and rest it on the gains being roughly normal, "
        "which so few cannot show; a sign test could not reach 5% with them at all. The intervals are not corrected "
        "for the number of comparisons on this page."
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
        "in whole examples: the t interval has no width there, and the bootstrap interval is the one to read."
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
    names = [f"{m}/{a}/seed-{s}" for m, a, s in study.missing]
    verb = "is" if len(names) == 1 else "are"
    listed = ", ".join(names[:4]) + (", \u2026" if len(names) > 4 else "")
    return [
        f"{len(names)} of {total} runs {verb} not finished ({listed}). Means use the runs there are, so arms may rest "
        "on different seeds; differences use only seeds that have both sides."
    ]


def _all_of(number: int) -> str:
    return "both seeds" if number == 2 else f"all {seeds_word(number)}"


def _cannot(number: int) -> str:
    return f"{seeds_word(number)} cannot tell"


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


def _plain(text: str) -> str:
    return text.replace(MINUS, "-")
