"""Write the page of a study: `results.csv`, `figures/`, `report.md` and a self-contained `report.html`."""

from __future__ import annotations

import base64
import csv
import importlib.resources
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from .figures import Picture, draw_figures
from .formats import (
    Scale,
    format_about,
    format_count,
    format_flops,
    format_seconds,
    join_words,
    seeds_word,
    spell,
)
from .runs import MATCHED, SCRATCH, SPT, Run, Study, read_study, scrub
from .statistics import Contrast, gain, gap, gap_change, mean_total, summarise
from .wording import PROTOCOL, answer, reading

# Wall-clock times differ between two runs of the same thing; whoever compares two results.csv leaves these out.
TIMING_COLUMNS = ("pretrain_seconds", "finetune_seconds", "total_seconds")
RESULT_COLUMNS = (
    "task",
    "model",
    "arm",
    "seed",
    "train_size",
    "metric",
    "train",
    "validation",
    "test",
    "selected_step",
    "final_train_loss",
    "still_improving",
    "pretrain_steps",
    "finetune_steps",
    "total_steps",
    "examples_seen",
    "flops",
    "parameters",
    *TIMING_COLUMNS,
)


@dataclass(frozen=True)
class ReportPaths:
    """What `write_report` wrote."""

    html: Path
    markdown: Path
    csv: Path
    figures: tuple[Path, ...]


_ANCHOR = "data-and-protocol"
# Names of settings that say nothing about training.
_UNINTERESTING = frozenset({"output_dir", "report_to", "disable_tqdm", "save_strategy", "seed", "data_seed"})


@dataclass(frozen=True)
class Cell:
    """A table cell: text, and where it links to, if anywhere."""

    text: str
    href: str | None = None


@dataclass(frozen=True)
class Table:
    """A table both templates can lay out; `numeric` marks right-aligned columns.

    `note` names the columns left out because every row says the same.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @classmethod
    def of(cls, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str | Cell]]) -> Table:
        names, numeric = zip(*columns, strict=True)
        cells = tuple(tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows)
        return cls(names, numeric, cells)

    def without_constants(self, names: Sequence[str]) -> Table:
        """The table without those of the named columns whose cells, dashes aside, are all the same."""
        keep, same = [], []
        for index, name in enumerate(self.columns):
            values = {row[index].text for row in self.rows} - {"\u2013"}
            if name in names and len(values) <= 1:
                same += [f"{name} {value}" for value in values]
            else:
                keep.append(index)
        return Table(
            tuple(self.columns[i] for i in keep),
            tuple(self.numeric[i] for i in keep),
            tuple(tuple(row[i] for i in keep) for row in self.rows),
            f"The same in every row that has it: {join_words(same)}." if same else "",
        )


def write_report(study_dir: str | Path) -> ReportPaths:
    """Write the page of a study folder into that folder.

    Runs not finished are named on the page. The same runs give the same bytes in `results.csv`, timing columns
    included, since the times come from the run folders.

    Raises:
        ValueError: the folder is no study or holds no finished run.
    """
    study = read_study(study_dir)
    pictures = draw_figures(study, study.path / "figures")
    context = build_context(study, pictures)
    csv_path = study.path / "results.csv"
    csv_path.write_text(results_csv(study), encoding="utf-8", newline="")
    markdown, html = study.path / "report.md", study.path / "report.html"
    markdown.write_text(render("report.md.jinja", context), encoding="utf-8", newline="")
    html.write_text(render("report.html.jinja", context), encoding="utf-8", newline="")
    return ReportPaths(html, markdown, csv_path, tuple(p.path for kind in pictures.values() for p in kind))


def results_csv(study: Study) -> str:
    """One row per finished run, in the study's order, with floats written so that they read back exactly."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RESULT_COLUMNS)
    for run in study.runs:
        row = _result_row(study, run)
        writer.writerow([_csv_value(row[name]) for name in RESULT_COLUMNS])
    return out.getvalue()


