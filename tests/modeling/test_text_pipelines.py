"""transformers' own pipelines for text run on every family, from a saved folder with its tokenizer."""

import pytest
import torch
from common import NAMES, VOCAB, Case, directions
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

from neverscratch.modeling import FAMILIES

SPECIAL = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2}


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = SPECIAL | {letter: 3 + i for i, letter in enumerate("abcdefghi")}
    assert len(vocabulary) == VOCAB
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        mask_token="[MASK]",
        unk_token="[UNK]",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


@pytest.fixture
def saved(tokenizer, tmp_path):
    def save(name, auto, bidirectional):
        model = Case(name, auto, "tokens", bidirectional).model()
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return model, str(tmp_path)

    return save


@pytest.mark.parametrize("name", list(FAMILIES))
def test_text_classification(name, saved):
    model, folder = saved(name, "AutoModelForSequenceClassification", directions(name)[0])
    texts = ["a b c", "d e f g h"]
    found = pipeline("text-classification", model=folder)(texts, batch_size=2)
    for text, entry in zip(texts, found, strict=True):
        ids = torch.tensor([[3 + "abcdefghi".index(letter) for letter in text.split()]])
        scores = model(input_ids=ids).logits.softmax(-1)[0]
        assert entry["label"] == f"LABEL_{int(scores.argmax())}"
        assert entry["score"] == pytest.approx(scores.max().item(), abs=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name in FAMILIES and True in directions(name)])
def test_fill_mask_and_feature_extraction(name, saved):
    model, folder = saved(name, "AutoModelForMaskedLM", True)
    found = pipeline("fill-mask", model=folder)("a [MASK] c", top_k=3)
    best = model(input_ids=torch.tensor([[3, 1, 5]])).logits[0, 1].topk(3).indices.tolist()
    assert [entry["token"] for entry in found] == best
    states = pipeline("feature-extraction", model=folder)("a b c", return_tensors=True)
    expected = model.model(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name in FAMILIES and False in directions(name)])
def test_text_generation(name, saved):
    model, folder = saved(name, "AutoModelForCausalLM", False)
    generate = pipeline("text-generation", model=folder)
    texts = ["a b c", "d"]
    found = generate(texts, batch_size=2, max_new_tokens=3, do_sample=False, return_tensors=True)
    for text, entry in zip(texts, found, strict=True):
        ids = torch.tensor([[3 + "abcdefghi".index(letter) for letter in text.split()]])
        expected = model.generate(ids, max_new_tokens=3, do_sample=False)[0].tolist()
        assert [token for token in entry[0]["generated_token_ids"] if token != 0] == [t for t in expected if t != 0]
