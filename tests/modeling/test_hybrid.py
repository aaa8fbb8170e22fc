"""The hybrid stack: each layer is the layer of its family, described by one entry, and what is refused."""

import json
from typing import get_args

import pytest
import torch
from common import TINY, Case
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from neverscratch.modeling import AUTO_CLASSES, FAMILIES, HybridConfig, parameter_groups
from neverscratch.modeling.configuration_hybrid import LAYER_CONFIGS
from neverscratch.modeling.modeling_hybrid import MIXERS, HybridForCausalLM, HybridModel

FAMILY_OF = {name: "transformer" if name == "attention" else name for name in LAYER_CONFIGS}
BY_LAYER = pytest.mark.parametrize("kind", sorted(LAYER_CONFIGS))


def fields_of(kind):
    """Fields of an entry that make a tiny layer, with positions inside attention."""
    fields = {k: v for k, v in TINY[FAMILY_OF[kind]].items() if k != "max_position_embeddings"}
    return fields | ({"position_embedding_type": "rope"} if kind == "attention" else {})


def make_config(mixers, **fields):
    fields = {"vocab_size": 12, "hidden_size": 16, "initializer_range": 0.3} | fields
    return HybridConfig(mixers=mixers, **fields)


def make_model(mixers, model_class=HybridModel, **fields):
    torch.manual_seed(0)
    return model_class(make_config(mixers, **fields)).eval()


def tokens(length=11):
    return torch.randint(3, 12, (3, length), generator=torch.Generator().manual_seed(0))


def padded_batch():
    return {"input_ids": tokens(), "attention_mask": torch.tensor([[1] * 11, [0] * 4 + [1] * 7, [1] * 3 + [0] * 8])}


def test_every_family_can_be_a_layer():
    assert set(FAMILY_OF.values()) == set(FAMILIES) - {"hybrid", "wrapped"}
    assert set(MIXERS) == set(LAYER_CONFIGS)


@BY_LAYER
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("container", [{}, {"pre_norm": False, "norm_type": "rms"}], ids=["pre", "post"])
def test_a_hybrid_of_one_kind_is_that_family(kind, bidirectional, container):
    shared = {"vocab_size": 12, "hidden_size": 16, "initializer_range": 0.3, "bidirectional": bidirectional} | container
    torch.manual_seed(0)
    alone = AUTO_CLASSES["AutoModel"].from_config(
        FAMILIES[FAMILY_OF[kind]](num_hidden_layers=2, **shared, **fields_of(kind))
    )
    hybrid = make_model([{"type": kind, **fields_of(kind)}], num_hidden_layers=2, **shared)
    # Names, start and parameter groups too.
    assert parameter_groups(hybrid) == parameter_groups(alone)
    for (name, x), (other, y) in zip(hybrid.state_dict().items(), alone.state_dict().items(), strict=True):
        assert name == other and torch.equal(x, y), name
    with torch.no_grad():
        for batch in ({"input_ids": tokens()}, padded_batch()):
            expected = alone.eval()(**batch).last_hidden_state
            torch.testing.assert_close(hybrid(**batch).last_hidden_state, expected, atol=1e-6, rtol=1e-6)


@BY_LAYER
def test_a_layer_beside_others_is_the_layer_of_its_family(kind):
    shared = {"vocab_size": 12, "hidden_size": 16, "initializer_range": 0.3}
    alone = (
        AUTO_CLASSES["AutoModel"]
        .from_config(FAMILIES[FAMILY_OF[kind]](num_hidden_layers=1, **shared, **fields_of(kind)))
        .eval()
    )
    other = "s4d" if kind != "s4d" else "lru"
    hybrid = make_model([{"type": other, **fields_of(other)}, {"type": kind, **fields_of(kind)}, "s4d"])
    hybrid.layers[1].load_state_dict(alone.layers[0].state_dict())
    with torch.no_grad():
        states = hybrid(input_ids=tokens(), output_hidden_states=True).hidden_states
        expected = alone(inputs_embeds=states[1], output_hidden_states=True)
    block = torch.nn.functional.layer_norm(states[2], (16,), eps=1e-5)
    torch.testing.assert_close(block, expected.last_hidden_state, atol=1e-5, rtol=1e-5)


