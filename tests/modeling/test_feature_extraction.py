"""The feature extractor and the pipeline: shapes, refusals, and life outside this package."""

import os
import re
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor

from neverscratch.modeling.feature_extraction_sequence import LongSequenceFeatureExtractor

IMAGE = np.arange(6, dtype=np.uint8).reshape(2, 3)


def levels(**kwargs: Any) -> LongSequenceFeatureExtractor:
    return LongSequenceFeatureExtractor(modality="image", num_levels=17, **kwargs)


def values(**kwargs: Any) -> LongSequenceFeatureExtractor:
    return LongSequenceFeatureExtractor(**kwargs)


def test_levels_become_ids_row_by_row() -> None:
    extractor = levels()
    batch = extractor(IMAGE)
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 7, 8]] and batch["input_ids"].dtype == torch.int64
    assert batch["attention_mask"].tolist() == [[1] * 6]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert extractor.vocab_size == 20
    assert extractor(np.arange(17).reshape(1, 17))["input_ids"].max() == extractor.vocab_size - 1


def test_decode_gives_every_level_back() -> None:
    extractor = levels()
    every = np.arange(17).reshape(1, 17)
    assert extractor.decode(extractor(every)["input_ids"]).tolist() == every.tolist()
    assert extractor.decode([0, 1, 2, 3, 19]).tolist() == [-1, -1, -1, 0, 16]
    with pytest.raises(ValueError, match="Id 20 is out of range; ids go from 0 to 19"):
        extractor.decode([20])
    with pytest.raises(ValueError, match="use denormalize"):
        values().decode([3])


def test_values_are_normalised_and_given_back() -> None:
    extractor = values(num_channels=2, mean=[1.0, -1.0], std=[2.0, 0.5])
    raw = np.array([[1.0, -1.0], [3.0, 0.0], [-100.0, 7.0]])
    batch = extractor(raw)
    assert batch["input_values"].dtype == torch.float32 and batch["input_values"].shape == (1, 3, 2)
    assert batch["input_values"][0, 1].tolist() == [1.0, 2.0]
    assert np.allclose(extractor.denormalize(batch["input_values"]), raw)
    with pytest.raises(ValueError, match=r"Values have shape \(3,\); expected \(..., 2\)"):
        extractor.denormalize(np.zeros(3))
    with pytest.raises(ValueError, match="use decode"):
        levels().denormalize([0.0])
    assert extractor.vocab_size is None


def test_unequal_lengths_are_padded() -> None:
    batch = values()([[1.0, 2.0, 3.0], [4.0]])
    assert batch["input_values"][..., 0].tolist() == [[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert values(max_length=5)([1.0, 2.0], padding="max_length")["attention_mask"].tolist() == [[1, 1, 0, 0, 0]]
    assert levels()([np.zeros((1, 2)), np.ones((1, 1))])["input_ids"].tolist() == [[3, 3], [4, 0]]

    loose = values()([[1.0, 2.0], [4.0]], padding=False, return_tensors=None)
    assert [array.shape for array in loose["input_values"]] == [(2, 1), (1, 1)]
    with pytest.raises(ValueError, match="have lengths 1 to 2 and cannot make one tensor without padding"):
        values()([[1.0, 2.0], [4.0]], padding=False)
    with pytest.raises(ValueError, match="padding='max_length' needs max_length, which is None"):
        values()([1.0], padding="max_length")
    with pytest.raises(ValueError, match="padding='right' is unknown"):
        values()([1.0], padding="right")
    assert isinstance(values()([1.0], return_tensors="np")["input_values"], np.ndarray)


SERIES = np.arange(4.0)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (SERIES, (1, 4, 1)),
        (SERIES[:, None], (1, 4, 1)),
        (SERIES.tolist(), (1, 4, 1)),
        (SERIES[:, None].tolist(), (1, 4, 1)),
        (torch.arange(4), (1, 4, 1)),
        (torch.arange(4.0, dtype=torch.bfloat16), (1, 4, 1)),
        ([SERIES, SERIES], (2, 4, 1)),
        ([SERIES], (1, 4, 1)),
        ([SERIES.tolist(), SERIES.tolist()[:2]], (2, 4, 1)),
        (np.stack([SERIES] * 3), (3, 4, 1)),
        (np.stack([SERIES] * 3).tolist(), (3, 4, 1)),
        (np.stack([SERIES] * 3)[..., None], (3, 4, 1)),
        (np.array([SERIES, SERIES[:2]], dtype=object), (2, 4, 1)),
        ((series for series in (SERIES, SERIES)), (2, 4, 1)),
        ([torch.tensor(1.0), torch.tensor(2.0)], (1, 2, 1)),
    ],
)
def test_one_series_or_several(given: Any, shape: tuple[int, ...]) -> None:
    assert values()(given)["input_values"].shape == shape


