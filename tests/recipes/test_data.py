"""Every kind of raw input becomes model input, and nothing of the test split gets into a processor."""

from dataclasses import replace

import datasets
import numpy as np
import pytest

from neverscratch.recipes import data
from neverscratch.recipes.objectives import make_objective
from neverscratch.recipes.symbols import build_tokenizer, encoder, fit_vocabulary
from neverscratch.tasks import Task, TaskSpec
from neverscratch.tasks.survey import describe, input_lengths

ODD = ["Hello, wörld!\n\tTabs  and\r\nlines 漢字 🎉 <br /> <pad> <mask>", " lead", "x\x00y", "e\u0301", "a" * 5]
INPUTS = {
    "text": ["abc", "bcd", "cde", "abcdefgh"],
    "text_pair": ["xy", "yz", "zx", "xyz"],
    "tokens": [["[MAX", "3", "]"], ["3"], ["7", "3"], ["[MAX", "3", "7", "]"]],
    "values": [np.full((3, 2), number, np.float32) for number in (0.0, 2.0, 4.0, 6.0)],
    "image": [np.full((2, 3), number, np.uint8) for number in (0, 1, 2, 1)],
    "audio": [np.array([0, 16384, -16384], np.int16)] * 4,
}
FEATURES = {
    "text": datasets.Value("string"),
    "text_pair": datasets.Value("string"),
    "tokens": datasets.List(datasets.Value("string")),
    "values": datasets.Array2D((None, 2), "float32"),
    "image": datasets.Array2D((2, 3), "uint8"),
    "audio": datasets.List(datasets.Value("int16")),
}


def toy(modality: str, test_inputs: list | None = None, regression: bool = False, **fields) -> Task:
    """Four examples in each split."""
    names = [modality, *([f"{modality}_pair"] if fields.get("is_pair") else [])]
    label = datasets.Value("float32") if regression else datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features(
        {name: FEATURES[name] for name in names} | {"label": label, "example_id": datasets.Value("int64")}
    )
    splits = datasets.DatasetDict()
    for number, part in enumerate(("train", "validation", "test")):
        columns = {name: INPUTS[name] for name in names}
        if part == "test" and test_inputs is not None:
            columns[modality] = test_inputs
        labels = [70.0, 80.0, 90.0, 100.0] if regression else [0, 1, 0, 1]
        ids = [10 * number + row for row in range(4)]
        splits[part] = datasets.Dataset.from_dict(columns | {"label": labels, "example_id": ids}, features=features)
    channels = {"values": 2, "image": 1, "audio": 1}.get(modality)
    spec = TaskSpec(
        name="toy", title="Toy", modality=modality, num_channels=channels, labels=None if regression else ("no", "yes"),
        num_levels=fields.pop("num_levels", None), length=8, metric="rmse" if regression else "accuracy",
        greater_is_better=not regression, chance=0.5, license="none", citation="", source="", version=1,
        problem_type="regression" if regression else "single_label_classification", **fields,
    )  # fmt: skip
    return Task(spec, splits)


def prepare(task: Task, monkeypatch: pytest.MonkeyPatch, source=None) -> data.StageData:
    monkeypatch.setattr(data, "load_task", lambda name, **options: task)
    return data.prepare("toy", {}, None, 0, source)


@pytest.mark.parametrize(
    ("modality", "fields", "expected"),
    [
        ("text", {"unit": "bytes"}, [3 + ord("a"), 3 + ord("b"), 3 + ord("c")]),
        ("text", {"unit": "characters"}, [3, 4, 5]),
        ("tokens", {"unit": "symbols"}, [5, 3, 6]),
        ("tokens", {"unit": "symbols", "vocabulary": ("]", "[MAX", "3", "7")}, [4, 5, 3]),
        ("image", {"num_levels": 3}, [3] * 6),
        ("image", {"scale": ((1.0, 2.0),)}, [[-0.5]] * 6),
        ("values", {}, [[(0 - 3) / 5**0.5] * 2] * 3),
        ("audio", {}, [[0.0], [(3 / 2) ** 0.5], [-((3 / 2) ** 0.5)]]),
    ],
    ids=["bytes", "characters", "symbols", "fixed symbols", "levels", "scaled image", "values", "audio"],
)
def test_first_example(modality, fields, expected, monkeypatch, tmp_path):
    stage = prepare(toy(modality, **fields), monkeypatch)
    example = stage.splits["train"][0]
    name = "input_ids" if stage.vocab_size is not None else "input_values"
    np.testing.assert_allclose(example[name], expected, rtol=1e-6)
    assert example["labels"] == 0 and example["example_id"] == 0 and len(stage.splits["test"]) == 4
    assert list(stage.splits["test"]["example_id"]) == [20, 21, 22, 23]
    if stage.vocab_size is not None:
        assert max(max(row["input_ids"]) for row in stage.splits["test"]) < stage.vocab_size
    if modality == "audio":
        # In raw units 16-bit samples are between -1 and 1.
        np.testing.assert_allclose(stage.processor.denormalize(example[name])[:, 0], [0, 0.5, -0.5], atol=1e-6)
    # What a checkpoint brings along does the same.
    stage.processor.save_pretrained(tmp_path)
    again = prepare(toy(modality, **fields), monkeypatch, source=tmp_path)
    np.testing.assert_array_equal(again.splits["train"][0][name], example[name])


