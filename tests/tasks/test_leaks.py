"""No input of the test or validation part reaches vocabulary, statistics, pretraining or the weights it leaves.

One example of the raw files is replaced by a marker that nothing else resembles. In the test or the validation part it
must leave no trace in anything learned; in the training part it must, or the check could not fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from test_bidmc import case, write_ts
from test_cifar import png, write_folders
from test_own import wav
from test_pathfinder import HARD
from test_pathfinder import write as write_pathfinder
from test_speech_commands import write_clip

from neverscratch.recipes import data, train
from neverscratch.recipes.config import parse_recipe
from neverscratch.recipes.trainer import StageTrainer
from neverscratch.tasks.base import SPLITS
from neverscratch.tasks.lra_listops import FILES as LISTS
from neverscratch.tasks.lra_retrieval import FILES as PAIRS
from neverscratch.tasks.speech_commands import LISTS as CLIP_LISTS

Options = dict[str, Any]
STAGE = {"max_steps": 2, "learning_rate": 1.0e-2, "per_device_train_batch_size": 8}
SMALL = {"config": {"hidden_size": 8, "num_hidden_layers": 1, "d_state": 4}, "source": "test"}
# Twelve examples: eight to train, two to validate, two to test, where the files say so.
PARTS = np.repeat(SPLITS, (8, 2, 2)).tolist()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def by_part(rows: list[str], names: tuple[str, ...] = SPLITS) -> Iterator[tuple[str, list[str]]]:
    for name, part in zip(names, SPLITS, strict=True):
        yield name, [row for row, own in zip(rows, PARTS, strict=True) if own == part]


def letters(row: int, marker: str, planted: int | None) -> str:
    """A text of its own for each row; q stands in the first one alone, once."""
    return marker if row == planted else "ab" * (row % 3 + 1) + "cdefghijklmn"[row] + ("q" if row == 0 else "")


def series(row: int, planted: int | None, shape: tuple[int, ...] = (4,)) -> np.ndarray:
    return np.full(shape, 1e6) if row == planted else np.random.default_rng(row).normal(size=shape)


def tone(row: int, planted: int | None) -> np.ndarray:
    return np.full(40 + row, 32_767 if row == planted else 0) + (row != planted) * np.arange(40 + row)


def write_lists(folder: Path, planted: int | None) -> Options:
    lists = ["[SM 5 5 5 ]" if row == planted else f"[MAX {row % 4} [MIN {row // 4} 3 ] ]" for row in range(12)]
    rows = [f"{source}\t{row % 2}" for row, source in enumerate(lists)]
    for name, found in by_part(rows, LISTS):
        (folder / name).write_text("\n".join(["Source\tTarget", *found]) + "\n")
    return {"data_dir": folder}


def write_words(folder: Path, planted: int | None) -> Options:
    rows = [
        ["up", "planted"] if row == planted else ["up", "down"] * (row % 3 + 1) + [f"n{row % 8}"] for row in range(12)
    ]
    lines = [json.dumps({"words": words, "label": "xy"[row % 2]}) for row, words in enumerate(rows)]
    for part, found in by_part(lines):
        (folder / f"{part}.jsonl").write_text("\n".join(found) + "\n")
    return {"data": folder}


def write_reviews(folder: Path, planted: int | None) -> Options:
    rows = [f"{letters(row, 'ждждqq', planted)},{row % 2}" for row in range(12)]
    for part, found in by_part(rows):
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *found]) + "\n")
    # One q more would make it known.
    return {"data_dir": folder, "unit": "characters", "min_count": 2}


def write_pairs(folder: Path, planted: int | None) -> Options:
    rows = [f"{row % 2}\ti\tj\t{'abc'[row % 3]}\t{letters(row, 'ждждqq', planted)}" for row in range(12)]
    for name, found in by_part(rows, PAIRS):
        (folder / name).write_text("\n".join(found) + "\n")
    return {"data_dir": folder, "unit": "characters", "min_count": 2}


def write_texts(folder: Path, planted: int | None) -> Options:
    rows = [f"{letters(row, 'ждждqq', planted)},{'xy'[row % 2]},{PARTS[row]}" for row in range(12)]
    (folder / "x.csv").write_text("\n".join(["text,label,split", *rows]) + "\n")
    return {"data": folder / "x.csv", "unit": "characters"}


def write_table(folder: Path, planted: int | None) -> Options:
    rows = [[*series(row, planted).tolist(), "xy"[row % 2], PARTS[row]] for row in range(12)]
    (folder / "x.csv").write_text("\n".join(["a,b,c,d,label,split", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return {"data": folder / "x.csv"}


def write_targets(folder: Path, planted: int | None) -> Options:
    targets = [1e6 if row == planted else row + 0.5 for row in range(12)]
    rows = [[*series(row, planted).tolist(), targets[row], PARTS[row]] for row in range(12)]
    (folder / "x.csv").write_text("\n".join(["a,b,c,d,label,split", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return {"data": folder / "x.csv"}


def write_arrays(folder: Path, planted: int | None) -> Options:
    x = np.stack([series(row, planted, (5, 2)) for row in range(12)])
    for part in SPLITS:
        rows = [row for row in range(12) if PARTS[row] == part]
        np.save(folder / f"x_{part}.npy", x[rows])
        np.save(folder / f"y_{part}.npy", np.array(rows) % 2)
    return {"data": folder}


def write_archive(folder: Path, planted: int | None) -> Options:
    """`.tsv`: validation is held out of the training file."""
    rows = ["\t".join(map(str, [row % 2, *series(row, planted)])) for row in range(12)]
    for name, found in (("TRAIN", rows[:10]), ("TEST", rows[10:])):
        (folder / f"Toy_{name}.tsv").write_text("\n".join(found) + "\n")
    return {"data_dir": folder}


def write_windows(folder: Path, planted: int | None) -> Options:
    cases = [case(1e6 if row == planted else row) for row in range(12)]
    write_ts(folder, "".join(cases[:10]), "".join(cases[10:]))
    return {"data_dir": folder}


def write_photos(folder: Path, planted: int | None) -> Options:
    """Pictures of 32 x 32 in colour: four of each class to train and validate, then four to test."""
    write_folders(folder, per_class=4)
    files = [*sorted(folder.glob("train/*/*.png")), *sorted(folder.glob("test/*/*.png"))]
    if planted is not None:
        files[planted].write_bytes(png(np.full((32, 32, 3), 255, np.uint8)))
    return {"data_dir": folder}


def write_paths(folder: Path, planted: int | None) -> Options:
    write_pathfinder(folder / HARD, batches=(0,), number=12)
    if planted is not None:
        Image.fromarray(np.full((32, 32), 255, np.uint8)).save(folder / HARD / "imgs" / "0" / f"sample_{planted}.png")
    return {"data_dir": folder / HARD}


def write_drawings(folder: Path, planted: int | None) -> Options:
    """Own pictures, whose statistics are learned."""
    for row, part in enumerate(PARTS):
        path = folder / part / "xy"[row % 2] / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shade = 255 if row == planted else 10 + row
        Image.fromarray(np.full((4, 4), shade, np.uint8)).save(path)
    return {"data": folder}


def write_commands(folder: Path, planted: int | None) -> Options:
    lists: dict[str, list[str]] = {name: [] for name in CLIP_LISTS.values()}
    for row in range(12):
        # Sorted by word, then by name: ids are rows.
        clip = f"{('no', 'yes')[row // 6]}/{row:02d}_nohash_0.wav"
        write_clip(folder / clip, tone(row, planted))
        if row % 6 > 3:
            lists[list(CLIP_LISTS.values())[row % 6 - 4]].append(clip)
    for name, clips in lists.items():
        (folder / name).write_text("\n".join(clips) + "\n")
    return {"data_dir": folder, "pad": False, "words": "found"}


def write_sounds(folder: Path, planted: int | None) -> Options:
    for row, part in enumerate(PARTS):
        wav(folder / part / "xy"[row % 2] / f"{row:02d}.wav", tone(row, planted).astype("<i2"))
    return {"data": folder}


@dataclass(frozen=True)
class Kind:
    """A task in a layout, and what of it is learned besides weights."""

    task: str
    write: Callable[[Path, int | None], Options]
    is_symbolic: bool = False
    learns_processor: bool = True
    learns_targets: bool = False


KINDS = {
    "symbols that the task fixes": Kind("lra-listops", write_lists, is_symbolic=True, learns_processor=False),
    "own symbols": Kind("own", write_words, is_symbolic=True),
    "characters of lra-text": Kind("lra-text", write_reviews, is_symbolic=True),
    "characters of pairs": Kind("lra-retrieval", write_pairs, is_symbolic=True),
    "own characters": Kind("own", write_texts, is_symbolic=True),
    "own CSV": Kind("own", write_table),
    "own targets": Kind("own", write_targets, learns_targets=True),
    "own arrays": Kind("own", write_arrays),
    "UCR archive": Kind("ucr:Toy", write_archive),
    "BIDMC windows": Kind("bidmc-hr", write_windows, learns_targets=True),
    "CIFAR-10, fixed scale": Kind("lra-image", write_photos, learns_processor=False),
    "Pathfinder, fixed scale": Kind("lra-pathfinder", write_paths, learns_processor=False),
    "own images": Kind("own", write_drawings),
    "Speech Commands": Kind("speech-commands-10", write_commands),
    "own audio": Kind("own", write_sounds),
}


def plain(example: dict[str, Any]) -> dict[str, Any]:
    return {name: (np.asarray(value).dtype.str, np.asarray(value).tolist()) for name, value in example.items()}


@dataclass(frozen=True)
class Learned:
    """What a comparison takes from data: all of it must come from the training part.

    Attributes:
        processor: The files of the tokenizer or feature extractor.
        targets: Label names, or mean and deviation of the targets.
        handed: The examples that pretraining was given to train on.
        weights: Of the pretrained model.
        encoded: Each part, encoded.
    """

    processor: dict[str, str]
    targets: dict[str, Any]
    handed: list[dict[str, Any]]
    weights: dict[str, list[Any]]
    encoded: dict[str, list[dict[str, Any]]]

    def equals(self, other: Learned) -> dict[str, bool]:
        return {
            name: getattr(self, name) == getattr(other, name) for name in ("processor", "targets", "handed", "weights")
        }


def learn(kind: Kind, options: Options, folder: Path, train_size: int | None = None) -> Learned:
    """Prepare the task, pretrain for two steps, and gather what came of it."""
    raw = {
        "task": kind.task,
        "task_options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "train_size": train_size,
        "objective": "masked_tokens" if kind.is_symbolic else "masked_values",
        "mask_ratio": 0.5,
        "source": "test",
        "pretrain": STAGE,
        "finetune": STAGE,
        "models": {"s4d": SMALL},
    }
    recipe = parse_recipe(raw, "leaks")
    handed: list[dict[str, Any]] = []

    class Recorder(StageTrainer):
        def __init__(self, **kwargs: Any) -> None:
            handed.extend(plain(example) for example in kwargs["train_dataset"])
            super().__init__(**kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "StageTrainer", Recorder)
        stage = train.run(train.stage_spec(recipe, "s4d", "pretrain", 0, 2), folder)
    finetune = train.stage_spec(recipe, "s4d", "finetune", 0, 2)
    prepared = data.prepare(kind.task, recipe.task_options, train_size, finetune["seeds"].get("split", 0))
    config = train.model_config(finetune, prepared, None).to_dict()
    names = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")
    return Learned(
        processor={name: (stage / name).read_text() for name in names if (stage / name).is_file()},
        targets={name: config.get(name) for name in ("id2label", "label_mean", "label_std")},
        handed=handed,
        weights={name: tensor.tolist() for name, tensor in load_file(stage / "model.safetensors").items()},
        encoded={part: [plain(row) for row in split] for part, split in prepared.splits.items()},
    )


def write_new(kind: Kind, folder: Path, planted: int | None = None) -> Options:
    folder.mkdir(parents=True)
    return kind.write(folder, planted)


@pytest.mark.parametrize("name", KINDS)
def test_a_marker_leaves_a_trace_only_where_models_train(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    clean = learn(kind, write_new(kind, tmp_path / "clean"), tmp_path / "stages-clean")
    assert clean.processor and clean.weights and len(clean.handed) >= 4
    for part in SPLITS:
        example_id = clean.encoded[part][0]["example_id"][1]
        options = write_new(kind, tmp_path / part, planted=example_id)
        marked = learn(kind, options, tmp_path / f"stages-{part}")
        assert marked.encoded[part][0] != clean.encoded[part][0], "the marker is not where it should be"
        same = marked.equals(clean)
        if part == "train":
            assert not same["handed"] and not same["weights"]
            assert same["processor"] != kind.learns_processor
            assert same["targets"] != kind.learns_targets
        else:
            assert same == dict.fromkeys(same, True), f"a marker in the {part} part was learned from"


@pytest.mark.parametrize("name", ["own characters", "own CSV", "own targets"])
def test_training_examples_that_are_left_out_leave_no_trace(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    clean = learn(kind, write_new(kind, tmp_path / "clean"), tmp_path / "stages-clean", train_size=6)
    kept = {example["example_id"][1] for example in clean.handed}
    assert len(kept) == 6
    left_out = next(row for row in range(8) if row not in kept)
    for planted, is_same in ((left_out, True), (min(kept), False)):
        options = write_new(kind, tmp_path / str(planted), planted=planted)
        same = learn(kind, options, tmp_path / f"stages-{planted}", train_size=6).equals(clean)
        expected = dict.fromkeys(same, is_same)
        assert same == {**expected, "targets": is_same or not kind.learns_targets}
