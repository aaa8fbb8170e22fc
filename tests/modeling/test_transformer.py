"""The Transformer itself, and the parts of the container that need no other family to be tested."""

import math

import pytest
import torch
from common import CHANNELS, NO_TABLE, VOCAB, Case, assert_same, gradients, pad, result
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neverscratch.modeling import TransformerConfig, attention
from neverscratch.modeling.blocks import Packing, SequenceDropout
from neverscratch.modeling.modeling_common import (
    clean_mask,
)
from neverscratch.modeling.modeling_transformer import (
    TransformerForCausalLM,
    TransformerForMaskedLM,
    TransformerForReconstruction,
    TransformerForSequenceClassification,
    TransformerModel,
)
from neverscratch.modeling.positions import alibi_bias, apply_rotary, rotary_table

POSITIONS = ["none", "sinusoidal", "learned", "rope", "alibi", "fire"]
BACKBONE = {direction: Case("transformer", "AutoModel", "tokens", direction) for direction in (True, False)}


def positioned(position, **options):
    """Fields that choose positions, beside those of the tiny config."""
    table = {} if position in ("sinusoidal", "learned") else NO_TABLE
    return {"position_embedding_type": position} | table | options


def reconstruction(bidirectional: bool = True, **options):
    return Case("transformer", "AutoModelForPreTraining", "values", bidirectional).model(**options)


# Attention


@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("position", ["sinusoidal", "rope", "alibi", "fire"])
def test_eager_equals_sdpa(bidirectional, side, position):
    case = BACKBONE[bidirectional]
    inputs = case.inputs()
    if side != "none":
        inputs = pad(inputs, 17, side)
        inputs["attention_mask"][0] = 1
    outputs, grads = [], []
    for implementation in ("eager", "sdpa"):
        model = case.model(attn_implementation=implementation, **positioned(position))
        assert model.config._attn_implementation == implementation
        outputs.append(result(model(**inputs)))
        grads.append(gradients(model, inputs))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    assert_same(*grads, tolerance=1e-4)


def test_the_usual_implementation_is_sdpa():
    assert BACKBONE[True].model().config._attn_implementation == "sdpa"