@pytest.mark.parametrize("unit", ["bytes", "characters"])
def test_fast_encoding_is_that_of_the_tokenizer_and_can_be_undone(unit):
    vocabulary = None if unit == "bytes" else fit_vocabulary(ODD, unit)
    tokenizer = build_tokenizer(unit, vocabulary, None)
    encode = encoder(tokenizer)
    for text in [*ODD, "", "ж", "unknown ☃"]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert encode(text).tolist() == ids
        if text in ODD:
            assert tokenizer.decode(ids) == text


def test_symbols_are_encoded_as_the_tokenizer_does():
    tokenizer = build_tokenizer("symbols", ["3", "[MAX", "]"], 5)
    symbols = ["[MAX", "3", "unseen", "]"]
    assert encoder(tokenizer)(symbols).tolist() == tokenizer(" ".join(symbols))["input_ids"] == [4, 3, 2, 5]
    assert tokenizer.decode([4, 3, 5]) == "[MAX 3 ]"


@pytest.mark.parametrize(
    ("examples", "unit", "message"),
    [
        ([["a b"]], "symbols", "'a b' is empty or holds a blank"),
        ([["<pad>"]], "symbols", "'<pad>', which is a special token"),
        (["ab"], "characters", "No symbol occurs min_count=2 times"),
    ],
)
def test_vocabularies_that_cannot_work_are_refused(examples, unit, message):
    with pytest.raises(ValueError, match=message):
        fit_vocabulary(examples, unit, min_count=2 if unit == "characters" else 1)


@pytest.mark.parametrize(
    ("modality", "fields", "marker"),
    [
        ("text", {"unit": "characters"}, ["ж"] * 4),
        ("tokens", {"unit": "symbols"}, [["planted"]] * 4),
        ("values", {}, [np.full((3, 2), 1e6, np.float32)] * 4),
        ("image", {}, [np.full((2, 3), 255, np.uint8)] * 4),
        ("audio", {}, [np.array([32767] * 3, np.int16)] * 4),
    ],
)
def test_a_marker_in_the_test_split_leaves_no_trace(modality, fields, marker, monkeypatch):
    clean, planted = (
        prepare(toy(modality, **fields), monkeypatch),
        prepare(toy(modality, marker, **fields), monkeypatch),
    )
    if fields:
        assert clean.processor.get_vocab() == planted.processor.get_vocab()
        assert (planted.splits["test"][0]["input_ids"] == 2).all()
    else:
        assert clean.processor.to_dict() == planted.processor.to_dict()


def test_pairs_are_two_sequences_for_the_classifier_and_two_examples_before(monkeypatch):
    split = prepare(toy("text", unit="bytes", is_pair=True), monkeypatch).splits["validation"]
    batch = make_objective("classification", 0)([split[0], split[3]])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 2, 8)
    assert batch["attention_mask"].sum(-1).tolist() == [[3, 2], [8, 3]]
    members = split.members()
    assert len(members) == 8 and [members[i]["example_id"] for i in range(4)] == [20, 21, 22, 23]
    assert members[1]["input_ids"].tolist() == [3 + ord("x"), 3 + ord("y")]
    assert "input_ids_pair" not in members[0]


def test_long_sequences_are_counted_once_and_cut(monkeypatch):
    task = toy("text", unit="bytes", max_length=3)
    with pytest.warns(UserWarning, match="3 of 12 sequences of toy are longer than max_length=3 and lose their end"):
        stage = prepare(task, monkeypatch)
    assert [len(row["input_ids"]) for row in stage.splits["train"]] == [3, 3, 3, 3]
    assert "1 of 4 will be cut at 3" in describe(task)


def test_the_cut_of_own_data_is_announced_once(tmp_path):
    lines = [f"{'w' * (1 + row)},{'ab'[row % 2]}\n" for row in range(20)]
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(lines))
    with pytest.warns(UserWarning, match="5 of 20 sequences of own are longer than max_length=15") as caught:
        data.prepare("own", {"data": str(tmp_path / "texts.csv"), "max_length": 15}, None, 0)
    assert len(caught) == 1


def test_empty_sequences_are_refused_with_their_place(monkeypatch):
    with pytest.raises(ValueError, match="Example 2 of the test part of toy is empty"):
        prepare(toy("text", ["a", "b", "", "c"], unit="bytes"), monkeypatch)


@pytest.mark.parametrize("modality", ["text", "tokens", "values", "image", "audio"])
def test_lengths_are_those_of_the_encoded_examples(modality, monkeypatch):
    unit = {"text": {"unit": "characters"}, "tokens": {"unit": "symbols"}}.get(modality, {})
    task = toy(modality, **unit)
    split = prepare(task, monkeypatch).splits["train"]
    expected = [len(row[split.input_name]) for row in split]
    assert input_lengths(task.splits["train"], task.spec).tolist() == expected


