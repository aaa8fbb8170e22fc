"""Pathfinder pictures made from a seed: do the two discs lie at the ends of one dashed curve (1), or of two (0)?

The task is that of Linsley et al. (2018, arXiv 1805.08315) with the parameters of the Long Range Arena (Tay et al.,
2021, arXiv 2011.04006) at 32, 64, 128 and 256 pixels.

Written from the description of the task. Two curves start near the middle, `seed_distance` apart, and grow in turn,
dash by dash. The next dash lies half a dash and a margin beyond the end of the last one, turned by an angle drawn with
density cos^2(continuity * angle); it must keep clear of all others. Most pairs get stuck and are thrown away whole, so
thousands are grown at once. Short curves of distractors follow, each given up after some attempts. One disc lies on the
start of a curve, the other on the end of the same one or of the other.

Positions are in pixels, (x, y), with the corner of the picture at (0, 0).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .generation import Maker, Tick

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

DASH_TRIES = 3
DISTRACTOR_TRIES = 5
ANTIALIAS = 2
# Draws of a place for a dash, free or not. That many in a row hardly ever miss every free one.
_DRAWS = 12
_NUM_TURNS = 32
# Where a dash that is not there lies.
_FAR = 1.0e6
_CHUNK = 250
# Pairs that are grown at once: some dozens succeed.
_BATCH = {32: 16384, 64: 16384, 128: 16384, 256: 2048}
# Pairs without success after which a level is taken for impossible.
_MAX_REJECTED = 20_000_000


@dataclass(frozen=True)
class Geometry:
    """Parameters of the pictures of one size; lengths in pixels.

    Attributes:
        size: Width and height.
        padding: Dashes keep so far from the border, and the margin further.
        seed_distance: From the start of one curve to that of the other; the first lies twice as far from the border.
        marker_radius: Radius of the discs.
        paddle_length: Length of a dash.
        paddle_thickness: Width of a dash.
        margins: Half the gap between dashes, drawn from these for each picture.
        continuity: Larger is straighter: no dash turns by more than 90 degrees over this.
        contrast: Brightness of a dash before shrinking, where that of a disc is 1.
        distractors: Number of distractors at the levels hard, intermediate and easy.
        distractor_room: Distractors keep so much further from other dashes than the dashes of the curves do.
    """

    size: int
    padding: int
    seed_distance: int
    marker_radius: float
    paddle_length: float
    paddle_thickness: float
    margins: tuple[int, ...]
    continuity: float
    contrast: float
    distractors: tuple[int, int, int]
    distractor_room: float = 0.0


# Level -> dashes of a curve, dashes of a distractor.
LEVELS = {"hard": (14, 4), "intermediate": (9, 3), "easy": (6, 2)}
GEOMETRIES = {
    32: Geometry(32, 1, 7, 1.5, 2, 0.5, (1,), 1.0, 1.5, (5, 6, 10), 3.0),
    64: Geometry(64, 1, 12, 2.5, 5, 1, (1,), 1.8, 0.8, (5, 7, 11)),
    128: Geometry(128, 1, 20, 3, 5, 1.5, (2, 3), 1.8, 0.9, (8, 11, 17)),
    256: Geometry(256, 22, 27, 5, 5, 2, (3,), 1.8, 1.0, (7, 10, 15)),
}


class Dashes:
    """Dashes of many pictures: middle (x, y) and direction (u, v), each (slots, pictures) float32."""

    def __init__(self, x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> None:
        self.x, self.y, self.u, self.v = x, y, u, v

    @classmethod
    def none(cls, slots: int, pictures: int) -> Dashes:
        """Room for `slots` dashes in each of `pictures`."""
        return cls(*(np.full((slots, pictures), _FAR, np.float32) for _ in range(4)))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.x, self.y, self.u, self.v

    def take(self, who: np.ndarray, slots: slice = slice(None)) -> Dashes:
        """Some slots of some pictures, copied."""
        return Dashes(*(np.take(array[slots], who, axis=1) for array in self.arrays))

    def write(self, slot: int | slice, who: np.ndarray, *values: Any) -> None:
        """Set one slot of some pictures."""
        for array, value in zip(self.arrays, values):
            array[slot, who] = value


@dataclass(frozen=True)
class Rules:
    """What growing needs to know: a geometry with its margin, and the lengths of the level."""

    geometry: Geometry
    margin: int
    contour: int
    distractor: int
    number: int

    @property
    def half(self) -> float:
        """Half a dash."""
        return self.geometry.paddle_length / 2

    @property
    def reach(self) -> float:
        """From the middle of a dash to the pivot of the next one, and from there to its middle."""
        return self.half + self.margin

    @property
    def low(self) -> float:
        """Least coordinate of a dash."""
        return float(self.geometry.padding + self.margin)

    @property
    def high(self) -> float:
        """Greatest coordinate of a dash."""
        return self.geometry.size - self.low

    @property
    def gap(self) -> float:
        """Least distance between the middle lines of two dashes; they are at least a pixel wide."""
        return self.margin + max(self.geometry.paddle_thickness, 1.0)

    def inside(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x >= self.low) & (x <= self.high) & (y >= self.low) & (y <= self.high)


def rules(size: int, level: str, margin: int | None = None) -> Rules:
    """The rules of a size and level; `margin` is the first of the geometry unless given."""
    geometry = GEOMETRIES[size]
    contour, distractor = LEVELS[level]
    number = geometry.distractors[list(LEVELS).index(level)]
    return Rules(geometry, geometry.margins[0] if margin is None else margin, contour, distractor, number)


@lru_cache
def _turn_table(continuity: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Angles of turn in the middle of equal steps, their weights (sum 1), and the step."""
    widest = np.pi / 2 / continuity
    step = 2 * widest / _NUM_TURNS
    turns = -widest + step * (np.arange(_NUM_TURNS) + 0.5)
    weights = np.cos(continuity * turns) ** 2
    return turns.astype(np.float32), (weights / weights.sum()).astype(np.float32), step