@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
def test_attention_is_the_textbook_formula(bidirectional):
    torch.manual_seed(0)
    fields = {"num_attention_heads": 2, "position_embedding_type": "none", "bidirectional": bidirectional}
    model = TransformerModel(TransformerConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, **fields)).eval()
    mixer, x = model.layers[0].mixer, torch.randn(1, 7, 8)
    q, k, v = (project(x)[0] for project in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    heads = []
    for i in (slice(0, 4), slice(4, 8)):
        rows = []
        for t in range(7):
            seen = slice(0, None if bidirectional else t + 1)
            weights = torch.softmax(k[seen, i] @ q[t, i] / math.sqrt(4), dim=0)
            rows.append(weights @ v[seen, i])
        heads.append(torch.stack(rows))
    expected = mixer.o_proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(mixer(x)[0], expected, atol=1e-6, rtol=1e-5)


def test_attention_weights_on_request():
    case = BACKBONE[False]
    model, inputs = case.model(), case.inputs()
    with pytest.raises(ValueError, match='needs attn_implementation="eager"'):
        model(**inputs, output_attentions=True)
    model.set_attn_implementation("eager")
    attentions = model(**inputs, output_attentions=True).attentions
    assert [tuple(a.shape) for a in attentions] == [(3, 2, 11, 11)] * 2
    torch.testing.assert_close(attentions[0].sum(-1), torch.ones(3, 2, 11))
    assert not attentions[0].triu(1).any()
    left = model(**pad(inputs, 16, "left"), output_attentions=True).attentions
    torch.testing.assert_close(left[1][:, :, 5:, 5:], attentions[1], atol=1e-5, rtol=1e-5)


def test_attention_dropout_only_in_training():
    case = BACKBONE[True]
    model, inputs = case.model(attention_dropout=0.5), case.inputs()
    assert torch.equal(result(model(**inputs)), result(model(**inputs)))
    model.train()
    assert not torch.equal(result(model(**inputs)), result(model(**inputs)))


# Positions


@pytest.mark.parametrize("position", POSITIONS)
def test_positions_matter_unless_there_are_none(position):
    case = BACKBONE[True]
    model, ids = case.model(**positioned(position)), case.inputs()["input_ids"]
    straight = result(model(ids))
    order = torch.tensor([3, 0, 9, 1, 10, 7, 2, 8, 5, 4, 6])
    assert torch.allclose(straight[:, order], result(model(ids[:, order])), atol=1e-5) is (position == "none")
    # Distances that count the same both ways cannot tell a sequence from its mirror image.
    mirrored = torch.allclose(straight.flip(1), result(model(ids.flip(1))), atol=1e-5)
    assert mirrored is (position in ("none", "alibi", "fire"))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_moves_no_position(position, side):
    case = Case("transformer", "AutoModelForSequenceClassification", "tokens", True)
    model, inputs = case.model(**positioned(position)), case.inputs()
    got = model(**pad(inputs, 20, side)).logits
    torch.testing.assert_close(got, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_a_table_has_an_end(position, tmp_path):
    case = BACKBONE[True]
    model = case.model(position_embedding_type=position, max_position_embeddings=16)
    with pytest.raises(ValueError, match=r"has 17 positions, .* max_position_embeddings=16"):
        model(torch.full((2, 17), 3))
    padded = pad({"input_ids": torch.full((2, 16), 3)}, 18, "left")
    torch.testing.assert_close(
        result(model(**padded))[:, 2:], result(model(padded["input_ids"][:, 2:])), atol=1e-5, rtol=1e-5
    )
    padded["attention_mask"][1] = 1
    with pytest.raises(ValueError, match="has 18 positions"):
        model(**padded)


def test_positions_without_a_table_have_no_end():
    for position in ("rope", "none", "alibi", "fire"):
        model = BACKBONE[True].model(**positioned(position))
        assert result(model(torch.full((1, 40), 3))).isfinite().all()


def test_half_precision_keeps_rotary_angles_exact():
    model = BACKBONE[True].model(**positioned("rope")).to(torch.bfloat16)
    assert result(model(torch.full((1, 300), 3))).isfinite().all()
    assert not list(model.buffers())


# Padding and norms


@pytest.mark.parametrize("mask", [[1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])
def test_a_mask_is_one_run(mask):
    rows = torch.tensor([[1, 1, 1, 0], mask])
    with pytest.raises(ValueError, match="Row 1 of attention_mask has [02] runs"):
        clean_mask(rows)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_moves_the_running_statistics_once(reentrant):
    case = Case("transformer", "AutoModelForSequenceClassification", "values", True)
    model, inputs = case.model(norm_type="batch").train(), pad(case.inputs(), 14, "right")
    twin = case.model(norm_type="batch").train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    for m in (model, twin):
        for _ in range(2):
            m(**inputs).loss.backward()
    assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert model.model.layers[0].mixer_norm.norm.running_mean.any()


def test_padding_changes_nothing_while_batch_norm_trains():
    case = Case("transformer", "AutoModelForSequenceClassification", "values", True)
    model, inputs = case.model(norm_type="batch").train(), case.inputs()
    assert_same(gradients(model, inputs), gradients(model, pad(inputs, 16, "left")), tolerance=1e-4)


def test_tied_dropout_drops_whole_channels():
    x = SequenceDropout(0.5, tied=True)(torch.ones(4, 30, 16))
    assert ((x == 0).all(1) | (x == 2).all(1)).all() and 0 < (x == 0).float().mean() < 1
    x = SequenceDropout(0.5, tied=False)(torch.ones(4, 30, 16))
    assert not ((x == 0).all(1) | (x == 2).all(1)).any()
    assert SequenceDropout(0.5).eval()(x) is x


# Heads


@pytest.mark.parametrize("kind", ["l1", "mse"])
def test_reconstruction_loss(kind):
    model = reconstruction(reconstruction_loss=kind)
    values, masked = torch.randn(2, 5, CHANNELS), torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1]]).bool()
    values[0, 0] = -100.0
    outputs = model(input_values=values, bool_masked_pos=masked, labels=values)
    error = (outputs.logits - values).abs() if kind == "l1" else (outputs.logits - values) ** 2
    torch.testing.assert_close(outputs.loss, error[masked].mean())
    scaled = model(input_values=values, bool_masked_pos=masked, labels=values, num_items_in_batch=12)
    torch.testing.assert_close(scaled.loss, error[masked].mean(-1).sum() / 12)


