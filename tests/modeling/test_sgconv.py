"""SGConv: kernels against a plain construction, their norm through saving and loading, directions, refusals."""

import pytest
import torch
from common import pad
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from neverscratch.modeling.configuration_sgconv import SGConvConfig
from neverscratch.modeling.modeling_sgconv import SGConvForSequenceClassification, SGConvMixer, SGConvModel
from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_multiscale import (
    concatenated_kernel,
    concatenated_kernel_reference,
    num_scales,
    stretch,
)

HIDDEN, TAPS, LONGEST = 8, 4, 50


def make_config(**changes) -> SGConvConfig:
    fields = {"vocab_size": 11, "hidden_size": HIDDEN, "num_hidden_layers": 2}
    return SGConvConfig(**(fields | {"kernel_length": LONGEST, "sub_kernel_size": TAPS} | changes))


def make_mixer(**changes) -> SGConvMixer:
    torch.manual_seed(0)
    mixer = SGConvMixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    return mixer


@pytest.mark.parametrize(
    ("length", "taps", "expected"),
    [
        (1, 4, 1),
        (4, 4, 1),
        (5, 4, 2),
        (8, 4, 2),
        (9, 4, 3),
        (16, 4, 3),
        (17, 4, 4),
        (4096, 64, 7),
        (1, 1, 1),
        (3, 1, 3),
    ],
)
def test_number_of_scales(length: int, taps: int, expected: int) -> None:
    assert num_scales(length, taps) == expected
    # The parts reach the length, and one fewer would not.
    assert taps << (expected - 1) >= length
    assert expected == 1 or taps << (expected - 2) < length


@pytest.mark.parametrize("taps", [1, 2, 5])
@pytest.mark.parametrize("factor", [1, 2, 8])
def test_stretching_is_torchs_linear_interpolation(factor: int, taps: int) -> None:
    x = torch.randn(2, 3, taps, dtype=torch.float64, requires_grad=True)
    expected = F.interpolate(x, scale_factor=factor, mode="linear", align_corners=False)
    got = stretch(x, factor)
    torch.testing.assert_close(got, expected, atol=1e-14, rtol=1e-14)
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*gradients, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 31, 32, 40])
def test_kernel_equals_its_plain_construction(length: int) -> None:
    sub_kernels = torch.randn(2, 3, 4, TAPS, dtype=torch.float64, requires_grad=True)
    decay = torch.tensor([0.5, 0.7, 1.0], dtype=torch.float64, requires_grad=True)
    kernel = concatenated_kernel(sub_kernels, decay, length)
    expected = concatenated_kernel_reference(sub_kernels, decay, length)
    assert kernel.shape == (2, 3, length)
    torch.testing.assert_close(kernel, expected, atol=1e-13, rtol=1e-13)
    weight = torch.randn_like(expected)
    for parameter in (sub_kernels, decay):
        got, reference = (
            torch.autograd.grad((k * weight).sum(), parameter, retain_graph=True, allow_unused=True)[0]
            for k in (kernel, expected)
        )
        torch.testing.assert_close(got, reference, atol=1e-12, rtol=1e-12)
    # The parts are 4, 4, 8 and 16 long, beyond which there is nothing.
    assert (kernel[..., 32:] == 0).all() and (kernel[..., :32] != 0).all()


