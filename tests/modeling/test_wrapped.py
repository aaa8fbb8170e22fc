"""Wrapped transformers models: directions, padding, caches, checkpoints, and what is refused, kind by kind."""

import json
import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedConfig,
)

from neverscratch.modeling import WrappedConfig, parameter_groups
from neverscratch.modeling.configuration_wrapped import DIRECTIONS, STEPPING
from neverscratch.modeling.modeling_wrapped import (
    WrappedForCausalLM,
    WrappedForMaskedLM,
    WrappedForSequenceClassification,
    WrappedModel,
    probe,
)

ATTENTION = {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "initializer_range": 0.3}
ENCODER = ATTENTION | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
GROUPED = ATTENTION | {"num_key_value_heads": 1, "head_dim": 8}
FIELDS = {
    "bert": ENCODER,
    "electra": ENCODER | {"embedding_size": 16},
    "gpt2": {"n_head": 2, "n_positions": 64, "initializer_range": 0.3},
    "gpt_neox": ATTENTION,
    "llama": GROUPED,
    "mamba": {"state_size": 4, "initializer_range": 0.3},
    "mamba2": {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "mistral": GROUPED,
    "modernbert": ATTENTION | TOKENS | {"local_attention": 8},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "roberta": ENCODER,
}
BOTH = [(kind, direction) for kind, directions in DIRECTIONS.items() for direction in directions]
BY_DIRECTION = pytest.mark.parametrize(("kind", "bidirectional"), BOTH)
CHECKPOINTED = ["gpt_neox", "bert", "modernbert", "mamba"]


def backbone_config(kind, **changes):
    sizes = {"model_type": kind, "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
    return sizes | FIELDS[kind] | changes


def make_config(kind, bidirectional=None, **fields):
    fields = {"vocab_size": 12, "initializer_range": 0.3} | fields
    return WrappedConfig(backbone_config=backbone_config(kind), bidirectional=bidirectional, **fields)


def make_model(kind, bidirectional=None, model_class=WrappedModel, **fields):
    torch.manual_seed(0)
    return model_class(make_config(kind, bidirectional, **fields)).eval()


def values(length=11, batch=3):
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(0))


def test_every_known_kind_is_probed():
    assert set(FIELDS) == set(DIRECTIONS) and set(STEPPING) <= set(DIRECTIONS)


# Directions and padding


@BY_DIRECTION
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_bidirectional_model_sees_the_future_and_a_causal_one_does_not(kind, bidirectional, implementation):
    torch.manual_seed(0)
    config = make_config(kind, bidirectional)
    config._attn_implementation = "eager" if kind.startswith("mamba") else implementation
    model = WrappedModel(config).eval()
    assert model.backbone.config._attn_implementation == config._attn_implementation
    assert probe(model.backbone, 16) == (bidirectional, True)
    x = values()
    changed = x.clone()
    changed[:, 7] = values(1)[:, 0].flip(1)
    for mask in (None, torch.ones(3, 11), torch.tensor([[1] * 11, [1] * 9 + [0] * 2, [0] * 2 + [1] * 9])):
        outputs = [model(inputs_embeds=given, attention_mask=mask).last_hidden_state for given in (x, changed)]
        moved = (outputs[0] - outputs[1]).abs().amax(-1)
        assert (moved[:, 7] > 1e-4).all()
        kept = moved if mask is None else moved[mask.bool()]
        before = moved[:, 2:7]
        assert (before > 1e-6).all() if bidirectional else (before < 1e-5).all()
        assert kept.isfinite().all()


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_none_is_the_direction_of_the_model_itself(kind):
    torch.manual_seed(0)
    plain = AutoModel.from_config(AutoConfig.for_model(**backbone_config(kind)))
    assert (make_config(kind).bidirectional, True) == probe(plain, 16)


@BY_DIRECTION
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(kind, bidirectional, side):
    model = make_model(kind, bidirectional, WrappedModel)
    x, pads = values(), torch.full((3, 5, 16), float("nan"))
    padded = torch.cat([pads, x] if side == "left" else [x, pads], dim=1)
    kept = slice(5, None) if side == "left" else slice(0, 11)
    mask = torch.zeros(3, 16)
    mask[:, kept] = 1
    with torch.no_grad():
        got = model(inputs_embeds=padded, attention_mask=mask, output_hidden_states=True)
        expected = model(inputs_embeds=x, output_hidden_states=True)
    torch.testing.assert_close(got.last_hidden_state[:, kept], expected.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert len(got.hidden_states) == 3 and got.last_hidden_state.isfinite().all()
    for a, b in zip(got.hidden_states, expected.hidden_states):
        torch.testing.assert_close(a[:, kept], b, atol=1e-5, rtol=1e-5)


# Going on from a cache


@pytest.mark.parametrize("kind", STEPPING)
@pytest.mark.parametrize("pads", [0, 5])
def test_going_on_from_the_cache_is_reading_the_whole(kind, pads):
    model = make_model(kind, False)
    x = values(16)
    padded = torch.cat([torch.full((3, pads, 16), float("nan")), x], dim=1)
    mask = torch.cat([torch.zeros(3, pads), torch.ones(3, 16)], dim=1) if pads else None
    states, cache = [], None
    with torch.no_grad():
        expected = model(inputs_embeds=x, output_hidden_states=True)
        start = 0
        for end in (pads + 4, pads + 5, pads + 9, pads + 16):
            outputs = model(
                inputs_embeds=padded[:, start:end],
                attention_mask=None if mask is None else mask[:, :end],
                cache=cache,
                use_cache=True,
                output_hidden_states=True,
            )
            cache, start = outputs.cache, end
            states.append(outputs.hidden_states)
    assert torch.equal(outputs.hidden_states[-1], outputs.last_hidden_state)
    for layer, wanted in enumerate(expected.hidden_states):
        got = torch.cat([part[layer] for part in states], dim=1)[:, pads:]
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", STEPPING)
def test_generating_with_and_without_cache(kind):
    model = make_model(kind, False, WrappedForCausalLM)
    prompt = torch.randint(3, 12, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    for options in ({}, {"num_beams": 3}):
        got = [
            model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False, use_cache=cached, **options)
            for cached in (True, False)
        ]
        assert torch.equal(*got)


def test_what_a_cache_cannot_do_is_refused():
    model = make_model("gpt_neox")
    cache = model(inputs_embeds=values(), use_cache=True).cache
    with pytest.raises(ValueError, match=r"cache holds 11 positions and the input 2; give one of shape \(batch, 13\)"):
        model(inputs_embeds=values(2), attention_mask=torch.ones(3, 2), cache=cache)
    with pytest.raises(ValueError, match="the cache of mistral has not been compared.*use_cache=True is not possible"):
        make_model("mistral")(inputs_embeds=values(), use_cache=True)
    with pytest.raises(ValueError, match="a bidirectional model needs the future, so use_cache=True is not possible"):
        make_model("bert")(inputs_embeds=values(), use_cache=True)


# Weights


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_the_weights_of_a_checkpoint(kind, tmp_path):
    torch.manual_seed(1)
    auto = AutoModelForCausalLM if False in DIRECTIONS[kind] and kind != "bert" else AutoModelForMaskedLM
    original = auto.from_config(AutoConfig.for_model(**backbone_config(kind)))
    original.save_pretrained(tmp_path / "original")
    base = original.base_model.eval()
    model = WrappedForSequenceClassification.from_backbone(tmp_path / "original", num_channels=2, num_labels=3).eval()
    assert model.dtype == torch.float32 and model.config.hidden_size == 16
    x = values()
    with torch.no_grad():
        expected = base(inputs_embeds=x).last_hidden_state
        assert torch.equal(model.model(inputs_embeds=x).last_hidden_state, expected)
        # Saved and opened again, in which the folder of the original has no part.
        model.save_pretrained(tmp_path / "wrapped")
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "wrapped")
        assert torch.equal(again.model(inputs_embeds=x).last_hidden_state, expected)
    table = base.get_input_embeddings().weight
    count = sum(parameter.numel() for parameter in base.parameters()) - table.numel()
    assert sum(parameter.numel() for parameter in model.model.backbone.parameters()) == count
    saved = load_file(tmp_path / "wrapped" / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == count + (2 * 16 + 16 + 16) + (16 * 3 + 3)
    other = WrappedForMaskedLM.from_backbone(tmp_path / "original", dtype=torch.bfloat16, vocab_size=12)
    assert other.lm_head.weight.dtype == other.model.backbone.dtype == torch.bfloat16


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    AutoModel.from_config(AutoConfig.for_model(**backbone_config("bert"))).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "layer.1.output.dense" not in k}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 2 tensors of BertModel, such as encoder.layer.1.output.dense.bias"):
        WrappedModel.from_backbone(tmp_path, vocab_size=12)


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_a_missing_tensor_starts_by_the_rule_of_the_wrapped_model(kind, tmp_path):
    model = make_model(kind)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    fresh = make_model(kind).state_dict()
    for name in tensors:
        rest = {k: v for k, v in tensors.items() if k != name}
        save_file(rest, file, {"format": "pt"})
        loaded, info = WrappedModel.from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == {name}
        state = loaded.state_dict()
        assert all(torch.equal(state[k], v) for k, v in rest.items())
        a, b = state[name].float(), fresh[name].float()
        if not b.std() > 0:
            assert torch.equal(a, b), name
        elif b.numel() >= 64:
            assert 0.5 < a.std() / b.std() < 2, name


def test_starts_follow_the_wrapped_model_inside_and_ours_outside():
    torch.manual_seed(0)
    config = WrappedConfig(
        vocab_size=50,
        initializer_range=0.5,
        backbone_config=backbone_config("bert", hidden_size=64, initializer_range=0.02),
    )
    model = WrappedForMaskedLM(config)
    query = model.model.backbone.encoder.layer[0].attention.self.query
    assert abs(query.weight.std().item() - 0.02) < 0.002 and not query.bias.any()
    assert abs(model.model.embeddings.input.weight.std().item() - 0.5) < 0.05
    assert 0.9 * 64**-0.5 < model.lm_head.weight.abs().max().item() <= 64**-0.5


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_every_parameter_is_used(kind):
    model = make_model(kind, num_channels=2, vocab_size=None).train()
    model(input_values=torch.randn(2, 9, 2)).last_hidden_state.sin().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_state_space_parameters_of_mamba():
    model = make_model("mamba", model_class=WrappedForCausalLM)
    ssm = parameter_groups(model)["ssm"]
    leaves = ("A_log", "D", "dt_proj.bias")
    assert ssm == [name for name, _ in model.named_parameters() if re.search(r"mixer\.(A_log|D|dt_proj\.bias)$", name)]
    assert {name.split("mixer.")[1] for name in ssm} == set(leaves) and len(ssm) == 6
    chosen = make_model("mamba", ssm_parameter_patterns=[r"conv1d\.weight$"])
    assert parameter_groups(chosen)["ssm"] == [f"backbone.layers.{i}.mixer.conv1d.weight" for i in (0, 1)]
    assert parameter_groups(make_model("bert"))["ssm"] == []


# Switches that go through to the wrapped model


@pytest.mark.parametrize("kind", ["gpt_neox", "bert", "modernbert"])
def test_attention_maps(kind):
    model = make_model(kind)
    mask = torch.tensor([[1] * 11, [0] * 4 + [1] * 7, [1] * 9 + [0] * 2])
    with pytest.raises(ValueError, match='needs attn_implementation="eager", but it is "sdpa"'):
        model(inputs_embeds=values(), output_attentions=True)
    model.set_attn_implementation("eager")
    assert model.backbone.config._attn_implementation == "eager"
    attentions = model(inputs_embeds=values(), attention_mask=mask, output_attentions=True).attentions
    assert [tuple(a.shape) for a in attentions] == [(3, 2, 11, 11)] * 2
    # Rolled back to where the tokens stand.
    for weights in attentions:
        assert torch.allclose(weights[1, :, 4:, 4:].sum(-1), torch.ones(2, 7), atol=1e-5)
        assert not weights[1, :, 4:, :4].any() and not weights[2, :, :9, 9:].any()


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_gradient_checkpointing_reaches_the_wrapped_layers(kind):
    model = make_model(kind).train()
    calls = []
    model.activation_checkpointing_enable()
    layers = [m for m in model.backbone.modules() if getattr(m, "gradient_checkpointing", False)]
    for layer in layers:
        if hasattr(layer, "_gradient_checkpointing_func"):
            plain = layer._gradient_checkpointing_func
            layer._gradient_checkpointing_func = lambda *a, plain=plain, **k: calls.append(1) or plain(*a, **k)
    model(inputs_embeds=values().requires_grad_()).last_hidden_state.sum().backward()
    assert len(calls) >= 2


# Config


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_config_survives_json(kind, tmp_path):
    for direction in DIRECTIONS[kind]:
        config = make_config(kind, direction, ssm_parameter_patterns=["x"])
        WrappedConfig.from_dict(config.to_dict())
        config.save_pretrained(tmp_path)
        loaded = AutoConfig.from_pretrained(tmp_path)
        assert type(loaded.backbone_config) is type(config.backbone_config)
        assert loaded.backbone_config.to_dict() == config.backbone_config.to_dict()
        assert (loaded.hidden_size, loaded.num_hidden_layers, loaded.bidirectional) == (16, 2, direction)


def test_the_direction_can_be_changed_when_opening(tmp_path):
    make_model("gpt_neox").save_pretrained(tmp_path / "gpt_neox")
    opened = WrappedModel.from_pretrained(tmp_path / "gpt_neox", bidirectional=True)
    assert probe(opened.backbone, 16) == (True, True)
    opened.save_pretrained(tmp_path / "both")
    assert probe(AutoModel.from_pretrained(tmp_path / "both").backbone, 16) == (True, True)
    make_model("mamba").save_pretrained(tmp_path / "mamba")
    with pytest.raises(ValueError, match="mamba looks only back and cannot look both ways"):
        WrappedModel.from_pretrained(tmp_path / "mamba", bidirectional=True)


def test_a_kind_that_could_not_be_restored_is_refused():
    class ForeignConfig(PreTrainedConfig):
        model_type = "foreign"

    with pytest.raises(
        StrictDataclassError, match="model_type='foreign', which transformers does not know, so it could"
    ):
        WrappedConfig(vocab_size=5, backbone_config=ForeignConfig())


def test_sizes_come_from_either_side():
    config = WrappedConfig(vocab_size=5, hidden_size=32, num_hidden_layers=3, backbone_config={"model_type": "gpt2"})
    assert (config.backbone_config.n_embd, config.backbone_config.n_layer) == (32, 3)
    given = BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2)
    config = WrappedConfig(vocab_size=5, backbone_config=given, bidirectional=False)
    assert (config.hidden_size, config.num_hidden_layers) == (24, 1)
    WrappedModel(config)
    assert config.backbone_config.is_decoder and not given.is_decoder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "WrappedConfig has no backbone_config; give one, such as"),
        ({"backbone_config": {"model_type": "gpt_noex"}}, "transformers does not know. Did you mean gpt_neox"),
        ({"backbone_config": {"model_type": "bert", "num_hiden_layers": 3}}, "Did you mean num_hidden_layers"),
        ({"backbone_config": {"model_type": "bert", "typo": 3}}, "has typo, which BertConfig lacks; remove it."),
        ({"backbone_config": {}}, "backbone_config names no model_type"),
        (
            {"backbone_config": {"model_type": "clip"}, "hidden_size": 16},
            "'clip', whose config has no hidden_size; wrap",
        ),
        (
            {"backbone_config": backbone_config("bert"), "ssm_parameter_patterns": ["("]},
            r"has '\(', which is no regular expression \(missing \)",
        ),
        (
            {"backbone_config": backbone_config("bert"), "hidden_size": 32},
            "hidden_size=32, but its backbone bert has 16",
        ),
        ({"backbone_config": {"model_type": "t5"}, "bidirectional": True}, "has an encoder and a decoder"),
        ({"backbone_config": {"model_type": "neverscratch_s4d", "vocab_size": 3}}, "which is a family of its own"),
        ({"backbone_config": backbone_config("bert"), "norm_type": "rms"}, "norm_type='rms', which has no effect, as"),
        ({"backbone_config": backbone_config("bert"), "hidden_dropout_prob": 0.1}, "as the blocks are those of bert"),
        ({"backbone_config": backbone_config("modernbert"), "bidirectional": False}, "modernbert looks both ways and"),
        ({"backbone_config": backbone_config("mamba"), "bidirectional": True}, "mamba looks only back and cannot look"),
        ({"backbone_config": {"model_type": "opt"}}, "does not know which way opt looks; set bidirectional=True or"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises((StrictDataclassError, ValueError), match=message):
        WrappedConfig(vocab_size=5, **fields)


@pytest.mark.parametrize(
    ("inner", "bidirectional", "message"),
    [
        ({"model_type": "vit", "image_size": 8, "patch_size": 4}, True, "ViTModel does not take inputs_embeds"),
        ({"model_type": "electra", "embedding_size": 8}, True, "embeds into 8 features and not into hidden_size=16"),
        (
            {"model_type": "falcon_mamba", "state_size": 4},
            True,
            "has no effect on falcon_mamba: its outputs shoul",
        ),
    ],
)
def test_models_that_cannot_be_wrapped_are_refused(inner, bidirectional, message):
    inner = {"num_attention_heads": 2, "intermediate_size": 24} | inner
    if "mamba" in inner["model_type"]:
        inner = {k: v for k, v in inner.items() if k not in ("num_attention_heads", "intermediate_size")}
    config = WrappedConfig(
        vocab_size=5, hidden_size=16, num_hidden_layers=1, bidirectional=bidirectional, backbone_config=inner
    )
    with pytest.raises(ValueError, match=message):
        WrappedModel(config)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "There is no folder .*; give that of a checkpoint"),
        ({}, "holds no config.json; give the folder"),
        ({"config.json": "{"}, "The config of .* cannot be read .*not a valid JSON file"),
        ({"config.json": "{}"}, "The config of .* cannot be read .*model_type"),
        ({"config.json": None}, "The weights of .* cannot be read .*no file named model.safetensors"),
        ({"config.json": None, "model.safetensors": ""}, "The weights of .* cannot be read .*header too small"),
    ],
)
def test_a_broken_checkpoint_of_a_backbone_is_refused(files, message, tmp_path):
    folder = tmp_path / "original"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(json.dumps(backbone_config("bert")) if text is None else text)
    with pytest.raises(ValueError, match=message):
        WrappedModel.from_backbone(str(folder), vocab_size=5)