def build_context(study: Study, pictures: dict[str, list[Picture]]) -> dict[str, Any]:
    """Everything the page says, as plain text, tables and pictures; both templates read only this."""
    found = answer(study)
    scale = Scale(study.metric)
    title = str(study.task.get("title") or study.task["name"])
    return {
        "title": f"Does self-pretraining help on {title}?",
        "answer": found,
        "arms": _arm_legend(study),
        "tables": {
            "results": _results_table(study, scale),
            "gains": _contrast_table(study, scale, _gain_rows(study, [(SPT, SCRATCH)], others=True)),
            "matched": _contrast_table(study, scale, _gain_rows(study, [(SPT, MATCHED), (MATCHED, SCRATCH)])),
            "gaps": _contrast_table(study, scale, _gap_rows(study)),
            "costs": _cost_table(study),
            "protocol": _protocol_table(study),
            "stages": _stages_table(study),
            "configs": _configs_table(study),
            "runs": _runs_table(study, scale),
        },
        "gains_note": _gains_note(study, scale),
        "costs_note": _costs_note(study),
        "models": [{"name": m, "source": scrub(source)} for m in study.models if (source := _first_source(study, m))],
        "problems": [scrub(problem) for problem in study.problems],
        "command": scrub(str(study.info["command"])) if study.info.get("command") else None,
        "pictures": pictures,
    }


def render(template: str, context: dict[str, Any]) -> str:
    """Fill one of the package's templates; HTML escapes by itself, Markdown through the `md` filter."""
    folder = importlib.resources.files(__package__ or "neverscratch.hub_cards")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=template.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape_markdown
    environment.filters["linked"] = _link_protocol
    environment.filters["md_linked"] = lambda text: escape_markdown(text).replace(PROTOCOL, f"[{PROTOCOL}](#{_ANCHOR})")
    environment.filters["data_uri"] = _data_uri
    environment.filters["code_fence"] = _code_fence
    return environment.get_template(template).render(context)


def escape_markdown(text: str) -> str:
    """Plain text as Markdown that shows it unchanged, inside a table cell too."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "").replace("\n", " ")


def _link_protocol(text: str) -> Markup:
    """Plain text as HTML in which the mention of the section on settings leads there."""
    return Markup(str(escape(text)).replace(PROTOCOL, f'<a href="#{_ANCHOR}">{PROTOCOL}</a>'))


def _code_fence(text: str) -> str:
    """Text as a Markdown code block that no backtick inside can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _data_uri(picture: Picture) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.path.read_bytes()).decode("ascii")


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _result_row(study: Study, run: Run) -> dict[str, Any]:
    def seconds(stage: str | None) -> float | None:
        # No pretraining costs no time, whatever type the sum of nothing has.
        value = run.total("seconds", stage)
        return None if value is None else float(value)

    flops = run.total("flops")
    return {
        "task": study.task["name"],
        "model": run.model,
        "arm": run.arm,
        "seed": run.seed,
        "train_size": study.task.get("train_size") or (study.task.get("sizes") or {}).get("train"),
        "metric": study.metric,
        "train": run.train,
        "validation": run.validation,
        "test": run.test,
        "selected_step": run.selected_step,
        "final_train_loss": run.train_loss,
        "still_improving": run.still_improving,
        "pretrain_steps": run.steps("pretrain"),
        "finetune_steps": run.steps("finetune"),
        "total_steps": run.steps(),
        "examples_seen": run.total("examples_seen"),
        "flops": None if flops is None else float(flops),
        "parameters": run.parameters,
        "pretrain_seconds": seconds("pretrain"),
        "finetune_seconds": seconds("finetune"),
        "total_seconds": seconds(None),
    }


def _cells(study: Study) -> list[tuple[str, str]]:
    return [(m, a) for m in study.models for a in study.arms if study.select(m, a)]


def _results_table(study: Study, scale: Scale) -> Table:
    columns = [("model, arm", False), ("test mean", True), ("sd", True), ("lowest", True), ("highest", True)]
    columns += [("validation", True), ("training", True), ("seeds", True)]
    rows: list[list[str]] = []

    def mean(values: Sequence[float | None]) -> str:
        known = [v for v in values if v is not None]
        return scale.value(summarise(known).mean if known else None)

    def row(name: str, tests: list[float], validation: Sequence[float | None], train: Sequence[float | None]) -> None:
        s = summarise(tests)
        spread = [scale.value(s.mean), scale.spread(s.sd), scale.value(s.minimum), scale.value(s.maximum)]
        rows.append([name, *spread, mean(validation), mean(train), str(s.n)])

    for model, arm in _cells(study):
        runs = study.select(model, arm)
        row(f"{model}, {arm}", [r.test for r in runs], [r.validation for r in runs], [r.train for r in runs])
    for name in dict.fromkeys(b.name for b in study.baselines):
        same = [b for b in study.baselines if b.name == name]
        tuned = ", tuned on validation" if any("chosen on validation" in b.note for b in same) else ""
        row(f"{name}, plain baseline{tuned}", [b.test for b in same], [b.validation for b in same], [])
    return Table.of(columns, rows).without_constants(("training", "seeds"))