def test_the_objective_must_fit_the_input():
    for spec, wrong in ((toy("text", unit="bytes").spec, "masked_values"), (toy("values").spec, "masked_tokens")):
        with pytest.raises(ValueError, match=f"objective {wrong} does not fit task toy"):
            data.check_objective(wrong, spec)


def same(row: dict, other: dict) -> bool:
    return row.keys() == other.keys() and all(np.array_equal(row[name], other[name]) for name in row)


def test_rows_are_kept_as_long_as_there_is_room(monkeypatch):
    split = prepare(toy("values"), monkeypatch).splits["train"]
    read = []
    monkeypatch.setattr(split, "encode", lambda value, encode=split.encode: read.append(1) or encode(value))
    kept = data.KeptRows(split)
    assert not read and len(kept) == 4
    for _ in range(2):
        assert [row["example_id"] for row in kept.__getitems__([2, 0, 2])] == [2, 0, 2]
    assert len(read) == 2
    # Room for one row: the others are made each time.
    small = data.KeptRows(split, limit=data.KeptRows.ROW_BYTES + 100)
    for _ in range(2):
        assert all(same(row, split[index]) for index, row in enumerate(small))
    assert len(small.kept) == 1


def test_kept_rows_do_not_hold_what_was_cut(monkeypatch):
    with pytest.warns(UserWarning, match="lose their end"):
        split = prepare(toy("text", unit="characters", max_length=2), monkeypatch).splits["train"]
    kept = data.KeptRows(split)
    assert kept[3]["input_ids"].base is None and len(kept[3]["input_ids"]) == 2


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("modality", ["text", "tokens", "values", "image", "audio"])
def test_a_batch_holds_what_single_examples_hold(modality, ragged, monkeypatch):
    unit = {"text": {"unit": "bytes"}, "tokens": {"unit": "symbols"}}.get(modality, {})
    even = INPUTS[modality][:1] * 4
    other = {"values": [np.ones((length, 2), np.float32) for length in (1, 2, 3, 4)], "image": even}
    other["audio"] = [np.arange(length, dtype=np.int16) for length in (1, 2, 3, 4)]
    task = toy(modality, other.get(modality, INPUTS[modality]) if ragged else even, **unit)
    split = prepare(task, monkeypatch).splits["test"]
    indices = [3, 0, 3, 1]
    for index, row in zip(indices, split.__getitems__(indices), strict=True):
        assert same(row, split[index]) and row[split.input_name].dtype == split[0][split.input_name].dtype
        raw = split.columns[0][index]
        assert np.array_equal(row[split.input_name], split.encode(raw))


@pytest.mark.parametrize("by_member", [False, True])
def test_a_batch_of_pairs_holds_what_single_examples_hold(by_member, monkeypatch):
    split = prepare(toy("text", unit="bytes", is_pair=True), monkeypatch).splits["test"]
    split = split.members() if by_member else split
    for indices in ([3, 0, 2, 3], [1], [0, 2]):
        for index, row in zip(indices, split.__getitems__(indices), strict=True):
            assert same(row, split[index])
            pair, member = divmod(index, 2) if by_member else (index, 0)
            text = INPUTS["text_pair" if member else "text"][pair]
            assert row["input_ids"].tolist() == [3 + ord(letter) for letter in text]


@pytest.mark.parametrize("modality", list(FEATURES))
def test_the_digest_is_that_of_the_rows_wherever_they_lie(modality, tmp_path):
    fields = {"text": {"unit": "bytes"}, "tokens": {"unit": "symbols"}}.get(modality.removesuffix("_pair"), {})
    task = toy(modality.removesuffix("_pair"), is_pair=modality.endswith("_pair"), **fields)
    digest = data.data_digest(task)
    task.splits.save_to_disk(tmp_path)
    on_disk = replace(task, splits=datasets.load_from_disk(tmp_path))
    pieces = datasets.DatasetDict()
    for part, split in task.splits.items():
        pieces[part] = datasets.concatenate_datasets([split.select([0]), split.select([1, 2, 3])])
    shuffled = datasets.DatasetDict({part: split.select([1, 0, 3, 2]) for part, split in task.splits.items()})
    back = datasets.DatasetDict({part: split.select([1, 0, 3, 2]) for part, split in shuffled.items()})
    assert [data.data_digest(replace(task, splits=splits)) for splits in (on_disk.splits, pieces, back)] == 3 * [digest]
    assert data.data_digest(replace(task, splits=shuffled)) != digest
    longer = datasets.DatasetDict({**task.splits, "test": task.splits["test"].select([0, 1, 2, 3, 3])})
    assert data.data_digest(replace(task, splits=longer)) != digest


def test_regression_targets_keep_their_units(monkeypatch):
    stage = prepare(toy("values", regression=True), monkeypatch)
    assert stage.splits["train"]["labels"].tolist() == [70.0, 80.0, 90.0, 100.0]
    assert stage.splits["train"]["labels"].dtype == np.float32
    assert "target mean 85, deviation 11.18" in describe(replace(toy("values", regression=True), files=("x.csv",)))
