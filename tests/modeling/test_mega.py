"""Mega: moving averages of both directions, gated attention against loops, chunks, refusals."""

import math

import pytest
import torch
from common import pad
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from neverscratch.modeling.configuration_mega import MegaConfig
from neverscratch.modeling.modeling_mega import MegaMixer, MegaModel, laplace
from neverscratch.modeling.ops_ema import ema_reference

HIDDEN, KEYS, VALUES, STATES = 8, 6, 12, 4
BOTH_WAYS = pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])


def make_config(**changes) -> MegaConfig:
    fields = {"vocab_size": 11, "hidden_size": HIDDEN, "num_hidden_layers": 2, "query_key_size": KEYS}
    return MegaConfig(**(fields | {"value_size": VALUES, "intermediate_size": 10, "d_state": STATES} | changes))


def make_mixer(**changes) -> MegaMixer:
    """A float64 mixer whose attention is far from uniform."""
    torch.manual_seed(0)
    mixer = MegaMixer(make_config(**changes), layer_idx=0)
    for module in mixer.modules():
        if hasattr(module, "init_weights"):
            module.init_weights()
    with torch.no_grad():
        mixer.query_key_scale.normal_()
        mixer.query_key_shift.normal_()
        for parameter in mixer.attention.parameters():
            parameter.normal_()
    return mixer.double().eval()


def run(mixer, config, x, mask=None, residual=None, **kwargs):
    prepared = MegaMixer.prepare_inputs(config, x, mask, **kwargs)
    return mixer(x, mask, residual=x if residual is None else residual, **prepared)


def offset_bias(mixer, i: int, j: int) -> torch.Tensor:
    """What is added to the score of query i and key j, from its definition."""
    attention = mixer.attention
    if attention.is_simple:
        # Negative offsets stand at the end of the table.
        return attention.offset_bias[j - i]
    pairs = KEYS // 2
    turned = []
    for vector, position in ((attention.rotary_query, i), (attention.rotary_key, j)):
        angle = position * 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        first, second = vector[:pairs], vector[pairs:]
        turned += [torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])]
    return turned[0] @ turned[1]


def reference(mixer, config, x, residual):
    """The layer for one sequence (L, H) without padding, with attention as a loop over queries and keys."""
    length = x.shape[0]
    directions = mixer.ema_delta.shape[0]
    average = mixer.ema_skip * x
    for direction in range(directions):
        ema = [getattr(mixer, name)[direction] for name in mixer.ssm_parameters]
        average = average + ema_reference(x[None], *ema, reverse=direction == 1)[0]
    base = mixer.average_linear(F.silu(average))
    gate, z, reset, candidate = base.split([HIDDEN, KEYS, VALUES, HIDDEN], dim=-1)
    z, reset = F.silu(z), F.silu(reset)
    query, key = (z * mixer.query_key_scale[i] + mixer.query_key_shift[i] for i in (0, 1))
    value = F.silu(mixer.value_linear(x))
    size = config.chunk_size or length
    mixed = []
    for i in range(length):
        start = i // size * size
        stop = min(start + size, length) if config.bidirectional else i + 1
        keys = range(start, stop)
        weights = []
        for j in keys:
            product, bias = query[i] @ key[j], offset_bias(mixer, i - start, j - start)
            if config.attention_activation == "softmax":
                weights.append(torch.exp(product / math.sqrt(KEYS) + bias))
            else:
                score = product / len(keys) + bias
                spread = math.sqrt(1 / (4 * math.pi))
                weights.append(0.5 * (1 + torch.erf((score - math.sqrt(0.5)) / (spread * math.sqrt(2)))))
        total = sum(weights) if config.attention_activation == "softmax" else 1.0
        mixed.append(sum(weight / total * value[j] for weight, j in zip(weights, keys, strict=True)))
    candidate = F.silu(candidate + mixer.mixed_linear(torch.stack(mixed) * reset))
    return residual + torch.sigmoid(gate) * (candidate - residual)