def _gain_rows(study: Study, pairs: Sequence[tuple[str, str]], others: bool = False) -> list[tuple[str, str, Contrast]]:
    """Gains of one arm over another for every model, and with `others` of arms beyond the three known ones."""
    rows = []
    extra = [(arm, SCRATCH) for arm in study.arms if arm not in (SCRATCH, MATCHED, SPT)] if others else []
    for model in study.models:
        for arm, over in [*pairs, *extra]:
            if (found := gain(study, model, arm, over)) is not None:
                rows.append((model, f"{arm} over {over}", found))
    return rows


def _gap_rows(study: Study) -> list[tuple[str, str, Contrast]]:
    rows = []
    for other, model in combinations([m for m in study.models if study.select(m)], 2):
        name = f"{model} over {other}"
        for arm, words in ((SCRATCH, "from scratch"), (MATCHED, "scratch-matched"), (SPT, "after self-pretraining")):
            if (found := gap(study, model, other, arm)) is not None:
                rows.append((name, words, found))
        for before in (SCRATCH, MATCHED):
            if (found := gap_change(study, model, other, SPT, before)) is not None:
                rows.append((name, f"change, {before} to spt", found))
    return rows


def _contrast_table(study: Study, scale: Scale, rows: list[tuple[str, str, Contrast]]) -> Table | None:
    """The deciding columns come first, for narrow screens; `None` without rows."""
    if not rows:
        return None
    columns = [("comparison", False), (f"mean{', points' if scale.is_share else ''}", True)]
    columns += [("95% t interval: seeds", True), ("reading", False)]
    columns += [(f"by seed ({', '.join(map(str, study.seeds))})", True)]
    columns += [("95% bootstrap: seeds, test examples", True)]
    cells = []
    for name, what, found in rows:
        paired = found.paired
        whole = paired.seeds == study.seeds
        by_seed = [
            scale.difference(d) if whole else f"seed {s}: {scale.difference(d)}"
            for s, d in zip(paired.seeds, paired.differences, strict=True)
        ]
        mean, interval = scale.difference(paired.mean), scale.interval(paired.interval)
        bootstrap = scale.interval(found.bootstrap)
        cells.append([f"{name}: {what}", mean, interval, reading(found), ", ".join(by_seed), bootstrap])
    return Table.of(columns, cells)


def _gains_note(study: Study, scale: Scale) -> str:
    unit = "percentage points of test " + scale.name if scale.is_share else scale.name
    drawn = ", training examples drawn" if (study.info.get("recipe") or {}).get("train_size") else ""
    return (
        f"Differences are in {unit}, taken seed by seed and computed before rounding. \u201cHigher\u201d and "
        "\u201clower\u201d need both intervals to leave out 0; neither is corrected for several comparisons. The t "
        f"interval asks what other seeds (initial weights, order, masks{drawn}) would give on this very test split. "
        "The bootstrap draws seeds and test examples anew from those there are; with few seeds it is too narrow. "
        "Neither covers other settings or other data."
    )


def _cost_table(study: Study) -> Table:
    columns = [("model, arm", False), ("time a run", True), ("time / scratch", True), ("FLOPs", True)]
    columns += [("steps of pretraining", True), ("supervised steps", True), ("examples seen", True)]
    columns += [("parameters", True)]
    rows = []
    for model, arm in _cells(study):
        runs = study.select(model, arm)

        def count(quantity: str, stage: str | None = None, model: str = model, arm: str = arm) -> str:
            value = mean_total(study, model, arm, quantity, stage)
            return "\u2013" if value is None else format_count(value)

        parameters = [r.parameters for r in runs if r.parameters is not None]
        time, base = mean_total(study, model, arm, "seconds"), mean_total(study, model, SCRATCH, "seconds")
        rows.append(
            [
                f"{model}, {arm}",
                "\u2013" if time is None else format_about(time),
                f"{time / base:.1f}" if time and base else "\u2013",
                format_flops(mean_total(study, model, arm, "flops")),
                count("steps", "pretrain"),
                count("steps", "finetune"),
                count("examples_seen"),
                format_count(parameters[0]) if parameters else "\u2013",
            ]
        )
    return Table.of(columns, rows)