def test_layers_described_alike_share_one_config_and_its_masks(monkeypatch):
    attention = {"type": "attention", **fields_of("attention")}
    mixers = [attention, "s4d", dict(reversed(attention.items())), {**attention, "position_embedding_type": "none"}]
    model = make_model(mixers)
    first, other, same, different = model.layer_configs
    assert first is same and len({id(c) for c in (first, other, different)}) == 3
    calls = []

    def counted(mixer):
        plain = mixer.prepare_inputs

        def prepare_inputs(config, *args, **kwargs):
            calls.append(config)
            return plain(config, *args, **kwargs)

        return prepare_inputs

    for layer in model.layers:
        if isinstance(layer.mixer, MIXERS["attention"]):
            monkeypatch.setattr(layer.mixer, "prepare_inputs", counted(layer.mixer))
    model(**padded_batch())
    assert calls == [first, different]


def test_attention_maps_of_all_layers_that_have_them():
    mixers = [{"type": kind, **fields_of(kind)} for kind in ("mega", "s4d", "attention")]
    model = make_model(mixers)
    model.set_attn_implementation("eager")
    assert {config._attn_implementation for config in model.layer_configs} == {"eager"}
    outputs = model(**padded_batch(), output_attentions=True)
    assert len(outputs.attentions) == 2 and outputs.attentions[1].shape == (3, 2, 11, 11)
    row = outputs.attentions[1][1]
    assert torch.allclose(row[:, 4:, 4:].sum(-1), torch.ones(2, 7), atol=1e-5) and not row[:, 4:, :4].any()
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match='needs attn_implementation="eager"'):
        model(input_ids=tokens(), output_attentions=True)


def test_the_implementation_given_at_the_start_reaches_the_layers():
    torch.manual_seed(0)
    config = make_config(["s4d", {"type": "attention", **fields_of("attention")}])
    model = AUTO_CLASSES["AutoModelForCausalLM"]._model_mapping[type(config)]
    config.bidirectional = False
    model = model._from_config(config, attn_implementation="eager")
    assert isinstance(model, HybridForCausalLM)
    assert {c._attn_implementation for c in model.model.layer_configs} == {"eager"}


def test_positions_are_where_they_were_put():
    attention = {"type": "attention", "num_attention_heads": 2, "intermediate_size": 24}
    kinds = get_args(LAYER_CONFIGS["attention"].__annotations__["position_embedding_type"])
    inside = sorted(set(kinds) - {"none", "sinusoidal", "learned"})
    assert "rope" in inside
    ids = tokens()
    shuffled = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    moved = {}
    for name, mixers, fields in (
        ("none", [attention], {}),
        *((kind, [{**attention, "position_embedding_type": kind}], {}) for kind in inside),
        ("sinusoidal", [attention], {"position_embedding_type": "sinusoidal", "max_position_embeddings": 11}),
        ("learned", [attention], {"position_embedding_type": "learned", "max_position_embeddings": 11}),
    ):
        model = make_model(mixers, **fields)
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[:, shuffled]
            moved[name] = (states - model(input_ids=ids[:, shuffled]).last_hidden_state).abs().max().item()
        if fields:
            with pytest.raises(ValueError, match="max_position_embeddings=11"):
                model(input_ids=tokens(12))
    assert moved.pop("none") < 1e-5 and min(moved.values()) > 1e-3


