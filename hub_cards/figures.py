"""Pictures of a study, drawn with matplotlib's Agg canvas and saved as PNG; no global pyplot state is touched.

Colours are Okabe and Ito's, told apart under the common kinds of colour blindness; every arm also has a marker and a
line style of its own.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .formats import Scale, format_count, join_words
from .runs import MATCHED, SCRATCH, SPT, Example, Run, Study
from .statistics import Contrast, gain
from .wording import brief

LineStyle = Literal["-", "--", "-.", ":"]

# colour, marker, line style
ARM_STYLES: dict[str, tuple[str, str, LineStyle]] = {
    SCRATCH: ("#0072B2", "o", "-"),
    MATCHED: ("#D55E00", "s", "--"),
    SPT: ("#009E73", "^", "-."),
}
_MORE_STYLES: tuple[tuple[str, str, LineStyle], ...] = (
    ("#CC79A7", "D", ":"),
    ("#56B4E9", "v", "-"),
    ("#E69F00", "P", "--"),
    ("#555555", "X", "-."),
)
# Dashes of plain baselines in the order of their values; "chance" is dotted.
_LEVEL_DASHES = ((6, 2), (6, 2, 1.5, 2), (2.5, 1.5), (12, 3), (6, 2, 1.5, 2, 1.5, 2), (12, 3, 2, 3))
# How far intervals widen the axis of gains, in spans of the seeds: two seeds' are several times as wide.
_WIDEST = 1.5
_MASK_COLOUR = "#CC79A7"
_TEXT_LINES = 6
_GREY = "#666666"


@dataclass(frozen=True)
class Picture:
    """A saved figure: file, what it shows in a sentence (alt text), and a caption."""

    path: Path
    alt: str
    caption: str


def arm_style(arm: str, arms: Iterable[str]) -> tuple[str, str, LineStyle]:
    """Colour, marker and line style of an arm; arms beyond the three known ones take further styles in order."""
    if arm in ARM_STYLES:
        return ARM_STYLES[arm]
    others = [a for a in arms if a not in ARM_STYLES]
    return _MORE_STYLES[others.index(arm) % len(_MORE_STYLES)] if arm in others else _MORE_STYLES[-1]


def draw_figures(study: Study, folder: Path) -> dict[str, list[Picture]]:
    """Draw every picture the study has data for.

    Returns:
        Pictures by kind: `gains`, `accuracy`, `learning_curves`, `examples`; a kind without data has an empty list.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = [m for m in study.models if study.select(m)]
    pictures: dict[str, list[Picture]] = {
        "gains": _draw_gains(study, models, folder),
        "accuracy": [_draw_accuracy(study, models, folder)],
    }
    with_log = [m for m in models if any(run.log for run in study.select(m))]
    limits = _curve_limits(study, with_log)
    pictures["learning_curves"] = [_draw_learning_curves(study, model, limits, folder) for model in with_log]
    pictures["examples"] = [_draw_example(study, example, folder) for example in study.examples]
    return pictures