def test_reconstruction_of_levels():
    case = Case("transformer", "AutoModelForPreTraining", "values", True)
    model = case.model(num_channels=1, reconstruction_loss="cross_entropy", num_levels=6)
    levels, masked = torch.randint(0, 6, (2, 5)), torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1]]).bool()
    outputs = model(input_values=levels[..., None].float(), bool_masked_pos=masked, labels=levels)
    assert outputs.logits.shape == (2, 5, 6)
    torch.testing.assert_close(outputs.loss, nn.functional.cross_entropy(outputs.logits[masked], levels[masked]))


def test_masked_values_are_not_read():
    model, values = reconstruction(), torch.randn(1, 6, CHANNELS)
    masked = torch.tensor([[0, 0, 1, 0, 1, 0]]).bool()
    hidden = values.masked_fill(masked[..., None], float("nan"))
    shown = model(input_values=values, bool_masked_pos=masked).logits
    assert torch.equal(shown, model(input_values=hidden, bool_masked_pos=masked).logits)
    zeros = values.masked_fill(masked[..., None], 0.0)
    assert not torch.allclose(shown, model(input_values=zeros).logits)


def test_next_value_loss():
    model, values = reconstruction(bidirectional=False), torch.randn(2, 5, CHANNELS)
    outputs = model(input_values=values, labels=values)
    torch.testing.assert_close(outputs.loss, (outputs.logits[:, :-1] - values[:, 1:]).abs().mean())
    with pytest.raises(ValueError, match="bidirectional and would see the values to predict"):
        reconstruction()(input_values=values, labels=values)


def test_a_batch_without_masked_positions_has_loss_zero():
    model, values = reconstruction(), torch.randn(2, 5, CHANNELS)
    assert model(input_values=values, labels=values, bool_masked_pos=torch.zeros(2, 5)).loss == 0


def test_a_causal_language_model_predicts_the_next_token():
    model = Case("transformer", "AutoModelForCausalLM", "tokens", False).model()
    ids = torch.randint(3, VOCAB, (2, 6))
    outputs = model(ids, labels=ids)
    expected = nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(outputs.loss, expected)
    torch.testing.assert_close(model(ids, logits_to_keep=1).logits, outputs.logits[:, -1:])


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("regression", torch.tensor([[0.5, -100.0, 3.0]] * 3)),
        ("multi_label_classification", torch.tensor([[1, 0, 1]] * 3)),
        ("single_label_classification", torch.tensor([0, 2, 1])),
        (None, torch.tensor([0, 2, 1])),
        (None, torch.tensor([[1.0, 0.0, 1.0]] * 3)),
    ],
)
def test_classification_losses(problem_type, labels):
    case = Case("transformer", "AutoModelForSequenceClassification", "tokens", True)
    model, inputs = case.model(problem_type=problem_type), case.inputs()
    outputs = model(input_ids=inputs["input_ids"], labels=labels)
    if labels.dim() == 1:
        expected = nn.functional.cross_entropy(outputs.logits, labels)
    elif problem_type == "regression":
        expected = ((outputs.logits - labels) ** 2).mean()
    else:
        expected = nn.functional.binary_cross_entropy_with_logits(outputs.logits, labels.float())
    torch.testing.assert_close(outputs.loss, expected)
    assert model.config.problem_type == problem_type


def test_regression_of_one_number_takes_flat_labels():
    case = Case("transformer", "AutoModelForSequenceClassification", "tokens", True)
    model, ids = case.model(num_labels=1), case.inputs()["input_ids"]
    flat = model(input_ids=ids, labels=torch.tensor([1, 2, 3])).loss
    assert torch.equal(flat, model(input_ids=ids, labels=torch.tensor([[1.0], [2.0], [3.0]])).loss)