def test_one_series_or_several_with_channels_and_images() -> None:
    assert values(num_channels=2)(np.zeros((4, 2)))["input_values"].shape == (1, 4, 2)
    assert values(num_channels=2)(np.zeros((3, 4, 2)))["input_values"].shape == (3, 4, 2)
    assert values(num_channels=2)([np.zeros((4, 2)), np.zeros((1, 2))])["input_values"].shape == (2, 4, 2)
    assert levels()(np.zeros((5, 2, 3)))["input_ids"].shape == (5, 6)
    assert levels()(np.zeros((5, 2, 1)))["input_ids"].shape == (1, 10)
    assert levels()(np.zeros((4, 5, 2, 1)))["input_ids"].shape == (4, 10)
    colour = values(modality="image", num_channels=3)
    assert colour(np.zeros((2, 4, 3)))["input_values"].shape == (1, 8, 3)
    assert colour(np.zeros((5, 2, 4, 3)))["input_values"].shape == (5, 8, 3)
    # What only the caller can know: two series of one step each.
    assert values()(np.zeros((2, 1)), batched=True)["input_values"].shape == (2, 1, 1)
    assert values()(np.zeros((2, 1)), batched=False)["input_values"].shape == (1, 2, 1)


def test_pil_images() -> None:
    image = pytest.importorskip("PIL.Image")
    grey = image.fromarray(IMAGE)
    assert levels()([grey, grey])["input_ids"].tolist() == [[3, 4, 5, 6, 7, 8]] * 2
    assert levels()(grey)["input_ids"].shape == (1, 6)
    extractor = values(modality="image", num_channels=3)
    assert extractor(grey.convert("RGBA"))["input_values"].shape == (1, 6, 3)
    assert LongSequenceFeatureExtractor.fit([grey], num_levels=17).modality == "image"