def test_it_steps_if_every_layer_does():
    states = ["s4d", {"type": "lru", "d_state": 8}, {"type": "s5", **fields_of("s5")}]
    assert make_model(states, bidirectional=False).no_step_reason is None
    with pytest.raises(ValueError, match="attention keeps the whole past.*use_cache=True is not possible"):
        make_model(["s4d", "attention"], bidirectional=False)(input_ids=tokens(), use_cache=True)
    positions = {"position_embedding_type": "learned", "max_position_embeddings": 20}
    with pytest.raises(ValueError, match="positions.*use_cache=True is not possible"):
        make_model(states, bidirectional=False, **positions)(input_ids=tokens(), use_cache=True)


def test_a_pattern_is_repeated_as_a_whole():
    config = make_config(["s4d", {"type": "attention", **fields_of("attention")}], num_hidden_layers=6)
    assert [config.mixer_type(i) for i in range(6)] == ["s4d", "attention"] * 3
    assert config.layer_config(5).num_attention_heads == 2
    model = HybridModel(config)
    assert [layer.has_feed_forward for layer in model.layers] == [False, True] * 3
    assert make_config(["s4d", "attention", "s4d"]).num_hidden_layers == 3


def test_config_is_restored_exactly(tmp_path):
    mixers = ["s4d", {"type": "attention", "position_embedding_type": "rope", "rope_theta": 500.0}, {"type": "lru"}]
    make_config(mixers, norm_type="batch", hidden_dropout_prob=0.25, tie_dropout=True).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["mixers"] == mixers
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.mixers == mixers
    for layer_idx in range(3):
        config = loaded.layer_config(layer_idx)
        assert (config.norm_type, config.hidden_dropout_prob, config.tie_dropout) == ("batch", 0.25, True)
    assert loaded.layer_config(1).rope_theta == 500.0


@pytest.mark.parametrize(
    ("mixers", "fields", "message"),
    [
        (None, {}, r"HybridConfig has no mixers; list what each layer is, such as mixers=\[\"s4d\", \"attention\"\]"),
        (["s4d", "atention"], {}, r"mixers\[1\] has type 'atention', but a layer is one of .*; did you mean attention"),
        ([{"type": ["s4d"]}], {}, r"mixers\[0\] has type \['s4d'\], but a layer is one of attention"),
        ([{"d_state": 8}], {}, r"mixers\[0\] has type None, but a layer is one of attention"),
        ([{"type": "s4d", "d_sate": 8}], {}, r"mixers\[0\] sets d_sate, but a field of s4d is .*did you mean d_state"),
        ([{"type": "s4d", "hidden_size": 8}], {}, r"mixers\[0\] sets hidden_size, which all layers share; set it on"),
        (["s4d", {"type": "s4d", "d_state": 7}], {}, r"mixers\[1\] of type s4d: d_state=7 is not a positive even"),
        ([{"type": "s4d", "d_state": "8"}], {}, r"mixers\[0\] of type s4d: .*d_state"),
        (
            [{"type": "attention", "num_attention_heads": 3}],
            {},
            r"mixers\[0\] of type attention: hidden_size=16 can",
        ),
        (
            [{"type": "attention", "position_embedding_type": "learned"}],
            {},
            r"mixers\[0\] sets position_embedding_type='learned', which is added to the input",
        ),
        (["s4d", "lru"], {"num_hidden_layers": 3}, "num_hidden_layers=3 and 2 mixers, which are repeated as a whole"),
        (["s4d"], {"max_position_embeddings": 9}, "max_position_embeddings=9, which has no effect with"),
        (
            ["s4d"],
            {"position_embedding_type": "learned"},
            "max_position_embeddings=None and position_embedding",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(mixers, fields, message):
    with pytest.raises((StrictDataclassError, ValueError), match=message):
        make_config(mixers, **fields)


def test_all_kinds_in_one_stack_train():
    case = Case("hybrid", "AutoModelForPreTraining", "values", True)
    mixers = [{"type": kind, **fields_of(kind)} for kind in sorted(LAYER_CONFIGS)]
    model = case.model(mixers=mixers, num_hidden_layers=None, initializer_range=0.05).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        losses.append(model(**case.inputs()).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