def _costs_note(study: Study) -> str:
    parts = ["Means over seeds. FLOPs are estimates of forward and backward passes; times are wall-clock"]
    jobs, cpus = study.info.get("jobs"), (study.info.get("platform") or {}).get("cpus")
    if isinstance(jobs, int):
        at_once = f"{spell(jobs)} run{'s' if jobs > 1 else ''} at a time"
        parts[0] += f", with {at_once} on the machine" + (f" ({cpus} processors)" if cpus else "")
    if any(
        s.examples_seen is not None and s.batch_size and s.examples_seen < s.steps * s.batch_size
        for r in study.runs
        for s in r.stages
    ):
        parts.append("Examples seen are fewer than steps times batch size, as the last batch of an epoch is smaller")
    return ". ".join(parts) + "."


def _runs_table(study: Study, scale: Scale) -> Table:
    columns = [("run", False), ("test", True), ("validation", True), ("training", True), ("training loss", True)]
    columns += [("steps", True), ("time", True), ("step kept", True), ("still improving", False)]
    rows: list[list[str | Cell]] = []
    for run in study.runs:
        name = f"{run.model}/{run.arm}/seed-{run.seed}"
        # The last step needs no column: it follows from the number of steps.
        last = run.selection == "last" or run.selected_step is None
        rows.append(
            [
                Cell(name, quote(name) + "/"),
                scale.value(run.test),
                scale.value(run.validation),
                scale.value(run.train),
                "\u2013" if run.train_loss is None else f"{run.train_loss:.3g}",
                format_count(run.steps()),
                format_seconds(run.total("seconds")),
                "last" if last else format_count(run.selected_step or 0),
                "yes" if run.still_improving else "no",
            ]
        )
    return Table.of(columns, rows).without_constants(("training", "step kept", "still improving"))


def _arm_legend(study: Study) -> list[dict[str, str]]:
    """What each arm is, with its steps."""

    def steps(arm: str, stage: str | None = None) -> str:
        counts = sorted({r.steps(stage) for r in study.select(arm=arm)})
        return " or ".join(format_count(c) for c in counts)

    texts = {
        SCRATCH: f"{steps(SCRATCH)} supervised steps from random weights",
        MATCHED: f"the same with its learning-rate schedule stretched over {steps(MATCHED)} steps, as many as spt "
        "takes, so that extra training is not taken for a gain",
        SPT: f"{steps(SPT, 'pretrain')} steps of self-pretraining, then {steps(SPT, 'finetune')} supervised steps",
    }
    described = study.info.get("arm_descriptions") or {}
    return [
        {"name": arm, "text": texts.get(arm) or f"{described.get(arm, 'an arm of the study')}; {steps(arm)} steps"}
        for arm in study.arms
        if study.select(arm=arm)
    ]


def _first_source(study: Study, model: str) -> str | None:
    return next((r.source for r in study.select(model) if r.source), None)