@BOTH_WAYS
@pytest.mark.parametrize("chunk_size", [None, 4, 20], ids=str)
@pytest.mark.parametrize("bias", ["simple", "rotary"])
@pytest.mark.parametrize("activation", ["softmax", "laplace"])
def test_mixer_equals_its_definition(activation, bias, chunk_size, bidirectional) -> None:
    changes = {"attention_activation": activation, "position_bias": bias, "chunk_size": chunk_size}
    if bias == "simple" and chunk_size is None:
        changes["max_position_embeddings"] = 13
    config = make_config(bidirectional=bidirectional, **changes)
    mixer = make_mixer(bidirectional=bidirectional, **changes)
    lengths = (11, 6, 1)
    x, residual = torch.randn(2, 3, 15, HIDDEN, dtype=torch.float64)
    mask = torch.arange(15) < torch.tensor(lengths)[:, None]
    # Where nothing else is learned, the table of RoPE is float32.
    tolerance = 1e-12 if bias == "simple" else 1e-6
    got = run(mixer, config, x.masked_fill(~mask[..., None], math.nan), mask, residual)
    for row, length in enumerate(lengths):
        expected = reference(mixer, config, x[row, :length], residual[row, :length])
        torch.testing.assert_close(got[row, :length], expected, atol=tolerance, rtol=tolerance)


def test_laplace_has_value_and_slope_of_the_squared_relu() -> None:
    point = torch.tensor(math.sqrt(0.5), dtype=torch.float64, requires_grad=True)
    value = laplace(point)
    assert abs(value.item() - 0.5) < 1e-15
    (slope,) = torch.autograd.grad(value, point)
    assert abs(slope.item() - 2 * math.sqrt(0.5)) < 1e-14


@pytest.mark.parametrize("activation", ["softmax", "laplace"])
def test_chunks_are_joined_by_the_moving_averages_alone(activation) -> None:
    changes = {"chunk_size": 5, "attention_activation": activation}
    mixer, config = make_mixer(**changes), make_config(**changes)
    x = torch.randn(2, 15, HIDDEN, dtype=torch.float64)
    chunked = run(mixer, config, x)
    # Attention over the whole of each chunk, on averages taken over the sequence.
    averages = mixer.moving_average(x)
    full = make_config(attention_activation=activation)
    mixer.chunk_size = None
    for start in (0, 5, 10):
        part = slice(start, start + 5)
        mixer.moving_average = lambda _, part=part: averages[:, part]
        torch.testing.assert_close(run(mixer, full, x[:, part]), chunked[:, part])


def test_a_change_in_one_chunk_reaches_the_others() -> None:
    changes = {"chunk_size": 4}
    mixer, config = make_mixer(**changes), make_config(**changes)
    x = torch.randn(1, 12, HIDDEN, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5] = 3.0
    difference = (run(mixer, config, x) - run(mixer, config, changed)).abs().amax(-1)[0]
    assert (difference > 1e-6).all()
    mixer.truncation = config.ema_truncation = 1
    difference = (run(mixer, config, x) - run(mixer, config, changed)).abs().amax(-1)[0]
    assert (difference[4:8] > 1e-6).all() and (difference[:4] < 1e-12).all() and (difference[8:] < 1e-12).all()


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("activation", ["softmax", "laplace"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_maps(activation, chunk_size, side) -> None:
    torch.manual_seed(0)
    model = MegaModel(make_config(attention_activation=activation, chunk_size=chunk_size)).eval()
    inputs = pad({"input_ids": torch.randint(3, 11, (2, 10))}, 14, side)
    maps = model(**inputs, output_attentions=True).attentions
    assert len(maps) == 2
    kept = inputs["attention_mask"][0].bool()
    for weights in maps:
        assert weights.shape == (2, 1, 14, 14)
        weights = weights[:, 0][:, kept][:, :, kept]
        index = torch.arange(10) // (chunk_size or 10)
        same = index[:, None] == index
        assert (weights[:, same] > 0).all() and (weights[:, ~same] == 0).all()
        if activation == "softmax":
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 10))
    assert model(**inputs).attentions is None


