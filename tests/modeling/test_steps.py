"""Running step by step: a chunk that goes on from a state equals the whole sequence read at once."""

import copy
import re

import pytest
import torch
from common import CAUSAL_NAMES, REFUSED, VOCAB, Case, container, pad
from huggingface_hub.errors import StrictDataclassError

LENGTH = 37
SPLITS = {"steps": [1] * LENGTH, "chunks": [5, 1, 2, 20, 9], "whole": [LENGTH]}
BY_NAME = pytest.mark.parametrize("name", CAUSAL_NAMES)
STEPPING = pytest.mark.parametrize("name", [name for name in CAUSAL_NAMES if ("step", name) not in REFUSED])


def run(model, values, split, cache=None):
    """Hidden states of `values`, read chunk by chunk, and the cache after them."""
    states = []
    for chunk in values.split(split, dim=1):
        outputs = model(input_values=chunk, cache=cache, use_cache=True)
        cache = outputs.cache
        states.append(outputs.last_hidden_state)
    return torch.cat(states, dim=1), cache


def recurrent_states(cache):
    """All that the cache holds: one state a layer, or in a wrapped attention model its keys and values."""
    if hasattr(cache.layers[0], "keys"):
        return [kept for layer in cache.layers for kept in (layer.keys, layer.values)]
    return [layer.recurrent_states[0] for layer in cache.layers]


