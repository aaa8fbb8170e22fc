from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_study import write_study

from neverscratch.hub_cards import RESULT_COLUMNS, TIMING_COLUMNS, ReportPaths, read_study, write_report
from neverscratch.hub_cards.report import escape_markdown, results_csv

PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """Collects tags, attributes and visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return write_report(write_study(folder, still_improving=(("transformer", "scratch", 1),)))


@pytest.fixture(scope="module")
def folder(paths: ReportPaths) -> Path:
    return paths.html.parent


def test_writes_all_files(paths: ReportPaths, folder: Path):
    assert paths.html == folder / "report.html" and paths.markdown == folder / "report.md"
    assert paths.csv == folder / "results.csv"
    names = {p.relative_to(folder).as_posix() for p in paths.figures}
    assert names == {
        "figures/accuracy.png",
        "figures/gains.png",
        *(f"figures/{kind}_{m}.png" for kind in ("learning_curves", "example") for m in ("transformer", "s4d")),
    }
    assert all(p.read_bytes().startswith(PNG) for p in paths.figures)


def test_results_csv(folder: Path):
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == RESULT_COLUMNS and RESULT_COLUMNS[-3:] == TIMING_COLUMNS
    assert len(rows) == 18
    row = next(r for r in rows if (r["model"], r["arm"], r["seed"]) == ("s4d", "spt", "0"))
    assert float(row["test"]) == 317 / 360 and row["test"] == repr(317 / 360)
    assert (row["pretrain_steps"], row["finetune_steps"], row["total_steps"]) == ("800", "1500", "2300")
    assert row["still_improving"] == "false" and row["train_size"] == "300" and row["task"] == "digits"
    assert float(row["total_seconds"]) == float(row["pretrain_seconds"]) + float(row["finetune_seconds"])
    scratch = next(r for r in rows if (r["arm"], r["seed"]) == ("scratch", "1"))
    assert scratch["still_improving"] == "true" and float(scratch["pretrain_seconds"]) == 0
    assert float(scratch["final_train_loss"]) == 0.11


def test_same_runs_same_bytes(folder: Path, tmp_path: Path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report.*", "results.csv", "figures"))
    write_report(copy)
    for name in ("results.csv", "report.md", "report.html", "figures/accuracy.png"):
        assert (copy / name).read_bytes() == (folder / name).read_bytes(), name


def test_html_is_self_contained(folder: Path):
    html = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert not page.open
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        if "src" in attributes:
            assert str(attributes["src"]).startswith("data:image/png;base64,")
        if tag == "img":
            assert attributes["alt"]
        if "href" in attributes:
            href = str(attributes["href"])
            assert href[1:] in ids if href.startswith("#") else "://" not in href and (folder / href).exists()
    assert len([t for t, _ in page.tags if t == "img"]) == 6
    assert not re.search(r"url\(|@import", html)
    assert "prefers-color-scheme: dark" in html and "width=device-width" in html


def test_page_answers_in_order(folder: Path):
    for name in ("report.html", "report.md"):
        text = (folder / name).read_text(encoding="utf-8")
        if name.endswith("html"):
            text = Page(text).text
        marks = [
            "Self-pretraining: before a network learns the labels",
            "its learning-rate schedule stretched over 2,300 steps",
            "self-pretraining helped s4d: +5.5 points at equal steps",
            "cannot tell whether self-pretraining helps transformer",
            "nor whether it helps s4d more than transformer",
            "at equal steps: cannot tell.",
            "Read with care",
            "beat every network here",
            "Still improving when training stopped: 1 of 3 scratch runs of transformer",
            "not tuned",
            "Does it help, for which model",
            "computed before rounding",
            "At what cost?",
            "times the FLOPs",
            "Would more training from scratch have done the same?",
            "How do the models compare before and after?",
            "Data and protocol",
            "neverscratch compare digits",
            "Every run",
        ]
        places = [text.index(mark) for mark in marks]
        assert places == sorted(places), name


def test_no_number_is_missing_from_the_page(folder: Path):
    text = Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert "nan" not in text.lower().split() and "None" not in text
    for part in ("300 train, 180 validation, 360 test", "torch 2.13.0", "abc1234", "CC BY 4.0"):
        assert part in text
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert "| learning\\_rate | 0.003 | 0.003 |" in markdown
    assert "](s4d/spt/seed-0/)" in markdown and "](figures/accuracy.png)" in markdown
    assert "nan" not in markdown.split() and "None" not in markdown


def test_markdown_tables_are_whole(folder: Path):
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    tables = [i for i, line in enumerate(lines) if re.fullmatch(r"\|( -+: \|| :-+ \|)+", line)]
    assert len(tables) == 8
    for index in tables:
        columns = lines[index].count("|")
        for line in (lines[index - 1], lines[index + 1], lines[index + 2]):
            assert line.replace("\\|", "").count("|") == columns


def test_settings_machine_and_guess_are_shown(tmp_path: Path):
    folder = write_study(tmp_path / "digits", complete=True)
    write_report(folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    for part in (
        "Linux x86\\_64, 2 processors, Python 3.11.9",
        "two runs at a time on the machine (2 processors)",
        "each seed draws its own subset of the training split",
        "the last batch of an epoch is smaller",
        "| lr\\_scheduler\\_type | cosine | cosine |",
        "| max\\_steps | 800 | 1500 or 2300 |",
        "0.002 (transformer), 0.001 (s4d)",
        "| hidden\\_size | 64 | 64 |",
        "| only\\_s4d | \u2013 | True |",
        "each value is masked with probability 50%, here",
        "42.0% of masked pixels are filled in exactly; always answering the most frequent value: 33.0%",
        "The same in every row that has it: training 100.0%, step kept last and still improving no.",
    ):
        assert part in text, part
    # What an older study does not give is not claimed.
    old = write_study(tmp_path / "old")
    write_report(old)
    text = (old / "report.md").read_text(encoding="utf-8")
    assert "own subset" not in text and "most frequent value" not in text and "| machine |" not in text


def test_what_was_set_by_hand_stands_beside_what_the_recipe_says(tmp_path: Path):
    folder = write_study(tmp_path / "digits", complete=True)
    info = json.loads((folder / "study.json").read_text())
    info["recipe"] |= {"source": "Nothing was tuned.", "changes": ["finetune.max_steps=20 (recipe: 1500)"]}
    (folder / "study.json").write_text(json.dumps(info))
    write_report(folder)
    text = (folder / "report.md").read_text(encoding="utf-8").replace("\\", "")
    (source,) = (line for line in text.splitlines() if "Nothing was tuned." in line)
    assert "The recipe: Nothing was tuned. Set otherwise here: finetune.max_steps=20 (recipe: 1500)." in source
    assert "Set by hand: finetune.max_steps=20 (recipe: 1500)" in text and "Settings were not tuned" not in text


def test_changing_columns_stay(folder: Path):
    rows = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    header = next(row for row in rows if row.startswith("| run |"))
    assert "still improving" in header and "training |" in header and "step kept" not in header


def test_text_is_escaped(tmp_path: Path):
    evil = "<script>alert('x')</script> & | `a` *b* [c](d)"
    folder = write_study(
        tmp_path / "s",
        task={"title": evil, "source": evil, "notes": evil},
        baselines={evil: [0.9, 0.9, 0.9]},
        log=False,
    )
    info = (folder / "study.json").read_text().replace("neverscratch compare digits", 'compare <b> ``` \\"x\\"')
    (folder / "study.json").write_text(info)
    write_report(folder)
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in html and "<b>" not in html
    assert evil in Page(html).text
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown and "````\ncompare <b>" in markdown
    assert escape_markdown("a|b\n<c>") == "a\\|b &lt;c&gt;"


def test_partial_studies(tmp_path: Path):
    """One model, one arm, one seed, no logs, no examples: the page still comes, and says what it cannot."""
    folder = write_study(tmp_path / "one", {"s4d": {"scratch": [300]}}, log=False, baselines={})
    (folder / "examples.npz").unlink()
    (folder / "baselines.json").unlink()
    paths = write_report(folder)
    text = Page(paths.html.read_text(encoding="utf-8")).text
    assert [p.name for p in paths.figures] == ["accuracy.png"]
    assert "are missing" in text and "log.jsonl is missing" in text
    assert "How do the models compare" not in text and "What self-pretraining practises" not in text


def test_interrupted_study(tmp_path: Path):
    folder = write_study(tmp_path / "s")
    shutil.rmtree(folder / "s4d" / "spt")
    (folder / "transformer/spt/seed-1/metrics.json").write_text("{")
    text = Page(write_report(folder).html.read_text(encoding="utf-8")).text
    assert "3 of 18 runs are not finished (s4d/spt/seed-0," in text
    assert "1 of 18 runs is damaged (transformer/spt/seed-1: metrics.json is cut off or no JSON)" in text
    assert "delete its folder and call the study's command again" in text
    assert "or s4d the runs needed to judge self-pretraining are missing" in text
    assert "seed 0: " in text


def test_series_and_other_arms(tmp_path: Path):
    counts = {
        "a": {"scratch": [300, 301], "spt": [310, 312], "qk-only": [305, 304]},
        "b/c": {"scratch": [300, 301], "spt": [-1, -1], "qk-only": [305, 304]},
    }
    del counts["b/c"]
    folder = write_study(tmp_path / "s", counts, modality="values", task={"name": "ucr:GunPoint", "chance": 0.5})
    paths = write_report(folder)
    assert (folder / "figures/example_a.png") in paths.figures
    assert "qk-only over scratch" in Page(paths.html.read_text(encoding="utf-8")).text


def test_absent_values_are_empty_in_csv(tmp_path: Path):
    folder = write_study(tmp_path / "s", {"a": {"scratch": [300]}})
    (folder / "a/scratch/seed-0/run.json").write_text('{"stages": [{"name": "finetune", "steps": 5}]}')
    row = dict(zip(RESULT_COLUMNS, results_csv(read_study(folder)).splitlines()[1].split(","), strict=True))
    assert row["flops"] == row["parameters"] == row["total_seconds"] == "" and row["total_steps"] == "5"
    write_report(folder)