def test_start_values() -> None:
    model = MegaModel(make_config(hidden_size=256, d_state=16))
    mixer = model.layers[1].mixer
    signs = torch.tensor([1.0, -1.0]).repeat(8)
    assert (mixer.ema_beta.sign() == signs).all()
    deviation = (mixer.ema_beta - signs).std().item()
    assert abs(deviation - 0.02) < 0.002
    for parameter, std in (
        (mixer.ema_delta, 0.2),
        (mixer.ema_alpha, 0.2),
        (mixer.ema_gamma, 1.0),
        (mixer.ema_skip, 1.0),
    ):
        assert abs(parameter.std().item() - std) < 0.15 * std and abs(parameter.mean().item()) < 0.2 * std
    assert (mixer.query_key_shift == 0).all()
    assert 0.005 < mixer.query_key_scale.std().item() < 0.04
    table = MegaModel(make_config(position_bias="simple", chunk_size=600)).layers[0].mixer.attention.offset_bias
    assert abs(table.std().item() - 0.02) < 0.002


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("simple", [True, False])
def test_parameter_count(bidirectional: bool, simple: bool) -> None:
    bias = {"position_bias": "simple", "max_position_embeddings": 50} if simple else {}
    model = MegaModel(make_config(bidirectional=bidirectional, **bias))
    directions, inner = 2 if bidirectional else 1, 10
    ema = directions * 4 * HIDDEN * STATES + HIDDEN
    width = 2 * HIDDEN + KEYS + VALUES
    linear = (HIDDEN + 1) * VALUES + (HIDDEN + 1) * width + (VALUES + 1) * HIDDEN
    attention = 4 * KEYS + (2 * 50 - 1 if simple else 2 * KEYS)
    feed_forward = (HIDDEN + 1) * inner + (inner + 1) * HIDDEN
    layer = ema + linear + attention + feed_forward + 4 * HIDDEN
    expected = 11 * HIDDEN + 2 * layer + 2 * HIDDEN
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_padding_does_not_count_as_length() -> None:
    model = MegaModel(make_config(position_bias="simple", max_position_embeddings=10)).eval()
    inputs = {"input_ids": torch.randint(3, 11, (2, 10))}
    expected = model(**inputs).last_hidden_state
    got = model(**pad(inputs, 17, "left")).last_hidden_state[:, 7:]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    longer = {"input_ids": torch.randint(3, 11, (2, 11))}
    with pytest.raises(ValueError, match="has 11 positions, but offsets are learned for max_position_embeddings=10"):
        model(**longer)
    with pytest.raises(ValueError, match="shorten the sequences"):
        model(**pad(longer, 17, "right"))


def test_chunks_take_any_length() -> None:
    model = MegaModel(make_config(position_bias="simple", chunk_size=4)).eval()
    for length in (1, 3, 4, 5, 63, 1000):
        states = model(input_ids=torch.randint(3, 11, (1, length))).last_hidden_state
        assert states.shape == (1, length, HIDDEN) and states.isfinite().all()


def test_dropout_acts_in_training_only() -> None:
    config = make_config(attention_dropout=0.5, hidden_dropout_prob=0.0)
    mixer = make_mixer(attention_dropout=0.5)
    x = torch.randn(1, 9, HIDDEN, dtype=torch.float64)
    assert torch.equal(run(mixer, config, x), run(mixer, config, x))
    mixer.train()
    assert not torch.equal(run(mixer, config, x), run(mixer, config, x))


def test_feed_forward_activation() -> None:
    for name, function in (("silu", F.silu), ("gelu", F.gelu)):
        layer = MegaModel(make_config(feed_forward_activation=name)).layers[0].feed_forward
        x = torch.randn(3, HIDDEN)
        torch.testing.assert_close(layer(x), layer.down(function(layer.up(x))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_key_size": 7}, "query_key_size=7 is odd; use an even number"),
        ({"position_bias": "simple"}, "set max_position_embeddings to the longest sequence, or chunk_size"),
        ({"max_position_embeddings": 9}, "has no effect with position_bias='rotary'"),
        (
            {"position_bias": "simple", "max_position_embeddings": 9, "chunk_size": 3},
            "max_position_embeddings=9, which has no effect with chunk_size=3",
        ),
        ({"chunk_size": 0}, "chunk_size=0, which must be at least 1"),
        ({"ema_truncation": 0}, "ema_truncation=0, which must be at least 1"),
        ({"d_state": 0}, "d_state=0, which must be at least 1"),
        ({"attention_dropout": 1.0}, r"attention_dropout=1.0, which must be in \[0, 1\)"),
    ],
)
def test_config_refuses(changes: dict, message: str) -> None:
    with pytest.raises(StrictDataclassError, match=message):
        make_config(**changes)