def test_long_float32_kernel_keeps_its_digits() -> None:
    """Relative error at most 5e-6 of each kernel, against float64, with 65,536 values."""
    sub_kernels = torch.randn(1, 4, num_scales(65_536, 64), 64)
    decay = 1 / torch.linspace(1, 2, 4)
    kernel = concatenated_kernel(sub_kernels, decay, 65_536)
    expected = concatenated_kernel(sub_kernels.double(), decay.double(), 65_536)
    error = (kernel - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert kernel.dtype == torch.float32 and error.max() < 5e-6


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("output_gate", ["glu", "none"])
@pytest.mark.parametrize("train_decay", [True, False])
def test_mixer_equals_its_definition(train_decay: bool, output_gate: str, bidirectional: bool) -> None:
    changes = {"decay_min": 1.5, "decay_max": 3, "train_decay": train_decay, "output_gate": output_gate}
    mixer = make_mixer(bidirectional=bidirectional, **changes)
    u = torch.randn(2, 33, HIDDEN)
    decay = 1 / torch.linspace(1.5, 3, HIDDEN, dtype=torch.float64)
    # 4 taps and 5 scales are 64 values for the longest input of 50.
    whole = concatenated_kernel_reference(mixer.sub_kernels, decay, 64)
    kernels = (whole / whole.norm(dim=-1, keepdim=True))[..., :33]
    assert kernels.shape[0] == (2 if bidirectional else 1)
    y = long_conv_reference(u.double(), *kernels, *([] if bidirectional else [None]), mixer.D.double())
    y = F.linear(F.gelu(y), mixer.output_linear.weight.double(), mixer.output_linear.bias.double())
    expected = F.glu(y) if output_gate == "glu" else y
    torch.testing.assert_close(mixer(u).double(), expected, atol=3e-6, rtol=1e-5)


def test_second_direction_does_not_see_the_present() -> None:
    mixer = make_mixer()
    with torch.no_grad():
        mixer.sub_kernels[0] = 0.0
        mixer.D.zero_()
    u = torch.zeros(1, 20, HIDDEN)
    still = mixer(u)
    u[:, 10] = 1.0
    moved = (mixer(u) - still).abs().amax(-1)[0]
    assert (moved[:10] > 1e-5).all() and (moved[10:] < 1e-6).all()


def test_kernels_start_with_norm_one() -> None:
    mixer = make_mixer(kernel_length=64)
    torch.testing.assert_close(mixer.kernel(64).norm(dim=-1), torch.ones(2, HIDDEN))
    assert torch.equal(mixer.kernel(64)[..., :9], mixer.kernel(9))
    model = SGConvModel(make_config(kernel_length=64, hidden_size=64))
    for layer in model.layers:
        torch.testing.assert_close(layer.mixer.kernel(64).norm(dim=-1), torch.ones(2, 64))
        assert abs(layer.mixer.sub_kernels.std().item() - 1) < 0.05
        assert abs(layer.mixer.D.std().item() - 1) < 0.3


def test_the_norm_is_a_constant_that_is_saved(tmp_path) -> None:
    torch.manual_seed(0)
    model = SGConvModel(make_config())
    mixer = model.layers[1].mixer
    norm = mixer.kernel_norm.clone()
    with torch.no_grad():
        mixer.sub_kernels.mul_(3.0)
    model.save_pretrained(tmp_path)
    loaded = SGConvModel.from_pretrained(tmp_path).layers[1].mixer
    assert torch.equal(loaded.kernel_norm, norm)
    assert torch.equal(loaded.kernel(LONGEST), mixer.kernel(LONGEST))


def test_a_missing_norm_follows_from_the_loaded_weights(tmp_path) -> None:
    torch.manual_seed(0)
    model = SGConvModel(make_config(kernel_length=64))
    with torch.no_grad():
        model.layers[1].mixer.sub_kernels.mul_(3.0)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "layers.1.mixer.kernel_norm"
    save_file({k: v for k, v in tensors.items() if k != name}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = SGConvModel.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.layers[1].mixer.kernel_norm, 3 * model.layers[1].mixer.kernel_norm)
    assert torch.equal(loaded.layers[0].mixer.kernel_norm, model.layers[0].mixer.kernel_norm)

    missing = ("layers.1.mixer.sub_kernels",)
    save_file({k: v for k, v in tensors.items() if k not in missing}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = SGConvModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.layers[1].mixer.kernel_norm, model.layers[1].mixer.kernel_norm)


def test_the_norm_stays_float32(tmp_path) -> None:
    model = SGConvForSequenceClassification(make_config())
    model.save_pretrained(tmp_path)
    loaded = SGConvForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for layer, other in zip(loaded.model.layers, model.model.layers, strict=True):
        assert torch.equal(layer.mixer.kernel_norm, other.mixer.kernel_norm)
        assert layer.mixer.output_linear.weight.dtype == torch.bfloat16
        assert torch.equal(layer.mixer.kernel(20), other.mixer.kernel(20))


@pytest.mark.parametrize("train_decay", [True, False])
def test_decays(train_decay: bool) -> None:
    mixer = make_mixer(decay_min=1, decay_max=4, train_decay=train_decay, bidirectional=False)
    with torch.no_grad():
        mixer.sub_kernels.fill_(1.0)
        mixer.kernel_norm.fill_(1.0)
    kernel = mixer.kernel(32)[0]
    for feature, factor in ((0, 1.0), (HIDDEN - 1, 4.0)):
        expected = torch.tensor([1.0, factor**-1, factor**-2, factor**-3])
        torch.testing.assert_close(kernel[feature, [0, 4, 8, 16]], expected)
    names = {name for name, _ in mixer.named_parameters()}
    assert ("log_decay" in names) is train_decay and set(mixer.ssm_parameters) <= names


@pytest.mark.parametrize("bidirectional", [True, False])
def test_parameter_count(bidirectional: bool) -> None:
    model = SGConvModel(make_config(bidirectional=bidirectional))
    directions, scales = 2 if bidirectional else 1, 5
    block = HIDDEN + 2 * HIDDEN**2 + 2 * HIDDEN + 2 * HIDDEN
    layer = directions * HIDDEN * TAPS * scales + block
    assert sum(parameter.numel() for parameter in model.parameters()) == 11 * HIDDEN + 2 * layer + 2 * HIDDEN


def test_padding_does_not_count_as_length() -> None:
    model = SGConvModel(make_config(kernel_length=9)).eval()
    inputs = {"input_ids": torch.randint(3, 11, (2, 9))}
    expected = model(**inputs).last_hidden_state
    # Little padding stays in the blocks, much is left out of them.
    for length in (10, 17, 30):
        got = model(**pad(inputs, length, "left")).last_hidden_state[:, length - 9 :]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    longer = {"input_ids": torch.randint(3, 11, (2, 10))}
    for given in (longer, pad(longer, 11, "right"), pad(longer, 30, "right")):
        with pytest.raises(ValueError, match="has 10 positions, but the kernel was made for kernel_length=9; shorten"):
            model(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_length": 0}, "kernel_length=0, which must be at least 1"),
        ({"sub_kernel_size": 0}, "sub_kernel_size=0, which must be at least 1"),
        (
            {"kernel_length": 10, "sub_kernel_size": 12},
            "sub_kernel_size=12, which is more than kernel_length=10; use at",
        ),
        ({"decay_min": 0.5}, "decay_min=0.5 and decay_max=2.0 are not a range of decays.*use 1 <= decay_min"),
        ({"decay_min": 3}, "decay_min=3 and decay_max=2.0 are not a range"),
    ],
)
def test_config_refuses(changes: dict, message: str) -> None:
    with pytest.raises(StrictDataclassError, match=message):
        make_config(**changes)