def file_stem(name: str) -> str:
    """A model's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    # The Software entry would make the bytes depend on matplotlib's version only; dropped all the same.
    figure.savefig(path, dpi=170, facecolor="white", metadata={"Software": None})
    return path


def _plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_gains(study: Study, models: list[str], folder: Path) -> list[Picture]:
    """Every gain of spt with its t interval and its seeds; nothing if no seed has both arms."""
    scale = Scale(study.metric)
    rows: list[tuple[str, str, Contrast]] = []
    for model in models:
        for over, words in ((SCRATCH, "over scratch"), (MATCHED, "at equal steps")):
            if (found := gain(study, model, SPT, over)) is not None:
                rows.append((model, words, found))
    if not rows:
        return []
    factor = 100 if scale.is_share else 1
    # Each model takes a line of its own for its name, above its comparisons.
    places: list[float] = []
    names: list[tuple[float, str]] = []
    at = 0.0
    for index, (model, _, _) in enumerate(rows):
        if index == 0 or rows[index - 1][0] != model:
            names.append((at + 0.15, model))
            at += 0.75
        places.append(at)
        at += 1.0
    figure = Figure(figsize=(4.8, 0.9 + 0.58 * at), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.axvline(0, color=_GREY, linewidth=1.1)
    left, right = _gain_limits([found for _, _, found in rows])
    axes.set_xlim(factor * (left - 0.08 * (right - left)), factor * (right + 0.08 * (right - left)))
    cut = False
    for place, (_, words, found) in zip(places, rows, strict=True):
        colour = ARM_STYLES[SCRATCH if words == "over scratch" else MATCHED][0]
        paired, interval = found.paired, found.paired.interval
        if interval is not None:
            low, high = max(interval.low, left), min(interval.high, right)
            axes.plot([factor * low, factor * high], [place, place], color=colour, linewidth=2.4)
            for end, shown, arrow in ((interval.low, low, "<"), (interval.high, high, ">")):
                if end != shown:
                    cut = True
                    axes.plot(factor * shown, place, arrow, color=colour, markersize=9)
        # Seeds stand just below the interval, so that equal ones and the mean stay visible.
        seeds = [factor * d for d in paired.differences]
        axes.plot(seeds, [place + 0.2] * len(seeds), "o", color=colour, markersize=5, alpha=0.6, markeredgewidth=0)
        axes.plot(factor * paired.mean, place, "D", color=colour, markersize=7.5, markeredgecolor="white")
        share = (paired.mean - left) / (right - left)
        axes.annotate(
            brief(found, scale),
            (factor * paired.mean, place),
            xytext=(0, 7),
            textcoords="offset points",
            # Near a border the figure stands on the side that has room.
            ha="left" if share < 0.35 else "right" if share > 0.65 else "center",
            fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    for place, model in names:
        axes.annotate(
            model, (0, place), xycoords=("axes fraction", "data"), xytext=(-8, 0), textcoords="offset points",
            ha="right", va="center", weight="bold", fontsize=11, annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(places, [words for _, words, _ in rows], fontsize=10.5)
    axes.set_ylim(at - 0.45, -0.3)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=10)
    unit = "points of test " if scale.is_share else "test "
    axes.set_xlabel(f"gain of spt, {unit}{scale.name}", fontsize=10.5)
    path = _save(figure, folder / "gains.png")
    found_text = "; ".join(f"{model} {words} {brief(found, scale)}" for model, words, found in rows)
    caption = (
        "Gain of self-pretraining: diamond and figure are the mean, the line is its 95% t interval over seeds "
        "(uncorrected), dots are single seeds. An interval across 0 cannot tell"
        + ("; an arrow marks an interval that goes on beyond the axis." if cut else ".")
    )
    return [Picture(path, f"Gains of spt with 95% t intervals: {found_text}.", caption)]


def _gain_limits(gains: list[Contrast]) -> tuple[float, float]:
    """The part of the axis that is drawn: 0, every seed, and intervals as far as they leave the seeds legible."""
    seeds = [0.0, *(d for found in gains for d in found.paired.differences)]
    ends = [x for found in gains if (i := found.paired.interval) is not None for x in (i.low, i.high)]
    low, high = min(seeds), max(seeds)
    span = high - low
    low, high = max(min([low, *ends]), low - _WIDEST * span), min(max([high, *ends]), high + _WIDEST * span)
    # Gains that are all 0 have no span of their own.
    return (low, high) if high > low else (-0.01, 0.01)


def _draw_accuracy(study: Study, models: list[str], folder: Path) -> Picture:
    scale = Scale(study.metric)
    arms = [a for a in study.arms if study.select(arm=a)]
    step = len(arms) + 0.4
    width = max(4.8, 0.8 + 0.62 * step * len(models))
    figure = Figure(figsize=(width, 4.4), layout="constrained")
    axes = figure.subplots()
    _plain_axes(axes)
    ticks: list[float] = []
    labels: list[str] = []
    for index, model in enumerate(models):
        places = {arm: index * step + i for i, arm in enumerate(arms)}
        for seed in study.seeds:
            line = [(places[a], run.test) for a in arms if (run := study.get(model, a, seed)) is not None]
            if len(line) > 1:
                axes.plot(*zip(*line, strict=True), color="#bbbbbb", linewidth=0.9, zorder=1)
        for arm in arms:
            values = [run.test for run in study.select(model, arm)]
            ticks.append(places[arm])
            label = arm.replace("-", "-\n", 1) if len(arm) > 9 else arm
            if not values:
                labels.append(f"{label}\n(no run)")
                continue
            colour, marker, _ = arm_style(arm, study.arms)
            mean = math.fsum(values) / len(values)
            x = [places[arm]] * len(values)
            axes.plot(
                x,
                values,
                marker,
                color=colour,
                markersize=7,
                alpha=0.75,
                markeredgecolor="white",
                linestyle="",
                zorder=3,
            )
            axes.plot([places[arm] - 0.3, places[arm] + 0.3], [mean, mean], color=colour, linewidth=2.6, zorder=2)
            labels.append(f"{label}\n{scale.value(mean)}")
        middle = index * step + (len(arms) - 1) / 2
        axes.text(
            middle,
            1.02,
            model,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            weight="bold",
            fontsize=11,
        )
    axes.set_xticks(ticks, labels, fontsize=9.5)
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", labelsize=10)
    axes.set_xlim(-0.6, len(models) * step - 0.8)
    axes.set_ylabel(scale.axis("test"), fontsize=10.5)
    if scale.is_share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
    outside = _draw_levels(study, figure, axes, scale)
    caption = (
        "Test "
        + scale.name
        + ": one mark per seed, a bar at the mean (its value stands under the arm's name), grey lines "
        "joining runs of the same seed. Grey lines are plain baselines on the same training data"
        + (f". Off the axis, which does not start at 0: {join_words(outside)}." if outside else ".")
    )
    path = _save(figure, folder / "accuracy.png")
    means = "; ".join(
        f"{m}, {a}: {scale.value(math.fsum(v) / len(v))}"
        for m in models
        for a in arms
        if (v := [r.test for r in study.select(m, a)])
    )
    return Picture(path, f"Test {scale.name} of every run by model and arm. Means: {means}.", caption)


def _draw_levels(study: Study, figure: Figure, axes: Axes, scale: Scale) -> list[str]:
    """Baselines and chance as horizontal lines with a legend below; those far off the data are returned as text."""
    by_name: dict[str, list[float]] = {}
    for baseline in study.baselines:
        by_name.setdefault(baseline.name, []).append(baseline.test)
    levels = [(name, math.fsum(v) / len(v)) for name, v in by_name.items()]
    chance = study.task.get("chance")
    if isinstance(chance, (int, float)):
        levels.append(("chance", float(chance)))
    tests = [r.test for r in study.runs]
    low, high = min(tests), max(tests)
    spread = max(high - low, 0.02 if scale.is_share else 1e-9)
    # A chance level of 10% under accuracies near 90% would flatten every difference, so far levels go to the caption.
    near = [item for item in levels if low - 1.2 * spread <= item[1] <= high + 2.5 * spread]
    outside = [f"{name} {scale.value(value)}" for name, value in levels if (name, value) not in near]
    everything = [low, high, *(value for _, value in near)]
    bottom, top = min(everything), max(everything)
    margin = 0.08 * max(top - bottom, spread)
    axes.set_ylim(bottom - margin, top + margin)
    # Labels on the lines would be run through by their neighbours.
    dashes = itertools.cycle(_LEVEL_DASHES)
    for name, value in sorted(near, key=lambda item: -item[1]):
        style: Any = ":" if name == "chance" else (0, next(dashes))
        axes.axhline(value, color=_GREY, linewidth=1.1, linestyle=style, zorder=1, label=f"{name} {scale.value(value)}")
    if near:
        figure.legend(loc="outside lower left", ncols=2, fontsize=9.5, frameon=False, handlelength=3.5)
    return outside


def _series(run: Run, keep: Callable[[str], bool], key: str) -> tuple[list[int], list[float]]:
    points = [(e.total_step, e.values[key]) for e in run.log if keep(e.stage) and key in e.values]
    return [p[0] for p in points], [p[1] for p in points]


def _curve_limits(study: Study, models: list[str]) -> dict[str, tuple[float, float]]:
    """Axis limits shared by all models, so that their pictures can be compared."""
    limits: dict[str, tuple[float, float]] = {}
    for name, stage, key in _panels(study):
        values = []
        for run in (r for m in models for r in study.select(m)):
            series = _series(run, stage, key)[1]
            # Validation starts near chance; its axis shows where the arms differ, the last seven of ten evaluations.
            values += series[int(0.3 * len(series)) :] if name == "Validation" else series
        if values:
            limits[name] = (min(values), max(values))
    steps = [r.steps() for m in models for r in study.select(m)]
    limits["steps"] = (0, max(steps, default=1))
    return limits


def _is_finetune(stage: str) -> bool:
    return stage != "pretrain"


def _is_pretrain(stage: str) -> bool:
    return stage == "pretrain"


def _panels(study: Study) -> list[tuple[str, Callable[[str], bool], str]]:
    return [
        ("Training loss", _is_finetune, "loss"),
        ("Validation", _is_finetune, f"eval_{study.metric}"),
        ("Self-pretraining loss", _is_pretrain, "loss"),
    ]


def _mean_line(curves: list[tuple[list[int], list[float]]]) -> tuple[list[int], list[float]]:
    """Mean over seeds at the steps all of them logged."""
    shared = set(curves[0][0]).intersection(*(set(x) for x, _ in curves[1:]))
    steps = sorted(shared)
    tables = [dict(zip(x, y, strict=True)) for x, y in curves]
    return steps, [math.fsum(t[s] for t in tables) / len(tables) for s in steps]


def _draw_learning_curves(study: Study, model: str, limits: dict[str, tuple[float, float]], folder: Path) -> Picture:
    scale = Scale(study.metric)
    panels = [panel for panel in _panels(study) if panel[0] in limits]
    if not any(run.steps("pretrain") for run in study.select(model)):
        panels = [panel for panel in panels if panel[1] is not _is_pretrain]
    figure = Figure(figsize=(4.8, 0.9 + 2.2 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    arms = [a for a in study.arms if study.select(model, a)]
    pretrain_steps = max((r.steps("pretrain") for r in study.select(model)), default=0)
    drawn: list[str] = []
    for axes, (name, stage, key) in zip(grid, panels, strict=True):
        _plain_axes(axes)
        if pretrain_steps:
            # A bar above the axes, not a shaded area: the other arms learn from labels in these steps.
            axes.axvspan(0, pretrain_steps, 1.02, 1.12, color="#00785a", linewidth=0, clip_on=False)
        for arm in arms:
            colour, _, style = arm_style(arm, study.arms)
            curves = [c for run in study.select(model, arm) if (c := _series(run, stage, key))[0]]
            for x, y in curves:
                axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.6)
            if curves:
                drawn.append(arm)
                axes.plot(*_mean_line(curves), color=colour, linewidth=1.9, linestyle=style)
        low, high = limits[name]
        if name != "Validation" and low > 0 and high / low > 30:
            axes.set_yscale("log")
        elif name == "Validation":
            margin = 0.05 * max(high - low, 1e-6)
            axes.set_ylim(low - margin, high + margin)
            if scale.is_share:
                axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        if axes.get_yscale() == "log":
            axes.set_ylim(low / 1.3, high * 1.3)
        title = scale.axis("validation") if name == "Validation" else name
        if name == "Training loss":
            title = "Training loss (classification)"
        axes.set_title(title, fontsize=10.5, loc="left", pad=20 if pretrain_steps else 6)
        axes.tick_params(labelsize=9.5)
        if pretrain_steps:
            axes.text(
                pretrain_steps / 2, 1.065, "spt pretrains", transform=axes.get_xaxis_transform(), ha="center",
                va="center", fontsize=8, color="white",
            )  # fmt: skip
    grid[-1].set_xlabel("optimiser steps, self-pretraining included", fontsize=10)
    grid[-1].set_xlim(0, 1.04 * limits["steps"][1])
    grid[-1].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles: list[Any] = [
        Line2D([], [], color=arm_style(a, study.arms)[0], linestyle=arm_style(a, study.arms)[2], linewidth=1.9, label=a)
        for a in arms
        if a in drawn
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), fontsize=9.5, frameon=False, title=model
    )
    path = _save(figure, folder / f"learning_curves_{file_stem(model)}.png")
    caption = f"{model}: thick lines are means over seeds, thin lines single seeds"
    caption += "; the lowest early validation values are cut off." if "Validation" in limits else "."
    if pretrain_steps:
        caption += f" spt spends its first {format_count(pretrain_steps)} steps (green bar) on self-pretraining."
    ends = []
    for arm in arms:
        known = [r.validation for r in study.select(model, arm) if r.validation is not None]
        if known:
            ends.append(f"{arm} {scale.value(math.fsum(known) / len(known))}")
    alt = f"Learning curves of {model}: training loss and validation {scale.name} against steps for {join_words(arms)}."
    if ends:
        alt += f" Validation {scale.name} at the end, mean over seeds: {join_words(ends)}."
    return Picture(path, alt, caption)


def _draw_example(study: Study, example: Example, folder: Path) -> Picture:
    share = float(example.mask.mean())
    is_image = example.shape is not None and len(example.shape) in (2, 3)
    is_text = example.original.dtype.kind == "U"
    figure = _draw_image(example) if is_image else _draw_text(example) if is_text else _draw_series(example)
    path = _save(figure, folder / f"example_{file_stem(example.model)}.png")
    what = "pixels" if is_image else "symbols" if is_text else "values"
    score = _reconstruction_score(study, example.model, what)
    ratio = (study.info.get("recipe") or {}).get("mask_ratio")
    chosen = f"each value is masked with probability {100 * ratio:g}%, here " if isinstance(ratio, (int, float)) else ""
    marks = "Pink: masked; pink frames: guessed." if is_image else "Pink: masked; blue: guessed."
    if is_text:
        marks = f"Its beginning: pink {what} were masked, and what was filled in stands below them in blue."
    caption = f"{example.model}: one validation example ({chosen}{100 * share:.0f}% of its {what} masked). {marks}"
    if score:
        caption += f" {score[0].upper()}{score[1:]} (validation split, mean over seeds)."
    alt = f"A masked example and its reconstruction by {example.model}" + (f": {score}." if score else ".")
    return Picture(path, alt, caption)


def _reconstruction_score(study: Study, model: str, what: str) -> str:
    """How well the masked values are filled in, beside what a plain guess would reach; empty if no run says."""

    def mean(key: str) -> float | None:
        values = [v for r in study.select(model) if (v := r.pretrain_metrics.get(key)) is not None]
        return math.fsum(values) / len(values) if values else None

    if (exact := mean("masked_accuracy")) is not None:
        guess = mean("guess_accuracy")
        text = f"{100 * exact:.1f}% of masked {what} are filled in exactly"
        return text if guess is None else f"{text}; always answering the most frequent value: {100 * guess:.1f}%"
    if (r2 := mean("masked_r2")) is not None:
        return f"{100 * r2:.1f}% of the masked values' variance is explained (R\u00b2; the mean value alone: 0%)"
    return ""


def _draw_image(example: Example) -> Figure:
    shape = example.shape
    assert shape is not None
    original = np.asarray(example.original, dtype=float).reshape(shape)
    # A mask has one entry per step; the steps of an image are its pixels.
    mask = example.mask.reshape(shape[:2])
    filled = np.asarray(example.reconstruction, dtype=float).reshape(shape)
    filled = np.where(mask if filled.ndim == 2 else mask[..., None], filled, original)
    low, high = float(original.min()), float(original.max())
    figure = Figure(figsize=(4.8, 2.1), layout="constrained")
    panels = figure.subplots(1, 3)
    shown_images = (("original", original), ("masked input", original), ("filled in", filled))
    for axes, (title, image) in zip(panels, shown_images, strict=True):
        shown = np.clip((image - low) / max(high - low, 1e-12), 0, 1) if image.ndim == 3 else image
        axes.imshow(shown, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        if title == "masked input":
            axes.imshow(np.ma.masked_where(~mask, mask), cmap=ListedColormap([_MASK_COLOUR]), interpolation="nearest")
        if title == "filled in":
            rows, columns = np.nonzero(mask)
            for row, column in zip(rows, columns, strict=True):
                box = Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, fill=False, color=_MASK_COLOUR, linewidth=1.2)
                axes.add_patch(box)
        axes.set_title(title, fontsize=10.5)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.suptitle(example.model, fontsize=10.5, weight="bold")
    return figure


def _draw_text(example: Example) -> Figure:
    """The first lines of a text; under each line, what was filled in."""
    widest = max(len(symbol) for symbol in example.original)
    per_line = max(8, 48 // max(1, widest))
    lines = min(_TEXT_LINES, -(-len(example.mask) // per_line))
    figure = Figure(figsize=(4.8, 0.5 + 0.42 * lines), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(-0.5, per_line - 0.5)
    axes.set_ylim(2 * lines - 0.5, -0.5)
    axes.set_axis_off()
    style: dict[str, Any] = {"family": "monospace", "fontsize": 8, "ha": "center", "va": "center", "parse_math": False}
    for index in range(min(len(example.mask), per_line * lines)):
        line, column = divmod(index, per_line)
        if example.mask[index]:
            box = Rectangle((column - 0.5, 2 * line - 0.5), 1, 1, color=_MASK_COLOUR, alpha=0.3, linewidth=0)
            axes.add_patch(box)
            axes.text(column, 2 * line + 0.9, _printable(example.reconstruction[index]), color="#0072B2", **style)
        axes.text(column, 2 * line, _printable(example.original[index]), color="#444444", **style)
    figure.suptitle(example.model, fontsize=10.5, weight="bold")
    return figure


def _printable(symbol: str) -> str:
    """A symbol as every font has it; blanks and line ends, also as a byte-level vocabulary writes them, show."""
    shown = {" ": "\u00b7", "\u0120": "\u00b7", "\n": "\\n", "\u010a": "\\n", "\t": "\\t", "\u0109": "\\t"}
    symbol = shown.get(symbol, symbol)
    return symbol if all(character.isprintable() and ord(character) < 0x250 for character in symbol) else "?"


def _draw_series(example: Example) -> Figure:
    def channels_last(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(values, dtype=float).reshape(len(example.mask), -1)

    original, filled = channels_last(example.original), channels_last(example.reconstruction)
    num_channels = min(original.shape[1], 4)
    figure = Figure(figsize=(4.8, 1.1 + 1.7 * num_channels), layout="constrained")
    panels = figure.subplots(num_channels, 1, squeeze=False, sharex=True)[:, 0]
    steps = np.arange(len(example.mask))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], example.mask.astype(int), [0]])))
    for channel, axes in enumerate(panels):
        _plain_axes(axes)
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            axes.axvspan(start - 0.5, end - 0.5, color=_MASK_COLOUR, alpha=0.16, linewidth=0)
        axes.plot(steps, original[:, channel], color="#444444", linewidth=1.1)
        guess = np.where(example.mask, filled[:, channel], np.nan)
        axes.plot(steps, guess, color="#0072B2", marker="o", markersize=2.6, linewidth=0.9)
        if original.shape[1] > 1:
            axes.set_title(f"channel {channel}", fontsize=9, loc="left")
        axes.tick_params(labelsize=8.5)
    panels[-1].set_xlabel("step", fontsize=9.5)
    handles: list[Any] = [
        Line2D([], [], color="#444444", linewidth=1.1, label="original"),
        Patch(color=_MASK_COLOUR, alpha=0.3, label="masked"),
        Line2D([], [], color="#0072B2", marker="o", markersize=3, linewidth=0.9, label="filled in"),
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, fontsize=9.5, frameon=False, title=example.model
    )
    return figure