def test_masked_language_model_learns():
    torch.manual_seed(0)
    model = TransformerForMaskedLM(TransformerConfig(vocab_size=6, hidden_size=16, num_hidden_layers=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    labels = torch.arange(8).remainder(3).add(3)[:, None].repeat(1, 12)
    for _ in range(60):
        masked = torch.rand(8, 12) < 0.3
        loss = model(labels.masked_fill(masked, 1), labels=labels.masked_fill(~masked, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.1


# What is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "set exactly one"),
        ({"vocab_size": 5, "num_channels": 1}, "set exactly one"),
        ({"vocab_size": 5, "hidden_size": 10, "num_attention_heads": 3}, "hidden_size=10 cannot be split"),
        ({"vocab_size": 5, "hidden_size": 12, "num_attention_heads": 4, "position_embedding_type": "rope"}, "3 is odd"),
        ({"vocab_size": 0}, "vocab_size=0, which must be at least 1"),
        ({"vocab_size": 5, "hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0"),
        ({"num_channels": 1, "reconstruction_loss": "cross_entropy"}, "no num_levels"),
        ({"num_channels": 2, "reconstruction_loss": "cross_entropy", "num_levels": 4}, "num_channels=2"),
        ({"vocab_size": 5, "norm_type": "group"}, "norm_type"),
        ({"vocab_size": 5, "hidden_size": "big"}, "hidden_size"),
    ],
)
def test_configs_that_cannot_be_built(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        TransformerConfig(**fields)


def test_heads_refuse_what_they_cannot_do():
    tokens, values = TransformerConfig(vocab_size=VOCAB), TransformerConfig(num_channels=1)
    with pytest.raises(ValueError, match="TransformerForMaskedLM needs a config with vocab_size"):
        TransformerForMaskedLM(values)
    with pytest.raises(ValueError, match="TransformerForCausalLM needs bidirectional=False"):
        TransformerForCausalLM(tokens)
    with pytest.raises(ValueError, match="TransformerForReconstruction needs a config with num_channels"):
        TransformerForReconstruction(tokens)


def test_inputs_that_do_not_fit():
    tokens, values = BACKBONE[True].model(), Case("transformer", "AutoModel", "values", True).model()
    ids = torch.full((2, 4), 3)
    with pytest.raises(ValueError, match="exactly one of input_ids"):
        tokens()
    with pytest.raises(ValueError, match="got input_values, but its config has no num_channels"):
        tokens(input_values=torch.zeros(2, 4, 1))
    with pytest.raises(ValueError, match=r"must be \(batch, length, 2\)"):
        values(input_values=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="goes with input_values only"):
        tokens(ids, bool_masked_pos=torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 3\)"):
        tokens(ids, attention_mask=torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"bool_masked_pos has shape \(2, 5\)"):
        values(input_values=torch.zeros(2, 4, CHANNELS), bool_masked_pos=torch.ones(2, 5))
    with pytest.raises(ValueError, match="use_cache=True is not possible"):
        tokens(ids, use_cache=True)


def test_auto_class_builds_the_family_by_name(tmp_path):
    config = TransformerConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, num_labels=4)
    model = AutoModelForSequenceClassification.from_config(config)
    assert isinstance(model, TransformerForSequenceClassification)
    assert config.model_type == "neverscratch_transformer"


# Block-local attention

WINDOWS = {"causal": (False, 8, 1), "bidirectional": (True, 8, 1), "own": (True, 5, 0), "wide": (True, 4, 3)}


def dense_mask(length, window, neighbors, bidirectional):
    """Whether query i sees key j, by blocks."""
    block = torch.arange(length) // window
    away = block[:, None] - block
    near = away.abs() <= neighbors
    return near if bidirectional else near & (torch.arange(length)[:, None] >= torch.arange(length))


def dense_attention(mixer, x, kept, position, seen):
    """The mixer by one big matrix of scores for each row, (L, L)."""
    core, config, rows = mixer.core, mixer.core.config, []
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    for row, length in zip(x, kept, strict=True):
        q, k, v = (
            project(row[:length]).view(length, heads, size) for project in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        )
        if position == "rope":
            table = rotary_table(length, size, config.rope_theta, x.device, dtype=x.dtype)
            q, k = (apply_rotary(part, *(t[:, None] for t in table)) for part in (q, k))
        scores = torch.einsum("ihd,jhd->hij", q, k) * size**-0.5
        if position == "alibi":
            scores = scores + alibi_bias(heads, length, length, 0, x.device)[0].to(x.dtype)
        if position == "fire":
            start = torch.zeros(1, dtype=torch.long)
            scores = scores + core.fire(length, length, 0, start, start + length - 1)[0]
        weights = scores.masked_fill(~seen[:length, :length], float("-inf")).softmax(-1)
        mixed = mixer.o_proj(torch.einsum("hij,jhd->ihd", weights, v).flatten(1))
        rows.append(nn.functional.pad(mixed, (0, 0, 0, x.shape[1] - length)))
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 2, 3, 63, 100])
@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("position", ["rope", "alibi", "fire"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_local_attention_is_masked_attention(length, kind, position, implementation):
    bidirectional, window, neighbors = WINDOWS[kind]
    fields = positioned(position, attention_window=window, attention_neighbors=neighbors)
    if position == "fire":
        fields["fire_threshold"] = 20.0
    model = BACKBONE[bidirectional].model(attn_implementation=implementation, **fields).double()
    mixer, config = model.layers[0].mixer, model.config
    lengths = torch.tensor([length, max(1, length // 3), max(1, length - 1)])
    mask = torch.arange(length) < lengths[:, None]
    x = torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, length, 16, dtype=torch.float64) * mask[..., None]
    seen = dense_mask(length, window, neighbors, bidirectional)
    expected = dense_attention(mixer, x, lengths.tolist(), position, seen)
    parameters = [x, *(p for p in mixer.parameters())]
    expected_grads = torch.autograd.grad((expected * weight).sum(), parameters)
    packing = Packing(mask)
    for given in ({"attention_mask": mask}, {"packing": packing}):
        states = packing.pack(x) if "packing" in given else x
        prepared = mixer.prepare_inputs(config, states, given.get("attention_mask"), given.get("packing"))
        got = mixer(states, **given, **prepared)
        got = packing.unpack(got) if "packing" in given else got * mask[..., None]
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)
        grads = torch.autograd.grad((got * weight).sum(), parameters)
        # A constant added to all scores of a query has no effect: rounding alone is left.
        torch.testing.assert_close(grads, expected_grads, atol=1e-9, rtol=1e-9)


def test_local_attention_weights_on_request():
    fields = positioned("rope", attention_window=4, attn_implementation="eager")
    for bidirectional in (True, False):
        case = BACKBONE[bidirectional]
        model, inputs = case.model(**fields), case.inputs()
        attentions = model(**inputs, output_attentions=True).attentions
        assert [tuple(a.shape) for a in attentions] == [(3, 2, 11, 11)] * 2
        torch.testing.assert_close(attentions[0].sum(-1), torch.ones(3, 2, 11))
        assert torch.equal(attentions[0][0, 0] > 0, dense_mask(11, 4, 1, bidirectional))
        left = model(**pad(inputs, 16, "left"), output_attentions=True).attentions
        torch.testing.assert_close(left[1][:, :, 5:, 5:], attentions[1], atol=1e-5, rtol=1e-5)


def test_local_attention_over_one_block_is_full_attention():
    full = BACKBONE[True].model(**positioned("alibi"))
    local = BACKBONE[True].model(**positioned("alibi", attention_window=11, attention_neighbors=0))
    inputs = BACKBONE[True].inputs()
    torch.testing.assert_close(result(local(**inputs)), result(full(**inputs)), atol=1e-5, rtol=1e-5)


# Packing


@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [11, 60])
def test_packed_equals_padded(bidirectional, position, implementation, length, monkeypatch):
    case = Case("transformer", "AutoModelForPreTraining", "values", bidirectional)
    model = case.model(attn_implementation=implementation, **positioned(position))
    inputs = case.inputs(batch=4, length=length)
    lengths = torch.tensor([length, 1, length // 2, length - 3])
    inputs["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    monkeypatch.setattr(attention, "SPLIT_LENGTH", 8 if length == 60 else 10**6)
    packed, packed_grads = model(**inputs).logits, gradients(model, inputs)
    monkeypatch.setattr(type(model.model), "can_pack", lambda *args, **kwargs: False)
    padded, padded_grads = model(**inputs).logits, gradients(model, inputs)
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(packed[kept], padded[kept], atol=1e-5, rtol=1e-5)
    assert_same(packed_grads, padded_grads, tolerance=1e-5)


def test_a_ragged_batch_is_packed_and_attended_to_row_by_row():
    case = BACKBONE[True]
    model = case.model()
    ids, mask = torch.full((3, 60), 3), (torch.arange(60) < torch.tensor([[60], [9], [40]])).long()
    shapes = []
    model.layers[0].mixer.core.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    model(ids, attention_mask=mask)
    assert shapes == [(1, 60, 2, 8), (1, 9, 2, 8), (1, 40, 2, 8)]


# Kernels


@pytest.mark.parametrize(
    ("position", "bidirectional", "window"), [("rope", False, None), ("fire", True, None), ("alibi", True, 4)]
)
def test_flex_attention_agrees(position, bidirectional, window):
    torch._dynamo.reset()
    case = BACKBONE[bidirectional]
    model, inputs = case.model(hidden_size=32, **positioned(position, attention_window=window)), case.inputs()
    inputs = pad(inputs, 17, "left")
    inputs["attention_mask"][0] = 1
    with torch.no_grad():
        expected = result(model(**inputs))
        model.set_attn_implementation("flex_attention")
        got = result(model(**inputs))
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(got[kept], expected[kept], atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match='"flex_attention" has no gradients on a CPU'):
        model(**inputs)


def test_other_kernels_get_mask_and_bias():
    """A kernel registered by a user sees what transformers' own kernels see."""
    calls = []

    def kernel(module, query, key, value, mask, position_bias=None, **kwargs):
        calls.append((mask, position_bias))
        total = mask if position_bias is None else position_bias if mask is None else mask + position_bias
        return attention.eager_attention_forward(module, query, key, value, total, **kwargs)

    ALL_ATTENTION_FUNCTIONS.register("toy_kernel", kernel)
    ALL_MASK_ATTENTION_FUNCTIONS.register("toy_kernel", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    for position, window in (("alibi", None), ("fire", 4), ("rope", 4)):
        for bidirectional in (True, False):
            case = BACKBONE[bidirectional]
            model = case.model(**positioned(position, attention_window=window))
            inputs = pad(case.inputs(), 14, "right")
            inputs["attention_mask"][0] = 1
            expected = result(model(**inputs))
            model.set_attn_implementation("toy_kernel")
            got, kept = result(model(**inputs)), inputs["attention_mask"].bool()
            torch.testing.assert_close(got[kept], expected[kept], atol=1e-5, rtol=1e-5)
            assert (calls[-1][1] is not None) is (position != "rope")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (positioned("alibi"), 'cannot do position_embedding_type="alibi"'),
        (positioned("fire"), 'cannot do position_embedding_type="fire"'),
        (positioned("rope", attention_window=4), "cannot do attention_window=4"),
    ],
)
def test_flash_attention_refuses_what_it_cannot_do(fields, message):
    model = BACKBONE[True].model(**fields)
    # Without the package transformers refuses the name itself, so it is set behind its back.
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=message):
        model(torch.full((2, 5), 3))


def test_attention_implementations_are_declared():
    for flag in ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn", "_supports_attention_backend"):
        assert getattr(TransformerModel, flag)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": 500.0}, "rope_theta=500.0, which has no effect"),
        ({"rope_layout": "interleaved"}, "rope_layout='interleaved', which has no effect"),
        (
            {"position_embedding_type": "rope", "max_position_embeddings": 64},
            "=64, which has no effect",
        ),
        ({"fire_width": 8}, "fire_width=8, which has no effect"),
        ({"fire_threshold": 8.0}, "fire_threshold=8.0, which has no effect"),
        ({"fire_signed": True}, "fire_signed=True, which has no effect"),
        (
            {"position_embedding_type": "fire", "fire_signed": True, "bidirectional": False},
            "fire_signed=True, which has no effect with bidirectional=False",
        ),
        ({"position_embedding_type": "fire", "fire_threshold": 0}, "fire_threshold=0, which must be positive"),
        ({"attention_neighbors": 2}, "attention_neighbors=2, which has no effect without attention_window"),
        ({"attention_window": 4, "attention_neighbors": -1}, "attention_neighbors=-1, which must be at least 0"),
        ({"attention_window": 0}, "attention_window=0, which must be at least 1"),
        ({"attention_dropout": 1.0}, "attention_dropout=1.0"),
        ({"position_embedding_type": "relative"}, "position_embedding_type"),
    ],
)
def test_fields_without_effect_are_refused(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        TransformerConfig(vocab_size=5, **fields)
