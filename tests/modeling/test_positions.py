"""Positions inside attention against their formulas: RoPE in both layouts, ALiBi and FIRE in both directions."""

import math

import pytest
import torch

from neverscratch.modeling import TransformerConfig
from neverscratch.modeling.positions import (
    FireBias,
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    rotary_table,
    sinusoidal_table,
    toeplitz,
)

CPU = torch.device("cpu")
LAYOUTS = ["half", "interleaved"]


def test_sinusoidal_table_is_the_formula():
    table = sinusoidal_table(20001, 7)
    for t, i in ((0, 0), (1, 0), (5, 3), (20000, 0), (20000, 1), (20000, 6)):
        angle = t / 10000 ** (2 * (i // 2) / 7)
        assert table[t, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)


# RoPE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_is_the_formula(layout):
    cosine, sine = rotary_table(7, 8, 10000.0, CPU, layout)
    x = torch.randn(7, 8)
    turned = apply_rotary(x, cosine, sine, layout)
    for t in range(7):
        for pair in range(4):
            a, b = (pair, pair + 4) if layout == "half" else (2 * pair, 2 * pair + 1)
            angle = t / 10000 ** (2 * pair / 8)
            expected = complex(x[t, a], x[t, b]) * complex(math.cos(angle), math.sin(angle))
            assert complex(turned[t, a], turned[t, b]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_scores_depend_on_distance_only(layout):
    cosine, sine = rotary_table(30000, 8, 10000.0, CPU, layout)
    q, k = torch.randn(5, 8), torch.randn(5, 8)

    def scores(shift):
        where = slice(shift, shift + 5)
        return (
            apply_rotary(q, cosine[where], sine[where], layout) @ apply_rotary(k, cosine[where], sine[where], layout).T
        )

    torch.testing.assert_close(scores(0), scores(29_000), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scores(0), q @ k.T, atol=1e-2)


def test_the_rotary_layouts_differ_by_an_order_of_channels():
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    x = torch.randn(9, 8)
    half = apply_rotary(x, *rotary_table(9, 8, 10000.0, CPU, "half"), "half")
    other = apply_rotary(x[:, order], *rotary_table(9, 8, 10000.0, CPU, "interleaved"), "interleaved")
    torch.testing.assert_close(other, half[:, order], atol=0, rtol=0)


def test_rotary_tables_in_double_precision():
    cosine, _ = rotary_table(1000, 4, 10000.0, CPU, dtype=torch.float64)
    assert cosine.dtype == torch.float64
    assert cosine[999, 1].item() == pytest.approx(math.cos(999 / 100), abs=1e-13)


# ALiBi


def test_alibi_slopes_of_eight_heads():
    assert alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(16) == pytest.approx([2 ** (-h / 2) for h in range(1, 17)])


def test_alibi_slopes_of_twelve_heads():
    # Those of eight heads, then every second of those of sixteen.
    assert alibi_slopes(12) == pytest.approx([2.0**-h for h in range(1, 9)] + [2 ** -(h / 2) for h in (1, 3, 5, 7)])
    # transformers takes the slopes of Bloom in the same way.
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 2, 3, 6, 8, 12, 20):
        bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom)


def test_alibi_counts_distance_both_ways():
    bias = alibi_bias(3, 6, 6, 0, CPU)
    assert bias.shape == (1, 3, 6, 6) and bias.dtype == torch.float32
    for head, slope in enumerate(alibi_slopes(3)):
        for i in range(6):
            for j in range(6):
                assert bias[0, head, i, j].item() == pytest.approx(-slope * abs(i - j))
    assert torch.equal(bias, bias.transpose(2, 3))
    assert torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1])
    # Queries 4 to 6 before keys 0 to 7.
    assert torch.equal(alibi_bias(3, 3, 8, 4, CPU), alibi_bias(3, 8, 8, 0, CPU)[:, :, 4:7])


# FIRE


def fire(bidirectional=True, **fields):
    torch.manual_seed(0)
    fields = {"num_attention_heads": 3, "hidden_size": 12, "fire_width": 5, "fire_threshold": 6.0} | fields
    config = TransformerConfig(vocab_size=5, position_embedding_type="fire", bidirectional=bidirectional, **fields)
    bias = FireBias(config).double()
    bias.init_weights()
    return bias


def window(bias, length):
    start = torch.zeros(1, dtype=torch.long)
    return bias(length, length, 0, start, start + length - 1)


@pytest.mark.parametrize("length", [1, 4, 11])
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "signed"])
def test_fire_is_the_formula(kind, length):
    bias = fire(kind != "causal", fire_signed=kind == "signed")
    got = window(bias, length)
    c, threshold = bias.scale.item(), bias.threshold.item() * 6.0
    assert (c, threshold) == pytest.approx((0.1, 6.0))
    for i in range(length):
        for j in range(i + 1 if kind == "causal" else length):
            last = i if kind == "causal" else length - 1
            ratio = math.log(c * abs(i - j) + 1) / (math.log(c * max(threshold, last) + 1) + 1e-6)
            assert 0 <= ratio <= 1
            features = [ratio, (j > i) - (j < i)] if kind == "signed" else [ratio]
            hidden = (bias.up.weight @ torch.tensor(features, dtype=torch.float64) + bias.up.bias).clamp(min=0)
            torch.testing.assert_close(got[0, :, i, j], bias.down.weight @ hidden, atol=1e-12, rtol=1e-12)


def test_fire_is_symmetric_and_toeplitz():
    bias = window(fire(), 9)
    torch.testing.assert_close(bias, bias.transpose(2, 3))
    torch.testing.assert_close(bias[..., 1:, 1:], bias[..., :-1, :-1])
    signed = window(fire(fire_signed=True), 9)
    assert not torch.allclose(signed, signed.transpose(2, 3))
    causal = window(fire(False), 9)
    torch.testing.assert_close(causal[..., 1:7, 1:7], causal[..., :6, :6])
    # Beyond the threshold of 6 the distance counts relative to the position.
    assert not torch.allclose(causal[..., 8, 7], causal[..., 7, 6])


def test_fire_can_be_linear_in_the_distance():
    bias = fire(num_attention_heads=1)
    with torch.no_grad():
        # log(c x + 1) / log(c n + 1) goes to x / n as c goes to zero.
        bias.scale.fill_(1e-3), bias.up.weight.fill_(1.0), bias.up.bias.zero_(), bias.down.weight.fill_(-1.0)
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    torch.testing.assert_close(window(bias, 6)[0, 0], -5.0 * distance.double() / 6.0, atol=3e-2, rtol=0)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])
def test_fire_learns_all_its_parameters(bidirectional):
    bias = fire(bidirectional)
    names = [name for name, _ in bias.named_parameters()]
    assert sorted(names) == ["down.weight", "scale", "threshold", "up.bias", "up.weight"]

    def function(*parameters):
        start = torch.zeros(1, dtype=torch.long)
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(bias, given, (6, 6, 0, start, start + 5))

    assert torch.autograd.gradcheck(function, [p.detach().requires_grad_() for p in bias.parameters()])
    window(bias, 6).sin().sum().backward()
    assert all(p.grad.any() for p in bias.parameters())


def test_toeplitz_windows():
    table = torch.arange(2 * 8).view(2, 8)
    matrix = toeplitz(table, 3, 6)
    assert matrix.shape == (2, 3, 6)
    for i in range(3):
        for j in range(6):
            assert torch.equal(matrix[:, i, j], table[:, 2 + j - i])