def test_an_unknown_kind_is_probed():
    config = {"model_type": "opt", "num_attention_heads": 2, "ffn_dim": 24, "word_embed_proj_dim": 16, "vocab_size": 8}
    for bidirectional in (False, True):
        model = WrappedModel(
            WrappedConfig(
                vocab_size=5, hidden_size=16, num_hidden_layers=1, bidirectional=bidirectional, backbone_config=config
            )
        )
        assert probe(model.backbone, 16) == (bidirectional, True)


def test_learned_positions_have_an_end():
    for kind, longest in (("bert", 64), ("gpt2", 64), ("roberta", 62)):
        model = make_model(kind)
        assert model(inputs_embeds=values(longest)).last_hidden_state.isfinite().all()
        with pytest.raises(ValueError, match=f"has learned {longest}; shorten it"):
            model(inputs_embeds=values(longest + 1))


def test_patterns_that_find_nothing_are_refused():
    with pytest.raises(ValueError, match=r"ssm_parameter_patterns=\['A_log'\] find no parameter of BertModel"):
        make_model("bert", ssm_parameter_patterns=["A_log"])


@pytest.mark.parametrize("kind", ["gpt_neox", "modernbert"])
def test_a_model_cast_to_half_precision_is_the_one_that_is_loaded(kind, tmp_path):
    """Rotary frequencies stand in no checkpoint: rounded in one model, they would be exact in the other."""
    model = make_model(kind).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    x = values(length=300).bfloat16()
    assert torch.equal(model(inputs_embeds=x).last_hidden_state, loaded(inputs_embeds=x).last_hidden_state)


@pytest.mark.parametrize(
    ("fields", "bidirectional", "message"),
    [
        # Its causal way is one of batches without padding.
        ({"model_type": "distilbert", "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, False, "distilbert"),
        ({"model_type": "fnet", "num_hidden_layers": 2, "intermediate_size": 32}, True, "does not leave padding out"),
    ],
)
def test_a_kind_that_errs_beside_padding_is_refused(fields, bidirectional, message):
    config = {"backbone_config": fields | {"hidden_size": 16}, "num_channels": 1, "bidirectional": bidirectional}
    if fields["model_type"] == "distilbert":
        config["backbone_config"].pop("hidden_size")
    with pytest.raises(ValueError, match=message):
        WrappedModel(WrappedConfig(**config))


def test_a_cache_with_padding_wants_the_mask():
    model = make_model("gpt_neox")
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[0, :4] = 0
    cache = model(inputs_embeds=values(), attention_mask=mask, use_cache=True).cache
    with pytest.raises(ValueError, match=r"cache holds padding, so attention_mask has to say where; .* \(batch, 13\)"):
        model(inputs_embeds=values(2), cache=cache)