def train(model, values):
    """Move every parameter, so that nothing still stands at its start."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(5):
        model(input_values=values).last_hidden_state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@STEPPING
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_steps_equal_the_parallel_pass_before_and_after_training(name, dtype):
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    case = Case(name, "AutoModel", "values", False)
    model = case.model(**container(name, norm_type="batch")).to(dtype)
    values = case.inputs(length=LENGTH)["input_values"].to(dtype)
    if (sentence := REFUSED.get((f"step-{str(dtype)[6:]}", name))) is not None:
        with pytest.raises(ValueError, match=f"{sentence}.*use_cache=True is not possible"):
            model(input_values=values, use_cache=True)
        return
    for trained in (False, True):
        if trained:
            train(model, values)
        with torch.no_grad():
            whole = model(input_values=values).last_hidden_state
            ends = []
            for split in SPLITS.values():
                got, cache = run(model, values, split)
                torch.testing.assert_close(got, whole, atol=tolerance, rtol=tolerance)
                ends.append(recurrent_states(cache))
        for other in ends[1:]:
            torch.testing.assert_close(other, ends[0], atol=tolerance, rtol=tolerance)


@STEPPING
def test_any_state_can_be_gone_on_from(name):
    case = Case(name, "AutoModel", "values", False)
    dtype, tolerance = (torch.float32, 1e-5) if ("step-float64", name) in REFUSED else (torch.float64, 1e-9)
    model = case.model().to(dtype)
    values = case.inputs(length=LENGTH)["input_values"].to(dtype)
    with torch.no_grad():
        _, first = run(model, values[:, :1], [1])
        start = [torch.randn_like(state) for state in recurrent_states(first)]
        results = []
        for split in SPLITS.values():
            _, cache = run(model, values[:, :1], [1])
            for state, given in zip(recurrent_states(cache), start):
                state.copy_(given)
            got, cache = run(model, values, split, cache)
            results.append([got, *recurrent_states(cache)])
        assert not torch.allclose(results[0][0], run(model, values, [LENGTH])[0], atol=1e-3)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=tolerance, rtol=tolerance)


@STEPPING
def test_pads_on_the_left_of_the_first_chunk_leave_no_trace(name):
    case = Case(name, "AutoModel", "values", False)
    model = case.model()
    short = {"input_values": case.inputs(length=9)["input_values"]}
    padded = pad(short, 14, "left")
    more = case.inputs(length=4, seed=1)["input_values"]
    with torch.no_grad():
        expected, _ = run(model, torch.cat([short["input_values"], more], dim=1), [13])
        outputs = model(**padded, use_cache=True)
        torch.testing.assert_close(outputs.last_hidden_state[:, 5:], expected[:, :9], atol=1e-5, rtol=1e-5)
        # As `generate` does, the mask of everything read so far comes along.
        mask = torch.cat([padded["attention_mask"], torch.ones(3, 4, dtype=torch.long)], dim=1)
        outputs = model(input_values=more, attention_mask=mask, cache=outputs.cache)
        torch.testing.assert_close(outputs.last_hidden_state, expected[:, 9:], atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="has pads on the right, but a cache"):
            model(**pad(short, 14, "right"), use_cache=True)


@STEPPING
def test_what_does_not_belong_together_is_refused(name):
    case = Case(name, "AutoModel", "values", False)
    model = case.model()
    values = case.inputs(length=3)["input_values"]
    _, cache = run(model, values, [3])
    with pytest.raises(ValueError, match="holds the states of 3 sequences, but the input has 2"):
        model(input_values=values[:2], cache=cache)
    _, other = run(case.model(num_hidden_layers=4), values, [3])
    with pytest.raises(ValueError, match="cache is a DynamicCache with 4 layers"):
        model(input_values=values, cache=other)
    classifier = Case(name, "AutoModelForSequenceClassification", "values", False).model()
    with pytest.raises(ValueError, match="pools over the whole sequence"):
        classifier(input_values=values, use_cache=True)


@STEPPING
def test_a_cache_and_gradient_checkpointing_do_not_mix(name):
    """Blocks that are computed again would start from an empty state, and leave none."""
    case = Case(name, "AutoModel", "values", False)
    model = case.model().train()
    model.gradient_checkpointing_enable()
    values = case.inputs(length=3)["input_values"]
    with pytest.raises(ValueError, match="cannot carry a cache; call model.gradient_checkpointing_disable"):
        model(input_values=values, use_cache=True)
    assert model.eval()(input_values=values, use_cache=True).cache is not None


@STEPPING
def test_causal_losses_of_chunks_with_a_mask_that_covers_the_past(name):
    case = Case(name, "AutoModelForCausalLM", "tokens", False)
    model, ids = case.model(), case.inputs(length=9)["input_ids"]
    with torch.no_grad():
        first = model(ids[:, :4], attention_mask=torch.ones_like(ids[:, :4]), use_cache=True)
        mask = torch.ones_like(ids)
        second = model(ids[:, 4:], attention_mask=mask, labels=ids[:, 4:], cache=first.cache)
        logits = model(ids).logits[:, 4:-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 5:].flatten())
    torch.testing.assert_close(second.loss, expected, atol=1e-5, rtol=1e-5)


@STEPPING
def test_scores_of_chosen_positions(name):
    case = Case(name, "AutoModelForCausalLM", "tokens", False)
    model, ids = case.model(), case.inputs(length=9)["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
        assert torch.equal(model(ids, logits_to_keep=2).logits, logits[:, -2:])
        torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 8])).logits, logits[:, [0, 8]])
    with pytest.raises(ValueError, match="labels need the scores of all positions"):
        model(ids, labels=ids, logits_to_keep=2)


@STEPPING
def test_generating_with_and_without_cache(name):
    model = Case(name, "AutoModelForCausalLM", "tokens", False).model()
    assert model.generation_config.use_cache
    prompt = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    for options in ({"do_sample": False}, {"do_sample": True}, {"do_sample": False, "num_beams": 3}):
        got = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            got.append(model.generate(prompt, attention_mask=mask, max_new_tokens=7, use_cache=use_cache, **options))
        assert torch.equal(*got), options


@STEPPING
def test_generating_on_from_a_cache_is_generating_on(name):
    model = Case(name, "AutoModelForCausalLM", "tokens", False).model()
    options = {"do_sample": False, "return_dict_in_generate": True}
    prompt = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    whole = model.generate(prompt, attention_mask=mask, max_new_tokens=9, **options).sequences

    def longer(mask, length):
        return torch.cat([mask, mask.new_ones(2, length - mask.shape[1])], dim=1)

    for only_new in (False, True):
        first = model.generate(prompt, attention_mask=mask, max_new_tokens=4, **options)
        # The last token was written and not read.
        ids = first.sequences[:, -1:] if only_new else first.sequences
        second = model.generate(ids, attention_mask=longer(mask, 10), cache=first.cache, max_new_tokens=5, **options)
        assert torch.equal(second.sequences[:, -5:], whole[:, -5:]), f"{only_new=}"
        with pytest.raises(ValueError, match="got 3 positions and a cache that has read 14 positions; give the whole"):
            model.generate(ids[:, :1].expand(2, 3), cache=second.cache, max_new_tokens=1, **options)


@BY_NAME
def test_a_bidirectional_or_stateless_model_refuses_politely(name):
    if ("step", name) in REFUSED:
        case = Case(name, "AutoModel", "values", False)
        sentence = REFUSED["step", name]
    else:
        case = Case(name, "AutoModel", "values", True)
        sentence = "bidirectional"
    sentence = re.escape(sentence) + ".*use_cache=True is not possible"
    if ("step", name) not in REFUSED and ("bidirectional", name) in REFUSED:
        sentence = REFUSED["bidirectional", name]
    with pytest.raises((ValueError, StrictDataclassError), match=sentence):
        case.model()(input_values=case.inputs()["input_values"], use_cache=True)


@STEPPING
def test_no_gradient_goes_through_a_cache(name):
    case = Case(name, "AutoModel", "values", False)
    model, first = case.model(), case.inputs()["input_values"].requires_grad_()
    _, cache = run(model, first, 11)
    branch = copy.deepcopy(cache)
    for _ in range(2):
        second = case.inputs(seed=1)["input_values"][:, :1].requires_grad_()
        states, _ = run(model, second, 1, cache)
        assert not any(state.requires_grad for state in recurrent_states(cache))
    assert not torch.equal(run(model, second, 1, branch)[0], states)
    # The step of transformers' Mamba writes over the state that its own backward pass needs.
    if name != "wrapped-mamba":
        states.square().sum().backward()
        assert second.grad.any() and first.grad is None
