"""Pathfinder pictures: labels by geometry, looks beside the published ones, and nothing that gives the label away."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import generate_pathfinder
from neverscratch.tasks.generate_pathfinder import (
    GEOMETRIES,
    LEVELS,
    MAKERS,
    Scene,
    grow_pairs,
    make_rows,
    render,
    rules,
    sample_scenes,
)
from neverscratch.tasks.generation import load_generated, make

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "lra_format"
SIZES = tuple(GEOMETRIES)
# Means of pictures of the original generator; 64 was not measured.
MEANS = {32: 20.3, 128: 7.9, 256: 2.9}


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@lru_cache
def drawn(size: int, level: str = "hard", number: int = 60) -> tuple[list[Scene], np.ndarray]:
    scenes = sample_scenes(stream(size), size, level, number)
    return scenes, np.stack([render(scene, size) for scene in scenes])


def distances(one: np.ndarray, two: np.ndarray, half: float) -> np.ndarray:
    """Distance of each dash of `one` from each of `two`, by 9 points on each; (N, M)."""
    steps = np.linspace(-half, half, 9)[:, None]
    one, two = (dashes[:, None, :2] + steps * dashes[:, None, 2:] for dashes in (one, two))
    return np.linalg.norm(one[:, None, :, None] - two[None, :, None, :], axis=-1).min(axis=(2, 3))


def same_curve(scene: Scene, size: int) -> bool:
    """Whether a path over pivots leads from the dash under one disc to that under the other; the order is not used."""
    rule = rules(size, "hard", scene.margin)
    middle, direction = scene.dashes[:, :2], scene.dashes[:, 2:]
    ahead, behind = middle + rule.reach * direction, middle - rule.reach * direction
    follows = np.linalg.norm(ahead[:, None] - behind[None], axis=-1) < 1e-3
    linked = follows | follows.T | np.eye(len(middle), dtype=bool)
    # Each disc lies on the outer end of a dash.
    ends = [
        int(
            np.minimum(
                np.linalg.norm(middle + rule.half * direction - disc, axis=1),
                np.linalg.norm(middle - rule.half * direction - disc, axis=1),
            ).argmin()
        )
        for disc in scene.discs
    ]
    reached = np.linalg.matrix_power(linked.astype(float), 2 * rule.contour) > 0
    return bool(reached[ends[0], ends[1]])


@pytest.mark.parametrize("size", SIZES)
def test_labels_are_right(size):
    scenes, _ = drawn(size)
    assert [same_curve(scene, size) for scene in scenes] == [bool(scene.label) for scene in scenes]
    assert {scene.label for scene in scenes} == {0, 1}


@pytest.mark.parametrize("size", SIZES)
def test_curves_follow_the_rules(size):
    scenes, _ = drawn(size)
    geometry = GEOMETRIES[size]
    for scene in scenes:
        rule = rules(size, "hard", scene.margin)
        curves = scene.dashes[: 2 * rule.contour]
        starts = curves[:2, :2]
        assert np.isclose(np.linalg.norm(starts[0] - starts[1]), geometry.seed_distance, atol=1e-4)
        assert (starts[0] >= 2 * geometry.seed_distance).all()
        assert (starts[0] <= size - 2 * geometry.seed_distance).all()
        ends = np.concatenate([scene.dashes[:, :2] + sign * rule.half * scene.dashes[:, 2:] for sign in (-1, 1)])
        low = geometry.padding + scene.margin
        # The first dash of the second curve is where it is by its distance, yet inside.
        assert ends.min() >= low - 1e-3 and ends.max() <= size - low + 1e-3
        turns = (curves[2:, 2:] * curves[:-2, 2:]).sum(axis=1)
        assert turns.min() >= np.cos(np.pi / 2 / geometry.continuity) - 1e-3
        apart = distances(curves, curves, rule.half)
        row = np.arange(len(curves))
        others = np.abs(row[:, None] - row) != 2
        np.fill_diagonal(others, False)
        assert apart[others].min() >= rule.gap - 1e-3
        distractors = scene.dashes[2 * rule.contour :]
        assert len(distractors) % rule.distractor == 0 and len(distractors) <= rule.number * rule.distractor
        if len(distractors):
            assert distances(distractors, curves, rule.half).min() >= rule.gap + geometry.distractor_room - 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_discs_are_where_they_should_be(size):
    scenes, pictures = drawn(size)
    assert pictures.dtype == np.uint8 and pictures.shape == (60, size, size)
    assert (pictures.max(axis=(1, 2)) == 255).all() and (np.median(pictures, axis=(1, 2)) <= 1).all()
    row, column = np.mgrid[:size, :size] + 0.5
    for scene, picture in zip(scenes, pictures):
        for x, y in scene.discs:
            # Half a pixel of leeway for rounding.
            inner = np.hypot(column - x, row - y) <= GEOMETRIES[size].marker_radius - 0.75
            assert picture[inner].min() > 180


def test_disc_hides_no_second_curve():
    """Which curve a disc lies on can be seen: no other curve comes nearer to its middle than its own dash."""
    scenes, _ = drawn(128)
    for scene in scenes:
        rule = rules(128, "hard", scene.margin)
        for end in scene.ends:
            other = scene.dashes[1 - end % 2 : 2 * rule.contour : 2]
            assert distances(scene.dashes[[end]], other, rule.half).min() >= rule.gap - 1e-3


@pytest.mark.parametrize("size, tolerance", [(32, 0.05), (128, 0.08), (256, 0.05)])
def test_brightness(size, tolerance):
    _, pictures = drawn(size)
    assert pictures.mean() == pytest.approx(MEANS[size], rel=tolerance)


@pytest.mark.parametrize("size, tolerance", [(32, 0.08), (128, 0.08), (256, 0.05)])
def test_brightness_beside_the_original(size, tolerance):
    from PIL import Image

    folder = REAL / f"pathfinder{size}" / "curv_contour_length_14" / "imgs"
    if not folder.is_dir():
        pytest.skip("the shared data are not here")
    original = np.stack([np.asarray(Image.open(path)) for path in sorted(folder.glob("*/*.png"))])
    _, ours = drawn(size)
    assert ours.mean() == pytest.approx(original.mean(), rel=tolerance)
    # About as much of the picture is lit, above the ringing of the filter.
    assert (ours > 32).mean() == pytest.approx((original > 32).mean(), rel=0.35)


def test_nothing_plain_gives_the_label_away():
    from sklearn.metrics import roc_auc_score

    scenes, pictures = drawn(32, number=3000)
    labels = np.array([scene.label for scene in scenes])
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))
    statistics = {
        "mean": pictures.mean(axis=(1, 2)),
        "bright pixels": (pictures > 128).sum(axis=(1, 2)),
        "lit pixels": (pictures > 0).sum(axis=(1, 2)),
        "deviation": pictures.std(axis=(1, 2)),
        "upper half": pictures[:, :16].mean(axis=(1, 2)),
        "number of dashes": np.array([len(scene.dashes) for scene in scenes]),
        "distance of the discs": np.array([np.linalg.norm(scene.discs[0] - scene.discs[1]) for scene in scenes]),
    }
    for name, values in statistics.items():
        assert abs(roc_auc_score(labels, values) - 0.5) < 0.05, name


@pytest.mark.parametrize("size", [128, 256])
def test_distance_of_the_discs_tells_little(size):
    # Two ends of one curve cannot be further apart than it is long: that much lies in the task.
    scenes = sample_scenes(stream(1), size, "hard", 400)
    labels = np.array([scene.label for scene in scenes])
    apart = np.array([np.linalg.norm(scene.discs[0] - scene.discs[1]) for scene in scenes])
    best = max(max(np.mean((apart < cut) == labels), np.mean((apart > cut) == labels)) for cut in np.unique(apart))
    assert best < 0.72


@pytest.mark.parametrize("level, contour", [("hard", 14), ("intermediate", 9), ("easy", 6)])
def test_levels(level, contour):
    scenes, pictures = drawn(64 if level != "hard" else 32, level)
    assert LEVELS[level][0] == contour
    assert min(len(scene.dashes) for scene in scenes) >= 2 * contour
    assert {scene.ends[1] // 2 for scene in scenes} == {contour - 1}
    assert {scene.ends[0] for scene in scenes} == {0, 1}


def test_both_margins_at_128_are_as_common():
    margins = np.array([scene.margin for scene in drawn(128)[0]])
    assert set(margins) == {2, 3} and 15 < (margins == 2).sum() < 45


def test_pairs_that_get_stuck_are_thrown_away():
    rule = rules(256, "hard")
    kept = grow_pairs(stream(2), rule, 4000).x.shape[1]
    assert 5 < 4000 / kept < 11  # the original: 8
    assert (grow_pairs(stream(3), rule, 200).x < generate_pathfinder._FAR).all()


def test_rows_are_the_scenes():
    table = make_rows({"level": "easy"}, stream(4), 5, lambda number: None, size=32)
    scenes = sample_scenes(stream(4), 32, "easy", 5)
    assert table["label"].to_pylist() == [scene.label for scene in scenes]
    assert np.array_equal(table["image"].to_pylist(), [render(scene, 32) for scene in scenes])


@pytest.mark.parametrize("name", MAKERS)
def test_generated_folder(name, tmp_path):
    size = {"lra-pathfinder": 32, "lra-pathfinder64": 64, "lra-pathx": 128, "lra-pathx256": 256}[name]
    splits = load_generated(make(name, tmp_path / "out", 20, level="easy", progress=False))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 16, "validation": 2, "test": 2}
    assert splits["train"].features["image"].shape == (size, size)
    assert splits["train"].features["image"].dtype == "uint8"
    assert splits["train"].features["label"].names == ["0", "1"]
    row = splits["test"][0]
    assert row["image"].shape == (size, size) and row["image"].max() == 255 and row["example_id"] == 18
    assert len({rows.tobytes() for rows in splits["train"]["image"][:]}) == 16


def test_unknown_level_is_refused(tmp_path):
    with pytest.raises(ValueError, match="level='hardest' is unknown; use one of hard, intermediate, easy"):
        make("lra-pathx", tmp_path / "out", 10, level="hardest")
