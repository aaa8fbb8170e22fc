"""What the pictures show, read off the figures before they are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic_study import write_study

from neverscratch.hub_cards import figures
from neverscratch.hub_cards.runs import read_study

TWO_SEEDS = {
    "transformer": {"scratch": [180, 206], "scratch-matched": [230, 200], "spt": [190, 250]},
    "s4d": {"scratch": [296, 304], "scratch-matched": [299, 306], "spt": [300, 325]},
}
LOSSES = {"s4d": {"scratch": [300], "spt": [280]}}
CLOSE = {"1-NN (Euclidean)": [0.931], "logistic regression": [0.936], "third": [0.934], "majority class": [0.1]}


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Draw a study; returns its pictures, and the figure of each file as it was when saved."""

    def drawn(counts=None, **kwargs):
        saved = {}
        save = figures._save

        def keep(figure, path):
            FigureCanvasAgg(figure).draw()
            saved[path.name] = figure
            return save(figure, path)

        monkeypatch.setattr(figures, "_save", keep)
        study = read_study(write_study(tmp_path / "s", counts, **kwargs))
        return figures.draw_figures(study, tmp_path / "figures"), saved

    return drawn


def test_intervals_far_beyond_the_seeds_are_cut_and_marked(draw):
    pictures, saved = draw(TWO_SEEDS)
    (axes,) = saved["gains.png"].axes
    low, high = axes.get_xlim()
    dots = [x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()]
    assert low < min(dots) and max(dots) < high
    # The widest interval is 700 points wide, the seeds lie within 25 points.
    assert high - low < 5 * (max(dots) - min(dots))
    arrows = [line for line in axes.lines if line.get_marker() in "<>"]
    assert {line.get_marker() for line in arrows} == {"<", ">"}
    assert all(low <= line.get_xdata()[0] <= high for line in arrows)
    assert "an arrow marks an interval that goes on beyond the axis" in pictures["gains"][0].caption
    # The ends stand in the figure all the same.
    assert any("to +3" in text.get_text() for text in axes.texts)


def test_intervals_near_the_seeds_are_whole(draw):
    pictures, saved = draw()
    (axes,) = saved["gains.png"].axes
    low, high = axes.get_xlim()
    ends = [x for line in axes.lines if line.get_linewidth() == 2.4 for x in line.get_xdata()]
    assert low < min(ends) and max(ends) < high and max(ends) > 19
    assert not [line for line in axes.lines if line.get_marker() in ("<", ">")]
    assert "arrow" not in pictures["gains"][0].caption


@pytest.mark.parametrize("counts", [TWO_SEEDS, LOSSES, None])
def test_figures_of_gains_lie_beside_the_names_of_the_rows(draw, counts):
    _, saved = draw(counts)
    (axes,) = saved["gains.png"].axes
    names = [label.get_window_extent() for label in axes.get_yticklabels()]
    for text in axes.texts:
        if "(" in text.get_text():
            assert not any(text.get_window_extent().overlaps(name) for name in names), text.get_text()


@pytest.mark.parametrize("counts", [TWO_SEEDS, None])
@pytest.mark.parametrize("baselines", [CLOSE, {"1-NN (Euclidean)": [0.83], "logistic regression": [0.78]}])
def test_no_level_runs_through_a_label(draw, counts, baselines):
    pictures, saved = draw(counts, baselines=baselines)
    figure = saved["accuracy.png"]
    (axes,) = figure.axes
    labels = [*axes.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for name in list(baselines)[:2]:
        assert any(label.get_text().startswith(name) for label in labels)
    levels = [line.get_window_extent() for line in axes.lines if line.get_color() == figures._GREY]
    assert len(levels) >= 2
    for label in labels:
        box = label.get_window_extent()
        for level in levels:
            beside = level.x1 < box.x0 or box.x1 < level.x0
            assert beside or not box.y0 < level.y0 < box.y1, label.get_text()
    # Each level can be told from the others by its dashes.
    dashes = [str(line._dash_pattern) for line in axes.lines if line.get_color() == figures._GREY]
    assert len(set(dashes)) == len(dashes)
    assert "Grey lines are plain baselines" in pictures["accuracy"][0].caption
