"""What a model is given and cannot use is refused by one sentence, alike in all families; nothing is swallowed."""

import pytest
import torch
from common import LABELS, NAMES, REFUSED, Case, directions
from huggingface_hub.errors import StrictDataclassError
from transformers import DynamicCache

EVERY = pytest.mark.parametrize("name", NAMES)


def token_case(name, auto="AutoModelForSequenceClassification"):
    return Case(name, auto, "tokens", directions(name)[0])


@EVERY
def test_an_argument_that_would_have_no_effect_is_refused(name):
    case = token_case(name)
    model, inputs = case.model(), case.inputs()
    with pytest.raises(TypeError, match="takes no argument atention_mask, .* Did you mean attention_mask"):
        model(**inputs, atention_mask=torch.ones(3, 11))
    with pytest.raises(TypeError, match="takes no argument past_key_values, .* transformers calls it cache now"):
        model.model(inputs["input_ids"], past_key_values=DynamicCache())
    with pytest.raises(TypeError, match="takes no argument token_type_ids"):
        model(**inputs, token_type_ids=torch.ones(3, 11, dtype=torch.long))
    with torch.no_grad():
        neutral = model(**inputs, token_type_ids=torch.zeros(3, 11, dtype=torch.long), position_ids=None)
        assert torch.equal(neutral.logits, model(**inputs).logits)


@EVERY
def test_inputs_of_another_shape_are_refused(name):
    case = token_case(name)
    model, ids = case.model(), case.inputs()["input_ids"]
    with pytest.raises(ValueError, match=r"input_ids has shape \(3, 2, 11\), but must be \(batch, length\); pairs"):
        model(ids[:, None].expand(3, 2, 11))
    with pytest.raises(ValueError, match=r"input_ids has shape \(11,\), but must be \(batch, length\)"):
        model(ids[0])
    with pytest.raises(ValueError, match=r"inputs_embeds has shape \(3, 11, 7\), but must be \(batch, length, 16\)"):
        model(inputs_embeds=torch.zeros(3, 11, 7))
    values = Case(name, "AutoModel", "values", directions(name)[0])
    with pytest.raises(ValueError, match=r"input_values has shape \(3, 11\), but must be \(batch, length, 2\)"):
        values.model()(input_values=torch.zeros(3, 11))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_size_are_ids_and_labels(dtype):
    case = token_case("s4d")
    model, inputs = case.model(), case.inputs()
    small = {name: x.to(dtype) for name, x in inputs.items()}
    assert torch.equal(model(**small).logits, model(**inputs).logits)
    assert torch.equal(model(**small).loss, model(**inputs).loss)


@EVERY
def test_heads_that_read_the_whole_sequence_refuse_a_cache(name):
    direction = directions(name)[-1]  # causal where possible
    for auto, words in (("MaskedLM", "fills in a sequence"), ("SequenceClassification", "pools over the whole")):
        case = Case(name, f"AutoModelFor{auto}", "tokens", direction)
        with pytest.raises(ValueError, match=f"{words}.*use_cache=True and cache are not possible"):
            case.model()(**case.inputs(), use_cache=True)


def test_reconstruction_of_tokens_is_refused():
    case = Case("s4d", "AutoModelForPreTraining", "values", True)
    with pytest.raises(ValueError, match="got input_ids, but reconstructs real values; give input_values"):
        case.model()(input_ids=torch.ones(2, 3, dtype=torch.long))


def test_a_negative_number_of_positions_to_score_is_refused():
    case = Case("s4d", "AutoModelForCausalLM", "tokens", False)
    with pytest.raises(ValueError, match="logits_to_keep=-1 is no number of positions"):
        case.model()(case.inputs()["input_ids"], logits_to_keep=-1)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if False in directions(name) and ("step", name) not in REFUSED]
)
def test_what_is_no_cache_of_this_model_is_refused(name):
    case = Case(name, "AutoModel", "values", False)
    model, values = case.model(), case.inputs()["input_values"]
    with pytest.raises(ValueError, match="cache is a dict, but must be a DynamicCache with 2"):
        model(input_values=values, cache={})


@pytest.mark.parametrize(("name", "field"), [("s4", "d_state"), ("s4d", "d_state"), ("dss", "d_state")])
def test_a_cache_of_a_model_of_another_state_is_refused(name, field):
    case = Case(name, "AutoModel", "values", False)
    values = case.inputs()["input_values"]
    cache = case.model(**{field: 12})(input_values=values, use_cache=True).cache
    with pytest.raises(ValueError, match="cache holds states of shape .*this model has states of shape"):
        case.model()(input_values=values, cache=cache)


@pytest.mark.parametrize("name", ["wrapped", "wrapped-bert"])
def test_a_static_cache_of_attention_is_refused(name):
    model = Case(name, "AutoModelForCausalLM", "tokens", False).model()
    with pytest.raises(ValueError, match="cache is a StaticCache with 2 layers, .*leave out cache_implementation"):
        model.generate(torch.ones(1, 3, dtype=torch.long), cache_implementation="static", max_new_tokens=2)


def test_a_number_of_labels_changed_since_the_config_was_checked(tmp_path):
    case = token_case("s4d")
    case.model().save_pretrained(tmp_path)
    model_class = type(case.model())
    with pytest.raises((ValueError, StrictDataclassError), match="num_labels=0, which must be at least 1"):
        model_class.from_pretrained(tmp_path, num_labels=0)
    with pytest.raises((ValueError, StrictDataclassError), match="'regresion' is unknown; .*Did you mean regression"):
        model_class.from_pretrained(tmp_path, problem_type="regresion")
    assert model_class.from_pretrained(tmp_path).num_labels == LABELS


def test_the_width_of_a_backbone_is_its_own(tmp_path):
    model = Case("wrapped", "AutoModel", "tokens", False).model()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="hidden_size=32, but its backbone gpt_neox has 16; leave it out"):
        type(model).from_pretrained(tmp_path, hidden_size=32)


@pytest.mark.parametrize("value", [-1e9, 0.5, 2.0, float("nan")])
def test_a_mask_holds_zeros_and_ones(value):
    case = token_case("s4d")
    mask = torch.ones(3, 11)
    mask[:, 8:] = value
    with pytest.raises(ValueError, match="must be 1 where a position is kept and 0 where it is padding"):
        case.model()(case.inputs()["input_ids"], attention_mask=mask)