def _draw_turns(
    random: np.random.Generator, rule: Rules, x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw angles of turn at the pivots (x, y), among those that lead to a dash inside the border.

    Returns:
        The angles, and whether there is any such angle, both (P,).
    """
    turns, weights, step = _turn_table(rule.geometry.continuity)
    chance = random.random(len(x), dtype=np.float32)
    choice = np.searchsorted(np.cumsum(weights)[:-1], chance)
    possible = np.ones(len(x), dtype=bool)
    # From the pivot to the far end of the new dash.
    reach = rule.reach + rule.half
    near = np.flatnonzero((np.minimum(x, y) < rule.low + reach) | (np.maximum(x, y) > rule.high - reach))
    if len(near):
        cos, sin = reach * np.cos(turns)[:, None], reach * np.sin(turns)[:, None]
        there_x = x[near] + (u[near] * cos - v[near] * sin)
        there_y = y[near] + (u[near] * sin + v[near] * cos)
        total = np.cumsum(np.where(rule.inside(there_x, there_y), weights[:, None], np.float32(0)), axis=0)
        possible[near] = total[-1] > 0
        choice[near] = np.minimum((total <= chance[near] * total[-1]).sum(axis=0), _NUM_TURNS - 1)
    jitter = (random.random(len(x), dtype=np.float32) - np.float32(0.5)) * np.float32(step)
    return turns[choice] + jitter, possible


def _distance_squared(px: np.ndarray, py: np.ndarray, dash: tuple[np.ndarray, ...], half: float) -> np.ndarray:
    """Squared distance of the points (px, py) from the dashes with middle (x, y) and direction (u, v)."""
    x, y, u, v = dash
    dx, dy = px - x, py - y
    along = np.clip(dx * u + dy * v, -half, half)
    return (dx - along * u) ** 2 + (dy - along * v) ** 2


def check_places(
    dashes: Dashes, who: np.ndarray, new: tuple[np.ndarray, ...], rule: Rules, slot: int, last: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Check new dashes against those in the slots before `slot` of the pictures `who`, but not against `last`.

    Args:
        new: x, y, u, v of one dash for each picture, (P,) each.

    Returns:
        Whether the middle is free, and whether the whole dash keeps its distance, both (P,).
    """
    x, y, u, v = new
    half, gap = rule.half, rule.gap
    if slot >= 2 * rule.contour:
        gap += rule.geometry.distractor_room
    free, clear = rule.inside(x, y), rule.inside(x - half * u, y - half * v) & rule.inside(x + half * u, y + half * v)
    reach = rule.geometry.paddle_length + gap
    distance = np.take(dashes.x[:slot], who, axis=1)
    distance -= x
    distance *= distance
    other = np.take(dashes.y[:slot], who, axis=1)
    other -= y
    other *= other
    distance += other
    near = distance < reach * reach
    if last is not None:
        near[last] = False
    which_slot, which = np.nonzero(near)
    if not len(which):
        return free, clear
    there = tuple(array[which_slot, who[which]] for array in dashes.arrays)
    here = tuple(value[which] for value in new)
    middle = _distance_squared(here[0], here[1], there, half)
    least = middle.copy()
    for one, two in ((here, there), (there, here)):
        for step in (-half, 0.0, half):
            point = _distance_squared(one[0] + step * one[2], one[1] + step * one[3], two, half)
            np.minimum(least, point, out=least)
    free[which[middle < (gap - rule.geometry.paddle_thickness / 2) ** 2]] = False
    clear[which[least < gap * gap]] = False
    return free, clear


def _place(
    random: np.random.Generator, dashes: Dashes, slot: int, last: int | None, who: np.ndarray, rule: Rules
) -> np.ndarray:
    """Put a dash into the `slot` of the pictures `who`: after the slot `last`, or anywhere if that is None.

    A place whose middle is not free is drawn again; a dash that would overlap another costs one of its tries.

    Returns:
        Whether it succeeded, (P,).
    """
    done = np.zeros(len(who), dtype=bool)
    tries = np.zeros(len(who), dtype=np.int64)
    pending = np.arange(len(who))
    for _ in range(_DRAWS):
        here = who[pending]
        if last is None:
            new = _anywhere(random, len(here), rule.low, rule.high)
            possible = np.ones(len(here), dtype=bool)
        else:
            x, y, u, v = (array[last, here] for array in dashes.arrays)
            x, y = x + rule.reach * u, y + rule.reach * v
            turn, possible = _draw_turns(random, rule, x, y, u, v)
            cos, sin = np.cos(turn), np.sin(turn)
            u, v = u * cos - v * sin, u * sin + v * cos
            new = (x + rule.reach * u, y + rule.reach * v, u, v)
        free, clear = check_places(dashes, here, new, rule, slot, last)
        good = possible & free & clear
        dashes.write(slot, here[good], *(value[good] for value in new))
        done[pending[good]] = True
        tries[pending] += free & ~clear
        pending = pending[possible & ~good & (tries[pending] < DASH_TRIES)]
        if not len(pending):
            break
    return done


def _anywhere(random: np.random.Generator, number: int, low: float, high: float) -> tuple[np.ndarray, ...]:
    """Random places between `low` and `high`, and random directions: x, y, u, v."""
    draws = random.random((3, number), dtype=np.float32)
    angle = draws[2] * np.float32(2 * np.pi)
    return low + draws[0] * (high - low), low + draws[1] * (high - low), np.cos(angle), np.sin(angle)


def grow_pairs(random: np.random.Generator, rule: Rules, number: int) -> Dashes:
    """Begin `number` pairs of curves; those that reach their length, with dash k of curve c in slot 2k + c."""
    geometry = rule.geometry
    dashes = Dashes.none(2 * rule.contour, number)
    who = np.arange(number)
    start = 2.0 * geometry.seed_distance
    x, y, u, v = _anywhere(random, number, start, geometry.size - start)
    dashes.write(0, who, x, y, u, v)
    _, _, side_x, side_y = _anywhere(random, number, 0, 0)
    _, _, u, v = _anywhere(random, number, 0, 0)
    second = (x + geometry.seed_distance * side_x, y + geometry.seed_distance * side_y, u, v)
    free, clear = check_places(dashes, who, second, rule, 1, None)
    dashes.write(1, who, *second)
    who = np.flatnonzero(free & clear)
    for slot in range(2, 2 * rule.contour):
        who = who[_place(random, dashes, slot, slot - 2, who, rule)]
        if len(who) < 0.6 * dashes.x.shape[1]:
            dashes, who = dashes.take(who), np.arange(len(who))
    return dashes.take(who)


def add_distractors(random: np.random.Generator, dashes: Dashes, rule: Rules) -> None:
    """Fill the slots after the two curves; those of a distractor that found no room hold nothing."""
    pictures = dashes.x.shape[1]
    for number in range(rule.number):
        first = 2 * rule.contour + number * rule.distractor
        pending = np.arange(pictures)
        for _ in range(DISTRACTOR_TRIES):
            who = pending
            for slot in range(first, first + rule.distractor):
                last = None if slot == first else slot - 1
                who = who[_place(random, dashes, slot, last, who, rule)]
            pending = np.setdiff1d(pending, who)
            dashes.write(slice(first, first + rule.distractor), pending, *(4 * [_FAR]))
            if not len(pending):
                break


@dataclass(frozen=True)
class Scene:
    """What a picture shows.

    Attributes:
        dashes: Middle and direction of each dash, (N, 4) float32; dash k of curve c is in row 2k + c, distractors
            follow.
        discs: Middles of the two discs, (2, 2) float32.
        ends: Row of the dash on whose outer end each disc lies.
        label: 1 if both lie on one curve.
        margin: Half the gap between dashes.
    """

    dashes: np.ndarray
    discs: np.ndarray
    ends: tuple[int, int]
    label: int
    margin: int


class _Pairs:
    """Pairs of curves of one margin, grown in batches and handed out in order."""

    def __init__(self, rule: Rules) -> None:
        self.rule, self.stock = rule, Dashes.none(2 * rule.contour, 0)

    def next(self, random: np.random.Generator, number: int) -> Dashes:
        begun = 0
        while self.stock.x.shape[1] < number:
            batch = _BATCH[self.rule.geometry.size]
            grown = grow_pairs(random, self.rule, batch)
            begun = begun + batch if not grown.x.shape[1] else 0
            assert begun < _MAX_REJECTED, "no pair of curves fits into the picture"
            both = zip(self.stock.arrays, grown.arrays)
            self.stock = Dashes(*(np.concatenate(parts, axis=1) for parts in both))
        first, rest = np.arange(number), np.arange(number, self.stock.x.shape[1])
        taken, self.stock = self.stock.take(first), self.stock.take(rest)
        return taken


def sample_scenes(
    random: np.random.Generator, size: int, level: str, number: int, pairs: dict[int, _Pairs] | None = None
) -> list[Scene]:
    """Draw `number` scenes; `pairs` keeps curves that are left over for the next call."""
    pairs = {} if pairs is None else pairs
    margins = np.array(GEOMETRIES[size].margins)[(random.random(number) * len(GEOMETRIES[size].margins)).astype(int)]
    labels = (random.random(number) < 0.5).astype(int)
    starts = (random.random(number) < 0.5).astype(int)
    scenes: dict[int, Scene] = {}
    for margin in GEOMETRIES[size].margins:
        rule = rules(size, level, margin)
        here = np.flatnonzero(margins == margin)
        dashes = Dashes.none(2 * rule.contour + rule.number * rule.distractor, len(here))
        curves = pairs.setdefault(margin, _Pairs(rule)).next(random, len(here))
        dashes.write(slice(0, 2 * rule.contour), np.arange(len(here)), *curves.arrays)
        add_distractors(random, dashes, rule)
        for place, index in enumerate(here.tolist()):
            found = np.stack([array[:, place] for array in dashes.arrays], axis=1)
            start = int(starts[index])
            other = start if labels[index] else 1 - start
            ends = (start, 2 * (rule.contour - 1) + other)
            discs = np.stack([found[row, :2] + sign * rule.half * found[row, 2:] for row, sign in zip(ends, (-1, 1))])
            found = found[found[:, 0] < _FAR]
            scenes[index] = Scene(found, discs.astype(np.float32), ends, int(labels[index]), margin)
    return [scenes[index] for index in range(number)]


def render(scene: Scene, size: int) -> np.ndarray:
    """The picture of a scene, (size, size) uint8: drawn larger, shrunk with a Lanczos filter, stretched to 0-255."""
    from PIL import Image, ImageDraw

    geometry = GEOMETRIES[size]
    large = (ANTIALIAS * size, ANTIALIAS * size)
    middle, direction = scene.dashes[:, :2], scene.dashes[:, 2:] * (geometry.paddle_length / 2)
    ends = np.concatenate([middle - direction, middle + direction], axis=1) * ANTIALIAS
    layers = []
    lines = Image.new("L", large)
    draw = ImageDraw.Draw(lines)
    for line in np.floor(ends).astype(int).tolist():
        draw.line(line, fill=255, width=max(1, round(ANTIALIAS * geometry.paddle_thickness)))
    discs = Image.new("L", large)
    draw = ImageDraw.Draw(discs)
    for x, y in (np.floor(scene.discs * ANTIALIAS)).astype(int).tolist():
        radius = ANTIALIAS * geometry.marker_radius
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    for layer, contrast in ((lines, geometry.contrast), (discs, 1.0)):
        small = layer.resize((size, size), Image.Resampling.LANCZOS)
        layers.append(np.asarray(small, dtype=np.float32) * np.float32(contrast))
    picture = np.maximum(*layers)
    return np.rint(picture * (np.float32(255) / picture.max())).astype(np.uint8)


def make_rows(options: dict[str, Any], random: np.random.Generator, count: int, tick: Tick, *, size: int) -> pa.Table:
    """A table of `count` pictures: `image`, (size, size) uint8, and `label`."""
    import pyarrow as pa

    pictures = np.empty((count, size, size), dtype=np.uint8)
    labels = np.empty(count, dtype=np.int64)
    pairs: dict[int, _Pairs] = {}
    for first in range(0, count, _CHUNK):
        scenes = sample_scenes(random, size, options["level"], min(_CHUNK, count - first), pairs)
        for index, scene in enumerate(scenes, start=first):
            pictures[index] = render(scene, size)
            labels[index] = scene.label
        tick(len(scenes))
    rows = pa.ListArray.from_arrays(
        pa.array(np.arange(0, count * size * size + 1, size, dtype=np.int32)), pa.array(pictures.reshape(-1))
    )
    images = pa.ListArray.from_arrays(pa.array(np.arange(0, count * size + 1, size, dtype=np.int32)), rows)
    kind = _features(options, size=size).arrow_schema.field("image").type
    return pa.table({"image": pa.ExtensionArray.from_storage(kind, images), "label": pa.array(labels)})


def _check(options: dict[str, Any]) -> dict[str, Any]:
    if options["level"] not in LEVELS:
        raise ValueError(f"level={options['level']!r} is unknown; use one of {', '.join(LEVELS)}.")
    return options


def _features(options: dict[str, Any], *, size: int) -> datasets.Features:
    import datasets

    return datasets.Features(
        {"image": datasets.Array2D((size, size), "uint8"), "label": datasets.ClassLabel(names=["0", "1"])}
    )


def _parameters(options: dict[str, Any], *, size: int) -> dict[str, Any]:
    rule = rules(size, options["level"])
    parameters = asdict(GEOMETRIES[size])
    parameters |= {
        "contour_length": rule.contour,
        "distractor_length": rule.distractor,
        "distractors": rule.number,
        "dash_tries": DASH_TRIES,
        "distractor_tries": DISTRACTOR_TRIES,
        "antialias_scale": ANTIALIAS,
    }
    return parameters


_DIFFERENCES = (
    "positions and directions of dashes are real numbers, not pixels of a circle",
    "the two curves grow in turn, a dash each; dashes keep a margin and their thickness (at least a pixel) apart, "
    "measured between their middle lines",
    "no turn is drawn that leads out of the picture, so the border costs no tries and fewer pairs are thrown away",
    "a place for a dash is drawn 12 times at most",
    "targets and distractors are equally bright; at 32 pixels the original draws distractors brighter, which gives "
    "them away",
    "at 32 pixels distractors keep 3 pixels further from other dashes, so that about as few fit in as in the original",
)


def _maker(name: str, title: str, size: int) -> Maker:
    return Maker(
        name=name,
        title=title,
        version=1,
        shares=(0.8, 0.1, 0.1),
        published_size=200_000,
        shard_size=1_000,
        bytes_per_example=size * size + 4 * size + 32,
        options={"level": ("hard", "hard (curves of 14 dashes), intermediate (9) or easy (6)")},
        check=_check,
        parameters=partial(_parameters, size=size),
        features=partial(_features, size=size),
        rows=partial(make_rows, size=size),
        description=(
            f"Grey pictures of {size} x {size} pixels; the label is 1 if the two discs lie at the ends of one dashed "
            "curve, and 0 if of two. Linsley et al. (2018, arXiv 1805.08315), parameters of Tay et al. (2021, arXiv "
            "2011.04006). Made by a generator of our own, not the published pictures."
        ),
        differences=_DIFFERENCES,
    )


MAKERS = {
    maker.name: maker
    for maker in (
        _maker("lra-pathfinder", "Pathfinder (Long Range Arena)", 32),
        _maker("lra-pathfinder64", "Pathfinder, 64 x 64", 64),
        _maker("lra-pathx", "Path-X (Long Range Arena)", 128),
        _maker("lra-pathx256", "Path-X, 256 x 256", 256),
    )
}