@pytest.mark.parametrize(
    ("extractor", "given", "message"),
    [
        (levels(), [IMAGE, IMAGE + 12], "Example 1 holds the grey level 17; levels are whole numbers from 0 to 16."),
        (levels(), IMAGE - 1.0, "Example 0 holds the grey level -1.0"),
        (levels(), IMAGE * 0.5, "Example 0 holds the grey level 0.5"),
        (levels(image_shape=[8, 8]), IMAGE, "Example 0 is 2 x 3, but this model reads images of 8 x 8; resize it"),
        (values(), [[1.0, 2.0], [1.0, float("nan"), 3.0]], "Example 1 holds nan at position (1, 0); missing"),
        (values(), [1.0, float("-inf")], "Example 0 holds -inf at position (1, 0)"),
        (values(), [1e300], "The value 1e+300 does not fit in float32"),
        (
            values(),
            ["a", "b"],
            "Example 0 is no array of numbers (type <U1); give numbers in (length,) or (length, 1).",
        ),
        (values(), {"values": [1.0]}, "Example 0 is no array of numbers"),
        (values(), [], "There are no examples; give at least one."),
        (values(), [np.zeros(0)], "Example 0 is empty, shape (0,)"),
        (values(num_channels=2), SERIES, "Example 0 has shape (4,); expected (length, 2)."),
        (values(num_channels=2), np.zeros((4, 3)), "Example 0 has shape (4, 3); expected (length, 2)."),
        (levels(), np.zeros(64), "Example 0 has shape (64,); expected (height, width) or (height, width, 1)."),
        (
            values(max_length=3),
            [SERIES[:2], SERIES],
            "Example 1 has 4 steps, but max_length is 3 (1 of 2 are longer, up to 4); shorten them, or use trunc",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(extractor: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        extractor(given)
    assert message in str(error.value)


def test_truncation_counts_first(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    logger = "neverscratch.modeling.feature_extraction_sequence"
    with caplog.at_level(logging.WARNING, logger=logger):
        batch = values(max_length=3)([SERIES, SERIES[:2]], truncation=True)
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert "1 of 2 sequences are longer than max_length=3 (up to 4) and lose their end" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modality": "text"}, "modality='text' is unknown; use 'values', 'image' or 'audio'"),
        ({"num_levels": 1}, "num_levels=1 is too small"),
        ({"num_levels": 17, "num_channels": 3}, "num_levels=17 needs num_channels=1"),
        ({"mean": [0.0]}, "Only one of mean and std was given"),
        ({"num_levels": 17, "mean": [0.0], "std": [1.0]}, "levels are not normalised"),
        ({"num_channels": 2, "mean": [0.0], "std": [1.0, 1.0]}, "mean has 1 entries; give one a channel, 2 in all"),
        ({"mean": [0.0], "std": [0.0]}, "must be finite, and std above 0"),
        ({"max_length": 0}, "max_length=0 is too small"),
        ({"num_channels": 0}, "num_channels=0 is too small"),
        ({"pad_token_id": 5}, "must be 0, 1 and 2 in some order"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        LongSequenceFeatureExtractor(**arguments)
    assert message in str(error.value)


def test_fit_uses_all_steps_of_all_examples() -> None:
    # A large offset loses every digit of the deviation in float32.
    random = np.random.RandomState(0)
    train = [random.randn(length, 2) * [1.0, 3.0] + [1e6, 0.0] for length in (5, 50, 500)]
    extractor = LongSequenceFeatureExtractor.fit(train, num_channels=2, max_length=500)
    steps = np.concatenate(train)
    assert np.allclose(extractor.mean, steps.mean(0), rtol=1e-12)
    assert np.allclose(extractor.std, steps.std(0), rtol=1e-9)
    assert (extractor.modality, extractor.max_length) == ("values", 500)
    assert LongSequenceFeatureExtractor.fit([np.full(9, 0.1)]).std == [1.0]
    raw = LongSequenceFeatureExtractor.fit(train, num_channels=2, normalize=False)
    assert raw.mean is None and raw.std is None
    with pytest.raises(ValueError, match="There are no training examples to fit to"):
        LongSequenceFeatureExtractor.fit([])


def test_fit_tells_images_and_keeps_their_shape() -> None:
    extractor = LongSequenceFeatureExtractor.fit([IMAGE, IMAGE], num_levels=17)
    assert (extractor.modality, extractor.image_shape, extractor.mean) == ("image", [2, 3], None)
    assert LongSequenceFeatureExtractor.fit([IMAGE, IMAGE.T], num_levels=17).image_shape is None
    real = LongSequenceFeatureExtractor.fit([IMAGE, IMAGE], modality="image")
    assert real.mean == [2.5]
    assert LongSequenceFeatureExtractor.fit([SERIES[:, None]]).modality == "values"


@pytest.mark.parametrize(
    "extractor", [levels(image_shape=[2, 3]), values(num_channels=2, mean=[0.1, 1], std=[1 / 3, 2])]
)
def test_saving_keeps_everything(extractor: LongSequenceFeatureExtractor, tmp_path: Path) -> None:
    extractor.save_pretrained(tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()
    assert (tmp_path / "feature_extraction_sequence.py").is_file()
    again = LongSequenceFeatureExtractor.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "again")
    first, second = (folder / "preprocessor_config.json" for folder in (tmp_path, tmp_path / "again"))
    assert first.read_text() == second.read_text()
    assert str(tmp_path) not in first.read_text()


def tiny_classifier(**sizes: int) -> Any:
    from neverscratch.modeling.configuration_transformer import TransformerConfig
    from neverscratch.modeling.modeling_transformer import TransformerForSequenceClassification

    torch.manual_seed(0)
    config = TransformerConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        id2label={0: "walk", 1: "run", 2: "stand"}, label2id={"walk": 0, "run": 1, "stand": 2}, **sizes,
    )  # fmt: skip
    return TransformerForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def classify() -> Any:
    from transformers import pipeline

    from neverscratch.modeling.pipeline_sequence import register_pipeline

    register_pipeline()
    register_pipeline()
    extractor = values(mean=[0.5], std=[2.0], max_length=30)
    return pipeline(
        "sequence-classification", model=tiny_classifier(num_channels=1), feature_extractor=extractor, device="cpu"
    )


BATCH = [np.sin(np.arange(length) * (1 + length)) for length in (7, 30, 1, 12)]


def test_pipeline_gives_label_and_score_in_order(classify: Any) -> None:
    with torch.no_grad():
        probabilities = classify.model(**classify.feature_extractor(BATCH)).logits.softmax(-1)
    expected = [classify.model.config.id2label[index] for index in probabilities.argmax(-1).tolist()]
    results = classify(BATCH)
    assert [result["label"] for result in results] == expected
    assert [result["score"] for result in results] == pytest.approx(probabilities.max(-1).values.tolist(), abs=1e-5)
    together = classify(BATCH, batch_size=3)
    assert [result["label"] for result in together] == expected
    assert [result["score"] for result in together] == pytest.approx([r["score"] for r in results], abs=1e-5)
    assert list(classify(series for series in BATCH)) == results


def test_pipeline_takes_arrays_and_lists(classify: Any) -> None:
    one = classify(BATCH[0])
    assert set(one) == {"label", "score"}
    assert classify(BATCH[0].tolist()) == classify(torch.tensor(BATCH[0])) == one
    assert classify([BATCH[0]]) == [one]
    assert classify(np.stack([BATCH[0]] * 2)) == [one, one]
    assert classify([]) == []
    every = classify(BATCH[0], top_k=None)
    assert len(every) == 3 and every[0] == one
    assert sum(entry["score"] for entry in every) == pytest.approx(1.0)
    assert classify(BATCH, top_k=2)[1] == classify(BATCH[1], top_k=2)


def test_pipeline_refuses(classify: Any) -> None:
    with pytest.raises(ValueError, match="takes no option threshold; its options are top_k, truncation and batch_size"):
        classify(BATCH, threshold=0.5)
    with pytest.raises(ValueError, match="top_k=0 is not possible; use a whole number from 1 up, or None"):
        classify(BATCH, top_k=0)
    with pytest.raises(ValueError, match="has 31 steps, but max_length is 30"):
        classify(np.zeros(31))
    assert classify(np.zeros(31), truncation=True) == classify(np.zeros(30))


def test_both_work_from_a_folder_without_this_package(classify: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    classify.save_pretrained(folder)
    assert AutoFeatureExtractor.from_pretrained(folder, trust_remote_code=True).std == [2.0]
    code = (
        "import sys\n"
        "sys.modules['neverscratch'] = None\n"
        "import numpy as np\n"
        "from transformers import AutoFeatureExtractor, pipeline\n"
        "extractor = AutoFeatureExtractor.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "assert type(extractor).__module__.startswith('transformers_modules.'), type(extractor)\n"
        "assert extractor([1.0, 2.0])['input_values'].shape == (1, 2, 1)\n"
        "classify = pipeline('sequence-classification', model=sys.argv[1], trust_remote_code=True, device='cpu')\n"
        "print(classify(np.arange(9.0)))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(classify(np.arange(9.0)))


def write_wav(path, samples, rate=8000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, dtype="<i2").tobytes())


def test_audio_is_the_same_from_samples_a_mapping_and_a_file(tmp_path):
    clips = [np.array([0, 16384, -32768, 100], dtype=np.int16), np.array([5, -5], dtype=np.int16)]
    extractor = LongSequenceFeatureExtractor.fit(clips, modality="audio", sampling_rate=8000)
    write_wav(tmp_path / "clip.wav", clips[0])
    expected = extractor(clips[0])["input_values"]
    real = clips[0].astype(np.float32) / 32768
    for example in (real, {"array": real, "sampling_rate": 8000}, tmp_path / "clip.wav", str(tmp_path / "clip.wav")):
        assert torch.equal(extractor(example)["input_values"], expected)
    assert extractor([str(tmp_path / "clip.wav"), clips[1]])["input_values"].shape == (2, 4, 1)
    restored = extractor.denormalize(expected[0].numpy())[:, 0]
    np.testing.assert_allclose(restored, real, atol=1e-6)
    extractor.save_pretrained(tmp_path)
    assert torch.equal(LongSequenceFeatureExtractor.from_pretrained(tmp_path)(clips[0])["input_values"], expected)


def test_audio_that_does_not_fit_is_refused(tmp_path):
    extractor = LongSequenceFeatureExtractor(modality="audio", sampling_rate=8000)
    write_wav(tmp_path / "fast.wav", [1, 2], rate=16000)
    write_wav(tmp_path / "stereo.wav", [1, 2], channels=2)
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    for name, message in (
        ("fast.wav", "has 16000 Hz, but this model hears 8000 Hz; resample it first"),
        ("stereo.wav", "has 2 channel(s) of 16 bits; give one of 16"),
        ("broken.wav", "cannot be read as a WAV file"),
        ("missing.wav", "cannot be read as a WAV file"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            extractor(tmp_path / name)
    with pytest.raises(ValueError, match="sampling_rate=8000 has no meaning for modality='values'"):
        LongSequenceFeatureExtractor(sampling_rate=8000)
    with pytest.raises(ValueError, match="modality='audio' has one channel"):
        LongSequenceFeatureExtractor(modality="audio", num_channels=2)


def test_a_fixed_scale_replaces_the_statistics_of_the_training_examples():
    examples = [np.array([0.0, 255.0])]
    extractor = LongSequenceFeatureExtractor.fit(examples, scale=[(127.5, 127.5)])
    assert extractor(examples[0])["input_values"].flatten().tolist() == [-1.0, 1.0]