def _protocol_table(study: Study) -> Table:
    task, info, first = study.task, study.info, study.runs[0]
    rows: list[list[str | Cell]] = []

    def add(name: str, value: Any) -> None:
        if value not in (None, "", [], {}):
            rows.append([name, scrub(str(value))])

    add("task", f"{task['name']}" + (f", version {task['version']}" if task.get("version") is not None else ""))
    recipe = info.get("recipe") or {}
    by_hand = f" Set otherwise here: {', '.join(recipe['changes'])}." if recipe.get("changes") else ""
    add(
        "where the setting comes from",
        f"The recipe: {recipe.get('source')}{by_hand}" if by_hand else recipe.get("source"),
    )
    add("source of the data", task.get("source"))
    add("licence of the data", task.get("license"))
    add("citation of the data", task.get("citation"))
    sizes = task.get("sizes") or {}
    add("examples", ", ".join(f"{format_count(n)} {split}" for split, n in sizes.items()))
    if recipe.get("train_size"):
        drawn = format_count(sizes.get("train") or recipe["train_size"])
        add("training examples", f"a subset of the training split: each seed draws its own {drawn}")
    add("sequence length", task.get("length"))
    if task.get("labels"):
        add("classes", len(task["labels"]))
    add("metric", Scale(study.metric).name)
    if isinstance(task.get("chance"), (int, float)):
        add("chance level", Scale(study.metric).value(float(task["chance"])))
    add(
        "split",
        "validation and test are the same for every run",
    )
    add("seeds", f"{join_words(map(str, study.seeds))} ({seeds_word(len(study.seeds))})")
    add(
        "pairing",
        "arms of one model and seed share initial weights, training examples and order; models of one seed share "
        "training examples and order",
    )
    add(
        "weights kept",
        {"last": "those of the last step", "best": "best validation value"}.get(str(first.selection), first.selection),
    )
    add("use of the test split", "measured once, after training, with the kept weights; nothing was chosen by it")
    if isinstance(recipe.get("mask_ratio"), (int, float)):
        add("masking", f"each value is masked with probability {100 * recipe['mask_ratio']:g}%")
    platform = info.get("platform") or {}
    cpus = f"{platform['cpus']} processors" if platform.get("cpus") else None
    python = f"Python {platform['python']}" if platform.get("python") else None
    add("machine", ", ".join(str(part) for part in (platform.get("system"), cpus, python) if part))
    jobs, threads = info.get("jobs"), info.get("num_threads")
    add("runs at a time", f"{jobs}" + (f", threads each: {threads}" if threads else "") if jobs else None)
    add("versions", ", ".join(f"{k} {v}" for k, v in (info.get("versions") or {}).items()))
    add("commit", info.get("commit") or "unknown")
    add("notes on the task", task.get("notes"))
    return Table.of([("what", False), ("value", False)], rows)


def _stages_table(study: Study) -> Table | None:
    """Every setting of both stages that the runs give, models side by side only where they differ."""
    names = sorted(dict.fromkeys(s.name for r in study.runs for s in r.stages), key=lambda n: n != "pretrain")
    # setting -> stage -> model -> values in the order of the runs
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for run in study.runs:
        for stage in run.stages:
            known = {
                "objective": stage.objective and stage.objective.replace("_", " "),
                "max_steps": stage.steps,
                "learning_rate": stage.learning_rate,
                "per_device_train_batch_size": stage.batch_size,
            }
            general = (study.info.get("recipe") or {}).get(stage.name)
            # Older runs do not carry their arguments; the recipe's stage then stands in for what they share.
            given = stage.arguments or (general if isinstance(general, dict) else {})
            for key, value in {**known, **given, "max_steps": stage.steps}.items():
                if value is None or key in _UNINTERESTING:
                    continue
                values = found.setdefault(key, {}).setdefault(stage.name, {}).setdefault(run.model, [])
                if _shown(value) not in values:
                    values.append(_shown(value))
    rows = [[key, *(_by_model(stages.get(name, {})) for name in names)] for key, stages in found.items()]
    columns = [("setting", False), *((n if n == "pretrain" else f"{n} (supervised)", False) for n in names)]
    return Table.of(columns, rows) if rows else None


def _configs_table(study: Study) -> Table | None:
    """The fields of each model's configuration that the recipe sets, and its overrides of the stages."""
    entries = (study.info.get("recipe") or {}).get("models") or {}
    models = [m for m in study.models if isinstance(entries.get(m), dict)]
    fields: dict[str, dict[str, str]] = {}
    for model in models:
        for key, value in (entries[model].get("config") or {}).items():
            fields.setdefault(str(key), {})[model] = _shown(value)
    rows = [[key, *(values.get(m, "\u2013") for m in models)] for key, values in fields.items()]
    return Table.of([("setting", False), *((m, False) for m in models)], rows) if rows else None


def _by_model(values: dict[str, list[str]]) -> str:
    texts = {model: " or ".join(found) for model, found in values.items()}
    if len(set(texts.values())) <= 1:
        return next(iter(texts.values()), "\u2013")
    return ", ".join(f"{text} ({model})" for model, text in texts.items())


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return scrub(str(value))
